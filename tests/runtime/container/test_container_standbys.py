"""The standbys of a container: which are at the end of their logs, and which folders remain."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from harness import until
from shipped_task import TASK, Owner, Place

from s4node.errors import StateError
from s4node.runtime.container import standbys as module
from s4node.runtime.container.standbys import Standbys
from s4node.state import epochs
from s4node.state.database import Database
from s4node.state.job import task_folder
from s4node.state.remote_log import StoredFile
from s4node.state.standby.follower import Follower

AT_END = frozenset({0})


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOLLOW_SECONDS", 0.02)


async def test_a_standby_that_cannot_write_is_not_at_the_end(tmp_path: Path) -> None:
    it = Followed(tmp_path)
    async with it.standbys() as standbys:
        standbys.follow([0])
        await until(lambda: standbys.at_end == AT_END)
        await until(lambda: it.told == [AT_END])
        it.full = True
        it.owner.commit({"key": 2})
        await until(lambda: not standbys.at_end)
        it.full = False
        await until(lambda: standbys.at_end == AT_END)
        await until(lambda: it.told == [AT_END, frozenset(), AT_END])


async def test_a_standby_whose_call_hangs_is_not_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STALE_SECONDS", 1.0)
    it = Followed(tmp_path)
    async with it.standbys() as standbys:
        standbys.follow([0])
        await until(lambda: standbys.at_end == AT_END)
        it.goes_on.clear()
        it.owner.commit({"key": 2})
        try:
            await until(lambda: it.told[-1:] == [frozenset()])
        finally:
            it.goes_on.set()
        await until(lambda: it.told[-1:] == [AT_END])


async def test_a_task_whose_log_goes_on_too_fast_is_ready_to_be_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it, fetch = Followed(tmp_path), Follower._fetch
    it.owner.checkpoint()
    too_fast = threading.Event()
    too_fast.set()

    def slow(follower: Follower, files: Mapping[str, StoredFile]) -> None:
        for n in range(3 if too_fast.is_set() else 0):
            it.owner.commit({"key": n})
            it.owner.checkpoint()
        fetch(follower, files)

    monkeypatch.setattr(Follower, "_fetch", slow)
    async with it.standbys() as standbys:
        standbys.follow([0])
        await until(lambda: standbys.stuck == AT_END)
        await until(lambda: standbys.ready == AT_END)
        assert not standbys.at_end
        assert it.told[-1] == frozenset()
        too_fast.clear()
        await until(lambda: standbys.at_end == AT_END and not standbys.stuck)


async def test_folders_that_are_in_use_remain_when_those_of_the_last_start_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = Followed(tmp_path, before="before", after="after")
    async with it.standbys() as standbys:
        standbys.follow([1])
        await until(lambda: standbys.at_end == {1})
    left = [task_folder(it.node, name) for name in ("before", "after")]
    for folder in left:
        (folder / "standby").mkdir(parents=True)
    removed, goes_on = list[Path](), threading.Event()
    remove = Follower.remove_left

    def slow(follower: Follower) -> None:
        goes_on.wait(20)
        remove(follower)
        removed.append(follower.folder.parent)

    monkeypatch.setattr(Follower, "remove_left", slow)
    taken = list[Follower]()

    async def take(standbys: Standbys) -> None:
        follower = await standbys.take(1)
        assert follower is not None
        taken.append(follower)

    async with it.standbys() as standbys, trio.open_nursery() as nursery:
        standbys.follow([1])
        nursery.start_soon(take, standbys)
        await until(lambda: not standbys._following)
        goes_on.set()
        await until(lambda: taken and left[1] in removed)
        assert epochs.is_complete(taken[0].folder)
        taken[0].close()


async def test_a_folder_is_filled_once_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    remove = Follower.remove_left

    def slow(follower: Follower) -> None:
        begun.set()
        goes_on.wait(20)
        remove(follower)

    monkeypatch.setattr(Follower, "remove_left", slow)
    it = Followed(tmp_path)
    async with it.standbys() as standbys:
        standbys.follow([])
        await until(begun.is_set)
        standbys.follow([0])
        await until(lambda: standbys._removing.statistics().tasks_waiting)
        assert not it.made
        goes_on.set()
        await until(lambda: standbys.at_end == AT_END)
        assert epochs.is_complete(it.here / "standby")


async def test_the_end_of_a_container_ends_long_calls_of_its_standbys(tmp_path: Path) -> None:
    it = Followed(tmp_path)
    it.goes_on.clear()
    async with it.standbys() as standbys:
        standbys.follow([0])
        await until(lambda: it.made)
        (one,) = standbys._following.values()

        def release() -> None:
            for _ in range(1000):
                if one.follower.stopping:
                    break
                time.sleep(0.005)
            ended.append(one.follower.stopping)
            it.goes_on.set()

        ended: list[bool] = []
        releasing = threading.Thread(target=release)
        releasing.start()
    releasing.join()
    assert ended == [True]


class Followed(Place):
    """A task that is followed, between others of these names. Its database may be full or hang."""

    def __init__(self, folder: Path, before: str = "", after: str = "") -> None:
        super().__init__(folder)
        self.full = False
        self.made = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.told: list[frozenset[int]] = []
        self.owner: Owner = super().owner()
        self.owner.commit({"key": 1})
        self._names = [name for name in (before, TASK, after) if name]

    def make(self, folder: Path) -> Database:
        place = self

        class Limited(Database):
            def write(self, rows: list[bytes], values: list[bytes | None]) -> int:
                place.goes_on.wait(20)
                if place.full:
                    raise StateError("no space left on device")
                return super().write(rows, values)

        self.made += 1
        return Limited(folder)

    @asynccontextmanager
    async def standbys(self) -> AsyncIterator[Standbys]:
        found = Standbys(self.node, self.job, dict(enumerate(self._names)), self.make)
        found.on_change = lambda: self.told.append(found.at_end)
        async with trio.open_nursery() as nursery:
            await nursery.start(found.run)
            yield found
            nursery.cancel_scope.cancel()
