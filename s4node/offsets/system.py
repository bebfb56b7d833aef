"""The contract of systems, whose streams of events can be read again.

Rules
- A stream has partitions, numbered from 0; their number does not change while the stream is read.
  The events of a partition have rising offsets; partitions are not ordered among each other.
- An offset may have no event: it was compacted away, or holds a record of the system's own.
- A reader gives the batches of one partition in order, each event once, from the offset at which it
  was opened. Each batch begins at the offset at which the one before ended. It skips no event.
- A reader fetches a bounded amount ahead, and then waits for ``read``. While paused it fetches
  nothing.
- If a system cannot be reached, every method waits and then resumes; ``read`` continues where it
  was. InputLost and UnknownStream are for what can never be read.
- An input that cannot be read again, such as one fed over live sockets, is a Source but not a
  System.
- All calls are made in one trio program, while ``run`` runs.
- A system may also have ``append_once(stream, partition, event, name)``, as the embedded log has:
  it appends an event at most once under a name, and returns True if it did. Without it a crash may
  store a dead letter twice.
- A system to which tasks may write is a ReceivingSystem.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, assert_never

import msgspec

from s4node.errors import StartpointError
from s4node.events.event import EventBatch
from s4node.offsets.startpoint import Oldest, Specific, Startpoint, Upcoming


class SystemStreamPartition(NamedTuple):
    """One partition of a stream of a system."""

    system: str
    stream: str
    partition: int

    def __str__(self) -> str:
        return f"{self.system}.{self.stream}[{self.partition}]"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets of a partition: of the ``oldest`` event in it, and of the ``upcoming`` one.

    They are equal if the partition is empty. ``end`` is the offset at which the stream ends for
    good, or None.

    ``epochs`` has each epoch, a rising number, with its first offset. A new epoch begins when the
    last events of the former one may be lost, as new events then get their offsets. It is empty if
    the system never loses events in this way.
    """

    oldest: int
    upcoming: int
    end: int | None = None
    epochs: tuple[tuple[int, int], ...] = field(default=(), compare=False)

    @property
    def epoch(self) -> int:
        """The current epoch; 0 if there are no epochs."""
        return self.epochs[-1][0] if self.epochs else 0

    def end_of(self, epoch: int) -> int:
        """The offset after the last event that is left of an epoch."""
        return next((first for each, first in self.epochs if each > epoch), self.upcoming)

    def offset_of(self, ssp: SystemStreamPartition, place: Oldest | Upcoming | Specific) -> int:
        """The offset that ``place`` means; raises StartpointError if there is no such offset."""
        match place:
            case Oldest():
                return self.oldest
            case Upcoming():
                return self.upcoming
            case Specific(offset):
                if not self.oldest <= offset <= self.upcoming:
                    raise StartpointError(
                        f"{ssp} has no offset {offset}: it has {self.oldest} to {self.upcoming}; "
                        f"start at one of these"
                    )
                return offset
        assert_never(place)


class EndOfStream:
    """The result of ``read`` when the partition has ended for good."""


END_OF_STREAM = EndOfStream()


class InputBatch(EventBatch):
    """Events of a replayable input, from the offset ``first`` to before ``end``; ``created_ms`` is
    when the first one was appended (Unix time).

    ``size`` counts events that are not decoded yet; a batch without events counts as one. ``end``
    is ``first + size`` unless some offsets have no event. ``load`` decodes the events into
    ``events``; the rest is in ``undecoded``, as offset, reason and raw bytes. If an offset has no
    event, or one that does not decode, ``load`` sets ``numbers``: the offset of each of ``events``.
    ``loaded`` is for a reader that shares a batch among tasks. ``routing`` is
    ``hasher:key`` if all events are in the partition of their key by that rule, as in frames; else
    empty.
    """

    __slots__ = ("end", "loaded", "routing", "undecoded")

    routing: str
    undecoded: Sequence[tuple[int, str, bytes]]

    def __init__(
        self,
        ssp: SystemStreamPartition,
        first: int,
        size: int,
        weight: int,
        created_ms: int,
        *,
        end: int | None = None,
    ) -> None:
        super().__init__(ssp.stream, ssp.partition, [], None, first, None, weight)
        self.source = ssp
        self.size = max(size, 1)
        self.end = first + size if end is None else end
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
        """The events from ``position`` to the last known end; None while that is unknown."""
        ...

    async def read(self) -> InputBatch | EndOfStream:
        """The next batch, once there is one; cancelling loses nothing.

        Raises InputLost if the next event no longer exists.
        """
        ...

    def pause(self) -> None:
        """Fetch no more until ``resume``; fetched batches can still be read."""
        ...

    def resume(self) -> None: ...

    async def aclose(self) -> None:
        """Stop reading and release all resources."""
        ...


class Source(Protocol):
    """A source of streams, which are called ``name.stream``."""

    name: str

    async def partitions(self, stream: str) -> int:
        """The number of partitions; raises UnknownStream, which lists the existing streams."""
        ...

    async def resolve(self, ssp: SystemStreamPartition, startpoint: Startpoint) -> int:
        """The offset that a startpoint means now.

        Raises StartpointError for an offset beyond the end or before the oldest event, and for a
        kind of startpoint that the system does not support.
        """
        ...


class System(Source, Protocol):
    """A source whose streams can be read again. Its constructor does not block."""

    async def run(self, *, task_status: Any = ...) -> None:
        """Serve until cancelled; it may be run again afterwards. Readers end with it.

        This method does not wait for a system that cannot be reached; the others do.
        """
        ...

    async def wait_reachable(self, wanted: bool = True) -> None:
        """Return once the system can be reached, or with ``wanted=False`` once it cannot."""
        ...

    async def identity(self, stream: str) -> str:
        """An id that a stream made later under the same name does not have."""
        ...

    async def bounds(self, ssp: SystemStreamPartition) -> Bounds:
        """The current bounds of a partition."""
        ...

    async def open(
        self, ssp: SystemStreamPartition, offset: int, types: Sequence[type], epoch: int = 0
    ) -> PartitionReader:
        """Read a partition from ``offset`` on; events become objects of these types.

        If GenericEvent is the only type, events of all types become GenericEvents. Raises
        StartpointError for an offset beyond the upcoming one; an offset below the oldest raises
        InputLost when it is read. ``epoch`` is given if a reader that was there had one: if the
        end of this epoch is lost, and the offset with it, open or read raises StartpointError.
        """
        ...

    async def append(
        self, stream: str, partition: int, events: Sequence[object], created_ms: int | None = None
    ) -> int:
        """Append events durably; returns the offset of the first."""
        ...


class OutputRecord(NamedTuple):
    """A record that a task writes to a stream; without a ``value`` it deletes its key."""

    stream: str
    key: bytes | None
    value: bytes | None
    time_ms: int
    headers: Sequence[tuple[str, bytes]] = ()


class Marker(msgspec.Struct, frozen=True):
    """The end of what is published of a task: commit ``number``, in the last of its ``lives``.

    Each life has a name, and the number at which it has left the life before it. ``fence`` is the
    owner's that has published.
    """

    lives: tuple[tuple[str, int], ...]
    number: int
    fence: int = 0


class Receiver(Protocol):
    """Takes the records of one task, in transactions that contain a marker.

    Its methods raise ReceiverLost if the outcome is unknown, or another receiver of the same task
    was opened since. It may then be opened again. Other errors do not pass.
    """

    async def open(self) -> Marker | None:
        """Decide whether the open transaction was committed, and fence earlier receivers of the
        task; return the marker of its last transaction."""
        ...

    async def transact(self, records: Iterable[OutputRecord], marker: Marker) -> None:
        """Write the records and the marker, all of them or none. They are iterated over once."""
        ...

    async def close(self) -> None:
        """Release all resources."""
        ...


class ReceivingSystem(System, Protocol):
    """A system to which tasks write; a record takes at most ``most_bytes`` with its key."""

    most_bytes: int

    def receiver(self, cluster: str, app: str, task: str) -> Receiver:
        """The receiver of a task's records."""
        ...
