"""What a node answers over HTTP: a real node, and real containers."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from harness import ANY_PORT, QUICK, NodeProcess, free_port, run_s4, s4_process, until_told
from prometheus_client.parser import text_string_to_metric_families

from s4node import Client, Event

pytestmark = pytest.mark.slow

COUNTER = """\
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
class Count(ProcessingElement):
    clicks: int = 0
    def on_event(self, click: Click):
        self.clicks += 1
        self.app.metrics.counter("clicks seen").increment()
class Counter(App):
    def on_init(self):
        self.create_input_stream("clicks", self.create_pe(Count), key="user")
        self.metrics.gauge("no number", lambda: {})
        self.metrics.gauge("answer", lambda: 42)
app = Counter("counter")
"""


class Click(Event):
    user: str


class Monitored:
    """A node, and the base of its URLs."""

    def __init__(self, process: NodeProcess, base: str, folder: Path) -> None:
        self.process = process
        self._base = base
        self._folder = folder

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text at a path."""

        def get() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(self._base + path) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        return await trio.to_thread.run_sync(get)

    async def value(self, name: str, /, **labels: str) -> float | None:
        """The value of a sample at /metrics."""
        status, text = await self.get("/metrics")
        assert status == 200
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return None

    async def deploy(self, *options: str) -> None:
        (self._folder / "app.py").write_text(COUNTER)
        where = ("--cluster", "shop", "--folder", self._folder / "s4")
        done = await run_s4("deploy", "app.py", *where, *options, cwd=self._folder)
        assert done.returncode == 0, done.stderr


@asynccontextmanager
async def monitored(folder: Path) -> AsyncIterator[Monitored]:
    port = free_port()
    settings = {
        **QUICK,
        "s4.listener.address": ANY_PORT,
        "s4.http.address": f"tcp://127.0.0.1:{port}",
        "s4.state.folder": str(folder / "state"),
    }
    options = [word for key, value in settings.items() for word in ("-p", f"{key}={value}")]
    command = ("node", "shop", "--name", "one", "--folder", folder / "s4", *options)
    async with s4_process(*command, cwd=folder) as process:
        yield Monitored(process, f"http://127.0.0.1:{port}", folder)


async def test_a_node_is_ready_once_its_apps_run_and_counts_what_they_do(tmp_path: Path) -> None:
    async with monitored(tmp_path) as node:
        assert await node.get("/livez") == (200, "alive\n")
        assert await node.get("/readyz") == (200, "ready\n")
        await node.deploy("--partitions", "3")
        assert (await until_told(lambda: node.get("/readyz"), lambda told: told[0] == 200))[
            0
        ] == 200
        async with Client(node.process.address) as client:
            clicks = await client.stream("clicks")
            for user in ("ann", "bob", "joe", "kim", "lee", "eve"):
                await clicks.send(Click(user))
            assert await clicks.flush() == []
        await until_told(
            lambda: node.value("s4_processed_events_total", app="counter"), lambda n: n == 6
        )
        stage = {"app": "counter", "stage": "stream", "stream": "clicks"}
        assert await node.value("s4_stage_admitted_events_total", **stage) == 6
        assert await node.value("s4_partitions", app="counter") == 3
        assert await node.value("s4_gain_seconds_count", app="counter") == 1
        await until_told(lambda: node.value("s4_app_metric", name="clicks seen"), lambda n: n == 6)
        assert await node.value("s4_app_metric", name="answer") == 42
        assert await node.value("s4_app_metric", name="no number") is None
        resident = await node.value("s4_process_resident_bytes", app="counter")
        assert resident is not None
        assert resident > 1_000_000
        status, text = await node.get("/status")
        assert status == 200
        (cluster,) = json.loads(text)
        (app,) = cluster["apps"]
        assert (app["name"], app["state"], len(app["owners"])) == ("counter", "running", 3)
        (told,) = json.loads(
            (
                await run_s4(
                    *("status", "--json", "--cluster", "shop", "--folder", tmp_path / "s4"),
                    cwd=tmp_path,
                )
            ).stdout
        )
        assert told.keys() == cluster.keys()
        assert told["apps"] == cluster["apps"]


async def test_a_node_whose_app_does_not_run_says_so(tmp_path: Path) -> None:
    async with monitored(tmp_path) as node:
        await node.deploy()
        await until_told(lambda: node.get("/readyz"), lambda told: told[0] == 200)
        _, text = await node.get("/status")
        (container,) = json.loads(text)[0]["nodes"][0]["containers"]
        os.kill(container["pid"], signal.SIGKILL)
        _, text = await until_told(lambda: node.get("/readyz"), lambda told: told[0] == 503)
        assert "app 'counter' is starting" in text
        assert (await node.get("/livez"))[0] == 200
        assert await until_told(lambda: node.get("/readyz"), lambda told: told[0] == 200)
        assert (await node.value("s4_container_starts_total", app="counter")) == 2


async def test_a_process_that_runs_one_app_serves_no_monitoring(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(COUNTER)
    done = await run_s4("run", "app.py", "-ps4.http.address=tcp://127.0.0.1:0", cwd=tmp_path)
    assert done.returncode == 2
    assert (
        "s4.http.address = tcp://127.0.0.1:0 is for nodes that apps are deployed to" in done.stderr
    )
