"""The promises of coalescing: a quiet stream keeps its latency, a busy one its throughput."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.net.transport.linger import Linger, Sendable, together


def test_a_busy_stream_gathers_but_no_longer_than_linger() -> None:
    coalescer = Linger(PLENTY)
    coalescer.flushed(64, now=5.0)
    assert coalescer.due(one_lane(1), now=5.001) == pytest.approx(5.0021)
    assert coalescer.due(one_lane(2047), now=5.001) == pytest.approx(5.0021)
    assert coalescer.due(one_lane(1), now=5.01) <= 5.01


@pytest.mark.parametrize(
    ("lanes", "most", "enough"),
    [(1, 16_384, 2048), (8, 16_384, 2048), (64, 16_384, 16_384), (64, 500, 500), (1, 1, 1)],
)
def test_enough_is_a_fair_frame_for_each_lane_that_has_events_within_the_queue(
    lanes: int, most: int, enough: int
) -> None:
    coalescer = Linger(most)
    coalescer.flushed(2048, now=5.0)
    assert coalescer.due(Sendable(enough, lanes, PLENTY), now=5.001) <= 5.001
    assert 5.002 <= coalescer.due(Sendable(enough - 1, lanes, PLENTY), now=5.001) <= 5.01


def test_the_lanes_and_the_credit_of_all_streams_count() -> None:
    assert together([]) == Sendable(0, 0, 0)
    assert together([Sendable(5, 1, 9), Sendable(0, 0, 0), Sendable(7, 2, 8)]) == (12, 3, 17)


@given(
    st.integers(1, 9000),
    st.integers(1, 100),
    st.lists(st.tuples(st.integers(0, 9000), st.floats(0, 1)), max_size=20),
    st.integers(1, 9000),
    st.integers(0, 9000),
    st.floats(0, 1),
)
def test_nothing_waits_longer_than_linger_after_the_last_flush(
    most: int,
    lanes: int,
    flushes: list[tuple[int, float]],
    events: int,
    more_room: int,
    later: float,
) -> None:
    coalescer = Linger(most)
    now = 0.0
    for left, pause in flushes:
        now += pause
        coalescer.flushed(left, now)
    last, busy = now, bool(flushes) and flushes[-1][0] >= 64
    now += later
    due = coalescer.due(Sendable(events, lanes, events + more_room), now)
    enough = events >= min(max(2048, 256 * lanes), most)
    at_once = enough or not more_room or not busy
    until = last + 0.002 + lanes * 0.0001
    assert (due <= now) == (at_once or until <= now)
    assert due <= max(now, until)


# -- set-up ---------------------------------------------------------------------------------------


PLENTY = 1_000_000


def one_lane(events: int) -> Sendable:
    return Sendable(events, 1, PLENTY)
