"""Quiescence: no task is busy, and no event is on its way between tasks.

Rules
- Events between durable tasks leave by a commit of the sender, and stay in its outbox until a
  commit of the receiver. So waiting for quiescence requests commits.
- Events whose receiver is away stay in the outbox, and are not waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import trio

from s4node.runtime.commit.committer import Committer
from s4node.runtime.loop.run_loop import RunLoop
from s4node.runtime.outputs.outputs import Outputs
from s4node.runtime.task.task import Task

_LOOK_SECONDS = 0.005


@dataclass(eq=False, repr=False)
class Quiescence:
    """Waits for the quiescence of ``tasks``, which change; ``undoes``: they can be rolled back."""

    _loop: RunLoop
    _tasks: Mapping[int, Task]
    _committer: Committer
    _outputs: Outputs
    _undoes: bool

    async def wait(self) -> None:
        """Wait until no task has anything to do, and all events between tasks are committed."""
        while (  # noqa: ASYNC110 - any of many things may end it
            self._ask_commits() or self._outputs.moving or not self._at_rest
        ):
            await trio.sleep(_LOOK_SECONDS)

    def arrived(self) -> bool:
        """Return True if no event is on its way between tasks, nor would be after a rollback.

        Otherwise request commits.
        """
        if self._outputs.idle and not self._undoes:
            return True
        return not self._ask_commits() and self._outputs.idle

    @property
    def _at_rest(self) -> bool:
        return self._loop.idle and all(task.at_rest for task in self._tasks.values())

    def _ask_commits(self) -> bool:
        """Have tasks commit that have changes; return False if none has."""
        found = False
        for task in self._tasks.values():
            if self._committer.changed(task):
                found = True
                if not self._committer.writes(task):
                    task.want_commit()
                    self._loop.wake(task)
        return found
