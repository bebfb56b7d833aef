"""The kit for app authors: what an AppTest does, and what it says when a test is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import trio
import trio.lowlevel
from shared_apps import Click, Forward, NotingApp, OnePE, handling

from s4node import App, Event, GenericEvent, OutputStream, ProcessingElement, S4Error, Stream
from s4node.errors import EventError, GraphError, ProcessingError, SourceError, WouldBlock
from s4node.testing import AppTest, Refused


class Pair(Event):
    user: str
    both: tuple[int, int]


class Total(Event):
    user: str
    clicks: int


class Count(ProcessingElement):
    totals: OutputStream
    clicks: int = 0

    def on_event(self, click: Click) -> None:
        self.clicks += 1
        self.totals.put(Total(click.user, self.clicks))


def counting(configure: Callable[[Any], None] = lambda pe: None, cls: type = Count) -> App:
    """clicks -> a PE of ``cls`` for each user -> totals."""
    app = App("counting")
    count = app.create_pe(cls)
    count.totals = app.create_output_stream("totals", types=Total)
    configure(count)
    app.create_input_stream("clicks", count, key="user")
    return app


# --- sending and looking -------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 4, 64])
def test_what_is_sent_is_processed_when_send_returns(partitions: int) -> None:
    with AppTest(counting(), partitions=partitions) as test:
        test.send("clicks", Click("joe"), Click("ann"), Click("joe"))

        assert test.state(Count, "joe").clicks == 2
        assert sorted(test.keys(Count)) == ["ann", "joe"]
        assert [t for t in test.output("totals") if t.user == "joe"] == [
            Total("joe", 1),
            Total("joe", 2),
        ]


def test_take_output_gives_what_has_come_since_the_last_time() -> None:
    with AppTest(counting()) as test:
        test.send("clicks", Click("joe"))
        assert test.take_output("totals") == [Total("joe", 1)]
        test.send("clicks", Click("joe"))
        assert test.take_output("totals") == [Total("joe", 2)]
        assert test.take_output("totals") == []


def test_what_came_out_can_be_read_after_the_app_has_stopped() -> None:
    with AppTest(counting()) as test:
        test.send("clicks", Click("joe"))

    assert test.output("totals") == [Total("joe", 1)]
    assert test.state(Count, "joe").clicks == 1


def test_parameters_and_settings_reach_the_app() -> None:
    class Parametrized(App):
        def on_init(self) -> None:
            self.found = dict(self.parameters), self.partitions
            self.create_input_stream("clicks", self.create_pe(Singleton))

    with AppTest(
        Parametrized,
        parameters={"threshold": 3},
        settings={"s4.app.name": "x", "s4.cluster.partitions": "5"},
    ) as test:
        assert test.app.found == ({"threshold": "3", "name": "x"}, 5)


class Singleton(ProcessingElement):
    seen: int = 0

    def __init__(self) -> None:
        self.set_singleton()

    def on_event(self, click: Click) -> None:
        self.seen += 1


def test_a_singleton_is_looked_at_by_its_partition() -> None:
    app = App("singletons")
    app.create_input_stream("clicks", app.create_pe(Singleton))

    with AppTest(app, partitions=3) as test:
        test.send("clicks", *(Click("joe"),) * 5)

        assert [test.state(Singleton, partition=p).seen for p in range(3)] == [2, 2, 1]


def test_an_app_of_a_module_can_be_tested_again_and_again() -> None:
    app = counting()
    for _ in range(3):
        with AppTest(app) as test:
            test.fail(Count, "nobody", ValueError("of this test only"))
            test.send("clicks", Click("joe"))
            assert test.state(Count, "joe").clicks == 1
    with AppTest(app) as test:
        test.send("clicks", Click("nobody"))


def test_an_internal_stream_can_be_sent_to_and_read() -> None:
    app = App("inner")
    keyed = app.create_pe(Singleton)
    inner = app.create_stream("inner", keyed, broadcast=True)

    spread = app.create_pe(handling(lambda _, click: inner.put(click)))
    app.create_input_stream("clicks", spread, key="user")
    with AppTest(app, partitions=2) as test:
        test.send("inner", Click("ann"))
        assert test.output("inner") == []
        test.send("clicks", Click("joe"))
        assert test.output("inner") == [Click("joe")]
        assert [test.state(Singleton, partition=p).seen for p in range(2)] == [2, 2]


def test_a_cycle_ends_with_its_exact_count() -> None:
    class Branch(ProcessingElement):
        again: Stream
        seen: int = 0

        def on_event(self, click: Click) -> None:
            self.seen += 1
            if click.n < 10:
                for user in ("joe", "ann"):
                    self.again.put(Click(user, click.n + 1))

    app = OnePE(Branch)
    app.pe.again = app.create_stream("again", app.pe, key="user")
    with AppTest(app, partitions=4, settings={"s4.stream.workQueueSize": "10"}) as test:
        test.send("clicks", Click("joe"))

        assert test.state(Branch, "joe").seen + test.state(Branch, "ann").seen == 2**11 - 1


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 4])
def test_an_event_without_a_key_is_refused_with_the_reason_and_the_others_go_on(
    partitions: int,
) -> None:
    app = NotingApp("names", key="name", types=GenericEvent)
    with AppTest(app, partitions=partitions) as test:
        test.send("names", GenericEvent(name="a"), GenericEvent(x=1), GenericEvent(name="b"))

        assert sorted(test.keys("Handling")) == ["a", "b"]
        [refused] = test.refused
        assert refused[:2] == ("names", GenericEvent(x=1))
        assert "name" in refused.reason


def test_events_travel_so_a_list_arrives_as_the_type_that_is_declared() -> None:
    class Keep(ProcessingElement):
        both: Any = None

        def on_event(self, pair: Pair) -> None:
            self.both = pair.both

    with AppTest(OnePE(Keep, "pairs")) as test:
        test.send("pairs", Pair("joe", [1, 2]))  # type: ignore[arg-type]
        assert test.state(Keep, "joe").both == (1, 2)

        test.send("pairs", Pair("joe", [1, "x"]))  # type: ignore[arg-type, list-item]
        [refused] = test.refused
        assert isinstance(refused, Refused)
        assert "Expected `int`, got `str`" in refused.reason


@pytest.mark.parametrize("event", [Total("joe", 1), GenericEvent(user="joe")])
def test_a_type_that_the_stream_does_not_carry_cannot_be_sent(event: Any) -> None:
    with AppTest(counting()) as test, pytest.raises(EventError, match="takes Click, not"):
        test.send("clicks", event)


def test_an_event_that_msgpack_cannot_hold_cannot_be_sent() -> None:
    app = NotingApp("names", key="name", types=GenericEvent)
    with AppTest(app) as test, pytest.raises(EventError, match="cannot be encoded"):
        test.send("names", GenericEvent(name="joe", what=object()))


def test_events_that_no_handler_takes_are_counted() -> None:
    app = App("unhandled")
    app.create_input_stream("in", app.create_pe(Count), key="user", types=(Click, Total))
    app.create_output_stream("totals")
    app.prototypes["Count"][1].totals = app.streams["totals"]
    with AppTest(app) as test:
        test.send("in", Click("joe"), Total("joe", 1), Total("joe", 2))

        assert test.unhandled == {"Count:Total": 2}


# --- time ----------------------------------------------------------------------------------------


def test_timers_fire_when_the_clock_passes_them_each_at_its_time() -> None:
    class Ticking(Count):
        def on_time(self) -> None:
            self.totals.put(Total(f"at {self.app.clock():g}", self.clicks))

    with AppTest(counting(lambda pe: pe.set_timer_interval(2), Ticking)) as test:
        test.send("clicks", Click("joe"))
        test.take_output("totals")
        test.advance(1.9)
        assert test.take_output("totals") == []
        test.advance(4.2)

        assert test.take_output("totals") == [Total("at 2", 1), Total("at 4", 1), Total("at 6", 1)]
        assert test.now == pytest.approx(6.1)


class Leaving(Count):
    def on_remove(self) -> None:
        self.totals.put(Total(f"bye {self.key}", self.clicks))


class LeavingLater(Leaving):
    async def on_remove(self) -> None:  # type: ignore[override]
        await trio.lowlevel.checkpoint()
        super().on_remove()


class MadeLater(Leaving):
    async def on_create(self) -> None:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("cls", [Leaving, LeavingLater, MadeLater])
def test_idle_instances_leave_the_cache_after_on_remove(cls: type[Leaving]) -> None:
    with AppTest(counting(lambda pe: pe.set_pe_cache(idle_seconds=0.3), cls)) as test:
        test.send("clicks", Click("joe"))
        test.advance(0.2)
        test.send("clicks", Click("ann"))
        test.take_output("totals")
        test.advance(0.2)

        assert test.keys(cls) == ["ann"]
        assert test.output("totals") == [Total("bye joe", 1)]


def test_triggers_by_count_and_by_time_follow_the_clock() -> None:
    class Triggered(Count):
        fired: int = 0

        def on_trigger(self, click: Click) -> None:
            self.fired += 1

    def by_both(pe: Any) -> None:
        pe.set_trigger(Click, events=3, seconds=10)

    with AppTest(counting(by_both, Triggered)) as test:
        test.send("clicks", *(Click("joe"),) * 3)
        assert test.state(Triggered, "joe").fired == 1
        test.advance(10)
        test.send("clicks", Click("joe"))
        assert test.state(Triggered, "joe").fired == 2


def test_time_does_not_go_back() -> None:
    with AppTest(counting()) as test, pytest.raises(ValueError, match="does not go back"):
        test.advance(-1)


# --- async handlers and sources ------------------------------------------------------------------


class Slow(Count):
    async def on_event(self, click: Click) -> None:  # type: ignore[override]
        await trio.sleep(1)
        super().on_event(click)


def test_an_async_handler_that_sleeps_ends_when_the_clock_has_moved_so_far() -> None:
    with AppTest(counting(cls=Slow)) as test:
        test.send("clicks", Click("joe"), Click("joe"))
        assert test.state(Slow, "joe").clicks == 0
        test.advance(1.5)
        assert test.state(Slow, "joe").clicks == 1
        assert test.output("totals") == []  # it leaves when the batch is done
        test.advance(0.5)
        assert test.output("totals") == [Total("joe", 1), Total("joe", 2)]


def test_a_stop_lets_handlers_that_sleep_come_to_their_end() -> None:
    with AppTest(counting(cls=Slow)) as test:
        test.send("clicks", Click("joe"), Click("joe"))

    assert len(test.output("totals")) == 2


def test_a_handler_that_never_ends_is_told_at_the_stop() -> None:
    class Stuck(Count):
        async def on_event(self, click: Click) -> None:  # type: ignore[override]
            await trio.sleep_forever()

    with pytest.raises(S4Error, match="have not ended"), AppTest(counting(cls=Stuck)) as test:
        test.send("clicks", Click("joe"))


def test_a_slow_pe_fills_its_stage_and_the_rest_waits_with_the_sender() -> None:
    app = counting(cls=Slow)
    with AppTest(app, settings={"s4.stream.workQueueSize": "3"}) as test:
        test.send("clicks", *(Click("joe", n) for n in range(5)))
        assert test.waiting("clicks") == [Click("joe", 3), Click("joe", 4)]
        assert app.streams["clicks"].pressure == 1
        test.advance(100)
        assert test.waiting("clicks") == []
        assert test.state(Slow, "joe").clicks == 5


class Hooked(App):
    """Every hook is async; a source sends a tick each second."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    async def on_init(self) -> None:
        await trio.lowlevel.checkpoint()
        self.called.append("init")
        self.ticks = self.create_output_stream("ticks", types=Click)

    async def on_start(self) -> None:
        await trio.lowlevel.checkpoint()
        self.called.append("start")
        self.start_soon(self.tick)

    async def on_close(self) -> None:
        await trio.lowlevel.checkpoint()
        self.called.append("close")

    async def tick(self) -> None:
        try:
            while True:
                await trio.sleep(1)
                await self.ticks.send(Click("tick"))
        finally:
            self.called.append("source cancelled")


def test_sources_run_on_the_test_s_clock_and_hooks_are_called_in_order() -> None:
    with AppTest(Hooked) as test:
        test.advance(3.5)
        assert test.output("ticks") == [Click("tick")] * 3

    assert test.app.called == ["init", "start", "source cancelled", "close"]


def test_a_source_that_fails_is_told_by_the_call_during_which_it_happens() -> None:
    class Failing(Hooked):
        async def tick(self) -> None:
            await trio.sleep(2)
            raise OSError("the feed is gone")

    with AppTest(Failing) as test:
        test.advance(1)
        with pytest.raises(SourceError, match="source tick of app 'Failing' raised OSError: "):
            test.advance(1)


def test_starting_a_plain_function_raises_where_it_is_started() -> None:
    class Plain(App):
        def on_start(self) -> None:
            self.start_soon(self.tick)

        def tick(self) -> None: ...

    with pytest.raises(GraphError, match="on_start of app 'Plain' raised TypeError: tick is no"):
        AppTest(Plain).__enter__()


def test_a_plain_on_start_may_start_sources_too() -> None:
    class Plain(App):
        def on_init(self) -> None:
            self.ticks = self.create_output_stream("ticks", types=Click)

        def on_start(self) -> None:
            self.start_soon(self.tick)

        async def tick(self) -> None:
            await self.ticks.send_many([Click("tick"), Click("tock")])

    with AppTest(Plain) as test:
        assert test.output("ticks") == [Click("tick"), Click("tock")]


async def test_an_async_test_goes_on_as_a_plain_one_does() -> None:
    with AppTest(counting(cls=Slow)) as test:
        test.send("clicks", Click("joe"))
        await trio.lowlevel.checkpoint()
        test.advance(1)
        assert trio.current_time() != test.now
        assert test.state(Slow, "joe").clicks == 1
    await trio.lowlevel.checkpoint()


async def _asyncio_test() -> None:
    with AppTest(counting(cls=Slow)) as test:
        test.send("clicks", Click("joe"))
        await asyncio.sleep(0)
        test.advance(1)
        assert test.state(Slow, "joe").clicks == 1


def test_a_test_in_a_loop_of_asyncio_goes_on_too() -> None:
    asyncio.run(_asyncio_test())


# --- overflow ------------------------------------------------------------------------------------


def test_an_input_that_overflows_makes_its_senders_wait_and_loses_nothing() -> None:
    with AppTest(counting(), partitions=2) as test:
        test.overflow("clicks")
        test.send("clicks", Click("joe"), Click("joe"))
        assert test.waiting("clicks") == [Click("joe"), Click("joe")]
        assert test.output("totals") == []

        test.relieve("clicks")
        assert test.waiting("clicks") == []
        assert test.output("totals") == [Total("joe", 1), Total("joe", 2)]


def test_an_output_that_overflows_stops_the_tasks_that_could_put_on_it() -> None:
    with AppTest(counting()) as test:
        test.overflow("totals")
        test.send("clicks", Click("joe"))
        assert test.keys(Count) == []

        test.relieve("totals")
        assert test.output("totals") == [Total("joe", 1)]


def test_an_internal_stream_that_overflows_takes_what_is_put_and_holds_the_inputs() -> None:
    app = OnePE(Forward)
    app.pe.out = app.create_stream("inner", app.create_pe(Singleton))
    with AppTest(app) as test:
        test.overflow("inner")
        test.send("clicks", Click("joe"))
        test.send("clicks", Click("ann"))
        assert test.keys(Forward) == ["joe"]
        assert test.state(Singleton).seen == 0

        test.relieve("inner")
        assert test.keys(Forward) == ["joe", "ann"]
        assert test.state(Singleton).seen == 2


def test_a_source_sees_the_pressure_and_waits_or_is_told() -> None:
    class Source(App):
        def on_init(self) -> None:
            self.ticks = self.create_output_stream("ticks", types=Click)

        def on_start(self) -> None:
            self.start_soon(self.tick)

        async def tick(self) -> None:
            for n in range(3):
                await trio.sleep(1)
                await self.ticks.send(Click("tick", n))

    with AppTest(Source) as test:
        assert test.app.ticks.pressure == 0
        test.advance(1)
        test.overflow("ticks")
        assert test.app.ticks.pressure == 1
        with pytest.raises(WouldBlock):
            test.app.ticks.send_nowait(Click("tock"))
        test.advance(10)
        assert test.output("ticks") == [Click("tick", 0)]

        test.relieve("ticks")
        assert test.output("ticks") == [Click("tick", 0), Click("tick", 1)]
        test.advance(1)
        assert test.output("ticks") == [Click("tick", n) for n in range(3)]


def test_waiting_events_are_processed_at_the_end() -> None:
    with AppTest(counting()) as test:
        test.overflow("clicks")
        test.send("clicks", Click("joe"))

    assert test.output("totals") == [Total("joe", 1)]


# --- failing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [Count, Slow], ids=["plain", "async"])
def test_a_pe_fails_at_its_next_event_as_it_would_in_a_node(cls: type[Count]) -> None:
    with AppTest(counting(cls=cls), partitions=4) as test:
        test.fail(cls, "joe", ValueError("no luck"))
        test.send("clicks", Click("ann"))
        with pytest.raises(ProcessingError) as failure:
            test.send("clicks", Click("joe"))

    error = failure.value
    assert (error.app, error.pe, error.key) == ("counting", cls.__name__, "joe")
    assert isinstance(error.__cause__, ValueError)
    assert "event at clicks[" in str(error)


def test_a_setting_by_which_a_node_does_what_the_kit_does_is_taken() -> None:
    settings = {"s4.stream.clicks.grade": "fast", "s4.stream.clicks.onError": "fail"}
    with AppTest(counting(), settings=settings) as test:
        test.send("clicks", Click("joe"))
        assert test.state(Count, "joe").clicks == 1


def test_a_handler_s_own_exception_is_raised_with_its_place() -> None:
    class Bad(Count):
        def on_event(self, click: Click) -> None:
            raise ZeroDivisionError

    with AppTest(counting(cls=Bad)) as test:
        with pytest.raises(ProcessingError, match=r"Bad of app 'counting' raised ZeroDivision"):
            test.send("clicks", Click("joe"))
        with pytest.raises(S4Error, match="app 'counting' has failed"):
            test.send("clicks", Click("ann"))


def test_setting_what_the_class_does_not_declare_is_answered_with_how_to() -> None:
    class Undeclared(Count):
        def on_create(self) -> None:
            self.total = 0

    told = r"fix the handler \(declare the state of a PE in its class, as 'total: int = 0'\), catch"
    with AppTest(counting(cls=Undeclared)) as test, pytest.raises(ProcessingError, match=told):
        test.send("clicks", Click("joe"))


@pytest.mark.parametrize("name", ["total", "limit", "given"])
def test_setting_what_the_class_has_without_an_annotation_is_answered_with_how_to(
    name: str,
) -> None:
    class Unannotated(Count):
        total = 0
        limit: ClassVar[int] = 0

        def on_event(self, click: Click) -> None:
            setattr(self, name, getattr(self, name) + 1)

    class Given(App):
        def on_init(self) -> None:
            pe = self.create_pe(Unannotated)
            pe.totals = self.create_output_stream("totals", types=Total)
            pe.given = 0  # type: ignore[attr-defined]
            self.create_input_stream("clicks", pe, key="user")

    told = rf"fix the handler \(annotate the state of a PE .*, as '{name}: int = 0'; .*\), catch"
    with AppTest(Given) as test, pytest.raises(ProcessingError, match=told):
        test.send("clicks", Click("joe"))


# --- what a wrong test is told -------------------------------------------------------------------


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    set_up: list[Any] = []
    app = counting(set_up.append)
    app.create_pe(Count).totals = set_up[0].totals
    with AppTest(app) as test:
        test.send("clicks", Click("joe"))
        with pytest.raises(LookupError, match=r"no stream 'click'; known: totals, clicks"):
            test.send("click", Click("joe"))
        with pytest.raises(LookupError, match=r"no stream 'total'; known: totals, clicks"):
            test.output("total")
        with pytest.raises(LookupError, match=r"no instance of key 'ann'; known: 'joe'"):
            test.state("Count", "ann")
        with pytest.raises(LookupError, match=r"no PE 'Counter'; known: Count, Count#2"):
            test.state("Counter", "ann")
        with pytest.raises(LookupError, match=r"several PEs are a Count: Count, Count#2"):
            test.state(Count, "joe")
        with pytest.raises(S4Error, match=r"'totals' is an output stream; read it with output"):
            test.send("totals", Total("joe", 1))


def test_hooks_of_an_app_that_would_never_run_for_their_yield_are_refused() -> None:
    class Yields(App):
        def on_init(self) -> Any:
            yield

        async def on_start(self) -> Any:
            yield

        def on_close(self) -> Any:
            yield

    told = "contains yield, so calling it would not run it; remove the yield"
    with pytest.raises(GraphError) as caught, AppTest(Yields, settings={"task.inputs": "log.x"}):
        pass
    assert str(caught.value).split("\n") == [
        "app 'Yields' cannot run:",
        f"  - on_init {told}",
        f"  - on_start {told}",
        f"  - on_close {told}",
    ]


def test_an_app_that_cannot_run_is_refused_with_all_its_mistakes() -> None:
    app = App("broken")
    app.create_input_stream("in")
    with pytest.raises(GraphError, match="leads to no PE"), AppTest(app):
        pass


def test_an_object_that_declares_in_on_init_is_used_once() -> None:
    app = Hooked()
    with AppTest(app):
        pass
    with pytest.raises(GraphError, match="give AppTest the class, or a new object"), AppTest(app):
        pass


def test_an_app_test_is_used_once_and_only_inside_of_its_with_block() -> None:
    test = AppTest(counting())
    with pytest.raises(S4Error, match="has not started; use 'with AppTest"):
        test.send("clicks", Click("joe"))
    with test:
        pass
    with pytest.raises(S4Error, match="has stopped"):
        test.send("clicks", Click("joe"))
    with pytest.raises(S4Error, match="used once"), test:
        pass


def test_waiting_for_what_does_not_happen_ends() -> None:
    with AppTest(Hooked) as test, pytest.raises(S4Error, match="the condition did not become true"):
        test.wait(lambda: False, seconds=0.05)


def test_an_exception_of_the_test_itself_is_not_hidden_by_the_stop() -> None:
    with pytest.raises(KeyError, match="mine"), AppTest(counting(cls=Slow)):
        raise KeyError("mine")
