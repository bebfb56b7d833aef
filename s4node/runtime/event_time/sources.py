"""The sources of a stream's events, as its input knows them. Pure.

Rules
- A source is a producer, or another task. It stays one while it is there or may return, and until
  its last events are done.
- One that may return is away from when its connection is lost until it is back: nobody knows if it
  has events. It is not away if it has said that it leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol


class SourceState(NamedTuple):
    """A source as its input knows it.

    ``returns``: it is waited for although it is not ``here``. ``waits``: its events wait.
    ``blocked``: it cannot send. ``reports``: its time is not that of its events. ``left``: it has
    said that it leaves, and is not ``here``.
    """

    name: str
    here: bool = True
    returns: bool = False
    waits: bool = False
    blocked: bool = False
    reports: bool = False
    left: bool = False


class Sources(Protocol):
    @property
    def has_changes(self) -> bool: ...

    def take_changes(self) -> Collection[str]:
        """Take the names of those that have come or gone since the last call; at first, of all."""
        ...

    def states(self, among: Collection[str] | None = None) -> Iterable[SourceState]: ...
