"""The spill: events beyond the room in memory, in order, encoded in blocks. Pure.

Rules
- A block is a frame of some hundred events of one partition. The last block of each partition is in
  memory until it is full.
- Callers store the blocks: in a file, or in rows of a task.
- An event that cannot be encoded stops the app, because it would be lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from s4node.errors import EventError, unspillable
from s4node.events.event import EventBatch, footprint
from s4node.events.type_declaration import TypeDecl
from s4node.net.egress.lane import unnumbered
from s4node.net.egress.outbox_rows import decoder_of, read_events
from s4node.net.egress.stream_types import StreamTypes

_BLOCK = 512
"""The approximate number of events in a block."""


class Blocks(Protocol):
    """A queue of blocks outside memory."""

    def append(self, data: bytes) -> None: ...

    def pop(self) -> bytes:
        """Take the oldest block, which must exist."""
        ...

    def forget_all(self) -> None: ...


class _Waiting(NamedTuple):
    """A block of a partition, or its last events, which are not a block yet."""

    partition: int
    offered_at: float
    size: int
    events: list[Any]  # empty for a block


class Spill:
    """The waiting batches of the stream of ``types`` in ``app``, in ``blocks``."""

    def __init__(self, app: str, types: StreamTypes, blocks: Blocks) -> None:
        self._app = app
        self._types = types
        self._blocks = blocks
        self._whole: deque[_Waiting] = deque()
        self.tails: dict[int, _Waiting] = {}  # events that are not in blocks, by partition
        self._versions: dict[int, TypeDecl] = {}
        self._decoder = decoder_of(types, {})
        self._known = len(types.kinds)  # how many classes the decoder knows

    @property
    def events(self) -> int:
        tails = sum(len(tail.events) for tail in self.tails.values())
        return tails + sum(block.size for block in self._whole)

    def append(self, batch: EventBatch) -> None:
        """Append a batch; raises SpillError if the disk is full or an event cannot be encoded."""
        tail = self.tails.get(batch.partition)
        if tail is None:
            tail = _Waiting(batch.partition, batch.offered_at, 0, [])
            self.tails[batch.partition] = tail
        tail.events.extend(batch.events)
        if len(tail.events) >= _BLOCK:
            self._write_block(tail)

    def flush(self) -> None:
        """Write all events as blocks."""
        for tail in list(self.tails.values()):
            self._write_block(tail)

    def pop(self) -> EventBatch | None:
        """The oldest batch, or None; consecutive batches may come as one."""
        if self._whole:
            found = self._whole.popleft()
            events = self._read_block(self._blocks.pop())
        elif self.tails:
            found = self.tails.pop(next(iter(self.tails)))
            events = found.events
        else:
            return None
        batch = EventBatch(self._types.stream, found.partition, events, weight=footprint(events))
        batch.offered_at = found.offered_at
        return batch

    def clear(self) -> None:
        self._whole.clear()
        self.tails.clear()
        self._blocks.forget_all()

    def restore(
        self, partition: int, now: float, counts: Iterable[int], versions: dict[int, TypeDecl]
    ) -> None:
        """Resume with blocks of an earlier life: their ``counts`` of events, and their types."""
        self._whole.extend(_Waiting(partition, now, count, []) for count in counts)
        self._versions, self._known = versions, -1

    def _write_block(self, tail: _Waiting) -> None:
        for cls in set(map(type, tail.events)):
            self._types.declare(cls)  # an output stream learns its types from events
        try:
            data = unnumbered(self._types, tail.events)
        except EventError as error:
            raise unspillable(self._app, self._types.stream, error) from error
        self._blocks.append(data)
        del self.tails[tail.partition]
        self._whole.append(tail._replace(size=len(tail.events), events=[]))

    def _read_block(self, data: bytes) -> list[Any]:
        if self._known != len(self._types.kinds):
            self._known = len(self._types.kinds)
            self._decoder = decoder_of(self._types, self._versions)
        return read_events(self._types.stream, data, self._decoder)
