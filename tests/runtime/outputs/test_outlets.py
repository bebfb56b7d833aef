"""Outlets of an app: its tasks write to a system, with their commits. The system is in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import trio
from harness import running, until

from s4node import App, Client, Event, OutputStream, ProcessingElement, Tombstone
from s4node.config.config import Config
from s4node.errors import EventError, S4Error
from s4node.offsets.system import OutputRecord
from s4node.runtime.outputs import outlets
from s4node.state import task_state
from s4node.systems.memory import MemorySystem
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
        system = away(test)
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
    with pytest.raises(EventError, match=r"'totals': .*Bad\(user=0.5\) .*: .* a key is a str"):
        run_with_a_click(app)


def test_a_record_that_is_too_large_stops_the_app_before_its_commit() -> None:
    class Large(Sum):
        def on_event(self, click: Click) -> None:
            self.totals.put(Total("x", 1, headers={"x": bytes(1_000_000)}))

    app = App("large")
    pe = app.create_pe(Large)
    pe.totals = app.create_output_stream("totals", key="user", types=Total, system="kafka")
    app.create_input_stream("clicks", pe, key="user")
    with pytest.raises(EventError, match=r"a record of 13333.. bytes .* is larger than 1000000"):
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


def test_a_version_without_the_stream_of_waiting_records_is_refused() -> None:
    writes = [True, False, True]

    class Versions(App):
        def on_init(self) -> None:
            pe = self.create_pe(Sum)
            system = "kafka" if writes.pop(0) else None
            pe.totals = self.create_output_stream("totals", key="user", types=Total, system=system)
            self.create_input_stream("clicks", pe, key="user")

    with AppTest(Versions, settings={"s4.stream.clicks.grade": "durable"}) as test:
        system = away(test)
        test.send("clicks", Click("ann", 1))
        test.advance(1)
        with pytest.raises(S4Error, match="records for stream 'totals' that are not published to"):
            test.crash()
        test._runtime.world.call(system.come_back)
        start_again(test)
        test.advance(5)
        assert totals(test) == {"ann": [1]}


def test_a_stop_waits_for_all_outlets_together_and_then_publishes_nothing_more() -> None:
    """Another container may own the tasks while on_close runs."""

    class Slow(Sums):
        async def on_close(self) -> None:
            committer = test._runtime.container.replay.committer  # type: ignore[attr-defined]
            store = committer._context.store
            for number in range(8):
                store.claim(f"Partition {number}", "another", 7, 100)
            system.come_back()
            await trio.sleep(3)

    settings = {"task.shutdown.ms": "15000"}
    with AppTest(Slow, partitions=8, settings=settings) as test:
        system = away(test)
        test.send("clicks", *(Click(f"user {n}", 1) for n in range(50)))
        test.advance(1)
        began = test.now
        test._runtime.stop()
        assert test.now - began < 15
        assert system.published.records == []


def test_an_app_that_ends_itself_before_its_records_are_published_ends_with_an_error() -> None:
    class Bounded(App):
        def on_init(self) -> None:
            pe = self.create_pe(Sum)
            pe.totals = self.create_output_stream("totals", key="user", types=Total, system="kafka")
            self.create_input_stream("clicks", pe, key="user", system="memory")

    with AppTest(Bounded, partitions=2) as test:
        system = away(test)
        test.send("clicks", *(Click(f"user {n}", 1) for n in range(9)))
        test.end_input("clicks")
        with pytest.raises(S4Error, match=r"not published: 9 for system 'kafka'.* start it again"):
            test.advance(60)
        test._runtime.world.call(system.come_back)
        start_again(test)
        test._runtime.advance(60)
        assert totals(test) == {f"user {n}": [1] for n in range(9)}
        assert test._runtime.ended


async def test_an_app_starts_while_the_system_that_it_writes_to_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlets, "_ANSWER_SECONDS", 0.05)
    settings = {"systems.kafka.type": f"{__name__}:Away", "s4.state.folder": str(tmp_path)}
    async with running(Sums("sums"), settings) as container:
        await until(lambda: container.statistics().replay.away)
        async with Client(container.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send(Click("ann", 3))
            await client.flush()
        assert container.tasks[0].instances["Sum"]["ann"].total == 3
        Away.made[0].come_back()
        await until(lambda: Away.made[0].published.records)
        await until(lambda: not container.statistics().replay.away)


class Away(MemorySystem):
    """A system that is away when the app starts."""

    made: ClassVar[list[MemorySystem]] = []

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        self.create("totals", 1)
        self.go_away()
        self.made.append(self)


def test_streams_that_a_full_outlet_holds_go_on_when_its_task_is_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_state, "CHANGES_BYTES", 1000)
    with AppTest(Sums, partitions=2) as test:
        system = away(test)
        test.send("clicks", *(Click(f"user {n}", 1) for n in range(50)))
        test.advance(1)
        parts = test._runtime.container.parts
        assert parts.pipeline.full
        for each in parts.outputs.tasks.values():
            each.revoke()
        assert parts.pipeline.check_full()
        assert not parts.pipeline.full
        test._runtime.world.call(system.come_back)


def test_a_commit_of_large_records_has_many_rows() -> None:
    class Large(Sum):
        def on_event(self, click: Click) -> None:
            for number in range(300):
                self.totals.put(Total("x", number, headers={"x": bytes(200_000)}))

    class Puts(Sums):
        def on_init(self) -> None:
            pe = self.create_pe(Large)
            pe.totals = self.create_output_stream("totals", key="user", types=Total, system="kafka")
            self.create_input_stream("clicks", pe, key="user")

    with AppTest(Puts) as test:
        system = away(test)
        test.send("clicks", Click("ann", 1))
        test.advance(1)
        channels: Any = test._runtime.container.parts.outputs.tasks[0]
        (outlet,) = channels.outlets.values()
        assert max(len(each.data) for each in outlet.outlet.waiting) < 2 << 20
        test._runtime.world.call(system.come_back)
        test.advance(5)
        assert list(totals(test).values()) == [[*range(300)]]


# -- set-up ---------------------------------------------------------------------------------------


def start_again(test: AppTest[Any]) -> None:
    test._runtime.failed = False
    test._runtime.world.failures.clear()
    test._runtime.crash()


def away(test: AppTest[Any]) -> MemorySystem:
    """The system to which the app writes, which is away now."""
    system: MemorySystem = test._runtime.world.inputs.system("kafka")
    test._runtime.world.call(system.go_away)
    return system


def run_with_a_click(app: App, number: int = 3) -> None:
    with AppTest(app) as test:
        test.send("clicks", Click("ann", number))
        test.advance(1)


def totals(test: AppTest[Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for record in test.records("totals"):
        value = json.loads(record.value or b"")
        found.setdefault(value["user"], []).append(value["total"])
    return found
