"""Errors of users' tasks end the container and name the place; the settings may ignore them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import trio
from harness import running, until
from tasks_in_every_way import (
    MODES,
    Awaiting,
    Click,
    Job,
    Plain,
    committed,
    every_mode,
    fill,
    nothing,
    run_to_end,
)

from s4node.app.stream_task import Collector, Envelope, TaskApp, TaskContext
from s4node.errors import GraphError, ProcessingError, TaskError
from s4node.systems.memory import MemorySystem

SETTINGS = {"task.commit.ms": "0"}


# --- what goes wrong -----------------------------------------------------------------------------


@every_mode
async def test_an_event_whose_error_is_ignored_is_done_and_its_place_is_free(
    system: MemorySystem, settings: dict[str, str], mode: str
) -> None:
    fill(system, 1, 60)
    make, values = MODES[mode]

    class OddError(ValueError):
        pass

    def odd(_t: Any, envelope: Envelope, *_: Any) -> None:
        if envelope.offset % 2:
            raise OddError(envelope.offset)

    values = values | {"task.ignored.exceptions": "KeyError, builtins.ValueError"}
    async with running(Job(lambda: make(odd)), settings | values) as container:
        await until(lambda: container.processed == 60)
        assert container.statistics().tasks[0].ignored == {"OddError": 30}
    assert committed(container) == 60


@every_mode
async def test_an_error_that_is_not_ignored_stops_the_container_and_names_the_place(
    system: MemorySystem, settings: dict[str, str], mode: str
) -> None:
    fill(system, 2, 30)
    make, values = MODES[mode]
    closed: list[int] = []

    def fail(_t: Any, envelope: Envelope, *_: Any) -> None:
        if (envelope.partition, envelope.offset) == (1, 7):
            raise ValueError("seven")

    class Closes(make):  # type: ignore[misc, valid-type]
        def close(self) -> None:
            closed.append(1)

    values = values | {"task.ignored.exceptions": "KeyError"}
    told = (
        r"process(_async)? of task 'Partition 1' \(Closes\) of app 'job' raised ValueError: "
        r"seven; event at clicks\[1\]@7"
    )
    with pytest.raises(TaskError, match=told) as caught:
        async with running(Job(lambda: Closes(fail)), settings | values) as container:
            await trio.sleep_forever()
    assert isinstance(caught.value.__cause__, ValueError)
    assert closed == [1, 1]
    assert (committed(container, 1) or 0) <= 7


HOOKS = ["init", "window", "timer", "on_end_of_stream", "close"]


@pytest.mark.parametrize("threads", ["0", "2"])
@pytest.mark.parametrize("hook", HOOKS)
async def test_a_hook_that_raises_stops_the_container_named_and_the_others_are_closed(
    system: MemorySystem, settings: dict[str, str], hook: str, threads: str
) -> None:
    fill(system, 2, 3)
    closed: list[int] = []

    class Task(Plain):
        number = 0

        def _raise(self, name: str) -> None:
            if name == hook and self.number == 0:
                raise LookupError(f"in {name}")

        def init(self, _config: Any, context: TaskContext) -> None:
            self.number = context.partition
            context.schedule(0.01, lambda _c, _k: self._raise("timer"))
            self._raise("init")

        def window(self, *_: Any) -> None:
            self._raise("window")

        def on_end_of_stream(self, *_: Any) -> None:
            self._raise("on_end_of_stream")

        def close(self) -> None:
            closed.append(self.number)
            self._raise("close")

    for partition in (0, 1):
        system.end_partition("clicks", partition)
    values = settings | {"task.window.ms": "5", "job.container.thread.pool.size": threads}
    if hook == "timer":
        system.create("clicks", 0)
        fill(system, 2, 3)
    if hook == "window":
        system.create("clicks", 0)
        fill(system, 2, 3)
    told = rf"{hook} of task 'Partition 0' \(Task\) of app 'job' raised LookupError: in {hook}"
    with pytest.raises(TaskError, match=told) as caught:
        await run_to_end(Job(lambda: Task(nothing)), values)
    assert ("task.ignored.exceptions" in str(caught.value)) == (hook in ("window", "timer"))
    if hook != "init":
        assert sorted(closed) == [0, 1]


async def test_a_container_that_all_tasks_of_a_process_would_share_is_refused(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    class Base(Plain):
        seen: dict[str, int] = {}  # noqa: RUF012 - that is what is refused

    class Shares(Base): ...

    class Says(Plain):
        seen: ClassVar[dict[str, int]] = {}
        sizes = (1, 2)

    class Makes(Base):
        def __init__(self, process: Callable[..., Any]) -> None:
            super().__init__(process)
            self.seen = {}

    fill(system, 1, 1)
    told = "all tasks of a process would share 'seen' of Shares, a dict; make it in __init__, or"
    with pytest.raises(GraphError, match=told):
        await run_to_end(Job(lambda: Shares(nothing)), settings)
    for cls in (Says, Makes):
        came: list[Any] = []
        app = Job(lambda cls=cls, came=came: cls(lambda _, envelope, *__: came.append(envelope)))
        async with running(app, settings):
            system.put("clicks", 0, Click("joe", 1))
            await until(lambda came=came: came)


async def test_a_factory_that_raises_and_an_object_that_is_not_a_task_are_reported(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 1)

    def broken() -> Any:
        raise OSError("no database")

    with pytest.raises(ProcessingError, match=r"factory of task 'Partition 0'.*no database"):
        await run_to_end(Job(broken), settings)
    with pytest.raises(GraphError, match="str is not a task; give it a method process"):
        await run_to_end(Job(str), settings)
    with pytest.raises(GraphError, match="has no factory"):
        await run_to_end(TaskApp("none", inputs=["memory.clicks"]), settings)
    with pytest.raises(GraphError, match="has the factory 5, which cannot be called"):
        await run_to_end(TaskApp("five", 5, inputs=["memory.clicks"]), settings)  # type: ignore[arg-type]


class AsyncBegin:
    async def process_async(self, *_: Any) -> None:
        raise AssertionError("nobody awaits this")


class Aio:
    async def process(self, *_: Any) -> None:
        await asyncio.sleep(1)  # of 0 trio itself says what is wrong


async def test_async_tasks_that_cannot_work_are_told_what_to_write(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 1)
    with pytest.raises(GraphError, match="process_async of AsyncBegin is an async def"):
        await run_to_end(Job(AsyncBegin), settings)
    told = r"no running event loop.*fix the task \(a node's loop is trio's"
    with pytest.raises(ProcessingError, match=told):
        await run_to_end(Job(Aio), settings)


class YieldsPlain:
    def process(self, *_: Any) -> Any:
        yield

    def init(self, *_: Any) -> Any:
        yield

    def on_end_of_stream(self, *_: Any) -> Any:
        yield


class YieldsAsync:
    def process_async(self, *_: Any) -> Any:
        yield

    async def process(self, *_: Any) -> Any:
        yield

    async def window(self, *_: Any) -> Any:
        yield

    def close(self) -> Any:
        yield


class YieldsInTimer:
    def init(self, _: Any, context: TaskContext) -> None:
        context.schedule(0, self.late)

    async def late(self, *_: Any) -> Any:
        yield

    def process(self, *_: Any) -> None: ...


async def test_tasks_with_methods_that_would_never_run_for_their_yield_are_refused(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 1)
    never = "contains yield, so calling it would not run it; remove the yield, and send with"
    for cls, hooks in (
        (YieldsPlain, ["process", "init", "on_end_of_stream"]),
        (YieldsAsync, ["process_async", "process", "window", "close"]),
    ):
        with pytest.raises(GraphError) as caught:
            await run_to_end(Job(cls), settings)
        first, *lines = str(caught.value).split("\n")
        assert first == "app 'job' cannot run:"
        assert lines == [
            f"  - {hook} of {cls.__name__} {never} collector.send(stream, event)" for hook in hooks
        ]
    with pytest.raises(TaskError, match=r"init of task .*late\b.* contains yield"):
        await run_to_end(Job(YieldsInTimer), settings)


async def test_a_plain_wrapper_of_an_async_task_is_told_to_be_async(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 1)

    class Wrapper:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def process(self, *arguments: Any) -> Any:
            return self.inner.process(*arguments)

    with pytest.raises(ProcessingError, match="write 'async def', and await what it calls"):
        await run_to_end(Job(lambda: Wrapper(Awaiting(nothing))), settings)


async def test_sending_to_an_unknown_stream_of_a_task_names_the_known_ones(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 1)

    def send(_t: Any, _e: Any, collector: Collector, _k: Any) -> None:
        collector.send("outt", Click("x"))

    with pytest.raises(ProcessingError, match="no stream 'outt'; the app has out, clicks"):
        await run_to_end(Job(lambda: Plain(send), outputs=("out",)), settings)
