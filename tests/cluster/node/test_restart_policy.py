"""The life of a container process, decided without one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.cluster.node.restart_policy import LOOK_SECONDS, Action, Limits, Phase, Restarts


def test_a_container_is_started_at_once() -> None:
    machine, actions = life()
    assert (actions, machine.phase) == ([(0.0, "start")], Phase.STARTING)


def test_one_that_is_not_ready_in_time_is_killed_and_started_again() -> None:
    machine, actions = life((60.5, "exited"), (61.5, "pulse"))
    assert actions == [(0.0, "start"), (60.0, "kill"), (61.0, "start")]
    assert machine.reason == "was not ready within 60 s"


def test_one_that_sends_pulses_lives_on() -> None:
    pulses = [(float(at), "pulse") for at in range(2, 100, 9)]
    machine, actions = life((1.0, "ready"), *pulses)
    assert (actions, machine.phase) == ([(0.0, "start")], Phase.RUNNING)


def test_one_that_sends_no_pulse_is_killed_and_started_again() -> None:
    machine, actions = life((1.0, "ready"), (5.0, "pulse"), (15.5, "exited"), (16.5, "pulse"))
    assert actions == [(0.0, "start"), (15.0, "kill"), (16.0, "start")]
    assert machine.starts == 2


def test_one_that_starts_its_app_is_asked_for_no_pulse_and_has_to_be_ready_in_time() -> None:
    machine, actions = life((1.0, "ready"), (2.0, "go"), (40.0, "ready"), (49.5, "pulse"))
    assert (actions, machine.phase) == ([(0.0, "start")], Phase.RUNNING)
    machine, actions = life((1.0, "ready"), (2.0, "go"), (62.5, "exited"))
    assert actions == [(0.0, "start"), (62.0, "kill")]
    assert machine.reason == "was not ready within 60 s"


def test_the_time_to_be_ready_in_begins_anew_while_one_waits_for_the_place_of_its_state() -> None:
    waits = [(float(at), "waiting_pulse") for at in range(2, 100)]
    machine, actions = life(*waits, (150.0, "pulse"), (159.5, "exited"))
    assert actions == [(0.0, "start"), (159.0, "kill")]
    assert machine.reason == "was not ready within 60 s"


def test_a_driver_that_looks_late_hears_first_what_was_said_meanwhile() -> None:
    machine = Restarts(Limits(pulse=0.3), 0.0)
    assert machine.look(0.0) is Action.START
    machine.ready(1.0)
    assert machine.look(1.0) is None
    assert machine.look(1.5) is None  # it should have been at 1.3
    machine.pulse(1.5)
    assert machine.look(1.75) is None
    assert machine.look(1.8) is Action.KILL


def test_each_crash_doubles_the_pause_up_to_the_longest() -> None:
    machine = Restarts(LIMITS, 0.0)
    now, pauses = 0.0, []
    for _ in range(6):
        assert machine.look(now) is Action.START
        machine.exited(now)
        assert machine.next_at is not None
        pauses.append(machine.next_at - now)
        assert machine.look(now) is None
        now = machine.next_at
    assert pauses == [0.5, 1, 2, 4, 4, 4]


def test_a_calm_run_makes_the_next_pause_short_again() -> None:
    machine = Restarts(LIMITS, 0.0)
    for now in (0.0, 1.0, 3.0):
        assert machine.look(now) is Action.START
        machine.exited(now)
    assert machine.look(7.0) is Action.START
    machine.ready(7.5)
    for second in range(8, 17):
        machine.pulse(float(second))
        assert machine.look(float(second)) is None
    machine.exited(17.0)
    assert machine.next_at == 17.5


def test_a_stop_is_told_once_and_the_end_is_for_good() -> None:
    machine, actions = life((1.0, "ready"), (2.0, "stop"), (3.0, "stop"), (4.0, "exited"))
    assert actions == [(0.0, "start"), (2.0, "stop")]
    assert (machine.phase, machine.next_at) == (Phase.ENDED, None)


def test_one_that_does_not_drain_in_time_is_killed() -> None:
    machine, actions = life((1.0, "ready"), (2.0, "stop"), (20.0, "pulse"), (33.0, "exited"))
    assert actions == [(0.0, "start"), (2.0, "stop"), (32.0, "kill")]
    assert machine.phase is Phase.ENDED
    assert machine.reason == "had not drained within 30 s"


@pytest.mark.parametrize(
    ("steps", "phase"),
    [
        ([(0.5, "stop")], Phase.STOPPING),  # while it starts
        ([(1.0, "exited"), (1.0, "stop")], Phase.ENDED),  # while none runs
        ([(60.5, "stop"), (61.0, "exited")], Phase.ENDED),  # while it is killed
    ],
)
def test_a_stop_at_any_time_ends_in_the_end(steps: list[tuple[float, str]], phase: Phase) -> None:
    machine, _ = life(*steps)
    assert machine.phase is phase


def test_a_driver_that_was_stopped_itself_blames_nobody() -> None:
    machine = Restarts(LIMITS, 0.0)
    assert machine.look(0.0) is Action.START
    machine.ready(1.0)
    assert machine.look(1.0) is None
    assert machine.look(500.0) is None
    assert machine.phase is Phase.RUNNING
    for tenth in range(1, 95):
        assert machine.look(500 + tenth / 10) is None
    assert machine.look(510.0) is Action.KILL


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ready", "pulse", "stop", "exited", "wait"]),
        st.sampled_from([0.0, 0.1, LOOK_SECONDS, 5.0, 40.0, 70.0]),
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_happens_there_is_at_most_one_process_and_a_stop_is_for_good(
    steps: list[tuple[str, float]],
) -> None:
    machine, now, alive, asked = Restarts(LIMITS, 0.0), 0.0, False, False

    def look() -> None:
        nonlocal alive
        while (action := machine.look(now)) is not None:
            if action is Action.START:
                assert not alive
                assert not asked
                alive = True
            else:
                assert alive

    look()
    for step, seconds in steps:
        target = now + seconds
        while now < target:
            now = min(now + LOOK_SECONDS, target)
            look()
        do: Any = getattr(machine, step, None)
        if step == "stop":
            asked = True
            do(now)
        elif step == "exited" and alive:
            alive = False
            do(now)
        elif alive and step in ("pulse", "ready"):
            do(now)
        look()
        if not alive:
            assert machine.phase in (Phase.WAITING, Phase.ENDED)
        if asked and not alive:
            assert machine.phase is Phase.ENDED


# -- set-up ---------------------------------------------------------------------------------------


LIMITS = Limits(start=60, pulse=10, drain=30, pause=0.5, longest_pause=4)


def life(*steps: tuple[float, str]) -> tuple[Restarts, list[tuple[float, str]]]:
    """Drive a machine: looks every half second, and what the steps say between; its actions."""
    machine = Restarts(LIMITS, 0.0)
    actions: list[tuple[float, str]] = []
    todo = list(steps)
    now = 0.0
    end = max((at for at, _ in steps), default=0.0)
    while now <= end:
        while todo and todo[0][0] <= now:
            said = todo.pop(0)[1]
            if said == "waiting_pulse":
                machine.pulse(now, waits=True)
            else:
                getattr(machine, said)(now)
        while (action := machine.look(now)) is not None:
            actions.append((now, action.value))
        now += 0.5
    return machine, actions
