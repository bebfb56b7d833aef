"""Promises of docs/semantics.md about progress: real containers, crashes, a system in memory."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from harness import ANY_PORT, running, until
from saved_state import saved_positions
from tracing import MODES, Click, Trace

from s4node import App, Callback, Collector, Config, Container, Coordinator, Envelope, TaskApp
from s4node.events.keys import Partitioner, hasher_named
from s4node.state.task_state import TaskState
from s4node.systems.memory import MemorySystem

SETTINGS = {"task.commit.ms": "0"}

EVERY_ORDER = pytest.mark.parametrize(
    "order",
    [
        {"task.max.concurrency": "1"},
        {"task.max.concurrency": "8"},
        {"task.max.concurrency": "8", "task.order": "key"},
    ],
    ids=["one at a time", "eight", "eight by key"],
)
EVERY_WAY = pytest.mark.parametrize(
    ("mode", "order"),
    [
        pytest.param(
            mode,
            {"task.max.concurrency": str(most)} | ({"task.order": "key"} if by_key else {}),
            # each mode in one order, and each order in two modes and more
            marks=[] if at % 3 == number else [pytest.mark.long],
            id=f"{mode}, {name}",
        )
        for at, mode in enumerate(MODES)
        for number, (name, most, by_key) in enumerate(
            [("one at a time", 1, False), ("eight", 8, False), ("eight by key", 8, True)]
        )
    ],
)


# -- what a commit covers -------------------------------------------------------------------------


@EVERY_WAY
async def test_a_commit_asked_for_at_an_event_covers_exactly_that_event(
    mode: str, order: dict[str, str], system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 100)
    trace = Trace(commit_every=42)  # at the events 41 and 83
    app = traced_app(mode, trace)
    async with crashing(app, {**settings, **order, **MODES[mode][1]}):
        await until(lambda: trace.ended == 100)
        await until(lambda: progress(settings) == {"clicks[0]": 84})
    trace.close()
    again = Trace()
    async with crashing(traced_app(mode, again), {**settings, **order, **MODES[mode][1]}):
        await until(lambda: again.ended == 16)
    again.close()
    assert sorted(begun(again)) == [(("clicks", 0), n) for n in range(84, 100)]


async def test_without_a_waiting_producer_a_commit_waits_for_the_interval(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 100)
    trace = Trace()
    app = traced_app("on the loop", trace)
    async with crashing(app, settings | {"task.commit.ms": "60000"}) as node:
        await until(lambda: trace.ended == 100)
        assert not node.tasks[0].schedule.commit_scheduled
        assert progress(settings) == {"clicks[0]": 0}  # that of the start
    trace.close()


class Held:
    """Ends each event when the test says so."""

    def __init__(self, held: dict[tuple[str, int], Callback], commit_at: int = -1) -> None:
        self.held = held
        self.commit_at = commit_at

    def process_async(
        self, envelope: Envelope, collector: Collector, coordinator: Coordinator, callback: Callback
    ) -> None:
        self.held[envelope.stream, envelope.offset] = callback
        if envelope.offset == self.commit_at:
            coordinator.commit()


def held_app(held: dict[tuple[str, int], Callback], *streams: str, commit_at: int = -1) -> TaskApp:
    app = TaskApp("held", lambda: Held(held, commit_at))
    for stream in streams or ("clicks",):
        app.create_input_stream(stream, key="user", types=Click, system="memory")
    return app


async def test_events_completed_after_a_commit_request_need_no_further_event(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 8)
    held: dict[tuple[str, int], Callback] = {}
    settings |= {"task.max.concurrency": "8"}
    app = held_app(held, commit_at=0)
    async with crashing(app, settings) as node:
        await until(lambda: len(held) == 8)
        for n in (7, 3, 1, 2, 4, 6, 5, 0):
            held["clicks", n].complete()
        await until(lambda: progress(settings) == {"clicks[0]": 1})
        node.tasks[0].want_commit()
        node.parts.loop.wake(node.tasks[0])
        await until(lambda: progress(settings) == {"clicks[0]": 8})


async def test_a_checkpoint_never_covers_an_event_that_is_not_done(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 20)
    held: dict[tuple[str, int], Callback] = {}
    settings |= {"task.max.concurrency": "20", "task.async.commit": "true", "task.commit.ms": "10"}
    async with crashing(held_app(held), settings) as node:
        await until(lambda: len(held) == 20)
        for n in range(20):
            if n not in (5, 11):
                held["clicks", n].complete()
        await until(lambda: progress(settings) == {"clicks[0]": 5})
        held["clicks", 11].complete()
        commits = node.tasks[0].statistics().calls["commit"]
        await until(lambda: node.tasks[0].statistics().calls["commit"] > commits + 4)
        assert progress(settings) == {"clicks[0]": 5}
    again: dict[tuple[str, int], Callback] = {}
    async with crashing(held_app(again), settings):
        await until(lambda: len(again) == 15)
        assert min(again) == ("clicks", 5)
        for callback in again.values():
            callback.complete()
        await until(lambda: progress(settings) == {"clicks[0]": 20})


async def test_a_slow_stream_does_not_hold_the_progress_of_another_back(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 3, stream="slow")
    fill(system, 30, stream="quick")
    held: dict[tuple[str, int], Callback] = {}
    settings |= {"task.max.concurrency": "40", "task.async.commit": "true", "task.commit.ms": "10"}
    async with crashing(held_app(held, "slow", "quick"), settings):
        await until(lambda: len(held) == 33)
        for (stream, n), callback in held.items():
            if (stream, n) != ("slow", 0):
                callback.complete()
        await until(lambda: progress(settings).get("quick[0]") == 30)
        assert progress(settings)["slow[0]"] == 0
        held["slow", 0].complete()
        await until(lambda: progress(settings) == {"quick[0]": 30, "slow[0]": 3})


async def test_events_of_other_tasks_go_on_in_order_past_batches_without_own_ones(
    settings: dict[str, str], system: MemorySystem
) -> None:
    partitioner = Partitioner(2, hasher_named("crc32m"))
    own, other = (
        next(user for user in map("u{}".format, range(99)) if partitioner.memo[user] == number)
        for number in (0, 1)
    )
    system.create("clicks", 1)
    begun, going, seen = trio.Event(), trio.Event(), []

    class Slow:
        async def process(
            self, envelope: Envelope, collector: Collector, coordinator: Coordinator
        ) -> None:
            click: Click = envelope.message
            if click.user == own:
                begun.set()
                await going.wait()
            seen.append((click.user, click.n))

    app = TaskApp("slow", Slow)
    app.create_input_stream("clicks", key="user", types=Click, system="memory")
    system.put("clicks", 0, Click(own, 1), Click(other, 2))
    settings |= {"task.max.concurrency": "8", "task.order": "key"}
    async with running(app, settings, partitions=2):
        await begun.wait()
        system.put("clicks", 0, Click(other, 3))  # a batch that has nothing of the task that reads
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert seen == []
        going.set()
        await until(lambda: len(seen) == 3)
    assert [click for click in seen if click[0] == other] == [(other, 2), (other, 3)]


async def test_progress_is_saved_at_every_interval(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 10)
    trace = Trace()
    async with crashing(traced_app("on the loop", trace), settings | {"task.commit.ms": "20"}):
        await until(lambda: progress(settings) == {"clicks[0]": 10})
        system.put("clicks", 0, Click("ann"))
        await until(lambda: progress(settings) == {"clicks[0]": 11})
    trace.close()


# -- stops and crashes ----------------------------------------------------------------------------


@EVERY_WAY
async def test_after_a_stop_in_order_nothing_is_processed_again_and_nothing_is_skipped(
    mode: str, order: dict[str, str], system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 600, partitions=3)
    settings |= {**order, **MODES[mode][1]}
    first, second = Trace(), Trace()
    async with running(traced_app(mode, first), settings, partitions=3):
        await until(lambda: first.ended > 40)
    assert first.ended == len(begun(first))
    async with running(traced_app(mode, second), settings, partitions=3):
        await until(lambda: first.ended + second.ended >= 600)
    for trace in (first, second):
        trace.close()
    expected = [(("clicks", p), n) for p in range(3) for n in range(200)]
    assert sorted(begun(first) + begun(second)) == expected


@EVERY_WAY
async def test_after_a_crash_processing_goes_on_from_the_last_commit(
    mode: str, order: dict[str, str], system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 600, partitions=3)
    settings |= {**order, **MODES[mode][1], "task.async.commit": str(mode == "in threads").lower()}
    first, second = Trace(commit_every=23), Trace()
    async with crashing(traced_app(mode, first), settings, partitions=3):
        await until(lambda: first.ended > 150)
    first.close()
    kept = progress(settings)
    ended = {(s.input, s.offset) for s in first.steps if s[1:3] == ("event", "end")}
    for p in range(3):  # what is kept is done
        assert ended >= {(("clicks", p), n) for n in range(kept.get(f"clicks[{p}]", 0))}
    async with crashing(traced_app(mode, second), settings, partitions=3):
        left = 600 - sum(kept.values())
        await until(lambda: second.ended == left)
    second.close()
    expected = [
        (("clicks", p), n) for p in range(3) for n in range(kept.get(f"clicks[{p}]", 0), 200)
    ]
    assert sorted(begun(second)) == expected


# -- what is sent ---------------------------------------------------------------------------------


class Pass:
    """Sends what it gets on, and in its window how much that was."""

    def __init__(self) -> None:
        self.count = 0

    def process(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> None:
        self.count += 1
        collector.send("onward", envelope.message)

    def window(self, collector: Collector, coordinator: Coordinator) -> None:
        if self.count:
            collector.send("counts", Click("all", self.count))
        self.count = 0


class Keep:
    """Keeps the numbers of what it gets."""

    def __init__(self, kept: dict[str, list[int]]) -> None:
        self.kept = kept

    def process(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> None:
        self.kept[envelope.stream].append(envelope.message.n)


def pass_app() -> TaskApp:
    app = TaskApp("pass", Pass)
    app.create_input_stream("clicks", key="user", types=Click, system="memory")
    app.create_output_stream("onward", key="user", types=Click)
    app.create_output_stream("counts", key="user", types=Click)
    return app


def keep_app(kept: dict[str, list[int]]) -> TaskApp:
    app = TaskApp("keep", lambda: Keep(kept))
    for stream in ("onward", "counts"):
        app.create_input_stream(stream, key="user", types=Click)
    return app


@pytest.mark.parametrize("threads", ["0", "4"])
async def test_events_sent_by_handlers_and_windows_arrive_once_and_in_order(
    threads: str, system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 900, partitions=3)
    kept: dict[str, list[int]] = defaultdict(list)
    settings |= {"job.container.thread.pool.size": threads, "task.window.ms": "20"}
    async with running(keep_app(kept), partitions=2) as end:
        for stream in ("onward", "counts"):
            settings[f"s4.stream.{stream}.consumers"] = "end"
        settings["s4.cluster.end.address"] = end.address
        async with running(pass_app(), settings, partitions=3):
            await until(lambda: sum(kept["counts"]) == 900)
    assert sorted(kept["onward"]) == list(range(900))
    for p in range(3):  # a user's clicks are in one partition here, for 7 and 12 have no divisor
        mine = [n for n in kept["onward"] if n % 12 == p]
        assert mine == sorted(mine)


async def to_nobody_yet(settings: dict[str, str], commit_ms: str) -> str:
    """Have an app send to a consumer that is not there; returns the address at which it will be."""
    async with running(keep_app(defaultdict(list))) as nobody:
        address = nobody.address  # it is free again when this one has gone
    settings |= {
        "s4.stream.onward.consumers": "end",
        "s4.stream.counts.consumers": "end",
        "s4.cluster.end.address": address,
        "task.commit.ms": commit_ms,
    }
    return address


async def test_sent_events_are_saved_with_the_progress_until_they_have_arrived(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 50)
    kept: dict[str, list[int]] = defaultdict(list)
    address = await to_nobody_yet(settings, "10")
    async with crashing(pass_app(), settings) as node:
        await until(lambda: node.processed == 50)
        await until(lambda: progress(settings) == {"clicks[0]": 50})
    async with running(keep_app(kept), address=address), running(pass_app(), settings):
        await until(lambda: len(kept["onward"]) == 50)
    assert kept["onward"] == list(range(50))


@pytest.mark.parametrize("crashes", [False, True])
async def test_events_committed_before_their_consumer_came_need_no_further_commit(
    crashes: bool, system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 50)
    kept: dict[str, list[int]] = defaultdict(list)
    address = await to_nobody_yet(settings, "60000")
    async with crashing(pass_app(), settings) as node:
        await until(lambda: node.processed == 50)
        node.tasks[0].want_commit()
        node.parts.loop.wake(node.tasks[0])
        await until(lambda: progress(settings) == {"clicks[0]": 50})
        if not crashes:
            async with running(keep_app(kept), address=address):
                await until(lambda: len(kept["onward"]) == 50)
    if crashes:
        async with crashing(pass_app(), settings), running(keep_app(kept), address=address):
            await until(lambda: len(kept["onward"]) == 50)
    assert kept["onward"] == list(range(50))


class Seldom:
    """Sends on what it gets from the thirtieth event on."""

    def process(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> None:
        if envelope.offset >= 30:
            collector.send("onward", envelope.message)


def seldom_app() -> TaskApp:
    app = TaskApp("seldom", Seldom)
    app.create_input_stream("clicks", key="user", types=Click, system="memory")
    app.create_output_stream("onward", key="user", types=Click)
    return app


async def test_the_first_event_that_a_task_sends_leaves_with_the_commit_that_has_it(
    system: MemorySystem, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = threading.Event()
    write = TaskState.write_commit

    def slowly(state: TaskState) -> None:
        may_write.wait(20)
        write(state)

    kept: dict[str, list[int]] = defaultdict(list)
    async with running(keep_app(kept)) as end:
        settings |= {
            "s4.stream.onward.consumers": "end",
            "s4.cluster.end.address": end.address,
            "task.commit.ms": "60000",  # without it, what is sent asks for commits
        }
        system.create("clicks", 1)
        async with crashing(seldom_app(), settings) as node:
            task = node.tasks[0]
            fill(system, 10)
            await until(lambda: node.processed == 10)  # and its first commit is written
            monkeypatch.setattr(TaskState, "write_commit", slowly)
            for upto in (20, 30):  # one commit is under way, another is asked for
                fill(system, 10)
                await until(lambda: node.processed == upto)  # noqa: B023
                task.want_commit()
                node.parts.loop.wake(task)
                await until(lambda: not task.gate.commit_due)
            fill(system, 10)
            await until(lambda: node.processed == 40)
            may_write.set()
            await until(lambda: len(kept["onward"]) == 10)
        async with running(seldom_app(), settings | {"task.commit.ms": "20"}):
            await until(lambda: progress(settings) == {"clicks[0]": 40})
    assert sorted(kept["onward"]) == list(range(10))


class FromThreads:
    """Sends and asks for commits in the threads of its pool."""

    def __init__(self, threads: set[int]) -> None:
        self.threads = threads

    def process(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> None:
        self.threads.add(threading.get_ident())
        time.sleep(0.0002)
        collector.send("onward", envelope.message)
        if envelope.offset % 10 == 9:
            coordinator.commit()


@EVERY_ORDER
async def test_tasks_send_and_ask_for_commits_from_their_threads(
    order: dict[str, str], system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 400, partitions=4)
    kept: dict[str, list[int]] = defaultdict(list)
    threads: set[int] = set()
    app = TaskApp("threads", lambda: FromThreads(threads))
    app.create_input_stream("clicks", types=Click, system="memory")
    app.create_output_stream("onward", key="user", types=Click)
    async with running(keep_app(kept)) as end:
        settings |= {
            **order,
            "job.container.thread.pool.size": "4",
            "s4.stream.onward.consumers": "end",
            "s4.cluster.end.address": end.address,
        }
        async with crashing(app, settings, partitions=4) as container:
            committed = container.replay.committer.committed
            await until(lambda: sum(sum(c.offsets.values()) for c in committed().values()) == 400)
            await until(lambda: len(kept["onward"]) == 400)  # sent once the commit is written
        assert progress(settings) == {f"clicks[{p}]": 100 for p in range(4)}
    assert sorted(kept["onward"]) == list(range(400))
    assert threading.get_ident() not in threads
    assert len(threads) > 1


# -- set-up ---------------------------------------------------------------------------------------


def progress(settings: dict[str, str]) -> dict[str, int]:
    """The saved offset of each partition, such as ``clicks[0]``; of broadcast ones the least."""
    kept: dict[str, int] = {}
    for app in Path(settings["s4.state.folder"]).glob("default/*"):
        for positions in saved_positions(app).values():
            for place, offset in positions.items():
                name = place.partition(".")[2]
                kept[name] = min(offset, kept.get(name, offset))
    return kept


@asynccontextmanager
async def crashing(
    app: App, settings: dict[str, str], partitions: int = 1
) -> AsyncIterator[Container]:
    """A container that is not stopped in order: it ends at once, without a last commit."""
    values = {
        "s4.listener.address": ANY_PORT,
        "s4.cluster.partitions": str(partitions),
        "s4.watchdog.ms": "0",
        **settings,
    }
    container = Container(app, Config.from_values(values))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(container.run)
            await container.ready.wait()
            yield container
            nursery.cancel_scope.cancel()


def traced_app(mode: str, trace: Trace, *streams: str, key: str | None = "user") -> TaskApp:
    make, _ = MODES[mode]
    app = TaskApp("traced", lambda: make(trace))
    for stream in streams or ("clicks",):
        app.create_input_stream(stream, key=key, types=Click, system="memory")
    return app


def fill(system: MemorySystem, count: int, partitions: int = 1, stream: str = "clicks") -> None:
    system.create(stream, partitions)
    names = [f"user-{n}" for n in range(99)]
    at, each = Partitioner(partitions).memo, 12 // partitions
    users = [[name for name in names if at[name] == p][:each] for p in range(partitions)]
    for n in range(count):
        mine = users[n % partitions]
        system.put(stream, n % partitions, Click(mine[n * 7 % len(mine)], n))


def begun(trace: Trace) -> list[tuple[tuple[str, int], int]]:
    """Which events began, in which order."""
    return [(s.input, s.offset) for s in trace.steps if s[1:3] == ("event", "begin")]
