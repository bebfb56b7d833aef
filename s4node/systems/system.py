"""The contract of systems: where streams of events live that can be read again.

Rules
- A stream has partitions, numbered from 0; their number never changes while it is read. A
  partition's events are numbered by offsets without order among partitions.
- A reader gives the batches of one partition in order, each event once, from the offset it was
  opened at: neither skipping one that is there, nor one that comes later.
- Reading is pulled: a reader fetches ahead a bounded amount and then waits for ``read``. While it
  is paused it fetches nothing.
- An input that goes away is waited for: ``read`` goes on where it was when it is back. What can
  never be given raises: InputLost (the events were there and are gone), UnknownStream.
- Everything is called in one trio program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from s4node.event import EventBatch
from s4node.progress.startpoint import Startpoint


class SystemStreamPartition(NamedTuple):
    """One partition of a stream of a system."""

    system: str
    stream: str
    partition: int

    def __str__(self) -> str:
        return f"{self.system}.{self.stream}[{self.partition}]"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets of a partition: of the ``oldest`` event that is there, and the ``upcoming`` one.

    They are equal where it is empty. ``end`` is the offset at which the stream ends for good, None
    where it does not.
    """

    oldest: int
    upcoming: int
    end: int | None = None


class EndOfStream:
    """What ``read`` gives when the partition has ended for good."""


END_OF_STREAM = EndOfStream()


class InputBatch(EventBatch):
    """Events of a replayable input: ``first`` is the offset of the first, ``created_ms`` when it
    was appended (Unix time).

    Events that are yet to be decoded are counted by ``size``; ``load`` decodes them into
    ``events``, and what does not decode is in ``undecoded``: offset, reason, and raw bytes.
    """

    __slots__ = ("created_ms", "undecoded")

    created_ms: int
    undecoded: Sequence[tuple[int, str, bytes]]


class PartitionReader(Protocol):
    """Reads one partition from an offset on."""

    ssp: SystemStreamPartition

    @property
    def position(self) -> int:
        """The offset of the event that ``read`` gives next."""
        ...

    @property
    def lag(self) -> int | None:
        """Events from ``position`` to the end as it was last known; None before anything is."""
        ...

    async def read(self) -> InputBatch | EndOfStream:
        """The next batch, once there is one; cancelling loses nothing.

        Raises InputLost where the next event is no longer there.
        """
        ...

    def pause(self) -> None:
        """Fetch nothing more until ``resume``; what has been fetched can still be read."""
        ...

    def resume(self) -> None:
        """Fetch again."""
        ...

    async def aclose(self) -> None:
        """Stop reading and give everything back."""
        ...


class System(Protocol):
    """A place where streams live. ``name`` is what they are called by: ``name.stream``."""

    name: str

    async def partitions(self, stream: str) -> int:
        """How many partitions the stream has; raises UnknownStream, with the names of all."""
        ...

    async def bounds(self, ssp: SystemStreamPartition) -> Bounds:
        """The oldest and the upcoming offset as of now."""
        ...

    async def resolve(self, ssp: SystemStreamPartition, startpoint: Startpoint) -> int:
        """The offset that a startpoint means now.

        Raises StartpointError where it means none: beyond the end, before the oldest, or a kind of
        startpoint that the system cannot find.
        """
        ...

    async def open(
        self, ssp: SystemStreamPartition, offset: int, types: Sequence[type]
    ) -> PartitionReader:
        """Read a partition from ``offset`` on; events come as objects of these types.

        Where GenericEvent is the only type, events of any type come as GenericEvents.
        """
        ...

    async def append(
        self, stream: str, partition: int, events: Sequence[object], created_ms: int | None = None
    ) -> int:
        """Append events durably; returns the offset of the first."""
        ...

    async def aclose(self) -> None:
        """Give everything back; readers end."""
        ...
