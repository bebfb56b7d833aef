"""Which life of a producer says hello, and which came before it. Pure.

Rules
- A task tells its life itself: the fence of its owner, which is higher for each later one.
- A program is told the life that it has in a lane when it opens that first, and says it when it
  comes back. A program that says none begins a life.
- Of two processes that have the same life in a lane, the one that the lane knows goes on.
- A task that has begun anew without its state has another id: behind the ``#`` stands a later word.
"""

from __future__ import annotations

from typing import NamedTuple

from s4node.net.wire import frame as wire


class Life(NamedTuple):
    """A life of a producer: its number in a lane, and the incarnation of its process."""

    number: int = 0
    incarnation: str = ""


def fence_of(hello: wire.Hello) -> int:
    """Which owner of a task says hello; 0 where it is not a task's."""
    fence = hello.headers.get(wire.FENCE)
    return fence if isinstance(fence, int) and hello.peer.startswith(wire.TASK) else 0


def has_own_id(hello: wire.Hello) -> bool:
    """Return True if later lives of the producer go on under its id."""
    return hello.peer.startswith(wire.TASK) or bool(hello.headers.get(wire.OWN_ID))


def life_of(hello: wire.Hello, told: int, known: Life) -> Life | None:
    """The life that says hello to a lane; None where a later one is ``known`` there.

    ``told`` is the life that a program says it has in the lane, 0 for none.
    """
    if hello.peer.startswith(wire.TASK):
        fence = fence_of(hello)
        return None if fence < known.number else Life(fence, hello.incarnation)
    if known.incarnation in ("", hello.incarnation):
        return Life(max(known.number, told, 1), hello.incarnation)
    if told == 0:
        return Life(known.number + 1, hello.incarnation)
    return Life(told, hello.incarnation) if told > known.number else None


def task_of(producer: str) -> tuple[str, str]:
    """A task's id without the word of its state's life, and that word; empty for a program."""
    if not producer.startswith(wire.TASK):
        return "", ""
    task, _, word = producer.partition("#")
    return task, word
