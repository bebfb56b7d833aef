"""The promises of the pace: a step ends in time, and a slow handler is met with small steps."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.runtime.task.gate import Pace


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
