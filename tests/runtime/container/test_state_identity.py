"""Nodes with a state folder each: a task is taken over by those only that can reach its state."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from harness import ROOT, NodeProcess, process_of, run_s4, until
from log_bench import Bench, append, bench
from saved_state import saved_positions

from s4node.cluster.coordination.entries import AppId
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.tree.folder import FolderCoordination

pytestmark = pytest.mark.long


@pytest.mark.slow
async def test_a_task_whose_owner_dies_waits_for_a_node_that_has_its_state(tmp_path: Path) -> None:
    async with nodes_of(tmp_path) as nodes:
        await append(nodes.log, 0, 100)
        async with nodes.run("a", 2) as a, nodes.run("b", 2) as b:
            await until(lambda: nodes.committed("a", "b") == 100)
            owner, other = ("b", "a") if NOT_HERE in a.errors else ("a", "b")
            dies, stays = (b, a) if owner == "b" else (a, b)
            assert NOT_HERE in stays.errors
            assert nodes.committed(owner) == 100
            await dies.kill()
            await append(nodes.log, 100, 120)
            await nodes.alone()
            async with nodes.run(owner, 1):
                await until(lambda: nodes.committed(owner) == 120)
            assert nodes.committed(other) == 0
            assert str(stays.pid) not in {line[0] for line in nodes.seen}
        nodes.check(120)


@pytest.mark.slow
async def test_a_startpoint_that_is_set_on_one_node_is_taken_once_by_the_tasks_of_all(
    tmp_path: Path,
) -> None:
    async with nodes_of(tmp_path, **{"s4.state.url": f"file://{tmp_path / 'shared'}"}) as nodes:
        await append(nodes.log, 0, 100)
        async with nodes.run("a", 2) as a, nodes.run("b", 2) as b:
            await until(lambda: nodes.committed("a") == nodes.committed("b") == 50)
            for each in (a, b):
                each.signal(signal.SIGTERM)
            assert (await a.wait(), await b.wait()) == (0, 0)
        places = ("tasks", "log.clicks", "--all-partitions")
        said = await nodes.s4("c", "startpoint", "set", *places, "--offset", "40")
        assert "takes effect when tasks next starts" in said
        async with nodes.run("a", 2) as a, nodes.run("b", 2):
            await until(lambda: len(nodes.seen) == 120)
            assert json.loads(await nodes.s4("b", "startpoint", "show", "tasks", "--json")) == []
            await a.kill()
            await append(nodes.log, 100, 120)
            await until(lambda: len({line[1:] for line in nodes.seen}) == 120)
    times = Counter(line[1:] for line in nodes.seen)
    again = range(40, 50)
    assert times == {(str(p), str(n)): 2 if n in again else 1 for p in range(2) for n in range(60)}


@pytest.mark.slow
async def test_a_state_is_adopted_only_by_a_start_that_is_told_to(tmp_path: Path) -> None:
    async with nodes_of(tmp_path) as nodes:
        await append(nodes.log, 0, 100)
        async with nodes.run("a", 1) as a:
            await until(lambda: nodes.committed("a") == 100)
            a.signal(signal.SIGTERM)
            assert await a.wait() == 0
        async with nodes.run("b", 1) as b:
            await until(lambda: NOT_HERE in b.errors)
            b.signal(signal.SIGTERM)
            assert await b.wait() == 0
        assert len(nodes.seen) == 100
        async with nodes.run("b", 1, "s4.state.adopt=true") as b:
            await until(lambda: nodes.committed("b") == 100)
        async with nodes.run("a", 1) as a:
            await until(lambda: NOT_HERE in a.errors)
        assert set(Counter(line[1:] for line in nodes.seen).values()) == {2}


# -- set-up ---------------------------------------------------------------------------------------


JOB = AppId("default", "tasks")

NOT_HERE = "gets no tasks: the state of the app is not here"


class Nodes:
    """Processes with a container each of an app that reads a log, and with a state folder each."""

    def __init__(self, it: Bench, **more: str) -> None:
        self.log = it.log
        self._it = it
        arguments = it.arguments("tasks", **{"task.commit.ms": "20", "s4.watchdog.ms": "0"}, **more)
        self.app = Path(arguments[1])
        self._settings = arguments[3::2]
        self._coordination = FolderCoordination(it.folder / "cluster", session_timeout=2)

    def run(self, name: str, expected: int, *more: str) -> AbstractAsyncContextManager[NodeProcess]:
        folder = str(self._coordination.folder)
        settings = [
            *self._settings,
            f"s4.state.folder={self._it.folder / name}",
            f"s4.coordination.folder={folder}",
            *more,
        ]
        script = str(ROOT / "tests" / "container_process.py")
        command = [sys.executable, script, folder, name, str(expected), str(self.app), *settings]
        return process_of(command, self._it.folder)

    async def s4(self, name: str, *arguments: str) -> str:
        settings = [
            *self._settings,
            f"s4.state.folder={self._it.folder / name}",
            f"s4.coordination.folder={self._coordination.folder}",
        ]
        given = [word for each in settings for word in ("-p", each)]
        done = await run_s4(*arguments, *given, cwd=self._it.folder)
        return done.stdout or done.stderr

    async def alone(self) -> None:
        """Wait until one container is left, and until what the other had is nobody's."""
        async with self._coordination.session("looks") as session:
            registry = Registry(session)
            base = Registry.path_of_app(JOB)
            while True:
                seen = await session.change(base)
                group = await registry.group(JOB)
                if len(group.members) == 1 and not any(group.owners):
                    return
                await session.wait_change(base, seen)

    @property
    def seen(self) -> list[tuple[str, ...]]:
        return self._it.seen

    def committed(self, *names: str) -> int:
        """How many events are committed in the folders of these nodes."""
        found = [saved_positions(self._it.folder / name / "default" / "tasks") for name in names]
        return sum(sum(one.values()) for each in found for one in each.values())

    def check(self, events: int) -> None:
        """Each of so many events was processed once."""
        places = Counter(line[1:] for line in self.seen)
        each = [(str(p), str(n)) for p in range(2) for n in range(events // 2)]
        assert places == Counter(each)


@asynccontextmanager
async def nodes_of(folder: Path, **more: str) -> AsyncIterator[Nodes]:
    async with bench(folder) as it:
        yield Nodes(it, **more)
