"""Ticks come on their beat, commits that others wait for within a budget; what precedes timers."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.runtime.task.gate import Gate, Inputs, Op, Phase
from s4node.runtime.task.schedule import ASIDE, OF_CONTAINER, OF_TASK, CommitBudget, Schedule, Tick


def test_a_tick_comes_every_interval() -> None:
    tick = Tick(10.0, now=5.0)
    assert [tick.due(now) for now in (14.9, 15.0, 15.0, 24.0, 25.5)] == [
        False,
        True,
        False,
        False,
        True,
    ]
    assert tick.at == 35.0


def test_missed_ticks_come_once_and_the_interval_stays() -> None:
    tick = Tick(10.0, now=0.0)
    assert tick.due(57.0)
    assert not tick.due(59.0)
    assert tick.at == 60.0


def test_without_an_interval_or_once_stopped_it_never_comes() -> None:
    never, stopped = Tick(0.0, now=0.0), Tick(1.0, now=0.0)
    stopped.stop()
    assert not never.due(1e12)
    assert not stopped.due(1e12)
    assert never.at == stopped.at == math.inf


@given(st.integers(1, 50), st.lists(st.integers(0, 200), max_size=30))
def test_the_next_tick_is_always_ahead_by_an_interval_at_most(
    interval: int, steps: list[int]
) -> None:
    tick, now = Tick(float(interval), now=0.0), 0
    for step in steps:
        now += step
        came = tick.due(float(now))
        assert now < tick.at <= now + interval
        assert tick.at % interval == 0
        assert not (came and step == 0 and now == 0)


def made(
    *, may: bool = False, held: bool = False, first: bool = False, **gate: object
) -> tuple[Schedule, Gate]:
    """That of a task with timers that are always due, and perhaps come first: whether an event may
    begin, or is held."""
    its = Gate(phase=Phase.RUNNING)
    for name, value in gate.items():
        setattr(its, name, value)
    task: Any = SimpleNamespace(
        gate=its,
        processor=SimpleNamespace(timed=True, next_due=0.0, calls_first=first),
        settings=SimpleNamespace(commit=0, window=0, callback_timeout=0),
        choose=lambda: may,
        backlog=SimpleNamespace(has_waiting=held),
    )
    return Schedule(task, 0.0), its


@pytest.mark.parametrize("phase", [Phase.CREATED, Phase.REPLACING, Phase.FAILED])
def test_timers_of_a_task_that_is_restored_or_has_failed_wake_nobody(phase: Phase) -> None:
    timers, gate = made(phase=phase)

    assert timers.next_due == math.inf
    assert not timers.check_due(1.0)

    gate.phase = Phase.RUNNING
    assert timers.next_due == 0.0
    assert timers.check_due(1.0)


@pytest.mark.parametrize("over", [True, False])
@pytest.mark.parametrize(
    ("state", "timers"),
    [
        ({}, True),
        ({"held": True}, True),
        ({"may": True}, False),  # events have their turn
        ({"may": True, "first": True}, True),
        ({"may": True, "first": True, "phase": Phase.DRAINING}, False),
        ({"phase": Phase.DRAINING}, False),  # the task ends
        ({"phase": Phase.DRAINING, "held": True}, True),  # it cannot end yet
        ({"inputs": Inputs.ENDED}, False),
        ({"inputs": Inputs.ENDED, "held": True}, True),
        ({"inputs": Inputs.NOTIFIED}, True),
    ],
)
def test_timers_stay_due_until_their_last_slice_has_ended(
    state: dict[str, Any], timers: bool, over: bool
) -> None:
    schedule, gate = made(**state)
    schedule.timers_ended(over=over)
    assert gate.timer_due == (timers and not over)
    schedule.check_due(1.0)
    assert gate.timer_due == timers
    schedule.event_begins()
    schedule.check_due(2.0)
    assert gate.timer_due  # and then they are due in any case


def test_timers_that_run_say_themselves_what_is_left() -> None:
    schedule, gate = made()
    schedule.check_due(1.0)
    assert gate.timer_due
    gate.begin_step(gate.next_op(waiting=False))
    schedule.check_due(2.0)
    assert not gate.timer_due


# -- commits that others wait for -----------------------------------------------------------------

TAKES = 0.01 - ASIDE
"""Seconds after which a commit has cost a hundredth of a second in all."""


@pytest.mark.parametrize(
    ("commits", "free_at"),
    [
        ([], 9.0),  # a tenth of a second is left
        ([(10.0, TAKES)], 9.1),
        ([(10.0, TAKES)] * 9, 9.9),
        ([(10.0, TAKES)] * 10, 10.0),
        ([(10.0, TAKES)] * 11, 10.1),  # it is spent, and a tenth of the time comes back
        ([(10.0, TAKES)] * 11 + [(10.1, TAKES)], 10.2),
        ([(10.0, TAKES)] * 11 + [(30.0, TAKES)], 29.1),  # no more than that tenth is ever left
        ([(10.0, 3.0)], 11.0),  # and what was overspent is forgotten after a second
        ([(10.0, 3.0), (10.5, 3.0)], 11.5),
    ],
)
def test_a_tenth_of_the_time_may_go_to_commits(
    commits: list[tuple[float, float]], free_at: float
) -> None:
    budget = CommitBudget(OF_TASK, 10.0)
    for now, seconds in commits:
        budget.spend(seconds, now)
    assert budget.free_at == pytest.approx(free_at)


@given(
    st.lists(st.tuples(st.floats(0.0, 0.5), st.floats(0.0, 0.09)), max_size=60),
    st.floats(0.05, 0.5),
)
def test_commits_that_begin_within_the_budget_take_its_part_of_any_time(
    commits: list[tuple[float, float]], part: float
) -> None:
    budget, now = CommitBudget(part, 0.0), 0.0
    took: list[tuple[float, float]] = []  # begin, and seconds
    for pause, seconds in commits:
        now = max(now + pause, budget.free_at)
        took.append((now, seconds + ASIDE))
        now += seconds
        budget.spend(seconds, now)
    for first, (began, _) in enumerate(took):
        for last in range(first, len(took)):
            spent = sum(seconds for _, seconds in took[first:last])
            if all(seconds < part for _, seconds in took):  # else some of it was forgotten
                assert spent <= (took[last][0] - began + 1) * part + 1e-6


@given(st.floats(0.0, 30.0), st.floats(0.05, 0.5))
def test_any_commit_is_paid_back_after_a_second(seconds: float, part: float) -> None:
    budget = CommitBudget(part, 0.0)
    budget.spend(seconds, 40.0)
    assert 39.0 <= budget.free_at <= 41.0


@pytest.mark.parametrize(
    ("resting", "left"),
    [(0.0, 0.08), (0.1, 0.08), (0.15, 0.25), (0.2, 0.5), (0.3, 1.0), (0.9, 1.0)],
)
def test_where_the_process_is_busy_less_of_its_time_goes_to_commits(
    resting: float, left: float
) -> None:
    rest = SimpleNamespace(seconds=0.0)
    budget = CommitBudget(OF_CONTAINER, 10.0, rest)
    for at in (11.0, 12.0):
        rest.seconds += resting
        budget.spend(0.0, at)
        assert budget.part == pytest.approx(OF_CONTAINER * left)
    rest.seconds += 1.0
    budget.spend(0.0, 13.0)
    assert budget.part == OF_CONTAINER


def commits(shared: CommitBudget | None = None) -> tuple[Schedule, Gate]:
    its = Gate(100)
    task: Any = SimpleNamespace(
        gate=its,
        processor=SimpleNamespace(timed=False),
        settings=SimpleNamespace(commit=60, window=0, callback_timeout=0),
    )
    return Schedule(task, 0.0, shared), its


def commit(schedule: Schedule, gate: Gate, now: float, seconds: float = 0.0) -> None:
    assert gate.commit_due
    gate.begin_step(gate.next_op(waiting=False))
    schedule.commit_begins(now)
    gate.end_step(Op.COMMIT)
    schedule.commit_ended(now + seconds, seconds, seconds)


def test_a_commit_is_due_as_soon_as_others_wait_for_one_and_else_at_its_tick() -> None:
    schedule, gate = commits()
    assert schedule.next_due == 60.0
    schedule.schedule_commit(7.0)
    assert schedule.next_due == 7.0
    assert schedule.check_due(7.0)
    assert gate.commit_due
    commit(schedule, gate, 7.0)
    assert not schedule.check_due(59.0)
    assert schedule.check_due(60.0)


def test_a_commit_that_can_wait_is_neither_earlier_nor_later_because_others_cannot() -> None:
    schedule, gate = commits()
    assert schedule.schedule_commit(7.0, 1.0)
    assert not schedule.check_due(7.9)
    assert not schedule.schedule_commit(7.9, 1.0)
    assert schedule.schedule_commit(7.95)
    assert schedule.check_due(7.95)
    commit(schedule, gate, 7.95)
    assert not schedule.check_due(8.0)
    schedule.schedule_commit(8.0)
    assert not schedule.schedule_commit(8.0, 1.0)
    assert schedule.check_due(8.0)


def test_a_commit_that_took_long_is_followed_by_time_for_events() -> None:
    schedule, gate = commits()
    schedule.schedule_commit(7.0)
    schedule.check_due(7.0)
    commit(schedule, gate, 7.0, seconds=0.15 - ASIDE)
    schedule.schedule_commit(7.2)
    assert schedule.next_due == pytest.approx(7.65, abs=0.001)
    assert not schedule.check_due(7.6)
    assert schedule.check_due(7.7)


def test_a_commit_requested_during_a_commit_waits_for_its_end() -> None:
    schedule, gate = commits()
    schedule.schedule_commit(7.0)
    schedule.check_due(7.0)
    gate.begin_step(gate.next_op(waiting=False))
    schedule.commit_begins(7.0)
    gate.end_step(Op.COMMIT)
    schedule.schedule_commit(7.1)
    assert not schedule.check_due(7.2)
    schedule.commit_ended(7.3, 0.0, 0.0)
    schedule.schedule_commit(7.3)
    assert schedule.check_due(7.3)


def test_a_commit_that_waits_for_outstanding_events_has_cost_that_time() -> None:
    schedule, gate = commits()
    gate.begin_step(Op.PROCESS)
    schedule.schedule_commit(7.0)
    schedule.check_due(7.0)
    gate.end_step(Op.PROCESS)
    commit(schedule, gate, 7.2)
    schedule.schedule_commit(7.2)
    assert schedule.next_due == pytest.approx(7.2 + 1.0, abs=0.01)


def test_tasks_of_a_container_share_the_time_for_commits() -> None:
    shared = CommitBudget(0.25, 0.0)
    (one, its), (other, others) = commits(shared), commits(shared)
    for each, gate in ((one, its), (other, others)):
        each.schedule_commit(3.0)
        assert each.check_due(3.0)
        commit(each, gate, 3.0)
    for each in (one, other):
        each.schedule_commit(7.0)
    assert one.check_due(7.0)
    commit(one, its, 7.0, seconds=0.5 - ASIDE)
    assert not other.check_due(7.5)  # since it was scheduled the time was spent
    assert not others.commit_due
    assert other.next_due == pytest.approx(8.5, abs=0.001)
    assert other.check_due(8.5)
    assert others.commit_due


def test_the_first_commit_of_a_task_does_not_wait_for_the_commits_of_others() -> None:
    shared = CommitBudget(0.25, 0.0)
    (one, its), (other, others) = commits(shared), commits(shared)
    shared.spend(60.0, 7.0)
    one.schedule_commit(7.0)
    assert one.check_due(7.0)
    other.schedule_commit(7.0)
    shared.spend(60.0, 7.0)
    assert other.check_due(7.0)
    for each, gate in ((one, its), (other, others)):
        commit(each, gate, 7.0)
        each.schedule_commit(7.0)
        assert each.next_due == 8.0


def test_no_task_waits_for_the_first_commits_of_others() -> None:
    shared = CommitBudget(0.25, 0.0)
    tasks = [commits(shared) for _ in range(30)]
    for each, gate in tasks:
        each.schedule_commit(7.0)
        assert each.check_due(7.0)
        commit(each, gate, 7.0, seconds=0.01)
    for each, gate in tasks:
        each.schedule_commit(7.02)
        assert each.check_due(7.02)
        assert gate.commit_due


def test_a_commit_that_nobody_waits_for_keeps_its_interval() -> None:
    schedule, gate = commits()
    schedule.schedule_commit(59.0)
    schedule.check_due(59.0)
    commit(schedule, gate, 59.0, seconds=0.9)
    assert schedule.check_due(60.0)
    assert gate.commit_due
