"""Events at which handlers fail: nothing of them stays, and everything else counts once."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio
from failing import (
    PLACES,
    AsyncCount,
    Click,
    Count,
    Store,
    Stores,
    counted,
    counts_app,
    fail_if_bad,
    fill,
    letters,
    processed,
    ssp,
    stored,
    truth,
)
from harness import running, until, until_told
from input_systems import dies, fresh
from log_nodes import log_at, read_all
from saved_state import saved_instances, saved_rows
from shared_apps import OnePE, counting

from s4node import App, Client, Container, Event, ProcessingElement, TaskApp
from s4node.errors import ConfigError, ProcessingError
from s4node.events.keys import Partitioner
from s4node.events.schema import JsonText
from s4node.offsets.startpoint import Oldest
from s4node.systems.memory import MemorySystem

SETTINGS = {"s4.stream.clicks.onError": "skip"}

# -- PEs ------------------------------------------------------------------------------------------


PES = [(Count, 1), (AsyncCount, 1), (Count, 4), (AsyncCount, 4)]


@pytest.mark.parametrize(
    ("pe", "handlers", "where"),
    [
        pytest.param(
            *pe,
            where,
            # each kind of PE in one place, and each place with one kind
            marks=[] if at == place else [pytest.mark.long],
            id=f"{pe[0].__name__}, {pe[1]}, {where}",
        )
        for at, pe in enumerate(PES)
        for place, where in enumerate(PLACES)
    ],
)
async def test_counts_of_pes_are_exact_without_the_events_that_fail(
    system: MemorySystem,
    settings: dict[str, str],
    pe: type[ProcessingElement],
    handlers: int,
    where: str,
) -> None:
    clicks = fill(system, 500, PLACES[where])
    async with running(counts_app(pe, handlers), settings, partitions=2) as container:
        await processed(container, system)
        assert container.statistics().replay.left_out == {
            "clicks": sum(click.bad for click in clicks)
        }
    async with running(counts_app(pe, handlers), settings, partitions=2) as container:
        more = [Click(f"user-{n}") for n in range(17)]  # so that each is in memory
        for click in more:
            system.put("clicks", Partitioner(2).partition_of(click.user), click)
        await processed(container, system)
        assert counted(container) == truth(clicks + more)


# -- tasks ----------------------------------------------------------------------------------------


class AsyncStore(Store):
    async def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:  # type: ignore[override]
        await trio.lowlevel.checkpoint()
        super().process(envelope, collector, coordinator)


class CallbackStore:
    def init(self, config: Any, context: Any) -> None:
        self.counts = context.store("counts")
        self.pool = ThreadPoolExecutor(3)
        self.lock = threading.Lock()

    def process_async(self, envelope: Any, collector: Any, coordinator: Any, callback: Any) -> None:
        def work() -> None:
            click = envelope.message
            with self.lock:
                self.counts.put(click.user, self.counts.get(click.user, 0) + 1)
            if click.bad:
                callback.failure(ValueError(f"click {click.number} is bad"))
            else:
                callback.complete()

        self.pool.submit(work)

    def close(self) -> None:
        self.pool.shutdown()


WAYS = {
    "plain": (Store, {}),
    "in threads": (Store, {"job.container.thread.pool.size": "2"}),
    "async": (AsyncStore, {}),
    "several async": (AsyncStore, {"task.max.concurrency": "5", "task.order": "key"}),
    "callbacks": (CallbackStore, {"task.max.concurrency": "5"}),
}


@pytest.mark.parametrize("where", ["some", pytest.param("many in a row", marks=pytest.mark.long)])
@pytest.mark.parametrize("way", WAYS)
async def test_stores_of_tasks_are_exact_without_the_events_that_fail(
    system: MemorySystem, settings: dict[str, str], way: str, where: str
) -> None:
    task, more = WAYS[way]
    clicks = fill(system, 500, PLACES[where])
    settings |= more
    async with running(Stores("stores", task), settings, partitions=2) as container:
        await processed(container, system)
        assert stored(container) == truth(clicks)
    async with running(Stores("stores", task), settings, partitions=2) as container:
        assert stored(container) == truth(clicks)


async def test_other_tasks_go_on_while_one_is_rolled_back(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    closing, closed = trio.Event(), trio.Event()

    class Slow(Store):
        async def close(self) -> None:
            if not closed.is_set():
                closing.set()
                await closed.wait()

    fill(system, 0, None)
    home = Partitioner(2)
    sick = home.partition_of("joe")
    users = [user for user in map(str, range(100)) if home.partition_of(user) != sick]
    system.put("clicks", sick, Click("joe", 0, True), Click("joe", 1))
    async with running(Stores("stores", Slow), settings, partitions=2) as container:
        await closing.wait()
        system.put("clicks", 1 - sick, Click(users[0]), Click(users[1]))
        other = container.tasks[1 - sick]
        await until(lambda: other.processed == 2)
        assert container.tasks[sick].processed == 0
        closed.set()
        await processed(container, system)
        assert stored(container) == {"joe": 1, users[0]: 1, users[1]: 1}


async def test_a_rollback_while_the_reader_is_being_closed_reads_its_events_again(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    closing, closed = trio.Event(), trio.Event()

    async def opened(*arguments: Any) -> Any:
        reader = await MemorySystem.open(system, *arguments)
        close = reader.aclose

        async def slowly() -> None:
            closing.set()
            await closed.wait()
            await close()

        reader.aclose = slowly  # type: ignore[method-assign]
        return reader

    class Waiting(Store):
        async def process(self, *arguments: Any) -> None:  # type: ignore[override]
            await closing.wait()
            super().process(*arguments)

    system.open = opened  # type: ignore[method-assign]
    clicks = fill(system, 20, lambda n: n == 7, partitions=1)
    system.end_partition("clicks", 0)
    async with running(Stores("stores", Waiting), settings) as container:
        first = container.tasks[0]
        try:
            await until(lambda: container.tasks[0] is not first)
            await processed(container, system, partitions=1)
            assert stored(container) == truth(clicks)  # until its end, which waits for the reader
        finally:
            closed.set()
        await until(container._stopping.is_set)


# -- streams inside of the app ---------------------------------------------------------------------


class Hop(Event):
    page: str
    number: int = 0
    bad: bool = False


def put_hop(pe: Any, event: Click) -> None:
    pe.app.hops.put(Hop(f"page-{event.number % 11}", event.number, event.bad))


First = counting(Click, put_hop, name="First")
Second = counting(Hop, fail_if_bad, name="Second")


class Hops(App):
    def on_init(self) -> None:
        self.create_input_stream("clicks", self.create_pe(First), key="user", system="memory")
        self.hops = self.create_stream("hops", self.create_pe(Second), key="page")


@pytest.mark.parametrize("where", PLACES)
async def test_events_on_a_stream_of_the_app_fail_and_every_other_event_counts_once(
    system: MemorySystem, settings: dict[str, str], where: str
) -> None:
    settings["s4.stream.hops.onError"] = "skip"
    settings["task.commit.ms"] = "50"
    clicks = fill(system, 500, PLACES[where])
    bad = sum(click.bad for click in clicks)
    async with running(Hops("hops"), settings, partitions=2) as container:
        await processed(container, system)
        await until(lambda: container.statistics().replay.left_out == {"hops": bad})
        await until(lambda: container.parts.outputs.idle)
    async with running(Hops("hops"), settings, partitions=2) as container:
        more = [Click(f"user-{n % 17}", n) for n in range(17 * 11)]  # so that all are in memory
        for click in more:
            system.put("clicks", Partitioner(2).partition_of(click.user), click)
        await processed(container, system)
        every = clicks + more
        firsts = Counter(click.user for click in every)
        seconds = Counter(f"page-{click.number % 11}" for click in every if not click.bad)
        await until(lambda: counted(container) == firsts + seconds)


class Sums:
    """Counts what comes, and tells pages when nothing more does."""

    def init(self, config: Any, context: Any) -> None:
        self.counts = context.store("counts")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        event = envelope.message
        key = event.page if isinstance(event, Hop) else event.user
        self.counts.put(key, self.counts.get(key, 0) + 1)
        if event.bad:
            raise ValueError(f"{key} is bad")

    def on_end_of_stream(self, collector: Any, coordinator: Any) -> None:
        for number in range(5):
            collector.send("hops", Hop(f"page-{number}", bad=number == 2))


@pytest.mark.parametrize("partitions", [1, 2])
async def test_events_put_at_the_end_of_the_inputs_count_once_except_failing_ones(
    system: MemorySystem, settings: dict[str, str], partitions: int
) -> None:
    class Summing(TaskApp):
        def on_init(self) -> None:
            self.create_input_stream("clicks", key="user", types=Click, system="memory")
            self.create_stream("hops", key="page", types=Hop)
            self.create_store("counts", key=str, value=int)

    settings["s4.stream.hops.onError"] = "skip"
    clicks = fill(system, 20, lambda _: False, partitions)
    for partition in range(partitions):
        system.end_partition("clicks", partition)
    async with running(Summing("summing", Sums), settings, partitions=partitions) as container:
        await container._stopping.wait()
    assert container.statistics().replay.left_out == {"hops": partitions}
    pages = Counter({f"page-{number}": partitions for number in (0, 1, 3, 4)})
    folder = Path(settings["s4.state.folder"]) / "default" / "summing"
    assert saved_rows(folder, "counts") == truth(clicks) + pages


async def test_equal_events_on_a_stream_of_the_app_are_each_skipped(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    class Twice(First):
        def on_event(self, event: Click) -> None:
            super().on_event(event)
            self.app.hops.put(Hop(f"page-{event.number % 11}", event.number, event.bad))

    class Hopping(App):
        def on_init(self) -> None:
            self.create_input_stream("clicks", self.create_pe(Twice), key="user", system="memory")
            self.hops = self.create_stream("hops", self.create_pe(Second), key="page")

    settings |= {"s4.stream.hops.onError": "skip", "task.commit.ms": "50"}
    clicks = fill(system, 20, lambda n: n in (3, 4), partitions=1)
    async with running(Hopping("hopping"), settings, partitions=1) as container:
        assert container.replay.keeps
        progress = container.replay.consumers.progress
        await until(lambda: progress[0][ssp(0)].committed == len(clicks))
    assert container.statistics().replay.left_out == {"hops": 4}
    kept = saved_instances(Path(settings["s4.state.folder"]) / "default" / "hopping")
    pages = Counter(f"page-{click.number % 11}" for click in clicks if not click.bad)
    assert {key: state["clicks"] for key, state in kept.items()} == (
        Counter(click.user for click in clicks) + pages + pages
    )


# -- what producers send --------------------------------------------------------------------------


class Live(App):
    def on_init(self) -> None:
        self.create_input_stream("clicks", self.create_pe(Count), key="user")


@pytest.mark.parametrize("where", PLACES)
async def test_producers_of_durable_streams_are_rolled_back_too(
    settings: dict[str, str], where: str
) -> None:
    del settings["systems.memory.samza.offset.default"]
    settings["s4.stream.clicks.grade"] = "durable"
    clicks = [Click(f"user-{n % 17}", n, PLACES[where](n)) for n in range(500)]
    async with running(Live("live"), settings, partitions=2) as container:
        async with Client(container.address, producer="clicker") as client:
            stream = await client.stream("clicks")
            for at in range(0, 500, 20):
                await stream.send_many(clicks[at : at + 20])
                await trio.lowlevel.checkpoint()
            refusals = await stream.flush()
        assert sum(refusal.count for refusal in refusals) == sum(click.bad for click in clicks)
        assert "is bad" in refusals[0].reason
        async with Client(container.address) as client:
            stream = await client.stream("clicks")
            more = [Click(f"user-{n}") for n in range(17)]  # so that each is in memory
            await stream.send_many(more)
            assert await stream.flush() == []
        assert counted(container) == truth(clicks + more)


# -- dead letters ---------------------------------------------------------------------------------


async def test_a_dead_letter_has_the_event_its_place_and_what_was_wrong(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 0, None, partitions=1)
    system.create("dead", 1)
    system.put("clicks", 0, Click("joe", 0), Click("joe", 1, True), Click("joe", 2))
    settings["s4.stream.clicks.onError"] = "dead-letter"
    settings["task.dead.letter.stream"] = "memory.dead"
    async with running(counts_app(), settings) as container:
        await processed(container, system, partitions=1)
        assert counted(container) == {"joe": 2}
    [letter] = await letters(system)
    place = letter.system, letter.stream, letter.partition, letter.offset
    assert place == ("memory", "clicks", 0, 1)
    assert letter.reason == "ValueError: click 1 is bad"
    assert (letter.type, letter.pe, letter.key) == ("Click", "Count", "'joe'")
    assert "in on_event" in letter.trace
    assert letter.trace.endswith("ValueError: click 1 is bad\n")
    assert letter.raw == b"\x91\x93\xa3joe\x01\xc3"
    assert [field[0] for field in letter.fields] == ["user", "number", "bad"]


async def test_a_dead_letter_names_the_program_whose_event_another_task_has_sent_on(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("dead", 1)
    settings |= {
        "s4.stream.clicks.grade": "durable",
        "s4.stream.clicks.onError": "dead-letter",
        "task.dead.letter.stream": "memory.dead",
        "task.commit.ms": "20",
    }
    texts = [JsonText(b'{"user": "user-%d", "bad": true}' % n) for n in range(8)]

    async def send(address: str, program: str) -> None:
        async with Client(address, producer=program) as client:
            clicks = await client.stream("clicks")
            clicks.read_as("Click")  # lines cannot be routed: all come to one partition
            await clicks.send_many(texts)
            await clicks.flush()

    app = OnePE(Count, types=Click)
    async with running(app, settings, partitions=4) as container:
        async with trio.open_nursery() as nursery:
            for program in ("bank", "till"):
                nursery.start_soon(send, container.address, program)
        await until_told(lambda: letters(system), lambda found: len(found) >= 16)
        assert container.ports["clicks"].deserializer.redispatched
    found = Counter(letter.producer for letter in await letters(system))
    assert found == {"bank": 8, "till": 8}


@pytest.mark.parametrize("where", ["some", "many in a row"])
async def test_each_poison_event_is_a_dead_letter_once(
    system: MemorySystem, settings: dict[str, str], where: str
) -> None:
    clicks = fill(system, 500, PLACES[where])
    system.create("dead", 1)
    settings["s4.stream.clicks.onError"] = "dead-letter"
    settings["task.dead.letter.stream"] = "memory.dead"
    async with running(counts_app(), settings, partitions=2) as container:
        await processed(container, system)
    found = sorted(int(letter.reason.split()[2]) for letter in await letters(system))
    assert found == [click.number for click in clicks if click.bad]


async def test_a_commit_waits_until_dead_letters_of_skipped_events_are_kept(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    graveyard = fresh("a graveyard")
    graveyard.create("dead", 1)
    fill(system, 0, None, partitions=1)
    system.put("clicks", 0, Click("joe", 0), Click("joe", 1, True), Click("joe", 2))
    settings |= {
        "systems.graveyard.type": "input_systems:memory",
        "systems.graveyard.address": "a graveyard",
        "s4.stream.clicks.onError": "dead-letter",
        "task.dead.letter.stream": "graveyard.dead",
        "task.commit.ms": "1",
    }
    async with running(counts_app(), settings) as container:
        graveyard.go_away()
        await until(lambda: container.tasks[0].failures.dead_letters_wait)
        progress = container.replay.consumers.progress[0][ssp(0)]
        await turned(container)  # it could commit in each
        assert progress.committed in (None, 0)  # where it begins, and nothing beyond
        graveyard.come_back()
        await until(lambda: progress.committed == 3)
        assert counted(container) == {"joe": 2}


async def test_the_commit_before_the_end_of_the_inputs_waits_for_dead_letters_too(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    graveyard = fresh("another graveyard")
    graveyard.create("dead", 1)
    fill(system, 0, None, partitions=1)
    system.put("clicks", 0, Click("joe", 0))
    settings |= {
        "systems.graveyard.type": "input_systems:memory",
        "systems.graveyard.address": "another graveyard",
        "s4.stream.clicks.onError": "dead-letter",
        "task.dead.letter.stream": "graveyard.dead",
        "task.commit.ms": "100",
    }
    async with running(counts_app(), settings) as container:
        assert container.replay.keeps
        progress = container.replay.consumers.progress
        await until(lambda: progress[0][ssp(0)].committed == 1)
        graveyard.go_away()
        system.put("clicks", 0, Click("joe", 1, True))
        system.end_partition("clicks", 0)
        await until(lambda: container.tasks[0].failures.dead_letters_wait)
        await turned(container)  # it could commit in each
        assert progress[0][ssp(0)].committed == 1
        assert not container.tasks[0].gate.end_notified
        graveyard.come_back()
        await container._stopping.wait()
    assert progress[0][ssp(0)].committed == 2


# -- what cannot be -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"s4.stream.clicks.onError": "dead-letter"}, "task.dead.letter.stream, which is not set"),
        ({"s4.stream.klicks.onError": "skip"}, "handles no stream 'klicks'; it handles clicks"),
        ({"task.async.commit": "true"}, "task.async.commit = true"),
    ],
)
async def test_an_on_error_that_cannot_be_done_is_refused_at_the_start(
    system: MemorySystem, settings: dict[str, str], more: dict[str, str], problem: str
) -> None:
    fill(system, 0, None)
    with dies(ConfigError, match=problem):
        async with running(counts_app(), settings | more):
            await trio.sleep_forever()


async def test_on_error_is_refused_if_no_input_can_be_replayed(settings: dict[str, str]) -> None:
    del settings["systems.memory.samza.offset.default"]
    with dies(ConfigError, match="no input of app 'live' can be replayed: they are live and fast"):
        async with running(Live("live"), settings):
            await trio.sleep_forever()


# -- texts ----------------------------------------------------------------------------------------

HALF = "\\ud83d"
"""Half of a surrogate pair, which JSON makes of text that was cut in the middle of an emoji."""


class Cut(ProcessingElement):
    """Fails with text that UTF-8 does not have."""

    def on_event(self, event: Click) -> None:
        if event.number == 1:
            raise ValueError(json.loads(f'"{HALF}"'))


@pytest.mark.parametrize("mode", ["skip", "dead-letter"])
async def test_half_of_a_surrogate_pair_in_a_text_of_users_stops_nothing(
    tmp_path: Path, mode: str
) -> None:
    settings = {
        "s4.stream.clicks.grade": "durable",
        "s4.stream.clicks.onError": mode,
        "s4.state.folder": str(tmp_path / "state"),
        "s4.log.folder": str(tmp_path / "log"),
        "task.dead.letter.stream": "log.dead" if mode == "dead-letter" else "",
    }
    async with running(OnePE(Cut, "clicks", key="user"), settings) as node:
        async with log_at(node.address) as log:
            await log.create("dead", 1)
        async with Client(node.address) as client:
            stream = await client.stream("clicks")
            await stream.send_many([Click("joe", number) for number in range(4)])
            refused = {refusal.number: refusal.reason for refusal in await stream.flush()}
            assert refused == {1: f"ValueError: {HALF}"}
        if mode == "dead-letter":
            found = await read_all(node.address, "dead", 1, start=Oldest())
            assert [letter.reason for letter in found] == [refused[1]]


async def test_an_app_that_ends_for_half_of_a_surrogate_pair_says_so() -> None:
    app = OnePE(Cut, "clicks", key="user")
    with dies(ProcessingError, match=r"ValueError: \\ud83d"):
        async with running(app) as node, Client(node.address) as client:
            stream = await client.stream("clicks")
            await stream.send(Click("joe", 1))
            await trio.sleep_forever()


# -- set-up ---------------------------------------------------------------------------------------


async def turned(container: Container, turns: int = 5) -> None:
    """Wait until the loop has had so many turns."""
    wanted = container.parts.loop.turns + turns
    await until(lambda: container.parts.loop.turns >= wanted)
