"""Output streams that have no room for long are named: two apps in memory, which know addresses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from shared_apps import Click, Forward, OnePE
from structlog.testing import capture_logs

from s4node import App, Client, Config, Container, OutputStream, ProcessingElement
from s4node.state import task_state
from s4node.testing.runs import host
from s4node.testing.world import World


@pytest.mark.parametrize("grade", ["fast", "durable"])
def test_apps_that_know_each_other_by_address_say_that_they_wait_for_each_other(
    tmp_path: Path, grade: str
) -> None:
    doubled: list[Click] = []

    def doubling(name: str, stream: str, to: str) -> App:
        app = OnePE(Double, stream, name=name)
        app.pe.out = app.create_output_stream(to, key="user", types=Click)
        app.pe.doubled = doubled
        return app

    one, two = doubling("one", "toone", "totwo"), doubling("two", "totwo", "toone")
    with capture_logs() as logs, two_apps(one, two, tmp_path, grade) as world:
        world.start_soon(send, "toone", [Click("ann", 12)])
        world.pass_time(9)
        assert told(logs, FULL) == []
        world.pass_time(30)
        assert sorted(told(logs, FULL)) == [("toone", ["one"]), ("totwo", ["two"])]
        assert len(doubled) < 2**13 - 1


def test_an_output_stream_that_has_room_again_says_so(tmp_path: Path) -> None:
    goes_on, seen = trio.Event(), list[Click]()

    class Wait(ProcessingElement):
        async def on_event(self, event: Click) -> None:
            await goes_on.wait()
            seen.append(event)

    one = OnePE(Forward, "toone", name="one")
    one.pe.out = one.create_output_stream("totwo", key="user", types=Click)
    two = OnePE(Wait, "totwo", name="two")
    with capture_logs() as logs, two_apps(one, two, tmp_path, "fast") as world:
        world.start_soon(send, "toone", [Click("ann", n) for n in range(100)])
        world.pass_time(30)
        assert told(logs, FULL) == [("totwo", ["two"])]
        assert told(logs, ROOM) == []
        world.call(goes_on.set)
        world.pass_time(30)
        assert len(seen) == 100
        assert len(told(logs, ROOM)) == len(told(logs, FULL)) == 1


# -- set-up ---------------------------------------------------------------------------------------

FULL = "an output stream is full, and its consumer takes nothing"
ROOM = "an output stream has room again"


class Double(ProcessingElement):
    """Puts two events for each one, whose numbers are smaller by one."""

    out: OutputStream
    doubled: list[Click]

    def on_event(self, event: Click) -> None:
        self.doubled.append(event)
        if event.n:
            for name in ("ann", "bob"):
                self.out.put(Click(f"{name}-{event.n}", event.n - 1))


@contextmanager
def two_apps(one: App, two: App, folder: Path, grade: str) -> Iterator[World]:
    """Two apps with small queues, each of which consumes what the other puts."""
    world = World()
    limits = pytest.MonkeyPatch()
    limits.setattr(task_state, "CHANGES_BYTES", 1024)
    try:
        for app, other in ((one, two), (two, one)):
            settings = {
                "s4.cluster.name": app.name,
                "s4.listener.address": f"tcp://{app.name}:1000",
                f"s4.cluster.{other.name}.address": f"tcp://{other.name}:1000",
                f"s4.stream.to{other.name}.consumers": other.name,
                f"s4.stream.to{app.name}.grade": grade,
                "s4.state.folder": str(folder / app.name),
                "s4.stream.workQueueSize": "10",
                "s4.remoteSender.workQueueSize": "10",
                "s4.watchdog.ms": "0",
            }
            world.start_soon(run, app.name, Container(app, Config.from_values(settings)).run)
        world.pass_time(1)
        yield world
        assert not world.failures
    finally:
        world.close()
        limits.undo()


async def run(name: str, run: Callable[[], Awaitable[None]]) -> None:
    host.set(name)
    await run()


async def send(stream: str, clicks: list[Click]) -> None:
    host.set("program")
    async with Client("tcp://one:1000") as client:
        await (await client.stream(stream)).send_many(clicks)


def told(logs: Sequence[MutableMapping[str, Any]], event: str) -> list[tuple[str, list[str]]]:
    """The streams of these lines, and the consumers that they name."""
    return [(log["stream"], log.get("consumers", [])) for log in logs if log["event"] == event]
