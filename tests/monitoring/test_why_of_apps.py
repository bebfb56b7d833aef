"""``s4 why`` of real apps: nine that are held up in nine ways, and three that are not."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import ANY_PORT, free_port, run_s4, s4_process

from s4node import Client, Event
from s4node.errors import S4Error

pytestmark = pytest.mark.long


class Click(Event):
    user: str
    at: float = 0.0


async def test_a_pe_that_takes_long_for_each_event(folder: Path) -> None:
    async with app_of(folder, "time.sleep(0.005)"):
        text = await reason_of(folder, "slow-pe")
    assert text.startswith("PE 'Count' takes 100% of the time of all PEs: a call of on_event takes")


async def test_a_key_that_has_most_of_the_events(folder: Path) -> None:
    def key(number: int) -> str:
        return "joe" if number % 3 else f"user-{number % 50}"

    async with app_of(folder, "time.sleep(0.005)", key=key):
        text = await reason_of(folder, "hot-key")
    assert text.startswith("key 'joe' has 6")
    assert text.endswith("% of the events of PE 'Count', for one instance")


async def test_commits_that_take_much_of_the_time(folder: Path) -> None:
    durable = ("s4.stream.clicks.grade=durable", "task.commit.ms=50")
    body = "self.much = self.much or [0.5] * 20_000; self.much[0] += 1"
    async with app_of(folder, body, *durable, key=lambda n: f"user-{n % 200}"):
        text = await reason_of(folder, "commits")
    assert text.startswith("commits take ")


async def test_a_stream_that_waits_for_a_receiver_that_takes_nothing(folder: Path) -> None:
    away = (
        "s4.stream.seen.consumers=page",
        f"s4.cluster.page.address=tcp://127.0.0.1:{free_port()}",
    )
    async with app_of(folder, "self.seen.put(click)", *away):
        text = await reason_of(folder, "full")
    assert "'seen' of app 'clicks' is 100% full" in text


async def test_a_watermark_that_a_silent_program_holds_back(folder: Path) -> None:
    async with (
        app_of(folder, "", clock=lambda number: 100.0 + number / 10) as address,
        Client(address, producer="silent") as client,
    ):
        silent = await client.stream("clicks")
        await silent.send(Click("joe", 100.0))
        await silent.flush()
        text = await reason_of(folder, "watermark")
    assert "the watermark of stream 'clicks' stands " in text
    assert "silent" in text


async def test_a_machine_that_is_busy_with_other_programs(folder: Path) -> None:
    burn = (sys.executable, "-c", "while True: pass")
    async with trio.open_nursery() as nursery:
        for _ in range(4 * (os.cpu_count() or 1)):
            nursery.start_soon(trio.run_process, burn)
        async with app_of(folder, "sum(range(100_000))"):
            text = await reason_of(folder, "machine-busy")
        nursery.cancel_scope.cancel()
    assert text.startswith(
        "the machine is busy with other work: the container waits for a processor for "
    )


BAD = """\
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
    at: float = 0.0
class Bad(ProcessingElement):
    def on_event(self, click: Click):
        raise ValueError("a bad click")
app = App("page")
app.create_input_stream("seen", app.create_pe(Bad), key="user")
"""


async def test_an_app_that_fails_at_its_events_and_one_that_waits_for_it(folder: Path) -> None:
    (folder / "bad.py").write_text(BAD)
    (folder / "clicks.py").write_text(app_text("self.seen.put(click)"))
    async with node(folder, "one", "s4.container.restartDelay=100000") as address:
        for file, stream in (("bad.py", "seen"), ("clicks.py", "clicks")):
            durable = ("-p", f"s4.stream.{stream}.grade=durable")
            done = await run_s4("deploy", file, *durable, *place(folder), cwd=folder)
            assert done.returncode == 0, done.stderr
        async with sending(address):
            text = await reason_of(folder, "not-running", "page", *place(folder))
            assert text.startswith("it is waiting to restart; its last failure: ")
            assert "a bad click" in text
            text = await reason_of(folder, "receiver-away", "clicks", *place(folder))
            assert text.endswith("events of stream 'seen' wait for app 'page': it is away")


async def test_a_node_that_does_not_answer(folder: Path) -> None:
    (folder / "clicks.py").write_text(app_text(""))
    long = ("s4.session.timeout=60000",)
    async with node(folder, "one", *long), node(folder, "two", *long) as _:
        done = await run_s4("deploy", "clicks.py", *place(folder), cwd=folder)
        assert done.returncode == 0, done.stderr
        (now,) = await asked(folder, "status", *place(folder))
        pid = next(each["pid"] for each in now["nodes"] if each["name"] == "two")
        os.kill(pid, signal.SIGSTOP)
        try:
            text = await reason_of(folder, "node-away", "clicks", *place(folder))
        finally:
            os.kill(pid, signal.SIGCONT)
    assert text.startswith("node 'two' did not answer within 2 s")


# -- healthy ones ---------------------------------------------------------------------------------


async def test_an_app_without_events_is_not_held_up(folder: Path) -> None:
    (folder / "clicks.py").write_text(app_text(""))
    async with s4_process("run", "clicks.py", "--listen", ANY_PORT, cwd=folder):
        assert await reasons(folder) == {}


async def test_an_app_with_time_left_is_not_held_up(folder: Path) -> None:
    async with app_of(folder, "", "s4.stream.clicks.grade=durable", pause=0.05):
        assert await reasons(folder) == {}


async def test_an_app_whose_windows_end_is_not_held_up(folder: Path) -> None:
    async with app_of(folder, "", clock=lambda _: time.time(), pause=0.05):
        assert await reasons(folder) == {}


# -- set-up ---------------------------------------------------------------------------------------


def app_text(body: str, *, timed: bool = False) -> str:
    """An app that counts clicks, which does ``body`` with each."""
    window = "self.count.set_window(tumbling(10))" if timed else ""
    more = ', time="at"' if timed else ""
    return f"""\
import time
from s4node import App, Event, OutputStream, ProcessingElement, tumbling
class Click(Event):
    user: str
    at: float = 0.0
class Count(ProcessingElement):
    seen: OutputStream
    clicks: int = 0
    much: list[float] = []
    def on_event(self, click: Click):
        self.clicks += 1
        {body}
    def on_window(self):
        pass
class Clicks(App):
    def on_init(self):
        self.count = self.create_pe(Count)
        {window}
        self.count.seen = self.create_output_stream("seen", key="user", types=Click)
        self.create_input_stream("clicks", self.count, key="user"{more})
app = Clicks("clicks")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "runtime").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def place(folder: Path) -> tuple[str, ...]:
    return ("--folder", str(folder / "cluster"))


@asynccontextmanager
async def app_of(
    folder: Path,
    body: str,
    *settings: str,
    key: Callable[[int], str] = lambda number: f"user-{number % 50}",
    clock: Callable[[int], float] | None = None,
    pause: float = 0.0,
) -> AsyncIterator[str]:
    """The address of a running app that gets events."""
    (folder / "clicks.py").write_text(app_text(body, timed=clock is not None))
    given = [word for each in settings for word in ("-p", each)]
    async with (
        s4_process("run", "clicks.py", "--listen", ANY_PORT, *given, cwd=folder) as process,
        sending(process.address, key, clock, pause),
    ):
        yield process.address


@asynccontextmanager
async def node(folder: Path, name: str, *settings: str) -> AsyncIterator[str]:
    """The address of a node of a cluster."""
    port = free_port()
    given = [word for each in settings for word in ("-p", each)]
    given += ["-p", f"s4.listener.address=tcp://127.0.0.1:{port}", "--name", name]
    async with s4_process("node", "default", *place(folder), *given, cwd=folder):
        yield f"tcp://127.0.0.1:{port}"


@asynccontextmanager
async def sending(
    address: str,
    key: Callable[[int], str] = lambda number: f"user-{number % 50}",
    clock: Callable[[int], float] | None = None,
    pause: float = 0.0,
) -> AsyncIterator[None]:
    """A program that sends clicks meanwhile."""

    async def send() -> None:
        async with Client(address) as client:
            stream = await client.stream("clicks")
            number = 0
            while True:
                for _ in range(20):
                    number += 1
                    await stream.send(Click(key(number), clock(number) if clock else 0.0))
                await trio.sleep(pause or 0.001)

    async with trio.open_nursery() as nursery:

        async def until_cancelled() -> None:
            with suppress(S4Error):
                await send()

        nursery.start_soon(until_cancelled)
        yield
        nursery.cancel_scope.cancel()


async def asked(folder: Path, *command: str) -> list[dict[str, Any]]:
    done = await run_s4(*command, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


async def reasons(folder: Path, app: str = "clicks", *more: str) -> dict[str, str]:
    """The texts of the reasons now, by rule."""
    (now,) = await asked(folder, "why", app, "--seconds", "2", *more)
    return {each["rule"]: each["text"] for each in now["reasons"]}


async def reason_of(folder: Path, rule: str, app: str = "clicks", *more: str) -> str:
    """The text of a reason, once it is one of those that are given."""
    found: dict[str, str] = {}
    with trio.move_on_after(60):
        while rule not in found:
            found = await reasons(folder, app, *more)
    assert rule in found, found
    return found[rule]
