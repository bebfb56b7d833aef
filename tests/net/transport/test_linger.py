"""The promises of coalescing: a quiet stream keeps its latency, a busy one its throughput."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.net.transport.linger import Coalescer


def test_a_quiet_stream_sends_at_once() -> None:
    coalescer = Coalescer(2048, linger=0.004)
    assert coalescer.due(1, now=5.0) <= 5.0
    coalescer.flushed(1, now=5.0)
    assert coalescer.due(1, now=5.0001) <= 5.0001
    coalescer.flushed(63, now=5.0001)
    assert coalescer.due(1, now=5.0002) <= 5.0002


def test_a_busy_stream_gathers_but_no_longer_than_linger() -> None:
    coalescer = Coalescer(2048, linger=0.004)
    coalescer.flushed(64, now=5.0)
    assert coalescer.due(1, now=5.001) == 5.004
    assert coalescer.due(2047, now=5.001) == 5.004
    assert coalescer.due(1, now=5.01) <= 5.01


def test_a_busy_stream_sends_at_once_when_enough_has_gathered() -> None:
    coalescer = Coalescer(2048, linger=0.004)
    coalescer.flushed(2048, now=5.0)
    assert coalescer.due(2048, now=5.001) <= 5.001
    assert coalescer.due(9999, now=5.001) <= 5.001


def test_the_first_small_flush_ends_the_busy_time() -> None:
    coalescer = Coalescer(2048, linger=0.004)
    coalescer.flushed(2048, now=5.0)
    coalescer.flushed(3, now=5.004)
    assert coalescer.due(1, now=5.0041) <= 5.0041


@pytest.mark.parametrize(
    ("lanes", "queue_size", "target"),
    [(1, 32_768, 2048), (8, 32_768, 2048), (64, 32_768, 16_384), (64, 1000, 500), (1, 1, 1)],
)
def test_what_is_gathered_is_a_fair_frame_for_each_lane_within_half_of_the_queue(
    lanes: int, queue_size: int, target: int
) -> None:
    coalescer = Coalescer()
    coalescer.for_lanes(lanes, queue_size)
    assert coalescer.target == target
    assert 0.002 <= coalescer.linger <= 0.01


@given(
    st.integers(1, 5000),
    st.floats(0, 1),
    st.lists(st.tuples(st.integers(0, 9000), st.floats(0, 1)), max_size=20),
    st.integers(1, 9000),
    st.floats(0, 1),
)
def test_nothing_waits_longer_than_linger_after_the_last_flush(
    target: int, linger: float, flushes: list[tuple[int, float]], pending: int, later: float
) -> None:
    coalescer = Coalescer(target, linger)
    now = 0.0
    for events, pause in flushes:
        now += pause
        coalescer.flushed(events, now)
    last, busy = now, bool(flushes) and flushes[-1][0] >= 64
    now += later
    due = coalescer.due(pending, now)
    at_once = pending >= target or not busy
    assert (due <= now) == (at_once or last + linger <= now)
    assert due <= max(now, last + linger)
