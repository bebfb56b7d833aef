"""log-replay: a keyed count from the embedded log, from the oldest event to the newest.

A producer process fills the log of a node in another process; then a container, in a third process,
reads it from the beginning over the node's socket. The clock runs from the first processed event to
the last; commits go on meanwhile. The limit is the bare loop over the same events.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from benchmarks import workload
from benchmarks.process import Role, usage
from benchmarks.result import Result, middle
from s4node.app.app import App
from s4node.cluster.node.redirector import Redirector
from s4node.config.config import Config
from s4node.process.serve import tune_python
from s4node.runtime.container.container import Container
from s4node.systems.embedded_log import EmbeddedLog

PARTITIONS = (1, 8)
_POLL_SECONDS = 0.002


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for a stream of 1 partition and one of 8."""
    runs, seconds = (1, 0.5) if quick else (3, 5.5)
    limits: list[dict[str, Any]] = []
    rows: dict[int, list[dict[str, Any]]] = {count: [] for count in PARTITIONS}
    for number in range(runs):
        with Role("limit", seconds=seconds) as limit:
            limits.append(limit.hear())
        for partitions, found in rows.items():
            say(f"run {number + 1} of {runs}: fill {partitions} partitions, then replay them")
            found.append(_replay(partitions, seconds))
    limit_rate = middle([one["events"] / one["seconds"] for one in limits])
    return [_result(partitions, found, limit_rate) for partitions, found in rows.items()]


def _result(partitions: int, found: list[dict[str, Any]], limit_rate: float) -> Result:
    rate = middle([one["events"] / one["seconds"] for one in found])
    return Result(
        "log-replay",
        events=sum(one["events"] for one in found),
        seconds=sum(one["seconds"] for one in found),
        events_per_s=rate,
        limit_events_per_s=limit_rate,
        ratio=rate / limit_rate,
        cpu_s_per_million=middle([one["cpu_s"] / one["events"] * 1e6 for one in found]),
        rss_mb=max(one["rss_mb"] for one in found),
        checked=all(one["checked"] for one in found),
        notes={
            "partitions": partitions,
            "commits": min(one["commits"] for one in found),
        },
    )


def _replay(partitions: int, seconds: float) -> dict[str, Any]:
    """One run: fill a log, and read it from the beginning."""
    with (
        tempfile.TemporaryDirectory(prefix="s4-bench-") as folder,
        Role("replayed", folder=folder, partitions=partitions) as node,
    ):
        address = node.hear()["address"]
        with Role("producer", address=address, seconds=seconds) as producer:
            sent = producer.hear()["sent"]
        with Role("replaying", address=address, folder=folder, events=sent) as reader:
            read = reader.hear()
    expected = workload.truth(workload.key_sequence(), sent)
    digest = workload.digest((key, count, total) for key, (count, total) in expected.items())
    return {**read, "checked": read["counted"] == sent and read["digest"] == digest}


# --- the processes -------------------------------------------------------------------------------


def replayed(task: dict[str, Any], say: Callable[..., None], listen: Callable[[], Any]) -> None:
    """Run a node's redirector with a log; report its address, and end at a message."""

    async def main() -> None:
        config = Config.from_values(
            {
                "s4.listener.address": "tcp://127.0.0.1:0",
                "s4.log.folder": str(Path(task["folder"]) / "log"),
            }
        )
        redirector = Redirector(config, "bench", lambda *_: "no app is here")
        async with trio.open_nursery() as nursery:
            await nursery.start(redirector.run)
            log = EmbeddedLog("log", redirector.address)
            nursery.start_soon(log.run)
            await log.create(task.get("stream", "readings"), task["partitions"], key="key")
            say(address=redirector.address)
            await trio.to_thread.run_sync(listen)
            nursery.cancel_scope.cancel()

    trio.run(main)


def replaying(task: dict[str, Any], say: Callable[..., None]) -> None:
    """Run a container that reads the log from the oldest event; report its time and counts."""

    async def main() -> None:
        app = App("log-replay")
        app.create_input_stream("readings", app.create_pe(workload.Tally), key="key", system="log")
        container = Container(
            app,
            Config.from_values(
                {
                    "s4.listener.address": "tcp://127.0.0.1:0",
                    "s4.state.folder": str(Path(task["folder"]) / "state"),
                    "systems.log.type": "log",
                    "systems.log.address": task["address"],
                    "systems.log.samza.offset.default": "oldest",
                    "task.commit.ms": "1000",
                }
            ),
        )
        tune_python(container.config)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(container.run)
            await container.ready.wait()
            while not (first := container.processed):  # noqa: ASYNC110 - it measures
                await trio.sleep(_POLL_SECONDS)
            began, before = time.perf_counter(), usage()["cpu_s"]
            while container.processed < task["events"]:  # noqa: ASYNC110 - it measures
                await trio.sleep(_POLL_SECONDS)
            seconds = time.perf_counter() - began
            cpu_s = usage()["cpu_s"] - before
            tallies = [
                (str(pe.key), pe.count, pe.total)  # type: ignore[attr-defined]
                for one in container.tasks.values()
                for pe in one.instances["Tally"].values()
            ]
            container.stop()
        assert container.replay is not None
        say(
            events=task["events"] - first,
            seconds=seconds,
            counted=sum(count for _, count, _ in tallies),
            digest=workload.digest(tallies),
            commits=container.replay.committer.commits,
            **{**usage(), "cpu_s": cpu_s},
        )

    trio.run(main)
