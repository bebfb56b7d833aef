"""The stages of an app over history: their order, and what of an app does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from shared_apps import Click

from s4node import App, Event, ProcessingElement, TaskApp, tumbling
from s4node.app.plan.window_dispatch import take_times_of_sending
from s4node.spark.history.stages import left_out, refused, stages

pytestmark = pytest.mark.long


class Note(Event):
    user: str


class Timed(ProcessingElement):
    def on_event(self, _: Click) -> None: ...

    def on_time(self) -> None: ...

    def on_trigger(self, _: Click) -> None: ...


class Windowed(ProcessingElement):
    def on_event(self, _: Click) -> None: ...

    def on_window(self) -> None: ...


class Waiting(ProcessingElement):
    def on_event(self, _: Click) -> None:
        self.after(60)

    def on_timer(self, name: str) -> None: ...


class Sharing(ProcessingElement):
    seen: ClassVar[set[str]] = set()

    def on_event(self, _: Click) -> None:
        self.seen.add(str(self.key))


class Placed(ProcessingElement):
    at: str = ""

    def on_event(self, _: Click) -> None:
        self.at = f"{self.partition} {self.created_ms()} {self.event_id()}"  # type: ignore[attr-defined]


class Clocked(ProcessingElement):
    last: float = 0.0

    def on_event(self, _: Click) -> None:
        self.last = self.app.clock()


class Passing(ProcessingElement):
    out: Any

    def on_event(self, click: Click) -> None:
        self.out.put(click)


class Nothing:
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None: ...


def app(declare: Callable[[App], object]) -> App:
    made = App("some")
    declare(made)
    return made


def keyed(cls: type[ProcessingElement], **options: dict[str, Any]) -> App:
    def declare(made: App) -> None:
        pe = made.create_pe(cls, name="pe")
        for name, values in options.items():
            getattr(pe, name)(**values)
        made.create_input_stream("clicks", pe, key="user", types=Click)

    return app(declare)


def unkeyed(made: App) -> None:
    made.create_input_stream("clicks", made.create_pe(Timed, name="pe"), types=Click)


def broadcast(made: App) -> None:
    pe = made.create_pe(Timed, name="pe")
    made.create_input_stream("clicks", pe, key="user", types=Click)
    made.create_stream("news", pe, broadcast=True, types=Click)


def feeding_itself(made: App) -> None:
    again = made.create_pe(Passing, name="pe")
    made.create_input_stream("clicks", again, key="user", types=Click)
    again.out = made.create_stream("again", again, key="user", types=Click)


def by_the_clock(made: App) -> None:
    pe = made.create_pe(Windowed, name="pe")
    pe.set_window(tumbling(60), clock="wall")
    made.create_input_stream("clicks", pe, key="user", types=Click)


def by_the_time_of_sending(made: App) -> None:
    pe = made.create_pe(Windowed, name="pe")
    pe.set_window(tumbling(60))
    made.create_input_stream("clicks", pe, key="user", types=Click)
    take_times_of_sending(made)


def in_time_order(made: App) -> None:
    pe = made.create_pe(Timed, name="pe")
    made.create_input_stream("clicks", pe, key="user", types=Click, time="n", order="time")


def without_time(made: App) -> None:
    in_time_order(made)
    made.create_input_stream("others", made.create_pe(Timed), key="user", types=Click)


def with_and_without_time(made: App) -> None:
    first, second = made.create_pe(Passing, name="first"), made.create_pe(Timed, name="second")
    windowed = made.create_pe(Windowed)
    windowed.set_window(tumbling(60))
    first.out = made.create_stream("inner", second, key="user", types=Click)
    made.create_input_stream("clicks", windowed, second, key="user", types=Click, time="n")
    made.create_input_stream("others", first, key="user", types=Click)


def two_types(made: App) -> None:
    made.create_input_stream(
        "clicks", made.create_pe(Timed, name="pe"), key="user", types=(Click, Note)
    )


@pytest.mark.short
@pytest.mark.parametrize(
    ("made", "tasks", "told"),
    [
        (app(unkeyed), 1, "stream 'clicks' has no key, so its events go to the instances of 'pe'"),
        (app(broadcast), 1, "stream 'news' is broadcast: each event would go to all tasks"),
        (app(feeding_itself), 1, "feed themselves, so there is no last level"),
        (app(by_the_clock), 1, "PE 'pe' has windows by the clock, and a history does not say"),
        (app(by_the_time_of_sending), 1, "'clicks' has windows by the time when events were sent"),
        (app(with_and_without_time), 1, "'others' has no time and 'clicks' has one, by which"),
        (app(with_and_without_time), 1, "and both lead to PE 'second'; give it time="),
        (app(in_time_order), 1, ""),
        (app(without_time), 1, ""),
        (app(two_types), 1, "stream 'clicks' takes Click, Note, and a DataFrame has one type"),
        (keyed(Timed, set_singleton={}), 2, "PE 'pe' is a singleton in each of 2 tasks"),
        (keyed(Sharing), 1, "changes Sharing.seen, which all keys of a task share"),
        (keyed(Placed), 1, "Placed.on_event depends on its partition"),
        (keyed(Placed), 1, "depends on created_ms(), the time of a frame"),
        (keyed(Placed), 1, "depends on event_id(), the place of an event in a frame"),
        (keyed(Timed), 1, ""),
        (keyed(Timed, set_singleton={}), 1, ""),
    ],
)
def test_what_a_history_does_not_fit_is_named(made: App, tasks: int, told: str) -> None:
    found = refused(made, tasks, ["clicks"])
    assert (told in "\n".join(found)) if told else found == []


def test_an_app_of_tasks_and_a_stream_that_it_does_not_have_are_named() -> None:
    tasks = TaskApp("tasks", Nothing, inputs=["log.clicks"])
    assert refused(tasks, 1, ["clicks"]) == [
        "its streams lead to tasks (TaskApp); only PEs have keys to sort the history by"
    ]
    assert refused(keyed(Timed), 1, ["visits"]) == [
        "it has no input stream 'visits'; it has clicks"
    ]


def test_what_does_not_happen_over_history_is_told() -> None:
    made = keyed(
        Timed,
        set_timer_interval={"seconds": 5.0},
        set_trigger={"event_type": Click, "seconds": 5.0},
        set_pe_cache={"idle_seconds": 60.0},
        set_ttl={"seconds": 60.0},
    )
    made.create_input_stream("visits", made.create_pe(Clocked), key="user", types=Click)
    early = made.create_pe(Windowed)
    early.set_window(tumbling(60), early=10)
    for name, pe in {"early": early, "waiting": made.create_pe(Waiting)}.items():
        made.create_input_stream(name, pe, key="user", types=Click, time="n")
    assert left_out(made, ["clicks", "early", "waiting"]) == [
        "on_time of 'pe' is not called; nodes call it for keys that get events",
        "triggers of 'pe' fire by number of events, not by seconds",
        "instances of 'pe' do not expire",
        "the state of 'pe' does not end; its keys age from this run on",
        "'Clocked' reads a clock, which shows the time of the run over history",
        "windows of 'Windowed' have no results before their end",
        "what 'Waiting' sets with after() counts from this run on",
        "input stream 'visits' has no history",
    ]
    assert left_out(keyed(Timed), ["clicks"]) == []


def test_a_pe_that_gets_a_stream_and_what_is_made_of_it_is_told_of() -> None:
    def declare(made: App) -> None:
        both, first = made.create_pe(Timed, name="both"), made.create_pe(Passing, name="first")
        first.out = made.create_stream("back", both, key="user", types=Click)
        made.create_input_stream("clicks", first, both, key="user", types=Click)

    made = app(declare)
    (told,) = left_out(made, ["clicks"])
    assert told.startswith("'both' gets 'clicks' and what is made of it, 'back': an event ")


def test_a_pe_runs_after_all_that_puts_events_on_its_streams() -> None:
    def declare(made: App) -> None:
        last, middle = made.create_pe(Timed, name="last"), made.create_pe(Passing, name="middle")
        first = made.create_pe(Passing, name="first")
        first.out = made.create_stream("one", middle, last, key="user", types=Click)
        middle.out = made.create_stream("two", last, key="user", types=Click)
        made.create_input_stream("clicks", first, last, key="user", types=Click)

    found = stages(app(declare))
    assert [(stage.pes, stage.streams) for stage in found] == [
        (("first",), ("clicks",)),
        (("middle",), ("one",)),
        (("last",), ("one", "two", "clicks")),
    ]
