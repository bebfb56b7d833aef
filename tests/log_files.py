"""The files of an embedded log, for tests that keep one without a node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
    """The bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def database(folder: Path, partition: int = 0) -> Path:
    return folder / "clicks" / f"{partition:04}.sqlite"


@asynccontextmanager
async def opened(folder: Path, partitions: int = 1) -> AsyncIterator[LogStore]:
    async with open_log(LogSettings(folder)) as log:
        await log.create("clicks", partitions)
        yield log
