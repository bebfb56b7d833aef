"""A cluster in memory: nodes on hosts of their own, cut off and put back, by a seed."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from s4node import App, Client, Config, Container, Event, ProcessingElement, Stream
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.coordination.folder import FolderCoordination
from s4node.errors import S4Error, leaves
from s4node.testing.memory_network import host
from s4node.testing.world import World


def test_a_cluster_counts_exactly_through_a_cut_and_a_failover(folder: Path) -> None:
    """In turns of a bare loop, which take 3 to 6 ms each, as machines are not equally fast."""

    def turn() -> None:
        sum(n * n for n in range(100_000))

    def run() -> None:
        assert len(scenario(folder / str(len(scenarios)), 1)) > 100

    scenario(folder / "warm", 0)
    scenarios: list[float] = []
    turns = []
    for _ in range(3):
        scenarios.append(seconds_of(run))
        turns += [seconds_of(turn) for _ in range(5)]
    assert min(scenarios) < 170 * min(turns)


def test_the_same_seed_gives_the_same_trace_and_another_one_another(folder: Path) -> None:
    first, second = scenario(folder / "one", 7), scenario(folder / "two", 7)
    assert first == second
    assert first != scenario(folder / "three", 8)


def seconds_of(run: Callable[[], None]) -> float:
    """The processor's seconds that ``run`` takes."""
    began = time.process_time()
    run()
    return time.process_time() - began


# -- set-up ---------------------------------------------------------------------------------------


USERS = [f"user-{n}" for n in range(12)]

SETTINGS = {
    "s4.cluster.partitions": "6",
    "s4.stream.clicks.grade": "durable",
    "s4.watchdog.ms": "0",
    "task.commit.ms": "200",
}

SESSION_SECONDS = 2.0


class Click(Event):
    user: str


class Seen(Event):
    letter: str


class Count(ProcessingElement):
    seen: Stream
    n: int = 0

    def on_event(self, click: Click) -> None:
        self.n += 1
        self.seen.put(Seen(click.user[-1]))


class Letters(ProcessingElement):
    n: int = 0

    def on_event(self, seen: Seen) -> None:
        self.n += 1


def counting() -> App:
    """clicks -> Count of each user -> seen -> Letters of each last letter, on any node."""
    app = App("counting")
    count = app.create_pe(Count)
    count.seen = app.create_stream("seen", app.create_pe(Letters), key="letter")
    app.create_input_stream("clicks", count, key="user")
    return app


class Cluster:
    """Nodes of one app, each on a host of its own."""

    def __init__(self, folder: Path, seed: int) -> None:
        def delay(chance: Random) -> float:
            return chance.uniform(0.0002, 0.003)

        self.world = World(delay, seed)
        self.containers: dict[str, Container] = {}
        self.ended: dict[str, list[BaseException]] = {}
        self.refused: list[Any] = []
        self.sent = 0
        self._sent_all = 0
        self._more = trio.Event()
        self._events: list[Click] = []
        self._folder = folder
        self._coordination = FolderCoordination(
            folder / "coordination", session_timeout=SESSION_SECONDS
        )

    def start(self, *names: str, expected: int = 0) -> None:
        """Start nodes; they run when they own partitions."""
        for name in names:
            self.world.start_soon(self._live, name, expected or len(names))
        self.until(lambda: all(self._runs(name) for name in names))

    def _runs(self, name: str) -> bool:
        return name in self.containers and self.containers[name].ready.is_set()

    async def _live(self, name: str, expected: int) -> None:
        host.set(name)
        settings = {
            **SETTINGS,
            "s4.listener.address": f"tcp://{name}:0",
            "s4.state.folder": str(self._folder / "state"),
        }
        try:
            async with self._coordination.session(f"counting-{name}") as session:
                session._file = _File(session._file, self, name)  # type: ignore[assignment]
                enrolment = Enrolment(session, "default", "counting", name, expected)
                container = Container(
                    counting(), Config.of(settings), node=name, enrolment=enrolment
                )
                self.containers[name] = container
                await container.run()
        except BaseException as error:
            found = [one for one in leaves(error) if isinstance(one, Exception)]
            self.ended[name] = [*found]
            if not found:
                raise
        finally:
            self.containers.pop(name, None)

    def cut(self, name: str) -> None:
        """Cut a host off: from the other nodes, and from the folder for its signs of life."""
        self.world.call(self.world.network.cut, name)

    def heal(self, name: str) -> None:
        self.world.call(self.world.network.heal, name)

    def stop(self) -> None:
        """Stop all nodes in order."""
        for container in list(self.containers.values()):
            self.world.call(container.stop)
        self.until(lambda: not self.containers)

    def until(self, condition: Any, seconds: float = 30.0) -> None:
        """Move the clock until it happens."""
        self.world.advance(seconds, condition)
        if self.world.failures:
            raise self.world.failures[0]
        assert condition(), f"it did not happen within {seconds:g} s"

    # -- a program that sends ----------------------------------------------------------------

    def connect(self) -> None:
        """Start the program."""
        self.world.start_soon(self._send)

    async def _send(self) -> None:
        host.set("program")
        addresses = sorted(container.address for container in self.containers.values())
        async with Client(addresses[0], producer="program", timeout=60) as client:
            clicks = await client.stream("clicks")
            while True:
                await self._more.wait()
                self._more = trio.Event()
                events, self._events = self._events, []
                await clicks.send_many(events)
                self.refused += await clicks.flush()
                self.sent += len(events)

    def send(self, events: list[Click]) -> None:
        """Have it send these."""
        self._events += events
        self._sent_all += len(events)
        self.world.call(lambda: self._more.set())

    def settled(self) -> bool:
        """Whether the program knows that all is committed."""
        return self.sent == self._sent_all

    def counts(self, pe: str) -> Counter[str]:
        """What each key has counted; a key lives in one place."""
        found: Counter[str] = Counter()
        for container in self.containers.values():
            for task in container.tasks.values():
                for key in list(task.instances[pe]):
                    assert key not in found
                    found[str(key)] = task.instances[pe][key].n  # type: ignore[attr-defined]
        return found


class _File:
    """The signs of life of a node, which nobody sees while its host is cut off."""

    def __init__(self, file: Any, cluster: Cluster, name: str) -> None:
        self._file = file
        self._cluster = cluster
        self._name = name

    def beat(self) -> None:
        if self._name in self._cluster.world.network.cut_off:
            raise OSError(5, "cut off")
        self._file.beat()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def cluster(folder: Path, seed: int) -> Iterator[Cluster]:
    made = Cluster(folder, seed)
    try:
        yield made
    finally:
        made.world.close()


def scenario(folder: Path, seed: int) -> list[tuple[float, str, str, int]]:
    """Three nodes; one is cut off and fails, the others take over, and it comes back."""
    folder.mkdir()
    with cluster(folder, seed) as nodes:
        nodes.start("n0", "n1", "n2")
        assert sum(len(c.tasks) for c in nodes.containers.values()) == 6
        nodes.connect()
        clicks = [Click(user) for user in USERS]
        nodes.send(clicks * 5)
        nodes.until(nodes.settled)

        nodes.cut("n2")
        nodes.send(clicks * 5)
        nodes.until(lambda: "n2" in nodes.ended)
        assert all(isinstance(one, S4Error) for one in nodes.ended["n2"])
        nodes.until(nodes.settled)
        nodes.until(lambda: sorted(len(c.tasks) for c in nodes.containers.values()) == [3, 3])
        assert nodes.counts("Count") == dict.fromkeys(USERS, 10)

        nodes.heal("n2")
        nodes.start("n2", expected=3)
        nodes.until(lambda: [len(c.tasks) for c in nodes.containers.values()] == [2, 2, 2])
        nodes.send(clicks * 5)
        nodes.until(nodes.settled)
        nodes.until(lambda: sum(nodes.counts("Letters").values()) == 15 * len(USERS))
        assert nodes.counts("Count") == dict.fromkeys(USERS, 15)
        assert nodes.refused == []
        nodes.stop()
        return nodes.world.network.trace


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where files are in memory, if there is such a place: a disk takes most of the time."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK | os.X_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="s4-test-", dir=shared) as made:
        yield Path(made)
