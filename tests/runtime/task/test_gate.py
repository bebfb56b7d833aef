"""The promises of the gate: what runs alone, what goes first, and what a commit may cover."""

from __future__ import annotations

from itertools import pairwise, product
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.runtime.task.gate import NEXT, Gate, Inputs, Op, Pace, Phase


def test_each_state_has_one_rule_and_the_gate_follows_it() -> None:
    assert len(STATES) > 3000
    for state in STATES:
        (op,) = [op for rule, op in RULES if fits(rule, state)]
        found = gate_in(state).next_op(
            waiting=bool(state.waiting), held=bool(state.held), closing=bool(state.closing)
        )
        assert found is op, state


def test_every_rule_is_used() -> None:
    for rule, _ in RULES:
        assert any(fits(rule, state) for state in STATES), rule


def test_a_new_gate_processes_one_batch_at_a_time() -> None:
    gate = Gate()
    assert gate.next_op(waiting=False) is Op.NOTHING
    assert gate.next_op(waiting=True) is Op.PROCESS
    gate.begin_step(Op.PROCESS)
    assert gate.next_op(waiting=True) is Op.NOTHING
    gate.end_step(Op.PROCESS)
    assert gate.next_op(waiting=True) is Op.PROCESS


def test_due_steps_wait_for_events_in_flight_then_run_in_order() -> None:
    gate = Gate(max_concurrency=2)
    gate.begin_step(Op.PROCESS)
    gate.begin_step(Op.PROCESS)
    gate.timer_due = gate.window_due = gate.commit_due = True
    gate.end_step(Op.PROCESS)
    assert gate.next_op(waiting=True) is Op.NOTHING
    gate.end_step(Op.PROCESS)
    for op in (Op.COMMIT, Op.WINDOW, Op.TIMER):
        assert gate.next_op(waiting=True) is op
        gate.begin_step(op)
        assert op is Op.COMMIT or gate.next_op(waiting=True) is Op.NOTHING
        gate.end_step(op)
    assert gate.next_op(waiting=True) is Op.PROCESS


def test_a_window_that_was_due_three_times_runs_once() -> None:
    gate = Gate()
    for _ in range(3):
        gate.window_due = True
    gate.begin_step(gate.next_op(waiting=True))
    gate.end_step(Op.WINDOW)
    assert gate.next_op(waiting=True) is Op.PROCESS


def test_a_window_that_is_due_again_while_it_runs_runs_again() -> None:
    gate = Gate()
    gate.window_due = True
    gate.begin_step(gate.next_op(waiting=True))
    gate.window_due = True
    gate.end_step(Op.WINDOW)
    assert gate.next_op(waiting=True) is Op.WINDOW


def test_at_the_end_of_stream_the_task_is_told_once_then_commits_then_is_done() -> None:
    gate = Gate()
    gate.begin_step(Op.PROCESS)
    gate.end_inputs()
    assert gate.next_op(waiting=False) is Op.NOTHING
    gate.end_step(Op.PROCESS)
    for op in (Op.END_OF_STREAM, Op.COMMIT):
        assert gate.next_op(waiting=False) is op
        gate.begin_step(op)
        gate.end_step(op)
    assert gate.next_op(waiting=False) is Op.DONE
    assert gate.next_op(waiting=False) is Op.DONE


def test_events_after_the_end_of_stream_are_processed_and_committed() -> None:
    gate = Gate()
    gate.end_inputs()
    for op in (Op.END_OF_STREAM, Op.COMMIT):
        gate.begin_step(gate.next_op(waiting=False))
        gate.end_step(op)
    assert gate.next_op(waiting=True) is Op.PROCESS
    gate.begin_step(Op.PROCESS)
    gate.end_step(Op.PROCESS)
    assert gate.next_op(waiting=False) is Op.COMMIT


def test_a_task_that_drains_and_has_done_nothing_since_its_commit_makes_no_other() -> None:
    gate = Gate()
    gate.phase = Phase.DRAINING
    assert gate.next_op(waiting=False) is Op.DONE
    gate.begin_step(Op.PROCESS)
    gate.end_step(Op.PROCESS)
    gate.begin_step(gate.next_op(waiting=False))
    gate.end_step(Op.COMMIT)
    assert gate.next_op(waiting=False) is Op.DONE


def test_what_ends_after_an_async_commit_began_is_not_covered_by_it() -> None:
    gate = Gate(2, async_commit=True)
    gate.begin_step(Op.PROCESS)
    gate.commit_due = True
    gate.begin_step(Op.COMMIT)
    gate.end_step(Op.PROCESS)
    gate.end_step(Op.COMMIT)
    gate.phase = Phase.DRAINING
    assert gate.next_op(waiting=False) is Op.COMMIT


@pytest.mark.parametrize(
    ("begun", "next_one"),
    [
        ([Op.PROCESS], Op.PROCESS),
        ([Op.PROCESS], Op.TIMER),
        ([Op.TIMER], Op.PROCESS),
        ([Op.WINDOW], Op.WINDOW),
        ([Op.WINDOW], Op.COMMIT),
        ([Op.PROCESS], Op.COMMIT),
        ([Op.PROCESS], Op.END_OF_STREAM),
    ],
)
def test_beginning_what_the_gate_did_not_offer_is_noticed(begun: list[Op], next_one: Op) -> None:
    gate = Gate()
    for op in begun:
        gate.begin_step(op)
    with pytest.raises(AssertionError):
        gate.begin_step(next_one)


def test_ending_what_was_not_begun_is_noticed() -> None:
    with pytest.raises(AssertionError):
        Gate().end_step(Op.PROCESS)


MOVES = st.lists(
    st.sampled_from(["begin"] * 3 + ["end", "commit", "window", "timer", "drain", "ended"]),
    max_size=80,
)
ALONE = (Op.WINDOW, Op.TIMER, Op.END_OF_STREAM)


@given(st.integers(1, 4), st.booleans(), MOVES, st.booleans(), st.randoms(use_true_random=False))
def test_any_interleaving_keeps_the_rules_and_everything_due_gets_its_turn(
    concurrency: int, async_commit: bool, moves: list[str], waiting: bool, random: object
) -> None:
    gate = Gate(concurrency, async_commit=async_commit)
    running: list[Op] = []
    told = 0
    since_commit = False

    def step(waiting: bool) -> Op:
        nonlocal told, since_commit
        op = gate.next_op(waiting)
        if op in (Op.NOTHING, Op.DONE):
            assert op is not Op.DONE or not (running or since_commit)
            return op
        due = gate.commit_due, gate.window_due, gate.timer_due
        gate.begin_step(op)
        if op is Op.PROCESS:
            assert not any(due)
        elif op is Op.COMMIT:
            assert async_commit or not running
            since_commit = False
            gate.end_step(op)  # it is taken in one call
            return op
        else:
            told += op is Op.END_OF_STREAM
            assert not running
        running.append(op)
        return op

    def end() -> None:
        nonlocal since_commit
        op = running.pop(random.randrange(len(running)))  # type: ignore[attr-defined]
        gate.end_step(op)
        since_commit = True

    for move in moves:
        if move == "begin":
            step(waiting)
        elif move == "end":
            if running:
                end()
        elif move == "commit":
            gate.commit_due = True
        elif move == "window":
            gate.window_due = True
        elif move == "timer":
            gate.timer_due = True
        elif move == "drain":
            gate.phase = Phase.DRAINING
        else:
            gate.end_inputs()
        gate.validate()
        assert running.count(Op.PROCESS) == gate.in_flight <= concurrency
        assert not any(op in ALONE for op in running) or len(running) == 1

    while running:  # now everything ends
        end()
    due = [gate.commit_due, gate.window_due, gate.timer_due]
    for op, was_due in zip((Op.COMMIT, Op.WINDOW, Op.TIMER), due, strict=True):
        if was_due:
            assert step(waiting) is op
            if running:
                end()
    if waiting:
        assert step(waiting) is Op.PROCESS
        end()
    last = [step(waiting=False)]
    while last[-1] not in (Op.NOTHING, Op.DONE):
        if running:
            end()
        last.append(step(waiting=False))
    assert told == gate.end_notified == (gate.inputs is not Inputs.OPEN)
    over = gate.phase is Phase.DRAINING or gate.end_notified
    assert last[-1] is (Op.DONE if over else Op.NOTHING)
    assert not (over and since_commit)


# --- the life of a task --------------------------------------------------------------------------


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("following", Phase)
def test_a_phase_changes_only_as_the_table_allows(phase: Phase, following: Phase) -> None:
    gate = Gate(phase=phase)
    assert gate.may_enter(following) == (following in NEXT[phase])
    if gate.may_enter(following):
        gate.enter(following)
        assert gate.phase is following
    else:
        with pytest.raises(AssertionError, match=f"{phase.name} -> {following.name}"):
            gate.enter(following)


def test_every_phase_is_in_the_table_and_none_is_entered_twice() -> None:
    assert NEXT.keys() == set(Phase)

    def after(phase: Phase) -> set[Phase]:
        return {phase}.union(*map(after, NEXT[phase]))  # would not end in a circle

    assert after(Phase.CREATED) | after(Phase.REPLACING) == set(Phase)
    for phase in set(Phase) - {Phase.CREATED, Phase.RESTING}:  # what runs may fail
        assert Phase.FAILED in after(phase)


@pytest.mark.parametrize("phase", Phase)
def test_nothing_begins_before_the_start_nor_after_a_failure(phase: Phase) -> None:
    still = phase in (Phase.CREATED, Phase.REPLACING, Phase.FAILED)
    assert Gate(phase=phase).begins == (not still)


def test_inputs_that_have_ended_end_once() -> None:
    gate = Gate(phase=Phase.RUNNING)
    gate.end_inputs()
    gate.begin_step(gate.next_op(waiting=False))
    gate.end_step(Op.END_OF_STREAM)
    gate.end_inputs()
    assert gate.end_notified
    assert gate.next_op(waiting=False) is Op.COMMIT


# -- set-up ---------------------------------------------------------------------------------------


ANY = None
FLAGS = (False, True)


class State(NamedTuple):
    """Everything that the gate looks at; at most 2 events may be in flight."""

    running: bool | None
    async_commit: bool | None
    commit_due: bool | None
    window_due: bool | None
    timer_due: bool | None
    in_flight: tuple[int, ...] | int | None
    waiting: bool | None
    held: bool | None
    ended: bool | None  # all inputs have ended, and nobody was told
    draining: bool | None
    uncommitted: bool | None
    closing: bool | None  # the commit that is due is for events that are waiting, or in flight


def when(**fields: object) -> State:
    return State(**{name: fields.get(name) for name in State._fields})  # type: ignore[arg-type]


CALM = {
    "running": False,
    "commit_due": False,
    "window_due": False,
    "timer_due": False,
    "closing": False,
}
DUE = {"running": False, "commit_due": True, "closing": False}
CLOSING = {**DUE, "closing": True}
LEFT = {**CALM, "in_flight": (0,), "waiting": False, "held": False}
RULES = [
    (when(running=True), Op.NOTHING),
    (when(**CLOSING, waiting=False), Op.NOTHING),
    (when(**CLOSING, waiting=True, in_flight=(2,)), Op.NOTHING),
    (when(**CLOSING, waiting=True, in_flight=(0, 1)), Op.PROCESS),
    (when(**DUE, in_flight=(0,)), Op.COMMIT),
    (when(**DUE, in_flight=(1, 2), async_commit=True), Op.COMMIT),
    (when(**DUE, in_flight=(1, 2), async_commit=False), Op.NOTHING),
    (when(**{**CALM, "window_due": True, "timer_due": ANY}, in_flight=(0,)), Op.WINDOW),
    (when(**{**CALM, "window_due": True, "timer_due": ANY}, in_flight=(1, 2)), Op.NOTHING),
    (when(**{**CALM, "timer_due": True}, in_flight=(0,)), Op.TIMER),
    (when(**{**CALM, "timer_due": True}, in_flight=(1, 2)), Op.NOTHING),
    (when(**CALM, waiting=True, in_flight=(0, 1)), Op.PROCESS),
    (when(**CALM, waiting=True, in_flight=(2,)), Op.NOTHING),
    (when(**CALM, waiting=False, in_flight=(1, 2)), Op.NOTHING),
    (when(**CALM, waiting=False, in_flight=(0,), held=True), Op.NOTHING),
    (when(**LEFT, ended=True), Op.END_OF_STREAM),
    (when(**LEFT, ended=False, draining=True, uncommitted=True), Op.COMMIT),
    (when(**LEFT, ended=False, draining=True, uncommitted=False), Op.DONE),
    (when(**LEFT, ended=False, draining=False), Op.NOTHING),
]  # fmt: skip
STATES = [
    State(*state)
    for state in product(FLAGS, FLAGS, FLAGS, FLAGS, FLAGS, (0, 1, 2), *[FLAGS] * 6)
    if not (state[0] and state[5])
    if state[2] or not state[11]  # none closes for no commit
]


def fits(pattern: State, state: State) -> bool:
    return all(
        wanted is ANY or (found in wanted if isinstance(wanted, tuple) else found == wanted)
        for wanted, found in zip(pattern, state, strict=True)
    )


def gate_in(state: State) -> Gate:
    gate = Gate(max_concurrency=2, async_commit=bool(state.async_commit))
    gate.running = Op.WINDOW if state.running else None
    gate.commit_due = bool(state.commit_due)
    gate.window_due = bool(state.window_due)
    gate.timer_due = bool(state.timer_due)
    assert isinstance(state.in_flight, int)
    gate.in_flight = state.in_flight
    gate.inputs = Inputs.ENDED if state.ended else Inputs.OPEN
    gate.phase = Phase.DRAINING if state.draining else Phase.RUNNING
    gate.uncommitted = bool(state.uncommitted)
    gate.validate()
    return gate


def test_the_first_step_is_small_since_nothing_is_known() -> None:
    assert 7 <= Pace(2048, 0.005).events("clicks") <= 8
    assert 4 <= Pace(5, 0.005).events("clicks") <= 5
    assert Pace(1, 0.005).events("clicks") == 1


def test_each_stream_has_a_pace_of_its_own() -> None:
    pace = Pace(2048, 0.005)
    pace.took("slow", 1, 0.004)
    for _ in range(12):
        pace.took("quick", pace.events("quick"), pace.events("quick") * 1e-7)
    assert pace.events("quick") == 2048
    assert pace.events("slow") == 1
    assert pace.events("unknown") < 10


def test_other_steps_have_a_pace_of_their_own_and_take_no_time_of_events() -> None:
    pace = Pace(2048, 0.005)
    for _ in range(12):
        pace.learn("timer", pace.events("timer"), pace.events("timer") * 1e-7)
    assert pace.events("timer") == 2048
    assert pace.events("clicks") < 10
    assert pace.seconds == 0
    pace.took("clicks", 10, 0.25)
    assert pace.seconds == 0.25


def test_quick_handlers_get_the_largest_step_after_a_few() -> None:
    pace = Pace(2048, 0.005)
    for _ in range(10):
        pace.took("clicks", pace.events("clicks"), pace.events("clicks") * 1e-7)
    assert pace.events("clicks") == 2048


def test_a_slow_event_makes_the_next_step_small_at_once() -> None:
    pace = Pace(2048, 0.005)
    for _ in range(10):
        pace.took("clicks", 2048, 0.0002)
    assert pace.events("clicks") == 2048
    pace.took("clicks", 2048, 2.048)  # a millisecond each
    assert pace.events("clicks") in (4, 5)


def test_the_step_grows_back_slowly() -> None:
    pace = Pace(2048, 0.005)
    pace.took("clicks", 1, 1.0)
    sizes = []
    for _ in range(16):
        pace.took("clicks", pace.events("clicks"), pace.events("clicks") * 1e-7)
        sizes.append(pace.events("clicks"))
    assert sizes[0] == 1
    assert sizes == sorted(sizes)
    assert all(later <= 2 * earlier + 1 for earlier, later in pairwise(sizes))
    assert sizes[-1] > 100


@pytest.mark.parametrize("seconds", [0.0, -0.5])
def test_a_step_that_took_no_time_or_less_does_no_harm(seconds: float) -> None:
    """Clocks are what they are."""
    pace = Pace(2048, 0.005)
    for _ in range(100):
        pace.took("clicks", 10, seconds)
    assert pace.events("clicks") == 2048


def test_a_step_without_events_says_nothing() -> None:
    pace = Pace(2048, 0.005)
    before = pace.events("clicks")
    pace.took("clicks", 0, 10.0)
    assert pace.events("clicks") == before


@given(
    st.integers(1, 5000),
    st.floats(1e-4, 1.0),
    st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 100)), max_size=30),
)
def test_a_step_is_from_one_event_to_the_most_whatever_was_measured(
    most: int, seconds: float, steps: list[tuple[int, float]]
) -> None:
    pace = Pace(most, seconds)
    for events, took in steps:
        pace.took("clicks", events, took)
        assert 1 <= pace.events("clicks") <= most


@given(st.integers(1, 5000), st.floats(1e-4, 1.0), st.floats(1e-8, 1.0))
def test_with_a_steady_handler_a_step_takes_as_long_as_it_may_and_no_longer(
    most: int, seconds: float, cost: float
) -> None:
    pace = Pace(most, seconds)
    for _ in range(80):
        pace.took("clicks", pace.events("clicks"), pace.events("clicks") * cost)
    assert pace.events("clicks") == 1 or pace.events("clicks") * cost <= seconds * 1.001
    assert pace.events("clicks") == most or (pace.events("clicks") + 2) * cost >= seconds * 0.99
