"""The kit with apps of tasks: what a test does to them, and what it can look at."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
from shared_apps import NotingApp

from s4node import Event
from s4node.app.stream_task import Callback, Collector, Coordinator, Envelope, TaskApp, TaskContext
from s4node.errors import CallbackError, S4Error, TaskError
from s4node.testing import AppTest


def test_events_have_offsets_by_partition_and_go_in_turn_or_where_the_test_says() -> None:
    seen: list[tuple[int, int, int]] = []

    class Look:
        def process(self, envelope: Envelope, *_: Any) -> None:
            seen.append((envelope.partition, envelope.offset, envelope.message.number))

    with AppTest(Counting(Look), partitions=2) as test:
        test.send("clicks", Click("a", 1), Click("b", 2), Click("c", 3))
        test.send("clicks", Click("d", 4), partition=1)
    assert sorted(seen) == [(0, 0, 1), (0, 1, 3), (1, 0, 2), (1, 1, 4)]


def test_windows_come_as_the_test_moves_the_clock_and_what_they_send_can_be_seen() -> None:
    with AppTest(Counting, settings=WINDOWS) as test:
        test.send("clicks", Click("ada"), Click("bob"))
        assert test.output("totals") == []
        test.advance(seconds=1)
        test.send("clicks", Click("ada"))
        test.advance(seconds=2.5)
        assert test.output("totals") == [Total(2), Total(3), Total(3)]
        assert test.task().clicks == 3


def test_a_commit_covers_exactly_the_event_that_asked_for_it_and_the_end_covers_all() -> None:
    with AppTest(Counting, partitions=2) as test:
        test.send("clicks", Click("ada"), Click("bob"), partition=0)
        assert test.committed("clicks", 0) == 0
        test.send("clicks", Click("commit"), Click("ada"), partition=0)
        assert (test.committed("clicks", 0), test.committed("clicks", 1)) == (3, 0)
        test.advance(seconds=60)
        assert test.committed("clicks", 0) == 4
        test.send("clicks", Click("ada"), partition=0)
        task = test.task(0)
    assert test.committed("clicks", 0) == 5
    assert task.clicks == -1


def test_the_end_of_all_inputs_is_told_and_committed() -> None:
    with AppTest(Counting, partitions=2) as test:
        test.send("clicks", Click("ada"), partition=1)
        test.end_input("clicks", partition=1)
        assert [test.task(p).ended for p in (0, 1)] == [False, True]
        assert test.committed("clicks", 1) == 1
        assert not test.asked_to_stop
        test.end_input("clicks", partition=0)
        assert test.asked_to_stop


def test_all_tasks_together_may_ask_for_the_end() -> None:
    with AppTest(Counting, partitions=2) as test:
        test.send("clicks", Click("stop"), partition=0)
        assert not test.asked_to_stop
        test.send("clicks", Click("stop"), partition=1)
        assert test.asked_to_stop


def test_what_is_to_be_ignored_is_counted_and_anything_else_is_raised() -> None:
    with AppTest(Counting, settings={"task.ignored.exceptions": "ValueError"}) as test:
        test.send("clicks", Click("odd"), Click("ada"))
        assert test.ignored == {"ValueError": 1}
        assert test.task().clicks == 2
    told = r"process .* ValueError: odd; event at clicks\[0\]@0"
    with AppTest(Counting) as test, pytest.raises(TaskError, match=told):
        test.send("clicks", Click("odd"))


def test_async_tasks_wait_on_the_test_s_clock() -> None:
    done: list[tuple[float, int]] = []

    class Slow:
        async def process(self, envelope: Envelope, *_: Any) -> None:
            await trio.sleep([10, 9, 8, 4, 0.5][envelope.offset])
            done.append((test.now, envelope.offset))

    with AppTest(Counting(Slow), settings={"task.max.concurrency": "3"}) as test:
        test.send("clicks", *[Click("a", n) for n in range(5)])
        test.advance(seconds=8)
        assert done == [(8.0, 2)]
        test.advance(seconds=20)
        assert [offset for _, offset in done] == [2, 1, 4, 0, 3]


def test_callbacks_may_come_from_the_test_or_from_a_thread() -> None:
    callbacks: list[Callback] = []

    class Keep:
        def process_async(self, _e: Any, _c: Any, _k: Any, callback: Callback) -> None:
            callbacks.append(callback)

    with AppTest(Counting(Keep)) as test:
        test.send("clicks", Click("a"), Click("b"), Click("c"))
        assert len(callbacks) == 1
        callbacks[0].complete()
        test.advance(0)
        assert len(callbacks) == 2
        threading.Thread(target=callbacks[1].complete).start()
        test.wait(lambda: len(callbacks) == 3)
        callbacks[2].complete()
        test.advance(0)
        callbacks[2].complete()
        with pytest.raises(CallbackError, match="twice"):
            test.advance(0)


def test_timers_ring_on_the_test_s_clock_unless_cancelled_and_an_offset_may_be_chosen() -> None:
    rang: list[float] = []

    class Timed(Count):
        def init(self, _config: Any, context: TaskContext) -> None:
            context.schedule(30, lambda _c, _k: rang.append(test.now))
            self.cancelled = [
                context.schedule(at, lambda _c, _k: rang.append(-1)) for at in (9, 40)
            ]
            context.set_starting_offset(context.system_stream_partitions[0], 100)

    with AppTest(Counting(Timed)) as test:
        for cancel in test.task().cancelled:
            cancel()
        test.advance(29)
        assert rang == []
        test.advance(12)
        assert rang == [30.0]
        test.task().cancelled[0]()
        test.send("clicks", Click("commit"))
        assert test.committed("clicks") == 101


def test_a_task_is_looked_at_where_there_is_one_only() -> None:
    with AppTest(NotingApp()) as test:
        with pytest.raises(S4Error, match="is not a TaskApp"):
            test.task()
        with pytest.raises(S4Error, match="'clicks' is not read from a system"):
            test.end_input("clicks")


def test_a_grouper_makes_the_tasks_that_a_node_has() -> None:
    class Two(TaskApp):
        def __init__(self) -> None:
            super().__init__("two", Count, inputs=["log.clicks", "log.others"], outputs=["totals"])

        def on_init(self) -> None:
            for name in ("clicks", "others"):
                self.create_input_stream(name, types=Click)

    settings = {"job.systemstreampartition.grouper.factory": "by-ssp"}
    with AppTest(Two, partitions=2, settings=settings) as test:
        test.send("clicks", Click("a"), Click("b"), Click("commit"))
        test.send("others", Click("a"), partition=1)
        assert sorted(test.task(each).clicks for each in range(4)) == [0, 1, 1, 2]
        assert (test.committed("clicks", 0), test.committed("others", 1)) == (2, 0)


def test_a_partition_that_all_tasks_read_is_read_by_all() -> None:
    class Two(TaskApp):
        def __init__(self) -> None:
            super().__init__("two", Count, inputs=["log.clicks", "log.rules"], outputs=["totals"])

        def on_init(self) -> None:
            for name in ("clicks", "rules"):
                self.create_input_stream(name, types=Click)

    settings = {"task.broadcast.inputs": "log.rules#[0-1]"}
    with AppTest(Two, partitions=2, settings=settings) as test:
        test.send("rules", Click("a"), partition=0)
        test.send("clicks", Click("a"), partition=1)
        assert [test.task(each).clicks for each in range(2)] == [1, 2]


def test_a_task_goes_on_after_a_crash_where_it_has_committed() -> None:
    with AppTest(Counting) as test:
        test.send("clicks", Click("a"), Click("commit"), Click("b"))
        test.crash()
        assert test.committed("clicks") == 2
        assert test.task().clicks == 1


# -- set-up ---------------------------------------------------------------------------------------


class Click(Event):
    user: str
    number: int = 0


class Total(Event):
    clicks: int


class Count:
    def __init__(self) -> None:
        self.clicks = 0
        self.ended = False

    def process(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> None:
        self.clicks += 1
        if envelope.message.user == "commit":
            coordinator.commit()
        elif envelope.message.user == "stop":
            coordinator.shutdown()
        elif envelope.message.user == "odd":
            raise ValueError("odd")

    def window(self, collector: Collector, coordinator: Coordinator) -> None:
        collector.send("totals", Total(self.clicks))

    def on_end_of_stream(self, collector: Collector, coordinator: Coordinator) -> None:
        self.ended = True

    def close(self) -> None:
        self.clicks = -1


class Counting(TaskApp):
    def __init__(self, factory: Any = Count) -> None:
        super().__init__("counting", factory, inputs=["log.clicks"], outputs=["totals"])

    def on_init(self) -> None:
        self.create_input_stream("clicks", types=Click)


WINDOWS = {"task.window.ms": "1000"}
