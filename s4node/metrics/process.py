"""The use of resources by processes of this machine, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path

from s4node.metrics.statistics import ProcessStatistics

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def process_statistics(pid: int) -> ProcessStatistics | None:
    """The resources that a process uses; None if it has ended, or if this is not Linux."""
    folder = Path("/proc") / str(pid)
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()  # a name may have blanks
        files = sum(1 for _ in (folder / "fd").iterdir())
    except OSError:
        return None
    return ProcessStatistics(
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        resident_bytes=int(fields[21]) * _PAGE,
        open_files=files,
        threads=int(fields[17]),
    )


def waited_seconds() -> float:
    """The seconds for which this process's main thread was ready, but had no processor; 0 if the
    kernel does not count them."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
