"""Frames for the embedded log whose bodies say which events they are."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import trio

from s4node.errors import S4Error
from s4node.events.type_declaration import TypeDecl
from s4node.log.partition.ledger import Appended, Incoming
from s4node.log.partition.partition_rows import StoredFrame
from s4node.log.streams import LogPartition
from s4node.log.writer import Answer
from s4node.net.wire.frame import Section

CLICK = TypeDecl("Click", (1 << 64) - 7, (("user", "str", True),))


def numbered(producer: str, first: int, count: int, width: int = 8) -> Incoming:
    """A frame whose events, ``width`` bytes each, are their numbers."""
    numbers = range(first, first + count)
    body = b"".join(struct.pack(">Q", number).ljust(width, b".") for number in numbers)
    return Incoming(
        producer,
        first,
        count,
        body,
        (Section(CLICK.fingerprint, count, len(body)),),
        types={CLICK.fingerprint: CLICK},
    )


def events(rows: Sequence[StoredFrame]) -> list[tuple[int, str, int]]:
    """Offset, producer and number of each event of these rows, read from the bodies."""
    found = []
    for row in rows:
        width = len(row.body) // row.count
        for index in range(row.start - row.first, row.count):
            number = struct.unpack_from(">Q", row.body, index * width)[0]
            assert number == row.number + index
            found.append((row.first + index, row.producer, number))
    return found


async def append(partition: LogPartition, *frames: Incoming) -> list[Appended]:
    """Append frames together and wait for all answers; raises the first that is an error."""
    answers: list[Answer] = []
    told = trio.Event()

    def done(answer: Answer) -> None:
        answers.append(answer)
        if len(answers) == len(frames):
            told.set()

    for frame in frames:
        partition.append(frame, done)
    await told.wait()
    for answer in answers:
        if isinstance(answer, S4Error):
            raise answer
    return [answer for answer in answers if isinstance(answer, Appended)]


async def read_all(partition: LogPartition, max_bytes: int = 1 << 20) -> list[StoredFrame]:
    """All rows of a partition, in as many calls as it takes."""
    rows: list[StoredFrame] = []
    at, end = partition.bounds.oldest, partition.bounds.upcoming
    while at < end:
        rows += await partition.read(at, max_bytes)
        at = rows[-1].end
    return rows
