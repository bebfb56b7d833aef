"""The promises of sources that are silent or have left: they hold no window, and lose no event."""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import data_frame, limit_peers, raw_peer, running, until
from test_watermarks_between_tasks import Auctions
from test_windows import Bar, Candle, Trade, a, bars, market

from s4node.app.app import AdapterApp, App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import OutputStream
from s4node.app.windows import tumbling
from s4node.events.schema import EventType
from s4node.net.client.client import Client
from s4node.net.client.client_stream import ClientStream
from s4node.net.wire import frame as wire
from s4node.runtime.event_time.sources import SourceState
from s4node.testing import memory_network
from s4node.testing.app_test import AppTest


class FromLog(App):
    def on_init(self) -> None:
        candle = self.create_pe(Candle)
        candle.bars = self.create_output_stream("bars", key="symbol", types=Bar)
        candle.set_window(tumbling(60))
        self.create_input_stream(
            "trades", candle, key="symbol", time="at", lateness=5, system="log"
        )


@pytest.mark.parametrize("app", [FromLog, market(tumbling(60))], ids=["log", "programs"])
def test_one_event_after_a_long_silence_ends_the_windows_before_it(app: type[App]) -> None:
    with AppTest(app) as test:
        test.send("trades", *a(10))
        test.advance(seconds=100)
        test.send("trades", *a(130))
        assert bars(test) == [("a", 0, 1, 0)]


class Both(App):
    def on_init(self) -> None:
        candle = self.create_pe(Candle)
        candle.bars = self.create_output_stream("bars", types=Bar)
        candle.set_window(tumbling(60))
        self.create_input_stream("fast", candle, key="symbol", time="at", idle=10)
        self.create_input_stream("slow", candle, key="symbol", time="at", idle=10)


@pytest.mark.parametrize("slow", [[10], []], ids=["silent", "without a producer"])
def test_a_silent_stream_does_not_hold_the_windows_of_another_one(slow: list[float]) -> None:
    with AppTest(Both) as test:
        test.send("slow", *a(*slow))
        for second in range(9):
            test.send("fast", *a(11, 100 + second))
            test.advance(seconds=1)
        assert bars(test) == []
        for second in range(4):
            test.send("fast", *a(110 + second))
            test.advance(seconds=1)
        assert bars(test) == [("a", 0, 9 + len(slow), 0)]


@pytest.mark.parametrize("order", [["slow", "fast"], ["fast", "slow"], ["slow fast"]])
def test_once_all_programs_are_idle_the_windows_before_the_latest_event_end_whoever_was_first(
    order: list[str],
) -> None:
    with AppTest(market(tumbling(60))) as test:
        times = times_of(test)
        at = {"slow": 20.0, "fast": 200.0}
        times.reported("trades", "slow", 10)
        times.reported("trades", "fast", 10)
        for names in order:
            for name in names.split():
                times.reported("trades", name, at[name])
        for names in order:
            times.step()
            for name in names.split():
                times.reported("trades", name, at[name], idle=True)
        times.step()
        assert watermark(times) == 195


@pytest.mark.parametrize("first", ["fast", "slow"])
def test_once_all_streams_of_a_pe_are_idle_its_windows_before_the_latest_event_end(
    first: str,
) -> None:
    with AppTest(Both) as test:
        for name in sorted(("fast", "slow"), key=lambda name: name != first):
            test.send(name, *a(*((11, 100) if name == "fast" else (12,))))
            test.advance(seconds=4)
        assert bars(test) == []
        test.advance(seconds=7)
        assert bars(test) == [("a", 0, 2, 0)]


def test_a_program_that_is_ahead_of_the_clock_and_idle_makes_nobody_late() -> None:
    with AppTest(market(tumbling(60))) as test:
        times = times_of(test)
        now = times._wall()
        times.reported("trades", "right", now - 10)
        times.reported("trades", "ahead", now + 3000)
        for name, at in (("ahead", now + 3000), ("right", now - 10)):
            times.reported("trades", name, at, idle=True)
        times.step()
        assert now - 10 < watermark(times) <= times._wall() - 5


def test_the_last_events_of_a_quiet_stream_in_order_are_handed_on_if_it_may_end_when_idle() -> None:
    class Last(ProcessingElement):
        out: OutputStream

        def on_event(self, trade: Trade) -> None:
            self.out.put(trade)

    def quiet(*, ends: bool) -> type[App]:
        class Quietly(App):
            def on_init(self) -> None:
                last = self.create_pe(Last)
                last.out = self.create_output_stream("out", types=Trade)
                for name, lateness in (("one", 5), ("other", 0.5)):
                    self.create_input_stream(
                        name, last, key="symbol", types=Trade, time="at", lateness=lateness,
                        idle=10, idle_ends=ends, order="time",
                    )  # fmt: skip

        return Quietly

    with AppTest(quiet(ends=True)) as test:
        test.send("one", *a(100))
        test.send("other", *a(100.5))
        test.advance(seconds=9)
        assert test.output("out") == []
        test.advance(seconds=2)
        assert [each.at for each in test.output("out")] == [100, 100.5]
    with AppTest(quiet(ends=False)) as test:
        test.send("one", *a(100))
        test.send("other", *a(100.5))
        test.advance(seconds=100)
        assert test.output("out") == []


def test_a_program_with_an_id_that_has_ended_its_stream_is_not_waited_for() -> None:
    async def program(*, ends: bool) -> None:
        async with Client("tcp://app:1", producer="first") as client:
            stream = await client.stream("trades")
            await stream.send_many(a(10))
            assert await client.flush() == []
            if ends:
                stream.end()

    for ends, found in ((True, [("a", 0, 2, 0)]), (False, [])):
        with AppTest(market(tumbling(60))) as test:
            world = test._runtime.world
            world.start_soon(partial(program, ends=ends))
            test.advance(seconds=2)
            test.send("trades", *a(11, 130))
            test.advance(seconds=2)
            assert bars(test) == found


def test_time_in_which_the_process_did_not_run_makes_nobody_silent() -> None:
    with AppTest(market(tumbling(60))) as test:
        times = times_of(test)
        times.reported("trades", "one", 100)
        times.reported("trades", "other", 10)
        times.step()
        times._clock = lambda: 3600.0  # the machine was asleep
        times.reported("trades", "one", 200)
        times.step()
        assert watermark(times) == 5


class Sources:
    def __init__(self, *states: SourceState) -> None:
        self.found = list(states)
        self.asked: list[Collection[str] | None] = []
        self._new = {each.name for each in states}

    @property
    def has_changes(self) -> bool:
        return bool(self._new)

    def take_changes(self) -> set[str]:
        new, self._new = self._new, set()
        return new

    def come(self, state: SourceState) -> None:
        self.found.append(state)
        self._new.add(state.name)

    def states(self, among: Collection[str] | None = None) -> list[SourceState]:
        self.asked.append(among)
        return [each for each in self.found if among is None or each.name in among]


def test_a_program_that_has_left_is_a_source_until_its_events_are_done() -> None:
    with AppTest(market(tumbling(60))) as test:
        times = times_of(test)
        sources = Sources(SourceState("one"), SourceState("gone", here=False, waits=True))
        times.watch("trades", sources)
        times.reported("trades", "gone", 10)
        times.reported("trades", "one", 100)
        times.step()
        assert watermark(times) == 5  # events between 10 and 100 may wait in its queue
        sources.found[1] = SourceState("gone", here=False)
        times.step()
        assert watermark(times) == 95


def test_a_producer_that_comes_costs_no_look_at_all_others() -> None:
    with AppTest(market(tumbling(60))) as test:
        times = times_of(test)
        sources = Sources(*(SourceState(f"p{number}") for number in range(1000)))
        times.watch("trades", sources)
        times.step()
        sources.asked.clear()
        sources.come(SourceState("new"))
        times.step()
        assert sources.asked == [{"new"}]
        assert "new" in times._streams["trades"].watermarks


def test_a_log_that_cannot_be_reached_is_waited_for() -> None:
    class LogAndPrograms(App):
        def on_init(self) -> None:
            candle = self.create_pe(Candle)
            candle.bars = self.create_output_stream("bars", types=Bar)
            candle.set_window(tumbling(60))
            self.create_input_stream("fast", candle, key="symbol", time="at")
            self.create_input_stream("slow", candle, key="symbol", time="at", system="log")

    with AppTest(LogAndPrograms) as test:
        test.send("slow", *a(10))
        log: Any = test._runtime.senders["slow"]._system  # type: ignore[attr-defined]
        test._runtime.world.call(log.go_away)
        for second in range(60):  # longer than idle
            test.send("fast", *a(100 + second))
            test.advance(seconds=1)
        assert bars(test) == []
        test._runtime.world.call(log.come_back)
        test.send("slow", *a(11))
        test.send("slow", *a(70))
        assert bars(test) == [("a", 0, 2, 0)]


def test_a_task_whose_inputs_wait_is_not_idle_at_the_next_hop() -> None:
    with AppTest(Auctions) as test:
        times = times_of(test)
        sources = Sources(SourceState("one", blocked=True))  # a handler takes very long
        times.watch("bids", sources)
        times.reported("bids", "one", 100)

        def pass_time(first: int, end: int) -> None:
            for second in range(first, end):
                times._clock = lambda second=second: float(second)
                times.reported("best", "another task", 500)
                times.step()

        pass_time(0, 60)
        assert times._streams["best"].watermarks.value == 99
        sources.found[0] = SourceState("one")
        pass_time(60, 100)
        assert times._streams["best"].watermarks.value == 500


def test_results_that_wait_in_the_task_are_waited_for_when_their_inputs_are_silent() -> None:
    with AppTest(Auctions) as test:
        times = times_of(test)
        times.queues = {**times.queues, "best": Queue()}
        times.watch("best", Sources(SourceState("another task", reports=True)))
        times.reported("bids", "one", 301)
        times.step()
        times.reported("bids", "one", 301, idle=True)
        times.reported("best", "another task", 400)
        times.step()
        assert times._streams["best"].watermarks.value < 300
        times.queues["best"].depth = 0  # type: ignore[index]
        times.step()
        assert times._streams["best"].watermarks.value == 400


class Queue:
    admitted = 3
    depth = 3


class Quiet(AdapterApp):
    output_stream = "trades"
    remote_stream_key_finder = "symbol"

    def on_start(self) -> None:
        self.start_soon(self.feed)

    async def feed(self) -> None:
        await self.remote_stream.send_many(a(10, 11))
        self.remote_stream.watermark(65)  # and nothing more is sent


async def test_an_adapter_without_events_tells_its_time() -> None:
    ended = []

    class Noting(Candle):
        def on_window(self) -> None:
            ended.append((self.key, self.n))

    class Market(App):
        def on_init(self) -> None:
            noting = self.create_pe(Noting)
            noting.bars = self.create_output_stream("bars", types=Bar)
            noting.set_window(tumbling(60))
            self.create_input_stream("trades", noting, key="symbol", time="at", lateness=5)

    fast = {"s4.stream.trades.grade": "fast"}
    async with running(Market("market"), fast, partitions=2) as consumer:
        settings = {
            "s4.stream.trades.consumers": "market",
            "s4.cluster.market.address": consumer.address,
        }
        async with running(Quiet("quiet"), settings):
            await until(lambda: ended == [("a", 2)], "the end of the window")


async def test_a_program_whose_earlier_life_is_yet_to_be_committed_may_end(tmp_path: Path) -> None:
    settings = {"s4.state.folder": str(tmp_path), "task.commit.ms": "200"}
    app = market(tumbling(60))("market")
    own_id = {wire.OWN_ID: True}
    async with running(app, settings) as node, raw_peer(node.address) as first:
        (admission,) = [port.admission for port in node.parts.inputs.ports.values()]
        types = (EventType(Trade).declaration,)
        await first.send_frames(wire.Hello("once", "1", "trades", types, headers=own_id))
        await first.receive_until(lambda frame: isinstance(frame, wire.Hello))
        commit, node.parts.loop.commit = node.parts.loop.commit, lambda _: False
        await first.send_frames(data_frame("trades", "once", 0, a(*range(1, 100))))
        await until(lambda: admission.admitted == 99)
        async with raw_peer(node.address) as second:
            hello = wire.Hello("once", "2", "trades", types, headers=own_id)
            await second.send_frames(hello, wire.EndOfStream("trades", "once"))
            await until(lambda: "once" in admission._ended)
        node.parts.loop.commit = commit
        await until(lambda: not admission.lanes and not admission.roster._known)


async def test_the_types_of_a_program_that_waits_to_be_saved_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_peers(monkeypatch, type_bytes=1024)  # 21 times those of this program
    settings = {"s4.state.folder": str(tmp_path)}
    app = market(tumbling(60))("market")
    async with (
        running(app, settings, partitions=24) as node,
        Client(node.address, producer="till") as client,
    ):
        trades = await client.stream("trades", types=Trade)
        await trades.send(*a(10))
        assert await trades.flush() == []


def test_a_source_that_says_it_is_idle_counts_with_the_time_that_it_says() -> None:
    with AppTest(market(tumbling(60))) as test:
        times = times_of(test)
        times.reported("trades", "one", 10)
        times.step()
        times.reported("trades", "one", 100, idle=True)
        times.step()
        assert watermark(times) == 95


class Counted(ProcessingElement):
    n: int = 0

    def on_event(self, bar: Bar) -> None:
        self.n += bar.count


class BothAndAnotherHop(App):
    def on_init(self) -> None:
        candle, counted = self.create_pe(Candle), self.create_pe(Counted)
        candle.set_window(tumbling(60))
        candle.bars = self.create_stream("inner", counted, key="symbol", types=Bar, time="start")
        self.create_input_stream("fast", candle, key="symbol", time="at")
        self.create_input_stream("slow", candle, key="symbol", time="at")


def test_what_is_put_is_at_no_time_whose_windows_have_not_ended() -> None:
    with AppTest(BothAndAnotherHop) as test:
        test.send("fast", *a(10))
        times = times_of(test)
        times.reported("slow", "one", 50)
        for each in times._streams["fast"].watermarks.sources:
            times.reported("fast", each, 200)
        times.step()
        assert times.puts.times["inner"] == 50
        times.reported("slow", "one", 50, idle=True)  # while windows are called
        times.windows_ended()
        assert times.puts.times["inner"] == 50  # the window until 60 has yet to be called
        assert times.next_due == -math.inf


# --- sources that cannot be reached --------------------------------------------------------------


class Program:
    """A program with an id, on a host of its own."""

    def __init__(self, test: AppTest[Any], name: str) -> None:
        self._world = test._runtime.world
        self._test = test
        self._name = name
        self._scope = trio.CancelScope()
        self._leaves = trio.Event()
        self._opened: list[ClientStream] = []
        self._world.start_soon(self._live)
        test.advance(seconds=1)

    async def _live(self) -> None:
        memory_network.host.set(self._name)
        with self._scope:
            async with Client("tcp://app:1", producer=self._name) as client:
                self._opened.append(await client.stream("trades"))
                await self._leaves.wait()

    def send(self, *times: float) -> None:
        self._world.run(partial(self._opened[0].send_many, a(*times)))
        self._test.advance(seconds=1)

    def leave(self) -> None:
        self._world.call(self._leaves.set)

    def kill(self) -> None:
        """Leave without a word."""
        self._world.call(self._world.network.cut, self._name)
        self._world.call(self._scope.cancel)


@pytest.mark.parametrize("killed", [False, True], ids=["", "and the node is killed"])
def test_a_program_that_the_network_cuts_off_is_waited_for(killed: bool) -> None:
    with AppTest(market(tumbling(60))) as test:
        world = test._runtime.world
        slow, fast = Program(test, "slow"), Program(test, "fast")
        slow.send(10)
        fast.send(11)
        test.advance(seconds=2)
        world.call(world.network.cut, "slow")
        if killed:
            test.crash()
        for second in range(100):
            fast.send(100 + second)
        assert bars(test) == []
        world.network.heal("slow")
        test.advance(seconds=10)
        slow.send(12, 70)
        assert bars(test) == [("a", 0, 3, 0)]
        assert test.late(Candle) == 0


def test_a_node_that_the_network_cuts_off_waits_for_all_its_programs() -> None:
    with AppTest(market(tumbling(60))) as test:
        world = test._runtime.world
        slow, fast = Program(test, "slow"), Program(test, "fast")
        slow.send(10)
        fast.send(200)
        world.call(world.network.cut, "app")
        test.advance(seconds=100)
        world.network.heal("app")
        test.advance(seconds=10)
        slow.send(11, 70)
        assert bars(test) == [("a", 0, 2, 0)]
        assert test.late(Candle) == 0


@pytest.mark.parametrize("killed", [False, True], ids=["", "also if the node is killed"])
def test_a_program_that_has_left_in_order_and_may_return_is_waited_for_as_an_idle_one(
    killed: bool,
) -> None:
    with AppTest(market(tumbling(60))) as test:
        slow, fast = Program(test, "slow"), Program(test, "fast")
        slow.send(10)
        slow.leave()
        for _ in range(5):
            fast.send(110)
        if killed:
            test.crash()
        for _ in range(20):
            fast.send(110)
        assert bars(test) == []
        for _ in range(15):
            fast.send(110)
        assert bars(test) == [("a", 0, 1, 0)]


def test_a_program_that_leaves_without_an_event_tells_no_time() -> None:
    with AppTest(market(tumbling(60))) as test:
        Program(test, "nothing").leave()
        test.advance(seconds=2)
        assert watermark(times_of(test)) == -math.inf


def test_a_program_that_was_killed_has_left_once_it_was_away_for_an_hour() -> None:
    with AppTest(market(tumbling(60))) as test:
        slow, fast = Program(test, "slow"), Program(test, "fast")
        slow.send(10)
        fast.send(200)
        slow.kill()
        for _ in range(59):
            test.advance(seconds=60)
            fast.send(200)
        assert bars(test) == []
        for _ in range(3):
            test.advance(seconds=60)
            fast.send(200)
        assert bars(test) == [("a", 0, 1, 0)]


def test_a_task_of_another_container_that_cannot_be_reached_is_waited_for() -> None:
    with AppTest(Auctions) as test:
        times = times_of(test)
        sources = Sources(SourceState("another task", returns=True, reports=True))
        times.watch("best", sources)
        times.reported("best", "another task", 50)
        times.reported("bids", "one", 301)
        times.step()
        sources.found[0] = SourceState("another task", here=False, returns=True, reports=True)
        for second in range(100):
            times._clock = lambda second=second: float(second)
            times.reported("bids", "one", 301)
            times.step()
        assert times._streams["best"].watermarks.value == 50


@pytest.mark.parametrize("seconds", [100, 10_000])
def test_a_pause_of_the_process_makes_no_program_silent(seconds: float) -> None:
    with AppTest(market(tumbling(60))) as test:
        world = test._runtime.world
        slow, fast = Program(test, "slow"), Program(test, "fast")
        slow.send(10)
        fast.send(11)
        for _ in range(3):
            world.runs.now += seconds  # nothing ran meanwhile
            fast.send(200)
        assert bars(test) == []
        slow.send(12, 70)
        assert bars(test) == [("a", 0, 3, 0)]
        assert test.late(Candle) == 0


def times_of(test: AppTest[Any]) -> Any:
    times = test._runtime.tasks[0].processor.times
    times._clock = lambda: 0.0
    return times


def watermark(times: Any) -> float:
    return times._streams["trades"].watermarks.value
