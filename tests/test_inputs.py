"""Inputs that can be read again: from a system in memory into real containers and their tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from s4node import App, Event, ProcessingElement
from s4node.container.container import Container
from s4node.errors import (
    CheckpointError,
    ConfigError,
    DecodeError,
    InputLost,
    S4Error,
    StartpointError,
    UnknownStream,
)
from s4node.systems.memory import MemorySystem
from s4node.systems.system import SystemStreamPartition
from tests.harness import running, until
from tests.input_systems import fresh

ADDRESS = "the tests'"


class Click(Event):
    user: str
    number: int = 0


class Other(Event):
    title: str


class Record(ProcessingElement):
    """Writes down which events its key got, in which partition."""

    def on_event(self, event: Click) -> None:
        self.app.seen.append((event.user, event.number))


class Clicks(App):
    """Records clicks by user, read from the system ``memory``."""

    def __init__(self, *, key: str | None = "user", system: str = "memory") -> None:
        super().__init__("clicks")
        self.seen: list[tuple[str, int]] = []
        self._key = key
        self._system = system

    def on_init(self) -> None:
        record = self.create_pe(Record, singleton=True) if self._key is None else None
        self.create_input_stream(
            "clicks", record or self.create_pe(Record), key=self._key, system=self._system
        )


@pytest.fixture
def system() -> Iterator[MemorySystem]:
    return fresh(ADDRESS)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    return {
        "systems.memory.type": "tests.input_systems:memory",
        "systems.memory.address": ADDRESS,
        "s4.state.folder": str(tmp_path / "state"),
        "streams.clicks.samza.offset.default": "oldest",
    }


def ssp(partition: int, stream: str = "clicks") -> SystemStreamPartition:
    return SystemStreamPartition("memory", stream, partition)


async def test_an_input_is_read_from_the_oldest_event_to_what_comes_later(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 1)
    system.put("clicks", 0, Click("ada", 1), Click("bob", 2))
    app = Clicks()
    async with running(app, settings):
        await until(lambda: len(app.seen) == 2)
        system.put("clicks", 0, Click("ada", 3))
        await until(lambda: len(app.seen) == 3)
    assert app.seen == [("ada", 1), ("bob", 2), ("ada", 3)]


async def test_an_orderly_stop_commits_so_that_a_restart_replays_nothing_and_skips_nothing(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 2)
    for number in range(500):
        system.put("clicks", number % 2, Click(f"user-{number % 7}", number))
    app = Clicks()
    async with running(app, settings, partitions=2):
        await until(lambda: len(app.seen) > 50)
    before = sorted(number for _, number in app.seen)
    again = Clicks()
    async with running(again, settings, partitions=2):
        await until(lambda: len(again.seen) + len(before) >= 500)
        system.put("clicks", 0, Click("ada", 500))
        await until(lambda: ("ada", 500) in again.seen)
    after = sorted(number for _, number in again.seen)
    assert sorted(before + after) == list(range(501))


async def test_events_go_to_the_task_of_their_key_in_the_order_of_each_key(
    system: MemorySystem, settings: dict[str, str]
) -> None:
    system.create("clicks", 2)
    for number in range(3000):
        system.put("clicks", 0, Click(f"user-{number % 11}", number))
    app = Clicks()
    async with running(app, settings, partitions=4) as container:
        await until(lambda: len(app.seen) == 3000)
        homes = [set(task.instances["Record"].keys()) for task in container.tasks.values()]
        safe = container.replay.consumers.progress[0][ssp(0)].safe
    assert len(homes) == 4
    assert sum(map(len, homes)) == 11  # each key in one task
    for user in range(11):
        mine = [number for name, number in app.seen if name == f"user-{user}"]
        assert mine == sorted(mine)
    assert safe == 3000
