"""The log store: a folder of streams that is locked, opened and closed as a whole.

Rules
- One process owns the folder, by a file lock that the kernel releases when the process dies.
- Opening the folder opens all streams. A mistake of the operator keeps the log from opening; a
  damaged file makes only its partition unusable.
- Creating a stream that exists with the same settings finds it. Settings never change.
"""

from __future__ import annotations

import fcntl
import math
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import trio

from s4node import disk, threads, tokens
from s4node.config.config import Config
from s4node.config.paths import full_path
from s4node.config.settings import (
    LOG_FOLDER,
    LOG_MAX_PARTITIONS,
    LOG_QUOTA_BYTES,
    LOG_RETENTION_MS,
    LOG_SYNC,
)
from s4node.errors import LimitReached, StoreError
from s4node.forks import LockFile
from s4node.log.partition.partition_database import FORMAT
from s4node.log.partition.retention import Keep
from s4node.log.stream_folder import (
    StreamSettings,
    check_settings,
    create_stream,
    differences,
    drop_stream,
    open_stream,
    os_errors_as_ours,
    stream_folders,
)
from s4node.log.streams import Files, LogStream
from s4node.log.writer import LogWriter

SPOOL = "_sink."
"""How the names of spools begin: streams that sinks have for what they stage."""

READING_THREADS = 4
"""The threads that read frames; separate, because handlers may occupy all others."""

EMPTY_BYTES = 256 << 10
"""The size of an empty partition on disk, rounded up."""


@dataclass(frozen=True)
class LogSettings:
    """Settings of a log. Times are milliseconds, sizes bytes, and 0 means no bound;
    ``retention_bytes`` is per partition, ``quota_bytes`` is for the whole folder."""

    folder: Path
    retention_ms: int = 0
    retention_bytes: int = 0
    quota_bytes: int = 0
    sync: str = "normal"
    max_partitions: int = 512

    def retention_of(self, stream: StreamSettings) -> Keep:
        ms, size = stream.retention_ms, stream.retention_bytes
        return Keep(
            self.retention_ms if ms is None else ms, self.retention_bytes if size is None else size
        )

    @classmethod
    def from_config(cls, config: Config) -> LogSettings:
        return cls(
            full_path(config[LOG_FOLDER], LOG_FOLDER.name),
            math.ceil(round(config[LOG_RETENTION_MS] * 1000, 3)),  # not down: 0 means for ever
            quota_bytes=config[LOG_QUOTA_BYTES],
            sync=config[LOG_SYNC],
            max_partitions=config[LOG_MAX_PARTITIONS],
        )


class LogStore:
    """The streams of one folder; see :func:`open_log`."""

    def __init__(self, settings: LogSettings, clock: Callable[[], float] | None) -> None:
        self.settings = settings
        self.writer = LogWriter(settings.quota_bytes, clock)
        self._files = Files(
            settings.retention_of, self.writer, trio.CapacityLimiter(READING_THREADS)
        )
        self.streams: dict[str, LogStream] = {}
        self._creating = trio.Lock()

    async def create(
        self,
        name: str,
        partitions: int,
        key: str = "",
        hasher: str = "crc32m",
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
    ) -> LogStream:
        """Create a stream, or find the one with these settings.

        Raises StoreError if the name or the number of partitions is invalid, or if the stream
        exists with other settings.
        """
        wanted = StreamSettings(
            FORMAT, name, partitions, key, hasher, retention_ms, retention_bytes
        )
        check_settings(wanted)
        async with self._creating:
            there = self.streams.get(name)
            if there is None:
                self._check_quota(wanted)
                new = msgspec.structs.replace(wanted, id=tokens.fresh(8))
                make = partial(create_stream, self.settings.folder, new)
                await threads.run_sync(make)
                await self._add(self.settings.folder / name)
            elif msgspec.structs.replace(there.settings, id="") != wanted:
                raise StoreError(
                    f"stream {name!r} exists with other settings: "
                    f"{differences(there.settings, wanted)}; ask for those settings, or choose "
                    f"another name"
                )
            return self.streams[name]

    async def drop(self, name: str) -> None:
        """Remove a stream with its events. Raises StoreError if its folder cannot be removed; then
        the stream is there again at the next start."""
        async with self._creating:
            stream = self.streams.pop(name)
            for partition in stream.partitions:
                await partition.drop()
            await threads.run_sync(drop_stream, self.settings.folder, name)

    def _check_quota(self, wanted: StreamSettings) -> None:
        most, spool = self.settings.max_partitions, wanted.name.startswith(SPOOL)
        partitions = sum(
            len(stream.partitions)
            for stream in self.streams.values()
            if stream.name.startswith(SPOOL) == spool
        )
        if partitions + wanted.partitions > most:
            what = f"stream {wanted.name!r}"
            fix = "delete a stream, or raise the limit"
            if spool:
                what = "the spool of a sink"
                fix = "wait for other sinks, forget those that are over (s4 log sinks), or raise it"
            raise LimitReached(
                f"{what} with {wanted.partitions} partitions would be beyond "
                f"s4.log.maxPartitions ({most}), of which {partitions} are used; {fix}"
            )
        quota = self.settings.quota_bytes
        used = sum(p.standing.disk for stream in self.streams.values() for p in stream.partitions)
        needed = wanted.partitions * EMPTY_BYTES
        if quota and used + needed > quota:
            raise LimitReached(
                f"stream {wanted.name!r} with {wanted.partitions} partitions needs {needed} bytes "
                f"while empty, and {used} of s4.log.quotaBytes ({quota}) are used; raise the quota"
            )

    async def _add(self, folder: Path) -> None:
        opened = await threads.run_sync(open_stream, folder, self.settings.sync)
        self.streams[opened[0].name] = LogStream(*opened, self._files)

    async def open(self) -> None:
        for folder in await threads.run_sync(stream_folders, self.settings.folder):
            await self._add(folder)

    async def aclose(self) -> None:
        """Write the queued frames and close the files."""
        with trio.CancelScope(shield=True):
            await self.writer.aclose()
            for stream in self.streams.values():
                for partition in stream.partitions:
                    partition.close()


@asynccontextmanager
async def open_log(
    settings: LogSettings, clock: Callable[[], float] | None = None
) -> AsyncIterator[LogStore]:
    """Open the streams of a folder, which is created if missing; closes them at the end.

    ``clock`` gives Unix time in seconds. Raises StoreError if another process owns the folder or
    its files are unusable; a damaged file makes only its partition unusable.
    """
    lock = await threads.run_sync(_lock, settings.folder)
    try:
        log = LogStore(settings, clock)
        try:
            await log.open()
            yield log
        finally:
            await log.aclose()
    finally:
        lock.close()


def _lock(folder: Path) -> LockFile:
    """Lock the folder; closing the returned file releases the lock."""
    with os_errors_as_ours(folder):
        disk.make_folders(folder)
        file = LockFile(folder / "lock")
        number = file.fileno()
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(number, 0)
            os.pwrite(number, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(number, 200, 0).decode(errors="replace").strip()
            file.close()
            raise StoreError(
                f"the log in {folder} is in use by {holder or 'another process'}; stop that "
                f"process, or set s4.log.folder to another folder"
            ) from None
        except OSError:
            file.close()
            raise
    return file
