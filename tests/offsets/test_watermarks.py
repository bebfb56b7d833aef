"""The promises of a stream's watermark: the lowest of its active sources, and never back."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.offsets.watermarks import NEVER, Watermarks

CASES: dict[str, tuple[list[tuple[Any, ...]], float]] = {
    "one source": ([("at", "a", 10)], 10),
    "the lowest counts": ([("at", "a", 10), ("at", "b", 5)], 5),
    "a source without events holds the others": ([("join", "b"), ("at", "a", 10)], NEVER),
    "it does not go back": ([("at", "a", 10), ("end",), ("at", "b", 5)], 10),
    "a new source begins where the others are": (
        [("at", "a", 10), ("end",), ("join", "b"), ("at", "a", 20)],
        10,
    ),
    "an idle source is left out": ([("at", "a", 10), ("at", "b", 5), ("wait", 9, "a")], 10),
    "the lowest is derived anew when a source becomes idle": (
        [("at", "a", 10), ("at", "b", 5), ("end",), ("wait", 9, "a")],
        10,
    ),
    "once all are idle it is at the latest time": (
        [("at", "a", 10), ("at", "b", 5), ("end",), ("wait", 9)],
        10,
    ),
    "so it is if the one that is further was idle first": (
        [("at", "a", 10), ("at", "b", 5), ("end",), ("wait", 9, "b"), ("end",), ("wait", 9)],
        10,
    ),
    "so it is if the one that is behind was idle first": (
        [("at", "a", 10), ("at", "b", 5), ("end",), ("wait", 9, "a"), ("end",), ("wait", 9)],
        10,
    ),
    "and if the one that is further has left": (
        [("at", "a", 10), ("at", "b", 5), ("end",), ("finish", "a"), ("wait", 9)],
        10,
    ),
    "and if it has left before the other one has come": (
        [("join", "b"), ("at", "a", 10), ("finish", "a"), ("at", "b", 5), ("wait", 9)],
        10,
    ),
    "one of which nothing was heard is idle before another one": (
        [("join", "b"), ("at", "a", 10), ("wait", 9), ("at", "b", 4)],
        10,
    ),
    "an idle source that comes back holds again": (
        [("at", "a", 10), ("at", "b", 5), ("wait", 9, "a"), ("at", "b", 12), ("at", "a", 20)],
        12,
    ),
    "an idle source that comes back behind does not lower it": (
        [("at", "a", 10), ("at", "b", 5), ("wait", 9, "a"), ("end",), ("at", "b", 6)],
        10,
    ),
    "one that came back behind holds until it has caught up": (
        [
            ("at", "a", 10),
            ("at", "b", 5),
            ("wait", 9, "a"),
            ("end",),
            ("at", "b", 6),
            ("at", "a", 30),
        ],
        10,
    ),
    "a source that could not send does not become idle": (
        [("at", "a", 10), ("at", "b", 5), ("wait", 9, "b", "a")],
        5,
    ),
    "waiting adds up": (
        [("at", "a", 10), ("at", "b", 5), ("wait", 3, "a"), ("wait", 3, "a")],
        10,
    ),
    "an event ends the waiting": (
        [("at", "a", 10), ("at", "b", 5), ("wait", 3, "a"), ("at", "b", 5), ("wait", 3, "a")],
        5,
    ),
    "a finished source is left out, and is not infinity": (
        [("at", "a", 10), ("at", "b", 5), ("finish", "b")],
        10,
    ),
    "a source has counted with its time until it has finished": (
        [("at", "a", 10), ("finish", "a")],
        10,
    ),
    "if all are finished it stays": (
        [("at", "a", 10), ("at", "b", 5), ("end",), ("finish", "a"), ("finish", "b")],
        5,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_watermark_of_active_idle_and_finished_sources(case: str) -> None:
    steps, expected = CASES[case]
    marks = Watermarks(idle=6)
    for what, *values in steps:
        if what == "at":
            marks.reach(*values)
        elif what == "join":
            marks.join(*values)
        elif what == "wait":
            marks.wait(values[0], values[1:])
        elif what == "finish":
            marks.leave(*values)
        else:
            marks.advance()
    marks.advance()
    assert marks.value == expected


def test_once_all_are_idle_it_does_not_pass_the_clock() -> None:
    now = 1000.0
    marks = Watermarks(3, 6, wall=lambda: now)
    marks.reach("ahead", 4600)
    marks.reach("right", 990)
    marks.wait(6)
    marks.advance()
    assert marks.value == 997  # so a program whose clock is right is not late
    assert marks.waits
    now = 5000.0
    marks.advance()
    assert marks.value == 4597
    assert not marks.waits


def test_once_all_are_idle_it_may_be_beyond_the_latest_event() -> None:
    marks = Watermarks(3, 6, beyond=0.25)
    marks.reach("a", 10)
    marks.wait(6)
    marks.advance()
    assert marks.value == 10.25


def test_events_may_be_late_by_the_lateness() -> None:
    marks = Watermarks(lateness=3)
    marks.reach("a", 10)
    assert marks.advance() is True
    assert marks.value == 7
    assert marks.advance() is False


def test_there_is_none_until_as_many_sources_are_known_as_there_must_be() -> None:
    marks = Watermarks(expected=2)
    marks.reach("a", 10)
    assert marks.advance() is False
    marks.reach("b", 4)
    assert marks.advance() is True
    assert marks.value == 4


def test_it_goes_on_where_an_earlier_run_has_stopped() -> None:
    marks = Watermarks(idle=6)
    marks.restore(7, {"a": 9, "b": 7})
    marks.reach("a", 20)
    assert marks.advance() is False  # b is waited for
    marks.wait(6, ["a"])
    assert marks.advance() is True
    assert marks.value == 20


def test_a_source_is_idle_when_it_is_not_waited_for() -> None:
    marks = Watermarks(idle=6)
    marks.reach("a", 10)
    assert not marks.is_idle("a")
    marks.wait(6)
    assert marks.is_idle("a")
    assert not marks.is_idle("b")


def test_what_holds_it_back_has_a_name() -> None:
    marks = Watermarks()
    assert marks.holding == ""
    marks.reach("a", 10)
    marks.reach("b", 5)
    assert marks.holding == "b"


STEP = st.one_of(
    st.tuples(st.just("reach"), st.sampled_from("abc"), st.floats(0, 100)),
    st.tuples(st.just("join"), st.sampled_from("abc")),
    st.tuples(st.just("leave"), st.sampled_from("abc")),
    st.tuples(st.just("wait"), st.floats(0, 5)),
)


@given(st.lists(STEP, max_size=30))
def test_it_never_goes_back_and_never_passes_an_active_source(steps: list[Any]) -> None:
    marks = Watermarks(lateness=1, idle=6)
    before, latest = NEVER, -math.inf
    for what, *values in steps:
        getattr(marks, what)(*values)
        if what == "reach":
            latest = max(latest, values[1])
        marks.advance()
        assert before <= marks.value <= latest
        before = marks.value


class Plain:
    """The rules without what is kept between two derivations: all of it anew from the sources."""

    def __init__(self, marks: Watermarks, now: list[float]) -> None:
        self.marks, self.now, self.value = marks, now, NEVER

    @property
    def lowest(self) -> float:
        sources: Any = self.marks._sources
        active = [each.time for each in sources.values() if not each.idle]
        known = len(sources) >= self.marks._expected
        return min(active) - self.marks.lateness if active and known else NEVER

    @property
    def is_silent(self) -> bool:
        sources: Any = self.marks._sources
        alone = self.marks._alone >= self.marks.idle
        return all(each.idle for each in sources.values()) if sources else alone

    def advance(self) -> None:
        lowest = self.lowest
        if lowest == NEVER and self.is_silent and len(self.marks._sources) >= self.marks._expected:
            lowest = min(self.marks.newest, self.now[0]) + self.marks.beyond
        self.value = max(self.value, lowest)


OPS = st.one_of(
    st.tuples(st.just("reach"), st.sampled_from("abc"), st.integers(0, 30)),
    st.tuples(st.sampled_from(["join", "rest", "leave"]), st.sampled_from("abc"), st.none()),
    st.tuples(st.just("wait"), st.sets(st.sampled_from("abc")), st.integers(1, 7)),
    st.tuples(st.sampled_from(["advance", "expect", "clock"]), st.none(), st.integers(0, 3)),
)


@given(st.lists(OPS, max_size=40), st.integers(0, 3), st.booleans())
def test_a_watermark_derived_by_change_is_that_derived_anew(
    steps: list[tuple[str, Any, Any]], expected: int, bounded: bool
) -> None:
    now = [5.0 if bounded else math.inf]
    marks = Watermarks(1, 6, expected, wall=lambda: now[0])
    plain = Plain(marks, now)
    for what, source, value in steps:
        if what == "reach":
            marks.reach(source, value)
        elif what == "wait":
            marks.wait(value, source)
        elif what == "expect":
            marks.expect(value)
        elif what == "clock":
            now[0] += value
        elif what == "advance":
            marks.advance()
            plain.value = max(plain.value, marks.value)  # what it has seen in between stays
            plain.advance()
            assert marks.value == plain.value
        else:
            getattr(marks, what)(source)
        assert (marks.lowest, marks.is_silent) == (plain.lowest, plain.is_silent)
        assert marks in marks.marked or marks.value >= plain.lowest
