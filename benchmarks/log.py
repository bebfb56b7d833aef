"""The log over sockets: producers that append to it, and a keyed count that reads it.

log-append: 1 and 16 producer processes append to a stream. The limit is bare SQLite in its own
process: inserts into a file of the same layout and pragmas, with rows and commits as large as the
log's in the run before. It does not encode, receive or acknowledge anything. Each producer sends as
fast as it can. All begin at once; every event is acknowledged, and the log's own count is compared
with theirs.

log-replay: a producer process fills the log of a node in another process; then a container, in a
third process, reads it from the beginning over the node's socket. The clock runs from the first
processed event to the last; commits go on meanwhile. The limit is the bare loop over the same
events.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio

from benchmarks import workload
from benchmarks.runner import (
    Result,
    Role,
    Run,
    answer,
    container_of,
    in_turn,
    listen,
    measured,
    middle,
    rate_of,
    running,
    usage,
)
from s4node.app.app import App
from s4node.cluster.node.redirector import Redirector
from s4node.config import settings
from s4node.config.config import Config
from s4node.events.event import Event
from s4node.log.hosted import WINDOW
from s4node.log.partition.partition_database import create_database
from s4node.log.writer import GROUP_BYTES
from s4node.net.client.client import Client
from s4node.systems.embedded_log import EmbeddedLog

PRODUCERS = (1, 16)
PARTITIONS = (1, 8)
EVENT_BYTES = 100
"""The payload of an appended event, besides a key and a number."""

_CHUNK = 512
_INSERT = "INSERT INTO frames VALUES (?,?,?,?,?,?,?,?,?,?,?)"
_STREAM = "packages"
_POLL_SECONDS = 0.002


class Package(Event):
    key: str
    number: int
    payload: bytes


def run_append(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for 1 producer and one for 16."""
    runs, seconds = (1, 0.5) if quick else (3, 5.0)
    cases = {f"{count} producers": partial(_appended, count, seconds) for count in PRODUCERS}
    results = []
    for count, found in zip(PRODUCERS, in_turn(cases, runs, say).values(), strict=True):
        result = Result.of("log-append", found, middle([one["limit"] for one in found]))
        result.ratio = middle([one["events"] / one["seconds"] / one["limit"] for one in found])
        result.notes = {
            "producers": count,
            "slowest_share": min(one["slowest"] for one in found),
            "row_bytes": middle([one["row_bytes"] for one in found]),
            "row_events": middle([one["row_events"] for one in found]),
            "mb_per_s": middle([one["bytes"] / one["seconds"] / 1e6 for one in found]),
        }
        results.append(result)
    return results


def run_replay(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for a stream of 1 partition and one of 8."""
    runs, seconds = (1, 0.5) if quick else (3, 5.5)
    cases = {f"{count} partitions": partial(_replayed, count, seconds) for count in PARTITIONS}
    limit = partial(measured, "keyed_count.limit", seconds=seconds)
    *rows, limits = in_turn({**cases, "the limit": limit}, runs, say).values()
    return [
        Result.of(
            "log-replay",
            found,
            rate_of(limits),
            partitions=partitions,
            commits=min(one["commits"] for one in found),
        )
        for partitions, found in zip(PARTITIONS, rows, strict=True)
    ]


def _appended(producers: int, seconds: float) -> Run:
    """A run of the log, and then of bare SQLite with rows of the same size."""
    found = system(producers, seconds)
    with tempfile.TemporaryDirectory(prefix="s4-bench-") as folder:
        row = {"row_bytes": int(found["row_bytes"]), "row_events": found["row_events"]}
        done = measured("log.bare_inserts", folder=folder, seconds=seconds, **row)
    return {**found, "limit": done["rows"] * found["row_events"] / done["seconds"]}


def system(producers: int, seconds: float) -> Run:
    """One run of a log's node and its producers."""
    with tempfile.TemporaryDirectory(prefix="s4-bench-") as folder, ExitStack() as open_roles:
        node = open_roles.enter_context(Role("log.log_node", folder=folder))
        address = node.hear()["address"]
        roles = [
            open_roles.enter_context(Role("log.appending", address=address, seconds=seconds))
            for _ in range(producers)
        ]
        for role in roles:
            role.hear()
        for role in roles:
            role.tell({})
        told = [role.hear() for role in roles]
        node.tell({})
        kept = node.hear()
    events = sum(one["sent"] for one in told)
    return {
        "events": events,
        "seconds": max(one["ended"] for one in told) - min(one["began"] for one in told),
        "slowest": min(one["acknowledged"] for one in told)
        / (sum(one["acknowledged"] for one in told) / producers),
        "cpu_s": sum(one["cpu_s"] for one in told) + kept["cpu_s"],
        "rss_mb": kept["rss_mb"],
        "bytes": kept["bytes"],
        "row_bytes": kept["bytes"] / kept["frames"],
        "row_events": kept["events"] / kept["frames"],
        "checked": kept["events"] == events and not any(one["refused"] for one in told),
    }


def _replayed(partitions: int, seconds: float) -> Run:
    """One run: fill a log, and read it from the beginning."""
    with (
        tempfile.TemporaryDirectory(prefix="s4-bench-") as folder,
        Role("log.hosting", folder=folder, partitions=partitions) as node,
    ):
        address = node.hear()["address"]
        sent = measured("keyed_count.producer", address=address, seconds=seconds)["events"]
        read = measured("log.replaying", address=address, folder=folder, events=sent)
    right = read["counted"] == sent and read["digest"] == workload.digest_of(sent)
    return {**read, "checked": right}


# -- the roles -------------------------------------------------------------------------------------


@asynccontextmanager
async def _log_in(folder: Path) -> AsyncIterator[tuple[EmbeddedLog, str]]:
    """A node's redirector with a log, and its address, for the block."""
    config = Config.from_values(
        {"s4.listener.address": "tcp://127.0.0.1:0", "s4.log.folder": str(folder)}
    )
    redirector = Redirector(config, "bench", lambda *_: "no app is here")
    async with trio.open_nursery() as nursery:
        await nursery.start(redirector.run)
        log = EmbeddedLog("log", redirector.address)
        nursery.start_soon(log.run)
        yield log, redirector.address
        nursery.cancel_scope.cancel()


def log_node(task: dict[str, Any]) -> None:
    """Run a node's log; report the contents of its stream at the end."""

    async def main() -> None:
        folder = Path(task["folder"])
        async with _log_in(folder) as (log, address):
            await log.create(_STREAM)
            before = usage()["cpu_s"]
            answer(address=address)
            await trio.to_thread.run_sync(listen)
            cpu_s = usage()["cpu_s"] - before
            told = (await log.describe(_STREAM))["partitions"][0]
            frames = await _frames(folder / _STREAM / "0000.sqlite")
            answer(
                events=told["upcoming"],
                bytes=told["bytes"],
                frames=frames,
                cpu_s=cpu_s,
                rss_mb=usage()["rss_mb"],
            )

    trio.run(main)


def hosting(task: dict[str, Any]) -> None:
    """Run a node's log with a stream of readings; report its address, and end at a message."""

    async def main() -> None:
        async with _log_in(Path(task["folder"]) / "log") as (log, address):
            await log.create("readings", task["partitions"], key="key")
            answer(address=address)
            await trio.to_thread.run_sync(listen)

    trio.run(main)


async def _frames(path: Path) -> int:
    """The number of rows of a partition."""

    def count() -> int:
        database = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        try:
            return int(database.execute("SELECT count(*) FROM frames").fetchone()[0])
        finally:
            database.close()

    return await trio.to_thread.run_sync(count)


def appending(task: dict[str, Any]) -> None:
    """Send as fast as possible for some seconds from the start message on; report the outcome."""

    async def main() -> None:
        keys = workload.words()[:_CHUNK]
        payload = bytes(EVENT_BYTES)
        events = [Package(key, number, payload) for number, key in enumerate(keys)]
        async with Client(task["address"]) as client:
            stream = await client.stream(_STREAM, types=Package)
            answer(ready=True)
            await trio.to_thread.run_sync(listen)
            before, began, sent = usage()["cpu_s"], time.monotonic(), 0
            while time.monotonic() < began + task["seconds"]:
                await stream.send_many(events)
                sent += len(events)
            acknowledged = stream.counts["admitted"]
            refused = len(await stream.flush())
            answer(
                sent=sent,
                acknowledged=acknowledged,
                refused=refused,
                began=began,
                ended=time.monotonic(),
                cpu_s=usage()["cpu_s"] - before,
            )

    trio.run(main)


def bare_inserts(task: dict[str, Any]) -> None:
    """Insert rows of one size for some seconds."""
    path = Path(task["folder"]) / "0000.sqlite"
    create_database(path, "bare", 0)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    sync = {"none": "OFF", "normal": "NORMAL", "full": "FULL"}[settings.LOG_SYNC.default]
    database.execute(f"PRAGMA synchronous = {sync}")
    body, head = bytes(task["row_bytes"]), b""
    together = max(1, min(GROUP_BYTES // len(body), int(WINDOW / task["row_events"])))
    rows = 0
    began = time.monotonic()
    while time.monotonic() < began + task["seconds"]:
        group = [
            (rows + n, rows + n, 1, 0, rows + n, len(body), "bare", rows + n, 0, head, body)
            for n in range(together)
        ]
        database.execute("BEGIN IMMEDIATE")
        database.executemany(_INSERT, group)
        database.execute("COMMIT")
        rows += together
    answer(rows=rows, seconds=time.monotonic() - began)
    database.close()


def replaying(task: dict[str, Any]) -> None:
    """Run a container that reads the log from the oldest event; report its time and counts."""

    async def main() -> None:
        app = App("log-replay")
        app.create_input_stream("readings", app.create_pe(workload.Tally), key="key", system="log")
        values = {
            "s4.state.folder": str(Path(task["folder"]) / "state"),
            "systems.log.type": "log",
            "systems.log.address": task["address"],
            "systems.log.samza.offset.default": "oldest",
            "task.commit.ms": "1000",
        }
        async with running(container_of(app, values)) as container:
            while not (first := container.processed):  # noqa: ASYNC110 - it measures
                await trio.sleep(_POLL_SECONDS)
            began, before = time.perf_counter(), usage()["cpu_s"]
            while container.processed < task["events"]:  # noqa: ASYNC110 - it measures
                await trio.sleep(_POLL_SECONDS)
            seconds = time.perf_counter() - began
            cpu_s = usage()["cpu_s"] - before
            tallies = workload.tallies(container)
        answer(
            events=task["events"] - first,
            seconds=seconds,
            counted=sum(count for _, count, _ in tallies),
            digest=workload.digest(tallies),
            commits=container.replay.statistics().commits,
            **{**usage(), "cpu_s": cpu_s},
        )

    trio.run(main)
