"""The state of a task: one commit is stores, instances and positions together. Real databases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from s4node.events.keys import Key, crc32m
from s4node.state.browse import StateReader
from s4node.state.database import Database
from s4node.state.task_state import TaskState
from s4node.store_spec import StoreSpec


def test_a_commit_is_stores_instances_and_positions_together(tmp_path: Path) -> None:
    first = Life(tmp_path / "t")
    first.count("joe", "ann", "joe")
    first.store.put("last", 3)
    first.commit({"log.clicks[0]": 3})
    first.count("joe")
    first.store.put("last", 4)
    first.state.close()  # without a commit
    second = Life(tmp_path / "t")
    assert second.state.positions() == {"log.clicks[0]": 3}
    assert second.store.get("last") == 3
    second.count("joe", "new")
    assert {key: number.value for key, number in second.live.items()} == {"joe": 3, "new": 1}
    second.state.close()


def test_what_changes_after_a_commit_began_is_not_part_of_it(tmp_path: Path) -> None:
    first = Life(tmp_path / "t")
    first.count("joe", "ann")
    first.store.put("last", 2)
    first.state.begin_commit({"log.clicks[0]": 2})
    first.count("joe", "bob")  # joe is encoded as it was, before it is touched
    first.store.put("last", 4)
    while first.state.encode(1):
        pass
    first.state.write_commit()
    first.state.end_commit(written=True)
    first.state.close()
    second = Life(tmp_path / "t")
    second.count("joe", "ann", "bob")
    assert {key: number.value for key, number in second.live.items()} == {
        "joe": 2,
        "ann": 2,
        "bob": 1,
    }
    assert second.store.get("last") == 2
    second.state.close()


def test_what_a_thread_changes_while_a_commit_encodes_it_is_not_part_of_it(tmp_path: Path) -> None:
    life = Interrupted(tmp_path / "t")
    life.count("joe", "ann")
    life.meanwhile = lambda: life.count("joe")
    life.commit({})
    assert life.stored("joe", "ann") == {"joe": 1, "ann": 1}
    life.meanwhile = lambda: None
    life.commit({})
    assert life.stored("joe", "ann") == {"joe": 2, "ann": 1}
    life.state.close()


def test_an_instance_that_left_the_cache_comes_back_as_it_was(tmp_path: Path) -> None:
    life = Life(tmp_path / "t")
    life.count("joe", "joe")
    life.saved.evict("joe")
    del life.live["joe"]
    life.count("joe")
    assert life.live["joe"].value == 3
    life.state.close()


def test_an_instance_that_was_removed_begins_anew(tmp_path: Path) -> None:
    life = Life(tmp_path / "t")
    life.count("joe")
    life.commit({})
    life.saved.remove("joe")
    del life.live["joe"]
    life.count("joe")
    assert life.live["joe"].value == 1
    life.state.close()


def test_tables_keep_their_numbers(tmp_path: Path) -> None:
    first = Life(tmp_path / "t")
    numbers = {name: first.state.table(name) for name in ("pe Count", "store seen", "pe More")}
    first.commit({})
    first.state.close()
    second = TaskState(Database(tmp_path / "t"), crc32m)
    assert second.table("pe More") == numbers["pe More"]
    assert {name: second.table(name) for name in numbers} == numbers
    assert second.table("store other") not in numbers.values()
    second.close()


@pytest.mark.parametrize("fails", [True, False])
def test_a_commit_that_failed_is_in_the_next(tmp_path: Path, fails: bool) -> None:
    life = Life(tmp_path / "t")
    life.count("joe")
    life.state.begin_commit({"log.clicks[0]": 1})
    while life.state.encode(9):
        pass
    if not fails:
        life.state.write_commit()
    life.state.end_commit(written=not fails)
    life.count("ann")
    life.commit({"log.clicks[0]": 2})
    life.state.close()
    second = Life(tmp_path / "t")
    second.count("joe", "ann")
    assert {key: n.value for key, n in second.live.items()} == {"joe": 2, "ann": 2}
    assert second.state.positions() == {"log.clicks[0]": 2}
    second.state.close()


class Crashes(RuleBasedStateMachine):
    """Batches, evictions, removals, commits in slices, and crashes, in any order."""

    folder: Path
    lives = 0
    keys = st.sampled_from(["a", "b", "c", "d"])

    @initialize()
    def begin(self) -> None:
        Crashes.lives += 1
        self.place = self.folder / str(Crashes.lives)
        self.life = Life(self.place)
        self.now: dict[Any, int] = {}
        self.committed: dict[Any, int] = {}
        self.under_way: dict[Any, int] | None = None

    @rule(batch=st.lists(keys, min_size=1, max_size=3), prepared=st.booleans())
    def count(self, batch: list[str], prepared: bool) -> None:
        (self.life.count_prepared if prepared else self.life.count)(*batch)
        for key in batch:
            self.now[key] = self.now.get(key, 0) + 1
        assert all(self.life.live[key].value == self.now[key] for key in batch)

    @rule(key=keys)
    def evict(self, key: str) -> None:
        if key in self.life.live:
            self.life.saved.evict(key)
            del self.life.live[key]

    @rule(key=keys)
    def remove(self, key: str) -> None:
        if key in self.life.live:
            self.life.saved.remove(key)
            del self.life.live[key]
            del self.now[key]

    @rule()
    def begin_commit(self) -> None:
        if self.under_way is None:
            self.life.state.begin_commit({})
            self.under_way = dict(self.now)

    @rule(limit=st.integers(1, 3))
    def encode(self, limit: int) -> None:
        if self.under_way is not None:
            self.life.state.encode(limit)

    @rule(written=st.booleans())
    def end_commit(self, written: bool) -> None:
        if self.under_way is not None:
            while self.life.state.encode(2):
                pass
            if written:
                self.life.state.write_commit()
                self.committed = self.under_way
            self.life.state.end_commit(written=written)
            self.under_way = None

    @rule()
    def crash(self) -> None:
        self.life.state.close()
        self.life = Life(self.place)
        self.now, self.under_way = dict(self.committed), None
        found = self.life.saved.find(["a", "b", "c", "d"])
        assert {key: int(data) for key, data in found.items()} == self.committed

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.life.state.close()


@pytest.mark.long
def test_after_any_crash_there_is_the_last_commit(tmp_path: Path) -> None:
    run_state_machine_as_test(
        type("Machine", (Crashes,), {"folder": tmp_path}),
        settings=settings(max_examples=60, stateful_step_count=30, deadline=None),
    )


def test_a_reader_finds_in_a_store_what_its_task_finds(tmp_path: Path) -> None:
    now = [1000.0]
    state = TaskState(Database(tmp_path / "t"), crc32m, now=lambda: now[0])
    store = state.store(StoreSpec("short", int, str, ttl=60))
    store.put(1, "early")
    now[0] += 30
    store.put(2, "late")
    state.begin_commit({})
    state.write_commit()
    state.end_commit(written=True)
    look = StateReader(state, now=lambda: now[0])

    def both() -> tuple[dict[Key, str], dict[Key, str]]:
        return dict(look.store("short")), dict(store.all())

    assert both() == ({1: "early", 2: "late"}, {1: "early", 2: "late"})
    now[0] = 1060.0
    assert both() == ({2: "late"}, {2: "late"})
    now[0] = 1090.0
    assert both() == ({}, {})
    state.close()


class Changing:
    """A store whose declaration changes from one life of its task to the next."""

    def __init__(self, folder: Path, value: Any) -> None:
        self.now = 1000.0
        self.value = value
        self.database = Database(folder)
        self.begin(0)

    def begin(self, ttl: float) -> None:
        """The task starts with this time to live, or none."""
        self.state = TaskState(self.database, crc32m, now=lambda: self.now)
        self.store = self.state.store(StoreSpec("s", str, self.value, ttl=ttl))

    def commit(self) -> None:
        if self.store.expires:  # as after each commit
            self.store.expire(100)
        self.state.begin_commit({})
        self.state.write_commit()
        self.state.end_commit(written=True)

    def found(self) -> dict[str, Any]:
        """The rows of the store, whichever way they are read."""
        found = dict(self.store.all())
        assert dict(self.store.range("", "\x7f")) == found
        assert self.store.get_many(["a", "b", "c"]) == found
        assert {key: self.store.get(key) for key in found} == found
        if not self.state.changed:
            look = StateReader(self.state, now=lambda: self.now)
            assert {
                key: self.store._decode(self.store._encode(value)) for key, value in look.store("s")
            } == found
        return found


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (float, [0.0, 1.5, -7.25]),
        (int, [0, 1, 2**60]),
        (str, ["", "x", "a text that is longer than eight bytes"]),
        (bytes, [b"", bytes(30), b"0123456789abcdef"]),
        (list[int], [[], [0], [0] * 20]),
        (bool, [False, True, True]),
    ],
)
def test_earlier_values_get_the_new_time_to_live_of_a_store(
    tmp_path: Path, kind: Any, values: list[Any]
) -> None:
    a, b, c = values
    life = Changing(tmp_path / "t", kind)
    life.store.put_many({"a": a, "b": b})
    life.commit()
    life.now += 10_000
    life.begin(ttl=60)
    assert life.found() == {"a": a, "b": b}
    life.store.put("c", c)
    life.commit()
    assert life.found() == {"a": a, "b": b, "c": c}
    life.store.put("b", c)
    life.now += 30
    life.store.put("a", c)
    life.commit()
    assert life.found() == {"a": c, "b": c, "c": c}
    life.now += 31
    assert life.found() == {"a": c}
    life.now += 30
    life.commit()
    assert life.found() == {}
    assert life.state.rows(life.state.table("store s")) == []
    life.database.close()


def test_values_stay_when_the_time_to_live_of_a_store_is_removed(tmp_path: Path) -> None:
    life = Changing(tmp_path / "t", int)
    life.begin(ttl=60)
    life.store.put("a", 1)
    life.now += 30
    life.store.put("b", 0)
    life.commit()
    life.now += 31
    life.begin(ttl=0)
    assert life.found() == {"b": 0}
    life.store.put("c", 0)
    life.commit()
    for _ in range(2):
        life.now += 1_000_000
        life.begin(ttl=0)
        assert life.found() == {"b": 0, "c": 0}
        life.commit()
    life.begin(ttl=3600)  # given again: what had it before is over now, the rest is given it
    assert life.found() == {"c": 0}
    life.store.put("a", 3)
    life.commit()
    life.now += 3599
    assert life.found() == {"a": 3, "c": 0}
    life.now += 1
    assert life.found() == {}
    life.database.close()


@pytest.mark.parametrize("ttl", [0.0001, 1e15, float("inf")])
def test_any_time_to_live_can_be_kept(tmp_path: Path, ttl: float) -> None:
    life = Changing(tmp_path / "t", str)
    life.begin(ttl)
    life.store.put("a", "a text that is longer than eight bytes")
    assert life.found() == {"a": "a text that is longer than eight bytes"}
    life.commit()
    life.now += 10
    assert ("a" in life.found()) == (ttl > 1)
    life.database.close()


# -- set-up ---------------------------------------------------------------------------------------


class Number:
    """Stands for a PE instance: a counter."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.value = 0
        self._mark: object = None


class Life:
    """A task from its start on, as a container would use its state."""

    def __init__(self, folder: Path) -> None:
        self.state = TaskState(Database(folder), crc32m)
        self.live: dict[Key, Number] = {}
        self.saved = self.state.saved("Count", self.live, self)
        self.store = self.state.store(StoreSpec("seen", str, int))

    def encode(self, instance: Number) -> bytes:
        return str(instance.value).encode()

    def encode_all(self, instances: list[Number]) -> list[bytes]:
        return [self.encode(instance) for instance in instances]

    def obtain(self, key: Key) -> Number:
        number = self.live[key] = Number(key)
        found = self.saved.find([key])
        if found:
            number.value = int(found[key])
        else:
            self.saved.touch_new(number)
        return number

    def count(self, *keys: Key) -> None:
        """Process a batch, one event a key, as the dispatch does."""
        mark, saving, append = self.saved.mark, self.saved.saving, self.saved.touched.append
        for key in keys:
            number = self.live.get(key) or self.obtain(key)
            if number._mark is not mark:
                if number._mark is saving:
                    self.saved.touch_one(number)
                else:
                    number._mark = mark
                    append(number)
            number.value += 1

    def count_prepared(self, *keys: Key) -> None:
        """As count, where all are touched before."""
        for key in keys:
            if key not in self.live:
                self.obtain(key)
        self.saved.touch(keys)
        for key in keys:
            self.live[key].value += 1

    def commit(self, positions: dict[str, int]) -> None:
        self.state.begin_commit(positions)
        while self.state.encode(2):
            pass
        self.state.write_commit()
        self.state.end_commit(written=True)

    def stored(self, *keys: Key) -> dict[Key | None, int]:
        return {key: int(data) for key, data in self.saved.find(keys).items()}


class Interrupted(Life):
    """A life in which a thread processes events while a commit is about to encode instances."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def encode_all(self, instances: list[Number]) -> list[bytes]:
        self.meanwhile()
        return super().encode_all(instances)
