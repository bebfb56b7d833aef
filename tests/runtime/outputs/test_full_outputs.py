"""Output streams without room: apps in a cycle do not wait for each other; others log it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import free_port, running, until
from shared_apps import Click, Forward, OnePE
from structlog.testing import capture_logs

from benchmarks.runner import resident_mb
from s4node import App, Client, Config, Container, OutputStream, ProcessingElement
from s4node.state import task_state
from s4node.testing.runs import host
from s4node.testing.world import World


@pytest.mark.parametrize("grade", ["fast", "durable"])
@pytest.mark.parametrize("apps", [2, 3])
def test_a_cycle_of_apps_that_know_addresses_ends_with_the_exact_count(
    tmp_path: Path, grade: str, apps: int
) -> None:
    doubled: list[Click] = []
    names = ["one", "two", "three"][:apps]
    ring = [doubling(*each, doubled) for each in zip(names, names[1:] + names[:1], strict=True)]
    with capture_logs() as logs, in_memory(ring, tmp_path, grade) as world:
        world.start_soon(send, "toone", [Click("ann", 12)])
        world.pass_time(300, lambda: len(doubled) == 2**13 - 1)
        world.pass_time(30)
    assert len(doubled) == 2**13 - 1
    assert told(logs, FULL) == []
    assert told(logs, SPILLS)


@pytest.mark.parametrize("grade", ["fast", "durable"])
def test_programs_get_no_more_credit_while_the_next_app_of_a_cycle_is_away(
    tmp_path: Path, grade: str
) -> None:
    doubled, others = list[Click](), list[Click]()
    ring = [doubling("one", "two", doubled), doubling("two", "one", others)]
    with in_memory(ring, tmp_path, grade) as world:
        world.start_soon(send, "toone", [Click("ann")])
        world.pass_time(5)
        world.call(world.network.cut, "two")
        world.start_soon(send, "toone", [Click("bob", 1)] * 20_000)
        world.pass_time(100)
        assert 10 < len(doubled) < 6000
        world.call(world.network.heal, "two")
        world.pass_time(300, lambda: len(others) == 40_000)
        assert (len(doubled), len(others)) == (20_001, 40_000)


@pytest.mark.parametrize(("grade", "depth", "most_mb"), [("fast", 17, 60), ("durable", 16, 100)])
async def test_two_apps_in_a_cycle_end_with_the_exact_count_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grade: str, depth: int, most_mb: int
) -> None:
    monkeypatch.setattr(task_state, "CHANGES_BYTES", 65_536)
    doubled = Count()
    addresses = {name: f"tcp://127.0.0.1:{free_port()}" for name in ("one", "two")}
    async with AsyncExitStack() as stack:
        for name, other in ("one", "two"), ("two", "one"):
            settings = settings_of(name, other, addresses[other], grade, tmp_path)
            app = doubling(name, other, doubled)
            await stack.enter_async_context(
                running(app, settings, address=addresses[name], deadline=120)
            )
        client = await stack.enter_async_context(Client(addresses["one"]))
        before = resident_mb()
        await (await client.stream("toone")).send(Click("ann", depth))
        await until(lambda: doubled.count >= 2 ** (depth + 1) - 1, seconds=100)
        assert doubled.count == 2 ** (depth + 1) - 1
        assert resident_mb() - before < most_mb


def test_an_output_stream_that_has_room_again_says_so(tmp_path: Path) -> None:
    goes_on, seen = trio.Event(), list[Click]()

    class Wait(ProcessingElement):
        async def on_event(self, event: Click) -> None:
            await goes_on.wait()
            seen.append(event)

    one = OnePE(Forward, "toone", name="one")
    one.pe.out = one.create_output_stream("totwo", key="user", types=Click)
    two = OnePE(Wait, "totwo", name="two")
    with capture_logs() as logs, in_memory([one, two], tmp_path, "fast") as world:
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
SPILLS = "streams feed themselves; events beyond the size of their stages wait on disk"


class Double(ProcessingElement):
    """Puts two events for each one, whose numbers are smaller by one."""

    out: OutputStream
    doubled: Any

    def on_event(self, event: Click) -> None:
        self.doubled.append(event)
        if event.n:
            for name in ("ann", "bob"):
                self.out.put(Click(f"{name}-{event.n}", event.n - 1))


class Count:
    """Counts what is appended to it."""

    count = 0

    def append(self, _: Click) -> None:
        self.count += 1


def doubling(name: str, other: str, doubled: Any) -> App:
    app = OnePE(Double, f"to{name}", name=name)
    app.pe.out = app.create_output_stream(f"to{other}", key="user", types=Click)
    app.pe.doubled = doubled
    return app


def settings_of(name: str, other: str, address: str, grade: str, folder: Path) -> dict[str, str]:
    """The settings of an app with small queues, whose output another one consumes."""
    return {
        "s4.cluster.name": name,
        f"s4.cluster.{other}.address": address,
        f"s4.stream.to{other}.consumers": other,
        f"s4.stream.to{name}.grade": grade,
        "s4.state.folder": str(folder / name),
        "s4.stream.workQueueSize": "10",
        "s4.remoteSender.workQueueSize": "10",
        "s4.watchdog.ms": "0",
    }


@contextmanager
def in_memory(ring: Sequence[App], folder: Path, grade: str) -> Iterator[World]:
    """Apps on hosts of their own, each of which may send to the next."""
    world = World()
    limits = pytest.MonkeyPatch()
    limits.setattr(task_state, "CHANGES_BYTES", 1024)
    try:
        for app, other in zip(ring, [*ring[1:], ring[0]], strict=True):
            settings = settings_of(app.name, other.name, f"tcp://{other.name}:1000", grade, folder)
            settings["s4.listener.address"] = f"tcp://{app.name}:1000"
            world.start_soon(run, app, settings)
        world.pass_time(1)
        yield world
        assert not world.failures
    finally:
        world.close()
        limits.undo()


async def run(app: App, settings: Mapping[str, str]) -> None:
    host.set(app.name)
    await Container(app, Config.from_values(settings)).run()


async def send(stream: str, clicks: list[Click]) -> None:
    host.set("program")
    async with Client("tcp://one:1000") as client:
        await (await client.stream(stream)).send_many(clicks)


def told(logs: Sequence[MutableMapping[str, Any]], event: str) -> list[tuple[str, list[str]]]:
    """The streams or ways of these lines, and the consumers that they name."""
    found = [log for log in logs if log["event"] == event]
    return [(log.get("stream", log.get("path")), log.get("consumers", [])) for log in found]
