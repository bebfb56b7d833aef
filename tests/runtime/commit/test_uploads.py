"""Shipped checkpoints: commits do not wait until they are uploaded."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
from harness import ANY_PORT, until
from saved_state import saved_positions
from shared_apps import Click, Count

from s4node import App, Config, Container
from s4node.events.keys import Partitioner
from s4node.state import remote_task
from s4node.state.remote_files import RemoteFiles
from s4node.systems.memory import MemorySystem

PARTITIONS = 12


@pytest.mark.long
async def test_commits_do_not_wait_for_the_uploads_of_many_checkpoints(
    tmp_path: Path,
    system: MemorySystem,
    settings: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = NarrowStore(monkeypatch)
    monkeypatch.setattr(remote_task, "MOST_COMMITS", 1)  # so that all checkpoints are due
    clicks(system, [0])
    app = App("counting")
    app.create_input_stream("clicks", app.create_pe(Count), key="user", system="memory")
    values = {
        **settings,
        "task.commit.ms": "20",
        "s4.listener.address": ANY_PORT,
        "s4.cluster.partitions": str(PARTITIONS),
        "s4.state.url": (tmp_path / "store").as_uri(),
    }
    container = Container(app, Config.from_values(values))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(container.run)
        await container.ready.wait()
        try:
            await until(lambda: committed(settings) == [1] * PARTITIONS)
            await until(lambda: store.waiting)
            clicks(system, range(1, 10))
            await until(lambda: committed(settings) == [10] * PARTITIONS)
            await until(lambda: store.waiting == 2)  # of two tasks
        finally:
            store.goes_on.set()
            nursery.cancel_scope.cancel()


class NarrowStore:
    """A place for state that takes no file until it ``goes_on``; so many are ``waiting``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.goes_on = threading.Event()
        self.waiting = 0
        put_file = RemoteFiles.put_file

        def put_slowly(files: RemoteFiles, path: Path, place: str) -> None:
            self.waiting += 1
            self.goes_on.wait()
            put_file(files, path, place)

        monkeypatch.setattr(RemoteFiles, "put_file", put_slowly)


def clicks(system: MemorySystem, numbers: list[int] | range) -> None:
    """These clicks of a user of each partition."""
    system.create("clicks", PARTITIONS)
    by = Partitioner(PARTITIONS)
    user = {by.partition_of(name): name for name in map("user-{}".format, range(500))}
    for partition in range(PARTITIONS):
        for number in numbers:
            system.put("clicks", partition, Click(user=user[partition], n=number))


def committed(settings: dict[str, str]) -> list[int]:
    """The committed offsets of the partitions, in some order."""
    (app,) = Path(settings["s4.state.folder"]).glob("default/*")
    return [at for places in saved_positions(app).values() for at in places.values()]
