"""The promises of event time over restarts: nothing that was known is forgotten or counted anew."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from test_silent_sources import Sources, times_of, watermark
from test_state_of_keys import DURABLE
from test_windows import Bar, Candle, Trade, a, bars, market

from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import OutputStream, Stream
from s4node.app.windows import hopping, tumbling
from s4node.errors import EventError, StateError
from s4node.events.event import GenericEvent
from s4node.runtime.event_time.saved_times import EVENT_TIME
from s4node.runtime.event_time.sources import SourceState
from s4node.runtime.task import task
from s4node.runtime.task.pe_processor import PeProcessor
from s4node.testing.app_test import AppTest


class Kept:
    """The facts that a commit saves."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}

    def meta(self, name: str) -> Any:
        return self.facts.get(name)

    def set_meta(self, name: str, value: Any) -> None:
        self.facts[name] = value


class Passing(ProcessingElement):
    out: Stream

    async def on_event(self, trade: Trade) -> None:
        self.out.put(trade)


class TwoHops(App):
    parallel = 1

    def on_init(self) -> None:
        passing, candle = self.create_pe(Passing), self.create_pe(Candle)
        candle.bars = self.create_output_stream("bars", types=Bar)
        candle.set_window(tumbling(60))
        passing.out = self.create_stream("passed", candle, key="symbol", types=Trade, time="at")
        trades = self.create_input_stream(
            "trades", passing, key="symbol", time="at", lateness=5, system="log"
        )
        if self.parallel > 1:
            trades.set_parallelism(self.parallel)


def test_what_was_put_before_a_kill_moves_the_watermark_of_the_next_hop_after_it() -> None:
    kept = Kept()
    with AppTest(TwoHops) as test:
        times = times_of(test)
        [source] = (str(each) for each in times.queues if not isinstance(each, str))
        times.reported("trades", source, 125)
        times.step()  # the stream is at 120, and what waits for that is still in its queue
        times.save(kept)
    with AppTest(TwoHops) as test:
        times = times_of(test)
        times.restore(kept)
        times.step()
        assert times.statistics_parts()["watermarks"]["passed"] == (120, "own")


def test_a_program_that_has_sent_nothing_here_is_waited_for_after_a_kill_too() -> None:
    kept = Kept()
    one, other = SourceState("one", returns=True), SourceState("other", returns=True)
    with AppTest(market(tumbling(60))) as test:
        times = times_of(test)
        times.watch("trades", Sources(one, other))
        times.save(kept)
    with AppTest(market(tumbling(60))) as test:
        times = times_of(test)
        times.restore(kept)
        times.watch("trades", Sources(one))  # which is back before the other one
        times.reported("trades", "one", 100)
        times.step()
        assert watermark(times) == -math.inf
        times.watch("trades", Sources(one, other))
        times.reported("trades", "other", 10)
        times.step()
        assert watermark(times) == 5


def test_a_commit_keeps_the_time_of_its_events_although_who_sent_them_does_not_return() -> None:
    kept = Kept()
    with AppTest(market(tumbling(60))) as test:
        times = times_of(test)
        times.watch("trades", Sources(SourceState("one")))
        times.step()
        times.reported("trades", "one", 100)
        times.save(kept)  # before a step, as the first commit after a rollback
    with AppTest(market(tumbling(60))) as test:
        times = times_of(test)
        times.restore(kept)
        times.watch("trades", Sources())
        times.step()
        assert watermark(times) == 95


def test_a_program_that_was_idle_is_not_waited_for_after_a_kill_until_it_sends() -> None:
    kept = Kept()
    one, quiet = SourceState("one", returns=True), SourceState("quiet", returns=True)
    with AppTest(market(tumbling(60))) as test:
        times = times_of(test)
        times.watch("trades", Sources(one, quiet))
        for second in range(40):
            times._clock = lambda second=second: float(second)
            times.reported("trades", "one", 100)
            times.step()
        assert watermark(times) == 95
        times.save(kept)
    with AppTest(market(tumbling(60))) as test:
        times = times_of(test)
        times.restore(kept)
        times.watch("trades", Sources(one))
        times.reported("trades", "one", 200)
        times.step()
        assert watermark(times) == 195
        times.watch("trades", Sources(one, quiet))  # it has connected again
        times.reported("trades", "one", 300)
        times.step()
        assert watermark(times) == 295
        times.reported("trades", "quiet", 310)
        times.reported("trades", "one", 400)
        times.step()
        assert watermark(times) == 305


@pytest.mark.parametrize("what", ["reports", "waits"])
def test_an_idle_source_that_has_something_to_say_is_waited_for_after_a_kill(what: str) -> None:
    kept, one = Kept(), SourceState("one", returns=True)
    idle = SourceState("idle", returns=True, reports=what == "reports", waits=what == "waits")
    with AppTest(market(tumbling(60))) as test:
        times = times_of(test)
        times.watch("trades", Sources(one, idle))
        times.reported("trades", "idle", 100, idle=True)
        times.reported("trades", "one", 100)
        times.step()
        times.save(kept)
    with AppTest(market(tumbling(60))) as test:
        times = times_of(test)
        times.restore(kept)
        times.watch("trades", Sources(one))
        times.reported("trades", "one", 200)
        times.step()
        assert watermark(times) == 95  # it may have put results since then, which come again
        times.reported("trades", "idle", 100, idle=True)
        times.step()
        assert watermark(times) == 195


def test_of_programs_that_were_idle_only_those_that_are_connected_are_saved() -> None:
    kept = Kept()
    gone = [SourceState(f"gone {n}", here=False, returns=True, left=True) for n in range(1000)]
    with AppTest(market(tumbling(60))) as test:
        times = times_of(test)
        times.watch("trades", Sources(SourceState("here", returns=True), *gone))
        times.step()
        times.save(kept)
        assert len(str(kept.facts)) > 10_000  # they are waited for, and may return
        for second in range(40):
            times._clock = lambda second=second: float(second)
            times.step()
        times.save(kept)
        assert "here" in str(kept.facts)
        assert "gone" not in str(kept.facts)


def test_an_input_that_is_read_no_more_after_a_restart_is_waited_for_no_longer() -> None:
    with AppTest(market(tumbling(60))) as test:
        times = times_of(test)
        timed = times._streams["trades"]
        times.watch("trades", Sources(SourceState("one")))
        timed.restore((5.0, {}, [], {"log.former.0": 10.0}, []))
        times.step()
        times.reported("trades", "one", 100)
        times.step()
        assert watermark(times) == 95


def test_times_that_an_earlier_version_has_saved_are_refused() -> None:
    kept = Kept()
    with AppTest(market(tumbling(60))) as test:
        test.send("trades", *a(10))
        times_of(test).save(kept)
        streams = kept.facts[EVENT_TIME][0]
        streams["trades"] = streams["trades"][:3]
        with pytest.raises(StateError, match="'trades' were saved by an earlier version"):
            times_of(test).restore(kept)


def test_handlers_that_overlap_move_the_watermark_of_a_log() -> None:
    with AppTest(type("TwoHops", (TwoHops,), {"parallel": 4})) as test:
        test.send("trades", *a(*range(10, 70)), *a(130))
        test.advance(seconds=2)
        assert bars(test) == [("a", 0, 50, 0), ("a", 60, 10, 0)]


def test_a_late_pane_gives_no_result_of_a_window_that_had_ended_after_a_kill_either() -> None:
    with AppTest(market(hopping(120, every=60))) as test:
        test.send("trades", Trade("b", 1, 130))
        test.send("trades", *a(70))  # counts in the window until 180, not in the one until 120
        test.advance(seconds=2)
        test.crash()
        test.send("trades", Trade("b", 1, 200))
        assert bars(test) == [("a", 60, 1, 0), ("b", 60, 1, 0)]


def test_calls_that_a_kill_prevents_are_made_after_it() -> None:
    with AppTest(market(hopping(120, every=60))) as test:
        test.send("trades", *a(10))
        test.advance(seconds=2)
        instances = test._runtime.tasks[0].instances["Candle"]
        assert instances.called_until == instances.watermark == 5
        instances.watermark = 125  # and the calls are yet to be made
        assert 59.9 < instances.called_until < 60
        test.advance(seconds=2)
        assert instances.called_until == 125


class InOrderApp(App):
    def on_init(self) -> None:
        candle = self.create_pe(Candle)
        candle.bars = self.create_output_stream("bars", types=Bar)
        candle.set_window(tumbling(60))
        self.create_input_stream(
            "trades", candle, key="symbol", time="at", lateness=5, order="time"
        )


def test_events_that_are_held_back_are_counted_after_a_kill_too() -> None:
    with AppTest(InOrderApp) as test:
        test.send("trades", *a(10, 11, 12))
        test.advance(seconds=2)
        assert test._runtime.tasks[0].statistics().held_back == 3
        test.crash()
        assert test._runtime.tasks[0].statistics().held_back == 3


# --- state that ends -----------------------------------------------------------------------------


class Remembers(ProcessingElement):
    told: OutputStream
    n: int = 0

    def on_event(self, _trade: Trade) -> None:
        self.n += 1
        self.after(50, "tick")

    def on_timer(self, name: str) -> None:
        self.told.put(GenericEvent(key=self.key))
        self.after(50, name)


class RemembersApp(App):
    size = 0

    def on_init(self) -> None:
        remembers = self.create_pe(Remembers)
        remembers.told = self.create_output_stream("told", types=GenericEvent)
        remembers.set_ttl(120)
        if self.size:
            remembers.set_pe_cache(max_size=self.size)
        self.create_input_stream("trades", remembers, key="symbol")


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("size", [0, 1])
def test_a_timer_does_not_lengthen_the_life_of_its_key(size: int, killed: bool) -> None:
    app = type("RemembersApp", (RemembersApp,), {"size": size})
    with AppTest(app, settings=DURABLE) as test:
        test.send("trades", *a(1))
        test.send("trades", Trade("b", 1, 1))
        test.advance(seconds=101)
        if killed:
            test.send("trades", Trade("c", 1, 1))  # so that there is a commit
            test.advance(seconds=2)
            test.crash()
        test.advance(seconds=300)
        told = [event["key"] for event in test.output("told")]
        assert (told.count("a"), told.count("b")) == (2, 2)  # at 50 and 100 s


# --- many windows --------------------------------------------------------------------------------


MANY = 5000


def many() -> list[Trade]:
    return [Trade(f"key-{n}", 1, 10) for n in range(MANY)]


def test_saved_windows_are_read_in_parts_so_that_nobody_waits_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts: list[bool] = []
    restore = PeProcessor.restore

    def noted(processor: PeProcessor, limit: int) -> bool:
        parts.append(restore(processor, limit))
        return parts[-1]

    with AppTest(market(tumbling(60))) as test:
        test.send("trades", *many())
        test.advance(seconds=2)
        monkeypatch.setattr(PeProcessor, "restore", noted)
        test.crash()
        assert parts == [True] * 10 + [False]
        test.send("trades", *a(130))
        assert len(bars(test)) == MANY


class Twice(App):
    """Two PEs with the same windows over a log."""

    def on_init(self) -> None:
        out = self.create_output_stream("bars", types=Bar)
        candles = [self.create_pe(Candle, name=name) for name in ("one", "two")]
        for candle in candles:
            candle.bars = out
            candle.set_window(tumbling(60))
        self.create_input_stream("trades", *candles, key="symbol", time="at", system="log")


def test_windows_end_in_parts_at_the_end_of_the_inputs() -> None:
    with AppTest(Twice) as test:
        test.send("trades", *many())
        test.end_input("trades")
        test.advance(seconds=2)
        assert len(bars(test)) == 2 * MANY
        [task] = test._runtime.tasks
        assert task.statistics().calls["end of stream"] > 1


@pytest.mark.parametrize("ends", [False, True], ids=["by the watermark", "with the inputs"])
def test_a_task_commits_between_parts_of_many_windows_that_end(
    monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(task, "_ROWS_OF_CALLS", MANY // 10)
    with AppTest(Twice) as test:
        test.send("trades", *many())
        test.advance(seconds=2)
        committer = test._runtime.container.replay.committer
        before = committer.commits
        if ends:
            test.end_input("trades")
        else:
            test.send("trades", *a(200))
        assert committer.commits - before >= 2
        assert len(bars(test)) == 2 * MANY
        test.crash()
        test.advance(seconds=2)
        assert len(bars(test)) == 0


def test_inputs_may_end_while_windows_end_by_the_watermark() -> None:
    with AppTest(Twice) as test:
        test._runtime.senders["trades"].send([*many(), *a(130)], None)
        test.end_input("trades")  # before any of it is processed
        test.advance(seconds=2)
        assert len(bars(test)) == 2 * (MANY + 1)


def test_a_commit_while_windows_end_with_the_inputs_saves_the_watermark_of_before() -> None:
    kept = Kept()
    with AppTest(TwoHops) as test:
        test.send("trades", *a(10, 130))
        test.advance(seconds=2)
        times = times_of(test)
        before = dict(times.statistics_parts()["watermarks"])
        times._saved = None
        times.finish_inputs()
        times.save(kept)
        [_, windows, _] = kept.facts["event time"]
        assert windows["Candle"] == (before["passed"][0], 0, before["passed"][0])
        times.inputs_finished()


def test_a_watermark_far_ahead_is_refused_and_its_sender_is_told() -> None:
    with AppTest(market(tumbling(60))) as test:
        test.send("trades", *a(10))
        with pytest.raises(EventError, match="s ahead of the clock here, and at most 3600 s may"):
            test.advance_watermark("trades", 1e11)
        for no_time in ("soon", datetime(2020, 1, 1, tzinfo=UTC)):
            with pytest.raises(EventError, match="is not a valid time; give seconds since 1970"):
                test.advance_watermark("trades", no_time)  # type: ignore[arg-type]
        sender: Any = test._runtime.senders["trades"]
        sender._opened._outbox.latest.value = 1e11  # of a program whose clock goes wrong
        test.advance(seconds=1)
        assert test._runtime.container.statistics().peers["bad frames"] == 1
        assert bars(test) == []


def test_what_a_program_has_said_of_its_time_holds_after_a_rollback_too() -> None:
    settings = {"s4.stream.trades.onError": "skip"}
    with AppTest(market(tumbling(60)), settings=settings) as test:
        test.send("trades", *a(10))
        test.advance(seconds=2)
        test.advance_watermark("trades", 50)
        test.fail(Candle, "b", ValueError("beast"))
        test.send("trades", Trade("b", 1, 20))
        test.advance(seconds=2)
        assert test.windows(Candle, "b") == []
        [task] = test._runtime.tasks
        assert task.statistics().watermarks["trades"][0] == 45
