"""The promises of a stage: first in, first out, counted in events."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from s4node.event import EventBatch
from s4node.executors.stage import Stage, StageStatistics


def batch(size: int) -> EventBatch:
    return EventBatch("clicks", 0, ["event"] * size)


def test_batches_leave_in_the_order_in_which_they_came() -> None:
    stage = Stage(10)
    one, two, three = batch(1), batch(2), batch(3)
    stage.offer(one)
    stage.offer(two)
    assert stage.take() is one
    stage.offer(three)
    assert stage.take() is two
    assert stage.take() is three
    assert stage.take() is None


def test_events_count_as_waiting_until_they_have_been_worked_on() -> None:
    stage = Stage(10)
    stage.offer(batch(4))
    stage.take()
    assert stage.depth == 4
    stage.passed(3)
    assert stage.depth == 1
    stage.passed(1)
    assert stage.depth == 0


def test_a_stage_is_full_from_its_capacity_on_and_refuses_nothing() -> None:
    stage = Stage(5)
    assert not stage.full
    stage.offer(batch(4))
    assert not stage.full
    stage.offer(batch(4))
    assert stage.full
    assert stage.depth == 8
    stage.passed(3)
    assert stage.full
    stage.passed(1)
    assert not stage.full


def test_statistics_count_events_since_the_start() -> None:
    stage = Stage(5)
    stage.offer(batch(4))
    stage.offer(batch(3))
    stage.take()
    stage.passed(4)
    assert stage.statistics() == StageStatistics(depth=3, capacity=5, admitted=7, highest=7)


@given(st.integers(1, 20), st.lists(st.integers(-3, 6), max_size=40))
def test_nothing_is_lost_or_counted_wrongly(capacity: int, moves: list[int]) -> None:
    """Positive: a batch of that size comes; zero: one is taken; negative: so many are worked on."""
    stage = Stage(capacity)
    waiting: deque[EventBatch] = deque()
    depth = admitted = highest = taken = 0
    for move in moves:
        if move > 0:
            waiting.append(batch(move))
            stage.offer(waiting[-1])
            admitted += move
            depth += move
            highest = max(highest, depth)
        elif move == 0:
            expected = waiting.popleft() if waiting else None
            assert stage.take() is expected
            taken += expected.size if expected else 0
        else:
            worked = min(-move, taken)
            stage.passed(worked)
            taken -= worked
            depth -= worked
        assert stage.statistics() == StageStatistics(depth, capacity, admitted, highest)
        assert stage.full == (depth >= capacity)
