"""What processes of this machine use, as the kernel counts it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from s4node import clocks
from s4node.metrics.snapshot import Value
from s4node.metrics.statistics import ProcessStatistics

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def process_statistics(pid: int) -> ProcessStatistics | None:
    """What a process uses; None if it has ended, or if this is not Linux."""
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


class ProcessUse:
    """Memory and CPU time of this process; ``sample`` gives the CPU use since the last time."""

    def __init__(self) -> None:
        self._at = clocks.steady()
        self._cpu = time.process_time()

    def sample(self) -> dict[str, Value]:
        """Megabytes of memory, and percent of one core."""
        now, cpu = clocks.steady(), time.process_time()
        percent = (cpu - self._cpu) / max(now - self._at, 1e-3) * 100
        self._at, self._cpu = now, cpu
        found = process_statistics(os.getpid())
        return {
            "physical-memory-mb": round(found.resident_bytes / 2**20, 1) if found else 0,
            "total-process-cpu-usage": round(percent, 1),
        }
