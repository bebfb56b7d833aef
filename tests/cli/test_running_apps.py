"""Commands find the running apps of their user, wherever those listen and keep their state."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import ANY_PORT, NodeProcess, run_s4, s4_process, until, until_told

from s4node.cli.running_apps import Nodes
from s4node.config.config import Config

pytestmark = pytest.mark.long


async def test_status_and_top_find_an_app_that_runs_by_itself(folder: Path) -> None:
    async with clicks(folder, "--partitions", "3") as process:
        await send(folder, "joe", "ann")
        (cluster,) = await told(folder, "status")
        (node,), (app,) = cluster["nodes"], cluster["apps"]
        assert (node["pid"], node["address"], node["problem"]) == (process.pid, process.address, "")
        assert (app["name"], app["state"], app["partitions"]) == ("clicks", "running", 3)
        assert app["owners"] == [node["name"]] * 3
        assert [
            (row["stage"], row["admitted"])
            for row in cluster["stages"]
            if row["stream"] == "clicks"
        ] == [("deserializer", 2), ("stream", 2)]
        shown = await run_s4("status", cwd=folder)
        assert shown.stdout.startswith(f"cluster default, process {process.pid}\n")
        top = await run_s4("top", "--count", "2", "--interval", "0.1", cwd=folder)
        assert "0/s" in top.stdout
        assert f"clicks           running  {node['name']}: 0-2" in shown.stdout


SLOW = """\
import time
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
class Slow(ProcessingElement):
    def on_event(self, click: Click):
        time.sleep(0.01)
app = App("slow")
app.create_input_stream("clicks", app.create_pe(Slow), key="user")
"""


async def test_why_names_the_slow_pe_and_says_so_if_nothing_holds_an_app_up(folder: Path) -> None:
    (folder / "slow.py").write_text(SLOW)
    async with s4_process("run", "slow.py", "--listen", ANY_PORT, cwd=folder):
        idle = await run_s4("why", "--seconds", "0.2", cwd=folder)
        works = "its busiest container works 0% of the time"
        assert idle.stdout == f"slow: nothing holds it up; {works}\n"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, folder, *(f"user-{n}" for n in range(1000)))
            found: dict[str, str] = {}
            while "slow-pe" not in found:
                (now,) = await told(folder, "why", "slow", "--seconds", "1")
                found = {each["rule"]: each["text"] for each in now["reasons"]}
            nursery.cancel_scope.cancel()
        takes = "PE 'Slow' takes 100% of the time of all PEs: a call of on_event takes 1"
        assert found["slow-pe"].startswith(takes)
        shown = await run_s4("status", cwd=folder)
        assert "slow  Slow  on_event  " in shown.stdout
        none = await run_s4("why", "shop", "--seconds", "0.1", cwd=folder)
        assert (none.returncode, none.stderr) == (
            1,
            "no app 'shop' is running; s4 status lists those that are\n",
        )


async def test_all_that_runs_of_a_user_is_found_and_a_cluster_or_a_folder_picks_of_it(
    folder: Path,
) -> None:
    shop = ("-p", "s4.cluster.name=shop")
    port = ("-p", f"s4.listener.address={ANY_PORT}")
    async with (
        clicks(folder),
        clicks(folder, *shop, "--nodes", "2"),
        s4_process("node", "east", "--folder", "nodes", *port, cwd=folder),
        s4_process("node", "alone", "--app", "clicks.py", *port, cwd=folder),
    ):
        found = await told(folder, "status")
        assert sorted((each["cluster"], len(each["nodes"])) for each in found) == [
            ("alone", 1),
            ("default", 1),
            ("east", 1),
            ("shop", 2),
        ]
        apps = [(app["name"], each["cluster"]) for each in found for app in each["apps"]]
        assert apps == [("clicks", "shop"), ("clicks", "alone"), ("clicks", "default")]
        (one,) = await told(folder, "status", "--cluster", "alone")
        assert one["cluster"] == "alone"
        (one,) = await told(folder, "status", "-p", "s4.cluster.name=shop")
        assert one["apps"][0]["members"] == ["node-1", "node-2"]
        (one,) = await told(folder, "status", "--folder", "nodes")
        assert (one["cluster"], one["folder"]) == ("east", str(folder / "nodes"))
        none = await run_s4("status", "--cluster", "west", cwd=folder)
        assert none.returncode == 1
        assert none.stderr == (
            "no node of cluster 'west' is running; nodes of alone, default, east, shop are: name "
            "it with --cluster; or start one with: s4 node west\n"
        )


async def test_a_killed_app_is_not_found_and_the_next_one_removes_its_entry(folder: Path) -> None:
    async with clicks(folder) as process:
        await process.kill()
        left = [*(folder / "runtime" / "s4node").iterdir()]
        assert len(left) == 1
        for command in ("status", "top"):
            none = await run_s4(command, cwd=folder)
            assert none.returncode == 1
            assert none.stderr == (
                "nothing of yours is running here; start an app with: s4 run APP, or a node with: "
                "s4 node CLUSTER\n"
            )
    async with clicks(folder) as process:
        (cluster,) = await told(folder, "status")
        assert cluster["nodes"][0]["pid"] == process.pid
        assert not left[0].exists()
        process.signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert [*(folder / "runtime" / "s4node").iterdir()] == []


async def test_an_app_that_does_not_answer_is_shown_as_such(folder: Path) -> None:
    async with clicks(folder) as process:
        process.signal(signal.SIGSTOP)
        done = await run_s4("status", cwd=folder)
        process.signal(signal.SIGCONT)
        assert "did not answer within 2 s; it may be stopped" in done.stdout


async def test_a_folder_that_others_can_enter_is_not_trusted_and_the_app_runs_without(
    folder: Path,
) -> None:
    entries = folder / "runtime" / "s4node"
    entries.mkdir()
    entries.chmod(0o755)
    async with clicks(folder) as process:
        (line,) = [json.loads(line) for line in process.stderr if "do not find" in line]
        assert f"{entries} is not private to user" in line["reason"]
        done = await run_s4("status", cwd=folder)
        assert done.returncode == 2
        assert "is not trusted; remove it, or set XDG_RUNTIME_DIR" in done.stderr


@pytest.mark.parametrize("nodes", [(), ("--nodes", "2")])
async def test_a_command_about_a_running_app_looks_where_that_keeps_its_state(
    folder: Path, nodes: tuple[str, ...]
) -> None:
    async with clicks(folder, *nodes, keeps=True):
        await send(folder, "joe", "ann", "joe")

        async def counts() -> dict[str, int]:
            done = await run_s4("state", "scan", "clicks", "--json", cwd=folder)
            rows = [json.loads(line) for line in done.stdout.splitlines()]
            return {row["key"]: row["value"]["count"] for row in rows}

        await until_told(counts, lambda found: found == {"joe": 2, "ann": 1})
        listed = await run_s4("state", "tasks", "clicks", cwd=folder)
        assert listed.stdout.startswith("Partition 0: ")
        given = ("-p", "s4.state.folder=another")
        other = await run_s4("state", "scan", "clicks", *given, cwd=folder)
        assert "no app 'clicks' of cluster 'default' has state in" in other.stderr


async def test_a_running_app_without_state_is_reported_as_such(folder: Path) -> None:
    async with clicks(folder):
        done = await run_s4("state", "scan", "clicks", cwd=folder)
    assert done.returncode == 2
    assert done.stderr == (
        "s4: app 'clicks' of cluster 'default' runs without state, because its inputs are live "
        "streams of the grade fast; s4.stream.NAME.grade = durable gives it state\n"
    )


async def test_settings_of_another_version_concern_only_commands_about_their_app(
    folder: Path,
) -> None:
    async with clicks(folder, keeps=True):
        (entry,) = (folder / "runtime").rglob("running.json")
        await until(lambda: json.loads(entry.read_text())["address"])  # written for the last time
        told = json.loads(entry.read_text())
        told["settings"]["s4.stream.clicks.executor"] = "drop-oldest"
        entry.write_text(json.dumps(told))
        done = await run_s4("startpoint", "show", "other.py", cwd=folder)
        assert done.stderr.startswith("s4: no file other.py")
        done = await run_s4("startpoint", "show", "clicks", cwd=folder)
        assert done.returncode == 2
        assert str(entry) in done.stderr
        assert "drop-oldest" in done.stderr
        done = await run_s4("state", "scan", "clicks", "--folder", "nodes", cwd=folder)
        assert "no app 'clicks' of cluster 'default' has state in" in done.stderr


async def test_with_another_home_nothing_of_the_user_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with clicks(folder):
        monkeypatch.setenv("HOME", str(folder / "home"))
        assert (await run_s4("status", cwd=folder)).returncode == 1
        async with clicks(folder, "-p", "s4.cluster.name=mine"):
            (one,) = await told(folder, "status")
    assert one["cluster"] == "mine"


async def test_two_running_apps_of_one_name_are_told_apart_by_their_cluster(folder: Path) -> None:
    shop = ("-p", "s4.cluster.name=shop")
    async with clicks(folder, keeps=True), clicks(folder, *shop, keeps=True):
        done = await run_s4("state", "scan", "clicks", cwd=folder)
        assert done.returncode == 2
        assert "you run several apps 'clicks': cluster default, folder" in done.stderr
        assert "Choose one with --cluster" in done.stderr
        one = await run_s4("state", "scan", "clicks", "--cluster", "shop", cwd=folder)
        assert (one.returncode, one.stderr) == (0, "")


@pytest.mark.parametrize("nodes", [(), ("--nodes", "2")])
async def test_send_and_tail_without_an_address_go_to_the_app_that_has_the_stream(
    folder: Path, nodes: tuple[str, ...]
) -> None:
    async with (
        clicks(folder, *nodes),
        s4_process("tail", "totals", "--count", "1", cwd=folder, ready=False) as tail,
    ):
        with trio.fail_after(30):
            while not tail.stdout:  # it reads from when it has connected
                await send(folder, "joe")
        assert json.loads(tail.stdout[0])["user"] == "joe"


async def test_an_app_that_is_starting_is_waited_for_though_another_has_the_default_address(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = ("-p", f"s4.listener.address={ANY_PORT}")
    async with s4_process("node", "logs", "-p", "s4.log.folder=log", *port, cwd=folder) as log:
        monkeypatch.setattr("s4node.cli.running_apps.DEFAULT_ADDRESS", log.address)
        monkeypatch.setattr("s4node.cli.running_apps.START_SECONDS", 60.0)
        reached = []

        async def reach() -> None:
            nodes = Nodes(None, Config())
            reached.append(await trio.to_thread.run_sync(nodes.to_send, "clicks"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reach)
            async with clicks(folder) as app:
                await until(lambda: reached)
        assert reached[0].addresses == [app.address]


async def test_where_several_apps_have_a_stream_they_are_named(folder: Path) -> None:
    async with clicks(folder) as one, clicks(folder) as two:
        done = await run_s4("send", "clicks", cwd=folder)
        assert done.returncode == 2
        assert "several of your processes take a stream 'clicks': " in done.stderr
        for process in (one, two):
            assert f"clicks at {process.address}" in done.stderr
        assert "Choose one with --to" in done.stderr


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("send clicks", "take a stream 'clicks'"),
        ("tail totals", "have a stream 'totals'"),
        ("log describe", "have a log"),
    ],
)
async def test_a_cluster_that_is_not_found_here_is_not_looked_for_at_the_default_address(
    folder: Path, command: str, what: str
) -> None:
    async with clicks(folder):  # of another cluster
        done = await run_s4(*command.split(), "--cluster", "east", cwd=folder)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"s4: none of your processes of cluster 'east' {what}. Name the nodes' folder with "
        f"--folder, their ZooKeeper with --coordination, or an address with --to"
    )


async def test_the_log_of_a_running_app_is_found(folder: Path) -> None:
    async with clicks(folder, "-p", "s4.log.folder=log"):
        made = await run_s4("log", "create", "words", cwd=folder)
        assert made.returncode == 0
        shown = await run_s4("log", "describe", "words", "--json", cwd=folder)
        assert json.loads(shown.stdout)


async def test_the_log_of_a_cluster_is_found_where_its_nodes_find_each_other(folder: Path) -> None:
    def node(name: str, *given: str) -> AbstractAsyncContextManager[NodeProcess]:
        at = ("--folder", "nodes", "-p", f"s4.listener.address={ANY_PORT}")
        return s4_process("node", "east", "--name", name, *at, *given, cwd=folder)

    async def asked(*command: str, ok: bool) -> str:
        there = ("--cluster", "east", "--folder", "nodes")
        done = await run_s4(*command, *there, cwd=folder, stdin=b'{"user": "joe"}\n')
        assert (done.returncode == 0) == ok, done.stderr
        return done.stdout if ok else done.stderr

    async with node("one"):
        said = await asked("log", "describe", ok=False)
        assert said == (
            "s4: no node of cluster 'east' has a log: it has one. Start one with the setting "
            "s4.log.folder, or give the log's address with --to\n"
        )
        async with node("two", "-p", "s4.log.folder=log") as two:
            await asked("log", "create", "words", ok=True)
            await asked("log", "append", "words", ok=True)
            tailed = await asked("log", "tail", "words", "--from=oldest", "--count=1", ok=True)
            assert json.loads(tailed) == {"user": "joe"}
            assert await asked("log", "sinks", ok=True) == ""
            async with node("three", "-p", "s4.log.folder=another") as three:
                said = await asked("log", "sinks", ok=False)
                assert said == (
                    f"s4: several nodes of cluster 'east' have a log: three at {three.address}; "
                    f"two at {two.address}. Choose one with --to\n"
                )
    said = await asked("log", "describe", ok=False)
    assert said.splitlines()[-1].startswith(
        f"s4: no node of cluster 'east' is running in {folder / 'nodes'}; start one"
    )


CONFIGURED = [
    *("run", "node", "deploy", "undeploy", "status", "top", "why", "graph"),
    *("startpoint set", "startpoint show", "startpoint delete"),
    *("state get", "state scan", "state tasks", "state reset", "savepoint take"),
    *("dead-letter list", "dead-letter show", "dead-letter replay", "dead-letter skip"),
    *("config show", "config check"),
]


@pytest.mark.parametrize("command", CONFIGURED)
async def test_each_command_that_reads_a_configuration_has_the_same_options_for_it(
    tmp_path: Path, command: str
) -> None:
    done = await run_s4(*command.split(), "--help", cwd=tmp_path)
    words = " ".join(done.stdout.split())
    assert "--config FILE" in words
    assert "-p KEY=VALUE" in words
    assert "may be repeated, later ones win" in words


# -- set-up ---------------------------------------------------------------------------------------


CLICKS = """
from s4node import App, Event, ProcessingElement

class Click(Event):
    user: str

class Total(Event):
    user: str
    count: int

class Count(ProcessingElement):
    count: int = 0
    def on_event(self, click: Click):
        self.count += 1
        self.app.streams["totals"].put(Total(click.user, self.count))

app = App("clicks")
app.create_output_stream("totals", key="user", types=Total)
app.create_input_stream("clicks", app.create_pe(Count), key="user")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "clicks.py").write_text(CLICKS)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@asynccontextmanager
async def clicks(folder: Path, *options: str, keeps: bool = False) -> AsyncIterator[NodeProcess]:
    """The app in a process, which keeps its state where no command would look for it."""
    durable = ("-p", "s4.stream.clicks.grade=durable", "-p", "s4.state.folder=elsewhere")
    given = (*(durable if keeps else ()), *options)
    async with s4_process("run", "clicks.py", "--listen", ANY_PORT, *given, cwd=folder) as process:
        yield process


async def told(folder: Path, *command: str) -> list[dict[str, Any]]:
    done = await run_s4(*command, "--json", cwd=folder)
    assert done.stderr == ""
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


async def send(folder: Path, *users: str) -> None:
    lines = "".join(f'{{"user": "{user}"}}\n' for user in users)
    done = await run_s4("send", "clicks", cwd=folder, stdin=lines.encode())
    assert done.stderr == f"clicks: {len(users)} admitted\n"
