"""The restore of tasks: what is removed for it only once they run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
from harness import ANY_PORT, until
from saved_state import saved_positions
from shared_apps import Click, Count

from s4node import App, Config, Container
from s4node.state import epochs
from s4node.systems.memory import MemorySystem


async def test_restored_tasks_run_while_former_folders_are_being_removed(
    system: MemorySystem, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    system.create("clicks", 1)
    for _ in range(3):  # the third one removes the folder of the first
        await run_until_committed(system, settings)
    goes_on, waiting = threading.Event(), threading.Event()
    sweep = epochs.sweep

    def sweep_slowly(folder: Path, keep: int, older_than: float, now: float) -> int:
        waiting.set()
        goes_on.wait()
        return sweep(folder, keep, older_than, now)

    monkeypatch.setattr(epochs, "sweep", sweep_slowly)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Container(counting(), config(settings)).run)
        try:
            await until(waiting.is_set)
            system.put("clicks", 0, Click(user="one", n=4))
            await until(lambda: committed(settings) == 4)
            assert folders(settings) == ["2", "3", "4"]
            goes_on.set()
            await until(lambda: folders(settings) == ["3", "4"])
        finally:
            goes_on.set()
            nursery.cancel_scope.cancel()


async def run_until_committed(system: MemorySystem, settings: dict[str, str]) -> None:
    number = system.put("clicks", 0, Click(user="one")) + 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Container(counting(), config(settings)).run)
        await until(lambda: committed(settings) == number)
        nursery.cancel_scope.cancel()


def counting() -> App:
    app = App("counting")
    app.create_input_stream("clicks", app.create_pe(Count), key="user", system="memory")
    return app


def config(settings: dict[str, str]) -> Config:
    values = {"s4.listener.address": ANY_PORT, "s4.cluster.partitions": "1", "task.commit.ms": "20"}
    return Config.from_values({**settings, **values})


def app_folder(settings: dict[str, str]) -> Path:
    return Path(settings["s4.state.folder"]) / "default" / "counting"


def committed(settings: dict[str, str]) -> int:
    """The committed offset of the input."""
    found = saved_positions(app_folder(settings)) if app_folder(settings).exists() else {}
    return max((at for places in found.values() for at in places.values()), default=0)


def folders(settings: dict[str, str]) -> list[str]:
    """The folders of the task's epochs."""
    (task,) = (app_folder(settings) / "tasks").iterdir()
    return sorted(entry.name for entry in task.iterdir() if entry.name.isdigit())
