"""What is on disk of the apps of ``circle``: as of the last commits, or in a savepoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from s4node.events.keys import crc32m
from s4node.net.egress.outbox_rows import channels_of, life_of, sort_rows, weight_of
from s4node.runtime.outputs.channels import parts_of
from s4node.savepoints.folders import FolderSavepoints
from s4node.savepoints.place import opened_task
from s4node.state import epochs
from s4node.state.browse import StateReader
from s4node.state.job import task_of
from s4node.state.rows import OUTBOX
from s4node.state.task_state import TaskState


@dataclass
class Kept:
    """The state of all tasks of ``circle``: the users, how far its inputs are, and how far each
    lane to the other app. Events that are not acknowledged are ``waiting``, by producer; others are
    ``unnumbered``, for the other app has not been seen yet."""

    users: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    drops: dict[int, int] = field(default_factory=dict)
    clicks: dict[tuple[str, int], int] = field(default_factory=dict)
    ends: dict[tuple[str, str], int] = field(default_factory=dict)
    waiting: Counter[str] = field(default_factory=Counter)
    unnumbered: int = 0

    @property
    def sent(self) -> dict[str, tuple[str, int]]:
        """By task, the producer that has sent anything to the other app, and how much."""
        found = Counter[str]()
        for (producer, _), end in self.ends.items():
            found[producer] += end
        return {name.partition("#")[0]: (name, end) for name, end in found.items() if end}

    @property
    def ended(self) -> int:
        """How many tokens have been sent on to the other app, or are about to be."""
        return sum(ended for _, _, ended in self.users.values())


def kept_now(job: Path) -> Kept:
    """As of the last commits."""
    found = Kept()
    for place in sorted((job / "tasks").iterdir()):
        with epochs.copied(place) as database:
            _add(found, task_of(place.name), TaskState(database, crc32m))
    return found


def kept_in(job: Path, name: str) -> Kept:
    """What a savepoint has."""
    found = Kept()
    savepoints = FolderSavepoints(job)
    manifest = savepoints.manifest_of(name)
    with savepoints.opened(manifest) as place:
        for task in manifest.tasks:
            with opened_task(place, task) as state:
                assert state is not None
                _add(found, task, state)
    return found


def _add(found: Kept, task: str, state: TaskState) -> None:
    partition = int(task.removeprefix("Partition "))
    reader = StateReader(state)
    for key, row in reader.instances("Hop") if "Hop" in reader.elements else ():
        found.users[str(key)] = (row["n"], row["sum"], row["ended"])
    found.drops[partition] = state.positions().get(f"drops.drops[{partition}]", 0)
    for (stream, producer), kept in state.producers().items():
        if stream == "clicks":
            found.clicks[producer, partition] = kept.number
    for channel, rows in channels_of(state.rows(OUTBOX)).items():
        if not parts_of(channel)[1]:
            continue
        saved = sort_rows(channel, rows)
        producer = f"~default/circle/{task}#{life_of(rows)}"
        for to, end in saved.next_numbers.items():
            found.ends[producer, f"Partition {to}"] = end
        waits = sum(kept.end - kept.first for frames in saved.frames.values() for kept in frames)
        found.waiting[producer] += waits
        found.unnumbered += weight_of(rows)[0] - waits


@dataclass
class Arrivals:
    """What has arrived: how often each, and the next number of each lane."""

    names: Counter[str] = field(default_factory=Counter)
    lanes: dict[tuple[str, str], int] = field(default_factory=dict)

    def lacks(self, ends: Mapping[tuple[str, str], int], producers: Collection[str]) -> int:
        """How many events of these producers' lanes up to these numbers have not arrived."""
        return sum(
            max(0, end - self.lanes.get((producer, to), 0))
            for (producer, to), end in ends.items()
            if producer in producers
        )


def arrivals(job: Path) -> Arrivals:
    """As of the last commits of ``ends``."""
    found = Arrivals()
    for place in sorted((job / "tasks").iterdir()):
        with epochs.copied(place) as database:
            state = TaskState(database, crc32m)
            reader = StateReader(state)
            for key, row in reader.instances("Arrived") if "Arrived" in reader.elements else ():
                found.names[str(key)] = row["n"]
            for (_, producer), kept in state.producers().items():
                found.lanes[producer, task_of(place.name)] = kept.number
    return found
