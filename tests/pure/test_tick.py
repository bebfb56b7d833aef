"""The promises of ticks: on their beat, however many were missed, and never where there is none."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from s4node.runtime.task.tick import Tick


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
