"""The life of a container: steps in order, one end, everything closed, and listeners told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from harness import ANY_PORT, plain_errors, until
from structlog.testing import capture_logs

from s4node import App, Client, Event
from s4node.app.stream_task import TaskApp
from s4node.config.config import Config
from s4node.errors import ConfigError, ContainerStopped, LifecycleError
from s4node.runtime.container.container import Container
from s4node.runtime.container.lifecycle import ContainerListener, Lifecycle, Step, listeners_of

HERE = __name__

STEPS = ["offsets", "readers", "reporters", "commit timer", "window timer", "tasks", "loop"]


class Diary(ContainerListener):
    """Writes down what it is told; raises where it is told ``trouble``."""

    def __init__(self, parameters: Mapping[str, str] | None = None, trouble: str = "") -> None:
        self.told: list[str] = []
        self.trouble = (parameters or {}).get("trouble", trouble)
        self.error: BaseException | None = None

    def _note(self, what: str) -> None:
        self.told.append(what)
        if what == self.trouble:
            raise RuntimeError("not me")

    def before_start(self) -> None:
        self._note("before start")

    async def on_step(self, step: str) -> None:
        await trio.lowlevel.checkpoint()
        self._note(step)

    def after_start(self) -> None:
        self._note("after start")

    async def after_stop(self) -> None:
        await trio.lowlevel.checkpoint()
        self._note("after stop")

    def after_failure(self, error: BaseException) -> None:
        self.error = error
        self._note("after failure")


class Half:
    """Has only one of the methods, and no base class."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.steps: list[str] = []

    def on_step(self, step: str) -> None:
        self.steps.append(step)


class Deaf:
    def __init__(self, parameters: Mapping[str, str]) -> None:
        pass


@asynccontextmanager
async def life(*listeners: object, limit: float = 1.0) -> AsyncIterator[Lifecycle]:
    lifecycle = Lifecycle(listeners, limit)
    with capture_logs():
        async with lifecycle.living():
            yield lifecycle


async def test_a_step_that_is_reached_brings_those_before_it_and_comes_once() -> None:
    diary = Diary()
    async with life(diary) as lifecycle:
        await lifecycle.reached(Step.REPORTERS)
        await lifecycle.reached(Step.OFFSETS)
        assert diary.told[1:] == STEPS[:3]
        await lifecycle.started()
        await lifecycle.reached(Step.LOOP)
    assert diary.told == ["before start", *STEPS, "after start", "after stop"]


async def test_a_failure_during_the_start_ends_in_after_failure() -> None:
    diary = Diary()

    async def run() -> None:
        async with life(diary) as lifecycle:
            await lifecycle.reached(Step.TASKS)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await run()
    assert diary.told == ["before start", *STEPS[:6], "after failure"]
    assert str(diary.error) == "broken"


async def test_listeners_get_the_failure_and_not_the_cancellations_it_caused() -> None:
    diary = Diary()

    async def fail() -> None:
        raise ValueError("broken")

    async def run() -> None:
        async with life(diary), trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            await trio.sleep_forever()

    with pytest.raises(ExceptionGroup):
        await run()
    assert isinstance(diary.error, ValueError)


async def test_a_container_that_is_stopped_at_once_has_failed() -> None:
    diary = Diary()
    with trio.CancelScope() as scope:
        async with life(diary) as lifecycle:
            await lifecycle.started()
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert diary.told[-1] == "after failure"
    assert isinstance(diary.error, ContainerStopped)


# --- closing -------------------------------------------------------------------------------------


async def test_everything_is_closed_in_reverse_order_before_listeners_hear_of_the_end() -> None:
    order: list[str] = []

    class Last(ContainerListener):
        def after_stop(self) -> None:
            order.append("told")

    async def close_b() -> None:
        await trio.lowlevel.checkpoint()
        order.append("b")

    async with life(Last()) as lifecycle:
        lifecycle.closes("a", lambda: order.append("a"))
        lifecycle.closes("b", close_b)
        lifecycle.closes("c", lambda: order.append("c"))
    assert order == ["c", "b", "a", "told"]


@pytest.mark.parametrize("failed_before", [False, True])
async def test_all_parts_are_closed_if_one_fails_and_the_first_failure_counts(
    *, failed_before: bool
) -> None:
    diary, closed = Diary(), []

    def broken() -> None:
        raise OSError("disk")

    async def run() -> None:
        async with life(diary) as lifecycle:
            lifecycle.closes("a", lambda: closed.append("a"))
            lifecycle.closes("b", broken)
            lifecycle.closes("c", lambda: closed.append("c"))
            if failed_before:
                raise ValueError("earlier")

    with pytest.raises(ValueError if failed_before else OSError):
        await run()
    assert closed == ["c", "a"]
    assert diary.told == ["before start", "after failure"]
    assert isinstance(diary.error, ValueError if failed_before else OSError)


async def test_a_part_that_does_not_close_in_time_is_left() -> None:
    diary, closed = Diary(), []
    with trio.fail_after(10):
        async with life(diary, limit=0.05) as lifecycle:
            lifecycle.closes("a", lambda: closed.append("a"))
            lifecycle.closes("stuck", trio.sleep_forever)
    assert closed == ["a"]
    assert diary.told[-1] == "after stop"


async def test_a_part_that_was_closed_early_is_not_closed_again() -> None:
    closed: list[str] = []
    async with life() as lifecycle:
        close = lifecycle.closes("a", lambda: closed.append("a"))
        await close()
        assert closed == ["a"]
    assert closed == ["a"]


async def test_parts_are_closed_even_when_cancelled() -> None:
    closed: list[str] = []

    async def close() -> None:
        await trio.sleep(0.01)
        closed.append("a")

    with trio.CancelScope() as scope:
        async with life() as lifecycle:
            lifecycle.closes("a", close)
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert closed == ["a"]


# --- listeners that raise ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "method"),
    [("before start", "before_start"), ("tasks", "on_step"), ("after start", "after_start")],
)
async def test_a_listener_that_raises_fails_the_container_and_all_are_told(
    where: str, method: str
) -> None:
    first, second, closed = Diary(), Diary(trouble=where), []

    async def run() -> None:
        async with life(first, second) as lifecycle:
            lifecycle.closes("a", lambda: closed.append("a"))
            await lifecycle.started()

    with pytest.raises(LifecycleError) as caught:
        await run()
    assert str(caught.value) == (
        f"{method} of listener Diary raised RuntimeError: not me; the container cannot run: fix "
        f"it, or remove it from container.lifecycle.listeners"
    )
    for diary in (first, second):
        assert diary.told[-2:] == [where, "after failure"]
        assert diary.error is caught.value
    assert closed == ([] if where == "before start" else ["a"])


async def test_a_listener_that_raises_at_the_end_keeps_no_other_from_being_told() -> None:
    first, second = Diary(trouble="after stop"), Diary()
    with pytest.raises(LifecycleError) as caught:
        async with life(first, second):
            pass
    assert str(caught.value) == (
        "after_stop of listener Diary raised RuntimeError: not me; the container had stopped in "
        "order: fix it, or remove it from container.lifecycle.listeners"
    )
    assert first.told == second.told == ["before start", "after stop"]


async def test_a_listener_that_raises_after_a_failure_does_not_hide_it() -> None:
    first, second = Diary(trouble="after failure"), Diary()
    with pytest.raises(ValueError, match="broken"):
        async with life(first, second):
            raise ValueError("broken")
    assert first.told == second.told == ["before start", "after failure"]


# --- as configured -------------------------------------------------------------------------------


async def test_listeners_are_named_in_the_configuration_and_need_only_one_method() -> None:
    config = Config.from_values(
        {
            "container.lifecycle.listeners": f"{HERE}:Diary, {HERE}:Half",
            "s4.app.trouble": "nothing",
        }
    )
    diary, half = listeners_of(config)
    assert isinstance(diary, Diary)
    assert diary.trouble == "nothing"
    async with life(diary, half) as lifecycle:
        await lifecycle.started()
    assert isinstance(half, Half)
    assert half.steps == STEPS


def test_a_listener_without_methods_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"has no method to call; give it one of before_start, on_step"
    ):
        listeners_of(Config.from_values({"container.lifecycle.listeners": f"{HERE}:Deaf"}))


# --- in a container ------------------------------------------------------------------------------


class Number(Event):
    number: int = 0


class Working:
    """A task that fails where its app says."""

    def __init__(self, app: Work) -> None:
        self._app = app
        self.name = ""

    def _note(self, what: str) -> None:
        self._app.diary.told.append(f"{self.name} {what}")
        if self._app.trouble == f"{self.name} {what}":
            raise RuntimeError("not me")

    def init(self, config: Any, context: Any) -> None:
        self.name = context.task_name
        self._note("init")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self._note("process")

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        self._note("close")


class Work(TaskApp):
    def __init__(self, diary: Diary, trouble: str = "") -> None:
        super().__init__("work", lambda: Working(self))
        self.diary = diary
        self.trouble = trouble

    def on_init(self) -> None:
        self.create_input_stream("numbers", types=Number)

    def on_start(self) -> None:
        self._note("on_start")

    def on_close(self) -> None:
        self._note("on_close")

    def _note(self, what: str) -> None:
        self.diary.told.append(what)
        if self.trouble == what:
            raise RuntimeError("not me")


def container(app: App, *listeners: object, **more: str) -> Container:
    values = {"s4.listener.address": ANY_PORT, "s4.cluster.partitions": "2", "s4.watchdog.ms": "0"}
    return Container(app, Config.from_values(values | more), listeners=listeners)


START = [
    "before start",
    *STEPS[:5],
    "Partition 0 init",
    "Partition 1 init",
    "tasks",
    "loop",
    "on_start",
    "after start",
]
CLOSED = ["Partition 1 close", "Partition 0 close", "on_close"]


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ("Partition 1 init", [*START[:8], *CLOSED[:2]]),
        ("on_start", [*START[:11], *CLOSED]),
        ("Partition 0 process", [*START, "Partition 0 process", *CLOSED]),
        ("Partition 1 close", [*START, *CLOSED]),
        ("on_close", [*START, *CLOSED]),
    ],
)
async def test_whatever_fails_all_tasks_are_closed_and_the_end_is_a_failure(
    trouble: str, told: list[str]
) -> None:
    diary = Diary()
    made = container(Work(diary, trouble), diary)

    async def run() -> None:
        with plain_errors(), trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(made.run)
                await made.ready.wait()
                if trouble.endswith("process"):
                    async with Client(made.address) as client:
                        numbers = await client.stream("numbers")
                        await numbers.send(Number(1))
                        await trio.sleep_forever()
                made.stop()

    with pytest.raises(Exception, match=r"RuntimeError.*: not me"):
        await run()
    assert diary.told == [*told, "after failure"]
    assert ": not me" in str(diary.error)


async def test_a_listener_that_raises_stops_a_container_before_it_takes_events() -> None:
    diary = Diary(trouble="tasks")
    made = container(Work(diary), diary)
    with pytest.raises(LifecycleError, match="on_step of listener Diary raised"), plain_errors():
        await made.run()
    assert not made.ready.is_set()
    assert diary.told == [*START[:9], *CLOSED[:2], "after failure"]


class Windowed(Working):
    def window(self, collector: Any, coordinator: Any) -> None:
        self._note("window")


class Windows(Work):
    def __init__(self, diary: Diary) -> None:
        super().__init__(diary)
        self.factory = lambda: Windowed(self)


async def test_no_window_comes_before_its_task_has_begun_however_long_the_start_takes() -> None:
    diary = Diary()

    class Slow(ContainerListener):
        async def on_step(self, step: str) -> None:
            if step == "window timer":
                await trio.sleep(0.01)
                made.parts.loop.nudge()  # as whatever happens meanwhile would
                await trio.sleep(0.01)

    made = container(Windows(diary), Slow(), **{"task.window.ms": "1"})
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.run)
            await until(lambda: diary.told.count("Partition 1 window") >= 3)
            made.stop()
    for task in ("Partition 0", "Partition 1"):
        mine = [told for told in diary.told if told.startswith(task)]
        assert mine[0] == f"{task} init"
        assert set(mine[1:-1]) == {f"{task} window"}
        assert mine[-1] == f"{task} close"
