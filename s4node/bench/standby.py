"""standby: how long a node that takes tasks over needs until it has their state.

The state of 16 tasks, 1 GB in all, is at a folder that gives 50 MB/s to all readers together. After
a checkpoint, each task has commits that take another tenth. ``seconds`` is from the claims until
all databases are open, eight at a time as in a container: for a node without anything (``cold``),
and for one that has followed the tasks (``standby``) until a last commit of each. ``fill_s`` is how
long the standby took to get there. ``requests_per_hour`` are those of a standby for one task that
commits once in a second, and ``idle_requests_per_hour`` without commits. ``checked`` says that
both have the rows that were committed.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from s4node.bench.result import Result
from s4node.events.keys import crc32m
from s4node.state import epochs
from s4node.state.checkpoint_policy import CheckpointRetention, Policy
from s4node.state.database import Database
from s4node.state.remote_job import RemoteJob
from s4node.state.remote_task import RemoteTask
from s4node.state.standby.follower import Follower
from s4node.state.task_state import TaskState
from s4node.store_spec import StoreSpec

TASKS, QUICK_TASKS = 16, 2
BYTES, QUICK_BYTES = 1 << 30, 4 << 20
BYTES_PER_SECOND = 50_000_000
VALUE_BYTES = 16 << 10
ROWS_PER_COMMIT = 64
THREADS = 8
FOLLOWED = 20

_VALUES: StoreSpec[int, bytes] = StoreSpec("values", int, bytes)


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for a node without anything, and one for a standby."""
    tasks, size = (QUICK_TASKS, QUICK_BYTES) if quick else (TASKS, BYTES)
    with tempfile.TemporaryDirectory(prefix="s4-bench-") as name:
        place = Path(name)
        store = _SlowStore(place)
        names = [f"task-{number}" for number in range(tasks)]
        say(f"{tasks} tasks with {size >> 20} MiB")
        owners = [_Owner(place, store.task(each, slow=False)) for each in names]
        rows = max(size // tasks // VALUE_BYTES, ROWS_PER_COMMIT)
        for owner in owners:
            owner.fill(rows)
        say("a standby follows them")
        followers = [
            Follower(store.task(each), place / "standby" / each, Database) for each in names
        ]
        began = time.perf_counter()
        _at_once(Follower.follow, followers)
        filled = time.perf_counter() - began
        idle, busy = _requests(store, followers[0], owners[0])
        for owner in owners:
            owner.commit(1)
            owner.state.close()
        notes = {"tasks": tasks, "mib": size >> 20, "store_mb_per_s": BYTES_PER_SECOND / 1e6}
        results = []
        takings: dict[str, tuple[Iterable[Any], Callable[[Any], Database]]] = {
            "standby": (followers, _by_standby),
            "cold": (names, partial(_cold, place / "cold", store)),
        }
        for kind, (each, take) in takings.items():
            say(f"{kind}: take them over")
            began = time.perf_counter()
            found = _at_once(take, each)
            took = time.perf_counter() - began
            rows_found = _at_once(_counted, found)
            more = {"fill_s": filled, "requests_per_hour": busy, "idle_requests_per_hour": idle}
            results.append(
                Result(
                    "standby",
                    events=sum(rows_found),
                    seconds=took,
                    checked=rows_found == [owner.rows for owner in owners],
                    notes={"kind": kind, **notes, **(more if kind == "standby" else {})},
                )
            )
    return results


class _SlowStore:
    """A folder as a store, which counts requests and gives so many bytes in a second."""

    def __init__(self, place: Path) -> None:
        self.requests = 0
        self._url = (place / "store").as_uri()
        self._free_at = 0.0
        self._lock = threading.Lock()

    def task(self, name: str, *, slow: bool = True) -> RemoteTask:
        job = RemoteJob(self._url, Path("bench/app"))
        if slow:
            job.files.fs = _SlowFiles(job.files.fs, self._gave)
        return job.task(name)

    def _gave(self, size: int) -> None:
        with self._lock:
            self.requests += 1
            self._free_at = max(self._free_at, time.perf_counter()) + size / BYTES_PER_SECOND
            wait = self._free_at - time.perf_counter()
        time.sleep(max(0.0, wait))


class _SlowFiles:
    """A file system that tells the size of what it gives, and waits."""

    def __init__(self, files: Any, gave: Callable[[int], None]) -> None:
        self._files = files
        self._gave = gave

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def ls(self, place: str, **options: Any) -> Any:
        self._gave(0)
        return self._files.ls(place, **options)

    def cat_file(self, place: str) -> bytes:
        try:
            data = bytes(self._files.cat_file(place))
        except FileNotFoundError:
            self._gave(0)
            raise
        self._gave(len(data))
        return data

    def get_file(self, place: str, local: str) -> None:
        self._files.get_file(place, local)
        self._gave(Path(local).stat().st_size)


class _Owner:
    """The owner of a task before the takeover."""

    def __init__(self, place: Path, task: RemoteTask) -> None:
        folder = place / "owner" / task.url.rpartition("/")[2]
        fence = task.highest() + 1
        task.claim(fence, "bench", 0)
        database = epochs.claim(folder, fence, Database, task)
        self.state = TaskState(database, crc32m, fence=fence, ship=task)
        self.rows = 0
        self._values = self.state.store(_VALUES)
        self._keeping = CheckpointRetention(folder, fence, Policy(0, 1, 0), task)
        self._keeping.take_over(self.state)

    def fill(self, rows: int) -> None:
        """Commit so many rows before a checkpoint, and a tenth of them after it."""
        for _ in range(0, rows, ROWS_PER_COMMIT):
            self.commit(ROWS_PER_COMMIT)
        upload = self._keeping.make_checkpoint(self.state)
        assert upload is not None
        upload()
        for _ in range(0, rows // 10, ROWS_PER_COMMIT):
            self.commit(ROWS_PER_COMMIT)

    def commit(self, rows: int) -> None:
        for _ in range(rows):
            self._values.put(self.rows, os.urandom(VALUE_BYTES))
            self.rows += 1
        self.state.begin_commit({})
        self.state.write_commit()
        self.state.end_commit(written=True)


def _requests(store: _SlowStore, follower: Follower, owner: _Owner) -> tuple[float, float]:
    """The requests for a task in an hour, without commits and with one in a second."""
    store.requests = 0
    for _ in range(FOLLOWED):
        follower.follow()
    idle, store.requests = store.requests, 0
    for _ in range(FOLLOWED):
        owner.commit(1)
        follower.follow()
    return idle * 3600 / FOLLOWED, store.requests * 3600 / FOLLOWED


def _by_standby(follower: Follower) -> Database:
    folder, task = follower.folder.parent, follower.task
    fence = task.highest() + 1
    task.claim(fence, "bench", 1)
    return epochs.claim(folder, fence, Database, task, follower.follow_to_claim())


def _cold(place: Path, store: _SlowStore, name: str) -> Database:
    task = store.task(name)
    fence = task.highest() + 1
    task.claim(fence, "bench", 2)
    return epochs.claim(place / name, fence, Database, task)


def _counted(database: Database) -> int:
    """The rows of the database, which is closed."""
    state = TaskState(database, crc32m)
    number = state.tables[f"store {_VALUES.name}"]
    rows = sum(1 for _ in database.table(number))
    database.close()
    return rows


def _at_once(function: Callable[[Any], Any], each: Iterable[Any]) -> list[Any]:
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(function, each))
