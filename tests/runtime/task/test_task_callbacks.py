"""Callbacks of users' tasks come from anywhere, once and in time."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import trio
from harness import running, until
from shared_apps import OnePE
from tasks_in_every_way import MODES, POOL, THREADS, Click, Job, Plain, committed, fill

from s4node.app.stream_task import Callback, Collector, Envelope
from s4node.errors import CallbackError, S4Error, TaskError
from s4node.systems.memory import MemorySystem

SETTINGS = {"task.commit.ms": "0"}


# --- callbacks from wherever ---------------------------------------------------------------------


class AsyncioLoop:
    """An asyncio loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def foreign() -> Iterator[AsyncioLoop]:
    loop = AsyncioLoop()
    yield loop
    loop.close()


def at_once(_: AsyncioLoop, callback: Callback) -> None:
    callback.complete()


def from_a_thread(_: AsyncioLoop, callback: Callback) -> None:
    threading.Thread(target=callback.complete).start()


def from_asyncio(foreign: AsyncioLoop, callback: Callback) -> None:
    async def request() -> None:
        await asyncio.sleep(0.001)
        callback.complete()

    asyncio.run_coroutine_threadsafe(request(), foreign.loop)


def from_a_future(_: AsyncioLoop, callback: Callback) -> None:
    def ended(future: Future[int]) -> None:
        error = future.exception()
        if error is None:
            callback.complete()
        else:
            callback.failure(error)

    POOL.submit(int, "42").add_done_callback(ended)


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("ending", [at_once, from_a_thread, from_asyncio, from_a_future])
async def test_a_callback_may_come_from_anywhere(
    system: MemorySystem,
    settings: dict[str, str],
    foreign: AsyncioLoop,
    ending: Callable[[AsyncioLoop, Callback], None],
    concurrency: int,
) -> None:
    fill(system, 2, 200)
    threads: set[int] = set()
    begun: list[tuple[int, int]] = []

    class Request:
        def process_async(self, envelope: Envelope, _c: Any, _k: Any, callback: Callback) -> None:
            threads.add(threading.get_ident())
            begun.append((envelope.partition, envelope.offset))
            ending(foreign, callback)

    values = settings | {"task.max.concurrency": str(concurrency)}
    async with running(Job(Request), values) as container:
        await until(lambda: container.processed == 400)
    assert threads == {threading.get_ident()}
    for partition in (0, 1):
        assert [n for p, n in begun if p == partition] == list(range(200))


@pytest.mark.parametrize("second", ["complete", "failure"])
@pytest.mark.parametrize("thread", [False, True])
async def test_a_callback_that_is_called_twice_stops_the_container_and_is_named(
    system: MemorySystem, settings: dict[str, str], second: str, thread: bool
) -> None:
    fill(system, 1, 3)

    class Twice:
        def process_async(self, envelope: Envelope, _c: Any, _k: Any, callback: Callback) -> None:
            def end() -> None:
                callback.complete()
                if envelope.offset == 1:
                    callback.complete() if second == "complete" else callback.failure(ValueError())

            POOL.submit(end) if thread else end()

    with pytest.raises(CallbackError, match=r"'Partition 0' .* clicks\[0\]@1 twice"):
        async with running(Job(Twice), settings):
            await trio.sleep_forever()


async def test_a_callback_that_does_not_come_in_time_stops_the_container_and_is_named(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 3)

    class Forget:
        def process_async(self, envelope: Envelope, _c: Any, _k: Any, callback: Callback) -> None:
            if envelope.offset != 1:
                callback.complete()

    values = settings | {"task.callback.timeout.ms": "60", "task.max.concurrency": "3"}
    with pytest.raises(
        CallbackError, match=r"'Partition 0' .* clicks\[0\]@1 was not ended within 0.06 s"
    ):
        async with running(Job(Forget), values):
            await trio.sleep_forever()


async def test_an_async_process_that_hangs_is_found_by_the_timeout_too(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 1)

    class Hang:
        async def process(self, *_: Any) -> None:
            await trio.sleep_forever()

    with pytest.raises(CallbackError, match=r"clicks\[0\]@0 was not ended within 0.05 s"):
        async with running(Job(Hang), settings | {"task.callback.timeout.ms": "50"}):
            await trio.sleep_forever()


@pytest.mark.parametrize("mode", MODES)
async def test_a_collector_that_is_used_after_its_event_raises_and_says_what_to_use(
    system: MemorySystem, settings: dict[str, str], mode: str
) -> None:
    fill(system, 1, 3)
    kept: list[Any] = []
    make, more = MODES[mode]

    def body(_t: Any, envelope: Envelope, collector: Any, _k: Any) -> None:
        collector.send("seen", envelope.message)
        kept.append((collector, envelope.message))

    app = Job(lambda: make(body), outputs=("seen",))
    async with running(app, settings | more) as container:
        await until(lambda: container.processed == 3)
        await until(lambda: not any(task.busy for task in container.tasks.values()))
        for collector, event in kept:
            with pytest.raises(S4Error, match="had ended; await the sending code in an async def"):
                collector.send("seen", event)


async def test_a_collector_that_is_used_after_a_window_raises(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 1)
    kept: list[Any] = []

    class Windows:
        def process(self, envelope: Envelope, collector: Any, _k: Any) -> None:
            pass

        def window(self, collector: Any, _k: Any) -> None:
            kept.append(collector)

    app = Job(Windows, outputs=("seen",))
    async with running(app, settings | {"task.window.ms": "10"}):
        await until(lambda: kept)
        with pytest.raises(S4Error, match="window or timer that led to it had ended"):
            kept[0].send("seen", Click("joe", 1))


@pytest.mark.parametrize("handlers", [1, 2])
@pytest.mark.parametrize("awaits", [False, True])
async def test_tasks_that_a_handler_leaves_running_cannot_put_after_its_end(
    system: MemorySystem, settings: dict[str, str], awaits: bool, handlers: int
) -> None:
    fill(system, 1, 3)
    kept: list[tuple[contextvars.Context, Click]] = []

    def keep(_pe: Any, click: Click) -> None:
        kept.append((contextvars.copy_context(), click))  # as a task that is started has it

    async def keep_later(pe: Any, click: Click) -> None:
        keep(pe, click)

    app = OnePE(keep_later if awaits else keep, types=Click, system="memory")
    app.input.set_parallelism(handlers)
    seen = app.create_output_stream("seen", types=Click)
    async with running(app, settings) as container:
        await until(lambda: container.processed == 3)
        await until(lambda: not any(task.busy for task in container.tasks.values()))
        for context, event in kept:
            with pytest.raises(S4Error, match="or after its end; await in the handler"):
                context.run(seen.put, event)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Threads hang until it is set."""
    event = threading.Event()
    yield event
    event.set()


async def test_a_plain_process_that_hangs_in_a_thread_is_found_by_the_timeout_too(
    system: MemorySystem, settings: dict[str, str], gate: threading.Event
) -> None:
    fill(system, 1, 1)

    def hang(*_: Any) -> None:
        gate.wait(30)

    values = THREADS | {"task.callback.timeout.ms": "50", "task.shutdown.ms": "100"}
    with pytest.raises(CallbackError, match=r"clicks\[0\]@0 was not ended within 0.05 s"):
        async with running(Job(lambda: Plain(hang)), settings | values):
            await trio.sleep_forever()
    assert not gate.is_set()


async def test_a_process_that_hangs_in_a_thread_is_left_alone_when_the_time_to_stop_is_over(
    system: MemorySystem, settings: dict[str, str], gate: threading.Event
) -> None:
    fill(system, 1, 3)
    begun = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def hang(_t: Any, envelope: Envelope, *_: Any) -> None:
        if envelope.offset == 1:
            token.run_sync_soon(begun.set)
            gate.wait(30)

    values = settings | THREADS | {"task.shutdown.ms": "100"}
    with trio.fail_after(10):
        async with running(Job(lambda: Plain(hang)), values) as container:
            await begun.wait()
    assert not gate.is_set()
    assert (committed(container) or 0) <= 1


async def test_a_task_in_a_thread_is_closed_after_its_process_call_when_another_fails(
    system: MemorySystem, settings: dict[str, str], gate: threading.Event
) -> None:
    fill(system, 2, 1)
    told: list[str] = []
    hanging = threading.Event()

    class Slow(Plain):
        def close(self) -> None:
            told.append("closed")

    def body(_t: Any, envelope: Envelope, *_: Any) -> None:
        if envelope.partition == 0:
            hanging.wait(10)
            raise ValueError("enough")
        hanging.set()
        gate.wait(0.2)
        told.append("processed")

    with pytest.raises(TaskError, match="enough"):
        async with running(Job(lambda: Slow(body)), settings | THREADS):
            await trio.sleep_forever()
    assert told == ["processed", "closed", "closed"]


async def test_a_callback_of_a_container_that_is_gone_is_ignored(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 2)
    kept: list[Callback] = []

    class Keep:
        def process_async(self, _e: Any, _c: Any, _k: Any, callback: Callback) -> None:
            kept.append(callback)

    async with running(Job(Keep), settings | {"task.shutdown.ms": "10"}) as container:
        await until(lambda: kept)
        assert committed(container) in (None, 0)
    kept[0].complete()
    await trio.to_thread.run_sync(kept[0].complete)  # not even twice
    await trio.testing.wait_all_tasks_blocked()
    assert committed(container) in (None, 0)  # it will be processed again


async def test_what_is_sent_after_the_callback_is_an_error_and_not_lost(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    fill(system, 1, 1)
    late: list[Collector] = []

    class Late:
        def process_async(self, _e: Any, collector: Collector, _k: Any, callback: Any) -> None:
            late.append(collector)
            callback.complete()

    async with running(Job(Late, outputs=("out",)), settings) as container:
        await until(lambda: container.processed == 1)
        with pytest.raises(S4Error, match="call its callback when all is sent"):
            late[0].send("out", Click("x"))
