"""The example apps of tasks, run for real: from a system in memory to containers that consume."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import running, until
from input_systems import fresh

from apps.enrich.app import Click, Enrich, Located
from apps.join.app import JoinApp, PageView, Profile, Visit
from apps.join.careful import Careful, Refused
from apps.repartition.app import PageView as View
from apps.repartition.app import RepartitionApp
from s4node import (
    App,
    Client,
    Collector,
    Container,
    Coordinator,
    Envelope,
    Event,
    ProcessingElement,
    TaskApp,
)
from s4node.systems.memory import MemorySystem

ADDRESS = "apps"


@pytest.fixture
def system() -> Iterator[MemorySystem]:
    return fresh(ADDRESS)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    return {
        "systems.memory.type": "input_systems:memory",
        "systems.memory.address": ADDRESS,
        "systems.memory.samza.offset.default": "oldest",
        "s4.state.folder": str(tmp_path / "state"),
    }


class Kept:
    """What a consuming app was given, by the partition in which it was."""

    def __init__(self) -> None:
        self.events: dict[int, list[Any]] = defaultdict(list)

    @property
    def count(self) -> int:
        return sum(map(len, self.events.values()))


@asynccontextmanager
async def consumer(
    kept: Kept, settings: dict[str, str], *streams: tuple[str, type[Event]], partitions: int = 1
) -> AsyncIterator[Container]:
    """An app that consumes these streams as they come; ``settings`` lead to it then."""

    class Keep(ProcessingElement):
        def on_event(self, event: Any) -> None:
            kept.events[self.partition].append(event)

    app = App("keep")
    for stream, kind in streams:
        keep = app.create_pe(Keep)
        keep.set_singleton()
        app.create_input_stream(stream, keep, types=kind)
    async with running(app, partitions=partitions) as node:
        for stream, _ in streams:
            settings[f"s4.stream.{stream}.consumers"] = "keep"
        settings["s4.cluster.keep.address"] = node.address
        yield node


# -- repartition ----------------------------------------------------------------------------------


async def test_a_stream_is_written_anew_with_another_key_and_number_of_partitions(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("page-views", 4)
    views = [View(f"page-{n % 17}", f"user-{n % 200}", n) for n in range(2000)]
    for view in views:
        system.put("page-views", view.number % 17 % 4, view)  # each page in its partition
    kept = Kept()
    settings["task.inputs"] = "memory.page-views"
    async with (
        consumer(kept, settings, ("page-views-by-user", View), partitions=12),
        running(RepartitionApp(), settings) as node,
    ):
        await until(lambda: kept.count == 2000)
        assert len(node.tasks) == 4
    assert set(kept.events) == set(range(12))
    homes: dict[str, set[int]] = defaultdict(set)
    order: dict[tuple[str, str], list[int]] = defaultdict(list)
    for partition, events in kept.events.items():
        for view in events:
            homes[view.user].add(partition)
            order[view.page, view.user].append(view.number)
    assert all(len(partitions) == 1 for partitions in homes.values())
    assert all(numbers == sorted(numbers) for numbers in order.values())
    everything = [view for events in kept.events.values() for view in events]
    assert sorted(everything, key=lambda view: view.number) == views


async def test_a_repartition_that_is_stopped_and_started_again_writes_everything_once(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("page-views", 3)
    for n in range(600):
        system.put("page-views", n % 3, View(f"page-{n % 3}", f"user-{n % 40}", n))
    kept = Kept()
    settings["task.inputs"] = "memory.page-views"
    async with consumer(kept, settings, ("page-views-by-user", View), partitions=5):
        async with running(RepartitionApp(), settings):
            await until(lambda: kept.count > 20)
        async with running(RepartitionApp(), settings):
            await until(lambda: kept.count >= 600)
    numbers = sorted(view.number for events in kept.events.values() for view in events)
    assert numbers == list(range(600))


# -- join -----------------------------------------------------------------------------------------


async def test_views_and_profiles_of_twelve_and_fourteen_partitions_are_joined_by_user(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("page-views", 12)
    system.create("profiles", 14)
    users = [f"user-{n}" for n in range(50)]
    for n, user in enumerate(users):
        system.put("profiles", n % 14, Profile(user, f"city-{n % 9}"))
        for page in range(6):
            system.put("page-views", (n + page) % 12, PageView(user, f"page-{page}"))
    kept = Kept()
    settings["task.inputs"] = "memory.page-views, memory.profiles"
    async with (
        consumer(kept, settings, ("visits", Visit), partitions=2),
        running(JoinApp(), settings) as node,
    ):
        await until(lambda: kept.count == 300)
        assert len(node.tasks) == 14
    visits = [visit for events in kept.events.values() for visit in events]
    found = {(visit.user, visit.page, visit.city) for visit in visits}
    assert found == {
        (user, f"page-{page}", f"city-{n % 9}") for n, user in enumerate(users) for page in range(6)
    }


async def test_one_task_around_several_others_catches_what_they_raise(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    class Strict:
        def process(
            self, envelope: Envelope, collector: Collector, coordinator: Coordinator
        ) -> None:
            if not envelope.message.page:
                raise ValueError(f"a view of {envelope.message.user} without a page")

    system.create("page-views", 1)
    system.create("profiles", 1)
    system.put("profiles", 0, Profile("ann", "Paris"), Profile("joe", ""), Profile("eve", "Rome"))
    system.put("page-views", 0, PageView("ann", "home"), PageView("eve", ""))
    join, strict = JoinApp(), TaskApp("strict", lambda: Careful(Strict()))
    strict.create_input_stream("page-views", types=PageView, system="memory")
    strict.create_output_stream("refused", types=Refused)
    kept = Kept()
    async with consumer(kept, settings, ("visits", Visit), ("refused", Refused)):
        async with running(strict, settings):
            await until(lambda: kept.count == 1)
        settings["task.inputs"] = "memory.page-views, memory.profiles"
        async with running(join, settings):
            await until(lambda: kept.count == 4)
    assert sorted(kept.events[0], key=repr) == [
        Refused("page-views", 1, "a view of eve without a page"),
        Refused("profiles", 1, "the profile of joe names no city"),
        Visit("ann", "home", "Paris"),
        Visit("eve", "", "Rome"),
    ]


# -- enrich ---------------------------------------------------------------------------------------


class Service:
    """Says the city of a user over TCP, after a while; notes how many ask at a time, and who."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asking: list[str] = []
        self.most = 0
        self.twice: list[str] = []

    async def serve(self, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(listener.socket.getsockname()[1])
        await trio.serve_listeners(self.answer, [listener])

    async def answer(self, peer: trio.SocketStream) -> None:
        async with peer:
            user = (await peer.receive_some()).decode().strip()
            if user in self.asking:
                self.twice.append(user)
            self.asking.append(user)
            self.most = max(self.most, len(self.asking))
            await trio.sleep(self.seconds)
            self.asking.remove(user)
            await peer.send_all(f"city of {user}\n".encode())


async def test_clicks_are_enriched_many_at_a_time_with_each_user_in_order() -> None:
    service, kept, settings = Service(0.02), Kept(), {"task.max.concurrency": "8"}
    settings["task.order"] = "key"
    clicks = [Click(f"user-{n % 20}", n) for n in range(240)]
    async with trio.open_nursery() as nursery:
        settings["s4.app.service"] = f"127.0.0.1:{await nursery.start(service.serve)}"
        async with (
            consumer(kept, settings, ("located", Located)),
            running(Enrich(), settings, partitions=2) as node,
            Client(node.address) as client,
        ):
            stream = await client.stream("clicks")
            began = trio.current_time()
            await stream.send_many(clicks)
            assert await stream.flush() == []
            taken = trio.current_time() - began
            await until(lambda: kept.count == 240)
        nursery.cancel_scope.cancel()
    assert service.twice == []
    assert 8 < service.most <= 16  # two tasks of eight
    assert taken < 240 * 0.02 / 4
    for n in range(20):
        mine = [located for located in kept.events[0] if located.user == f"user-{n}"]
        assert [located.number for located in mine] == list(range(n, 240, 20))
        assert {located.city for located in mine} == {f"city of user-{n}"}
