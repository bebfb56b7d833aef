"""The memory and CPU time of this process."""

from __future__ import annotations

import os
import time
from pathlib import Path

from s4node import clocks
from s4node.metrics.snapshot import Value

_PAGE = os.sysconf("SC_PAGE_SIZE")


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
        return {
            "physical-memory-mb": round(_resident() / 2**20, 1),
            "total-process-cpu-usage": round(percent, 1),
        }


def _resident() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except OSError:  # not on Linux
        return 0
