"""repartition: another number of partitions, beside plain reading and writing of as many rows.

A stopped job has a row of a keyed count for each key. It gets 4, then 6, then 3 partitions; for
each change bare rocksdict reads the same databases and writes as many new ones, in batches of the
same size. ``checked`` says that every key is in the task that has it now, with its count.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec
from rocksdict import AccessType, Options, Rdict, WriteBatch

from benchmarks.runner import Result, middle
from benchmarks.workload import key_of
from s4node.config import settings
from s4node.config.config import Config
from s4node.deploy.repartition import ROWS, Repartition
from s4node.events.keys import KEY_GROUPS, crc32m
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.task_claims import TaskClaims, now_ms
from s4node.runtime.inputs.grouper import BY_PARTITION
from s4node.state import epochs, key_encoding
from s4node.state.database import Database
from s4node.state.job import task_folder
from s4node.state.rows import prefix
from s4node.state.task_state import TaskState

KEYS, QUICK_KEYS = 1_000_000, 20_000
NUMBERS = (4, 6, 3)
_TABLE = "pe Tally"
_encode = msgspec.msgpack.Encoder().encode


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each change of the number."""
    keys = QUICK_KEYS if quick else KEYS
    with tempfile.TemporaryDirectory(prefix="s4-bench-") as folder:
        job = Path(folder) / "job"
        say(f"write {keys:,} keys in {NUMBERS[0]} partitions")
        _fill(job, keys)
        return [
            _change(job, before, after, keys, 1 if quick else 3, say)
            for before, after in pairwise(NUMBERS)
        ]


def _change(
    job: Path, before: int, after: int, keys: int, runs: int, say: Callable[[str], None]
) -> Result:
    plain = []
    for number in range(runs):
        say(f"{before} to {after}: copy the rows, {number + 1} of {runs}")
        plain.append(_copy(job, before, after))
    say(f"{before} to {after}: repartition")
    store = TaskClaims(job)
    guard = store.job()
    store.close()
    assert guard is not None
    began = time.perf_counter()
    moved = Repartition("bench", job, Config.from_values({}), guard, after).run()
    seconds, limit = time.perf_counter() - began, middle(plain)
    return Result(
        "repartition",
        events=moved,
        seconds=seconds,
        events_per_s=moved / seconds,
        limit_events_per_s=keys / limit,
        ratio=limit / seconds,
        checked=moved == keys and _is_exact(job, after, keys),
        notes={"keys": keys, "from": before, "to": after, "plain_s": limit},
    )


def _places(job: Path, partitions: int) -> list[Path]:
    return [task_folder(job, f"Partition {each}") for each in range(partitions)]


def _fill(job: Path, keys: int) -> None:
    """Write a stopped job that has counted each key."""
    partitions = NUMBERS[0]
    rows: list[list[tuple[bytes, bytes]]] = [[] for _ in range(partitions)]
    states = [
        TaskState(epochs.claim(place, 1, Database), crc32m, fence=1)
        for place in _places(job, partitions)
    ]
    (table,) = {state.table(_TABLE) for state in states}
    for number in range(keys):
        key = key_of(number, keys)
        group = crc32m(key) % KEY_GROUPS
        row = prefix(group, table) + key_encoding.encode(key)
        rows[group * partitions // KEY_GROUPS].append((row, _encode({"count": number})))
    for state, own in zip(states, rows, strict=True):
        own.sort()
        for at in range(0, len(own), ROWS):
            some = own[at : at + ROWS]
            state.database.fill([row for row, _ in some], [value for _, value in some])
        state.begin_commit({})
        state.write_commit()
        state.end_commit(written=True)
        state.database.write_tables()
        state.close()
    guard = JobGuard(partitions, BY_PARTITION, settings.HASHER.default)
    store = TaskClaims(job)
    store.admit(guard)
    store.set_tasks(guard, {f"Partition {p}": (1, 1) for p in range(partitions)}, now_ms())
    store.close()


def _copy(job: Path, before: int, after: int) -> float:
    """The seconds that reading all rows, and writing them to new databases, takes."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    with tempfile.TemporaryDirectory(prefix="copy-", dir=job) as folder:
        began = time.perf_counter()
        new = [Rdict(f"{folder}/{number}", options) for number in range(after)]
        for number, place in enumerate(_places(job, before)):
            source = Rdict(
                str(place / str(epochs.highest(place))), options, access_type=AccessType.read_only()
            )
            to, batch = new[number * after // before], WriteBatch(raw_mode=True)
            for count, (row, value) in enumerate(source.items(), 1):
                batch.put(row, value)
                if count % ROWS == 0:
                    to.write(batch)
                    batch = WriteBatch(raw_mode=True)
            to.write(batch)
            source.close()
        for each in new:
            each.flush()
            each.close()
        return time.perf_counter() - began


def _is_exact(job: Path, partitions: int, keys: int) -> bool:
    """Return True if every task has its keys, and all of them have their counts."""
    total = found = 0
    for number, place in enumerate(_places(job, partitions)):
        with epochs.copied(place) as database:
            first, end = prefix(0, 0), prefix(KEY_GROUPS, 0)
            for row, value in database.scan(first, end):
                group = int.from_bytes(row[:2], "big")
                if group * partitions // KEY_GROUPS != number:
                    return False
                total += msgspec.msgpack.decode(value)["count"]
                found += 1
    return (found, total) == (keys, keys * (keys - 1) // 2)
