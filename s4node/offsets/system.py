"""The contract of systems: places whose streams of events can be read again.

Rules
- A stream has partitions, numbered from 0; their number never changes while it is read. A
  partition's events are numbered by offsets; partitions have no order among each other.
- A reader gives the batches of one partition in order, each event once, from the offset it was
  opened at: it skips neither an event that is there nor one that comes later.
- Reading is pulled: a reader fetches ahead a bounded amount and then waits for ``read``. While it
  is paused it fetches nothing.
- A system that goes away is waited for: every method resumes when it is back, ``read`` where it
  was. What can never be given raises: InputLost (the events are gone), UnknownStream.
- Not every input can be read again: one that is fed over live sockets is a Source and not a System.
- Everything is called in one trio program, while ``run`` runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from s4node.events.event import EventBatch
from s4node.offsets.startpoint import Startpoint


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

    They are equal if it is empty. ``end`` is the offset at which the stream ends for good, None if
    it does not.

    ``epochs`` is the history: each epoch, a number that rises, with the first offset of its events.
    A new epoch begins when the last events of the one before may be lost, for what comes then has
    their offsets. Empty where nothing is ever lost so.
    """

    oldest: int
    upcoming: int
    end: int | None = None
    epochs: tuple[tuple[int, int], ...] = field(default=(), compare=False)

    @property
    def epoch(self) -> int:
        """The epoch that is now; 0 where there are none."""
        return self.epochs[-1][0] if self.epochs else 0

    def end_of(self, epoch: int) -> int:
        """The offset behind the last event that has remained of an epoch."""
        return next((first for each, first in self.epochs if each > epoch), self.upcoming)


class EndOfStream:
    """What ``read`` returns when the partition has ended for good."""


END_OF_STREAM = EndOfStream()


class InputBatch(EventBatch):
    """Events of a replayable input: ``first`` is the offset of the first, ``created_ms`` when it
    was appended (Unix time).

    Events that are not decoded yet are counted by ``size``; ``load`` decodes them into ``events``,
    and what does not decode is in ``undecoded``: offset, reason, and raw bytes. There the batch has
    holes, and ``numbers``. ``loaded`` is for a reader that shares it among tasks. ``routing`` is
    ``hasher:key`` if each of the events was put into the partition of its key by that rule, as in
    the frames of the wire; else empty.
    """

    __slots__ = ("loaded", "routing", "undecoded")

    routing: str
    undecoded: Sequence[tuple[int, str, bytes]]

    def __init__(
        self, ssp: SystemStreamPartition, first: int, size: int, weight: int, created_ms: int
    ) -> None:
        super().__init__(ssp.stream, ssp.partition, [], None, first, None, weight)
        self.source = ssp
        self.size = size
        self.created_ms = created_ms
        self.loaded = False
        self.routing = ""
        self.undecoded = ()


class PartitionReader(Protocol):
    """Reads one partition from an offset on."""

    ssp: SystemStreamPartition

    @property
    def position(self) -> int:
        """The offset of the event that ``read`` returns next."""
        ...

    @property
    def lag(self) -> int | None:
        """Events from ``position`` to the last known end; None before it is known."""
        ...

    async def read(self) -> InputBatch | EndOfStream:
        """The next batch, once there is one; cancelling loses nothing.

        Raises InputLost if the next event is no longer there.
        """
        ...

    def pause(self) -> None:
        """Fetch nothing more until ``resume``; what has been fetched can still be read."""
        ...

    def resume(self) -> None: ...

    async def aclose(self) -> None:
        """Stop reading and release everything."""
        ...


class Source(Protocol):
    """Where streams come from: ``name.stream``."""

    name: str

    async def partitions(self, stream: str) -> int:
        """How many partitions the stream has; raises UnknownStream, with the names of all."""
        ...

    async def resolve(self, ssp: SystemStreamPartition, startpoint: Startpoint) -> int:
        """The offset that a startpoint means now.

        Raises StartpointError if there is none: beyond the end, before the oldest, or a kind of
        startpoint that the system does not support.
        """
        ...


class System(Source, Protocol):
    """A place whose streams can be read again. Making one does not wait."""

    async def run(self, *, task_status: Any = ...) -> None:
        """Serve until cancelled, started at once in a nursery; it may be run again afterwards.

        The other methods wait for a system that cannot be reached, not this one. Readers end with
        it.
        """
        ...

    async def wait_reachable(self, wanted: bool = True) -> None:
        """Return once the system can be reached (``wanted``), or once it cannot."""
        ...

    async def bounds(self, ssp: SystemStreamPartition) -> Bounds:
        """The oldest and the upcoming offset as of now."""
        ...

    async def open(
        self, ssp: SystemStreamPartition, offset: int, types: Sequence[type]
    ) -> PartitionReader:
        """Read a partition from ``offset`` on; events come as objects of these types.

        If GenericEvent is the only type, events of any type come as GenericEvents. An offset beyond
        the upcoming one raises StartpointError; one that is not there any more is InputLost when it
        is read.
        """
        ...

    async def append(
        self, stream: str, partition: int, events: Sequence[object], created_ms: int | None = None
    ) -> int:
        """Append events durably; returns the offset of the first."""
        ...

    async def append_once(self, stream: str, partition: int, event: object, name: str) -> bool:
        """Append an event at most once under this name.

        Returns True if it was not there before. An event that retention has removed is not appended
        again, for as long as the system remembers the name.
        """
        ...
