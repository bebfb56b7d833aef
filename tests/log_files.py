"""The files of an embedded log, for tests that keep one without a node."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

from s4node.log.store import LogSettings, LogStore, open_log

MIB = 1 << 20


class Clock:
    """Unix time as the test says."""

    def __init__(self, seconds: float = 1_000_000.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


def disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def database(folder: Path, partition: int = 0) -> Path:
    return folder / "clicks" / f"{partition:04}.sqlite"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """A file that somebody else writes to, as a backup or a shell may: nobody else can."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@asynccontextmanager
async def opened(folder: Path, partitions: int = 1) -> AsyncIterator[LogStore]:
    async with open_log(LogSettings(folder)) as log:
        await log.create("clicks", partitions)
        yield log
