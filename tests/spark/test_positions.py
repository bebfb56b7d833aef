"""Positions in a log's stream: micro-batches are bounded, and lost events are reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from s4node.errors import ConfigError, InputLost
from s4node.offsets.startpoint import Oldest, Specific, Timestamp, Upcoming
from s4node.offsets.system import Bounds
from s4node.spark.positions import Position, advance, check, from_json, ranges, to_json
from s4node.spark.read_options import parse_start

LAGS = some.lists(some.integers(0, 300), min_size=1, max_size=6)


@given(LAGS, some.integers(1, 500))
def test_steps_of_a_limited_size_come_to_the_end_and_none_is_larger(
    lags: list[int], most: int
) -> None:
    at = {number: Position(7, 1) for number in range(len(lags))}
    end = {number: Position(7 + lag, 1) for number, lag in enumerate(lags)}
    for _ in range(sum(lags) // most + 1):
        following = advance(at, end, most)
        step = sum(following[n].offset - at[n].offset for n in at)
        assert step == min(most, sum(end[n].offset - at[n].offset for n in at))
        at = following
    assert at == end
    assert advance(at, end, None) == end


def test_a_position_whose_events_a_power_cut_has_taken_is_reported() -> None:
    bounds = {0: Bounds(0, 90, epochs=((100, 0), (200, 50)))}

    check("clicks", {0: Position(50, 100)}, bounds)
    check("clicks", {0: Position(90, 200)}, bounds)
    with pytest.raises(InputLost, match=r"clicks\[0\] from offset 50 to 60 are lost"):
        check("clicks", {0: Position(60, 100)}, bounds)


def test_a_position_that_retention_has_passed_is_reported() -> None:
    with pytest.raises(InputLost, match="the next event to read was 9, and the oldest event is 10"):
        check("clicks", {0: Position(9, 1)}, {0: Bounds(10, 20, epochs=((1, 0),))})


def test_positions_survive_the_checkpoint_and_make_parts_without_holes() -> None:
    start = {0: Position(0, 1), 1: Position(5, 1)}
    end = {0: Position(2_500_000, 1), 1: Position(5, 1), 2: Position(3, 1)}
    bounds = {n: Bounds(0, 9_000_000, epochs=((1, 0),)) for n in range(3)}

    assert from_json(to_json(start, "user string")) == start
    assert [tuple(each) for each in ranges(start, end, bounds)] == [
        (0, 0, 1_000_000, 1),
        (0, 1_000_000, 2_000_000, 1),
        (0, 2_000_000, 2_500_000, 1),
        (2, 0, 3, 1),
    ]


def test_places_are_written_as_startpoints_are() -> None:
    assert parse_start("start", "oldest") == Oldest()
    assert parse_start("start", " upcoming ") == Upcoming()
    assert parse_start("start", "offset 42") == Specific(42)
    assert parse_start("start", "timestamp 1970-01-01T00:00:01Z") == Timestamp(1000)
    assert parse_start("start", '{"0": 4, "2": 7}') == {0: 4, 2: 7}
    for bad in ("yesterday", "offset x", "timestamp 2026-01-31T08:00:00", ""):
        with pytest.raises(ConfigError, match="write oldest, upcoming"):
            parse_start("start", bad)
    for bad in ('{"0": -1}', "{}", '{"x": 1}'):
        with pytest.raises(ConfigError, match="write offsets by partition"):
            parse_start("start", bad)
