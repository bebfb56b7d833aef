"""``s4 startpoint`` and ``s4 state``: docs/startpoints.md, and where something is wrong."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio
from cli_apps import COUNTER, ended
from harness import DEADLINE, ROOT, run_s4, running, until
from input_systems import fresh
from pages import matches
from saved_state import save_positions
from shared_apps import Click

from s4node import Client, GenericEvent
from s4node.app.stream_task import Collector, Coordinator, Envelope, TaskApp
from s4node.config.settings import GROUPER
from s4node.deploy.load_app import load_app
from s4node.events.keys import Partitioner
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.task_claims import TaskClaims
from s4node.runtime.container.container import Container

pytestmark = pytest.mark.long


async def test_the_commands_of_the_page_print_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "clicks.py").write_text(program)
    system = fresh(ADDRESS)
    system.create("clicks", 1)
    system.put("clicks", 0, *(GenericEvent(user="joe") for _ in range(3)))
    settings = {
        "systems.log.type": "input_systems:memory",
        "systems.log.address": ADDRESS,
        "systems.log.samza.offset.default": "oldest",
        "s4.state.folder": str(tmp_path / "state"),
    }

    async def life(events: int) -> str:
        before = sum(system.reads.values())
        async with running(load_app(str(tmp_path / "clicks.py")), settings):
            await until(lambda: sum(system.reads.values()) - before >= events)
        return capsys.readouterr().out

    state = ("-p", f"s4.state.folder={tmp_path / 'state'}")
    assert "3 clicks" in await life(3)
    for command, told in commands():
        done = await run_s4(*shlex.split(command), *state, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert matches(told, (done.stdout + done.stderr).splitlines()), (command, done)
        if command == commands()[3][0]:  # what the page says next: it goes back, and once
            assert "2 clicks" in await life(2)
            place = ("clicks", "log.clicks[0]")
            done = await run_s4("startpoint", "set", *place, "--offset", "3", *state, cwd=tmp_path)
    assert len(commands()) == 5
    system.put("clicks", 0, GenericEvent(user="ann"))
    assert "1 clicks" in await life(1)  # as if nothing had been


# -- where something is wrong ---------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The files of an app of two tasks."""
    store = TaskClaims(tmp_path / "state" / "default" / "notes")
    store.admit(JobGuard(2, "by-partition", "crc32m", {"memory.clicks": 2}))
    for number in range(2):
        positions = {f"memory.clicks[{number}]": 5, "memory.rules.v1[0]": 7}
        save_positions(store.path.parent, f"Partition {number}", positions)
    store.close()
    (tmp_path / "app.py").write_text(BROADCAST)
    return tmp_path


Running = AbstractAsyncContextManager[Container]
S4 = Callable[..., Awaitable[subprocess.CompletedProcess[str]]]


@pytest.fixture
def s4(kept: Path) -> S4:
    async def run(command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        state = ("-p", f"s4.state.folder={kept / 'state'}")
        return await run_s4(*shlex.split(command), *state, cwd=kept, stdin=stdin)

    return run


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("set notes memory.clicks[2] --oldest", 1, "memory.clicks has partitions 0 to 1, not 2"),
        ("set notes memory.views[0] --oldest", 1,
         ("app 'notes' does not read memory.views; it reads: memory.clicks, memory.rules.v1. If a "
         "new version of the app reads it, name the app as for s4 run")),
        ("set notes memory.clicks --oldest", 2,
         ("'memory.clicks' is a whole stream; write 'memory.clicks[0]' for one partition, or add "
         "--all-partitions")),
        ("set notes memory.clicks[0] --oldest --all-partitions", 2,
         "'memory.clicks[0]' and --all-partitions exclude each other; write 'memory.clicks'"),
        ("set notes clicks[0] --oldest", 2,
         "'clicks[0]' is not a partition of an input; write it as 'log.clicks[0]'"),
        (f"set notes memory.clicks[{'9' * 5000}] --oldest", 2,
         "9]' is not a partition of an input; write it as 'log.clicks[0]'"),
        ("set notes 'log.evs2[0' --oldest", 2,
         "'log.evs2[0' lacks its closing bracket; write it as 'log.evs2[0]'"),
        *((f"set notes '{no}' --oldest", 2,
           f"'{no}' is not a partition of an input; write it as 'log.clicks[0]'")
          for no in ("memory.clicks[", "memory.clicks[x", "memory.clicks[x]", "memory.clicks0]",
                     "memory.a[b[0", "memory.a[b][0]", "memory.clicks]0[", "clicks[0")),
        ("delete notes 'memory.clicks[1'", 2,
         "'memory.clicks[1' lacks its closing bracket; write it as 'memory.clicks[1]'"),
        ("set notes memory.rules.v1 --all-partitions --oldest", 1,
         "the number of partitions of memory.rules.v1 is unknown"),
        ("set app.py live.pings[0] --upcoming", 1, "live sockets, which cannot be read again"),
        ("set notes memory.clicks[0] --oldest --task 'Partition 2'", 2,
         "app 'notes' has no task 'Partition 2'; it has: Partition 0, Partition 1"),
        ("set notes memory.clicks[1] --oldest --task 'Partition 0'", 2,
         ("task 'Partition 0' of app 'notes' does not read memory.clicks[1], 'Partition 1' does; "
         "name that task, or leave --task out")),
        ("set notes memory.clicks[0] --timestamp yesterday", 2,
         "--timestamp: 'yesterday' is not a time; write 2026-01-31T08:00:00Z"),
        ("set notes memory.clicks[0] --timestamp 1969-01-01T00:00:00Z", 2, "is not a time"),
        (f"set notes memory.clicks[0] --timestamp {'0' * 5000}4611686018427387904", 2,
         "4611686018427387904 is too large; the largest is 4611686018427387903"),
        ("set notes memory.clicks[0] --offset 99999999999999999999999", 2,
         "99999999999999999999999 is too large; the largest is 4611686018427387903"),
        ("set notes memory.clicks[0] --offset -1", 2, "--offset"),
        ("set notes memory.clicks[0]", 2, "one of the arguments --oldest --upcoming --timestamp"),
        ("set notes memory.clicks[0] --oldest --offset 1", 2, "not allowed with argument"),
        ("set letters memory.clicks[0] --oldest", 2,
         "no app 'letters' of cluster 'default' has state in"),
        ("show letters", 2, ("apps with state: notes. Name an app that has not run yet as for "
         "s4 run, such as letters.py")),
        ("show letters.py", 2, "no file letters.py"),
        ("show notes --cluster east", 2, "no app 'notes' of cluster 'east' has state in"),
        ("delete notes memory.clicks[0]", 1,
         "no startpoint is set for memory.clicks[0]; s4 startpoint show notes lists the"),
        ("delete notes", 2, "name a partition, such as 'log.clicks[0]', or give --everything"),
        ("delete notes memory.clicks[0] --everything", 2, "name a partition"),
    ],
)  # fmt: skip
def test_mistakes_about_startpoints_are_told_with_the_fix(
    kept: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    status: int,
    said: str,
) -> None:
    monkeypatch.chdir(kept)
    words = ["startpoint", *shlex.split(command), "-p", f"s4.state.folder={kept / 'state'}"]
    assert ended(words) == status
    out, err = capsys.readouterr()
    assert said in err.replace("\n", " ")
    assert out == ""


async def test_a_startpoint_for_a_task_is_for_what_it_reads_or_may(s4: S4) -> None:
    async def places(command: str) -> list[tuple[str, int]]:
        done = await s4(f"startpoint set {command} --oldest --task 'Partition 1' --json")
        assert done.returncode == 0, done.stderr
        return [(row["stream"], row["partition"]) for row in json.loads(done.stdout)]

    assert await places("notes memory.clicks --all-partitions") == [("clicks", 1)]
    assert await places("notes memory.rules.v1[0]") == [("rules.v1", 0)]  # as both do
    assert await places("notes memory.rules.v1[4]") == [("rules.v1", 4)]  # of which nobody knows


async def test_programs_set_see_and_delete_startpoints_as_json(s4: S4) -> None:
    async def told(command: str) -> object:
        done = await s4(f"startpoint {command} --json")
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    made = await told("set notes memory.clicks --all-partitions --timestamp 2023-11-14T22:13:20Z")
    assert isinstance(made, list)
    assert [(one["stream"], one["partition"], one["task"]) for one in made] == [
        ("clicks", 0, ""),
        ("clicks", 1, ""),
    ]
    assert made[0]["startpoint"] == {"kind": "timestamp", "millis": 1_700_000_000_000}
    (task,) = await told("set app.py memory.clicks[0] --upcoming --task 'Partition 0'")  # type: ignore[misc]
    shown = await told("show notes")
    assert isinstance(shown, list)
    assert {one["id"] for one in shown} == {one["id"] for one in [*made, task]}
    assert {one["state"] for one in shown} == {"requested"}
    assert await told("delete notes memory.clicks[0] --task 'Partition 0'") == {"deleted": 1}
    assert await told("delete notes memory.clicks --all-partitions") == {"deleted": 2}
    assert await told("show notes") == []


async def test_an_input_that_is_only_broadcast_has_startpoints_like_others(
    s4: S4, kept: Path
) -> None:
    system = fresh(ADDRESS)
    system.create("clicks", 2)
    system.create("rules", 3)
    values = {
        "systems.memory.type": "input_systems:memory",
        "systems.memory.address": ADDRESS,
        "task.inputs": "memory.clicks",
        "task.broadcast.inputs": "memory.rules#[0-1]",
        "s4.state.folder": str(kept / "state"),
        "s4.coordination.folder": str(kept / "nodes"),
    }
    async with running(TaskApp("job", Idle), values):
        pass
    done = await s4("startpoint set job memory.rules --all-partitions --oldest --json")
    assert [row["partition"] for row in json.loads(done.stdout)] == [0, 1, 2]
    done = await s4("startpoint set job memory.rules[0] --oldest")
    assert (done.returncode, "has not run" in done.stderr) == (0, False)
    done = await s4("startpoint set job memory.rules[7] --oldest")
    assert (done.returncode, done.stderr) == (
        1,
        "s4: memory.rules has partitions 0 to 2, not 7\n",
    )


async def test_an_app_that_has_not_run_yet_is_named_as_for_a_start(s4: S4, kept: Path) -> None:
    (kept / "new.py").write_text(BROADCAST.replace('"notes"', '"new"'))
    done = await s4("startpoint set new.py memory.clicks[7] --oldest")
    assert done.returncode == 0, done.stderr
    done = await s4("startpoint show new --json")
    assert [one["partition"] for one in json.loads(done.stdout)] == [7]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            "memory.clicks[7] --task Nope",
            "task 'Nope' of app 'new' would not read memory.clicks[7], 'Partition 7' would",
        ),
        ("memory.clicks[7] --task 'Partition 6'", "'Partition 7' would"),
        ("memory.clicks[7] --task 'Partition 7'", ""),
        (
            f"memory.clicks[7] --task 'Partition 7' -p {GROUPER.name}=by-ssp",
            (
                f"'memory.clicks[7]' would ({GROUPER.name} = by-ssp); name that task, or leave "
                "--task out"
            ),
        ),
        (f"memory.clicks[7] --task Nope -p {GROUPER.name}=mine:Own", ""),
        ("memory.clicks[0] --task 'Partition 5' -p task.broadcast.inputs=memory.clicks#0", ""),
        (
            "memory.clicks[0] --task Nope -p task.broadcast.inputs=memory.clicks#0",
            "would not read memory.clicks[0], 'Partition 0' would",
        ),
    ],
)
async def test_a_task_that_an_app_cannot_have_is_refused_before_it_has_run(
    s4: S4, kept: Path, command: str, said: str
) -> None:
    (kept / "new.py").write_text(BROADCAST.replace('"notes"', '"new"'))
    done = await s4(f"startpoint set new.py --oldest {command}")
    if said:
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        place = command.partition(" ")[0]
        assert f"new has not run, so {place} may not exist" in done.stderr


async def test_tasks_are_shown_with_the_producers_of_durable_streams(s4: S4, kept: Path) -> None:
    (kept / "counting.py").write_text(COUNTER.replace('"counter"', '"counting"'))
    settings = {
        "s4.state.folder": str(kept / "state"),
        "s4.stream.clicks.grade": "durable",
        "task.commit.ms": "10",
    }
    users = [f"user {n}" for n in range(20)]
    home = Partitioner(2)
    async with running(load_app(str(kept / "counting.py")), settings, partitions=2) as container:
        for producer, count in (("clicks of 2026", 20), ("another's", 7)):
            async with Client(container.address, producer=producer) as client:
                clicks = await client.stream("clicks")
                await clicks.send_many([Click(user) for user in users[:count]])
                assert await clicks.flush() == []
    expected = {
        f"Partition {partition}": [
            {"stream": "clicks", "producer": producer, "number": number}
            for producer, count in (("another's", 7), ("clicks of 2026", 20))
            if (number := sum(home.partition_of(user) == partition for user in users[:count]))
        ]
        for partition in range(2)
    }
    shown = json.loads((await s4("state tasks counting --json")).stdout)
    assert {task: one["producers"] for task, one in shown.items()} == expected
    (line,) = [
        line
        for line in (await s4("state tasks counting --task 'Partition 1'")).stdout.splitlines()
        if "of 2026" in line
    ]
    assert line == f"  clicks from 'clicks of 2026': {expected['Partition 1'][-1]['number']}"


TWO = """
from s4node import TaskApp

class Count:
    def init(self, config, context):
        self.counts = context.store("counts")

    def process(self, envelope, collector, coordinator):
        self.counts.put(envelope.stream, self.counts.get(envelope.stream, 0) + 1)

class Two(TaskApp):
    def __init__(self):
        super().__init__("two", Count, inputs=["memory.ta", "memory.tb"])

    def on_init(self):
        self.create_store("counts", key=str, value=int)

app = Two()
"""


class Nodes:
    """Nodes with folders of their own and one URL, on which the app ``two`` runs in turn."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file://{folder}/shipped"
        self.system = fresh(ADDRESS)
        for stream in ("ta", "tb"):
            self.system.create(stream, 1)
        (folder / "two.py").write_text(TWO)

    def append(self, events: int, *streams: str) -> None:
        for stream in streams:
            self.system.put(stream, 0, *(GenericEvent() for _ in range(events)))

    def running(self, node: str, *, shipped: bool = True, **more: str) -> Running:
        settings = {
            "systems.memory.type": "input_systems:memory",
            "systems.memory.address": ADDRESS,
            "systems.memory.samza.offset.default": "oldest",
            "s4.state.folder": str(self.folder / node),
            "s4.state.url": self.url if shipped else "",
        }
        app = load_app(str(self.folder / "two.py"))
        return running(app, settings | more, deadline=2 * DEADLINE)  # for processes are started

    async def run(self, node: str, reads: int, *, shipped: bool = True) -> None:
        """Run it until it has read so many events."""
        before = sum(self.system.reads.values())
        async with self.running(node, shipped=shipped):
            await until(lambda: sum(self.system.reads.values()) - before >= reads)

    async def s4(
        self, command: str, node: str, *, shipped: bool = True, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[str]:
        url = ("-p", f"s4.state.url={self.url}") if shipped else ()
        state = ("-p", f"s4.state.folder={self.folder / node}", *url)
        return await run_s4(*shlex.split(command), *state, cwd=self.folder, stdin=stdin)

    async def counts(self, node: str, *, shipped: bool = True) -> dict[str, int]:
        """The output of ``s4 state scan``."""
        done = await self.s4("state scan two --json", node, shipped=shipped)
        assert done.returncode == 0, done.stderr
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return {row["key"]: row["value"] for row in rows}

    async def offsets(self, command: str, node: str, *, shipped: bool = True) -> dict[str, int]:
        """The output of ``s4 state tasks``."""
        done = await self.s4(command, node, shipped=shipped)
        assert done.returncode == 0, done.stderr
        tasks = json.loads(done.stdout)
        return {row["stream"]: row["offset"] for task in tasks.values() for row in task["offsets"]}


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def everything(folder: Path) -> dict[Path, bytes]:
    """All files there, but those that SQLite has beside one that is open."""
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(("-wal", "-shm"))
    }


async def test_s4_state_with_the_url_shows_what_the_next_owner_would_find(nodes: Nodes) -> None:
    nodes.append(10, "ta", "tb")
    await nodes.run("x", 20)
    nodes.append(10, "ta")
    await nodes.run("y", 10)
    before = everything(nodes.folder)
    assert await nodes.offsets("state tasks two --json", "x") == {"ta": 20, "tb": 10}
    for node in ("x", "y", "none"):  # behind, in front, and where it has never run
        assert await nodes.counts(node) == {"ta": 20, "tb": 10}
        for command in ("tasks two --json", "tasks two --json --task 'Partition 0'"):
            assert await nodes.offsets(f"state {command}", node) == {"ta": 20, "tb": 10}
        got = await nodes.s4("state get two ta --json", node)
        assert json.loads(got.stdout)["value"] == 20
    assert everything(nodes.folder) == before


async def test_s4_state_without_the_url_says_that_there_may_be_more(nodes: Nodes) -> None:
    nodes.append(10, "ta", "tb")
    await nodes.run("x", 20)
    nodes.append(10, "ta")
    await nodes.run("y", 10)
    for command in (
        "state scan two --json",
        "state get two ta --json",
        "state tasks two --json",
    ):
        done = await nodes.s4(command, "x", shipped=False)
        assert done.returncode == 0
        assert all(json.loads(line) for line in done.stdout.splitlines())
        assert done.stderr == (
            f"s4: the state of two is shipped to {nodes.url}/default/two; this is the state in "
            f"{nodes.folder}/x/default/two, which may be older. -p s4.state.url={nodes.url} "
            f"shows the shipped state\n"
        )
    done = await nodes.s4("state get two tz", "x", shipped=False)
    older, nothing = done.stderr.splitlines()
    assert older.startswith("s4: the state of two is shipped to ")
    assert nothing.startswith("s4: there is no state of 'tz'; s4 state scan two lists what")
    assert await nodes.counts("x", shipped=False) == {"ta": 10, "tb": 10}
    await nodes.run("y", 0)
    (nodes.folder / "shipped").rename(nodes.folder / "away")
    assert await nodes.counts("y") == {"ta": 20, "tb": 10}  # what is here would go there
    assert not (nodes.folder / "shipped").exists()


async def test_commands_report_what_would_stop_the_next_owner(nodes: Nodes) -> None:
    nodes.append(10, "ta", "tb")
    await nodes.run("x", 20)
    nodes.append(10, "ta")
    await nodes.run("x", 10, shipped=False)
    await nodes.run("y", 10)
    done = await nodes.s4("state scan two", "x")
    assert (done.returncode, done.stdout) == (1, "")
    place = nodes.folder / "x" / "default" / "two" / "tasks" / "Partition%200"
    assert f"s4: {place} has commit " in done.stderr
    assert f"To continue from the shipped state, remove {place}, which" in done.stderr
    assert await nodes.counts("x", shipped=False) == {"ta": 20, "tb": 10}
    done = await nodes.s4("state scan three", "none")
    assert done.returncode == 2
    assert f"has state in {nodes.folder}/none/default or at {nodes.url}; apps with state: two" in (
        done.stderr
    )


async def test_a_folder_that_is_damaged_hides_nothing_that_was_shipped(nodes: Nodes) -> None:
    nodes.append(10, "ta", "tb")
    await nodes.run("x", 20)
    (place,) = (nodes.folder / "x").rglob("CURRENT")
    place.write_bytes(b"MANIFEST-9999\n")
    assert (await nodes.s4("state scan two", "x", shipped=False)).returncode == 1
    assert await nodes.counts("x") == {"ta": 10, "tb": 10}
    assert await nodes.offsets("state tasks two --json", "x") == {"ta": 10, "tb": 10}


async def test_what_is_shipped_can_be_looked_at_while_its_owner_goes_on(nodes: Nodes) -> None:
    nodes.append(1, "ta", "tb")
    seen: list[int] = []

    async def go_on() -> None:
        while True:
            nodes.append(1, "ta")
            await trio.sleep(0.002)

    often = {"task.commit.ms": "1", "s4.state.checkpointInterval": "400"}
    async with nodes.running("x", **often), trio.open_nursery() as nursery:
        await until(lambda: (nodes.folder / "x").exists())
        nursery.start_soon(go_on)
        for node in ("x", "none", "x", "none"):
            seen.append((await nodes.counts(node)).get("ta", 0))
        while seen[-1] == seen[0]:  # nothing has been shipped meanwhile
            seen.append((await nodes.counts("none")).get("ta", 0))
        nursery.cancel_scope.cancel()
    assert seen == sorted(seen)
    assert sum((await nodes.counts("none")).values()) == sum(nodes.system.reads.values())


async def test_a_reset_is_refused_while_the_job_runs_and_a_startpoint_says_that_it_waits(
    s4: S4, kept: Path
) -> None:
    system = fresh(ADDRESS)
    system.create("clicks", 2)
    for partition in range(2):
        system.put("clicks", partition, *(GenericEvent() for _ in range(5)))
    settings = {
        "systems.memory.type": "input_systems:memory",
        "systems.memory.address": ADDRESS,
        "s4.state.folder": str(kept / "state"),
    }
    async with running(load_app(str(kept / "app.py")), settings, partitions=2):
        done = await s4("state reset notes --accept-loss --outputs again")
        assert done.returncode == 1
        assert "is running; stop all of its containers first" in done.stderr
        done = await s4("startpoint set notes memory.clicks[0] --oldest")
        assert done.returncode == 0
        assert (
            "notes is running and is not moved: this takes effect at its next start" in done.stderr
        )
    done = await s4("state reset notes --accept-loss --outputs again")
    assert done.returncode == 0, done.stderr


async def test_an_app_that_has_not_run_says_so(s4: S4, kept: Path) -> None:
    (kept / "new.py").write_text(BROADCAST.replace('"notes"', '"new"'))
    done = await s4("state tasks new.py")
    assert "new has no checkpoints in" in done.stderr
    assert (done.returncode, done.stdout) == (1, "")


# -- set-up ---------------------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "startpoints.md").read_text()
ADDRESS = "the commands'"


class Idle:
    def process(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> None:
        pass


BROADCAST = """
from s4node import TaskApp

class Nothing:
    def process(self, envelope, collector, coordinator):
        pass

app = TaskApp("notes", Nothing, inputs=["memory.clicks", "live.pings"])
"""


def commands() -> list[tuple[str, list[str]]]:
    """The commands of the page, each with what it prints."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for one in re.split(r"^\$ s4 ", block, flags=re.MULTILINE)[1:]:
            command, *told = one.rstrip("\n").split("\n")
            found.append((command, told))
    return found
