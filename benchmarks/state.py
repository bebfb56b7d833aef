"""state: stores compared with bare rocksdict, and a keyed count of more keys than memory holds.

Stores: the same rows are written and read by a task's store, with a commit every 10,000, and by
rocksdict with the same encoding: a row in each call or, for ``get-many``, 1,000 rows.

Keys: an event for each of 10,000,000 keys, so that all have state, and then events for keys without
a pattern. The cache keeps few enough instances for 512 MB, which is checked against the process's
peak. ``p99_ms`` is of the pauses between two turns of the loop that processed events.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import trio
from rocksdict import Options, Rdict

from benchmarks import workload
from benchmarks.commit import Pauses
from benchmarks.runner import Result, answer, container_of, measured, middle, running, usage
from benchmarks.workload import key_of
from s4node.app.app import App
from s4node.events.keys import KEY_GROUPS, crc32m
from s4node.state import epochs, key_encoding
from s4node.state.database import Database
from s4node.state.job import folder_of
from s4node.state.rows import prefix
from s4node.state.task_state import TaskState
from s4node.store_spec import StoreSpec

ROWS, QUICK_ROWS = 300_000, 5_000
KEYS, QUICK_KEYS = 10_000_000, 20_000
DRAWN, QUICK_DRAWN = 2_000_000, 20_000
CACHED, QUICK_CACHED = 300_000, 2_000
MEMORY_MB = 512
_COMMIT = 10_000
_MANY = 1_000
_SAMPLED = 1_000
NAME = "state"


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each kind of call, and one for the count."""
    rows, runs = (QUICK_ROWS, 1) if quick else (ROWS, 3)
    say(f"{rows:,} rows in a store, and in bare rocksdict")
    found = [
        measured("state.stored", rows=rows, bare_first=bool(number % 2)) for number in range(runs)
    ]
    results = [_calls(name, rows, found) for name in ("put", "get", "get-many")]
    keys, drawn, cached = (
        (QUICK_KEYS, QUICK_DRAWN, QUICK_CACHED) if quick else (KEYS, DRAWN, CACHED)
    )
    say(f"{keys:,} keys, {cached:,} of them in memory")
    return [*results, _many_keys(keys, drawn, cached)]


def _calls(name: str, rows: int, found: list[dict[str, Any]]) -> Result:
    mine, bare = (middle([rows / one[side][name] for one in found]) for side in ("store", "bare"))
    return Result(
        NAME,
        events=rows * len(found),
        seconds=sum(one["store"][name] for one in found),
        events_per_s=mine,
        limit_events_per_s=bare,
        ratio=mine / bare,
        checked=all(one["checked"] for one in found),
        notes={"call": name},
    )


def _many_keys(keys: int, drawn: int, cached: int) -> Result:
    with tempfile.TemporaryDirectory(prefix="s4-bench-") as folder:
        task = {"keys": keys, "drawn": drawn, "cached": cached}
        found = measured("state.many_keys", folder=folder, **task)
        right = _sampled(Path(folder), keys, drawn)
    return Result(
        NAME,
        events=drawn,
        seconds=found["seconds"],
        events_per_s=drawn / found["seconds"],
        cpu_s_per_million=found["cpu_s"] / drawn * 1e6,
        p50_ms=found["p50_ms"],
        p99_ms=found["p99_ms"],
        rss_mb=found["rss_mb"],
        checked=right and found["processed"] == keys + drawn and found["rss_mb"] <= MEMORY_MB,
        notes={
            "keys": keys,
            "cached": cached,
            "new_keys_per_s": keys / found["filling_seconds"],
            "longest_pause_ms": found["longest_ms"],
            "disk_mb": found["disk_mb"],
        },
    )


def _sampled(folder: Path, keys: int, drawn: int) -> bool:
    """Return True if a sample of keys was counted right."""
    wanted = {key_of(offset, keys) for offset in range(min(_SAMPLED, keys))}
    truth = Counter(wanted)
    truth.update(
        key for offset in range(keys, keys + drawn) if (key := key_of(offset, keys)) in wanted
    )
    (task,) = (folder_of(str(folder), "default", NAME) / "tasks").iterdir()
    with epochs.copied(task) as database:
        table = TaskState(database, crc32m).table("pe Tally")
        found = database.get_many(
            [prefix(crc32m(key) % KEY_GROUPS, table) + key_encoding.encode(key) for key in truth]
        )
    counts = [None if row is None else msgspec.msgpack.decode(row)[1] for row in found]
    return counts == list(truth.values())


# --- the processes -------------------------------------------------------------------------------


def stored(task: dict[str, Any]) -> None:
    """Report the seconds of the same calls on a store and on bare rocksdict."""
    keys = [f"key-{number:08d}" for number in range(task["rows"])]
    random.Random(5).shuffle(keys)
    sides: dict[str, Callable[[Path], _Side]] = {"bare": _Bare, "store": _Store}
    found: dict[str, dict[str, float]] = {}
    right = True
    for name in sides if task["bare_first"] else reversed(sides):
        with tempfile.TemporaryDirectory(prefix="s4-bench-") as folder:
            side = sides[name](Path(folder))
            found[name] = {}
            for call, work in side.calls(keys):
                began = time.perf_counter()
                total = work()
                found[name][call] = time.perf_counter() - began
                right = right and total in (None, sum(range(len(keys))))
            side.close()
    answer(**found, checked=right)


class _Side:
    """A store that puts a number for each key, and gets the numbers again."""

    def put_all(self, keys: list[str]) -> None:
        """Put one row in each call."""
        raise NotImplementedError

    def get_all(self, keys: list[str]) -> int:
        """Get one row in each call; return the sum."""
        raise NotImplementedError

    def get_many(self, keys: list[str]) -> int:
        """Get many rows in each call; return the sum."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def calls(self, keys: list[str]) -> Iterator[tuple[str, Callable[[], int | None]]]:
        """The names of the measured calls, and the calls."""
        others = random.Random(6).sample(keys, len(keys))
        yield "put", lambda: self.put_all(keys)
        yield "get", lambda: self.get_all(others)
        yield "get-many", lambda: self.get_many(others)


class _Bare(_Side):
    def __init__(self, folder: Path) -> None:
        self._db: Any = Rdict(str(folder / "bare"), Options(raw_mode=True))
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(int).decode

    def put_all(self, keys: list[str]) -> None:
        db, encode = self._db, self._encode
        for number, key in enumerate(keys):
            db[key.encode()] = encode(number)

    def get_all(self, keys: list[str]) -> int:
        db, decode, total = self._db, self._decode, 0
        for key in keys:
            total += decode(db[key.encode()])
        return total

    def get_many(self, keys: list[str]) -> int:
        total = 0
        for at in range(0, len(keys), _MANY):
            found = self._db.get([key.encode() for key in keys[at : at + _MANY]])
            total += sum(map(self._decode, found))
        return total

    def close(self) -> None:
        self._db.close()


class _Store(_Side):
    def __init__(self, folder: Path) -> None:
        self._state = TaskState(Database(folder / "store"), crc32m)
        self._store = self._state.store(StoreSpec("numbers", str, int))

    def put_all(self, keys: list[str]) -> None:
        put = self._store.put
        for at in range(0, len(keys), _COMMIT):
            for number, key in enumerate(keys[at : at + _COMMIT], at):
                put(key, number)
            self._state.begin_commit({"log.numbers[0]": at})
            self._state.write_commit()
            self._state.end_commit(written=True)

    def get_all(self, keys: list[str]) -> int:
        get, total = self._store.get, 0
        for key in keys:
            total += get(key, 0) or 0
        return total

    def get_many(self, keys: list[str]) -> int:
        total = 0
        for at in range(0, len(keys), _MANY):
            total += sum(self._store.get_many(keys[at : at + _MANY]).values())
        return total

    def close(self) -> None:
        self._state.close()


def many_keys(task: dict[str, Any]) -> None:
    """Count all keys once, and then drawn ones."""
    keys, drawn = task["keys"], task["drawn"]

    async def main() -> None:
        app = App(NAME)
        pe = app.create_pe(workload.Tally)
        pe.set_pe_cache(max_size=task["cached"])
        app.create_input_stream("readings", pe, key="key", system="generated")
        values = {
            "s4.state.folder": task["folder"],
            "systems.generated.type": "benchmarks.workload:Generated",
            "systems.generated.address": f"{keys}/{drawn}",
            "systems.generated.samza.offset.default": "oldest",
            "task.commit.ms": "1000",
        }
        began = time.perf_counter()
        async with running(container_of(app, values)) as container:
            pauses = Pauses(container, keys)
            while container.processed < keys:  # noqa: ASYNC110 - it measures
                await trio.sleep(0.01)
            filled, before = time.perf_counter(), usage()["cpu_s"]
            while container.processed < keys + drawn:  # noqa: ASYNC110 - it measures
                await trio.sleep(0.01)
            ended = time.perf_counter()
            cpu_s = usage()["cpu_s"] - before
        found = sorted(each.seconds for each in pauses.all)
        answer(
            processed=container.processed,
            seconds=ended - filled,
            filling_seconds=filled - began,
            p50_ms=found[len(found) // 2] * 1000,
            p99_ms=found[int(len(found) * 0.99)] * 1000,
            longest_ms=found[-1] * 1000,
            disk_mb=_size(Path(task["folder"])) / 1e6,
            **{**usage(), "cpu_s": cpu_s},
        )

    trio.run(main)


def _size(folder: Path) -> int:
    """Bytes on disk; a file with several names counts once."""
    stats = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({one.st_ino: one.st_blocks * 512 for one in stats}.values())
