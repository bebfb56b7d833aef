"""The processes of a benchmark: started, given tasks, and asked for results.

Rules
- Each role is a Python process. It gets its task as one JSON line on standard input and answers in
  JSON lines on standard output.
- A role that dies ends the benchmark. What it says on standard error is shown.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from s4node.errors import S4Error


class Role:
    """A running role, such as ``node``; use it in ``with``, which ends its process."""

    def __init__(self, name: str, **task: Any) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.roles", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.tell(task)

    def tell(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        print(json.dumps(message), file=self._process.stdin, flush=True)

    def hear(self) -> dict[str, Any]:
        """The role's next message; raises S4Error if the role ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise S4Error(f"the benchmark's {self.name} ended with {self._process.wait()}")
        return json.loads(line)  # type: ignore[no-any-return]

    def kill(self) -> None:
        """End its process at once."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Role:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with ExitStack() as closing:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    closing.callback(pipe.close)
            try:
                self._process.wait(2 if kind is None else 0.1)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def usage() -> dict[str, float]:
    """CPU seconds and peak memory in MB of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_s": used.ru_utime + used.ru_stime, "rss_mb": used.ru_maxrss / 1024}


def resident_mb() -> float:
    """Memory of this process now, in MB."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 - not a file of ours
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6
