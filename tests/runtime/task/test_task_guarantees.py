"""The promises of docs/semantics.md about tasks, in every mode: real containers and sockets."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from harness import running
from tracing import (
    MODES,
    Click,
    Step,
    Trace,
    beside,
    most_outstanding,
    of_task,
    out_of_order,
    overlaps,
)

from s4node import Client, TaskApp
from s4node.runtime.task.task import Task

ORDERS = {
    "one at a time": {"task.max.concurrency": "1"},
    "eight": {"task.max.concurrency": "8"},
    "eight by key": {"task.max.concurrency": "8", "task.order": "key"},
}
EVERY_MODE = pytest.mark.parametrize("mode", MODES)
EVERY_ORDER = pytest.mark.parametrize("order", ORDERS)


# -- one event after the other --------------------------------------------------------------------


@EVERY_MODE
@EVERY_ORDER
async def test_every_event_begins_and_ends_once(mode: str, order: str) -> None:
    trace = await traced(mode, order)

    for edge in ("begin", "end"):
        events = [(s.task, s.offset) for s in trace.steps if s[1:3] == ("event", edge)]
        assert len(events) == len(set(events)) == len(CLICKS)


@EVERY_MODE
async def test_the_end_of_an_event_happens_before_the_next_begins(mode: str) -> None:
    trace = await traced(mode, "one at a time")

    for task in range(TASKS):
        steps = of_task(trace, task)
        assert overlaps(steps, by_key=False) == []
        assert most_outstanding(steps) == 1
    # each counted on from what the one before had left, without a lock
    ended = Counter(s.task for s in trace.steps if s[1:3] == ("event", "end"))
    assert {task.index: task.count for task in trace.tasks} == ended


@EVERY_MODE
async def test_one_at_a_time_events_begin_and_end_in_the_order_of_their_partition(
    mode: str,
) -> None:
    trace = await traced(mode, "one at a time")

    for task in range(TASKS):
        assert out_of_order(of_task(trace, task), "begin") == []
        assert out_of_order(of_task(trace, task), "end") == []


# -- several at a time ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "callbacks at once"])
@pytest.mark.parametrize("order", ["eight", "eight by key"])
async def test_no_more_than_the_maximum_of_events_is_outstanding(mode: str, order: str) -> None:
    trace = await traced(mode, order)

    most = [most_outstanding(of_task(trace, task)) for task in range(TASKS)]
    assert max(most) <= 8
    if mode == "on the loop":
        assert most == [1] * TASKS
    elif mode == "in threads":
        assert 1 < max(most) <= 4  # threads in the pool
    else:
        assert min(most) > 3


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "in threads"])
async def test_events_begin_in_order_also_where_several_are_outstanding(mode: str) -> None:
    trace = await traced(mode, "eight")

    for task in range(TASKS):
        assert out_of_order(of_task(trace, task), "begin") == []


@pytest.mark.parametrize("mode", ["async def", "callbacks from threads"])
async def test_several_events_of_a_task_end_in_any_order(mode: str) -> None:
    trace = await traced(mode, "eight")

    assert any(out_of_order(of_task(trace, task), "end") for task in range(TASKS))


@EVERY_MODE
async def test_by_key_events_of_one_key_never_overlap_and_stay_in_order(mode: str) -> None:
    trace = await traced(mode, "eight by key")

    for task in range(TASKS):
        steps = of_task(trace, task)
        assert overlaps(steps, by_key=True) == []
        assert out_of_order(steps, "begin", by_key=True) == []
        assert out_of_order(steps, "end", by_key=True) == []


# -- windows and commits --------------------------------------------------------------------------


@EVERY_MODE
@EVERY_ORDER
async def test_a_window_runs_alone_in_its_task(mode: str, order: str) -> None:
    trace = await traced(mode, order)

    windows = [step for step in trace.steps if step.what == "window"]
    assert {step.task for step in windows} == set(range(TASKS))
    for task in trace.tasks:
        steps = of_task(trace, task.index)
        assert beside(steps, "window") == []
        # none of them saw the count change while it ran
        assert task.windowed == sum(s[1:3] == ("window", "begin") for s in steps)


@EVERY_MODE
@EVERY_ORDER
async def test_a_commit_happens_alone_in_its_task(mode: str, order: str) -> None:
    trace = await traced(mode, order)

    for task in range(TASKS):
        steps = of_task(trace, task)
        assert sum(step.what == "commit" for step in steps) >= 5
        assert beside(steps, "commit") == []


# -- threads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "in threads"])
async def test_tasks_are_called_on_the_container_s_own_thread(mode: str, order: str) -> None:
    trace = await traced(mode, order)

    assert trace.threads == {name: {threading.get_ident()} for name in ("process", "window")}


@pytest.mark.parametrize("order", ORDERS)
async def test_with_a_pool_events_and_windows_run_in_its_threads(order: str) -> None:
    trace = await traced("in threads", order)

    used = trace.threads["process"] | trace.threads["window"]
    assert threading.get_ident() not in used
    assert 1 < len(trace.threads["process"]) <= 4


# -- the rules themselves -------------------------------------------------------------------------


def begin(offset: int, key: str = "a") -> Step:
    return Step(0, "event", "begin", ("clicks", 0), offset, key)


def end(offset: int, key: str = "a") -> Step:
    return begin(offset, key)._replace(edge="end")


OPEN, SHUT = Step(0, "window", "begin"), Step(0, "window", "end")
COMMIT = Step(0, "commit", "begin")


@pytest.mark.parametrize(
    ("steps", "what", "found"),
    [
        ([begin(0), end(0), OPEN, SHUT, begin(1), end(1)], "window", []),
        ([begin(0), OPEN, SHUT, end(0)], "window", [begin(0)]),
        ([OPEN, begin(0), end(0), SHUT], "window", [begin(0), end(0)]),
        ([OPEN, COMMIT, SHUT], "commit", [COMMIT]),
        ([begin(0), begin(1), end(1), COMMIT, end(0)], "commit", [begin(0)]),
        ([begin(0), end(0), COMMIT, begin(1), end(1)], "commit", []),
    ],
)
def test_validate_finds_what_runs_beside_a_window_or_a_commit(
    steps: list[Step], what: str, found: list[Step]
) -> None:
    assert beside(steps, what) == found


def test_validate_finds_overlaps_and_wrong_order() -> None:
    steps = [begin(0), begin(2, "b"), end(2, "b"), begin(1), end(1), end(0)]

    assert most_outstanding(steps) == 2
    assert overlaps(steps, by_key=True) == [begin(1)]
    assert overlaps(steps, by_key=False)[0] == begin(2, "b")
    assert out_of_order(steps, "begin") == [begin(1)]
    assert out_of_order(steps, "end") == [end(1), end(0)]
    assert out_of_order(steps, "end", by_key=True) == [end(0)]


# -- set-up ---------------------------------------------------------------------------------------


TASKS = 3
USERS = [f"user-{n}" for n in range(24)]
CLICKS = [Click(USERS[n * 7 % 24], n) for n in range(900)]


_TRACES: dict[tuple[str, str], Trace] = {}


async def traced(mode: str, order: str) -> Trace:
    """The trace of a container of three tasks with windows and commits; one run a mode."""
    if (mode, order) not in _TRACES:
        make, settings = MODES[mode]
        trace = Trace(commit_every=17)
        app = TaskApp("traced", lambda: make(trace))
        app.create_input_stream("clicks", key="user", types=Click)
        settings = {**ORDERS[order], **settings, "task.window.ms": "10"}
        async with running(app, settings, partitions=TASKS) as node:
            loop = node.parts.loop
            before = loop.commit

            def commit(task: Task) -> bool:
                trace.note(task.partition, "commit", "begin")
                return before(task)

            loop.commit = commit  # type: ignore[method-assign]
            async with Client(node.address) as client:
                clicks = await client.stream("clicks")
                await clicks.send_many(CLICKS)
                assert await clicks.flush() == []
        trace.close()
        _TRACES[mode, order] = trace
    return _TRACES[mode, order]
