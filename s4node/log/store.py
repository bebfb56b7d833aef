"""The embedded log: a folder with streams, each of which has a file a partition.

Rules
- One process has the folder at a time, by a lock that the kernel lets go of when it dies.
- A stream is made whole or not at all: in a folder beside, which is then renamed. Its number of
  partitions never changes.
- A partition whose file is damaged keeps nobody from the others: whoever wants something of it is
  told why there is nothing. What looks like a mistake of whoever runs the log (a file that is
  missing, of a newer format, or another partition's) is refused instead, before anything is opened.
- What is asked about bounds, types and producers is answered from memory, as of the last commit
  that was told here. Frames are read in threads.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import trio

from s4node.config.kinds import is_file_name
from s4node.config.paths import full_path
from s4node.config.settings import (
    LOG_FOLDER,
    LOG_QUOTA_BYTES,
    LOG_RETENTION_BYTES,
    LOG_RETENTION_MS,
    LOG_SYNC,
    PRODUCER_EXPIRY,
    Config,
)
from s4node.errors import (
    InputLost,
    S4Error,
    StartpointError,
    StoreCorrupt,
    StoreError,
    UnknownStream,
)
from s4node.events.schema import UNREADABLE, TypeDecl
from s4node.log.ledger import Incoming, part_of
from s4node.log.partition import (
    FORMAT,
    PartitionFile,
    PartitionView,
    StoredFrame,
    begin_anew,
    create,
)
from s4node.log.retention import Keep
from s4node.log.writer import Answer, Done, Lane, LogWriter, Standing
from s4node.logger import get_logger
from s4node.offsets.system import Bounds

log = get_logger("s4node.log")

MAX_PARTITIONS = 4096
"""The most partitions of a stream."""

READING_THREADS = 4
"""Frames are read in so many threads: their own, for handlers may take up all others."""

EMPTY_BYTES = 256 << 10
"""What an empty partition takes up on the disk, with some to spare."""

T = TypeVar("T")

_MANIFEST = "stream.json"


@dataclass(frozen=True)
class LogSettings:
    """How a log is kept. Milliseconds and bytes, where 0 is no bound; ``retention_bytes`` is a
    partition's, ``quota_bytes`` that of the whole folder. ``producer_expiry`` is in seconds."""

    folder: Path
    retention_ms: int = 0
    retention_bytes: int = 0
    quota_bytes: int = 0
    sync: str = "normal"
    producer_expiry: float = 3600.0

    def keep(self, stream: StreamSettings) -> Keep:
        """What a stream keeps."""
        ms, size = stream.retention_ms, stream.retention_bytes
        return Keep(
            self.retention_ms if ms is None else ms, self.retention_bytes if size is None else size
        )

    @classmethod
    def of(cls, config: Config) -> LogSettings:
        """As the configuration says."""
        return cls(
            full_path(config[LOG_FOLDER], LOG_FOLDER.name),
            math.ceil(round(config[LOG_RETENTION_MS] * 1000, 3)),  # none is for ever
            config[LOG_RETENTION_BYTES],
            config[LOG_QUOTA_BYTES],
            config[LOG_SYNC],
            config[PRODUCER_EXPIRY],
        )


class StreamSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stream as it was created; the manifest in its folder. None leaves retention to the log's
    own settings."""

    format: int
    name: str
    partitions: int
    key: str
    hasher: str
    retention_ms: int | None
    retention_bytes: int | None


class Files(NamedTuple):
    """What all partitions share."""

    settings: LogSettings
    writer: LogWriter
    threads: trio.CapacityLimiter


class LogPartition:
    """One partition of a stream of the log.

    ``damage`` says why there is nothing to be had of it; empty where there is.
    """

    damage = ""

    def __init__(self, stream: LogStream, number: int, file: PartitionFile, files: Files) -> None:
        self.stream = stream
        self.number = number
        self._writer = files.writer
        self._threads = files.threads
        self._lane = Lane(file, files.settings.keep(stream.settings), self._told)
        self._view = PartitionView(file.path)
        file.let_go = self._view.let_go
        self._producers: dict[str, int] = {}
        self._parts: dict[str, dict[int, int]] = {}
        self._types: dict[int, TypeDecl] = {}
        self._told(Standing.of(file, file.ledger.producers, file.ledger.types))
        self._writer.add(self._lane)

    @property
    def bounds(self) -> Bounds:
        """The oldest and the upcoming offset."""
        return self._bounds

    @property
    def types(self) -> Mapping[int, TypeDecl]:
        """The declarations of all types in it, by fingerprint."""
        return self._types

    @property
    def size(self) -> int:
        """The bytes of its frames."""
        return self._standing.size

    @property
    def disk(self) -> int:
        """The bytes that its files take up."""
        return self._standing.disk

    @property
    def last_ms(self) -> int:
        """When the newest frame was appended (Unix time, ms); 0 where none ever was."""
        return self._standing.last_ms

    def expected(self, producer: str) -> int | None:
        """The number that a producer goes on with; None for one that is not known."""
        return self._producers.get(producer)

    def parts(self, producer: str) -> Mapping[int, int]:
        """The numbers behind what it has of frames that were taken apart, by the lane of another
        partition that they came by."""
        return self._parts.get(producer, {})

    def append(self, frame: Incoming, done: Done) -> None:
        """Append a frame; ``done`` is called when it is on the disk, or with an error."""
        self._writer.append(self._lane, frame, done)

    async def read(self, offset: int, max_bytes: int) -> list[StoredFrame]:
        """The frames from the one that holds ``offset`` on: at least one, if there is any.

        Raises InputLost for an offset before the oldest, StartpointError for one beyond the end.
        """
        self._check(offset)
        if offset == self._bounds.upcoming:
            return []
        rows = await self._in_thread(partial(self._view.read, offset, max_bytes))
        if not rows or rows[0].start > offset:  # deleted since, and that was not told yet
            raise self._lost(offset, rows[0].start if rows else self._bounds.upcoming)
        return rows

    async def offset_at(self, millis: int) -> int:
        """The first offset that was appended at or after a Unix time, or the upcoming one."""
        found = await self._in_thread(partial(self._view.offset_at, millis))
        return self._bounds.upcoming if found is None else found

    async def trim(self, below: int) -> int:
        """Delete the frames that end at or below an offset; returns the oldest offset then.

        Cancelling does not stop it. Raises StartpointError for an offset beyond the end.
        """
        self._check(max(below, self._bounds.oldest))
        answers: list[Answer] = []
        told = trio.Event()

        def done(answer: Answer) -> None:
            answers.append(answer)
            told.set()

        self._writer.trim(self._lane, below, done)
        await told.wait()
        if isinstance(answers[0], S4Error):
            raise answers[0]
        return self._bounds.oldest

    def close(self) -> None:
        """Close its files; the writer is done with them."""
        self._view.close()
        self._lane.file.close()

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(call, limiter=self._threads)

    def _check(self, offset: int) -> None:
        if offset < self._bounds.oldest:
            raise self._lost(offset, self._bounds.oldest)
        if offset > self._bounds.upcoming:
            raise StartpointError(
                f"offset {offset} of {self} is beyond its end, which is {self._bounds.upcoming}; "
                f"start from there or before"
            )

    def _lost(self, offset: int, oldest: int) -> InputLost:
        return InputLost(
            f"offset {offset} of {self} is gone, the oldest is {oldest}; start from the oldest, "
            f"and keep more (s4.log.retention.ms, s4.log.retention.bytes)"
        )

    def __str__(self) -> str:
        return f"log stream {self.stream.name}[{self.number}]"

    def _told(self, standing: Standing) -> None:
        self._standing = standing
        self._bounds = Bounds(standing.oldest, standing.upcoming)
        for name, known in standing.producers.items():
            self._producers[name] = known.next
            part = part_of(name)
            if part is not None:
                self._parts.setdefault(part[0], {})[part[1]] = known.next
        for name in standing.forgotten:
            self._producers.pop(name, None)
            part = part_of(name)
            if part is not None:
                self._forget_part(*part)
        self._types.update(standing.types)

    def _forget_part(self, producer: str, lane: int) -> None:
        lanes = self._parts.get(producer, {})
        lanes.pop(lane, None)
        if not lanes:
            self._parts.pop(producer, None)


class _Damaged(LogPartition):
    """One whose file could not be opened: whoever wants something of it gets StoreCorrupt."""

    def __init__(self, stream: LogStream, number: int, why: StoreCorrupt) -> None:
        self.stream = stream
        self.number = number
        self.damage = f"{self}: {why}"
        self._producers = {}
        self._parts = {}
        self._types = {}
        self._standing = Standing(0, 0, 0, 0, 0)
        self._bounds = Bounds(0, 0)

    @property
    def bounds(self) -> Bounds:
        raise StoreCorrupt(self.damage)

    def append(self, frame: Incoming, done: Done) -> None:  # noqa: ARG002
        trio.lowlevel.current_trio_token().run_sync_soon(done, StoreCorrupt(self.damage))

    async def offset_at(self, millis: int) -> int:  # noqa: ARG002
        raise StoreCorrupt(self.damage)

    def close(self) -> None:
        pass

    def _check(self, offset: int) -> None:  # noqa: ARG002
        raise StoreCorrupt(self.damage)


class LogStream:
    """A stream of the log and its partitions."""

    def __init__(
        self,
        settings: StreamSettings,
        partitions: Sequence[PartitionFile | StoreCorrupt],
        files: Files,
    ) -> None:
        self.settings = settings
        self.partitions = tuple(
            _Damaged(self, number, file)
            if isinstance(file, StoreCorrupt)
            else LogPartition(self, number, file, files)
            for number, file in enumerate(partitions)
        )
        for each in self.partitions:
            if each.damage:
                log.error("a partition cannot be used; the others can", stream=self.name,
                          partition=each.number, reason=each.damage)  # fmt: skip

    @property
    def name(self) -> str:
        """What it is called."""
        return self.settings.name

    @property
    def key(self) -> str:
        """The name of its key; empty where it has none."""
        return self.settings.key

    @property
    def hasher(self) -> str:
        """What turns its keys into partitions."""
        return self.settings.hasher


class LogStore:
    """The streams of one folder; see :func:`open_log`."""

    def __init__(self, settings: LogSettings, clock: Callable[[], float]) -> None:
        self.settings = settings
        self._writer = LogWriter(settings.quota_bytes, settings.producer_expiry, clock)
        self._files = Files(settings, self._writer, trio.CapacityLimiter(READING_THREADS))
        self._streams: dict[str, LogStream] = {}
        self._creating = trio.Lock()

    @property
    def streams(self) -> Mapping[str, LogStream]:
        """All streams by name."""
        return self._streams

    @property
    def room(self) -> int:
        """Bytes that may still be queued for writing; at 0 or less append nothing."""
        return self._writer.room

    async def wait_room(self) -> None:
        """Wait until there is room; who waits longest goes first."""
        await self._writer.wait_room()

    @property
    def trouble(self) -> str:
        """Why appending waits; empty where it does not."""
        return self._writer.trouble

    def stream(self, name: str) -> LogStream:
        """The stream of this name; raises UnknownStream with the names there are."""
        try:
            return self._streams[name]
        except KeyError:
            there = ", ".join(sorted(self._streams)) or "none"
            raise UnknownStream(
                f"the log has no stream {name!r} (it has: {there}); create it with: s4 log create "
                f"{name}"
            ) from None

    async def create(
        self,
        name: str,
        partitions: int,
        key: str = "",
        hasher: str = "crc32",
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
    ) -> LogStream:
        """Create a stream, or find it as it is asked for.

        Raises StoreError for a name or number that no stream can have, and where there is such a
        stream with other settings.
        """
        wanted = StreamSettings(
            FORMAT, name, partitions, key, hasher, retention_ms, retention_bytes
        )
        check_settings(wanted)
        async with self._creating:
            there = self._streams.get(name)
            if there is None:
                self._check_quota(wanted)
                make = partial(_create, self.settings.folder, wanted)
                await trio.to_thread.run_sync(make)
                await self._add(self.settings.folder / name)
            elif there.settings != wanted:
                raise StoreError(
                    f"stream {name!r} exists with other settings: "
                    f"{_differences(there.settings, wanted)}; ask for those it has, or take "
                    f"another name"
                )
            return self._streams[name]

    def _check_quota(self, wanted: StreamSettings) -> None:
        quota = self.settings.quota_bytes
        used = sum(p.disk for stream in self._streams.values() for p in stream.partitions)
        needed = wanted.partitions * EMPTY_BYTES
        if quota and used + needed > quota:
            raise StoreError(
                f"stream {wanted.name!r} with {wanted.partitions} partitions needs {needed} bytes "
                f"while empty, and {used} of s4.log.quotaBytes ({quota}) are used; raise the quota"
            )

    async def _add(self, folder: Path) -> None:
        opened = await trio.to_thread.run_sync(_open_stream, folder, self.settings.sync)
        self._streams[opened[0].name] = LogStream(*opened, self._files)

    async def open(self) -> None:
        """Open all streams of the folder."""
        for folder in await trio.to_thread.run_sync(_folders, self.settings.folder):
            await self._add(folder)

    async def aclose(self) -> None:
        """Write what is queued and close the files."""
        with trio.CancelScope(shield=True):
            await self._writer.aclose()
            for stream in self._streams.values():
                for partition in stream.partitions:
                    partition.close()


@asynccontextmanager
async def open_log(
    settings: LogSettings, clock: Callable[[], float] = time.time
) -> AsyncIterator[LogStore]:
    """Open the folder's streams, which is made if it is missing, and close them at the end.

    ``clock`` gives Unix time in seconds.

    Raises StoreError where another process has the folder or its files are not usable; one that
    is damaged keeps nobody from the others.
    """
    lock = await trio.to_thread.run_sync(_lock, settings.folder)
    try:
        log = LogStore(settings, clock)
        try:
            await log.open()
            yield log
        finally:
            await log.aclose()
    finally:
        os.close(lock)


def check_settings(wanted: StreamSettings) -> None:
    """Raises StoreError for settings that no stream can have."""
    if not (is_file_name(wanted.name) and wanted.name.isascii()):
        raise StoreError(
            f"{wanted.name!r} is no name for a stream of the log; take up to 200 letters, digits, "
            f"'_', '-' and '.', with a letter, digit or '_' first"
        )
    if not 1 <= wanted.partitions <= MAX_PARTITIONS:
        raise StoreError(
            f"a stream has 1 to {MAX_PARTITIONS} partitions, not {wanted.partitions}; choose a "
            f"number in between"
        )


def _differences(there: StreamSettings, wanted: StreamSettings) -> str:
    has, asks = _in_words(there), _in_words(wanted)
    other = [what for what in has if has[what] != asks[what]]
    return "; ".join(f"{what} {has[what]}, not {asks[what]}" for what in other)


def _in_words(settings: StreamSettings) -> dict[str, str]:
    """What may be other than somebody wants it."""
    ms, size = settings.retention_ms, settings.retention_bytes
    return {
        "format": str(settings.format),
        "partitions": str(settings.partitions),
        "key": settings.key.replace("+", ", ") or "none",
        "hasher": settings.hasher,
        "retention": "as the node says" if ms is None else f"{ms} ms" if ms else "for ever",
        "bytes of a partition": "as the node says" if size is None else str(size or "unbounded"),
    }


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    """The system's errors as ours."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the log's files in {path} cannot be used ({error}); see to its rights and its disk, "
            f"or set s4.log.folder to another folder"
        ) from error


def _lock(folder: Path) -> int:
    """The folder's lock, as a file descriptor; who closes it lets go."""
    with _usable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(fd, 200, 0).decode(errors="replace").strip()
            os.close(fd)
            raise StoreError(
                f"the log in {folder} is held by {holder or 'another process'}; stop that one, or "
                f"set s4.log.folder to another folder"
            ) from None
        except OSError:
            os.close(fd)
            raise
    return fd


def _folders(folder: Path) -> list[Path]:
    """The folders of the streams; what was left over from a crash while creating is removed."""
    for left in folder.glob(".new-*"):
        shutil.rmtree(left, ignore_errors=True)
    return sorted(manifest.parent for manifest in folder.glob(f"*/{_MANIFEST}"))


def _create(folder: Path, settings: StreamSettings) -> None:
    new = folder / f".new-{settings.name}"
    text = msgspec.json.format(msgspec.json.encode(settings), indent=2) + b"\n"
    try:
        with _usable(new):
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            for number in range(settings.partitions):
                create(_file(new, number), settings.name, number)
            manifest = new / _MANIFEST
            manifest.write_bytes(text)
            for path in (manifest, new):
                _fsync(path)
            new.rename(folder / settings.name)
            _fsync(folder)
    except StoreError:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:04}.sqlite"


def _open_stream(
    folder: Path, sync: str
) -> tuple[StreamSettings, list[PartitionFile | StoreCorrupt]]:
    settings = _manifest(folder / _MANIFEST)
    for number in range(settings.partitions):
        with _usable(folder):
            begun = begin_anew(_file(folder, number), settings.name, number)
        if begun is not None:
            log.error("a partition begins anew, without what was in its former file",
                      stream=settings.name, partition=number, offset=begun[0],
                      former=str(begun[1]))  # fmt: skip
    files: list[PartitionFile | StoreCorrupt] = []
    there = {path.name for path in folder.glob("*.sqlite")}
    wanted = {_file(folder, number).name for number in range(settings.partitions)}
    if there != wanted:
        odd = ", ".join(sorted(there ^ wanted)[:3])
        raise StoreError(
            f"{folder} has {len(there)} partition files where its {_MANIFEST} says "
            f"{settings.partitions} partitions ({odd}); a stream never changes their number: put "
            f"the missing files or the manifest back"
        )
    try:
        for number in range(settings.partitions):
            try:
                files.append(PartitionFile(_file(folder, number), settings.name, number, sync))
            except StoreCorrupt as error:
                files.append(error)
    except BaseException:
        for file in files:
            if isinstance(file, PartitionFile):
                file.close()
        raise
    return settings, files


def _manifest(path: Path) -> StreamSettings:
    with _usable(path):
        text = path.read_bytes()
    try:
        version = msgspec.json.decode(text)["format"]
        if version > FORMAT:
            raise StoreError(
                f"{path} has format {version}, and this s4node reads formats up to {FORMAT}; use "
                f"the newer s4node that wrote it"
            )
        settings = msgspec.json.decode(text, type=StreamSettings)
    except (*UNREADABLE, KeyError, TypeError) as error:
        raise StoreError(f"{path} cannot be read ({error}); put back a copy of it") from error
    if settings.name != path.parent.name:
        raise StoreError(
            f"{path} is of stream {settings.name!r}; put it back into the folder of that name"
        )
    check_settings(settings)
    return settings
