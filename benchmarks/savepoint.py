"""savepoint: how long a savepoint takes, and the pauses of a keyed count while it is taken.

A keyed count from the log commits every second. Meanwhile this process takes savepoints of it, one
after the other, as ``s4 savepoint take`` does. ``p99_ms`` is of the pauses between two turns of the
loop that processed events, of those that overlap a savepoint; it is compared with the pauses during
ordinary commits, in the same run. ``savepoint_s`` is the time from the request to the end of the
command. A job of which a savepoint was never asked notices the first one up to a second later; the
job here knows that it will be asked.
``checked`` also says that the last savepoint has counted exactly the events up to its offsets.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from benchmarks.commit import CHUNK, NAME, PARTITIONS, Pause
from benchmarks.runner import Result, Role, measured, middle
from s4node.cluster.coordination.state_coordination import StateCoordination
from s4node.config.config import Config
from s4node.deploy.savepoint import SavepointOf
from s4node.offsets.task_claims import TaskClaims
from s4node.savepoints.folders import FolderSavepoints
from s4node.savepoints.manifest import Manifest
from s4node.savepoints.place import opened_task
from s4node.state.browse import StateReader
from s4node.state.job import folder_of

KINDS = (("zipf", 10_000, 20_000_000), ("uniform", 1_000_000, 6_000_000))
QUICK = (("zipf", 1_000, 400_000), ("uniform", 10_000, 400_000))
PAUSE_SECONDS = 0.5
"""The pause between two savepoints, in which ordinary commits are seen."""


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for 10,000 keys by Zipf's law, and one for 1,000,000 evenly drawn keys."""
    return [
        _row(law, keys, events // CHUNK * CHUNK, say, quick=quick)
        for law, keys, events in (QUICK if quick else KINDS)
    ]


def _row(law: str, keys: int, events: int, say: Callable[[str], None], *, quick: bool) -> Result:
    with (
        tempfile.TemporaryDirectory(prefix="s4-bench-") as folder,
        Role("log.hosting", folder=folder, partitions=PARTITIONS) as node,
    ):
        address = node.hear()["address"]
        say(f"{keys:,} keys, drawn {law}: fill the log")
        filled = measured("commit.filling", address=address, keys=keys, law=law, events=events)
        say("take savepoints amid the count")
        job = folder_of(str(Path(folder) / "state"), "default", NAME)
        job.mkdir(parents=True)
        trio.run(_begin_coordination, job)
        with Role(
            "commit.counting",
            address=address,
            folder=str(Path(folder) / "state"),
            state=True,
            events=filled["sent"],
            skip=keys,
            tell=True,
            settings={"task.commit.ms": "20" if quick else "1000"},
        ) as role:
            role.hear()
            savepoints = _Savepoints(job)
            savepoints.begin_taking()
            role.hear()
            savepoints.stop_taking()
            role.tell({})
            found = role.hear()
        exact = _is_exact(savepoints.job, savepoints.taken[-1][2])
    return _result(law, keys, found, savepoints, found["digest"] == filled["digest"] and exact)


def _result(
    law: str, keys: int, found: dict[str, Any], savepoints: _Savepoints, checked: bool
) -> Result:
    pauses = [Pause(*each) for each in found["pauses"]]
    meanwhile, cuts, ordinary = [], [], []
    for each in pauses:
        until = each.began + each.seconds
        if any(each.began < end and until > at for at, end, _ in savepoints.taken):
            meanwhile.append(each.seconds * 1000)
            if each.commits:
                cuts.append(each.seconds * 1000)
        elif each.commits:
            ordinary.append(each.seconds * 1000)
    seconds = [end - at for at, end, _ in savepoints.taken]
    p99, limit = _p99(meanwhile), _p99(ordinary)
    return Result(
        "savepoint",
        events=found["events"],
        seconds=found["seconds"],
        events_per_s=found["events"] / found["seconds"],
        ratio=p99 / limit if limit else None,
        p50_ms=middle(meanwhile or [0.0]),
        p99_ms=p99,
        rss_mb=found["rss_mb"],
        checked=checked,
        notes={
            "law": law,
            "keys": keys,
            "savepoints": len(seconds),
            "savepoint_s": middle(seconds),
            "commit_p99_ms": limit,
            "cut_p99_ms": _p99(cuts),
            "longest_ms": max(meanwhile, default=0.0),
            "commit_longest_ms": max(ordinary, default=0.0),
            "pauses": len(meanwhile),
            "commit_pauses": len(ordinary),
            "mb": savepoints.taken[-1][2].bytes / 1e6,
        },
    )


def _p99(found: list[float]) -> float:
    return sorted(found)[int(len(found) * 0.99)] if found else 0.0


async def _begin_coordination(job: Path) -> None:
    async with StateCoordination(job, Config.from_values({})).registry("the benchmark savepoint"):
        pass


class _Savepoints:
    """Takes savepoints of a job that runs; ``taken`` has the beginning and end of each."""

    def __init__(self, job: Path) -> None:
        self.job = job
        self.taken: list[tuple[float, float, Manifest]] = []
        store = TaskClaims(job)
        try:
            guard, tasks = store.job(), sorted(store.tasks())
        finally:
            store.close()
        assert guard is not None
        self._of = SavepointOf(NAME, job, Config.from_values({}), guard, tasks)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._take_all)

    def begin_taking(self) -> None:
        self._thread.start()

    def stop_taking(self) -> None:
        """Take no more, but for one at least."""
        self._ended.set()
        self._thread.join()

    def _take_all(self) -> None:
        while not (self.taken and self._ended.is_set()):
            began = time.perf_counter()
            manifest = trio.run(self._of.take, f"number-{len(self.taken)}")
            self.taken.append((began, time.perf_counter(), manifest))
            self._ended.wait(PAUSE_SECONDS)


def _is_exact(job: Path, manifest: Manifest) -> bool:
    """Return True if every task has counted as many events as it has read."""
    with FolderSavepoints(job).opened(manifest) as place:
        for task in manifest.tasks:
            with opened_task(place, task) as state:
                assert state is not None
                counted = sum(row["count"] for _, row in StateReader(state).instances("Tally"))
                if counted != sum(state.positions().values()):
                    return False
    return True
