"""The example apps of tasks, run for real: from a system in memory to containers that consume."""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import ANY_PORT, ROOT, node_process, run_s4, running, s4_process, until
from shared_apps import handling

from apps.enrich.app import Click, Enrich, Located
from apps.join.app import Join, JoinApp, PageView, Profile, Visit
from apps.join.careful import Careful, Refused
from apps.repartition.app import RepartitionApp
from s4node import (
    App,
    Client,
    Collector,
    Container,
    Coordinator,
    Envelope,
    Event,
    GenericEvent,
    Oldest,
    TaskApp,
)
from s4node.events.keys import Partitioner, crc32m
from s4node.systems.memory import MemorySystem

# -- repartition ----------------------------------------------------------------------------------


async def test_a_stream_is_written_anew_with_another_key_and_number_of_partitions(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("page-views", 4)
    views = [view(n) for n in range(2000)]
    for each in views:
        system.put("page-views", each.number % 17 % 4, each)  # each page in its partition
    kept = Kept()
    settings["task.inputs"] = "memory.page-views"
    async with (
        consumer(kept, settings, ("page-views-by-user", GenericEvent), partitions=12),
        running(RepartitionApp(), settings) as node,
    ):
        await until(lambda: kept.count == 2000)
        assert len(node.tasks) == 4
    assert set(kept.events) == set(range(12))
    homes: dict[str, set[int]] = defaultdict(set)
    order: dict[tuple[str, str], list[int]] = defaultdict(list)
    for partition, events in kept.events.items():
        for each in events:
            homes[each.user].add(partition)
            order[each.page, each.user].append(each.number)
    assert all(len(partitions) == 1 for partitions in homes.values())
    assert all(numbers == sorted(numbers) for numbers in order.values())
    everything = [each for events in kept.events.values() for each in events]
    assert sorted(everything, key=lambda each: each.number) == views


async def test_a_repartition_that_is_stopped_and_started_again_writes_everything_once(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("page-views", 3)
    for n in range(600):
        system.put("page-views", n % 3, view(n))
    kept = Kept()
    settings["task.inputs"] = "memory.page-views"
    async with consumer(kept, settings, ("page-views-by-user", GenericEvent), partitions=5):
        async with running(RepartitionApp(), settings):
            await until(lambda: kept.count > 20)
        async with running(RepartitionApp(), settings):
            await until(lambda: kept.count >= 600)
    numbers = sorted(each.number for events in kept.events.values() for each in events)
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


async def test_with_bootstrap_no_view_waits_for_its_profile(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    waited: list[str] = []

    class Watching(Join):
        def process(
            self, envelope: Envelope, collector: Collector, coordinator: Coordinator
        ) -> None:
            super().process(envelope, collector, coordinator)
            waited.extend(self.waiting)

    system.create("page-views", 2)
    system.create("profiles", 2)
    home = Partitioner(2, crc32m).partition_of  # each user where its task reads
    for n in range(200):
        system.put("page-views", home(f"user-{n}"), PageView(f"user-{n}", "home"))
        system.put("profiles", home(f"user-{n}"), Profile(f"user-{n}", "Paris"))
    app = JoinApp()
    app.factory = lambda: Careful(Watching())
    kept = Kept()
    settings |= {
        "task.inputs": "memory.page-views, memory.profiles",
        "streams.profiles.samza.bootstrap": "true",
    }
    async with consumer(kept, settings, ("visits", Visit)), running(app, settings, partitions=2):
        await until(lambda: kept.count == 200)
    assert waited == []


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
            await stream.send_many(clicks)
            assert await stream.flush() == []
            await until(lambda: kept.count == 240)
        nursery.cancel_scope.cancel()
    assert service.twice == []
    assert 8 < service.most <= 16  # two tasks of eight
    for n in range(20):
        mine = [located for located in kept.events[0] if located.user == f"user-{n}"]
        assert [located.number for located in mine] == list(range(n, 240, 20))
        assert {located.city for located in mine} == {f"city of user-{n}"}


# -- on the log, as processes ---------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
async def test_repartition_runs_as_a_process_from_the_log_to_the_log(tmp_path: Path) -> None:
    async def s4(*arguments: str, stdin: str = "") -> str:
        done = await run_s4(*arguments, cwd=tmp_path, stdin=stdin.encode())
        assert done.returncode == 0, done.stderr
        return done.stdout

    folder = ("-p", f"s4.log.folder={tmp_path / 'log'}", "--folder", str(tmp_path / "tree"))
    async with s4_process(
        "node", "demo", *folder, "-p", f"s4.listener.address={ANY_PORT}", cwd=tmp_path
    ) as node:
        to = ("--to", node.address)
        await s4("log", "create", "page-views", "--partitions", "4", "--key", "page", *to)
        await s4("log", "create", "page-views-by-user", "--partitions", "12", "--key", "user", *to)
        settings = {
            "systems.log.address": node.address,
            "s4.stream.page-views-by-user.consumers": "log",
            "s4.cluster.log.address": node.address,
            "streams.page-views.samza.offset.default": "oldest",
            "s4.state.folder": str(tmp_path / "state"),
        }
        options = [text for key, value in settings.items() for text in ("-p", f"{key}={value}")]
        views = [dict(view(n).attributes) for n in range(600)]
        for half in (views[:300], views[300:]):  # the second time it goes on where it stopped
            lines = "".join(json.dumps(each) + "\n" for each in half)
            await s4("log", "append", "page-views", *to, stdin=lines)
            expected = half[-1]["number"] + 1
            async with node_process("apps/repartition/app.py", *options, cwd=ROOT) as job:
                tail = ("log", "tail", "page-views-by-user", "--from", "oldest", *to)
                told = await s4(*tail, "--count", str(expected), "--json")
                job.signal(signal.SIGTERM)
                assert await job.wait() == 0, job.errors
        described = json.loads(await s4("log", "describe", "page-views-by-user", "--json", *to))
    rows = [json.loads(line) for line in told.splitlines()]
    assert sorted((row["event"] for row in rows), key=lambda each: each["number"]) == views
    homes: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        homes[row["event"]["user"]].add(row["partition"])
    assert all(len(partitions) == 1 for partitions in homes.values())
    assert set.union(*homes.values()) == set(range(12))
    assert described


@pytest.mark.long
@pytest.mark.slow
async def test_join_runs_as_a_process_on_streams_of_the_log(tmp_path: Path) -> None:
    folder = ("-p", f"s4.log.folder={tmp_path / 'log'}", "--folder", str(tmp_path / "tree"))
    listen = ("-p", f"s4.listener.address={ANY_PORT}")
    async with s4_process("node", "demo", *folder, *listen, cwd=tmp_path) as node:
        for stream, partitions in (("page-views", 12), ("profiles", 14), ("visits", 3)):
            created = await run_s4(
                "log",
                "create",
                stream,
                "--partitions",
                str(partitions),
                "--key",
                "user",
                "--to",
                node.address,
                cwd=tmp_path,
            )
            assert created.returncode == 0, created.stderr
        users = [f"user-{n}" for n in range(30)]
        async with Client(node.address) as client:
            views, profiles = await client.stream("page-views"), await client.stream("profiles")
            await views.send_many([PageView(user, f"page-{n}") for user in users for n in range(4)])
            await profiles.send_many([Profile(user, f"city of {user}") for user in users])
            await views.flush()
            await profiles.flush()
            settings = {
                "systems.log.address": node.address,
                "systems.log.samza.offset.default": "oldest",
                "s4.stream.visits.consumers": "log",
                "s4.cluster.log.address": node.address,
                "s4.state.folder": str(tmp_path / "state"),
            }
            options = [text for key, value in settings.items() for text in ("-p", f"{key}={value}")]
            found = set()
            async with (
                node_process("apps/join/app.py", *options, cwd=ROOT) as job,
                client.subscribe("visits", types=Visit, start=Oldest()) as visits,
            ):
                async for visit in visits:
                    found.add((visit.user, visit.page, visit.city))
                    if len(found) == 120:
                        break
                job.signal(signal.SIGTERM)
                assert await job.wait() == 0, job.errors
    assert found == {(user, f"page-{n}", f"city of {user}") for user in users for n in range(4)}


# -- set-up ---------------------------------------------------------------------------------------


class Kept:
    """The events that a consuming app was given, by partition."""

    def __init__(self) -> None:
        self.events: dict[int, list[Any]] = defaultdict(list)

    @property
    def count(self) -> int:
        return sum(map(len, self.events.values()))


@asynccontextmanager
async def consumer(
    kept: Kept,
    settings: dict[str, str],
    *streams: tuple[str, type[Event | GenericEvent]],
    partitions: int = 1,
) -> AsyncIterator[Container]:
    """An app that consumes these streams as they come; ``settings`` lead to it then."""

    app = App("keep")
    for stream, kind in streams:
        keep = app.create_pe(
            handling(lambda pe, event: kept.events[pe.partition].append(event), Any)
        )
        keep.set_singleton()
        app.create_input_stream(stream, keep, types=kind)
    async with running(app, partitions=partitions) as node:
        for stream, _ in streams:
            settings[f"s4.stream.{stream}.consumers"] = "keep"
        settings["s4.cluster.keep.address"] = node.address
        yield node


def view(n: int) -> GenericEvent:
    return GenericEvent(page=f"page-{n % 17}", user=f"user-{n % 200}", number=n)
