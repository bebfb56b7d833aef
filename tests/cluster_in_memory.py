"""A cluster in memory: nodes of one app on hosts of their own, with a clock that the test moves."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import trio

from s4node import App, Client, Config, Container, Event
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.tree.folder import FolderCoordination
from s4node.errors import leaves
from s4node.testing.runs import host
from s4node.testing.world import World

SETTINGS = {
    "s4.cluster.partitions": "6",
    "s4.stream.clicks.grade": "durable",
    "s4.watchdog.ms": "0",
    "task.commit.ms": "200",
}

SESSION_SECONDS = 2.0


class Cluster:
    """Nodes of one app, each on a host of its own."""

    def __init__(self, folder: Path, seed: int, app: Callable[[], App]) -> None:
        def delay(chance: Random) -> float:
            return chance.uniform(0.0002, 0.003)

        self.world = World(delay, seed)
        self.containers: dict[str, Container] = {}
        self.ended: dict[str, list[BaseException]] = {}
        self.refused: list[Any] = []
        self.sent = 0
        self._sent_all = 0
        self._more = trio.Event()
        self._events: list[Event] = []
        self._app = app
        self._folder = folder
        self.job = folder / "state" / "default" / "counting"
        self._coordination = FolderCoordination(
            folder / "coordination", session_timeout=SESSION_SECONDS
        )

    def start(self, *names: str, expected: int = 0) -> None:
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
                    self._app(), Config.from_values(settings), node=name, enrolment=enrolment
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
        for container in list(self.containers.values()):
            self.world.call(container.stop)
        self.until(lambda: not self.containers)

    def until(self, condition: Any, seconds: float = 30.0) -> None:
        self.world.pass_time(seconds, condition)
        if self.world.failures:
            raise self.world.failures[0]
        assert condition(), f"it did not happen within {seconds:g} s"

    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    def ask_for_cut(self, partition: int, number: int) -> None:
        """Ask the task of a partition for its cut."""
        for container in self.containers.values():
            if partition in container.tasks:
                replay = container.parts._replay
                assert replay.keeps
                self.world.call(replay.cuts.request, partition, number)

    # -- a program that sends ----------------------------------------------------------------

    def connect(self) -> None:
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

    def send(self, events: Sequence[Event]) -> None:
        self._events += events
        self._sent_all += len(events)
        self.world.call(lambda: self._more.set())

    def settled(self) -> bool:
        """Whether the program knows that all is committed."""
        return self.sent == self._sent_all


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
def cluster(folder: Path, seed: int, app: Callable[[], App]) -> Iterator[Cluster]:
    """Nodes of the app that ``app`` makes, which is called ``counting``."""
    made = Cluster(folder, seed, app)
    try:
        yield made
    finally:
        made.world.close()


@contextmanager
def in_memory(folder: Path) -> Iterator[Path]:
    """Where files are in memory, if there is such a place: a disk takes most of the time."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK | os.X_OK):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="s4-test-", dir=shared) as made:
        yield Path(made)
