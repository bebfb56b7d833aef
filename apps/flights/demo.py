"""The main job on real input: Spark to an adapter, to a node with a PE for each key, and compared.

Starts the node, the adapter and the Spark program as processes, runs the board in this one, and
ends with status 0 only if every figure equals Spark's own. Ctrl-C stops all of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from rich.console import Console
from rich.live import Live

from apps.flights.board import Board, comparison, differences, picture, worst_routes
from apps.flights.data import ROWS
from apps.flights.events import Figures
from s4node import Config, Container

ROOT = Path(__file__).resolve().parents[2]
SETTLE_SECONDS = 20
STOP_SECONDS = 5


class Job:
    """What the demo knows of its progress."""

    def __init__(self) -> None:
        self.board = Board()
        self.stage = "starting the nodes"
        self.rows = ROWS
        self.sent = 0
        self.figures: dict[str, dict[str, Figures]] | None = None
        self.began = self.ended = 0.0

    @property
    def rate(self) -> float:
        """Flights a second, from the first one sent to the last one counted."""
        if not self.began:
            return 0.0
        if not self.ended and self.board.complete_to >= self.rows:
            self.ended = time.perf_counter()
        return self.board.complete_to / max(1e-9, (self.ended or time.perf_counter()) - self.began)

    def hear(self, message: dict[str, Any]) -> None:
        """Take a line of the Spark program."""
        self.stage = message.get("stage", self.stage)
        self.rows = message.get("rows", self.rows)
        self.sent = message.get("progress", message.get("sent", self.sent))
        if self.stage == "sending" and not self.began:
            self.began = time.perf_counter()
        if "figures" in message:
            self.figures = {
                kind: {key: Figures(*values) for key, values in by_key.items()}
                for kind, by_key in message["figures"].items()
            }

    def picture(self) -> Any:
        """What the terminal shows."""
        return picture(self.board, self.stage, self.sent, self.rows, self.rate)


async def main() -> int:
    """Run the demo; returns the exit status."""
    console = Console()
    console.print("Flights that left New York City in 2013: Spark → adapter → node → PEs → board")
    job, status = Job(), 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch_signals, nursery.cancel_scope)
        config = {"s4.listener.address": "tcp://127.0.0.1:0", "s4.logger_level": "warning"}
        board = Container(job.board, Config.of(config))
        nursery.start_soon(board.run)
        await board.ready.wait()
        with _shown(console, job) as update:
            nursery.start_soon(_refresh, update)
            await _run(job, board.address)
        status = _compare(console, job)
        nursery.cancel_scope.cancel()
    if nursery.cancel_scope.cancelled_caught and status == 1 and job.figures is None:
        console.print("interrupted; all processes have been stopped")
        return 130
    return status


async def _run(job: Job, board: str) -> None:
    """Start the processes, wait until every flight has been counted, stop them."""
    node = ("node", "flights", "--config", "config/flights.properties",
            "--app", "apps.flights.app", "-p", f"s4.cluster.board.address={board}")  # fmt: skip
    async with _node(*node) as flights:
        adapter = ("adapter", "adapter", "--config", "config/flights-adapter.properties",
                   "--app", "apps.flights.adapter",
                   "-p", f"s4.cluster.flights.address={flights}")  # fmt: skip
        async with (
            _node(*adapter) as rows,
            _process(sys.executable, "-m", "apps.flights.spark_main", rows) as spark,
        ):
            async for line in _lines(spark):
                job.hear(json.loads(line))
            if await spark.wait():
                raise SystemExit(f"the Spark program failed with status {spark.returncode}")
            job.stage = "waiting for the last reports"
            with trio.move_on_after(SETTLE_SECONDS):
                while job.board.complete_to < job.rows:  # noqa: ASYNC110 - PEs change it
                    await trio.sleep(0.02)


def _compare(console: Console, job: Job) -> int:
    """Print the comparison; returns the exit status."""
    assert job.figures is not None
    ours, sparks = job.board.figures, job.figures
    console.print(worst_routes(job.board))
    console.print(
        f"{job.rows:,} flights at {job.rate:,.0f} a second, from Spark's first row to the last PE"
    )
    console.print(comparison(ours, sparks))
    wrong = differences(ours, sparks)
    for line in wrong[:20]:
        console.print(f"[red]differs:[/] {line}")
    keys = sum(map(len, sparks.values()))
    if wrong or job.sent != job.rows:
        console.print(f"[red]FAILED[/]: {len(wrong)} of {keys:,} keys differ; {job.sent:,} of "
                      f"{job.rows:,} rows sent")  # fmt: skip
        return 1
    console.print(
        f"[green]Equal[/]: all {keys:,} keys, {job.rows:,} flights, every figure. The settings are "
        f"those of config/flights*.properties and the defaults."
    )
    return 0


# -- processes ---------------------------------------------------------------------------------


@asynccontextmanager
async def _process(*command: str) -> AsyncIterator[trio.Process]:
    """A process in a session of its own, so that Ctrl-C reaches only us; ended with the block."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = await trio.lowlevel.open_process(
        command,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            await _end(process)


async def _end(process: trio.Process) -> None:
    """Ask the process's session to stop, and kill what is left of it."""
    for number, patience in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        with trio.move_on_after(patience):
            await process.wait()
    if process.stdout is not None:
        await process.stdout.aclose()


@asynccontextmanager
async def _node(*arguments: str) -> AsyncIterator[str]:
    """A node or adapter process; gives its address once it is ready."""
    quiet = ("-p", "s4.listener.address=tcp://127.0.0.1:0", "-p", "s4.logger_level=warning")
    command = (sys.executable, "-m", "s4node", *arguments, "--json", *quiet)
    async with _process(*command) as process:
        ready = b""
        assert process.stdout is not None
        while b"\n" not in ready:
            chunk = await process.stdout.receive_some()
            if not chunk:
                raise SystemExit(f"{' '.join(command)} ended with status {await process.wait()}")
            ready += chunk
        yield json.loads(ready)["address"]


async def _lines(process: trio.Process) -> AsyncIterator[bytes]:
    """The lines that the process prints, until it closes its standard output."""
    assert process.stdout is not None
    rest = b""
    async for chunk in process.stdout:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


async def _watch_signals(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


# -- showing -----------------------------------------------------------------------------------


class _shown:  # noqa: N801 - reads as a word in 'with'
    """A live table on a terminal, a line now and then elsewhere; gives a function to refresh it."""

    def __init__(self, console: Console, job: Job) -> None:
        self._console, self._job = console, job
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._said = ("", -1.0)

    def __enter__(self) -> Callable[[], None]:
        if not self._console.is_terminal:
            return self._say
        self._live.__enter__()
        return lambda: self._live.update(self._job.picture(), refresh=True)

    def __exit__(self, *error: Any) -> None:
        if self._console.is_terminal:
            self._live.__exit__(*error)

    def _say(self) -> None:
        job, now = self._job, time.perf_counter()
        if job.stage != self._said[0] or now - self._said[1] > 2:
            self._said = job.stage, now
            self._console.print(
                f"{job.stage}: {job.sent:,} sent, {job.board.complete_to:,} counted, "
                f"{job.rate:,.0f} flights/s"
            )


async def _refresh(update: Callable[[], None]) -> None:
    while True:
        update()
        await trio.sleep(0.2)


if __name__ == "__main__":
    raise SystemExit(trio.run(main))
