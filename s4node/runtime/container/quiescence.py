"""When nothing is left to do: no task is busy, and nothing is on its way between tasks.

Rules
- What tasks that keep what they do send each other leaves by commits, and stays until commits; so
  the caller that waits for it asks for those.
- What nobody can take now, because its owner is away, is kept, and not waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import trio

from s4node.runtime.commit.committer import Committer
from s4node.runtime.loop.run_loop import RunLoop
from s4node.runtime.outputs.exchange import Exchange
from s4node.runtime.task.task import Task

_LOOK_SECONDS = 0.005


@dataclass(eq=False, repr=False)
class Quiescence:
    """Of these ``tasks``, which change; only what is durable is waited for. ``undoes`` is whether
    tasks may go back."""

    _loop: RunLoop
    _tasks: Mapping[int, Task]
    _committer: Committer
    _exchange: Exchange
    _undoes: bool

    async def wait(self) -> None:
        """Return when no task has anything to do, and all that they have sent each other is
        committed where it went."""
        while (  # noqa: ASYNC110 - any of many things may end it
            self._ask_commits() or self._exchange.moving or not self._at_rest
        ):
            await trio.sleep(_LOOK_SECONDS)

    def arrived(self) -> bool:
        """Whether nothing is on its way between tasks, nor would be if one of them went back;
        otherwise commits are asked for."""
        if self._exchange.idle and not self._undoes:
            return True
        return not self._ask_commits() and self._exchange.idle

    @property
    def _at_rest(self) -> bool:
        return self._loop.idle and all(task.at_rest for task in self._tasks.values())

    def _ask_commits(self) -> bool:
        """Have tasks commit that have something to commit; False if none has."""
        found = False
        for task in self._tasks.values():
            if self._committer.changed(task):
                found = True
                if not self._committer.writes(task):
                    task.want_commit()
                    self._loop.wake(task)
        return found
