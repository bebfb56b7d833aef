"""A task that an owner ships to a URL, and the folder of a node that follows it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from s4node.events.keys import crc32m
from s4node.state import epochs
from s4node.state.checkpoint_policy import CheckpointRetention, Policy
from s4node.state.database import Database
from s4node.state.job import task_folder
from s4node.state.remote_job import RemoteJob
from s4node.state.remote_task import RemoteTask
from s4node.state.standby.follower import Follower, remove_standby
from s4node.state.task_state import TaskState
from s4node.store_spec import StoreSpec

TASK = "task"
COUNTS = StoreSpec("counts", str, int)


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
        self.retention = CheckpointRetention(folder, fence, Policy(0, 1, 0), task)
        self.retention.take_over(self.state)
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
        upload = self.retention.make_checkpoint(self.state)
        assert upload is not None
        upload()
        newest = epochs.saved_checkpoints(self._folder)[0]
        saved = self._folder.parent / f"saved-{newest.name}"
        if not saved.exists():
            shutil.copytree(self._folder / newest.name, saved)
        self.kept = saved


class Place:
    """A URL and the folder of the node with the standby."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.job = RemoteJob((folder / "store").as_uri(), Path("here/app"))
        self._owners = 0
        self.node = folder / "node"
        self.here = task_folder(self.node, TASK)
        self.here.mkdir(parents=True)

    def task(self) -> RemoteTask:
        return self.job.task(self.here.name)

    def owner(self, folder: Path | None = None, rolled_back: Path | None = None) -> Owner:
        self._owners += 1
        own = folder or self._folder / f"owner-{self._owners}" / self.here.name
        return Owner(own, self.task(), rolled_back)

    def follower(self) -> Follower:
        return Follower(self.task(), self.here, Database)

    def newest(self, before: int = 0) -> Path:
        return self.here / str(epochs.epochs_of(self.here)[before])

    def restored(self) -> list[tuple[bytes, bytes]]:
        self._owners += 1
        own = self._folder / f"look-{self._owners}"
        own.mkdir()
        with closing(self.task().restored(own, lambda: None, Database)) as database:
            return rows_of(database)

    def taken_over(self, follower: Follower) -> list[tuple[bytes, bytes]]:
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


def rows_of(database: Database) -> list[tuple[bytes, bytes]]:
    return list(database.scan(b"", b"\xff" * 8))
