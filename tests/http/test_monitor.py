"""The answers of a node over HTTP: a real node, and real containers."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from harness import node_process, run_s4, until, until_told
from monitored import COUNTER, Click, Monitored, get, monitored, told

from s4node import Client

pytestmark = pytest.mark.slow


async def test_a_node_is_ready_once_its_apps_run_and_counts_what_they_do(tmp_path: Path) -> None:
    async with monitored(tmp_path) as node:
        assert await node.get("/livez") == (200, "alive\n")
        assert await node.get("/readyz") == (200, "ready\n")
        assert (await node.deploy("--partitions", "3"))[0] == 0
        await node.ready()
        async with Client(node.process.address) as client:
            clicks = await client.stream("clicks")
            for user in ("ann", "bob", "joe", "kim", "lee", "eve"):
                await clicks.send(Click(user))
            assert await clicks.flush() == []
        await until_told(
            lambda: node.value("s4_task_processed_total", app="counter"), lambda n: n == 6
        )
        stage = {"app": "counter", "stage": "stream", "stream": "clicks"}
        assert await node.value("s4_stage_admitted_total", **stage) == 6
        assert await node.value("s4_partitions", app="counter") == 3
        assert await node.value("s4_gains_total", app="counter") == 1
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


@pytest.mark.parametrize("nodes", [(), ("--nodes", "2")])
async def test_what_an_author_counts_is_shown_without_a_configured_address(
    tmp_path: Path, nodes: tuple[str, ...]
) -> None:
    (tmp_path / "app.py").write_text(COUNTER)
    async with node_process("app.py", *nodes, cwd=tmp_path) as process:
        await until(lambda: process.url)
        node = Monitored(process, process.url, tmp_path, "")
        await until_told(lambda: node.value("s4_app_metric", name="answer"), lambda n: n == 42)


@pytest.mark.long
async def test_a_node_whose_app_does_not_run_says_so(tmp_path: Path) -> None:
    async with monitored(tmp_path) as node:
        assert (await node.deploy())[0] == 0
        await node.ready()
        _, text = await node.get("/status")
        (container,) = json.loads(text)[0]["nodes"][0]["containers"]
        os.kill(container["pid"], signal.SIGKILL)
        _, text = await until_told(lambda: node.get("/readyz"), lambda told: told[0] == 503)
        assert "app 'counter' is starting" in text
        assert (await node.get("/livez"))[0] == 200
        assert await until_told(lambda: node.get("/readyz"), lambda told: told[0] == 200)
        assert (await node.value("s4_container_starts_total", app="counter")) == 2


async def test_a_process_that_runs_one_app_serves_this_machine(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(COUNTER)
    async with node_process("app.py", cwd=tmp_path) as process:
        await until(lambda: process.url)
        url = process.url
        assert url.startswith("http://127.0.0.1:12")
        assert (await get(f"{url}/readyz"))[0] == 200
        ((app,),) = [each["apps"] for each in json.loads((await get(f"{url}/status"))[1])]
        assert app["name"] == "counter"
        (why,) = json.loads((await get(f"{url}/why"))[1])
        assert (why["app"], why["reasons"]) == ("counter", [])
        assert "s4_container_running" in (await get(f"{url}/metrics"))[1]
        assert "<html" in (await get(url))[1]


BLOCKING = """\
import time
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
class Sleep(ProcessingElement):
    def on_event(self, click: Click):
        time.sleep(600)
class Sleeper(App):
    def on_init(self):
        self.create_input_stream("clicks", self.create_pe(Sleep), key="user")
app = Sleeper("sleeper")
"""


async def test_a_handler_that_blocks_its_process_does_not_hide_it(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(BLOCKING)
    async with node_process("app.py", cwd=tmp_path) as process:
        await until(lambda: process.url)
        url = process.url
        async with Client(process.address) as client:
            await (await client.stream("clicks")).send(Click("joe"))

            async def problem() -> str:
                (cluster,) = json.loads((await get(f"{url}/status"))[1])
                (node,) = cluster["nodes"]
                return str(node["problem"])

            assert "did not answer within" in await until_told(problem, bool)
            client.abandon()
        await process.kill()


async def test_a_node_that_is_gone_is_shown_as_such(tmp_path: Path) -> None:
    async with monitored(tmp_path) as one, monitored(tmp_path, "two") as two:

        async def problems() -> dict[str, str]:
            status, text = await one.get("/status")
            assert status == 200
            return {node["name"]: node["problem"] for node in json.loads(text)[0]["nodes"]}

        assert await until_told(problems, lambda found: len(found) == 2) == {"one": "", "two": ""}
        await two.process.kill()
        found = await until_told(problems, lambda found: found["two"])
        assert found["one"] == ""
        assert found["two"].startswith("is away since ")


async def test_nodes_of_one_command_are_seen_and_asked_at_one_address(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(COUNTER)
    async with node_process("app.py", "--nodes=2", cwd=tmp_path) as process:
        await until(lambda: process.url)
        (cluster,) = (await told(f"{process.url}/status")).json
        assert [node["name"] for node in cluster["nodes"]] == ["node-1", "node-2"]
        answer = await told(f"{process.url}/streams/clicks", [{"user": "joe"}, {"user": "ann"}])
        assert answer.status == 202
        process.signal(signal.SIGINT)
        assert await process.wait() == 0
