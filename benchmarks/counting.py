"""The roles of the benchmarks of state: one fills a log with keys, one counts them.

A log first gets an event for each key, so that all exist, and then events for keys drawn by a law.
The counting container reports its progress over time, and the longest pause between two turns of
its loop that processed events.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import trio

from benchmarks import workload
from benchmarks.process import usage
from s4node.app.app import App
from s4node.config.config import Config
from s4node.events.keys import crc32m
from s4node.net.client.client import Client
from s4node.process.serve import tune_python
from s4node.runtime.commit.committer import folder_of
from s4node.runtime.container.container import Container
from s4node.runtime.task.task import Task
from s4node.state import epochs
from s4node.state.browse import StateReader
from s4node.state.task_state import TaskState

CHUNK = 2048
SAMPLE_SECONDS = 0.005
NAME = "counting"


def filled(keys: int, law: str, events: int) -> Iterator[list[workload.Reading]]:
    """One event for each key, then ``events`` (a multiple of CHUNK) by the law."""
    known = _keys(keys)
    yield from workload.once(known, CHUNK)
    source = workload.batches(workload.drawn(known, law), CHUNK)
    for _ in range(events // CHUNK):
        yield next(source)


@cache
def _keys(keys: int) -> list[str]:
    return list(workload.uniform_keys(keys))


def expected(keys: int, law: str, events: int) -> str:
    """The digest of the final counts."""
    drawn = workload.truth(workload.drawn(_keys(keys), law), events)
    found = ((key, *drawn.get(key, (0, 0))) for key in _keys(keys))
    return workload.digest((key, count + 1, total + 1) for key, count, total in found)


def filling(task: dict[str, Any], say: Callable[..., None]) -> None:
    """Append all events; report how many."""

    async def main() -> None:
        sent = 0
        async with Client(task["address"]) as client:
            stream = await client.stream("readings")
            for events in filled(task["keys"], task["law"], task["events"]):
                await stream.send_many(events)
                sent += len(events)
            await stream.flush()
        say(sent=sent, digest=expected(task["keys"], task["law"], task["events"]))

    trio.run(main)


def counting(task: dict[str, Any], say: Callable[..., None], listen: Callable[[], object]) -> None:
    """Resume the count until ``events`` events are counted in this process, then stop in order.

    Without ``state`` only offsets are saved. Pauses count once ``skip`` events are counted. If it
    is to ``tell`` it says that they are, waits for a message before it stops, and adds the pauses.
    """
    if not task["state"]:
        Task.attach_state = lambda *_: None  # type: ignore[method-assign]
    app = App(NAME)
    app.create_input_stream("readings", app.create_pe(workload.Tally), key="key", system="log")
    settings = {
        "s4.listener.address": "tcp://127.0.0.1:0",
        "s4.state.folder": task["folder"],
        "systems.log.type": "log",
        "systems.log.address": task["address"],
        "systems.log.samza.offset.default": "oldest",
        **task["settings"],
    }
    container = Container(app, Config.from_values(settings))
    trio.run(partial(_count, container, task, say, listen))


async def _count(
    container: Container,
    task: dict[str, Any],
    say: Callable[..., None],
    listen: Callable[[], object],
) -> None:
    samples: list[tuple[float, int]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(container.run)
        await container.ready.wait()
        tune_python(container.config)
        pauses = Pauses(container, task["skip"])
        while container.processed < max(1, task["skip"]):  # noqa: ASYNC110 - it measures
            await trio.sleep(0.002)
        before, written, commits = usage()["cpu_s"], _written(), _committed(container)
        began, first = time.monotonic(), container.processed
        if task.get("tell"):
            say(counting=True)
        samples.append((began, first))
        while container.processed < task["events"]:
            await trio.sleep(SAMPLE_SECONDS)
            samples.append((time.monotonic(), container.processed))
        ended, last = samples[-1]
        if task.get("tell"):
            say(counting=False)
            await trio.to_thread.run_sync(listen)
        cpu_s, disk = usage()["cpu_s"] - before, _written() - written
        after = _committed(container)
        tallies = [
            (str(pe.key), pe.count, pe.total)  # type: ignore[attr-defined]
            for one in container.tasks.values()
            for pe in one.instances["Tally"].values()
        ]
        container.stop()
    say(
        events=last - first,
        seconds=ended - began,
        processed=container.processed,
        samples=samples,
        pause_ms=pauses.longest * 1000,
        commits=after[0] - commits[0],
        committed_bytes=after[1] - commits[1],
        disk_bytes=disk,
        digest=workload.digest(tallies),
        **{**usage(), "cpu_s": cpu_s},
        **({"pauses": pauses.all} if task.get("tell") else {}),
    )


class Pause(NamedTuple):
    """The time between two turns that processed events, in seconds; ``began`` is by
    :func:`time.perf_counter`. ``commits`` says whether a commit ran meanwhile."""

    seconds: float
    began: float
    commits: bool


class Pauses:
    """The times between two turns of a container's loop that processed events."""

    def __init__(self, container: Container, skip: int = 0) -> None:
        assert container.replay is not None
        self.all: list[Pause] = []
        self._committer = container.replay.committer
        self._commits = 0
        self._writing = False
        self._container = container
        self._skip = skip
        self._known = 0
        self._at = 0.0
        self._after_turn = container.parts.loop._after_turn
        container.parts.loop._after_turn = self._watch

    @property
    def longest(self) -> float:
        """In seconds."""
        return max((each.seconds for each in self.all), default=0.0)

    def _watch(self) -> float | None:
        done = self._container.processed
        if done > self._known:
            now = time.perf_counter()
            writing, commits = self._committer.writing, self._committer.commits
            if self._known > self._skip:
                ran = writing or self._writing or commits != self._commits
                self.all.append(Pause(now - self._at, self._at, ran))
            self._known, self._at = done, now
            self._writing, self._commits = writing, commits
        return self._after_turn()


def _committed(container: Container) -> tuple[int, int]:
    """Commits, and the bytes in them."""
    assert container.replay is not None
    committer = container.replay.committer
    return committer.commits, sum(k.state.bytes_written for k in committer._tasks.values())


def _written() -> int:
    """The bytes that this process has written to disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


def saved_counts(folder: Path) -> tuple[int, int]:
    """The keys with saved state, and the number of counted events, over all tasks."""
    keys = events = 0
    for task in (folder_of(str(folder), "default", NAME) / "tasks").iterdir():
        with epochs.copied(task) as database:
            for _, saved in StateReader(TaskState(database, crc32m)).instances("Tally"):
                keys += 1
                events += saved["count"]
    return keys, events


def forget_pages(folder: Path) -> None:
    """Drop the files of a folder from the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
