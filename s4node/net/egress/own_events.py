"""The events of a task's channel that are in no frame: their rows. Pure.

Rules
- They are events that the task has put for itself, or for a consumer that has not answered. Each
  commit saves the waiting ones, and a restart gives them back.
- Events beyond the room of the task's own stage are spilled into rows at once, and come back in
  order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from s4node.errors import EventError
from s4node.net.egress.lane import unnumbered
from s4node.net.egress.outbox_rows import ChannelRows, SavedRows, decoder_of, read_events
from s4node.net.egress.refusal import Refusal
from s4node.net.egress.spill import Spill
from s4node.net.egress.stream_types import StreamTypes

_SHARE = 2048
"""The most events of a row."""


class OwnEvents:
    """The events in no frame of the channel with these ``rows``, of ``app`` and task ``home``."""

    def __init__(self, app: str, home: int, rows: ChannelRows) -> None:
        self._home = home
        self._rows = rows
        self._spilled = _SpillRows(rows)
        self.spill = Spill(app, rows.types, self._spilled)
        self._events: list[Any] = []  # of the current commit
        self._at = 0  # rows in the current commit
        self._saved = 0  # rows that may exist

    def begin_commit(self, events: Sequence[Any]) -> None:
        self.spill.flush()
        if self._spilled.grew:
            self._spilled.grew = False
            self._rows.declare(self._rows.changes.put)
        self._events = list(events)
        self._at = 0

    def encode(self) -> bool:
        """Encode a part of the current commit; return False if nothing is left."""
        rows = self._rows
        if not self._events:
            for index in range(self._at, self._saved):
                rows.changes.add(rows.keys.own_row(index), None)
            self._saved = self._at
            return False
        share, self._events = self._events[:_SHARE], self._events[_SHARE:]
        for data in _encoded(share, rows.types):
            if isinstance(data, EventError):
                stream = rows.types.stream
                rows.unsent.add_own(Refusal(stream, -1, -1, str(data), unsent=True))
                continue
            rows.changes.add(rows.keys.own_row(self._at), data)
            self._at += 1
        rows.declare(rows.changes.add)
        self._saved = max(self._saved, self._at)
        return True

    def restore(self, saved: SavedRows, now: float) -> list[Any]:
        """Resume with ``saved`` rows, and return the events that waited.

        Raises StateError if those cannot be read.
        """
        self._events = []
        self.spill.clear()
        self._spilled.restore([index for index, _ in saved.spilled])
        self.spill.restore(self._home, now, [n for _, n in saved.spilled], saved.versions)
        self._saved = self._at = len(saved.own)  # a commit that has begun changes none of them
        types = self._rows.types
        decoder = decoder_of(types, saved.versions)
        return [event for row in saved.own for event in read_events(types.stream, row, decoder)]

    def rows(self) -> Iterator[bytes]:
        """All rows of waiting events that may exist, to delete them."""
        return map(self._rows.keys.own_row, range(self._saved))


class _SpillRows:
    def __init__(self, rows: ChannelRows) -> None:
        self._rows = rows
        self._indices: deque[int] = deque()
        self.grew = False  # since it was last reset

    def append(self, data: bytes) -> None:
        index = self._indices[-1] + 1 if self._indices else 0
        self._rows.changes.put(self._rows.keys.spilled(index), data)
        self._indices.append(index)
        self.grew = True

    def pop(self) -> bytes:
        row = self._rows.keys.spilled(self._indices.popleft())
        data = self._rows.stored(row)
        self._rows.changes.put(row, None)
        return data

    def forget_all(self) -> None:
        """Forget all rows; committed ones are restored later."""
        self._indices.clear()

    def restore(self, indices: Sequence[int]) -> None:
        self._indices.extend(indices)


def _encoded(events: list[Any], types: StreamTypes) -> Iterator[bytes | EventError]:
    if not events:
        return
    try:
        yield unnumbered(types, events)
    except EventError as error:
        if len(events) == 1:
            yield error
            return
        half = len(events) // 2
        yield from _encoded(events[:half], types)
        yield from _encoded(events[half:], types)
