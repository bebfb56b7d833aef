"""The spill: a file in which events wait that must find room when memory has none.

Rules
- The file has no name from the moment it is made, so that it is gone with its process, however that
  ends. Bytes that have been read are given back to the disk in blocks.
- Events are kept encoded, with the codecs of their stream's types, in blocks of some hundred events
  of one partition; the last block of each partition is in memory until it is whole.
- A disk that is full stops the app: what cannot be kept would be lost.
"""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path

from s4node.app.stream import Stream
from s4node.errors import EventError, SpillError, unspillable
from s4node.events.event import EventBatch, footprint
from s4node.events.schema import EventType

_HEAD = struct.Struct("=IIdI")  # bytes, partition, offered at, events
_SECTION = struct.Struct("=HI")  # type, bytes
_BLOCK = 512
_RECLAIM = 8 << 20


class _Tail:
    """The youngest events of a partition."""

    __slots__ = ("events", "offered_at", "partition")

    def __init__(self, partition: int, offered_at: float) -> None:
        self.partition = partition
        self.offered_at = offered_at
        self.events: list[object] = []


class SpillFile:
    """The waiting batches of one stream of ``app``, on disk."""

    def __init__(self, app: str, stream: Stream, folder: Path | None) -> None:
        self._app = app
        self._stream = stream
        self._folder = folder
        self._kinds: list[EventType] = list(stream.types)
        self._index = {kind.cls: index for index, kind in enumerate(self._kinds)}
        self._tails: dict[int, _Tail] = {}
        self._file: int | None = None
        self._read_at = 0
        self._write_at = 0
        self._reclaimed = 0

    @property
    def size(self) -> int:
        """Bytes that wait on disk."""
        return self._write_at - self._read_at

    def append(self, batch: EventBatch) -> None:
        """Put a batch behind the others; raises SpillError if the disk takes it not, or an event
        cannot be encoded."""
        tail = self._tails.get(batch.partition)
        if tail is None:
            tail = self._tails[batch.partition] = _Tail(batch.partition, batch.offered_at)
        tail.events += batch.events
        if len(tail.events) >= _BLOCK:
            del self._tails[batch.partition]
            self._write(tail)

    def pop(self) -> EventBatch | None:
        """The oldest batch, or None; batches that were put one after another may come as one."""
        if self.size:
            partition, offered_at, events = self._read()
        elif self._tails:
            tail = self._tails.pop(next(iter(self._tails)))
            partition, offered_at, events = tail.partition, tail.offered_at, tail.events
        else:
            return None
        batch = EventBatch(self._stream.name, partition, events, weight=footprint(events))
        batch.offered_at = offered_at
        return batch

    def _write(self, tail: _Tail) -> None:
        try:
            body = self._encode(tail.events)
        except EventError as error:
            raise unspillable(self._app, self._stream.name, error) from error
        head = _HEAD.pack(len(body), tail.partition, tail.offered_at, len(tail.events))
        data = memoryview(head + body)
        try:
            if self._file is None:
                self._file = self._open()
            while data:
                written = os.pwrite(self._file, data, self._write_at)
                self._write_at += written
                data = data[written:]
        except OSError as error:
            raise self._failed("written", error) from error

    def _read(self) -> tuple[int, float, list[object]]:
        assert self._file is not None
        try:
            head = os.pread(self._file, _HEAD.size, self._read_at)
            size, partition, offered_at, count = _HEAD.unpack(head)
            body = os.pread(self._file, size, self._read_at + _HEAD.size)
            self._read_at += _HEAD.size + size
            self._reclaim()
        except (OSError, struct.error) as error:
            raise self._failed("read back", error) from error
        events = self._decode(body)
        assert len(events) == count
        return partition, offered_at, events

    def clear(self) -> None:
        """Forget all that waits."""
        self._tails.clear()
        if self._file is not None:
            self._read_at = self._write_at
            self._reclaim()

    def close(self) -> None:
        """Give the file up."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        folder = self._folder or Path(tempfile.gettempdir())
        try:
            return os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o600)
        except OSError:  # the file system cannot make files without a name
            file, name = tempfile.mkstemp(prefix="s4-spill-", dir=folder)
            Path(name).unlink()
            return file

    def _reclaim(self) -> None:
        assert self._file is not None
        if self._read_at == self._write_at:
            os.ftruncate(self._file, 0)
            self._read_at = self._write_at = self._reclaimed = 0
        elif self._read_at - self._reclaimed >= _RECLAIM and self._read_at > self.size:
            self._move_to_front()

    def _move_to_front(self) -> None:
        """Copy what waits, which is less than what was read, to the beginning of the file."""
        assert self._file is not None
        to = 0
        while self._read_at < self._write_at:
            block = os.pread(self._file, min(1 << 20, self.size), self._read_at)
            os.pwrite(self._file, block, to)
            self._read_at += len(block)
            to += len(block)
        os.ftruncate(self._file, to)
        self._read_at, self._write_at, self._reclaimed = 0, to, 0

    def _encode(self, events: list[object]) -> bytes:
        if len(self._kinds) == 1:
            return self._kinds[0].encode(events)
        parts: list[bytes] = []
        at = 0
        while at < len(events):  # runs of one type
            cls = events[at].__class__
            end = at + 1
            while end < len(events) and events[end].__class__ is cls:
                end += 1
            index = self._index[cls]
            body = self._kinds[index].encode(events[at:end])
            parts += (_SECTION.pack(index, len(body)), body)
            at = end
        return b"".join(parts)

    def _decode(self, body: bytes) -> list[object]:
        if len(self._kinds) == 1:
            return self._kinds[0].decode(body)
        events: list[object] = []
        at = 0
        while at < len(body):
            index, size = _SECTION.unpack_from(body, at)
            at += _SECTION.size
            events += self._kinds[index].decode(body[at : at + size])
            at += size
        return events

    def _failed(self, what: str, error: Exception) -> SpillError:
        folder = self._folder or tempfile.gettempdir()
        reason = getattr(error, "strerror", None) or error
        return SpillError(
            f"events of stream {self._stream.name!r} cannot be {what} in {folder}: {reason}; "
            f"{self.size:,} bytes wait there. Make room, or set s4.spill.folder to another disk"
        )
