"""The base of every benchmark: runs in turn, the processes of its roles, and its results.

Rules
- A benchmark is a function ``run(quick, say)`` that returns a :class:`Result` for each of its rows.
  What is compared is measured in turn, so that a noisy machine touches all alike.
- A role is a function of a benchmark's module that runs in a process of its own, such as
  ``keyed_count.node``. It gets its task as one JSON line on standard input and answers in JSON
  lines on standard output. One that dies ends the benchmark; what it says on standard error is
  shown.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from statistics import median
from types import TracebackType
from typing import Any, TypeVar

import trio

from s4node.app.app import App
from s4node.config.config import Config
from s4node.errors import S4Error
from s4node.net.client.client_stream import ClientStream
from s4node.process.stopping import tune_python
from s4node.runtime.container.container import Container

Run = dict[str, Any]
"""The figures of one run. Those of :meth:`Result.of` have ``events``, ``seconds`` and ``checked``,
and may have ``cpu_s`` and ``rss_mb``."""


Case = TypeVar("Case", str, tuple[str, str])
"""The name of a case, and its words."""


@dataclass
class Result:
    """One row. Figures that do not apply are None; ``notes`` has further measurements.

    Rates are events a second, latencies ms; ``ratio`` is system to limit, both medians of
    interleaved runs. ``checked`` is True if the counts were right.
    """

    name: str
    events: int | None = None
    seconds: float | None = None
    events_per_s: float | None = None
    limit_events_per_s: float | None = None
    ratio: float | None = None
    cpu_s_per_million: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    rss_mb: float | None = None
    checked: bool | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, runs: list[Run], limit: float | None = None, **notes: Any) -> Result:
        """The row of some runs, with the median of their rates beside ``limit`` events a second."""
        rate = rate_of(runs)
        return cls(
            name,
            events=sum(one["events"] for one in runs),
            seconds=sum(one["seconds"] for one in runs),
            events_per_s=rate,
            limit_events_per_s=limit,
            ratio=rate / limit if limit else None,
            cpu_s_per_million=(
                middle([one["cpu_s"] / one["events"] * 1e6 for one in runs])
                if "cpu_s" in runs[0]
                else None
            ),
            rss_mb=max(one["rss_mb"] for one in runs) if "rss_mb" in runs[0] else None,
            checked=all(one["checked"] for one in runs),
            notes=notes,
        )

    def row(self) -> dict[str, Any]:
        """Every field, with figures rounded to their precision."""
        found = {k: _rounded(v) for k, v in asdict(self).items() if k != "notes"}
        return found | {k: _rounded(v) for k, v in self.notes.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}") if abs(value) < 1000 else round(value)
    return value


def middle(values: list[float]) -> float:
    return float(median(values))


def rate_of(runs: list[Run]) -> float:
    return middle([one["events"] / one["seconds"] for one in runs])


def in_turn(
    cases: Mapping[Case, Callable[[], Run]], runs: int, say: Callable[[str], None]
) -> dict[Case, list[Run]]:
    """Run all cases, one after the other, so many times."""
    found: dict[Case, list[Run]] = {case: [] for case in cases}
    for number in range(runs):
        for case, measure in cases.items():
            name = ", ".join(case) if isinstance(case, tuple) else case
            say(f"run {number + 1} of {runs}: {name}")
            found[case].append(measure())
    return found


# -- the benchmark's side of a role ----------------------------------------------------------------


class Role:
    """A running role, such as ``keyed_count.node``; ``with`` it, as that ends its process."""

    def __init__(self, name: str, **task: Any) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.role", name],
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

    def ask(self) -> dict[str, Any]:
        """The figures so far of a role that goes on."""
        self.tell({"stop": False})
        return self.hear()

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


def measured(name: str, **task: Any) -> dict[str, Any]:
    """The answer of a role that needs nothing but its task."""
    with Role(name, **task) as role:
        return role.hear()


# -- the role's side -------------------------------------------------------------------------------


def answer(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def listen() -> dict[str, Any]:
    """The benchmark's next message, or an empty one at its end."""
    return json.loads(sys.stdin.readline() or "{}")  # type: ignore[no-any-return]


async def asked() -> bool:
    """Wait for the benchmark's next message; return True if it is an :meth:`Role.ask`."""
    message = await trio.to_thread.run_sync(listen)
    return not message.get("stop", True)


@asynccontextmanager
async def running(container: Container) -> AsyncIterator[Container]:
    """Run a container for the block; it is ready, and tuned as a node's process is."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(container.run)
        await container.ready.wait()
        tune_python()
        yield container
        container.stop()


def container_of(app: App, values: Mapping[str, str], **more: Any) -> Container:
    """A container of an app, at a port of its own; ``more`` are the container's arguments."""
    config = Config.from_values({"s4.listener.address": "tcp://127.0.0.1:0", **values})
    return Container(app, config, **more)


async def send_for(seconds: float, stream: ClientStream, source: Iterable[list[Any]]) -> Run:
    """Send lists of events for some seconds, until all have their verdict."""
    sent, before, began = 0, usage()["cpu_s"], time.perf_counter()
    for events in source:
        await stream.send_many(events)
        sent += len(events)
        if time.perf_counter() - began >= seconds:
            break
    refused = await stream.flush()
    return {
        "events": sent,
        "seconds": time.perf_counter() - began,
        "cpu_s": usage()["cpu_s"] - before,
        "refused": sum(one.count for one in refused),
        "reason": refused[0].reason if refused else "",
    }


def usage() -> dict[str, float]:
    """CPU seconds and peak memory in MB of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_s": used.ru_utime + used.ru_stime, "rss_mb": used.ru_maxrss / 1024}


def resident_mb() -> float:
    """Memory of this process now, in MB."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 - not a file of ours
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6
