"""``s4 run APP --nodes N``: nodes in one process, and an app that is deployed to them."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from harness import ANY_PORT, NodeProcess, free_port, run_s4, s4_process, until
from log_nodes import log_at, log_node, read_all
from shared_apps import COUNTER, Click

from s4node import Client, GenericEvent, Oldest
from s4node.events.keys import Partitioner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.slow, pytest.mark.long]


async def test_partitions_are_shared_by_several_processes_behind_one_address(
    tmp_path: Path,
) -> None:
    async with launched(tmp_path, "--nodes", "3", "--partitions", "6") as process:
        await until(lambda: sum(" at tcp://" in line for line in process.stderr) == 4)
        await click_all(process.address)
        await until(lambda: len(process.stdout) == len(USERS))
        assert len(counts(process)) == 3
        pids = list(counts(process))
        process.signal(signal.SIGINT)
        assert await process.wait() == 0
        for pid in pids:
            await gone(pid)


async def test_the_setting_says_how_many_containers_share_them_and_the_option_wins_over_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "three.properties").write_text("job.container.count = 3\n")
    async with launched(tmp_path, "--config", "three.properties", "--partitions", "6") as process:
        await until(lambda: sum(" at tcp://" in line for line in process.stderr) == 4)
        await click_all(process.address)
        await until(lambda: len(process.stdout) == len(USERS))
        assert len(counts(process)) == 3
    async with launched(tmp_path, "--config", "three.properties", "--nodes", "2") as process:
        await until(lambda: sum(" at tcp://" in line for line in process.stderr) == 3)


@pytest.mark.parametrize(
    ("partitions", "tasks"), [((), "1 task"), (("--partitions", "2"), "2 tasks")]
)
async def test_containers_with_nothing_to_do_are_refused(
    tmp_path: Path, partitions: tuple[str, ...], tasks: str
) -> None:
    (tmp_path / "counter.py").write_text(COUNTER)
    three = ("-p", "job.container.count=3", *partitions)
    done = await run_s4("run", "counter.py", *three, "--listen", ANY_PORT, cwd=tmp_path)
    assert done.returncode == 2
    assert f"job.container.count = 3, but the app has {tasks}, and some containers would" in (
        done.stderr
    )


async def test_more_nodes_than_partitions_leave_spares_of_which_one_takes_over(
    tmp_path: Path,
) -> None:
    async with launched(tmp_path, "--nodes", "3", "--partitions", "2") as process:
        await click_all(process.address)
        await until(lambda: len(process.stdout) == len(USERS))
        owners = counts(process)
        assert len(owners) == 2
        began = processes_in(tmp_path)
        os.kill(next(iter(owners)), signal.SIGKILL)
        await click_all(process.address)
        await until(lambda: len(process.stdout) == 2 * len(USERS))
        (spare,) = counts(process).keys() - owners
        assert str(spare) in began


async def test_a_container_that_stops_with_events_that_nobody_took_fails_the_command(
    tmp_path: Path,
) -> None:
    (tmp_path / "relay.py").write_text(
        "from s4node import App, Event, ProcessingElement\n"
        "class Click(Event):\n    user: str\n"
        "class Pass(ProcessingElement):\n"
        "    def on_event(self, click: Click): out.put(click)\n"
        "app = App('relay')\n"
        "app.create_input_stream('clicks', app.create_pe(Pass), key='user')\n"
        "out = app.create_output_stream('totals', types=Click)\n"
    )
    away = (
        "-p",
        "s4.stream.totals.consumers=away",
        "-p",
        "task.shutdown.ms=100",
        "-p",
        f"s4.cluster.away.address=tcp://127.0.0.1:{free_port()}",
    )
    command = ("run", "relay.py", "--listen", ANY_PORT, "--nodes", "1", *away)
    async with s4_process(*command, cwd=tmp_path) as process:
        await click_all(process.address)
        process.signal(signal.SIGINT)
        assert await process.wait() == 1
    assert process.stderr[-1].startswith(
        f"s4: node-1: app 'relay' stopped with {len(USERS)} events of stream 'totals' "
    )


@pytest.mark.parametrize("partition", [0, 1])
async def test_at_a_stop_the_log_takes_what_the_last_container_sends(
    tmp_path: Path, partition: int
) -> None:
    (tmp_path / "relay.py").write_text(
        "import trio\n"
        "from s4node import App, Event, ProcessingElement\n"
        "class Click(Event):\n    user: str\n"
        "class Pass(ProcessingElement):\n"
        "    async def on_event(self, click: Click):\n"
        "        print('begins', flush=True)\n"
        "        await trio.sleep(0.5)\n"
        "        out.put(click)\n"
        "app = App('relay')\n"
        "app.create_input_stream('clicks', app.create_pe(Pass), key='user')\n"
        "out = app.create_output_stream('totals', types=Click)\n"
    )
    async with log_node(tmp_path) as node, log_at(node.address) as made:
        await made.create("totals", 1)
    address = f"tcp://127.0.0.1:{free_port()}"
    log = ("-p", f"s4.log.folder={tmp_path / 'log'}")
    to_log = ("-p", "s4.stream.totals.consumers=log", "-p", f"s4.cluster.log.address={address}")
    command = ("run", "relay.py", "--listen", address, "--nodes", "2", *log, *to_log)
    async with s4_process(*command, cwd=tmp_path) as process:
        user = next(user for user in USERS if Partitioner(2).partition_of(user) == partition)
        async with Client(address) as client:
            clicks = await client.stream("clicks")
            await clicks.send(Click(user))
            await until(lambda: process.stdout == ["begins"])
            process.signal(signal.SIGINT)
            assert await process.wait() == 0, process.errors
    async with log_node(tmp_path) as node:
        found = await read_all(node.address, "totals", 1, types=Click, start=Oldest())
    assert found == [Click(user)]


async def test_a_client_that_comes_before_the_app_runs_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    address = f"tcp://127.0.0.1:{free_port()}"
    command = ("run", "waits.py", "--listen", address, "--nodes", "2")
    async with (
        s4_process(*command, cwd=tmp_path, ready=False) as process,
        Client(address) as client,
    ):
        await until(lambda: process.stdout == ["begins"] * 2)
        with trio.move_on_after(0.3):  # it is told at once that there is no such stream
            await client.stream("clicks")
        await trio.Path(tmp_path, "go").touch()
        clicks = await client.stream("clicks")
        await clicks.send(GenericEvent(user="joe"))
        assert await clicks.flush() == []


DONE = """\
import os
from s4node.app.stream_task import TaskApp
class Alarm:
    def init(self, config, context):
        print(os.getpid(), "begins")
        context.schedule(0.3, lambda collector, coordinator: coordinator.shutdown(all_tasks=True))
    def process(self, envelope, collector, coordinator):
        pass
app = TaskApp("alarms", Alarm, inputs=["live.clicks"])
"""


async def test_containers_whose_tasks_are_done_are_not_started_again_and_the_command_ends(
    tmp_path: Path,
) -> None:
    (tmp_path / "alarms.py").write_text(DONE)
    quick = ("-p", "s4.container.restartDelay=50")
    done = await run_s4(
        "run", "alarms.py", "--listen", ANY_PORT, *quick, "--nodes", "2", cwd=tmp_path
    )
    assert done.returncode == 0
    assert len({line for line in done.stdout.splitlines() if line.endswith("begins")}) == 2
    assert done.stderr.count("a container is done") == 2
    assert "a container ended" not in done.stderr


async def test_commands_of_a_cluster_see_its_nodes_and_it_ends_when_the_app_is_undeployed(
    tmp_path: Path,
) -> None:
    async with launched(tmp_path, "--nodes", "3", "--partitions", "2") as process:
        await until(lambda: any("see it:" in line for line in process.stderr))
        folder = process.stderr[-1].removeprefix("  see it:  s4 top --folder ")
        status = await run_s4("status", "--json", "--folder", folder, cwd=tmp_path)
        (snapshot,) = json.loads(status.stdout)
        assert [node["name"] for node in snapshot["nodes"]] == ["node-1", "node-2", "node-3"]
        assert all(len(node["containers"]) == 1 for node in snapshot["nodes"])
        (app,) = snapshot["apps"]
        assert (app["name"], app["state"], len(set(app["owners"]))) == ("counter", "running", 2)
        assert sorted(app["containers"]) == ["node-1", "node-2", "node-3"]
        for node in snapshot["nodes"]:
            await click_all(node["address"])
        gone = await run_s4("undeploy", "counter", "--folder", folder, cwd=tmp_path)
        assert gone.returncode == 0, gone.stderr
        assert await process.wait() == 0


async def test_it_goes_on_while_no_container_runs_as_the_app_is_to_run_again(
    tmp_path: Path,
) -> None:
    durable = ("-p", "s4.stream.clicks.grade=durable", "-p", f"s4.state.folder={tmp_path}/state")
    async with launched(tmp_path, "--nodes", "2", *durable) as process:
        await until(lambda: any("see it:" in line for line in process.stderr))
        folder = process.stderr[-1].removeprefix("  see it:  s4 top --folder ")
        await click_all(process.address)
        broken = COUNTER.replace('App("counter")', "Broken('counter')").replace(
            "app =", "class Broken(App):\n    def on_start(self): 1 / 0\napp ="
        )
        (tmp_path / "broken.py").write_text(broken)
        refused = await run_s4("deploy", "broken.py", *durable, "--folder", folder, cwd=tmp_path)
        assert "ZeroDivisionError" in refused.stderr
        assert "is restored" in refused.stderr
        grown = await run_s4("repartition", "counter", "4", "--folder", folder, cwd=tmp_path)
        assert grown.returncode == 0, grown.stderr
        await click_all(process.address)
        await until(lambda: sum(line.endswith(" 2") for line in process.stdout) == len(USERS))


async def test_the_addresses_can_be_had_as_json(tmp_path: Path) -> None:
    (tmp_path / "counter.py").write_text(COUNTER)
    command = ("run", "counter.py", "--listen", ANY_PORT, "--nodes", "2", "--json")
    async with s4_process(*command, cwd=tmp_path, ready=False) as process:
        await until(lambda: process.stdout)
        told = json.loads(process.stdout[0])
        assert (told["app"], sorted(told["nodes"])) == ("counter", ["node-1", "node-2"])
        await click_all(told["address"])


async def test_an_app_that_cannot_run_ends_the_command_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(COUNTER + "1 / 0\n")
    done = await run_s4("run", "broken.py", "--nodes", "2", "--listen", ANY_PORT, cwd=tmp_path)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[-1].startswith("s4: broken.py cannot be loaded: ZeroDivisionError")
    assert sum("ZeroDivisionError: division by zero" in line for line in lines) == 2


async def test_a_container_that_is_killed_at_its_start_is_named(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, time\nfrom s4node import App\nclass Slow(App):\n    def on_init(self):\n"
        "        print(os.getpid(), flush=True)\n        time.sleep(60)\napp = Slow('slow')\n"
    )
    command = ("run", "slow.py", "--listen", ANY_PORT, "--nodes", "2")
    async with s4_process(*command, cwd=tmp_path, ready=False) as process:
        await until(lambda: len(process.stdout) == 2)
        for pid in process.stdout:
            os.kill(int(pid), signal.SIGKILL)
        assert await process.wait() == 1
        assert re.fullmatch(r"s4: node 'node-[12]': it was ended by SIGKILL", process.stderr[-1])


async def test_a_container_is_asked_for_no_pulse_while_its_app_starts(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW_START)
    short = ("-p", "s4.container.pulseTimeout=1000")
    command = ("run", "slow.py", "--listen", ANY_PORT, "--nodes", "1", *short)
    async with s4_process(*command, cwd=tmp_path) as process:
        assert process.stdout == ["it starts"]
        assert not any("no sign of life" in line for line in process.stderr)


async def test_containers_are_logged_with_the_name_of_their_app(tmp_path: Path) -> None:
    async with launched(tmp_path, "--nodes", "2") as process:
        await click_all(process.address)
        await until(lambda: len(counts(process)) == 2)
        pid, _ = counts(process)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: "a container ended" in process.errors)
        lines = [json.loads(line) for line in process.stderr if line.startswith("{")]
        assert {line["app"] for line in lines if "app" in line} == {"counter"}
        assert "a container ended" in [line["event"] for line in lines if "app" in line]


@pytest.mark.parametrize("seconds", [0.0, 0.3, 0.6, 1.0])
async def test_ctrl_c_at_any_moment_of_the_start_leaves_no_process(
    tmp_path: Path, seconds: float
) -> None:
    (tmp_path / "counter.py").write_text(COUNTER)
    command = ("run", "counter.py", "--listen", ANY_PORT, "--nodes", "2")
    async with s4_process(*command, cwd=tmp_path, ready=False) as process:
        await trio.sleep(seconds)
        process.signal(signal.SIGINT)
        status = await process.wait()
        interrupted = {130, -signal.SIGINT}  # which to a shell is 130: Python was only starting
        if "s4node" not in process.errors and "KeyboardInterrupt" in process.errors:
            interrupted.add(1)  # of Python amid its own start, before any code of ours
        assert status == 0 if process.readiness else status in interrupted
        assert " at \n" not in process.errors + "\n"
        assert "it was stopped" not in process.errors
        await until(lambda: not processes_in(tmp_path), "all are gone")


async def test_ctrl_c_before_the_app_is_ready_says_that_it_never_ran(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import trio\nfrom s4node import App\nclass Slow(App):\n    async def on_init(self):\n"
        "        print('begins', flush=True)\n        await trio.sleep(60)\napp = Slow('slow')\n"
    )
    command = ("run", "slow.py", "--listen", ANY_PORT, "--nodes", "2")
    async with s4_process(*command, cwd=tmp_path, ready=False) as process:
        await until(lambda: process.stdout == ["begins"] * 2)
        process.signal(signal.SIGINT)
        assert await process.wait() == 130
        assert process.stderr[-1] == "s4: stopped before it ran"


PRINTS = """\
import trio
from s4node import App
class Prints(App):
    async def on_start(self):
        for number in range(3000):
            print("line", number)
            await trio.sleep(0.0002)
app = Prints("prints")
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("nodes", [1, 2])
async def test_what_apps_print_comes_at_once_and_in_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbuffered: str, nodes: int
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    (tmp_path / "prints.py").write_text(PRINTS)
    command = ("run", "prints.py", "--listen", ANY_PORT, "--nodes", str(nodes))
    async with s4_process(*command, cwd=tmp_path) as process:
        await until(lambda: len(process.stdout) >= 3000 * nodes)
        assert Counter(process.stdout) == {f"line {number}": nodes for number in range(3000)}


NEVER_CLOSES = """\
import trio
from s4node import App, ProcessingElement
class Ignore(ProcessingElement):
    def on_event(self, event): pass
class Never(App):
    def on_init(self):
        self.create_input_stream("clicks", self.create_pe(Ignore), key="name")
    async def on_close(self):
        print("closing", flush=True)
        await trio.sleep(3600)
"""


async def test_a_second_ctrl_c_ends_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "never.py").write_text(NEVER_CLOSES)
    command = ("run", "never.py", "--listen", ANY_PORT, "--nodes", "2")
    async with s4_process(*command, cwd=tmp_path) as process:
        process.signal(signal.SIGINT)
        await until(lambda: "closing" in process.stdout)
        process.signal(signal.SIGINT)
        assert await process.wait() == 130
        assert processes_in(tmp_path) == []


def processes_in(folder: Path) -> list[str]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (place / "cwd").readlink() == folder:
                found.append(place.name)
    return found


# -- set-up ---------------------------------------------------------------------------------------


async def test_a_killed_app_starts_again_in_its_place_while_a_process_that_it_forked_lives(
    tmp_path: Path,
) -> None:
    (tmp_path / "forking.py").write_text(FORKING)
    settings = {
        "s4.log.folder": "log",
        "s4.state.folder": "state",
        "s4.stream.clicks.grade": "durable",
    }
    options = [text for key, value in settings.items() for text in ("-p", f"{key}={value}")]
    command = ("run", "forking.py", "--listen", f"tcp://127.0.0.1:{free_port()}", *options)
    async with s4_process(*command, cwd=tmp_path) as first:
        await click(first.address, "joe")
        await until(lambda: first.stdout)
        child = int(first.stdout[0].removeprefix("forked "))
    try:
        async with s4_process(*command, cwd=tmp_path) as second:
            await click(second.address, "joe")
            await until(lambda: second.stdout == ["joe 2"])
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


FORKING = """\
import os, time
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
class Count(ProcessingElement):
    clicks: int = 0
    def on_event(self, click: Click):
        self.clicks += 1
        if self.clicks > 1:
            print(self.key, self.clicks, flush=True)
        elif child := os.fork():
            print("forked", child, flush=True)
        else:
            time.sleep(3600)
app = App("forking")
app.create_input_stream("clicks", app.create_pe(Count), key="user")
"""

WAITS = """\
import os
import trio
from s4node import App, ProcessingElement
class Count(ProcessingElement):
    def on_event(self, event):
        pass
class Waits(App):
    async def on_init(self):
        print("begins", flush=True)
        while not os.path.exists("go"):
            await trio.sleep(0.01)
        self.create_input_stream("clicks", self.create_pe(Count), key="user")
app = Waits("waits")
"""

SLOW_START = """\
import time
from s4node import App, GenericEvent, ProcessingElement
class Count(ProcessingElement):
    def on_event(self, event: GenericEvent):
        pass
class Slow(App):
    def on_init(self):
        self.create_input_stream("clicks", self.create_pe(Count), key="user")
    def on_start(self):
        print("it starts")
        time.sleep(2)  # as where a large table is loaded
slow = Slow("slow")
"""

USERS = [f"u{n}" for n in range(40)]


@asynccontextmanager
async def launched(folder: Path, *arguments: str) -> AsyncIterator[NodeProcess]:
    (folder / "counter.py").write_text(COUNTER)
    quick = ("-p", "s4.container.restartDelay=50", "-p", "s4.container.pulseTimeout=2000")
    command = ("run", "counter.py", "--listen", ANY_PORT, *quick, *arguments)
    async with s4_process(*command, cwd=folder) as process:
        yield process


async def click_all(address: str) -> None:
    async with Client(address) as client:
        clicks = await client.stream("clicks")
        await clicks.send_many(map(Click, USERS))
        assert await clicks.flush() == []


async def click(address: str, user: str) -> None:
    async with Client(address) as client:
        clicks = await client.stream("clicks")
        await clicks.send(Click(user))
        assert await clicks.flush() == []


def counts(process: NodeProcess) -> dict[int, int]:
    """How many events each container has processed, by its pid."""
    found: dict[int, int] = {}
    for line in process.stdout:
        pid = int(line.split()[0])
        found[pid] = found.get(pid, 0) + 1
    return found


async def gone(pid: int) -> None:
    def is_gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    await until(is_gone, f"process {pid} ends")
