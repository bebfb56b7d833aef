"""Several containers of one app, each with its own session, in one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from harness import ANY_PORT, plain_errors
from shared_apps import Click

from s4node import App, Config, Container, Event, ProcessingElement, Stream
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.tree.folder import FolderCoordination

USERS = [f"user-{n}" for n in range(40)]


class Word(Event):
    word: str


class Split(ProcessingElement):
    words: Stream

    def on_event(self, click: Click) -> None:
        for word in click.text.split():
            self.words.put(Word(word))


class CountWords(ProcessingElement):
    n: int = 0

    def on_event(self, word: Word) -> None:
        self.n += 1


def words() -> App:
    app = App("words")
    split = app.create_pe(Split)
    app.create_input_stream("clicks", split, key="user")
    split.words = app.create_stream("words", app.create_pe(CountWords), key="word")
    return app


class Nodes:
    """The containers of one app, each with its own session."""

    def __init__(
        self,
        folder: Path,
        make: Callable[[], App],
        app: str,
        values: Mapping[str, str],
        stay: float = 0.0,
    ) -> None:
        self.containers: dict[str, Container] = {}
        self.scopes: dict[str, trio.CancelScope] = {}
        self.running: set[str] = set()
        self.coordination = FolderCoordination(folder, session_timeout=5)
        self._make = make
        self._app = app
        self._values = values
        self._stay = stay

    async def start(
        self, name: str, nursery: trio.Nursery, expected: int = 1, ready: bool = True
    ) -> Container:
        config = Config.from_values({"s4.listener.address": ANY_PORT, **self._values})
        session = await nursery.start(self._session, f"{self._app}-{name}")

        enrolment = Enrolment(session, "default", self._app, name, expected, stay=self._stay)
        container = Container(self._make(), config, node=name, enrolment=enrolment)
        self.containers[name] = container
        nursery.start_soon(self._run, name, container)
        if ready:
            await container.ready.wait()
        return container

    async def _session(self, name: str, task_status: trio.TaskStatus[Any]) -> None:
        with trio.CancelScope() as scope:
            self.scopes[name.rpartition("-")[2]] = scope
            async with self.coordination.session(name) as session:
                task_status.started(session)
                await trio.sleep_forever()

    async def _run(self, name: str, container: Container) -> None:
        with trio.CancelScope() as scope:
            self.scopes[name + " run"] = scope
            self.running.add(name)
            await container.run()
        self.running.discard(name)
        self.scopes[name].cancel()

    def kill(self, name: str) -> None:
        """End a container at once: no drain, no shut_down, and its session with it."""
        self.scopes[name + " run"].cancel()
        del self.containers[name]

    def state(self, pe: str) -> Counter[str]:
        """The count of each key, over all containers; a key lives in one place."""
        found: Counter[str] = Counter()
        for container in self.containers.values():
            for task in container.tasks.values():
                for instance in task.instances[pe].values():
                    assert instance.key not in found
                    found[instance.key] = instance.n  # type: ignore[attr-defined]
        return found


@asynccontextmanager
async def nodes(
    folder: Path,
    make: Callable[[], App],
    count: int,
    partitions: int = 8,
    app: str = "app",
    stay: float = 0.0,
    **values: str,
) -> AsyncIterator[tuple[Nodes, trio.Nursery]]:
    settings = {"s4.cluster.partitions": str(partitions), **values}
    all_nodes = Nodes(folder, make, app, settings, stay)
    with plain_errors(), trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for n in range(count):
                await all_nodes.start(f"n{n}", nursery, expected=count, ready=False)
            for container in all_nodes.containers.values():
                await container.ready.wait()
            yield all_nodes, nursery
            for container in all_nodes.containers.values():
                container.stop()
