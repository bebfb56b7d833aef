"""Rows of the table ``frames``: a frame with its offsets, as a row and back.

Rules
- The key of a row is its first offset. Offset, time of appending and running total of bytes rise
  together: a time is found by bisection and a size by subtraction, without an index.
- Every row has a checksum of its numbers, head and body. A mismatch raises OtherChecksum.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import msgspec

from s4node.log.partition.ledger import Entry
from s4node.net.wire.frame import Section

FRAMES_TABLE = """\
CREATE TABLE frames (
    start INTEGER PRIMARY KEY, first INTEGER NOT NULL, count INTEGER NOT NULL,
    appended_ms INTEGER NOT NULL, total INTEGER NOT NULL, size INTEGER NOT NULL,
    producer TEXT NOT NULL, number INTEGER NOT NULL, checksum INTEGER NOT NULL,
    head BLOB NOT NULL, body BLOB NOT NULL
);"""
INSERT_FRAME = "INSERT INTO frames VALUES (?,?,?,?,?,?,?,?,?,?,?)"
SELECT_FRAMES = (
    "SELECT start, first, count, appended_ms, producer, number, checksum, head, body FROM frames "
    "WHERE start >= ifnull((SELECT max(start) FROM frames WHERE start <= ?), 0) ORDER BY start"
)

SELECT_ROWS = "SELECT start, first, count, producer, number, size FROM frames ORDER BY start"

_ROW_BYTES = 64  # the approximate size of a row beside head and body
_NUMBERS = struct.Struct("<qqqqq")


class OtherChecksum(Exception):  # noqa: N818
    """A row's checksum does not match; the message has its offset."""


@dataclass(frozen=True, slots=True)
class StagedRow:
    """A row without its events; ``size`` counts their bytes."""

    start: int
    first: int
    count: int
    producer: str
    number: int
    size: int


class _Head(msgspec.Struct, array_like=True, frozen=True, gc=False):
    encoding: int
    routing: str
    created_ms: int
    sections: tuple[Section, ...]
    order: bytes
    headers: Mapping[str, Any]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Head)


@dataclass(frozen=True, slots=True)
class StoredFrame:
    """A frame as it was appended: its body begins at the offset ``first``.

    Offsets below ``start`` belong to earlier rows: those events were repetitions. ``number`` is the
    producer's number of the first event; ``appended_ms`` is Unix time.
    """

    start: int
    first: int
    count: int
    appended_ms: int
    producer: str
    number: int
    encoding: int
    routing: str
    created_ms: int
    sections: tuple[Section, ...]
    order: bytes
    headers: Mapping[str, Any]
    body: bytes

    @property
    def end(self) -> int:
        return self.first + self.count


def row_of(entry: Entry, total: int) -> tuple[Any, ...]:
    frame = entry.frame
    head = _encoder.encode(
        (
            frame.encoding,
            frame.routing,
            frame.created_ms,
            frame.sections,
            frame.order,
            frame.headers,
        )
    )
    size = len(head) + len(frame.body) + _ROW_BYTES
    numbers = (entry.start, entry.first, frame.count, entry.appended_ms, frame.first)
    return (
        *numbers[:4],
        total + size,
        size,
        frame.producer,
        frame.first,
        _checksum(numbers, head, frame.body),
        head,
        frame.body,
    )


def _checksum(numbers: tuple[int, int, int, int, int], head: bytes, body: bytes) -> int:
    return crc32(body, crc32(head, crc32(_NUMBERS.pack(*numbers))))


def frame_of(row: tuple[Any, ...]) -> StoredFrame:
    """The frame of a selected row; raises OtherChecksum, or an error of msgspec."""
    start, first, count, appended_ms, producer, number, checksum, head, body = row
    if _checksum((start, first, count, appended_ms, number), head, body) != checksum:
        raise OtherChecksum(f"the checksum of the frame at offset {start} is wrong")
    decoded = _decoder.decode(head)
    return StoredFrame(
        start,
        first,
        count,
        appended_ms,
        producer,
        number,
        decoded.encoding,
        decoded.routing,
        decoded.created_ms,
        decoded.sections,
        decoded.order,
        decoded.headers,
        body,
    )
