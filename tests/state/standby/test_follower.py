"""Followers of tasks in a folder: what their folders have is what a restore from the URL has."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from s4node.errors import StateError
from s4node.events.keys import crc32m
from s4node.state import epochs
from s4node.state.checkpoint_policy import CheckpointRetention, Policy
from s4node.state.database import Database
from s4node.state.remote_job import RemoteJob
from s4node.state.remote_task import RemoteTask
from s4node.state.standby.follower import Follower, remove_standby
from s4node.state.task_state import TaskState
from s4node.store_spec import StoreSpec

COUNTS = StoreSpec("counts", str, int)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_a_standby_leads_to_the_state_that_a_restore_finds(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    at = Place(tmp_path)
    follower = at.follower()
    owner = at.owner()
    for _ in range(40):
        step = dice.random()
        if step < 0.5:
            owner.commit({f"key-{dice.randrange(50)}": dice.randrange(1000) for _ in range(9)})
        elif step < 0.6:
            owner.checkpoint()
        elif step < 0.85:
            follow(follower)
        elif step < 0.9:
            follower.close()  # its process ends
            follower = at.follower()
        elif step < 0.95:
            owner.state.close()
            owner = at.owner(rolled_back=owner.kept if dice.random() < 0.4 else None)
        else:
            owner.state.close()
            expected = at.restored()
            assert expected == at.taken_over(follower)
            follower = at.follower()
            owner = at.owner()
    owner.state.close()
    expected = at.restored()
    assert expected == at.taken_over(follower)


def test_a_standby_fetches_only_what_follows(tmp_path: Path) -> None:
    at = Place(tmp_path)
    owner = at.owner()
    for n in range(40):
        owner.commit({"key": n})
    owner.checkpoint()
    follower = at.follower()
    follower.follow()
    owner.commit({"key": 40})
    owner.state.close()
    follower.task.fetched = 0
    with at.claimed(follower) as (database, used):
        assert used
        assert TaskState(database, crc32m).store(COUNTS).get("key") == 40
    assert follower.task.fetched < 10  # the last commit, the claim, and what may follow


def test_a_standby_that_is_too_late_begins_anew(tmp_path: Path) -> None:
    at = Place(tmp_path)
    owner = at.owner()
    owner.commit({"key": 0})
    follower = at.follower()
    follower.follow()
    for n in range(3):
        owner.commit({"key": n})
        owner.checkpoint()
    for _ in range(31):  # what comes next was removed
        follower.follow()
    with pytest.raises(StateError, match="does not lead on from entry"):  # the log was listed
        follower.follow()
    assert follower.at_end is None
    follower.follow()
    assert follower.at_end is not None
    owner.state.close()
    assert at.restored() == at.taken_over(follower)


def test_a_restore_without_its_standby_is_as_good(tmp_path: Path) -> None:
    at = Place(tmp_path)
    owner = at.owner()
    owner.commit({"key": 1})
    owner.checkpoint()
    follower = at.follower()
    follower.follow()
    owner.commit({"key": 2})
    owner.state.close()
    follower.close()
    for table in follower.folder.glob("CURRENT"):
        table.write_bytes(b"MANIFEST-9999\n")
    again = at.follower()
    with at.claimed(again) as (database, used):
        assert not used
        assert TaskState(database, crc32m).store(COUNTS).get("key") == 2


def test_a_folder_that_was_fetched_in_part_is_completed(tmp_path: Path) -> None:
    at = Place(tmp_path)
    owner = at.owner()
    owner.commit({f"key-{n}": n for n in range(5000)})
    owner.checkpoint()
    follower = at.follower()
    follower.follow()
    follower.close()
    tables = sorted(follower.folder.glob("*.sst"))
    assert tables
    epochs.unmark(follower.folder)
    tables[0].write_bytes(tables[0].read_bytes()[:-1])
    again = at.follower()
    again.follow()
    owner.state.close()
    assert at.restored() == at.taken_over(again)


def test_the_files_of_an_epoch_are_not_written_over(tmp_path: Path) -> None:
    at = Place(tmp_path)
    owner = at.owner(folder=at.here)
    owner.commit({f"key-{n}": n for n in range(5000)})
    owner.checkpoint()
    owner.state.close()
    before = {path.name: path.read_bytes() for path in at.newest().glob("*.sst")}
    other = at.owner()
    for n in range(3):
        other.commit({f"key-{n}": 7 for n in range(5000)})
        other.checkpoint()
    follower = at.follower()
    follower.follow()
    other.state.close()
    assert at.restored() == at.taken_over(follower)
    assert {path.name: path.read_bytes() for path in at.newest(1).glob("*.sst")} == before


# -- set-up ---------------------------------------------------------------------------------------


class Owner:
    """An owner of the task with a folder of its own."""

    def __init__(self, folder: Path, task: RemoteTask, saved: Path | None) -> None:
        fence = max(task.highest(), epochs.highest(folder)) + 1
        task.claim(fence, "origin", fence)
        database = epochs.claim(folder, fence, Database, None if saved else task, saved)
        self.state = TaskState(database, crc32m, fence=fence, ship=task)
        if saved is not None:  # as a savepoint is restored
            self.state.last = (self.state.last[0], task.replaced(), 0)
            self.state.owners = {fence: self.state.owners[fence]}
        self.keeping = CheckpointRetention(folder, fence, Policy(0, 1, 0), task)
        self.keeping.take_over(self.state)
        self.kept: Path | None = None
        self._folder = folder
        self._counts = self.state.store(COUNTS)

    def commit(self, changes: dict[str, int]) -> None:
        for key, value in changes.items():
            if value % 7:
                self._counts.put(key, value)
            else:
                self._counts.delete(key)
        self.state.begin_commit({"log.clicks[0]": self.state.last[1]})
        self.state.write_commit()
        self.state.end_commit(written=True)

    def checkpoint(self) -> None:
        upload = self.keeping.make_checkpoint(self.state)
        assert upload is not None
        upload()
        newest = epochs.kept_of(self._folder)[0]
        saved = self._folder.parent / f"saved-{newest.name}"
        if not saved.exists():
            shutil.copytree(self._folder / newest.name, saved)
        self.kept = saved


class Place:
    """A URL and the folder of the node with the standby."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._job = RemoteJob((folder / "store").as_uri(), Path("here/app"))
        self._owners = 0
        self.here = folder / "here"
        self.here.mkdir()

    def task(self) -> RemoteTask:
        return self._job.task("t")

    def owner(self, folder: Path | None = None, rolled_back: Path | None = None) -> Owner:
        self._owners += 1
        own = folder or self._folder / f"owner-{self._owners}" / "t"
        return Owner(own, self.task(), rolled_back)

    def follower(self) -> Follower:
        return Follower(self.task(), self.here, Database)

    def newest(self, before: int = 0) -> Path:
        return self.here / str(epochs.epochs_of(self.here)[before])

    def restored(self) -> list[tuple[bytes, bytes]]:
        """What a node without anything restores."""
        self._owners += 1
        own = self._folder / f"look-{self._owners}"
        own.mkdir()
        with closing(self.task().restored(own, lambda: None, Database)) as database:
            return rows_of(database)

    def taken_over(self, follower: Follower) -> list[tuple[bytes, bytes]]:
        """What the node with the standby has as the next owner."""
        with self.claimed(follower) as (database, _):
            return rows_of(database)

    @contextmanager
    def claimed(self, follower: Follower) -> Iterator[tuple[Database, bool]]:
        task = follower.task
        fence = max(task.highest(), epochs.highest(self.here)) + 1
        task.claim(fence, "origin", fence)
        folder = follower.follow_to_claim()
        database = epochs.claim(self.here, fence, Database, task, folder)
        remove_standby(self.here)
        try:
            yield database, folder is not None
        finally:
            database.close()


def follow(follower: Follower) -> None:
    """Follow the log, unless it does not lead on."""
    with suppress(StateError):
        follower.follow()


def rows_of(database: Database) -> list[tuple[bytes, bytes]]:
    return list(database.scan(b"", b"\xff" * 8))
