"""Ticks come on their beat, however many were missed; what comes before timers that are due."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.runtime.task.gate import Gate
from s4node.runtime.task.timers import Tick, Timetable


def test_a_tick_comes_every_interval() -> None:
    tick = Tick(10.0, now=5.0)
    assert [tick.due(now) for now in (14.9, 15.0, 15.0, 24.0, 25.5)] == [
        False, True, False, False, True,
    ]  # fmt: skip
    assert tick.at == 35.0


def test_however_many_were_missed_it_comes_once_and_keeps_its_beat() -> None:
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


def made(*, may: bool = False, held: bool = False, **gate: bool) -> tuple[Timetable, Gate]:
    """That of a task with timers that are always due: whether an event may begin, or is held."""
    its = Gate()
    for name, value in gate.items():
        setattr(its, name, value)
    task: Any = SimpleNamespace(
        gate=its,
        processor=SimpleNamespace(timed=True, next_due=0.0),
        settings=SimpleNamespace(commit=0, prompt=0, window=0, callback_timeout=0),
        flights=None,
        on_commit=None,
        choose=lambda: may,
        backlog=SimpleNamespace(waiting=held),
        interrupt=lambda: None,
        awaited=lambda _: False,
    )
    return Timetable(task, 0.0), its


@pytest.mark.parametrize("over", [True, False])
@pytest.mark.parametrize(
    ("state", "timers"),
    [
        ({}, True),
        ({"held": True}, True),
        ({"may": True}, False),  # events have their turn
        ({"draining": True}, False),  # the task ends
        ({"draining": True, "held": True}, True),  # it cannot end yet
        ({"inputs_ended": True}, False),
        ({"inputs_ended": True, "held": True}, True),
        ({"inputs_ended": True, "end_told": True}, True),
    ],
)
def test_what_comes_behind_a_part_of_the_timers(
    state: dict[str, bool], timers: bool, over: bool
) -> None:
    timetable, gate = made(**state)
    timetable.timers_ended(over=over)
    assert gate.timer_due == (timers and not over)
    timetable.check_due(1.0)
    assert gate.timer_due == timers
    timetable.event_begins()
    timetable.check_due(2.0)
    assert gate.timer_due  # and then they are due in any case


def test_timers_that_run_say_themselves_what_is_left() -> None:
    timetable, gate = made()
    timetable.check_due(1.0)
    assert gate.timer_due
    gate.begin(gate.next_op(waiting=False))
    timetable.check_due(2.0)
    assert not gate.timer_due
