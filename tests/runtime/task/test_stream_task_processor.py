"""Users' tasks in real containers: every way to process, on inputs that can be read again."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio
from harness import running, until
from input_systems import fresh
from shared_apps import OnePE

from s4node import Event
from s4node.app.stream_task import Callback, Collector, Coordinator, Envelope, TaskApp, TaskContext
from s4node.errors import CallbackError, GraphError, ProcessingError, S4Error, TaskError
from s4node.events.keys import KeySpec
from s4node.offsets.system import SystemStreamPartition
from s4node.runtime.container.container import Container
from s4node.systems.memory import MemorySystem
from s4node.testing import AppTest

ADDRESS = "the tasks'"


class Click(Event):
    user: str
    number: int = 0


Body = Callable[[Any, Envelope, Collector, Coordinator], None]


class Plain:
    """Processes at once."""

    def __init__(self, body: Body) -> None:
        self.body = body

    def process(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> None:
        self.body(self, envelope, collector, coordinator)


class Awaiting:
    """Waits a little first, less for later events, so that they overtake each other."""

    def __init__(self, body: Body) -> None:
        self.body = body

    async def process(
        self, envelope: Envelope, collector: Collector, coordinator: Coordinator
    ) -> None:
        await trio.sleep((3 - envelope.offset % 4) / 1000)
        self.body(self, envelope, collector, coordinator)


POOL = ThreadPoolExecutor(8)


class Calling:
    """Has its events processed by threads, which call back."""

    def __init__(self, body: Body) -> None:
        self.body = body

    def process_async(
        self,
        envelope: Envelope,
        collector: Collector,
        coordinator: Coordinator,
        callback: Callback,
    ) -> None:
        def run() -> None:
            time.sleep((3 - envelope.offset % 4) / 1000)
            try:
                self.body(self, envelope, collector, coordinator)
            except Exception as error:
                callback.failure(error)
            else:
                callback.complete()

        POOL.submit(run)


TOGETHER = {"task.max.concurrency": "8"}
BY_KEY = {**TOGETHER, "task.order": "key"}
THREADS = {"job.container.thread.pool.size": "4"}
MODES: dict[str, tuple[Callable[[Body], Any], dict[str, str]]] = {
    "plain": (Plain, {}),
    "threads": (Plain, THREADS),
    "threads, with a timeout": (Plain, THREADS | {"task.callback.timeout.ms": "20000"}),
    "threads, together": (Plain, THREADS | TOGETHER),
    "threads, by key": (Plain, THREADS | BY_KEY),
    "async": (Awaiting, {}),
    "async, with a timeout": (Awaiting, {"task.callback.timeout.ms": "20000"}),
    "async, together": (Awaiting, TOGETHER),
    "async, by key": (Awaiting, BY_KEY),
    "callbacks": (Calling, {}),
    "callbacks, together": (Calling, TOGETHER),
    "callbacks, by key": (Calling, BY_KEY),
}
IN_ORDER = [name for name, (_, values) in MODES.items() if "task.max.concurrency" not in values]


BOTH = ("memory.clicks", "memory.views")
every_mode = pytest.mark.parametrize("mode", MODES)


@pytest.fixture
def system() -> MemorySystem:
    return fresh(ADDRESS)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    return {
        "systems.memory.type": "input_systems:memory",
        "systems.memory.address": ADDRESS,
        "s4.state.folder": str(tmp_path / "state"),
        "streams.clicks.samza.offset.default": "oldest",
        "streams.views.samza.offset.default": "oldest",
        "task.commit.ms": "0",
    }


class Job(TaskApp):
    """An app of the tasks that ``factory`` makes; ``tasks`` are those that it has made."""

    def __init__(
        self,
        factory: Callable[[], Any],
        *inputs: str,
        key: KeySpec | None = None,
        outputs: tuple[str, ...] = (),
    ) -> None:
        super().__init__("job", self._make, inputs=inputs or ("memory.clicks",), outputs=outputs)
        self.tasks: list[Any] = []
        self._factory = factory
        self._key = key

    def on_init(self) -> None:
        for name in self.inputs:
            self.create_input_stream(name.split(".")[1], types=Click, key=self._key)

    def _make(self) -> Any:
        self.tasks.append(self._factory())
        return self.tasks[-1]


def ssp(partition: int = 0, stream: str = "clicks") -> SystemStreamPartition:
    return SystemStreamPartition("memory", stream, partition)


def fill(system: MemorySystem, partitions: int, events: int, stream: str = "clicks") -> None:
    """Events numbered by their offset; offset n is of user n % 5."""
    system.create(stream, partitions)
    for partition in range(partitions):
        clicks = [Click(f"user{n % 5}", n) for n in range(events)]
        system.put(stream, partition, *clicks)


def committed(container: Container, partition: int = 0, stream: str = "clicks") -> int | None:
    """The offset that a restart would go on at."""
    assert container.replay.keeps
    return container.replay.consumers.progress[partition][ssp(partition, stream)].committed


def nothing(*_: Any) -> None:
    """The body of a task that does nothing."""


async def run_to_end(app: TaskApp, settings: Mapping[str, str]) -> None:
    """Run an app until it stops by itself."""
    async with running(app, settings) as container:
        with trio.fail_after(20):
            await container._stopping.wait()


# --- every way to process ------------------------------------------------------------------------


@every_mode
async def test_each_partition_has_a_task_which_gets_each_event_once(
    system: MemorySystem, settings: dict[str, str], mode: str
) -> None:
    fill(system, 3, 60)
    seen: dict[Any, list[Envelope]] = defaultdict(list)
    make, values = MODES[mode]
    app = Job(lambda: make(lambda task, envelope, *_: seen[id(task)].append(envelope)))
    async with running(app, settings | values):
        await until(lambda: sum(map(len, seen.values())) == 180)
    assert len(app.tasks) == 3
    for partition, task in enumerate(app.tasks):
        mine = seen[id(task)]
        assert sorted(e.offset for e in mine) == list(range(60))
        if mode in IN_ORDER:
            assert [e.offset for e in mine] == list(range(60))
        for e in mine:
            assert (e.system, e.stream, e.partition, e.key) == ("memory", "clicks", partition, None)
            assert e.message == Click(f"user{e.offset % 5}", e.offset)
            assert e.created_ms > 1_600_000_000_000


@every_mode
async def test_what_a_task_sends_comes_out_in_every_mode(
    system: MemorySystem, settings: dict[str, str], mode: str
) -> None:
    fill(system, 2, 50)

    def double(_task: Any, envelope: Envelope, collector: Collector, _: Any) -> None:
        if envelope.stream == "clicks":
            collector.send("back", Click("x", envelope.offset * 2))
        else:
            came.append(envelope.message.number)

    came: list[int] = []
    make, values = MODES[mode]

    class Back(Job):
        def on_init(self) -> None:
            super().on_init()
            self.create_stream("back", types=Click)

    async with running(Back(lambda: make(double)), settings | values):
        await until(lambda: len(came) == 100)
    assert sorted(came) == sorted([n * 2 for n in range(50)] * 2)


# --- callbacks from wherever ---------------------------------------------------------------------


class AsyncioLoop:
    """An asyncio loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def foreign() -> Iterator[AsyncioLoop]:
    loop = AsyncioLoop()
    yield loop
    loop.close()


def at_once(_: AsyncioLoop, callback: Callback) -> None:
    callback.complete()


def from_a_thread(_: AsyncioLoop, callback: Callback) -> None:
    threading.Thread(target=callback.complete).start()


def from_asyncio(foreign: AsyncioLoop, callback: Callback) -> None:
    async def request() -> None:
        await asyncio.sleep(0.001)
        callback.complete()

    asyncio.run_coroutine_threadsafe(request(), foreign.loop)


def from_a_future(_: AsyncioLoop, callback: Callback) -> None:
    def ended(future: Future[int]) -> None:
        error = future.exception()
        if error is None:
            callback.complete()
        else:
            callback.failure(error)

    POOL.submit(int, "42").add_done_callback(ended)


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("ending", [at_once, from_a_thread, from_asyncio, from_a_future])
async def test_a_callback_may_come_from_anywhere(
    system: MemorySystem,
    settings: dict[str, str],
    foreign: AsyncioLoop,
    ending: Callable[[AsyncioLoop, Callback], None],
    concurrency: int,
) -> None:
    fill(system, 2, 200)
    threads: set[int] = set()
    begun: list[tuple[int, int]] = []

    class Request:
        def process_async(self, envelope: Envelope, _c: Any, _k: Any, callback: Callback) -> None:
            threads.add(threading.get_ident())
            begun.append((envelope.partition, envelope.offset))
            ending(foreign, callback)

    values = settings | {"task.max.concurrency": str(concurrency)}
    async with running(Job(Request), values) as container:
        await until(lambda: container.processed == 400)
    assert threads == {threading.get_ident()}
    for partition in (0, 1):
        assert [n for p, n in begun if p == partition] == list(range(200))


@pytest.mark.parametrize("second", ["complete", "failure"])
@pytest.mark.parametrize("thread", [False, True])
async def test_a_callback_that_is_called_twice_stops_the_container_and_is_named(
    system: MemorySystem, settings: dict[str, str], second: str, thread: bool
) -> None:
    fill(system, 1, 3)

    class Twice:
        def process_async(self, envelope: Envelope, _c: Any, _k: Any, callback: Callback) -> None:
            def end() -> None:
                callback.complete()
                if envelope.offset == 1:
                    callback.complete() if second == "complete" else callback.failure(ValueError())

            POOL.submit(end) if thread else end()

    with pytest.raises(CallbackError, match=r"'Partition 0' .* clicks\[0\]@1 twice"):
        async with running(Job(Twice), settings):
            await trio.sleep_forever()


async def test_a_callback_that_does_not_come_in_time_stops_the_container_and_is_named(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 3)

    class Forget:
        def process_async(self, envelope: Envelope, _c: Any, _k: Any, callback: Callback) -> None:
            if envelope.offset != 1:
                callback.complete()

    values = settings | {"task.callback.timeout.ms": "60", "task.max.concurrency": "3"}
    with pytest.raises(
        CallbackError, match=r"'Partition 0' .* clicks\[0\]@1 was not ended within 0.06 s"
    ):
        async with running(Job(Forget), values):
            await trio.sleep_forever()


async def test_an_async_process_that_hangs_is_found_by_the_timeout_too(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 1)

    class Hang:
        async def process(self, *_: Any) -> None:
            await trio.sleep_forever()

    with pytest.raises(CallbackError, match=r"clicks\[0\]@0 was not ended within 0.05 s"):
        async with running(Job(Hang), settings | {"task.callback.timeout.ms": "50"}):
            await trio.sleep_forever()


@pytest.mark.parametrize("mode", MODES)
async def test_a_collector_that_is_used_after_its_event_raises_and_says_what_to_use(
    system: MemorySystem, settings: dict[str, str], mode: str
) -> None:
    fill(system, 1, 3)
    kept: list[Any] = []
    make, more = MODES[mode]

    def body(_t: Any, envelope: Envelope, collector: Any, _k: Any) -> None:
        collector.send("seen", envelope.message)
        kept.append((collector, envelope.message))

    app = Job(lambda: make(body), outputs=("seen",))
    async with running(app, settings | more) as container:
        await until(lambda: container.processed == 3)
        await until(lambda: not any(task.busy for task in container.tasks.values()))
        for collector, event in kept:
            with pytest.raises(S4Error, match="had ended; await the sending code in an async def"):
                collector.send("seen", event)


async def test_a_collector_that_is_used_after_a_window_raises(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 1)
    kept: list[Any] = []

    class Windows:
        def process(self, envelope: Envelope, collector: Any, _k: Any) -> None:
            pass

        def window(self, collector: Any, _k: Any) -> None:
            kept.append(collector)

    app = Job(Windows, outputs=("seen",))
    async with running(app, settings | {"task.window.ms": "10"}):
        await until(lambda: kept)
        with pytest.raises(S4Error, match="window or timer that led to it had ended"):
            kept[0].send("seen", Click("joe", 1))


@pytest.mark.parametrize("handlers", [1, 2])
@pytest.mark.parametrize("awaits", [False, True])
async def test_tasks_that_a_handler_leaves_running_cannot_put_after_its_end(
    system: MemorySystem, settings: dict[str, str], awaits: bool, handlers: int
) -> None:
    fill(system, 1, 3)
    kept: list[tuple[contextvars.Context, Click]] = []

    def keep(_pe: Any, click: Click) -> None:
        kept.append((contextvars.copy_context(), click))  # as a task that is started has it

    async def keep_later(pe: Any, click: Click) -> None:
        keep(pe, click)

    app = OnePE(keep_later if awaits else keep, types=Click, system="memory")
    app.input.set_parallelism(handlers)
    seen = app.create_output_stream("seen", types=Click)
    async with running(app, settings) as container:
        await until(lambda: container.processed == 3)
        await until(lambda: not any(task.busy for task in container.tasks.values()))
        for context, event in kept:
            with pytest.raises(S4Error, match="or after its end; await in the handler"):
                context.run(seen.put, event)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Threads hang until it is set."""
    event = threading.Event()
    yield event
    event.set()


async def test_a_plain_process_that_hangs_in_a_thread_is_found_by_the_timeout_too(
    system: MemorySystem, settings: dict[str, str], gate: threading.Event
) -> None:
    fill(system, 1, 1)

    def hang(*_: Any) -> None:
        gate.wait(30)

    values = THREADS | {"task.callback.timeout.ms": "50", "task.shutdown.ms": "100"}
    with pytest.raises(CallbackError, match=r"clicks\[0\]@0 was not ended within 0.05 s"):
        async with running(Job(lambda: Plain(hang)), settings | values):
            await trio.sleep_forever()
    assert not gate.is_set()


async def test_a_process_that_hangs_in_a_thread_is_left_alone_when_the_time_to_stop_is_over(
    system: MemorySystem, settings: dict[str, str], gate: threading.Event
) -> None:
    fill(system, 1, 3)
    begun = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def hang(_t: Any, envelope: Envelope, *_: Any) -> None:
        if envelope.offset == 1:
            token.run_sync_soon(begun.set)
            gate.wait(30)

    values = settings | THREADS | {"task.shutdown.ms": "100"}
    with trio.fail_after(10):
        async with running(Job(lambda: Plain(hang)), values) as container:
            await begun.wait()
    assert not gate.is_set()
    assert (committed(container) or 0) <= 1


async def test_a_task_in_a_thread_is_closed_after_its_process_call_when_another_fails(
    system: MemorySystem, settings: dict[str, str], gate: threading.Event
) -> None:
    fill(system, 2, 1)
    told: list[str] = []
    hanging = threading.Event()

    class Slow(Plain):
        def close(self) -> None:
            told.append("closed")

    def body(_t: Any, envelope: Envelope, *_: Any) -> None:
        if envelope.partition == 0:
            hanging.wait(10)
            raise ValueError("enough")
        hanging.set()
        gate.wait(0.2)
        told.append("processed")

    with pytest.raises(TaskError, match="enough"):
        async with running(Job(lambda: Slow(body)), settings | THREADS):
            await trio.sleep_forever()
    assert told == ["processed", "closed", "closed"]


async def test_a_callback_of_a_container_that_is_gone_is_ignored(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 2)
    kept: list[Callback] = []

    class Keep:
        def process_async(self, _e: Any, _c: Any, _k: Any, callback: Callback) -> None:
            kept.append(callback)

    async with running(Job(Keep), settings | {"task.shutdown.ms": "10"}) as container:
        await until(lambda: kept)
        assert committed(container) in (None, 0)
    kept[0].complete()
    await trio.to_thread.run_sync(kept[0].complete)  # not even twice
    await trio.testing.wait_all_tasks_blocked()
    assert committed(container) in (None, 0)  # it will be processed again


async def test_what_is_sent_after_the_callback_is_an_error_and_not_lost(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 1)
    late: list[Collector] = []

    class Late:
        def process_async(self, _e: Any, collector: Collector, _k: Any, callback: Any) -> None:
            late.append(collector)
            callback.complete()

    async with running(Job(Late, outputs=("out",)), settings) as container:
        await until(lambda: container.processed == 1)
        with pytest.raises(S4Error, match="call its callback when all is sent"):
            late[0].send("out", Click("x"))


# --- windows, commits and what happens before what -----------------------------------------------


async def test_a_stop_whose_time_runs_out_commits_nothing_of_a_task_with_an_event_under_way(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 2, 20)
    seen: list[tuple[int, int]] = []
    hangs = {(1, 5)}

    class Hanging:
        async def process(self, envelope: Envelope, _c: Any, _k: Any) -> None:
            if (envelope.partition, envelope.offset) in hangs:
                await trio.sleep_forever()
            seen.append((envelope.partition, envelope.offset))

    values = settings | {"task.shutdown.ms": "100"}
    async with running(Job(Hanging), values):
        await until(lambda: len(seen) == 25)
    hangs.clear()
    async with running(Job(Hanging), values):
        await until(lambda: len(seen) == 45)
    assert seen[25:] == [(1, n) for n in range(20)]


class Crash(Exception):  # noqa: N818 - it is none of ours
    """Ends a container at once."""


@pytest.mark.parametrize("async_commit", ["false", pytest.param("true", marks=pytest.mark.long)])
@every_mode
async def test_at_whatever_moment_it_crashes_only_what_was_processed_is_committed(
    system: MemorySystem, settings: dict[str, str], mode: str, async_commit: str
) -> None:
    fill(system, 3, 100)
    fill(system, 2, 50, "views")
    make, values = MODES[mode]
    seen: set[tuple[str, int, int]] = set()

    def write(_t: Any, envelope: Envelope, _c: Collector, coordinator: Coordinator) -> None:
        seen.add((envelope.stream, envelope.partition, envelope.offset))
        if envelope.offset % 13 == 5:
            coordinator.commit()

    values = (
        settings
        | values
        | {"task.commit.ms": "10", "task.window.ms": "3", "task.async.commit": async_commit}
    )
    dice = random.Random(3)
    for _ in range(8):
        try:
            async with running(Job(lambda: make(write), *BOTH), values) as container:
                await trio.sleep(dice.random() * 0.05)
                assert container.replay.keeps
                for progress in container.replay.consumers.progress.values():
                    for (_, stream, partition), one in progress.items():
                        below = range(one.committed or 0)
                        assert seen.issuperset((stream, partition, n) for n in below)
                raise Crash
        except Crash:
            pass
    async with running(Job(lambda: make(write), *BOTH), values):
        await until(lambda: len(seen) == 400)


async def test_ticks_of_a_window_coalesce_and_a_slow_one_is_warned_of_once(
    system: MemorySystem, settings: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    system.create("clicks", 1)
    windows: list[float] = []

    class Slow(Plain):
        def window(self, _c: Any, _k: Any) -> None:
            windows.append(trio.current_time())
            time.sleep(0.03)

    async with running(Job(lambda: Slow(nothing)), settings | {"task.window.ms": "10"}):
        await until(lambda: len(windows) == 4)
    gaps = [b - a for a, b in itertools.pairwise(windows)]
    assert min(gaps) >= 0.03
    assert capsys.readouterr().err.count("a window takes longer than its interval") == 1


@pytest.mark.parametrize("start", [0.0, 0.05], ids=["at once", "starts longer than a window"])
async def test_a_window_of_one_task_does_not_hold_up_the_others(
    system: MemorySystem, settings: dict[str, str], start: float
) -> None:
    fill(system, 2, 1)
    inside = trio.Event()
    go_on = trio.Event()

    class Waits(Awaiting):
        def init(self, _p: Any, _c: Any) -> None:
            time.sleep(start)

        async def window(self, _c: Any, _k: Any) -> None:
            if app.tasks[0] is self:
                inside.set()
                await go_on.wait()

    app = Job(lambda: Waits(nothing))
    async with running(app, settings | {"task.window.ms": "5"}) as container:
        await inside.wait()
        first, other = container.tasks[0].processed, container.tasks[1].processed
        for partition in (0, 1):
            system.put("clicks", partition, *[Click("x", n) for n in range(20)])
        await until(lambda: container.tasks[1].processed == 21)
        assert container.tasks[0].processed == first
        assert other <= 21
        go_on.set()
        await until(lambda: container.tasks[0].processed == 21)


# --- what tasks ask for --------------------------------------------------------------------------


async def test_a_commit_may_be_asked_for_all_tasks(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 3, 5)

    def ask(_t: Any, envelope: Envelope, _c: Any, coordinator: Coordinator) -> None:
        if envelope.partition == 1 and envelope.offset == 5:
            coordinator.commit(all_tasks=True)

    async with running(Job(lambda: Plain(ask)), settings) as container:
        await until(lambda: container.processed == 15)
        system.put("clicks", 1, Click("x", 5))
        await until(lambda: [committed(container, p) for p in range(3)] == [5, 6, 5])


async def test_the_container_stops_when_all_tasks_have_said_that_they_are_done_and_no_sooner(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 2, 3)

    def ask(_t: Any, envelope: Envelope, _c: Any, coordinator: Coordinator) -> None:
        if envelope.offset == (1 if envelope.partition == 0 else 6):
            coordinator.shutdown()

    app = Job(lambda: Plain(ask))
    async with running(app, settings) as container:
        await until(lambda: container.processed == 6)
        system.put("clicks", 0, Click("x", 3))  # it has said so, and goes on
        await until(lambda: container.processed == 7)
        assert not container._stopping.is_set()
        system.put("clicks", 1, *[Click("x", n) for n in range(3, 7)])
        await until(container._stopping.is_set)
    assert (committed(container, 0), committed(container, 1)) == (4, 7)


@every_mode
async def test_a_shutdown_of_all_stops_in_order_and_commits_what_was_asked_for_before(
    system: MemorySystem, settings: dict[str, str], mode: str
) -> None:
    fill(system, 2, 80)
    make, values = MODES[mode]
    seen: list[tuple[int, int]] = []

    def ask(_t: Any, envelope: Envelope, _c: Any, coordinator: Coordinator) -> None:
        seen.append((envelope.partition, envelope.offset))
        if (envelope.partition, envelope.offset) == (0, 20):
            coordinator.commit()
            coordinator.shutdown(all_tasks=True)

    async with running(Job(lambda: make(ask)), settings | values) as container:
        await until(container._stopping.is_set)
    for partition in (0, 1):
        done = [n for p, n in seen if p == partition]
        assert sorted(done) == list(range(len(done)))
        assert committed(container, partition) == len(done)
    done = [n for p, n in seen if p == 0]
    assert 21 <= len(done) <= (21 if mode in IN_ORDER else 80)


async def test_at_the_end_of_all_inputs_tasks_are_told_commit_and_the_container_stops(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 2, 50)
    fill(system, 2, 10, "views")
    told: list[int] = []

    class Ends(Awaiting):
        seen = 0

        async def on_end_of_stream(self, collector: Collector, _k: Any) -> None:
            assert self.seen == 60
            told.append(self.seen)
            collector.send("out", Click("sum", self.seen))

    def count(task: Any, *_: Any) -> None:
        task.seen += 1

    app = Job(lambda: Ends(count), "memory.clicks", "memory.views", outputs=("out",))
    async with running(app, settings | TOGETHER) as container:
        await until(lambda: container.processed == 120)
        for partition in (0, 1):
            system.end_partition("clicks", partition)
        assert told == []
        system.end_partition("views", 1)
        await until(lambda: len(told) == 1)
        assert not container._stopping.is_set()
        system.end_partition("views", 0)
        await until(container._stopping.is_set)
    assert told == [60, 60]
    assert [committed(container, p) for p in (0, 1)] == [50, 50]
    assert [committed(container, p, "views") for p in (0, 1)] == [10, 10]


async def test_tasks_that_send_to_each_other_are_told_of_the_end_when_nothing_is_left_anywhere(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 2, 40)
    seen: list[str] = []

    class Loops(Awaiting):
        async def on_end_of_stream(self, *_: Any) -> None:
            seen.append("end")

    def send(_t: Any, envelope: Envelope, collector: Collector, _k: Any) -> None:
        seen.append(envelope.stream)
        if envelope.stream == "clicks":
            collector.send("words", Click(f"user{envelope.offset % 7}"))

    class App(Job):
        def on_init(self) -> None:
            super().on_init()
            self.create_stream("words", types=Click, key="user")

    system.end_partition("clicks", 0)
    async with running(App(lambda: Loops(send)), settings) as container:
        await until(lambda: container.processed == 160)
        system.end_partition("clicks", 1)
        await until(container._stopping.is_set)
    assert seen.count("words") == 80
    assert seen[-2:] == ["end", "end"]


# --- what goes wrong -----------------------------------------------------------------------------


@every_mode
async def test_an_event_whose_error_is_ignored_is_done_and_its_place_is_free(
    system: MemorySystem, settings: dict[str, str], mode: str
) -> None:
    fill(system, 1, 60)
    make, values = MODES[mode]

    class OddError(ValueError):
        pass

    def odd(_t: Any, envelope: Envelope, *_: Any) -> None:
        if envelope.offset % 2:
            raise OddError(envelope.offset)

    values = values | {"task.ignored.exceptions": "KeyError, builtins.ValueError"}
    async with running(Job(lambda: make(odd)), settings | values) as container:
        await until(lambda: container.processed == 60)
        assert container.statistics().tasks[0].ignored == {"OddError": 30}
    assert committed(container) == 60


@every_mode
async def test_an_error_that_is_not_ignored_stops_the_container_and_names_the_place(
    system: MemorySystem, settings: dict[str, str], mode: str
) -> None:
    fill(system, 2, 30)
    make, values = MODES[mode]
    closed: list[int] = []

    def fail(_t: Any, envelope: Envelope, *_: Any) -> None:
        if (envelope.partition, envelope.offset) == (1, 7):
            raise ValueError("seven")

    class Closes(make):  # type: ignore[misc, valid-type]
        def close(self) -> None:
            closed.append(1)

    values = values | {"task.ignored.exceptions": "KeyError"}
    told = (
        r"process(_async)? of task 'Partition 1' \(Closes\) of app 'job' raised ValueError: "
        r"seven; event at clicks\[1\]@7"
    )
    with pytest.raises(TaskError, match=told) as caught:
        async with running(Job(lambda: Closes(fail)), settings | values) as container:
            await trio.sleep_forever()
    assert isinstance(caught.value.__cause__, ValueError)
    assert closed == [1, 1]
    assert (committed(container, 1) or 0) <= 7


HOOKS = ["init", "window", "timer", "on_end_of_stream", "close"]


@pytest.mark.parametrize("threads", ["0", "2"])
@pytest.mark.parametrize("hook", HOOKS)
async def test_a_hook_that_raises_stops_the_container_named_and_the_others_are_closed(
    system: MemorySystem, settings: dict[str, str], hook: str, threads: str
) -> None:
    fill(system, 2, 3)
    closed: list[int] = []

    class Task(Plain):
        number = 0

        def _raise(self, name: str) -> None:
            if name == hook and self.number == 0:
                raise LookupError(f"in {name}")

        def init(self, _config: Any, context: TaskContext) -> None:
            self.number = context.partition
            context.schedule(0.01, lambda _c, _k: self._raise("timer"))
            self._raise("init")

        def window(self, *_: Any) -> None:
            self._raise("window")

        def on_end_of_stream(self, *_: Any) -> None:
            self._raise("on_end_of_stream")

        def close(self) -> None:
            closed.append(self.number)
            self._raise("close")

    for partition in (0, 1):
        system.end_partition("clicks", partition)
    values = settings | {"task.window.ms": "5", "job.container.thread.pool.size": threads}
    if hook == "timer":
        system.create("clicks", 0)
        fill(system, 2, 3)
    if hook == "window":
        system.create("clicks", 0)
        fill(system, 2, 3)
    told = rf"{hook} of task 'Partition 0' \(Task\) of app 'job' raised LookupError: in {hook}"
    with pytest.raises(TaskError, match=told) as caught:
        await run_to_end(Job(lambda: Task(nothing)), values)
    assert ("task.ignored.exceptions" in str(caught.value)) == (hook in ("window", "timer"))
    if hook != "init":
        assert sorted(closed) == [0, 1]


async def test_a_container_that_all_tasks_of_a_process_would_share_is_refused(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    class Base(Plain):
        seen: dict[str, int] = {}  # noqa: RUF012 - that is what is refused

    class Shares(Base): ...

    class Says(Plain):
        seen: ClassVar[dict[str, int]] = {}
        sizes = (1, 2)

    class Makes(Base):
        def __init__(self, process: Callable[..., Any]) -> None:
            super().__init__(process)
            self.seen = {}

    fill(system, 1, 1)
    told = "all tasks of a process would share 'seen' of Shares, a dict; make it in __init__, or"
    with pytest.raises(GraphError, match=told):
        await run_to_end(Job(lambda: Shares(nothing)), settings)
    for cls in (Says, Makes):
        came: list[Any] = []
        app = Job(lambda cls=cls, came=came: cls(lambda _, envelope, *__: came.append(envelope)))
        async with running(app, settings):
            system.put("clicks", 0, Click("joe", 1))
            await until(lambda came=came: came)


async def test_a_factory_that_raises_and_an_object_that_is_not_a_task_are_reported(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 1)

    def broken() -> Any:
        raise OSError("no database")

    with pytest.raises(ProcessingError, match=r"factory of task 'Partition 0'.*no database"):
        await run_to_end(Job(broken), settings)
    with pytest.raises(GraphError, match="str is not a task; give it a method process"):
        await run_to_end(Job(str), settings)
    with pytest.raises(GraphError, match="has no factory"):
        await run_to_end(TaskApp("none", inputs=["memory.clicks"]), settings)
    with pytest.raises(GraphError, match="has the factory 5, which cannot be called"):
        await run_to_end(TaskApp("five", 5, inputs=["memory.clicks"]), settings)  # type: ignore[arg-type]


class AsyncBegin:
    async def process_async(self, *_: Any) -> None:
        raise AssertionError("nobody awaits this")


class Aio:
    async def process(self, *_: Any) -> None:
        await asyncio.sleep(1)  # of 0 trio itself says what is wrong


async def test_async_tasks_that_cannot_work_are_told_what_to_write(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 1)
    with pytest.raises(GraphError, match="process_async of AsyncBegin is an async def"):
        await run_to_end(Job(AsyncBegin), settings)
    told = r"no running event loop.*fix the task \(a node's loop is trio's"
    with pytest.raises(ProcessingError, match=told):
        await run_to_end(Job(Aio), settings)


class YieldsPlain:
    def process(self, *_: Any) -> Any:
        yield

    def init(self, *_: Any) -> Any:
        yield

    def on_end_of_stream(self, *_: Any) -> Any:
        yield


class YieldsAsync:
    def process_async(self, *_: Any) -> Any:
        yield

    async def process(self, *_: Any) -> Any:
        yield

    async def window(self, *_: Any) -> Any:
        yield

    def close(self) -> Any:
        yield


class YieldsInTimer:
    def init(self, _: Any, context: TaskContext) -> None:
        context.schedule(0, self.late)

    async def late(self, *_: Any) -> Any:
        yield

    def process(self, *_: Any) -> None: ...


async def test_tasks_with_methods_that_would_never_run_for_their_yield_are_refused(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 1)
    never = "contains yield, so calling it would not run it; remove the yield, and send with"
    for cls, hooks in (
        (YieldsPlain, ["process", "init", "on_end_of_stream"]),
        (YieldsAsync, ["process_async", "process", "window", "close"]),
    ):
        with pytest.raises(GraphError) as caught:
            await run_to_end(Job(cls), settings)
        first, *lines = str(caught.value).split("\n")
        assert first == "app 'job' cannot run:"
        assert lines == [
            f"  - {hook} of {cls.__name__} {never} collector.send(stream, event)" for hook in hooks
        ]
    with pytest.raises(TaskError, match=r"init of task .*late\b.* contains yield"):
        await run_to_end(Job(YieldsInTimer), settings)


async def test_a_plain_wrapper_of_an_async_task_is_told_to_be_async(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 1)

    class Wrapper:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def process(self, *arguments: Any) -> Any:
            return self.inner.process(*arguments)

    with pytest.raises(ProcessingError, match="write 'async def', and await what it calls"):
        await run_to_end(Job(lambda: Wrapper(Awaiting(nothing))), settings)


async def test_sending_to_an_unknown_stream_of_a_task_names_the_known_ones(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 1)

    def send(_t: Any, _e: Any, collector: Collector, _k: Any) -> None:
        collector.send("outt", Click("x"))

    with pytest.raises(ProcessingError, match="no stream 'outt'; the app has out, clicks"):
        await run_to_end(Job(lambda: Plain(send), outputs=("out",)), settings)


# --- what a task is given ------------------------------------------------------------------------


async def test_a_task_knows_its_partition_and_sets_its_starting_offsets(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 2, 20)
    seen: list[tuple[int, int]] = []
    contexts: list[TaskContext] = []

    class Told(Plain):
        async def init(self, config: Mapping[str, str], context: TaskContext) -> None:
            contexts.append(context)
            assert config == {"threshold": "7"}
            with pytest.raises(KeyError, match=r"'Partition .' has no store 'counts'"):
                context.store("counts")
            context.metrics.counter("told").increment()
            if context.partition == 1:
                context.set_starting_offset(context.system_stream_partitions[0], 15)

    app = Job(lambda: Told(lambda _t, e, *_: seen.append((e.partition, e.offset))))
    async with running(app, settings | {"s4.app.threshold": "7"}):
        await until(lambda: len(seen) == 25)
        told = [context.metrics.counter("told").value for context in contexts]
    assert told == [1, 1]
    assert sorted(seen) == [(0, n) for n in range(20)] + [(1, n) for n in range(15, 20)]
    assert [c.task_name for c in contexts] == ["Partition 0", "Partition 1"]
    assert [c.system_stream_partitions for c in contexts] == [(ssp(0),), (ssp(1),)]


@pytest.mark.parametrize("threads", ["0", "2"])
async def test_timers_run_alone_and_in_order_and_may_be_async_and_set_others(
    system: MemorySystem, settings: dict[str, str], threads: str
) -> None:
    system.create("clicks", 1)
    rang: list[str] = []

    class Timed(Awaiting):
        def init(self, _config: Any, context: TaskContext) -> None:
            self.context = context
            context.schedule(0.02, self.second)
            context.schedule(0.01, self.first)

        def first(self, _c: Collector, _k: Coordinator) -> None:
            rang.append("first")

        async def second(self, collector: Collector, coordinator: Coordinator) -> None:
            await trio.sleep(0.01)
            rang.append("second")
            collector.send("out", Click("x"))
            coordinator.commit()
            self.context.schedule(0, lambda _c, _k: rang.append("third"))

    app = Job(lambda: Timed(nothing), outputs=("out",))
    async with running(app, settings | {"job.container.thread.pool.size": threads}):
        await until(lambda: len(rang) == 3)
    assert rang == ["first", "second", "third"]


def test_a_timer_of_an_idle_task_may_be_set_and_cancelled_from_anywhere() -> None:
    rang: list[tuple[str, float]] = []

    class Timed(Plain):
        def init(self, _config: Any, context: TaskContext) -> None:
            self.context = context

    def ring(name: str) -> Callable[..., None]:
        return lambda _c, _k: rang.append((name, test.now))

    class Reminding(Job):
        def on_start(self) -> None:
            self.start_soon(self.remind)

        async def remind(self) -> None:
            await trio.sleep(10)
            self.tasks[0].context.schedule(5, ring("of a coroutine"))

    with AppTest(Reminding(lambda: Timed(nothing))) as test:
        context = test.task().context

        def set_and_cancel() -> None:
            cancel = context.schedule(5, ring("cancelled"))
            context.schedule(6, ring("of a thread"))
            cancel()

        test.advance(20)
        thread = threading.Thread(target=set_and_cancel)
        thread.start()
        thread.join()
        test.advance(20)
    assert rang == [("of a coroutine", 15.0), ("of a thread", 26.0)]


async def test_threads_run_tasks_beside_each_other_and_leave_the_loop_free(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 4, 5)
    barrier = threading.Barrier(4)
    met: list[int] = []

    def meet(_t: Any, envelope: Envelope, *_: Any) -> None:
        if envelope.offset == 0:
            met.append(barrier.wait(10))  # all four at a time, or it breaks

    async with running(Job(lambda: Plain(meet)), settings | THREADS) as container:
        await until(lambda: container.processed == 20)
    assert sorted(met) == [0, 1, 2, 3]
