"""When timers are due, and what comes before them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from s4node.runtime.task.gate import Gate
from s4node.runtime.task.timers import Timetable


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
