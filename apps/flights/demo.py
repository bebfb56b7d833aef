"""The demo on real input: Spark, an adapter, a node with a PE for each key, and a comparison.

Starts the node, the adapter and the Spark program as processes, runs the board in this one, and
ends with status 0 only if every figure equals Spark's own. Ctrl-C stops all of it, and so does a
process that ends before its time. What the processes print on standard error goes to ours, above
the live table; their temporary files are in one folder that goes with the demo.

With ``--adapter ADDRESS`` the node and the adapter run elsewhere, with nothing counted yet; only
Spark and the board are run here. The settings in ``--config FILE`` say where the board listens for
the node's reports, and which certificate both have.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from logging import WARNING
from pathlib import Path
from typing import Any

import structlog
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
ANY_PORT = "tcp://127.0.0.1:0"

HARMLESS = b"WARNING: Using incubator modules: jdk.incubator.vector"
"""A warning that Java prints at each start, about a module that Spark asks for."""


class Failed(Exception):  # noqa: N818 - Ctrl-C is not an error
    """The demo cannot go on; its arguments are the exit status and what to say."""


class Job:
    """The progress of the demo."""

    def __init__(self) -> None:
        self.board = Board()
        self.stage = "starting the nodes"
        self.rows = ROWS
        self.sent = 0
        self.figures: dict[str, dict[str, Figures]] | None = None
        self.began = self.ended = 0.0

    @property
    def rate(self) -> float:
        """Flights a second, from when Spark begins to send to the last one counted."""
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
        """The view for the terminal."""
        return picture(self.board, self.stage, self.sent, self.rows, self.rate)


async def main(adapter: str = "", config: str = "") -> int:
    """Run the demo, with processes of its own unless there is an adapter; returns the exit status.

    ``config`` is the name of a property file for the board and for Spark.
    """
    console = Console()
    status = 1
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(_watch_signals)
            status = await _demo(console, adapter, config)
            nursery.cancel_scope.cancel()
    except* Failed as group:
        failure: BaseException = group
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        status, reason = failure.args
        console.print(reason, highlight=False, markup=False)
    return status


async def _demo(console: Console, adapter: str, config: str) -> int:
    console.print("Flights that left New York City in 2013: Spark → adapter → node → PEs → board")
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    job = Job()
    if adapter:
        job.stage = "starting Spark"
    given = [Path(config)] if config else []
    own = {"s4.cluster.name": "board", "s4.cluster.partitions": "1"}
    if not config:
        own["s4.listener.address"] = ANY_PORT
    board = Container(job.board, Config.load(given, own))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(board.run)
        await board.ready.wait()
        with _temporary_folder(), _shown(console, job) as update:
            nursery.start_soon(_refresh, update)
            async with _adapter(adapter, board.address) as rows:
                await _run(job, rows, config)
        nursery.cancel_scope.cancel()
    settings = "the adapter's and the node's own"
    if not adapter:
        settings = (
            "those of config/flights*.properties and the defaults: all stages block, no rate is set"
        )
    return _compare(console, job, settings)


@asynccontextmanager
async def _adapter(address: str, board: str) -> AsyncIterator[str]:
    """The address of an adapter: ``address``, or that of a new adapter in front of a new node."""
    if address:
        yield address
        return
    node = ["node", "flights", "--config", "config/flights.properties", "--app", "apps.flights.app"]
    node += ["-p", f"s4.cluster.board.address={board}"]
    async with _node("flights node", *node) as flights:
        adapter = ["run", "apps.flights.adapter", "--config", "config/flights-adapter.properties"]
        adapter += ["--cluster", "adapter"]
        adapter += ["-p", f"s4.cluster.flights.address={flights}"]
        async with _node("adapter", *adapter) as rows:
            yield rows


async def _run(job: Job, rows: str, config: str) -> None:
    """Let Spark send to the adapter at ``rows``, and wait until every flight has been counted."""
    async with _process(sys.executable, "-m", "apps.flights.spark_main", rows, config) as spark:
        assert spark.stdout is not None
        async for line in _lines(spark.stdout):
            job.hear(json.loads(line))
        if await spark.wait():
            raise _ended_early("Spark program", spark)
        job.stage = "waiting for the last reports"
        with trio.move_on_after(SETTLE_SECONDS):
            while job.board.complete_to < job.rows:  # noqa: ASYNC110 - PEs change it
                await trio.sleep(0.02)


def _compare(console: Console, job: Job, settings: str) -> int:
    """Print the comparison; returns the exit status."""
    assert job.figures is not None
    ours, sparks = job.board.figures, job.figures
    console.print()
    console.print(worst_routes(job.board))
    console.print()
    console.print(comparison(ours, sparks))
    console.print()
    console.print(
        f"{job.rows:,} flights at {job.rate:,.0f} a second, from Spark's order to send them to the "
        f"last report"
    )
    wrong = differences(ours, sparks)
    for line in wrong[:20]:
        console.print(f"[red]differs:[/] {line}")
    keys = sum(map(len, sparks.values()))
    if wrong or job.sent != job.rows:
        console.print(
            f"[red]FAILED[/]: {len(wrong)} of {keys:,} keys differ; {job.sent:,} of "
            f"{job.rows:,} rows sent"
        )
        return 1
    console.print(
        f"[green]Equal[/]: all {keys:,} keys, {job.rows:,} flights, every figure. The settings are "
        f"{settings}."
    )
    return 0


# -- processes ---------------------------------------------------------------------------------


@contextmanager
def _temporary_folder() -> Iterator[None]:
    """For the temporary files of our processes: killed ones leave theirs, Spark's are large."""
    with tempfile.TemporaryDirectory(prefix="s4node-flights-", ignore_cleanup_errors=True) as name:
        os.environ["TMPDIR"] = name
        yield


@asynccontextmanager
async def _process(*command: str) -> AsyncIterator[trio.Process]:
    """A process in a session of its own, so that Ctrl-C reaches only us; ended with the block."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = await trio.lowlevel.open_process(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    )
    async with trio.open_nursery() as nursery:
        relaying = trio.CancelScope(shield=True)  # it may say why the process ended
        nursery.start_soon(_relay, process, relaying)
        try:
            yield process
        finally:
            with trio.CancelScope(shield=True):
                await _end(process)
            relaying.deadline = trio.current_time() + 1


async def _relay(process: trio.Process, scope: trio.CancelScope) -> None:
    """Print what the process prints on standard error; the live table makes room for it."""
    assert process.stderr is not None
    with scope:
        async for line in _lines(process.stderr):
            if line != HARMLESS:
                print(line.decode(errors="replace"), file=sys.stderr, flush=True)
    await trio.aclose_forcefully(process.stderr)


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
async def _node(name: str, *arguments: str) -> AsyncIterator[str]:
    """A node or adapter process; gives its address once it is ready. It may not end by itself."""
    values = (
        f"s4.listener.address={ANY_PORT}",
        "s4.logger_level=warning",
        "s4.logger_format=console",
    )
    settings = [word for value in values for word in ("-p", value)]
    command = (sys.executable, "-m", "s4node", *arguments, "--json", *settings)
    async with _process(*command) as process, trio.open_nursery() as nursery:
        nursery.start_soon(_watch, name, process)
        assert process.stdout is not None
        ready = b""
        while b"\n" not in ready:
            chunk = await process.stdout.receive_some()
            if not chunk:
                await trio.sleep_forever()  # until _watch says how it ended
            ready += chunk
        yield json.loads(ready)["address"]
        nursery.cancel_scope.cancel()


async def _watch(name: str, process: trio.Process) -> None:
    await process.wait()
    raise _ended_early(name, process)


def _ended_early(name: str, process: trio.Process) -> Failed:
    assert process.returncode is not None
    number = process.returncode
    how = f"ended with status {number}"
    if number < 0:
        how = f"was killed by {signal.Signals(-number).name}"
    return Failed(1, f"FAILED: the {name} {how}; if it said why, that is above")


async def _lines(pipe: trio.abc.ReceiveStream) -> AsyncIterator[bytes]:
    """The lines that come out of a pipe until it is closed."""
    rest = b""
    async for chunk in pipe:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


async def _watch_signals(task_status: trio.TaskStatus[None]) -> None:
    numbers = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as nohup wants it
        numbers.remove(signal.SIGHUP)
    with trio.open_signal_receiver(*numbers) as signals:
        task_status.started()
        async for _ in signals:
            raise Failed(130, "interrupted; all processes have been stopped")


# -- showing -----------------------------------------------------------------------------------


class _shown:  # noqa: N801 - reads as a word in 'with'
    """A live table on a terminal, a line now and then elsewhere; gives a function to refresh it."""

    def __init__(self, console: Console, job: Job) -> None:
        self._console, self._job = console, job
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stderr=sys.stderr.isatty()
        )
        self._said = ("", 0, -1.0)

    def __enter__(self) -> Callable[[], None]:
        if not self._console.is_terminal:
            return self._say
        self._live.__enter__()
        return lambda: self._live.update(self._job.picture(), refresh=True)

    def __exit__(self, *error: Any) -> None:
        if self._console.is_terminal:
            self._live.__exit__(*error)

    def _say(self) -> None:
        job, now, counted = self._job, time.perf_counter(), self._job.board.complete_to
        stage, before, when = self._said
        if job.stage != stage:
            self._console.print(job.stage)
        elif counted == before or now - when < 1:
            return
        else:
            self._console.print(f"{counted:,} counted, {job.rate:,.0f} flights/s")
        self._said = job.stage, counted, now


async def _refresh(update: Callable[[], None]) -> None:
    while True:
        update()
        await trio.sleep(0.2)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="apps.flights.demo", description="Run the flights demo.")
    parser.add_argument(
        "--adapter", default="", metavar="ADDRESS", help="of an adapter that runs already"
    )
    parser.add_argument(
        "--config",
        default="",
        metavar="FILE",
        help="where the board listens for the node's reports, and its certificate",
    )
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    raise SystemExit(trio.run(main, given.adapter, given.config))
