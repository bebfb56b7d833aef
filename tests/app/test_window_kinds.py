"""The promises of kinds of windows: where an instant belongs, and what is no window."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.app.windows import Window, WindowKind, count, day, hopping, session, tumbling
from s4node.errors import EventTimeError, GraphError
from s4node.events.event import Event, GenericEvent
from s4node.events.event_time import TimeRule
from s4node.events.schema import EventType


def span_of(kind: WindowKind, t: float) -> tuple[float, float]:
    assert kind.span is not None
    return kind.span(t)


def test_a_window_holds_its_start_and_not_its_end() -> None:
    assert span_of(tumbling(60), 60.0) == (60, 120)
    assert span_of(tumbling(60), 119.999) == (60, 120)
    assert span_of(tumbling(60), 120.0) == (120, 180)


def test_windows_begin_at_multiples_of_their_length_shifted_by_an_offset() -> None:
    assert span_of(tumbling(3600, offset=900), 1000.0) == (900, 4500)
    assert span_of(tumbling(3600, offset=900), 800.0) == (-2700, 900)


@given(st.floats(0.001, 1e6), st.floats(0.1, 4e9))
def test_every_instant_is_in_the_window_that_it_is_given(size: float, t: float) -> None:
    start, end = span_of(tumbling(size), t)
    assert start <= t < end


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 10_000))
def test_a_pane_is_whole_in_each_of_its_windows(every: int, more: int, t: int) -> None:
    kind = hopping(every + more, every=every)
    pane = span_of(kind, float(t))
    expected = [
        start + every + more
        for start in (step * every for step in range(-more - 2, t // every + 1))
        if start <= t < start + every + more
    ]
    assert kind.ends_of(pane) == expected


@given(st.integers(1, 5000), st.integers(0, 10**9), st.integers(-5000, 5000))
def test_windows_of_milliseconds_lie_end_to_start_and_begin_at_the_very_millisecond(
    size: int, number: int, offset: int
) -> None:
    kind = tumbling(size / 1000, offset=offset / 1000)
    start, after = ((size * n + offset) / 1000 for n in (number, number + 1))
    assert span_of(kind, start) == (start, after)
    assert span_of(kind, math.nextafter(after, -math.inf)) == (start, after)


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 10**12))
def test_a_pane_of_milliseconds_is_whole_in_each_of_its_windows(
    every: int, more: int, t: int
) -> None:
    length = every + more
    kind = hopping(length / 1000, every=every / 1000)
    pane = span_of(kind, t / 1000)
    last = t // every * every + length
    ends = [end for end in range(last, t, -every) if end - length <= t < end][::-1]
    assert kind.ends_of(pane) == [end / 1000 for end in ends]
    assert [kind.start_of(end / 1000) for end in ends] == [(end - length) / 1000 for end in ends]


def test_a_day_is_from_midnight_to_midnight_in_its_zone_also_when_clocks_change() -> None:
    kind = day("Europe/Berlin")
    noon = datetime(2026, 3, 29, 12, tzinfo=UTC).timestamp()
    start, end = span_of(kind, noon)
    assert end - start == 23 * 3600
    assert datetime.fromtimestamp(start, UTC).hour == 23
    autumn = datetime(2026, 10, 25, 12, tzinfo=UTC).timestamp()
    start, end = span_of(kind, autumn)
    assert end - start == 25 * 3600


@pytest.mark.parametrize(
    ("zone", "midnight", "went_back"),
    [
        ("America/St_Johns", datetime(2006, 10, 29, 2, 30, tzinfo=UTC), 3600),  # at 0:01, to 23:01
        ("America/Havana", datetime(2026, 11, 1, 4, tzinfo=UTC), 3600),  # at 1:00, to 0:00
        ("America/Sao_Paulo", datetime(2018, 2, 18, 3, tzinfo=UTC), 3600),  # at 24:00, to 23:00
    ],
)
def test_days_follow_each_other_also_if_the_clock_goes_back_over_midnight(
    zone: str, midnight: datetime, went_back: int
) -> None:
    kind = day(zone)
    found = []
    for minute in range(-2 * 1440, 2 * 1440):
        t = midnight.timestamp() + 60 * minute
        start, end = span_of(kind, t)
        assert start <= t < end
        found.append((start, end))
    spans = sorted(set(found))
    assert found == sorted(found)
    assert all(one[1] == other[0] for one, other in pairwise(spans))
    assert 86_400 + went_back in [end - start for start, end in spans]


def test_the_last_millisecond_of_a_window_is_in_it() -> None:
    window = Window(60.0, 120.0)
    assert window.start <= window.last < window.end


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tumbling(0), "give seconds"),
        (lambda: tumbling(-1), "give seconds"),
        (lambda: tumbling(math.nan), "give seconds"),
        (lambda: tumbling(10 * 366 * 86400), "a year"),
        (lambda: tumbling("60"), "give seconds"),  # type: ignore[arg-type]
        (lambda: tumbling(60, offset=math.inf), "offset"),
        (lambda: hopping(60, every=0), "every=0"),
        (lambda: hopping(60, every=90), "leaves gaps"),
        (lambda: hopping(86400, every=0.007), "panes"),
        (lambda: session(gap=0), "gap=0"),
        (lambda: count(0), "from 1 on"),
        (lambda: count(1.5), "from 1 on"),  # type: ignore[arg-type]
        (lambda: day("Mars/Olympus"), "not a time zone"),
    ],
)
def test_what_is_no_window_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(GraphError, match=words):
        make()


# --- the time of an event ------------------------------------------------------------------------


class Seconds(Event):
    at: float


class Millis(Event):
    at: int


class Moment(Event):
    at: datetime


NOW = 1_700_000_000.0


def time_of(event: Any) -> float:
    rule = TimeRule("s", "at", [EventType(type(event))])
    return rule.check(rule.find(event), NOW)


def test_a_time_is_seconds_milliseconds_or_a_datetime() -> None:
    assert time_of(Seconds(1_600_000_000.5)) == 1_600_000_000.5
    assert time_of(Millis(1_600_000_000_500)) == 1_600_000_000.5
    assert time_of(Moment(datetime.fromtimestamp(1.6e9, UTC))) == 1.6e9
    assert time_of(GenericEvent(at=1.5)) == 1.5
    assert time_of(GenericEvent(at=1_600_000_000_500)) == 1_600_000_000.5


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Seconds(0.0), "above 0"),
        (Seconds(-1.0), "above 0"),
        (Seconds(math.nan), "above 0"),
        (Seconds(math.inf), "ahead of the clock"),
        (Seconds(1_600_000_000_000.0), "milliseconds in a field of seconds"),
        (Seconds(NOW + 3601), "ahead of the clock"),
        (Seconds("today"), "give seconds"),  # type: ignore[arg-type]
        (Seconds(None), "give seconds"),  # type: ignore[arg-type]
        (Millis(1_600_000_000), "before 1973"),
        (Millis(0), "before 1973"),
        (Moment(datetime(2020, 1, 1)), "time zone"),  # noqa: DTZ001 - on purpose
        (GenericEvent(), "give seconds"),
        (GenericEvent(at=True), "give seconds"),
        (GenericEvent(at="2020"), "give seconds"),
    ],
)
def test_what_is_no_time_is_refused_with_the_field_and_the_value(event: Any, words: str) -> None:
    with pytest.raises(EventTimeError, match=words) as refused:
        time_of(event)
    assert str(refused.value).startswith("stream 's': at=")


def test_the_latest_of_a_batch_leaves_out_what_is_no_time() -> None:
    rule = TimeRule("s", "at", [EventType(Seconds)])
    good = [Seconds(3.0), Seconds(9.0), Seconds(5.0)]
    assert rule.latest(good, NOW) == 9.0
    bad = [Seconds(math.nan), Seconds(1e12), Seconds(-1.0), Seconds(None)]  # type: ignore[arg-type]
    assert rule.latest([*bad, *good], NOW) == 9.0
    assert rule.latest(bad, NOW) is None
    assert rule.latest([], NOW) is None
