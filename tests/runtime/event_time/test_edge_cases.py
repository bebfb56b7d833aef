"""Windows and timers at the edges: of sessions, graces, commits, streams and clocks."""

from __future__ import annotations

import math
from typing import Any

import pytest

from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import OutputStream, Stream
from s4node.app.windows import WindowKind, count, hopping, session, tumbling
from s4node.errors import ProcessingError
from s4node.events.event import Event
from s4node.testing.app_test import AppTest


class Click(Event):
    key: str
    at: float


class Found(Event):
    key: str
    start: float
    end: float
    count: int
    round: int


class Clicks(ProcessingElement):
    found: OutputStream
    count: int = 0

    def on_event(self, click: Click) -> None:
        if click.key == "gone":
            self.remove()
            return
        self.count += 1

    def on_window(self) -> None:
        start, end, again = self.window
        self.found.put(Found(str(self.key), start, end, self.count, again))

    def merge(self, later: Clicks) -> None:
        self.count += later.count


class Site(App):
    kind: WindowKind
    options: dict[str, Any]

    def on_init(self) -> None:
        clicks = self.create_pe(Clicks)
        clicks.found = self.create_output_stream("found", types=Found)
        late = self.create_output_stream("late", types=Click)
        clicks.set_window(self.kind, late=late, **self.options)
        self.create_input_stream(
            "clicks", clicks, key=lambda _: "all", types=Click, time="at", lateness=50
        )


def site(kind: WindowKind, **options: Any) -> AppTest[Any]:
    return AppTest(type("Site", (Site,), {"kind": kind, "options": options}))


def at(*times: float) -> list[Click]:
    return [Click("a", time) for time in times]


@pytest.mark.parametrize("last", [26, 80])
def test_an_overlapping_window_that_has_had_its_result_has_none_again_after_a_crash(
    last: float,
) -> None:
    with site(hopping(20, every=10), grace=5) as test:
        # at 26, 15 is late for the window that ended at 20, and counts in that until 30
        for time in (12, 22, 76, 15, 81, last):
            test.send("clicks", *at(time))
        test.advance(seconds=2)
        before = test.take_output("found")
        assert len(before) == len(set(before)) > 0
        test.crash()
        test.advance(seconds=2)
        assert test.output("found") == []


def test_further_results_of_an_overlapping_window_have_round_1() -> None:
    with site(hopping(20, every=10), grace=50) as test:
        test.send("clicks", *at(12, 22, 75))  # at 25 now
        test.advance(seconds=2)
        assert [(f.end, f.count, f.round) for f in test.take_output("found")] == [(20, 1, 0)]
        test.send("clicks", *at(15))
        assert [(f.end, f.count, f.round) for f in test.take_output("found")] == [(20, 2, 1)]
        test.send("clicks", *at(16))
        assert [(f.end, f.count, f.round) for f in test.take_output("found")] == [(20, 3, 1)]


def test_an_instance_of_an_overlapping_window_cannot_be_removed_in_on_window() -> None:
    class Removed(Clicks):
        def on_window(self) -> None:
            self.remove()

    class Removing(App):
        def on_init(self) -> None:
            removed = self.create_pe(Removed)
            removed.found = self.create_output_stream("found", types=Found)
            removed.set_window(hopping(20, every=10))
            self.create_input_stream("clicks", removed, key="key", types=Click, time="at")

    with (
        pytest.raises(ProcessingError, match="cannot be removed in on_window: windows overlap"),
        AppTest(Removing) as test,
    ):
        test.send("clicks", *at(12, 32))


def found(test: AppTest[Any]) -> list[tuple[Any, ...]]:
    return [(f.start, f.end, f.count, f.round) for f in test.take_output("found")]


@pytest.mark.parametrize("kind", [tumbling(10), hopping(10, every=10)], ids=["tumbling", "hopping"])
def test_a_window_without_events_does_not_exist(kind: WindowKind) -> None:
    with site(kind) as test:
        test.send("clicks", *at(15, 95, 200))
        assert found(test) == [(10, 20, 1, 0), (90, 100, 1, 0)]


def test_two_saved_sessions_are_joined_by_an_event_after_a_crash() -> None:
    with site(session(gap=10)) as test:
        test.send("clicks", *at(60, 75))
        test.advance(seconds=2)
        test.crash()
        assert len(test.windows(Clicks, "all")) == 2
        test.send("clicks", *at(68))
        test.advance(seconds=2)
        test.crash()
        assert [session.count for session in test.windows(Clicks, "all")] == [3]
        test.send("clicks", *at(300))
        assert found(test) == [(60, 85, 3, 0)]


def test_a_session_that_has_had_its_result_and_is_joined_has_a_further_one_at_its_new_end() -> None:
    with site(session(gap=10), grace=100) as test:
        test.send("clicks", *at(60, 75, 121))
        assert found(test) == [(60, 70, 1, 0)]
        test.send("clicks", *at(68))
        assert found(test) == []
        test.advance(seconds=2)
        test.crash()
        test.send("clicks", *at(140))
        assert found(test) == [(60, 85, 3, 1)]


def test_after_remove_a_late_event_within_the_grace_begins_anew() -> None:
    with site(tumbling(10), grace=100) as test:
        test.send("clicks", *at(60, 61, 121))
        assert found(test) == [(60, 70, 2, 0)]
        test.send("clicks", Click("gone", 62))
        assert found(test) == []
        test.send("clicks", *at(63))
        assert found(test) == [(60, 70, 1, 0)]


def test_a_crash_in_the_middle_of_the_grace_changes_no_result() -> None:
    with site(tumbling(10), grace=100) as test:
        test.send("clicks", *at(60, 61, 121))
        assert found(test) == [(60, 70, 2, 0)]
        test.advance(seconds=2)
        test.crash()
        test.send("clicks", *at(63))
        assert found(test) == [(60, 70, 3, 1)]
        test.send("clicks", *at(221))  # the grace is over
        assert found(test) == [(120, 130, 1, 0)]
        test.send("clicks", *at(64))
        assert found(test) == []
        assert test.output("late") == at(64)


def test_a_broadcast_stream_has_its_windows_in_every_task() -> None:
    class Passing(ProcessingElement):
        to: Stream

        def on_event(self, click: Click) -> None:
            self.to.put(click)

    class Everywhere(App):
        def on_init(self) -> None:
            clicks, passing = self.create_pe(Clicks), self.create_pe(Passing)
            clicks.set_singleton()
            clicks.set_window(tumbling(10))
            clicks.found = self.create_output_stream("found", types=Found)
            passing.to = self.create_stream("all", clicks, types=Click, broadcast=True, time="at")
            self.create_input_stream("clicks", passing, key="key", types=Click, time="at")

    with AppTest(Everywhere, partitions=3) as test:
        test.send("clicks", *(Click(f"k{n}", 60 + n / 10) for n in range(90)))
        test.advance_watermark("clicks", 100)
        test.advance(seconds=10)
        assert found(test) == [(60, 70, 90, 0)] * 3


def test_the_kit_moves_both_clocks() -> None:
    class ByWall(App):
        def on_init(self) -> None:
            clicks = self.create_pe(Clicks)
            clicks.found = self.create_output_stream("found", types=Found)
            clicks.set_window(tumbling(10), clock="wall")
            self.create_input_stream("clicks", clicks, key="key", types=Click)

    with AppTest(ByWall) as test:
        begin = 1_700_000_000.0  # 2023-11-14 22:13:20
        test.send("clicks", *at(1))
        assert test.windows(Clicks, "a")[0].window[:2] == (begin, begin + 10)
        test.advance(seconds=11)
        assert test.now == 11
        assert found(test) == [(begin, begin + 10, 1, 0)]


def test_an_event_without_a_time_reaches_what_does_not_go_by_it_and_moves_no_watermark() -> None:
    class Plain(ProcessingElement):
        n: int = 0

        def on_event(self, _click: Click) -> None:
            self.n += 1

    class Both(App):
        def on_init(self) -> None:
            counted, plain = self.create_pe(Clicks), self.create_pe(Plain)
            counted.found = self.create_output_stream("found", types=Found)
            counted.set_window(count(3))
            self.create_input_stream("clicks", counted, plain, key="key", types=Click, time="at")

    with AppTest(Both) as test:
        test.send("clicks", *at(60, math.nan, 4e9))
        assert found(test) == [(0, 3, 3, 3)]
        assert test.state(Plain, "a").n == 3
        assert test._runtime.tasks[0].statistics().watermarks["clicks"][0] == 60
        assert not test.refused
