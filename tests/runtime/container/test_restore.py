"""The restore of tasks: what is removed for it only once they run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from harness import ANY_PORT, plain_errors, until
from saved_state import saved_positions
from shared_apps import Click, Count

from s4node import App, Config, Container
from s4node.errors import StateUnreachable
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


@pytest.mark.parametrize(
    ("part", "waiting"), [("", ""), ("jobs", ""), ("tasks", "Partition 0")]
)  # the place of the job, what makes it the same job, and its tasks
async def test_a_start_waits_for_a_place_for_state_that_does_not_answer_and_goes_on(
    system: MemorySystem, shipping: dict[str, str], part: str, waiting: str
) -> None:
    system.create("clicks", 1)
    await run_until_committed(system, shipping)
    container = Container(counting(), config(shipping))
    with unanswered(shipping, part) as answers:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(container.run)
            failing = await until_failing(container)
            assert list(failing) == [waiting]
            assert "cannot be read or written" in failing[waiting]
            answers()
            await container.ready.wait()
            system.put("clicks", 0, Click(user="one"))
            await until(lambda: committed(shipping) == 2)
            assert container.statistics().replay.failing == {}
            container.stop()


async def test_a_stop_ends_a_start_that_waits_for_a_place_for_state(
    system: MemorySystem, shipping: dict[str, str]
) -> None:
    system.create("clicks", 1)
    await run_until_committed(system, shipping)
    container = Container(counting(), config(shipping))

    async def start_and_stop() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(container.run)
            await until_failing(container)
            container.stop()

    unreachable = pytest.raises(StateUnreachable, match="check that this node can reach")
    with unanswered(shipping, "tasks"), unreachable, plain_errors():
        await start_and_stop()


async def test_a_stop_ends_a_start_that_waits_for_what_the_job_was(
    system: MemorySystem, shipping: dict[str, str]
) -> None:
    system.create("clicks", 1)
    await run_until_committed(system, shipping)
    container = Container(counting(), config(shipping))
    with unanswered(shipping, ""):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(container.run)
            await until_failing(container)
            container.stop()


async def test_a_container_that_is_prepared_for_a_command_fails_at_once_if_state_cannot_be_read(
    system: MemorySystem, shipping: dict[str, str]
) -> None:
    system.create("clicks", 1)
    await run_until_committed(system, shipping)
    with unanswered(shipping, ""), pytest.raises(StateUnreachable, match="has to be repeated"):
        await Container(counting(), config(shipping)).prepare(waits=False)


async def until_failing(container: Container) -> dict[str, str]:
    """The partitions that cannot be restored, once there are some."""
    await until(lambda: container.statistics().replay.failing)
    return container.statistics().replay.failing


@pytest.fixture
def shipping(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    monkeypatch.setattr("s4node.runtime.commit.retries.RETRY_SECONDS", 0.01)
    return settings | {"s4.state.url": (tmp_path / "store").as_uri()}


@contextmanager
def unanswered(settings: dict[str, str], part: str) -> Iterator[Callable[[], None]]:
    """A place for state that gives errors for a part, until what this yields is called."""
    place = Path(settings["s4.state.url"].removeprefix("file://")) / "default" / "counting" / part
    aside = place.rename(place.with_name("aside"))
    place.touch()

    def answers() -> None:
        place.unlink()
        aside.rename(place)

    yield answers


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
    found = saved_positions(app_folder(settings)) if app_folder(settings).exists() else {}
    return max((at for places in found.values() for at in places.values()), default=0)


def folders(settings: dict[str, str]) -> list[str]:
    (task,) = (app_folder(settings) / "tasks").iterdir()
    return sorted(entry.name for entry in task.iterdir() if entry.name.isdigit())
