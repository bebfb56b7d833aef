"""log-append: 1 and 16 producer processes append to a stream of the log, over sockets.

The limit is bare SQLite in its own process: inserts into a file of the same layout and pragmas,
with rows and commits as large as the log's in the run before. It does not encode, receive or
acknowledge anything.

Each producer is a process and sends as fast as it can. All begin at once; every event is
acknowledged, and the log's own count is compared with theirs.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import trio

from benchmarks import workload
from benchmarks.process import Role, usage
from benchmarks.result import Result, middle
from s4node.cluster.node.redirector import Redirector
from s4node.config import settings
from s4node.config.config import Config
from s4node.events.event import Event
from s4node.log.host import WINDOW
from s4node.log.partition.partition_database import create_database
from s4node.log.writer import GROUP_BYTES
from s4node.net.client.client import Client
from s4node.systems.embedded_log import EmbeddedLog

PRODUCERS = (1, 16)
EVENT_BYTES = 100
"""The payload of an event, besides a key and a number."""

_CHUNK = 512
_INSERT = "INSERT INTO frames VALUES (?,?,?,?,?,?,?,?,?,?,?)"
_STREAM = "packages"


class Package(Event):
    """An event with a payload."""

    key: str
    number: int
    payload: bytes


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for 1 producer and one for 16."""
    runs, seconds = (1, 0.5) if quick else (3, 5.0)
    rows: dict[int, list[dict[str, Any]]] = {count: [] for count in PRODUCERS}
    for number in range(runs):
        for producers, found in rows.items():
            say(f"run {number + 1} of {runs}: {producers} producers, then bare SQLite")
            found.append(_system(producers, seconds))
            found[-1]["limit"] = _limit(found[-1], seconds)
    return [_result(producers, found) for producers, found in rows.items()]


def _result(producers: int, found: list[dict[str, Any]]) -> Result:
    rate = middle([one["events"] / one["seconds"] for one in found])
    limit = middle([one["limit"] for one in found])
    return Result(
        "log-append",
        events=sum(one["events"] for one in found),
        seconds=sum(one["seconds"] for one in found),
        events_per_s=rate,
        limit_events_per_s=limit,
        ratio=middle([one["events"] / one["seconds"] / one["limit"] for one in found]),
        cpu_s_per_million=middle([one["cpu_s"] / one["events"] * 1e6 for one in found]),
        rss_mb=max(one["rss_mb"] for one in found),
        checked=all(one["checked"] for one in found),
        notes={
            "producers": producers,
            "slowest_share": min(one["slowest"] for one in found),
            "row_bytes": middle([one["row_bytes"] for one in found]),
            "row_events": middle([one["row_events"] for one in found]),
            "mb_per_s": middle([one["bytes"] / one["seconds"] / 1e6 for one in found]),
        },
    )


def _system(producers: int, seconds: float) -> dict[str, Any]:
    """One run of a log's node and its producers."""
    with tempfile.TemporaryDirectory(prefix="s4-bench-") as folder, ExitStack() as open_roles:
        node = open_roles.enter_context(Role("log_node", folder=folder))
        address = node.hear()["address"]
        roles = [
            open_roles.enter_context(Role("appending", address=address, seconds=seconds))
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


def _limit(system: dict[str, Any], seconds: float) -> float:
    """The events a second that bare SQLite inserts, in rows of the same size."""
    with tempfile.TemporaryDirectory(prefix="s4-bench-") as folder:
        row = {"row_bytes": int(system["row_bytes"]), "row_events": system["row_events"]}
        with Role("bare_inserts", folder=folder, seconds=seconds, **row) as bare:
            done = bare.hear()
    return float(done["rows"] * system["row_events"] / done["seconds"])


# --- the processes -------------------------------------------------------------------------------


def log_node(task: dict[str, Any], say: Callable[..., None], listen: Callable[[], Any]) -> None:
    """Run a node's redirector with a log; report the contents of its stream at the end."""

    async def main() -> None:
        config = Config.from_values(
            {"s4.listener.address": "tcp://127.0.0.1:0", "s4.log.folder": task["folder"]}
        )
        redirector = Redirector(config, "bench", lambda *_: "no app is here")
        async with trio.open_nursery() as nursery:
            await nursery.start(redirector.run)
            log = EmbeddedLog("log", redirector.address)
            await nursery.start(_carry, log)
            await log.create(_STREAM)
            before = usage()["cpu_s"]
            say(address=redirector.address)
            await trio.to_thread.run_sync(listen)
            cpu_s = usage()["cpu_s"] - before
            told = (await log.describe(_STREAM))["partitions"][0]
            frames = await _frames(Path(task["folder"]) / _STREAM / "0000.sqlite")
            say(
                events=told["upcoming"],
                bytes=told["bytes"],
                frames=frames,
                cpu_s=cpu_s,
                rss_mb=usage()["rss_mb"],
            )
            nursery.cancel_scope.cancel()

    trio.run(main)


async def _carry(log: EmbeddedLog, task_status: trio.TaskStatus[None]) -> None:
    await log.run(task_status=task_status)


async def _frames(path: Path) -> int:
    """The number of rows of a partition."""

    def count() -> int:
        database = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        try:
            return int(database.execute("SELECT count(*) FROM frames").fetchone()[0])
        finally:
            database.close()

    return await trio.to_thread.run_sync(count)


def appending(task: dict[str, Any], say: Callable[..., None], listen: Callable[[], Any]) -> None:
    """Send as fast as possible for some seconds from the start message on; report the outcome."""

    async def main() -> None:
        keys = workload.words()[:_CHUNK]
        payload = bytes(EVENT_BYTES)
        events = [Package(key, number, payload) for number, key in enumerate(keys)]
        async with Client(task["address"]) as client:
            stream = await client.stream(_STREAM, types=Package)
            say(ready=True)
            await trio.to_thread.run_sync(listen)
            before, began, sent = usage()["cpu_s"], time.monotonic(), 0
            while time.monotonic() < began + task["seconds"]:
                await stream.send_many(events)
                sent += len(events)
            acknowledged = stream.counts["admitted"]
            refused = len(await stream.flush())
            say(
                sent=sent,
                acknowledged=acknowledged,
                refused=refused,
                began=began,
                ended=time.monotonic(),
                cpu_s=usage()["cpu_s"] - before,
            )

    trio.run(main)


def bare_inserts(task: dict[str, Any], say: Callable[..., None]) -> None:
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
    say(rows=rows, seconds=time.monotonic() - began)
    database.close()
