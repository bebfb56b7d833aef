"""The promises of the pace: a step ends in time, and a slow handler is met with small steps."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.container.pace import Pace


def test_the_first_step_is_small_since_nothing_is_known() -> None:
    assert 32 <= Pace(2048, 0.005).events <= 64
    assert 9 <= Pace(10, 0.005).events <= 10
    assert Pace(1, 0.005).events == 1


def test_quick_handlers_get_the_largest_step_after_a_few() -> None:
    pace = Pace(2048, 0.005)
    for _ in range(10):
        pace.took(pace.events, pace.events * 1e-7)
    assert pace.events == 2048


def test_a_slow_event_makes_the_next_step_small_at_once() -> None:
    pace = Pace(2048, 0.005)
    for _ in range(10):
        pace.took(2048, 0.0002)
    assert pace.events == 2048
    pace.took(2048, 2.048)  # a millisecond each
    assert pace.events in (4, 5)


def test_the_step_grows_back_slowly() -> None:
    pace = Pace(2048, 0.005)
    pace.took(1, 1.0)
    sizes = []
    for _ in range(16):
        pace.took(pace.events, pace.events * 1e-7)
        sizes.append(pace.events)
    assert sizes[0] == 1
    assert sizes == sorted(sizes)
    assert all(later <= 2 * earlier + 1 for earlier, later in pairwise(sizes))
    assert sizes[-1] > 100


@pytest.mark.parametrize("seconds", [0.0, -0.5])
def test_a_step_that_took_no_time_or_less_does_no_harm(seconds: float) -> None:
    """Clocks are what they are."""
    pace = Pace(2048, 0.005)
    for _ in range(100):
        pace.took(10, seconds)
    assert pace.events == 2048


def test_a_step_without_events_says_nothing() -> None:
    pace = Pace(2048, 0.005)
    before = pace.events
    pace.took(0, 10.0)
    assert pace.events == before


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
        pace.took(events, took)
        assert 1 <= pace.events <= most


@given(st.integers(1, 5000), st.floats(1e-4, 1.0), st.floats(1e-8, 1.0))
def test_with_a_steady_handler_a_step_takes_as_long_as_it_may_and_no_longer(
    most: int, seconds: float, cost: float
) -> None:
    pace = Pace(most, seconds)
    for _ in range(80):
        pace.took(pace.events, pace.events * cost)
    assert pace.events == 1 or pace.events * cost <= seconds * 1.001
    assert pace.events == most or (pace.events + 2) * cost >= seconds * 0.99
