"""The id of the event that a handler is given, and the time of it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from harness import running, until

from s4node import (
    App,
    Client,
    Event,
    GenericEvent,
    ProcessingElement,
    S4Error,
    TaskApp,
    created_ms,
    event_id,
)
from s4node.testing import AppTest


class Click(Event):
    user: str


class Note(ProcessingElement):
    """Notes the ids of its events, in the app's list."""

    def on_event(self, event: Click) -> None:
        self.app.ids.append((event.user, event_id()))
        if event.user == "again":
            self.app.inner.put(Click("inner"))


class Inner(ProcessingElement):
    def on_event(self, event: Click) -> None:
        with pytest.raises(S4Error, match="was put by its own task, and has no id"):
            event_id()
        self.app.ids.append((event.user, ""))


class Noting(App):
    ids: list[tuple[str, str]]
    pe: type[ProcessingElement] = Note
    parallelism = 1

    def on_init(self) -> None:
        self.ids = []
        self.inner = self.create_stream("inner", self.create_pe(Inner), key="user")
        stream = self.create_input_stream("clicks", self.create_pe(self.pe), key="user",
                                          system="log")  # fmt: skip
        stream.set_parallelism(self.parallelism)


def test_an_event_has_the_id_of_its_task_its_input_and_its_place_there() -> None:
    with AppTest(Noting) as test:
        test.send("clicks", Click("joe"), Click("ann"), Click("joe"))
        assert test.app.ids == [
            ("joe", "Partition 0/log.clicks[0]:0"),
            ("ann", "Partition 0/log.clicks[0]:1"),
            ("joe", "Partition 0/log.clicks[0]:2"),
        ]


def test_an_event_that_the_task_has_put_itself_has_none() -> None:
    with AppTest(Noting) as test:
        test.send("clicks", Click("again"))
        assert test.app.ids == [("again", "Partition 0/log.clicks[0]:0"), ("inner", "")]


class Later(ProcessingElement):
    async def on_event(self, event: Click) -> None:
        self.app.ids.append((event.user, event_id()))

    def on_time(self) -> None:
        with pytest.raises(S4Error, match="while they have an event at hand"):
            event_id()
        self.app.timed = True


class InParallel(Noting):
    pe = Later
    parallelism = 2

    def on_init(self) -> None:
        super().on_init()
        self.prototypes["Later"][0].set_timer_interval(5)


def test_handlers_that_overlap_have_each_their_own() -> None:
    with AppTest(InParallel) as test:
        test.send("clicks", Click("joe"), Click("ann"), Click("joe"))
        assert sorted(test.app.ids) == [
            ("ann", "Partition 0/log.clicks[0]:1"),
            ("joe", "Partition 0/log.clicks[0]:0"),
            ("joe", "Partition 0/log.clicks[0]:2"),
        ]
        test.advance(seconds=6)
        assert test.app.timed


class Plain:
    ids: list[str]

    def __init__(self) -> None:
        self.ids = []

    def process(self, _envelope: Any, _collector: Any, coordinator: Any) -> None:
        self.ids.append(event_id())
        coordinator.commit()  # the slice ends here


class Awaiting(Plain):
    async def process(self, _envelope: Any, _collector: Any, _coordinator: Any) -> None:  # type: ignore[override]
        self.ids.append(event_id())


class CallingBack(Plain):
    process = None  # type: ignore[assignment]

    def process_async(self, _envelope: Any, _collector: Any, _c: Any, callback: Any) -> None:
        self.ids.append(event_id())
        callback.complete()


@pytest.mark.parametrize("concurrency", ["1", "3"])
@pytest.mark.parametrize("task", [Plain, Awaiting, CallingBack])
def test_tasks_have_it_too(task: type[Plain], concurrency: str) -> None:
    class Clicks(TaskApp):
        def __init__(self) -> None:
            super().__init__("clicks", task)

        def on_init(self) -> None:
            self.create_input_stream("clicks", types=Click, system="log")

    with AppTest(Clicks, settings={"task.max.concurrency": concurrency}) as test:
        test.send("clicks", Click("joe"), Click("ann"), Click("joe"))
        assert test.task().ids == [f"Partition 0/log.clicks[0]:{n}" for n in range(3)]


def test_outside_of_handlers_there_is_none() -> None:
    with pytest.raises(S4Error, match=r"event_id\(\) is for handlers"):
        event_id()
    with pytest.raises(S4Error, match=r"created_ms\(\) is for handlers"):
        created_ms()


class Dated(ProcessingElement):
    def on_event(self, event: Click) -> None:
        self.app.ids.append((event.user, created_ms()))
        if event.user == "again":
            self.app.inner.put(Click("inner"))


class DatedLater(ProcessingElement):
    async def on_event(self, event: Click) -> None:
        self.app.ids.append((event.user, created_ms()))


class DatedInner(ProcessingElement):
    def on_event(self, event: Click) -> None:
        self.app.ids.append((event.user, created_ms()))


class Dating(App):
    ids: list[tuple[str, int]]

    def on_init(self) -> None:
        self.ids = []
        self.inner = self.create_stream("inner", self.create_pe(DatedInner), key="user")
        self.create_input_stream("clicks", self.create_pe(Dated), key="user")
        later = self.create_input_stream("later", self.create_pe(DatedLater), key="user")
        later.set_parallelism(2)


class DatedAny(ProcessingElement):
    def on_event(self, event: GenericEvent) -> None:
        self.app.ids.append((event.user, created_ms()))


class DatingAny(App):
    ids: list[tuple[str, int]]

    def on_init(self) -> None:
        self.ids = []
        self.create_input_stream("any", self.create_pe(DatedAny), key=lambda event: event.user)


@pytest.mark.parametrize("partitions", [1, 4])
async def test_it_is_told_too_where_the_node_finds_the_key_s_partition(partitions: int) -> None:
    app = DatingAny()
    before = int(time.time() * 1000)
    async with (
        running(app, partitions=partitions) as container,
        Client(container.address) as client,
    ):
        stream = await client.stream("any")
        await stream.send_many([GenericEvent(user=f"u{n}") for n in range(20)])
        await stream.flush()
    assert len(app.ids) == 20
    assert all(before <= at <= time.time() * 1000 for _, at in app.ids)


async def test_a_handler_is_told_when_its_event_was_sent() -> None:
    app = Dating()
    before = int(time.time() * 1000)
    async with running(app) as container, Client(container.address) as client:
        for name in ("clicks", "later"):
            stream = await client.stream(name, types=Click)
            await stream.send_many([Click("joe"), Click("again")])
            await stream.flush()
        await until(lambda: len(app.ids) == 5)
    after = int(time.time() * 1000)
    times = [sent for user, sent in app.ids if user != "inner"]
    assert len(times) == 4
    assert all(before <= sent <= after for sent in times)
    assert ("inner", 0) in app.ids
