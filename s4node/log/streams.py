"""The open streams of the log and their partitions: append, read, trim and forget.

Rules
- Bounds, types and producers come from memory, as of the last commit that the writer has reported.
  Frames are read in threads.
- A partition whose file is damaged answers every call with StoreCorrupt. The other partitions of
  its stream are usable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import trio

from s4node import threads
from s4node.errors import InputLost, S4Error, StartpointError, StoreCorrupt
from s4node.events.type_declaration import TypeDecl
from s4node.log.partition.ledger import Appended, Incoming, part_name, part_of
from s4node.log.partition.partition_file import PartitionFile, Standing
from s4node.log.partition.partition_rows import StagedRow, StoredFrame
from s4node.log.partition.partition_view import PartitionView
from s4node.log.partition.retention import Keep
from s4node.log.stream_folder import StreamSettings
from s4node.log.writer import Answer, Done, Lane, LogWriter
from s4node.logger import get_logger
from s4node.offsets.checkpoint import SavedProducer
from s4node.offsets.system import Bounds

log = get_logger("s4node.log")

T = TypeVar("T")


class Files(NamedTuple):
    """Parts that all partitions share; ``retention_of`` returns the retention of a stream."""

    retention_of: Callable[[StreamSettings], Keep]
    writer: LogWriter
    threads: trio.CapacityLimiter


class LogPartition:
    """One partition of a stream. ``damage`` says why it is unusable; empty if it is usable."""

    damage = ""

    def __init__(self, stream: LogStream, number: int, file: PartitionFile, files: Files) -> None:
        self.stream = stream
        self.number = number
        self._writer = files.writer
        self._threads = files.threads
        self._lane = Lane(file, files.retention_of(stream.settings), self._on_standing)
        self._view = PartitionView(file.path)
        file.let_go = self._view.let_go
        self.producers: dict[str, SavedProducer] = {}
        """Rows of producers, and of parts of their frames, by name."""
        self.on_producer: Callable[[str, SavedProducer], None] = lambda *_: None
        """Called with the name and the row of a new producer."""
        self._parts: dict[str, dict[int, int]] = {}
        self.types: dict[int, TypeDecl] = {}
        """The declarations of all types in it, by fingerprint."""
        self._on_standing(Standing.from_file(file, file.ledger.producers, file.ledger.types))
        self._writer.add(self._lane)

    @property
    def bounds(self) -> Bounds:
        """The oldest and the upcoming offset."""
        return self._bounds

    def parts(self, producer: str) -> Mapping[int, int]:
        """By another partition's lane, the number after the last split frame with a part here. Only
        the frames of ``producer`` count."""
        return self._parts.get(producer, {})

    def append(self, frame: Incoming, done: Done) -> None:
        """Append a frame; ``done`` is called with the answer once it is on disk, or with an
        error."""
        self._writer.append(self._lane, frame, done)

    def forget(self, producer: str, done: Done) -> bool:
        """Forget a producer that has no frames queued; returns whether it was known."""
        names = [producer] if producer in self.producers else []
        names += [part_name(producer, lane) for lane in self.parts(producer)]
        if names:
            self._writer.forget(self._lane, names, done)
        return bool(names)

    async def read(self, offset: int, max_bytes: int) -> list[StoredFrame]:
        """The frames from the one that holds ``offset`` on: at least one, if there is any.

        Raises InputLost for an offset below the oldest, StartpointError for one beyond the end.
        """
        self._check_offset(offset)
        if offset == self._bounds.upcoming:
            return []
        rows = await self._in_thread(partial(self._view.read, offset, max_bytes))
        if not rows or rows[0].start > offset:  # deleted, and the writer has not reported it yet
            raise self._lost(offset, rows[0].start if rows else self._bounds.upcoming)
        return rows

    async def offset_at(self, millis: int) -> int:
        """The first offset appended at or after a Unix time (ms), or else the upcoming one."""
        found = await self._in_thread(partial(self._view.offset_at, millis))
        return self._bounds.upcoming if found is None else found

    async def rows(self) -> list[StagedRow]:
        return await self._in_thread(self._view.rows)

    async def trim(self, below: int) -> int:
        """Delete the frames that end at or below an offset; returns the oldest offset left.

        Cancelling does not stop it. Raises StartpointError for an offset beyond the end.
        """
        self._check_offset(max(below, self._bounds.oldest))
        await answered(lambda done: self._writer.trim(self._lane, below, done))
        return self._bounds.oldest

    async def drop(self) -> None:
        """Close the files while the log goes on; frames that wait are refused."""
        await answered(lambda done: self._writer.drop_lane(self._lane, done))
        await self._in_thread(self.close)

    def close(self) -> None:
        """Close the files, once the writer does not use them."""
        self._view.close()
        self._lane.file.close()

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await threads.run_sync(call, limiter=self._threads)

    def _check_offset(self, offset: int) -> None:
        if offset < self._bounds.oldest:
            raise self._lost(offset, self._bounds.oldest)
        if offset > self._bounds.upcoming:
            raise StartpointError(
                f"offset {offset} of {self} is beyond its end, {self._bounds.upcoming}; start at "
                f"the end or before it"
            )

    def _lost(self, offset: int, oldest: int) -> InputLost:
        return InputLost(
            f"offset {offset} of {self} was deleted, the oldest is {oldest}; start from the "
            f"oldest, and retain more (s4.log.retention.ms)"
        )

    def __str__(self) -> str:
        return f"log stream {self.stream.name}[{self.number}]"

    def _on_standing(self, standing: Standing) -> None:
        self.standing = standing
        self._bounds = Bounds(standing.oldest, standing.upcoming, epochs=standing.epochs)
        for name, known in standing.producers.items():
            if name not in self.producers:
                self.on_producer(name, known)
            self.producers[name] = known
            part = part_of(name)
            if part is not None:
                self._parts.setdefault(part[0], {})[part[1]] = known.number
        for name in standing.forgotten:
            self.producers.pop(name, None)
            part = part_of(name)
            if part is not None:
                self._forget_part(*part)
        self.types.update(standing.types)

    def _forget_part(self, producer: str, lane: int) -> None:
        lanes = self._parts.get(producer, {})
        lanes.pop(lane, None)
        if not lanes:
            self._parts.pop(producer, None)


async def answered(ask: Callable[[Done], None]) -> Appended:
    """Wait for the writer's answer, and return it; raises it if it is an error."""
    answers: list[Answer] = []
    is_answered = trio.Event()

    def done(answer: Answer) -> None:
        answers.append(answer)
        is_answered.set()

    ask(done)
    await is_answered.wait()
    if isinstance(answers[0], S4Error):
        raise answers[0]
    return answers[0]


class _Damaged(LogPartition):
    """A partition whose file could not be opened: every call raises StoreCorrupt."""

    def __init__(self, stream: LogStream, number: int, why: StoreCorrupt) -> None:
        self.stream = stream
        self.number = number
        self.damage = f"{self}: {why}"
        self.producers = {}
        self._parts = {}
        self.types = {}
        self.standing = Standing(0, 0, 0, 0, 0)
        self._bounds = Bounds(0, 0)

    @property
    def bounds(self) -> Bounds:
        raise StoreCorrupt(self.damage)

    def append(self, frame: Incoming, done: Done) -> None:  # noqa: ARG002
        trio.lowlevel.current_trio_token().run_sync_soon(done, StoreCorrupt(self.damage))

    async def offset_at(self, millis: int) -> int:  # noqa: ARG002
        raise StoreCorrupt(self.damage)

    async def rows(self) -> list[StagedRow]:
        raise StoreCorrupt(self.damage)

    async def drop(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _check_offset(self, offset: int) -> None:  # noqa: ARG002
        raise StoreCorrupt(self.damage)


class LogStream:
    def __init__(
        self,
        settings: StreamSettings,
        partitions: Sequence[PartitionFile | StoreCorrupt],
        files: Files,
    ) -> None:
        self.settings = settings
        self.name, self.key, self.hasher = settings.name, settings.key, settings.hasher
        self.partitions = tuple(
            _Damaged(self, number, file)
            if isinstance(file, StoreCorrupt)
            else LogPartition(self, number, file, files)
            for number, file in enumerate(partitions)
        )
        for each in self.partitions:
            if each.damage:
                log.error(
                    "a partition cannot be used; the others can",
                    stream=self.name,
                    partition=each.number,
                    reason=each.damage,
                )
