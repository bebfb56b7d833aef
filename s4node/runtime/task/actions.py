"""What a task wants done beside its own work: the actions that its decisions return. Pure.

Rules
- A decision calls nothing outside its task. It returns actions, and the loop carries them out at
  once, in their order; most decisions return none.
- What handlers have put is handed on before the step is finished: what it comes to may go first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from s4node.app.stream import Stream


class Asked:
    """What was asked for at one event, or in one slice; given to the task as its coordinator."""

    __slots__ = ("any", "commit_all", "commit_this", "shutdown_all", "shutdown_this")

    def __init__(self) -> None:
        self.any = False
        self.commit_this = self.commit_all = False
        self.shutdown_this = self.shutdown_all = False

    def commit(self, *, all_tasks: bool = False) -> None:
        """Have this task's progress saved, or that of all tasks of the container."""
        if all_tasks:
            self.commit_all = True
        self.commit_this = True
        self.any = True  # last, for the loop may look from another thread

    def shutdown(self, *, all_tasks: bool = False) -> None:
        """Say that this task is done, or stop the container."""
        if all_tasks:
            self.shutdown_all = True
        self.shutdown_this = True
        self.any = True

    def taken(self) -> Asked:
        """What was asked for since the last time."""
        found = Asked()
        found.commit_this, found.commit_all = self.commit_this, self.commit_all
        found.shutdown_this, found.shutdown_all = self.shutdown_this, self.shutdown_all
        self.any = self.commit_this = self.commit_all = False
        self.shutdown_this = self.shutdown_all = False
        return found


class HandOn(NamedTuple):
    """Hand on what handlers have put on a stream, while they processed ``source``, or none."""

    source: str
    stream: Stream
    events: list[Any]


class Ask(NamedTuple):
    """See to what handlers have asked for."""

    asked: Asked


class EndTold(NamedTuple):
    """The task was told of the end of its inputs: so it is done, as if it had said so."""


class Replace(NamedTuple):
    """The task has failed, and nothing of it is under way: make another one in its place."""


Action = HandOn | Ask | EndTold | Replace
Actions = Sequence[Action]

NONE: Actions = ()
