"""Keyed counts from the log that commit every second: the cost of their state, and restarts.

commit: the cost of keeping state, compared with the same count that saves only its offsets. One log
is filled for both; they read it in turns, each from the beginning, in its own process. Rates begin
when every key exists. ``pause_ms`` is the longest time between two turns of the loop that processed
events; ``bytes_an_event`` is what commits wrote, and ``disk_bytes_an_event`` what the system wrote
to the disk for it, compactions included.

recovery: the time until a restarted container is as fast as it was before. A keyed count reads half
of a log and stops in order; then the page cache of its files is dropped, and it resumes with the
other half. ``seconds`` is the time from the start of the process until it has processed events at
0.9 of its former rate for a fifth of a second; ``ratio`` is relative to 1,000 keys of state.
``checked`` also says that nothing was replayed.

A log first gets an event for each key, so that all exist, and then events for keys drawn by a law.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import trio

from benchmarks import workload
from benchmarks.runner import (
    Result,
    Role,
    Run,
    answer,
    container_of,
    in_turn,
    listen,
    measured,
    middle,
    rate_of,
    running,
    usage,
)
from s4node.app.app import App
from s4node.events.keys import crc32m
from s4node.net.client.client import Client
from s4node.runtime.container.container import Container
from s4node.runtime.container.durable_parts import DurableParts
from s4node.runtime.task.task import Task
from s4node.state import epochs
from s4node.state.browse import StateReader
from s4node.state.job import folder_of
from s4node.state.task_state import TaskState

CHUNK = 2048
NAME = "counting"
PARTITIONS = 4
KINDS = (("zipf", 10_000, 20_000_000), ("uniform", 1_000_000, 6_000_000))
QUICK = (("zipf", 1_000, 60_000), ("uniform", 10_000, 60_000))

RESTARTS = (("zipf", 1_000), ("zipf", 1_000_000), ("uniform", 1_000_000))
QUICK_RESTARTS = (("zipf", 1_000), ("uniform", 10_000))
RESTART_EVENTS, QUICK_RESTART_EVENTS = 16_000_000, 100_000
WINDOW_SECONDS = 0.2
PART = 0.9

_SAMPLE_SECONDS = 0.005
Samples = Sequence[tuple[float, int]]


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for 10,000 keys by Zipf's law, and one for 1,000,000 evenly drawn keys."""
    return [
        _row(law, keys, events // CHUNK * CHUNK, 1 if quick else 3, say)
        for law, keys, events in (QUICK if quick else KINDS)
    ]


def _row(law: str, keys: int, events: int, runs: int, say: Callable[[str], None]) -> Result:
    settings = {"task.commit.ms": "1000" if events > 1_000_000 else "50"}
    with (
        tempfile.TemporaryDirectory(prefix="s4-bench-") as folder,
        Role("log.hosting", folder=folder, partitions=PARTITIONS) as node,
    ):
        address = node.hear()["address"]
        say(f"{keys:,} keys, drawn {law}: fill the log")
        filled = measured("commit.filling", address=address, keys=keys, law=law, events=events)

        def counted(state: bool) -> Run:
            with tempfile.TemporaryDirectory(prefix="state-", dir=folder) as place:
                found = measured(
                    "commit.counting",
                    address=address,
                    folder=place,
                    state=state,
                    events=filled["sent"],
                    skip=keys,
                    settings=settings,
                )
            right = (found["digest"], found["processed"]) == (filled["digest"], filled["sent"])
            return {**found, "checked": right}

        cases = {"without state": partial(counted, False), "with state": partial(counted, True)}
        without, found = in_turn(cases, runs, say).values()
    result = Result.of("commit", found, rate_of(without))
    result.checked = all(one["checked"] for one in (*without, *found))
    result.notes = {
        "law": law,
        "keys": keys,
        "commits": min(one["commits"] for one in found),
        "pause_ms": max(one["pause_ms"] for one in found),
        "limit_pause_ms": max(one["pause_ms"] for one in without),
        "bytes_an_event": middle([o["committed_bytes"] / o["events"] for o in found]),
        "disk_bytes_an_event": middle([o["disk_bytes"] / o["events"] for o in found]),
    }
    return result


def run_recovery(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for 1,000 keys, and two for 1,000,000: drawn by Zipf's law, and evenly."""
    results: list[Result] = []
    for law, keys in QUICK_RESTARTS if quick else RESTARTS:
        events = (QUICK_RESTART_EVENTS if quick else RESTART_EVENTS) // CHUNK * CHUNK
        say(f"{keys:,} keys, drawn {law}: fill the log, count one half, and start again")
        window = WINDOW_SECONDS / (100 if quick else 1)
        found = [_recovered(law, keys, events, window) for _ in range(1 if quick else 3)]
        seconds = middle([one["seconds"] for one in found])
        base = results[0].seconds if results else seconds
        assert base is not None
        results.append(
            Result(
                "recovery",
                events=sum(one["events"] for one in found),
                seconds=seconds,
                events_per_s=middle([one["after"] for one in found]),
                limit_events_per_s=middle([one["before"] for one in found]),
                ratio=seconds / base,
                rss_mb=max(one["rss_mb"] for one in found),
                checked=all(one["checked"] for one in found),
                notes={
                    "law": law,
                    "keys": keys,
                    "reached": all(one["reached"] for one in found),
                    "first_event_s": middle([one["first"] for one in found]),
                },
            )
        )
    return results


def _recovered(law: str, keys: int, events: int, window: float) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="s4-bench-") as folder,
        Role("log.hosting", folder=folder, partitions=PARTITIONS) as node,
    ):
        state = Path(folder) / "state"
        task = {
            "address": node.hear()["address"],
            "folder": str(state),
            "state": True,
            "skip": 0,
            "settings": {"task.commit.ms": "1000"},
        }
        to = {"address": task["address"], "keys": keys, "law": law, "events": events}
        sent = measured("commit.filling", **to)["sent"]
        before = measured("commit.counting", **task, events=keys + events // 2)
        forget_pages(state)
        began = time.monotonic()
        after = measured("commit.counting", **task, events=sent - before["processed"])
        counted = saved_counts(state)
    former = _rate(before["samples"][len(before["samples"]) * 2 // 3 - 1 :])
    reached, rate = _reached(after["samples"], former * PART, window)
    return {
        "seconds": reached - began,
        "reached": rate >= former * PART,
        "first": after["samples"][0][0] - began,
        "before": former,
        "after": rate,
        "events": after["processed"],
        "rss_mb": after["rss_mb"],
        "checked": before["processed"] + after["processed"] == sent and counted == (keys, sent),
    }


def _rate(samples: Samples) -> float:
    (began, first), (ended, last) = samples[0], samples[-1]
    return (last - first) / (ended - began)


def _reached(samples: Samples, wanted: float, window: float) -> tuple[float, float]:
    """When a window first has the wanted rate, and its rate; else the end of the last window."""
    start = 0
    for end in range(1, len(samples)):
        while samples[end][0] - samples[start + 1][0] >= window:
            start += 1
        if samples[end][0] - samples[start][0] >= window:
            rate = _rate(samples[start : end + 1])
            if rate >= wanted:
                return samples[end][0], rate
    return samples[-1][0], _rate(samples[start:])


# -- the roles, and what reads their state ---------------------------------------------------------


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


def filling(task: dict[str, Any]) -> None:
    """Append all events; report how many."""

    async def main() -> None:
        sent = 0
        async with Client(task["address"]) as client:
            stream = await client.stream("readings")
            for events in filled(task["keys"], task["law"], task["events"]):
                await stream.send_many(events)
                sent += len(events)
            await stream.flush()
        answer(sent=sent, digest=expected(task["keys"], task["law"], task["events"]))

    trio.run(main)


def counting(task: dict[str, Any]) -> None:
    """Resume the count until ``events`` events are counted in this process, then stop in order.

    Without ``state`` only offsets are saved. Pauses count once ``skip`` events are counted. If it
    is to ``tell`` it says that they are, waits for a message before it stops, and adds the pauses.
    """
    if not task["state"]:
        Task.attach_state = lambda *_: None  # type: ignore[method-assign]
    app = App(NAME)
    app.create_input_stream("readings", app.create_pe(workload.Tally), key="key", system="log")
    values = {
        "s4.state.folder": task["folder"],
        "systems.log.type": "log",
        "systems.log.address": task["address"],
        "systems.log.samza.offset.default": "oldest",
        **task["settings"],
    }
    trio.run(_count, container_of(app, values), task)


async def _count(container: Container, task: dict[str, Any]) -> None:
    samples: list[tuple[float, int]] = []
    async with running(container):
        pauses = Pauses(container, task["skip"])
        while container.processed < max(1, task["skip"]):  # noqa: ASYNC110 - it measures
            await trio.sleep(0.002)
        before, written, commits = usage()["cpu_s"], _written(), _committed(container)
        began, first = time.monotonic(), container.processed
        if task.get("tell"):
            answer(counting=True)
        samples.append((began, first))
        while container.processed < task["events"]:
            await trio.sleep(_SAMPLE_SECONDS)
            samples.append((time.monotonic(), container.processed))
        ended, last = samples[-1]
        if task.get("tell"):
            answer(counting=False)
            await trio.to_thread.run_sync(listen)
        cpu_s, disk = usage()["cpu_s"] - before, _written() - written
        after = _committed(container)
        tallies = workload.tallies(container)
    answer(
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
        assert isinstance(container.replay, DurableParts)
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
    assert isinstance(container.replay, DurableParts)
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
