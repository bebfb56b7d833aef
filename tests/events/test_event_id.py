"""The id of the event that a handler is given, and the time of it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from harness import running, until
from shared_apps import Click, NotingApp, OnePE, handling

from s4node import Client, GenericEvent, ProcessingElement, S4Error, TaskApp, created_ms, event_id
from s4node.testing import AppTest


def test_an_event_has_the_id_of_its_task_its_input_and_its_place_there() -> None:
    app = NotingApp(system="log", note=noted)
    with AppTest(app) as test:
        test.send("clicks", Click("joe"), Click("ann"), Click("joe"))
        assert app.seen == [
            ("joe", "Partition 0/log.clicks[0]:0"),
            ("ann", "Partition 0/log.clicks[0]:1"),
            ("joe", "Partition 0/log.clicks[0]:2"),
        ]


def test_an_event_that_the_task_has_put_itself_has_no_id() -> None:
    def has_none(_pe: Any, click: Click) -> None:
        with pytest.raises(S4Error, match="was put by its own task, so it has no id"):
            event_id()
        app.seen.append((click.user, ""))

    app = NotingApp(system="log", note=noted)
    app.inner = app.create_stream("inner", app.create_pe(handling(has_none)), key="user")
    with AppTest(app) as test:
        test.send("clicks", Click("again"))
        assert app.seen == [("again", "Partition 0/log.clicks[0]:0"), ("inner", "")]


class Later(ProcessingElement):
    async def on_event(self, event: Click) -> None:
        self.app.ids.append((event.user, event_id()))

    def on_time(self) -> None:
        with pytest.raises(S4Error, match="while they handle an event"):
            event_id()
        self.app.timed = True


def test_handlers_that_overlap_have_each_the_id_of_their_own_event() -> None:
    app = OnePE(Later, system="log")
    app.ids = []
    app.input.set_parallelism(2)
    app.pe.set_timer_interval(5)
    with AppTest(app) as test:
        test.send("clicks", Click("joe"), Click("ann"), Click("joe"))
        assert sorted(app.ids) == [
            ("ann", "Partition 0/log.clicks[0]:1"),
            ("joe", "Partition 0/log.clicks[0]:0"),
            ("joe", "Partition 0/log.clicks[0]:2"),
        ]
        test.advance(seconds=6)
        assert app.timed


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
def test_tasks_have_the_id_of_their_event_too(task: type[Plain], concurrency: str) -> None:
    class Clicks(TaskApp):
        def __init__(self) -> None:
            super().__init__("clicks", task)

        def on_init(self) -> None:
            self.create_input_stream("clicks", types=Click, system="log")

    with AppTest(Clicks, settings={"task.max.concurrency": concurrency}) as test:
        test.send("clicks", Click("joe"), Click("ann"), Click("joe"))
        assert test.task().ids == [f"Partition 0/log.clicks[0]:{n}" for n in range(3)]


def test_outside_of_handlers_there_is_no_event_id() -> None:
    with pytest.raises(S4Error, match=r"event_id\(\) is for handlers"):
        event_id()
    with pytest.raises(S4Error, match=r"created_ms\(\) is for handlers"):
        created_ms()


@pytest.mark.parametrize("partitions", [1, 4])
async def test_a_handler_is_told_when_an_event_was_sent_that_its_node_has_routed(
    partitions: int,
) -> None:
    app = NotingApp(key=lambda event: event.user, types=GenericEvent, note=lambda *_: created_ms())
    before = int(time.time() * 1000)
    async with (
        running(app, partitions=partitions) as container,
        Client(container.address) as client,
    ):
        stream = await client.stream("clicks")
        await stream.send_many([GenericEvent(user=f"u{n}") for n in range(20)])
        await stream.flush()
    assert len(app.seen) == 20
    assert all(before <= at <= time.time() * 1000 for at in app.seen)


async def test_a_handler_is_told_when_its_event_was_sent() -> None:
    def dated(_pe: Any, click: Click) -> tuple[str, int]:
        if click.user == "again":
            inner.put(Click("inner"))
        return click.user, created_ms()

    async def dated_later(_pe: Any, click: Click) -> None:
        app.seen.append((click.user, created_ms()))

    app = NotingApp(note=dated)
    inner = app.create_stream("inner", app.pe, key="user")
    later = app.create_input_stream("later", app.create_pe(handling(dated_later)), key="user")
    later.set_parallelism(2)
    before = int(time.time() * 1000)
    async with running(app) as container, Client(container.address) as client:
        for name in ("clicks", "later"):
            stream = await client.stream(name, types=Click)
            await stream.send_many([Click("joe"), Click("again")])
            await stream.flush()
        await until(lambda: len(app.seen) == 5)
    after = int(time.time() * 1000)
    times = [sent for user, sent in app.seen if user != "inner"]
    assert len(times) == 4
    assert all(before <= sent <= after for sent in times)
    assert ("inner", 0) in app.seen


# -- set-up ---------------------------------------------------------------------------------------


def noted(pe: Any, click: Click) -> tuple[str, str]:
    """The user of a click and its id; one of "again" puts another."""
    if click.user == "again":
        pe.app.inner.put(Click("inner"))
    return click.user, event_id()
