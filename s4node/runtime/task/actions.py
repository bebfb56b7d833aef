"""The actions that a task's decisions return, for the loop to carry out. Pure.

Rules
- A decision calls nothing outside its task. It returns actions, and the loop carries them out at
  once, in their order. Most decisions return none.
- Events that handlers have put are handed on before the step is finished, so that internal events
  they lead to may go first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from s4node.app.stream import Stream


class Asked:
    """The requests made at one event, or in one slice: a task's coordinator."""

    __slots__ = ("any", "commit_all", "commit_this", "shutdown_all", "shutdown_this")

    def __init__(self) -> None:
        self.any = False
        self.commit_this = self.commit_all = False
        self.shutdown_this = self.shutdown_all = False

    def commit(self, *, all_tasks: bool = False) -> None:
        if all_tasks:
            self.commit_all = True
        self.commit_this = True
        self.any = True  # last: the loop may read it from another thread

    def shutdown(self, *, all_tasks: bool = False) -> None:
        if all_tasks:
            self.shutdown_all = True
        self.shutdown_this = True
        self.any = True

    def taken(self) -> Asked:
        """Return the requests made since the last call, and reset them."""
        found = Asked()
        found.commit_this, found.commit_all = self.commit_this, self.commit_all
        found.shutdown_this, found.shutdown_all = self.shutdown_this, self.shutdown_all
        self.any = self.commit_this = self.commit_all = False
        self.shutdown_this = self.shutdown_all = False
        return found


class HandOn(NamedTuple):
    """Hand on events that handlers put on a stream while processing ``source`` ("" if none)."""

    source: str
    stream: Stream
    events: list[Any]


class Ask(NamedTuple):
    """Carry out the requests of handlers."""

    asked: Asked


class EndTold(NamedTuple):
    """The task was notified of the end of its inputs, so it is done."""


class Replace(NamedTuple):
    """The task has failed and nothing of it is in flight: replace it."""


Action = HandOn | Ask | EndTold | Replace
Actions = Sequence[Action]

NONE: Actions = ()
