"""The lives of a producer: which one says hello, and which is later. Pure.

Rules
- The life of a task is the fence of its owner, which rises with each owner.
- A node numbers the lives of a program in each lane, and answers the number when the program first
  opens the lane; the program repeats it when it reconnects. A program without a number begins a
  life.
- Of two processes with the same life in a lane, the one that the lane knows goes on. So the last
  number that a life can have serves for all further ones.
- A batch has one life: its incarnation is a hash of its events, and another one is refused.
- A task that has begun anew without its state has another id, with a higher text after the ``#``.
"""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

from s4node.net.wire import frame as wire


class Life(NamedTuple):
    """A life of a producer: its number in a lane, and the incarnation of its process."""

    number: int = 0
    incarnation: str = ""


def fence_of(hello: wire.Hello) -> int:
    fence = hello.headers.get(wire.FENCE)
    return fence if isinstance(fence, int) and hello.peer.startswith(wire.TASK) else 0


def has_own_id(hello: wire.Hello) -> bool:
    """Return True if later lives of the producer use the same id, for ever."""
    if hello.peer.startswith(wire.BATCH):
        return False
    return hello.peer.startswith(wire.TASK) or bool(hello.headers.get(wire.OWN_ID))


def life_of(hello: wire.Hello, named: int, known: Life) -> Life | None:
    """The life that says hello to a lane; None if a later one, or another batch, is ``known``.

    ``named`` is the life that the program names for the lane, 0 if none.
    """
    if hello.peer.startswith(wire.TASK):
        fence = fence_of(hello)
        return None if fence < known.number else Life(fence, hello.incarnation)
    if known.incarnation in ("", hello.incarnation):
        return Life(max(known.number, named, 1), hello.incarnation)
    if hello.peer.startswith(wire.BATCH):
        return None
    if named == 0:
        return Life(min(known.number + 1, wire.MAX_NUMBER), hello.incarnation)
    return Life(named, hello.incarnation) if named > known.number else None


def task_of(producer: str) -> tuple[str, str]:
    """A task's id split at the ``#``: the task, and the life of its state; empty for a program."""
    if not producer.startswith(wire.TASK):
        return "", ""
    task, _, life = producer.partition("#")
    return task, life


def later_life(stream: str, hello: wire.Hello, known: Life) -> str:
    """The reason to refuse a hello of which a later life, or another batch, is ``known``."""
    if hello.peer.startswith(wire.BATCH):
        return (
            f"stream {stream!r}: the batch {hello.peer!r} has other events; give these another id"
        )
    if hello.peer.startswith(wire.TASK):
        return (
            f"stream {stream!r}: a later owner of the task of {hello.peer!r} (fence "
            f"{known.number}) sends now; this owner, with fence {fence_of(hello)}, was "
            f"replaced"
        )
    return (
        f"stream {stream!r}: a program that was started later has used the producer id "
        f"{hello.peer!r}, so events of this one are refused; its unacknowledged events may be "
        f"missing. Start it again, and give each program a producer id of its own"
    )


class TaskLives:
    """The lives of the states of tasks that have sent saved events; the latest are known."""

    def __init__(self) -> None:
        self._lives: dict[str, list[str]] = {}  # by task, the latest last

    def add(self, producer: str) -> list[str]:
        """Learn the life of a task from its id; return the ids of lives that are forgotten."""
        task, life = task_of(producer)
        lives = self._lives.setdefault(task, []) if task else []
        if task and life not in lives:
            insort(lives, life)
        older = len(lives) - wire.MAX_LIVES
        return [f"{task}#{lives.pop(0)}" for _ in range(older)]

    def problem(self, stream: str, hello: wire.Hello) -> str:
        """The reason to refuse a task a stream, or empty."""
        task, life = task_of(hello.peer)
        if task and not isinstance(hello.headers.get(wire.FENCE), int):
            return (
                f"stream {stream!r}: ids that begin with {wire.TASK} belong to tasks, but "
                f"{hello.peer!r} has no fence; give the producer another id"
            )
        lives = self._lives.get(task, [])
        latest = lives[-1] if lives else ""
        if life < latest:
            return (
                f"stream {stream!r}: the task of {hello.peer!r} has begun anew since, as "
                f"{task}#{latest}, so events of its former state are refused; remove that state, "
                f"or give the app another name"
            )
        return ""
