"""Inputs that can be read again: from a system in memory into real containers and their tasks."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from harness import free_port, node_process, running, until
from input_systems import dies, fresh
from shared_apps import Click, Count, CountingApp, Forward, HoldingApp, NotingApp

from s4node import App, Event, GenericEvent, ProcessingElement, tumbling
from s4node.errors import (
    CheckpointError,
    ConfigError,
    DecodeError,
    InputLost,
    MisplacedKey,
    S4Error,
    StartpointError,
    UnknownStream,
)
from s4node.events.keys import Partitioner, kafka
from s4node.offsets.system import InputBatch, SystemStreamPartition
from s4node.runtime.container.container import Container
from s4node.systems.memory import MemorySystem


async def test_an_input_is_read_from_its_oldest_event_on(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, Click("ada", 1), Click("bob", 2))
    app = clicks_app()
    async with running(app, settings):
        await until(lambda: len(app.seen) == 2)
        system.put("clicks", 0, Click("ada", 3))
        await until(lambda: len(app.seen) == 3)
    assert app.seen == [("ada", 1), ("bob", 2), ("ada", 3)]


async def test_events_go_to_the_task_of_their_key_in_the_order_of_each_key(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 2)
    for number in range(3000):
        system.put("clicks", 0, Click(f"user-{number % 11}", number))
    app = clicks_app()
    async with running(app, settings, partitions=4) as container:
        await until(lambda: len(app.seen) == 3000)
        homes = [set(task.instances["Handling"].keys()) for task in container.tasks.values()]
        safe = container.replay.consumers.progress[0][ssp(0)].safe
    assert len(homes) == 4
    assert sum(map(len, homes)) == 11  # each key in one task
    for user in range(11):
        mine = [number for name, number in app.seen if name == f"user-{user}"]
        assert mine == sorted(mine)
    assert safe == 3000


# -- where inputs begin ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings_too", "first"),
    [
        ({"streams.clicks.samza.offset.default": "oldest"}, 0),
        ({"streams.clicks.samza.offset.default": "newest"}, 4),
        ({"streams.clicks.samza.offset.default": "upcoming"}, 5),
    ],
)
async def test_an_input_without_progress_begins_where_the_settings_say(
    system: MemorySystem, settings: dict[str, str], settings_too: dict[str, str], first: int
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, *(Click("ada", number) for number in range(5)))
    app = clicks_app()
    async with running(app, settings | settings_too) as container:
        await until(lambda: ssp(0) in container.replay.consumers.progress[0])
        system.put("clicks", 0, Click("ada", 5))
        await until(lambda: ("ada", 5) in app.seen)
    assert app.seen[0] == ("ada", first)


async def test_a_system_s_default_offset_is_that_of_its_streams_without_one(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, Click("ada", 0))
    app = clicks_app()
    async with running(app, {**settings, "systems.memory.samza.offset.default": "oldest"}):
        await until(lambda: app.seen == [("ada", 0)])


async def test_an_input_that_is_reset_begins_anew_whatever_progress_there_is(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, *(Click("ada", number) for number in range(3)))
    for _ in range(2):
        app = clicks_app()
        async with running(app, {**settings, "streams.clicks.samza.reset.offset": "true"}):
            await until(lambda: len(app.seen) == 3)  # noqa: B023 - it is this turn's


async def test_a_checkpoint_below_the_oldest_kept_event_stops_the_container(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, *(Click("ada", number) for number in range(3)))
    app = clicks_app()
    async with running(app, settings):
        await until(lambda: len(app.seen) == 3)
    system.put("clicks", 0, *(Click("ada", number) for number in range(3, 10)))
    system.trim("clicks", 0, 6)
    with dies(InputLost, match=r"offset 3.*oldest.* 6.*streams.clicks.onLost = oldest"):
        async with running(clicks_app(), settings):
            await trio.sleep_forever()
    app = clicks_app()
    async with running(app, {**settings, "streams.clicks.onLost": "oldest"}) as container:
        await until(lambda: len(app.seen) == 4)
        assert container.replay.consumers.starts.lost == {"memory.clicks": 3}
    assert app.seen == [("ada", number) for number in range(6, 10)]


async def test_what_retention_takes_while_an_app_reads_is_skipped_into_a_later_epoch(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1, epochs=True)
    system.put("clicks", 0, *(Click("ada", number) for number in range(5)))
    app = clicks_app()
    async with running(app, {**settings, "streams.clicks.onLost": "oldest"}):
        await until(lambda: len(app.seen) == 5)
        system.lose_end("clicks", 0, 5)  # an epoch ends, and nothing is lost with it
        system.put("clicks", 0, *(Click("ada", number) for number in range(5, 15)))
        system.trim("clicks", 0, 8)
        await until(lambda: len(app.seen) == 12)
    assert app.seen == [("ada", number) for number in (*range(5), *range(8, 15))]


async def test_a_lost_end_is_found_after_starts_in_which_the_input_had_no_events(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1, epochs=True)
    system.create("others", 1)
    system.put("clicks", 0, *(Click("ada", number) for number in range(5)))
    app = clicks_and_others()
    async with running(app, settings):
        await until(lambda: len(app.seen) == 5)
    system.put("others", 0, Click("bob", 0))  # so there is a commit in a start without clicks
    app = clicks_and_others()
    async with running(app, settings):
        await until(lambda: len(app.seen) == 1)
    system.lose_end("clicks", 0, 2)
    system.put("clicks", 0, *(Click("ada", number) for number in range(12, 20)))
    app = clicks_and_others()
    async with running(app, settings):
        await until(lambda: len(app.seen) == 8)
    assert app.seen == [("ada", number) for number in range(12, 20)]


async def test_a_stream_that_was_made_anew_under_its_name_stops_the_container(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, Click("ada", 0))
    monitored = {**settings, "job.coordinator.monitor-partition-change.frequency.ms": "10"}
    app = clicks_app()
    with dies(S4Error, match=r"memory\.clicks was deleted and made anew under its name"):
        async with running(app, monitored):
            await until(lambda: len(app.seen) == 1)
            system.remove_stream("clicks")
            system.create("clicks", 1)
            system.put("clicks", 0, *(Click("ada", number) for number in range(5)))
            await trio.sleep_forever()
    with dies(CheckpointError, match=r"clicks was deleted and made anew.*reset\.offset = true"):
        async with running(clicks_app(), settings):
            await trio.sleep_forever()
    reset = {"streams.clicks.samza.reset.offset": "true"}
    for more, count in ((reset, 5), ({}, 1)):  # then it goes on with the new one
        app = clicks_app()
        async with running(app, {**settings, **more}):
            await until(lambda: len(app.seen) == count)  # noqa: B023 - it is this turn's
        system.put("clicks", 0, Click("ada", 5))


async def test_a_reader_slower_than_retention_stops_the_container_or_goes_on_and_counts(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    def lose() -> None:
        """Retention that is faster than the reader, before it has had a turn."""
        first = system.put("clicks", 0, *(Click("ada", 100 + number) for number in range(8)))
        system.trim("clicks", 0, first + 5)

    system.create("clicks", 1)
    system.put("clicks", 0, Click("ada", 0))
    app = clicks_app()
    with dies(InputLost, match="retention was faster"):
        async with running(app, settings):
            await until(lambda: len(app.seen) == 1)
            lose()
            await trio.sleep_forever()
    system = fresh(settings["systems.memory.address"])
    system.create("clicks", 1)
    system.put("clicks", 0, Click("ada", 0))
    app = clicks_app()
    more = {"streams.clicks.onLost": "oldest", "streams.clicks.samza.reset.offset": "true"}
    async with running(app, settings | more) as container:
        await until(lambda: len(app.seen) == 1)
        lose()
        await until(lambda: len(app.seen) == 4)
        assert container.replay.consumers.starts.lost == {"memory.clicks": 5}
        await until(lambda: safe(container) == 9)
    assert app.seen == [("ada", 0), ("ada", 105), ("ada", 106), ("ada", 107)]


async def test_a_checkpoint_beyond_the_end_of_its_input_is_refused(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, *(Click("ada", number) for number in range(3)))
    app = clicks_app()
    async with running(app, settings):
        await until(lambda: len(app.seen) == 3)
    shorter = fresh(settings["systems.memory.address"])
    shorter.create("clicks", 1)
    shorter._ids = system._ids
    with dies(CheckpointError, match=r"offset 3.*ends at 0.*samza.reset.offset = true"):
        async with running(clicks_app(), settings):
            await trio.sleep_forever()


async def test_a_live_input_cannot_begin_at_the_oldest(settings: dict[str, str]) -> None:
    oldest = {**settings, "streams.clicks.samza.offset.default": "oldest"}
    with dies(StartpointError, match="live sockets, which keep no events"):
        async with running(clicks_app(system="live"), oldest):
            raise AssertionError("it runs")


# -- what is wrong with inputs --------------------------------------------------------------------


async def test_unknown_systems_and_streams_stop_the_start_with_what_there_is(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("views", 1)
    with dies(UnknownStream, match=r"no stream 'clicks'; it has: views"):
        async with running(clicks_app(), settings):
            raise AssertionError("it runs")
    with dies(UnknownStream, match=r"no system 'archive'; known systems: live, memory"):
        async with running(clicks_app(system="archive"), settings):
            raise AssertionError("it runs")


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ("clicks", "'clicks' is not system.stream, such as log.clicks"),
        ("memory.views", "no input stream 'views'; it has: clicks"),
        ("memory.clicks, live.clicks", "from 'memory' and from 'live'"),
    ],
)
async def test_inputs_that_cannot_be_bound_are_reported(
    system: MemorySystem, settings: dict[str, str], inputs: str, said: str
) -> None:
    with dies(ConfigError, match=said):
        async with running(clicks_app(), {**settings, "task.inputs": inputs}):
            raise AssertionError("it runs")


async def test_the_setting_wins_over_the_app_in_where_a_stream_is_read(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, Click("ada", 1))
    app = clicks_app(system="live")
    async with running(app, {**settings, "task.inputs": "memory.clicks"}) as container:
        await until(lambda: app.seen == [("ada", 1)])
        assert container.ports == {}


async def test_there_are_as_many_tasks_as_the_largest_input_has_partitions(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 5)
    app = clicks_app()
    async with running(app, settings, partitions=2) as container:
        assert sorted(container.tasks) == [0, 1, 2, 3, 4]
        assert app.partitions == 5


async def test_an_unreachable_system_is_waited_for_and_logged_once(
    system: MemorySystem,
    settings: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("s4node.runtime.inputs.system_consumers._GRACE_SECONDS", 0.01)
    system.create("clicks", 1)
    system.put("clicks", 0, Click("ada", 1))
    app = clicks_app()
    with structlog.testing.capture_logs() as logs:
        async with running(app, settings):
            await until(lambda: len(app.seen) == 1)
            system.go_away()
            await until(lambda: any("waiting for it" in line["event"] for line in logs))
            system.put("clicks", 0, Click("ada", 2))
            system.come_back()
            await until(lambda: len(app.seen) == 2)
    said = [line["event"] for line in logs if "reached" in line["event"]]
    assert said == [
        "an input cannot be reached; waiting for it",
        "an input can be reached again",
    ]


@pytest.mark.parametrize(("now", "fix"), [(1, "Give it 2 again"), (3, "Start the app again")])
async def test_a_number_of_partitions_that_changes_under_us_stops_the_container(
    system: MemorySystem, settings: dict[str, str], now: int, fix: str
) -> None:
    system.create("clicks", 2)
    settings["job.coordinator.monitor-partition-change.frequency.ms"] = "10"
    with dies(S4Error, match=f"has {now} partitions, but had 2.*{fix}|has 1 partitions"):
        async with running(clicks_app(), settings):
            system.create("clicks", now)
            await trio.sleep_forever()


async def test_routed_events_stay_where_they_are_read(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    homes = Partitioner(3, kafka)
    users = {homes.partition_of(user): user for user in map(str, range(50))}
    wrong = next(user for user in map(str, range(50, 99)) if homes.partition_of(user) == 2)
    system.create("clicks", 3)
    for partition, user in users.items():
        system.put("clicks", partition, *(Click(user, number) for number in range(20)))
    app = clicks_app()
    settings |= {"s4.hasher": "kafka", "streams.clicks.routed": "true"}
    async with running(app, settings, partitions=3) as container:
        await until(lambda: container.processed == 60)
        tasks = container.tasks.items()
        assert {n: [*task.instances["Handling"]] for n, task in tasks} == {
            n: [user] for n, user in users.items()
        }
        assert container.replay.consumers._keyed == {}
    system.put("clicks", 0, Click(users[0], 20), Click(wrong, 1))
    with dies(MisplacedKey, match=f"'{wrong}' came in partition 0 of memory.clicks.*partition 2"):
        async with running(app, settings | {"s4.stream.clicks.onError": "skip"}, partitions=3):
            await trio.sleep_forever()
    assert not any(user == wrong for user, _ in app.seen)
    settings["streams.clicks.routed"] = "false"
    async with running(app, settings, partitions=3) as container:
        await until(lambda: (wrong, 1) in app.seen)
        assert wrong in container.tasks[2].instances["Handling"]


class Timed(Event):
    user: str
    at: float = 1.0


class Windowed(ProcessingElement):
    def on_event(self, event: Timed) -> None:
        raise AssertionError

    def on_window(self) -> None:
        raise AssertionError


async def test_windows_of_a_routed_stream_take_no_key_of_another_task(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    settings |= {"s4.hasher": "kafka", "streams.clicks.routed": "true"}
    wrong = next(user for user in "abcdefgh" if Partitioner(2, kafka).partition_of(user) == 1)
    app = App("windows")
    pe = app.create_pe(Windowed)
    pe.set_window(tumbling(60))
    app.create_input_stream("clicks", pe, key="user", system="memory", time="at")
    system.create("clicks", 2)
    system.put("clicks", 0, Timed(wrong))
    with dies(MisplacedKey, match=f"the key '{wrong}' came in partition 0"):
        async with running(app, settings, partitions=2):
            await trio.sleep_forever()


async def test_a_stream_whose_producers_do_not_choose_its_tasks_is_not_routed(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 2)
    settings["streams.clicks.routed"] = "true"
    with dies(ConfigError, match="set s4.hasher = kafka, too"):
        async with running(clicks_app(), settings, partitions=3):
            await trio.sleep_forever()
    settings["s4.hasher"] = "kafka"
    homes = Partitioner(2, kafka)
    users = [f"user-{n}" for n in range(30)]
    for user in users:
        system.put("clicks", homes.partition_of(user), Click(user))
    with structlog.testing.capture_logs() as logs:
        async with running(clicks_app(), settings, partitions=3) as container:
            await until(lambda: container.processed == 30)
            assert all(task.instances["Handling"] for task in container.tasks.values())
    assert [(each["partitions"], each["tasks"]) for each in logs if "producers" in each["event"]]


@pytest.mark.parametrize("partitions", [1, 8])
async def test_a_keyed_input_gets_more_partitions_and_each_key_goes_on_with_its_state(
    system: MemorySystem, settings: dict[str, str], partitions: int
) -> None:
    def put(count: int) -> None:
        homes = Partitioner(count)
        for user in users:
            system.put("clicks", homes.memo[user], Click(user))
        system.routed("clicks", "crc32m:user")

    users = [f"user-{n}" for n in range(64)]
    system.create("clicks", 4)
    put(4)
    tasks = max(4, partitions)
    app = CountingApp(system="memory")
    async with running(app, settings, partitions=partitions) as container:
        await until(lambda: container.processed == 64)
        assert len(container.tasks) == tasks
    settings["systems.memory.samza.offset.default"] = "upcoming"
    for life in (2, 4):  # it goes on by what the start before has kept
        put(4)  # by those that have not heard of it
        system.create("clicks", 8)
        put(8)
        app = CountingApp(system="memory")
        async with running(app, settings, partitions=partitions) as container:
            await until(lambda: container.processed == 128)
            assert len(container.tasks) == tasks
        assert app.counts == dict.fromkeys(users, life + 1)


@pytest.mark.parametrize("keyed", [True, False])
async def test_the_reason_why_a_job_may_not_have_more_tasks_names_what_makes_them(
    system: MemorySystem, settings: dict[str, str], keyed: bool
) -> None:
    def make() -> App:
        app = App("clicks")
        tally = app.create_pe(Count)
        if not keyed:
            tally.set_singleton()
        key = "user" if keyed else None
        app.create_input_stream("clicks", tally, types=Click, key=key, system="memory")
        return app

    system.create("clicks", 4)
    async with running(make(), settings):
        pass
    if not keyed:
        system.create("clicks", 8)
    fix = r"give memory.clicks \(8 partitions\) a key"
    if keyed:
        fix = "set s4.cluster.partitions = 4$"
    with dies(CheckpointError, match=f"(?m)it had 4 tasks and would have 8, .*; {fix}"):
        async with running(make(), settings, partitions=8 if keyed else 4):
            await trio.sleep_forever()


# -- what cannot be processed ---------------------------------------------------------------------


async def test_an_event_that_does_not_decode_stops_the_container_naming_its_place(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, Click("ada", 1))
    system.put_raw("clicks", 0, b"\xc1", like=Click)
    with dies(DecodeError, match=r"memory.clicks\[0\] offset 1: Click does not decode"):
        async with running(clicks_app(), settings):
            await trio.sleep_forever()


@pytest.mark.parametrize("partitions", [1, 4])
async def test_events_that_do_not_decode_are_dropped_and_counted_where_the_settings_say_so(
    system: MemorySystem, settings: dict[str, str], partitions: int
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, Click("ada", 0))
    system.put_raw("clicks", 0, b"\xc1", like=Click)
    system.put("clicks", 0, Click("bob", 2), Other("no click"), Click("ada", 4))
    app = clicks_app()
    settings["task.drop.deserialization.errors"] = "true"
    async with running(app, settings, partitions=partitions) as container:
        await until(lambda: safe(container) == 5)
        assert container.replay.dead_letters.counts == {"memory.clicks": 2}
    assert sorted(app.seen) == [("ada", 0), ("ada", 4), ("bob", 2)]
    again = clicks_app()
    async with running(again, settings, partitions=partitions):
        system.put("clicks", 0, Click("ada", 5))
        await until(lambda: again.seen == [("ada", 5)])


@pytest.mark.parametrize("partitions", [1, 4])
async def test_dead_letters_are_kept_with_place_reason_and_bytes_before_progress_moves_on(
    system: MemorySystem, settings: dict[str, str], partitions: int
) -> None:
    system.create("clicks", 1)
    system.create("dead", 1)
    system.put("clicks", 0, Click("ada", 0))
    system.put_raw("clicks", 0, b"\x91\xc1", like=Click)
    system.put("clicks", 0, Click("ada", 2))
    dead = SystemStreamPartition("memory", "dead", 0)
    app = clicks_app()
    settings["task.dead.letter.stream"] = "memory.dead"
    async with running(app, settings, partitions=partitions) as container:
        await until(lambda: safe(container) == 3)
        assert (await system.bounds(dead)).upcoming == 1
        reader = await system.open(dead, 0, [GenericEvent])
        batch = await reader.read()
        assert isinstance(batch, InputBatch)
        batch.load()
    [letter] = batch.events
    assert (letter.system, letter.stream, letter.partition, letter.offset) == (
        "memory",
        "clicks",
        0,
        1,
    )
    assert "does not decode" in letter.reason
    assert letter.raw == b"\x91\xc1"
    assert app.seen == [("ada", 0), ("ada", 2)]


async def test_progress_waits_for_a_dead_letter_that_is_not_kept_yet(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    graveyard = fresh("another")
    graveyard.create("dead", 1)
    system.create("clicks", 1)
    system.put("clicks", 0, Click("ada", 0))
    system.put_raw("clicks", 0, b"\xc1", like=Click)
    system.put("clicks", 0, Click("ada", 2))
    app = clicks_app()
    more = {
        "systems.graveyard.type": "input_systems:memory",
        "systems.graveyard.address": "another",
        "task.dead.letter.stream": "graveyard.dead",
    }
    async with running(app, settings | more) as container:
        graveyard.go_away()
        await until(lambda: len(app.seen) == 2)
        progress = container.replay.consumers.progress[0][ssp(0)]
        assert progress.safe == 0  # the batch is held by its second event
        graveyard.come_back()
        await until(lambda: progress.safe == 3)


async def test_an_event_whose_key_is_not_found_is_rejected_like_one_that_does_not_decode(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, Click("ada", 0), Click("", 1), Click("ada", 2))
    for partitions in (1, 4):
        more = {
            "task.drop.deserialization.errors": "true",
            "s4.state.folder": f"{settings['s4.state.folder']}{partitions}",
        }
        app = clicks_app(key=lambda click: click.user or None)
        async with running(app, settings | more, partitions=partitions) as container:
            progress = container.replay.consumers.progress[0]
            await until(lambda: ssp(0) in progress and progress[ssp(0)].safe == 3)  # noqa: B023
            assert container.replay.dead_letters.counts == {"memory.clicks": 1}
        assert app.seen == [("ada", 0), ("ada", 2)]
    with dies(DecodeError, match=r"offset 1: .*KeyFinder returned nothing"):
        async with running(clicks_app(key=lambda click: click.user or None), settings):
            await trio.sleep_forever()


async def test_a_dead_letter_stream_that_does_not_exist_stops_the_start(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    for name, said in (
        ("dead", "is neither an output stream"),
        ("memory.dead", "no stream 'dead'"),
    ):
        with dies(S4Error, match=said):
            async with running(clicks_app(), {**settings, "task.dead.letter.stream": name}):
                raise AssertionError("it runs")


# -- commits and what the app has put on streams --------------------------------------------------


def detour() -> HoldingApp:
    """From an input over two streams of its own."""
    app = HoldingApp("others")
    first, second = app.create_pe(Forward), app.create_pe(Forward)
    first.set_singleton()
    app.create_input_stream("clicks", first, system="memory")
    first.out = app.create_stream("inner", second, key="n")
    second.out = app.create_stream("second", app.pe, key="user")
    return app


async def test_a_commit_waits_for_no_other_task(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    other = next(f"user-{n}" for n in range(9) if Partitioner(2).partition_of(f"user-{n}") == 1)
    system.create("clicks", 1)
    system.put("clicks", 0, *(Click(other, number) for number in range(10)))
    app = detour()
    often = {**settings, "task.commit.ms": "5"}
    async with running(app, often, partitions=2) as container:
        committer = container.replay.committer
        await until(lambda: container.tasks[1].gate.in_flight == 1)
        await until(lambda: committer.committed()[0].offsets.get(ssp(0)) == 10)
        assert not app.seen
        app.may_go_on.set()
    assert len(app.seen) == 10


@pytest.mark.long
async def test_an_input_is_read_no_faster_than_its_stream_is_throttled(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, *(Click("ada", number) for number in range(100)))
    app = clicks_app()
    slow = {"s4.stream.executor": "throttle", "s4.stream.maxRate": "100"}
    async with running(app, settings | slow):
        began = trio.current_time()
        await until(lambda: len(app.seen) == 100)
        assert trio.current_time() - began > 0.5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
async def test_an_app_that_waits_for_a_log_which_is_not_there_can_be_stopped(
    number: signal.Signals, tmp_path: Path
) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    app = tmp_path / "job.py"
    app.write_text(
        "from s4node import TaskApp\n"
        "class Job:\n"
        "    def process(self, envelope, collector, coordinator): pass\n"
        'job = TaskApp("job", Job, inputs=["log.clicks"])\n'
    )
    settings = {"systems.log.address": address, "s4.state.folder": str(tmp_path / "state")}
    given = [word for pair in settings.items() for word in ("-p", "=".join(pair))]
    async with node_process(app, *given, cwd=tmp_path, ready=False) as node:
        await until(lambda: "cannot be reached" in node.errors)
        assert address in node.errors
        node.signal(number)
        assert await node.wait() == 0, node.errors


# -- set-up ---------------------------------------------------------------------------------------


class Other(Event):
    title: str


def clicks_and_others() -> NotingApp:
    app = clicks_app()
    app.create_input_stream("others", app.pe, key="user", system="memory")
    return app


def clicks_app(*, system: str = "memory", key: Any = "user") -> NotingApp:
    """Notes the users and numbers of clicks."""
    return NotingApp(
        name="clicks", key=key, system=system, note=lambda _, click: (click.user, click.n)
    )


def ssp(partition: int, stream: str = "clicks") -> SystemStreamPartition:
    return SystemStreamPartition("memory", stream, partition)


def safe(container: Container, partition: int = 0) -> int:
    """How far the task of a partition has come in it; -1 before it has begun."""
    assert container.replay.keeps
    progress = container.replay.consumers.progress[partition].get(ssp(partition))
    return -1 if progress is None else progress.safe
