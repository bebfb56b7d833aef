"""Whatever code of an app raises is that code's failure; only what tells code to end is not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import ANY_PORT, run_s4, running, s4_process, until
from shared_apps import Click, NotingApp, OnePE

from s4node import App, Client, KeyFinder, ProcessingElement, TaskApp
from s4node.errors import (
    EventError,
    GraphError,
    ProcessingError,
    SourceError,
    TaskError,
    described,
    is_signal,
)
from s4node.offsets.system import SystemStreamPartition
from s4node.systems.memory import MemorySystem


class Mute(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError("nothing to say")


RAISED: dict[str, BaseException] = {
    "SystemExit: 3": SystemExit(3),
    "BaseException: base": BaseException("base"),
    "Mute": Mute(),
}


# -- handlers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async", "on_create", "on_time", "on_remove"])
@pytest.mark.parametrize("what", RAISED)
async def test_whatever_a_pe_raises_fails_the_app_and_names_everything(
    kind: str, what: str
) -> None:
    with pytest.raises(ProcessingError) as caught:
        await run_until_it_fails(counting(kind, RAISED[what]), "ann", "bob", "cid")
    error = caught.value
    assert (error.app, error.key, error.__cause__) == ("app", "bob", RAISED[what])
    place = f"{kind} in " if kind in ("on_time", "on_remove") else "event at "
    assert f"of app 'app' raised {what}; key 'bob', {place}" in str(error)


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_keyboard_interrupt_in_a_handler_stays_one(kind: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        await run_until_it_fails(counting(kind, KeyboardInterrupt()), "ann", "bob")


async def test_handlers_that_are_cancelled_with_all_else_have_not_failed() -> None:
    waiting: list[Any] = []

    async def wait(pe: Any, _click: Click) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            waiting.append(pe.key)
            await trio.sleep_forever()

    app = OnePE(wait)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_until_it_fails, app, "ann")
        await until(lambda: waiting)
        nursery.cancel_scope.cancel()  # a failure of the app would be raised here
    assert waiting == ["ann"]


async def test_a_handler_that_raises_system_exit_is_left_out_where_the_stream_says_skip(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    class Count(ProcessingElement):
        clicks: int = 0

        def on_event(self, event: Click) -> None:
            self.clicks += 1
            if event.user == "bob":
                raise SystemExit(3)

    app = App("counts")
    app.create_input_stream("clicks", app.create_pe(Count), key="user", system="memory")
    system.create("clicks", 1)
    system.put("clicks", 0, *map(Click, ("ann", "bob", "ann")))
    settings["s4.stream.clicks.onError"] = "skip"
    async with running(app, settings) as container:
        assert container.replay.keeps
        progress = container.replay.consumers.progress
        here = SystemStreamPartition("memory", "clicks", 0)
        await until(lambda: here in progress.get(0, {}) and progress[0][here].safe == 3)
        assert container.statistics().replay.left_out == {"clicks": 1}
        counts = container.tasks[0].instances["Count"]
        assert {key: pe.clicks for key, pe in counts.items()} == {"ann": 2}  # type: ignore[attr-defined]


# -- tasks ----------------------------------------------------------------------------------------


class Exits:
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        raise SystemExit(3)


class AsyncExits:
    async def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        await trio.lowlevel.checkpoint()
        raise SystemExit(3)


class CallbackExits:
    def process_async(self, envelope: Any, collector: Any, coordinator: Any, callback: Any) -> None:
        raise SystemExit(3)


class InitExits(Exits):
    def init(self, config: Any, context: Any) -> None:
        raise SystemExit(3)


def making_exits() -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("factory", "hook", "settings"),
    [
        (Exits, "process", {}),
        (Exits, "process", {"job.container.thread.pool.size": "1"}),
        (AsyncExits, "process", {}),
        (AsyncExits, "process", {"task.max.concurrency": "3"}),
        (CallbackExits, "process_async", {}),
        (InitExits, "init", {}),
        (making_exits, "factory", {}),
    ],
)
async def test_a_task_that_raises_system_exit_fails_the_app_naming_the_hook(
    factory: Callable[[], Any], hook: str, settings: dict[str, str]
) -> None:
    class Clicks(TaskApp):
        def on_init(self) -> None:
            self.create_input_stream("clicks", types=Click)

    with pytest.raises(TaskError, match=rf"^{hook} of task .* raised SystemExit: 3"):
        await run_until_it_fails(Clicks("clicks", factory), "ann", **settings)


# -- KeyFinders and hooks of apps -----------------------------------------------------------------


class ExitsAtBob(KeyFinder):
    def get(self, event: Click) -> str:
        if event.user == "bob":
            raise SystemExit(3)
        return event.user


@pytest.mark.parametrize("partitions", [1, 4])
async def test_a_key_finder_that_raises_system_exit_refuses_its_event_alone(
    partitions: int,
) -> None:
    app = NotingApp(key=ExitsAtBob())
    async with running(app, partitions=partitions) as node, Client(node.address) as client:
        clicks = await client.stream("clicks")
        await clicks.send_many(map(Click, ("ann", "bob", "cid")))
        refused = await clicks.flush()
    assert sorted(click.user for click in app.seen) == ["ann", "cid"]
    assert [refusal.reason for refusal in refused] == [
        "the KeyFinder raised SystemExit: 3 (event Click(user='bob', n=0, text=''))"
    ]


async def test_a_hook_of_the_app_whose_exception_cannot_be_told_is_named_by_its_class() -> None:
    class Broken(App):
        def on_init(self) -> None:
            raise Mute

    with pytest.raises(GraphError, match="on_init of app 'Broken' raised Mute; "):
        async with running(Broken()):
            raise AssertionError("it must not run")


# -- what is told ---------------------------------------------------------------------------------


async def test_a_handler_that_calls_sys_exit_is_reported_in_a_sentence_after_its_traceback(
    tmp_path: Path,
) -> None:
    (tmp_path / "gone.py").write_text(
        "import sys\n"
        "from s4node import App, ProcessingElement\n"
        "class Gone(ProcessingElement):\n"
        "    def on_event(self, event): sys.exit(3)\n"
        "app = App('gone')\n"
        "app.create_input_stream('clicks', app.create_pe(Gone), key='user')\n"
    )
    async with s4_process("run", "gone.py", "--listen", ANY_PORT, cwd=tmp_path) as node:
        address = node.readiness.split(" runs at ")[1].split()[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_one, address, tmp_path)
            assert await node.wait() == 1
            nursery.cancel_scope.cancel()
        told = node.stderr[node.stderr.index(node.readiness) :]
        assert len(told) < 20
        assert "sys.exit(3)" in node.errors
        assert told[-1].startswith("s4: Gone of app 'gone' raised SystemExit: 3; key 'joe', ")


async def test_a_source_that_fails_is_reported_in_a_sentence_after_its_traceback(
    tmp_path: Path,
) -> None:
    (tmp_path / "fails.py").write_text(
        "from s4node import App\n"
        "class Fails(App):\n"
        "    def on_start(self): self.start_soon(self.feed)\n"
        "    async def feed(self): 1 / 0\n"
    )
    done = await run_s4("run", "fails.py", "--listen", ANY_PORT, cwd=tmp_path)
    told = done.stderr.splitlines()
    assert done.returncode == 1
    assert len(told) < 10, done.stderr
    assert 'fails.py", line 4, in feed' in done.stderr
    assert told[-1] == (
        "s4: source feed of app 'Fails' raised ZeroDivisionError: division by zero; the app stops "
        "here: fix the source, or catch the exception in it"
    )


async def test_a_failure_in_the_nursery_of_a_source_is_reported() -> None:
    class Feeds(App):
        def on_start(self) -> None:
            self.start_soon(partial(self.feed, "here"))

        async def feed(self, what: str) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                nursery.start_soon(self.fail, what)

        async def fail(self, what: str) -> None:
            raise LookupError(what)

    with pytest.raises(SourceError, match="source feed of app 'Feeds' raised LookupErr") as told:
        async with running(Feeds()):
            await trio.sleep_forever()
    assert isinstance(told.value.__cause__, LookupError)
    assert (told.value.app, told.value.source) == ("Feeds", "feed")


async def test_an_s4_error_of_a_source_is_raised_unchanged() -> None:
    class Asks(App):
        def on_start(self) -> None:
            self.start_soon(self.ask)

        async def ask(self) -> None:
            raise EventError("no event")

    with pytest.raises(EventError, match=r"^no event$"):
        async with running(Asks()):
            await trio.sleep_forever()


async def send_one(address: str, folder: Path) -> None:
    await run_s4("send", "clicks", "--to", address, cwd=folder, stdin=b'{"user": "joe"}\n')


def test_an_exception_is_described_by_its_class_and_what_it_says_if_it_can() -> None:
    assert described(ValueError("no number")) == "ValueError: no number"
    assert described(KeyError()) == "KeyError"
    assert described(Mute()) == "Mute"


async def test_signals_to_end_are_not_failures_even_in_a_group() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(trio.Cancelled) as caught:
            await trio.lowlevel.checkpoint()
    assert is_signal(caught.value)
    assert is_signal(BaseExceptionGroup("two", [ValueError(), caught.value]))
    assert is_signal(GeneratorExit())
    assert is_signal(KeyboardInterrupt())
    assert not is_signal(SystemExit(0))
    assert not is_signal(BaseExceptionGroup("two", [SystemExit(), ValueError()]))


# -- set-up ---------------------------------------------------------------------------------------


async def run_until_it_fails(app: App, *users: str, **settings: str) -> None:
    """Send clicks as the producer "web"; raises what stops the app."""
    async with running(app, settings) as node, Client(node.address, producer="web") as client:
        clicks = await client.stream("clicks")
        await clicks.send_many(map(Click, users))
        await trio.sleep_forever()


def counting(kind: str, error: BaseException) -> App:
    """An app whose PE raises at bob's, in a handler of this kind."""

    class Failing(ProcessingElement):
        def on_event(self, event: Click) -> None:
            self.fail("plain")

        def on_create(self) -> None:
            self.fail("on_create")

        def on_time(self) -> None:
            self.fail("on_time")

        def on_remove(self) -> None:
            self.fail("on_remove")

        def fail(self, where: str) -> None:
            if where == kind and self.key == "bob":
                raise error

    class AsyncFailing(Failing):
        async def on_event(self, event: Click) -> None:
            await trio.lowlevel.checkpoint()
            self.fail("async")

    app = OnePE(AsyncFailing if kind == "async" else Failing)
    if kind == "on_time":
        app.pe.set_timer_interval(0.01)
    if kind == "on_remove":
        app.pe.set_pe_cache(max_size=1)
    return app
