"""The promises of the gate: timers run alone, nothing runs beside its turn."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.container.gate import Gate, Op

ANY = None
# timer running, timer due, in flight (of at most 2), others held, draining, batch waiting
RULES = [
    ((True, ANY, (0,), ANY, ANY, ANY), Op.NOTHING),
    ((False, True, (0,), ANY, ANY, ANY), Op.TIMER),
    ((False, True, (1, 2), ANY, ANY, ANY), Op.NOTHING),
    ((False, False, (0, 1), ANY, ANY, True), Op.PROCESS),
    ((False, False, (2,), ANY, ANY, True), Op.NOTHING),
    ((False, False, (0,), False, True, False), Op.DONE),
    ((False, False, (0,), True, True, False), Op.NOTHING),
    ((False, False, (1, 2), ANY, True, False), Op.NOTHING),
    ((False, False, (0, 1, 2), ANY, False, False), Op.NOTHING),
]
FLAGS = (False, True)
STATES = [
    state
    for state in product(FLAGS, FLAGS, (0, 1, 2), FLAGS, FLAGS, FLAGS)
    if not (state[0] and state[2])
]


def expected(state: tuple[bool | int, ...]) -> list[Op]:
    """What the rules that fit the state say."""
    return [
        op
        for pattern, op in RULES
        if all(
            part is ANY or (value in part if isinstance(part, tuple) else value == part)
            for value, part in zip(state, pattern, strict=True)
        )
    ]


@pytest.mark.parametrize("state", STATES)
def test_each_state_has_one_rule_and_the_gate_follows_it(state: tuple[bool | int, ...]) -> None:
    gate = Gate(max_concurrency=2)
    gate.timer_running, gate.timer_due, gate.in_flight = bool(state[0]), bool(state[1]), state[2]
    gate.draining = bool(state[4])
    gate.validate()
    (op,) = expected(state)
    assert gate.next_op(waiting=bool(state[5]), held=bool(state[3])) is op


def test_a_new_gate_processes_one_batch_at_a_time() -> None:
    gate = Gate()
    assert gate.next_op(waiting=False) is Op.NOTHING
    assert gate.next_op(waiting=True) is Op.PROCESS
    gate.begin(Op.PROCESS)
    assert gate.next_op(waiting=True) is Op.NOTHING
    gate.end(Op.PROCESS)
    assert gate.next_op(waiting=True) is Op.PROCESS


def test_a_due_timer_drains_its_task_then_runs_then_events_go_on() -> None:
    gate = Gate(max_concurrency=2)
    gate.begin(Op.PROCESS)
    gate.begin(Op.PROCESS)
    gate.timer_due = True
    gate.end(Op.PROCESS)
    assert gate.next_op(waiting=True) is Op.NOTHING
    gate.end(Op.PROCESS)
    assert gate.next_op(waiting=True) is Op.TIMER
    gate.begin(Op.TIMER)
    assert not gate.timer_due
    assert gate.next_op(waiting=True) is Op.NOTHING
    gate.end(Op.TIMER)
    assert gate.next_op(waiting=True) is Op.PROCESS


@pytest.mark.parametrize(
    ("begun", "next_one"),
    [
        ([Op.PROCESS], Op.PROCESS),
        ([Op.PROCESS], Op.TIMER),
        ([Op.TIMER], Op.PROCESS),
    ],
)
def test_beginning_what_the_gate_did_not_offer_is_noticed(begun: list[Op], next_one: Op) -> None:
    gate = Gate()
    for op in begun:
        gate.begin(op)
    with pytest.raises(AssertionError):
        gate.begin(next_one)


def test_ending_what_was_not_begun_is_noticed() -> None:
    with pytest.raises(AssertionError):
        Gate().end(Op.PROCESS)


MOVES = st.lists(st.sampled_from(["begin", "begin", "end", "due", "drain"]), max_size=60)


@given(st.integers(1, 4), MOVES, st.booleans())
def test_a_timer_never_runs_beside_anything_and_everything_due_gets_its_turn(
    concurrency: int, moves: list[str], waiting: bool
) -> None:
    gate = Gate(concurrency)
    running: list[Op] = []

    def step() -> Op:
        op = gate.next_op(waiting)
        if op in (Op.TIMER, Op.PROCESS):
            due = gate.timer_due
            gate.begin(op)
            running.append(op)
            assert op is Op.TIMER or not due
        return op

    for move in moves:
        if move == "begin":
            step()
        elif move == "end" and running:
            gate.end(running.pop())
        elif move == "due":
            gate.timer_due = True
        elif move == "drain":
            gate.draining = True
        gate.validate()
        assert running.count(Op.TIMER) == 0 or running == [Op.TIMER]
        assert running.count(Op.PROCESS) == gate.in_flight <= concurrency

    was_due = gate.timer_due  # now everything ends
    while running:
        gate.end(running.pop())
    first = step()
    if was_due:
        assert first is Op.TIMER
        gate.end(Op.TIMER)
        first = step()
    assert first is (Op.PROCESS if waiting else Op.DONE if gate.draining else Op.NOTHING)
