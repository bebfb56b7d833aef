"""Apps that consume a stream come and go, while the app that produces it keeps what it does."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from harness import ANY_PORT, plain_errors, until
from saved_state import saved_producers
from shared_apps import Click, Count, OnePE

from s4node import App, Client, Config, Container, OutputStream, ProcessingElement
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.tree.folder import FolderCoordination
from s4node.events.keys import crc32m
from s4node.net.egress.outbox_rows import channels_of
from s4node.runtime.outputs.channels import sent_by
from s4node.state import epochs
from s4node.state.browse import StateReader
from s4node.state.rows import OUTBOX
from s4node.state.task_state import TaskState


@pytest.mark.long
async def test_an_app_that_is_removed_and_comes_again_with_its_state_counts_all_from_then_on(
    cluster: Cluster,
) -> None:
    with trio.fail_after(60):
        async with cluster.relays():
            async with cluster.counts():
                await cluster.come(*USERS * 20)
            for _ in range(2):
                await cluster.undeploy()
                await cluster.send(*USERS)  # nobody consumes the stream
                async with cluster.counts():
                    await cluster.come(*USERS * 3)
        async with cluster.counts(known=False), cluster.relays():  # by the ways that were made last
            await cluster.come(*USERS)


@pytest.mark.long
async def test_a_task_that_is_rolled_back_keeps_nothing_for_an_app_that_has_left(
    cluster: Cluster,
) -> None:
    with trio.fail_after(60):
        async with cluster.relays():
            async with cluster.counts():
                await cluster.come(*USERS * 20)
            assert cluster.saved() == {WAY}
            await cluster.undeploy()
            await cluster.fail()
            await cluster.commit()
            assert cluster.saved() == set()
            async with cluster.counts():
                await cluster.come(*USERS)
        async with cluster.counts(known=False), cluster.relays():
            await cluster.come(*USERS)


async def test_what_was_sent_to_an_app_that_has_left_is_remembered(cluster: Cluster) -> None:
    with trio.fail_after(60):
        async with cluster.relays():
            for _ in range(2):
                async with cluster.counts():
                    await cluster.come(*USERS * 3)
                await cluster.undeploy()
                await cluster.fail()
                await cluster.commit()
            assert cluster.saved() == set()
        assert cluster.remembered() == cluster.sent.total()


@pytest.mark.long
async def test_an_app_that_begins_anew_with_other_partitions_gets_later_events(
    cluster: Cluster,
) -> None:
    partitions = 1
    with trio.fail_after(60):
        async with cluster.relays(), cluster.counts():
            await cluster.come(*USERS * 20)
        for life in (partitions, 2):
            cluster.begin_anew()
            async with cluster.counts(known=False, partitions=life), cluster.relays():
                await cluster.come(*USERS)
        cluster.begin_anew()
        async with cluster.relays():
            async with cluster.counts(partitions=partitions):
                await cluster.come(*USERS)
            cluster.begin_anew()
            async with cluster.counts():  # while the other one runs
                await cluster.come(*USERS)


@pytest.mark.long
async def test_events_for_an_app_that_begins_anew_with_other_partitions_count_once(
    cluster: Cluster,
) -> None:
    partitions = 5
    with trio.fail_after(60):
        async with cluster.relays():
            async with cluster.counts():
                await cluster.come(*USERS * 20)
            cluster.begin_anew()
            cluster.sent.update(USERS * 3)  # nobody is there
            await cluster.send(*USERS * 3)
            await cluster.commit()
        async with cluster.counts(known=False, partitions=partitions):
            async with cluster.relays():
                await cluster.come(*USERS)
            async with cluster.relays():
                await cluster.come(*USERS)
        cluster.begin_anew()
        async with cluster.relays():
            cluster.sent.update(USERS * 3)
            await cluster.send(*USERS * 2)
            await cluster.commit()
            await cluster.send(*USERS)  # some of it is in no frame yet
            async with cluster.counts():
                await cluster.come(*USERS)


# -- set-up ---------------------------------------------------------------------------------------


USERS = [f"user-{n}" for n in range(12)]

FAILS = ("a", "h")
"""One for each partition."""

WAY = "clicks\1default.count"


class Pass(ProcessingElement):
    passed: int = 0
    onward: OutputStream

    def on_event(self, click: Click) -> None:
        self.passed += 1
        self.onward.put(click)
        if click.user in FAILS:
            raise ZeroDivisionError


def relaying() -> App:
    app = OnePE(Pass, "raw", name="relay")
    app.pe.onward = app.create_output_stream("clicks", key="user", types=Click)
    return app


def counted(app: Path, pe: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for folder in [each for each in app.glob("tasks/*") if epochs.epochs_of(each)]:
        with epochs.copied(folder) as database:
            state = TaskState(database, crc32m)
            for key, attributes in (
                StateReader(state).instances(pe) if f"pe {pe}" in state.tables else ()
            ):
                found[str(key)] += attributes["n"]
    return found


class Cluster:
    """Containers of a producing app and of one that consumes, which keep what they do."""

    def __init__(self, folder: Path) -> None:
        self.coordination = FolderCoordination(folder / "cluster", session_timeout=5)
        self.settings = {
            "s4.listener.address": ANY_PORT,
            "s4.cluster.partitions": "2",
            "s4.watchdog.ms": "0",
            "s4.state.folder": str(folder / "state"),
        }
        self._folder = folder
        self.relay: Container
        self.count: Container
        self.sent: Counter[str] = Counter()

    @asynccontextmanager
    async def relays(self) -> AsyncIterator[None]:
        """The producing app runs; it commits when it is told to, or what it has put may leave."""
        more = {"task.commit.ms": "0", "s4.stream.raw.onError": "skip"}
        more["s4.stream.raw.grade"] = "durable"
        async with (
            self._container(relaying(), more) as self.relay,
            Client(self.relay.address) as client,
        ):
            self._raw = await client.stream("raw")
            yield
            await self.commit()

    @asynccontextmanager
    async def counts(self, *, known: bool = True, partitions: int = 2) -> AsyncIterator[None]:
        """The consuming app runs, and is known to the other, unless that does not run yet."""
        more = {
            "task.commit.ms": "10",
            "s4.stream.clicks.grade": "durable",
            "s4.cluster.partitions": str(partitions),
            "s4.state.adopt": "true",
        }
        async with self._container(OnePE(Count, name="count"), more) as self.count:
            if known:
                await until(lambda: self.consumers == ("default.count",))
            yield

    @asynccontextmanager
    async def _container(self, app: App, settings: dict[str, str]) -> AsyncIterator[Container]:
        config = Config.from_values({**self.settings, **settings})
        with plain_errors():
            async with self.coordination.session(app.name) as session, trio.open_nursery() as inner:
                enrolment = Enrolment(session, "default", app.name, "n", 1)
                container = Container(app, config, node="n", enrolment=enrolment)
                inner.start_soon(container.run)
                await container.ready.wait()
                yield container
                container.stop()

    def remembered(self) -> int:
        """How many events the relay's tasks know that they have sent."""
        found = 0
        for folder in (self._folder / "state" / "default" / "relay").glob("tasks/*"):
            with epochs.copied(folder) as database:
                found += sum(sent for _, sent in sent_by(TaskState(database, crc32m)).values())
        return found

    def begin_anew(self) -> None:
        """Have the consuming app, which does not run, begin without any state."""
        shutil.rmtree(self._folder / "state" / "default" / "count")
        self.sent.clear()

    async def undeploy(self) -> None:
        """Forget the consuming app; what it has kept stays."""
        async with self.coordination.session("undeploy") as session:
            await Registry(session).remove_app("default", "count")
        await until(lambda: self.consumers == ())

    @property
    def consumers(self) -> tuple[str, ...]:
        return tuple(self.relay.carriers["clicks"].channels)

    async def send(self, *users: str) -> None:
        done = self.relay.processed + len(users)
        await self._raw.send_many([Click(user) for user in users])
        await until(lambda: self.relay.processed >= done)

    async def commit(self) -> None:
        committer = self.relay.replay.committer
        for task in self.relay.tasks.values():
            if committer.changed(task):
                before = committer.commits
                task.want_commit()
                self.relay.parts.loop.wake(task)
                await until(lambda before=before: committer.commits > before)

    async def fail(self) -> None:
        """Have all tasks go back to their last commit."""
        before = list(self.relay.tasks.values())
        await self._raw.send_many([Click(user) for user in FAILS])
        await until(lambda: not any(task in self.relay.tasks.values() for task in before))

    async def come(self, *users: str) -> None:
        """Send these, which are counted once, with all that came before."""
        self.sent.update(users)
        await self.send(*users)
        with trio.fail_after(20):
            while self.counted.total() < self.sent.total():
                await self.commit()
                await trio.sleep(0.02)
        await trio.sleep(0.1)  # whatever comes twice would have come by then
        await self.commit()
        assert self.counted == self.sent

    @property
    def counted(self) -> Counter[str]:
        return counted(self._folder / "state" / "default" / "count", "Count")

    @property
    def producers(self) -> set[str]:
        """The lives of the relay's tasks that the consuming app knows."""
        kept = saved_producers(self._folder / "state" / "default" / "count")
        return {name.partition("#")[2] for each in kept.values() for _, name in each}

    def saved(self) -> set[str]:
        """The ways of which the relay's tasks have rows in their databases."""
        kept = self.relay.replay.committer._tasks.values()
        return {name for each in kept for name in channels_of(each.state.rows(OUTBOX))}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)
