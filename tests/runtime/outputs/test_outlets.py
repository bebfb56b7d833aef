"""Outlets of an app: its tasks write to a system, with their commits. The system is in memory."""

from __future__ import annotations

import json

import msgspec
import pytest

from s4node import App, Event, OutputStream, ProcessingElement, Tombstone
from s4node.errors import EventError, S4Error
from s4node.offsets.system import OutputRecord
from s4node.testing import AppTest


class Click(Event):
    user: str
    number: int = 0


class Total(Event):
    user: str
    total: int
    at: float = 0.0
    headers: dict[str, bytes] = msgspec.field(default_factory=dict)


class Sum(ProcessingElement):
    totals: OutputStream
    total: int = 0

    def on_event(self, click: Click) -> None:
        self.total += click.number
        self.totals.put(Total(self.key, self.total) if click.number else Tombstone(self.key))


class Sums(App):
    def on_init(self) -> None:
        pe = self.create_pe(Sum)
        pe.totals = self.create_output_stream("totals", key="user", types=Total, system="kafka")
        self.create_input_stream("clicks", pe, key="user")


def test_events_are_records_with_a_key_once_they_are_committed() -> None:
    with AppTest(Sums) as test:
        test.send("clicks", Click("ann", 3), Click("bob", 0))
        test.advance(1)
        ann, bob = test.records("totals")
        assert (ann.key, json.loads(ann.value or b"")["total"]) == (b"ann", 3)
        assert (bob.key, bob.value) == (b"bob", None)


def test_the_app_keeps_state_and_a_crash_publishes_nothing_twice() -> None:
    with AppTest(Sums, partitions=3) as test:
        for number in range(20):
            test.send("clicks", *(Click(f"user {n}", 1) for n in range(10)))
            if number % 3 == 1:
                test.advance(0.05 * number)
            if number % 4 == 3:
                test.crash()
        test.advance(5)
        assert totals(test) == {f"user {n}": [*range(1, 21)] for n in range(10)}


def test_a_system_that_is_away_gets_all_once_it_is_back() -> None:
    with AppTest(Sums) as test:
        system = test._runtime.world.inputs.system("kafka")
        test._runtime.world.call(system.go_away)
        for _ in range(5):
            test.send("clicks", Click("ann", 1))
            test.advance(20)
        assert totals(test) == {}
        test._runtime.world.call(system.come_back)
        test.advance(5)
        assert totals(test) == {"ann": [1, 2, 3, 4, 5]}


def test_the_time_and_headers_of_a_record_come_from_fields_that_the_settings_name() -> None:
    class Timed(Sum):
        def on_event(self, click: Click) -> None:
            self.totals.put(Total(self.key, click.number, 1_700_000_000.25, {"by": b"me"}))

    app = App("timed")
    pe = app.create_pe(Timed)
    pe.totals = app.create_output_stream("totals", key="user", types=Total, system="kafka")
    app.create_input_stream("clicks", pe, key="user")
    settings = {"streams.totals.record.time": "at", "streams.totals.record.headers": "headers"}
    with AppTest(app, settings=settings) as test:
        test.send("clicks", Click("ann", 3))
        test.advance(1)
        value = b'{"user":"ann","total":3,"at":1700000000.25}'
        (record,) = test.records("totals")
        assert record == OutputRecord("totals", b"ann", value, 1_700_000_000_250, [("by", b"me")])


@pytest.mark.parametrize(
    ("settings", "serde", "value"),
    [
        ({}, "msgpack", b"\x82\xa4user\xa3ann\xa5total\x03"),
        ({}, f"{__name__}:Short", b"ann=3"),
    ],
)
def test_values_have_the_format_of_their_stream(
    settings: dict[str, str], serde: str, value: bytes
) -> None:
    class Small(Event):
        user: str
        total: int

    class Smaller(Sum):
        def on_event(self, click: Click) -> None:
            self.totals.put(Small(self.key, click.number))

    app = App("small")
    pe = app.create_pe(Smaller)
    pe.totals = app.create_output_stream("totals", key="user", system="kafka")
    app.create_input_stream("clicks", pe, key="user")
    with AppTest(app, settings={**settings, "streams.totals.samza.msg.serde": serde}) as test:
        test.send("clicks", Click("ann", 3))
        test.advance(1)
        assert test.records("totals")[0].value == value


class Short:
    def encode(self, total: object) -> bytes:
        return f"{total.user}={total.total}".encode()  # type: ignore[attr-defined]


def test_an_event_that_cannot_be_written_stops_the_app_before_its_commit() -> None:
    class Bad(Event):
        user: float

    class Puts(Sum):
        def on_event(self, click: Click) -> None:
            self.totals.put(Bad(0.5))

    app = App("bad")
    pe = app.create_pe(Puts)
    pe.totals = app.create_output_stream("totals", key="user", system="kafka")
    app.create_input_stream("clicks", pe, key="user")
    with pytest.raises(EventError, match=r"'totals': .*Bad\(user=0.5\) .*: .* is not a key"):
        run_with_a_click(app)


def test_a_record_that_is_too_large_stops_the_app_before_its_commit() -> None:
    class Large(Sum):
        def on_event(self, click: Click) -> None:
            self.totals.put(Total("x" * 1_000_000, 1))

    app = App("large")
    pe = app.create_pe(Large)
    pe.totals = app.create_output_stream("totals", key="user", types=Total, system="kafka")
    app.create_input_stream("clicks", pe, key="user")
    with pytest.raises(EventError, match=r"a record of 20000.. bytes .* is larger than 1000000"):
        run_with_a_click(app)


def test_only_tasks_write_to_a_system() -> None:
    class Source(Sums):
        async def on_start(self) -> None:
            await self.streams["totals"].send(Total("ann", 1))

    with pytest.raises(S4Error, match="takes only what PEs and tasks put"), AppTest(Source):
        pass


def test_a_tombstone_needs_a_stream_with_a_key_to_a_system() -> None:
    app = App("plain")
    pe = app.create_pe(Sum)
    pe.totals = app.create_output_stream("totals")
    app.create_input_stream("clicks", pe, key="user")
    with pytest.raises(S4Error, match="takes no Tombstone"):
        run_with_a_click(app, number=0)


def test_an_app_whose_inputs_are_fast_may_write_to_a_system() -> None:
    with AppTest(Sums, settings={"s4.stream.clicks.grade": "fast"}) as test:
        test.send("clicks", Click("ann", 1), Click("ann", 1))
        test.advance(1)
        assert totals(test) == {"ann": [1, 2]}


# -- set-up ---------------------------------------------------------------------------------------


def run_with_a_click(app: App, number: int = 3) -> None:
    with AppTest(app) as test:
        test.send("clicks", Click("ann", number))
        test.advance(1)


def totals(test: AppTest[Sums]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for record in test.records("totals"):
        value = json.loads(record.value or b"")
        found.setdefault(value["user"], []).append(value["total"])
    return found
