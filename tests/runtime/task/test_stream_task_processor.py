"""Users' tasks in real containers: every way to process, on inputs that can be read again."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import trio
from harness import running, until
from tasks_in_every_way import (
    IN_ORDER,
    MODES,
    TOGETHER,
    Awaiting,
    Click,
    Job,
    Plain,
    committed,
    every_mode,
    fill,
    nothing,
    ssp,
)

from s4node.app.stream_task import Collector, Coordinator, Envelope, TaskContext
from s4node.systems.memory import MemorySystem
from s4node.testing import AppTest

SETTINGS = {"task.commit.ms": "0"}


# --- every way to process ------------------------------------------------------------------------


async def test_each_partition_has_a_task_which_gets_its_events(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 3, 60)
    seen: dict[Any, list[Envelope]] = defaultdict(list)
    app = Job(lambda: Plain(lambda task, envelope, *_: seen[id(task)].append(envelope)))
    async with running(app, settings):
        await until(lambda: sum(map(len, seen.values())) == 180)
    for partition, task in enumerate(app.tasks):
        for offset, e in enumerate(seen[id(task)]):
            place = "memory", "clicks", partition, offset
            assert (e.system, e.stream, e.partition, e.offset, e.key) == (*place, None)
            assert e.message == Click(f"user{offset % 5}", offset)
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

    async with running(
        Job(lambda: Plain(meet)), settings | {"job.container.thread.pool.size": "4"}
    ) as container:
        await until(lambda: container.processed == 20)
    assert sorted(met) == [0, 1, 2, 3]
