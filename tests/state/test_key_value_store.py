"""Key-value stores of a task, over a real database."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Unpack

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from s4node.errors import StateError, StoreCorrupt
from s4node.events.keys import crc32m
from s4node.state.database import Database
from s4node.state.key_encoding import encode
from s4node.state.key_value_store import KeyValueStore
from s4node.state.rows import FIRST_TABLE, META, Changes, task_row
from s4node.store_spec import StoreSpec


class Profile(msgspec.Struct, frozen=True):
    name: str
    visits: int = 0


def test_a_value_that_was_put_is_there_at_once_and_after_a_commit(kept: Kept) -> None:
    kept.store.put("joe", Profile("Joe", 3))
    assert kept.store.get("joe") == Profile("Joe", 3)
    kept.commit()
    assert kept.store.get("joe") == Profile("Joe", 3)
    assert "ann" not in kept.store


def test_a_delete_hides_what_was_committed(kept: Kept) -> None:
    kept.store.put("joe", Profile("Joe"))
    kept.commit()
    kept.store.delete("joe")
    assert kept.store.get("joe") is None
    assert list(kept.store.all()) == []
    kept.commit()
    assert kept.store.get("joe", Profile("nobody")) == Profile("nobody")


def test_uncommitted_changes_are_gone_after_a_crash(tmp_path: Path) -> None:
    spec = StoreSpec("profiles", str, Profile)
    first = Kept(tmp_path / "task", spec)
    first.store.put("joe", Profile("Joe"))
    first.commit()
    first.store.put("joe", Profile("Joe", 99))
    first.database.close()  # as a crash: the change was only in memory
    second = Kept(tmp_path / "task", spec)
    assert second.store.get("joe") == Profile("Joe")
    second.database.close()


def test_changes_that_are_being_written_can_be_read(kept: Kept) -> None:
    kept.store.put("joe", Profile("Joe"))
    kept.changes.begin_commit()
    assert kept.store.get("joe") == Profile("Joe")
    kept.store.put("joe", Profile("Joe", 2))
    kept.database.write(*kept.changes.rows_to_write())
    kept.changes.written()
    assert kept.store.get("joe") == Profile("Joe", 2)


def test_a_commit_that_failed_is_part_of_the_next(kept: Kept) -> None:
    kept.store.put("joe", Profile("Joe"))
    kept.store.put("ann", Profile("Ann"))
    kept.changes.begin_commit()
    kept.store.put("joe", Profile("Joe", 2))
    kept.changes.failed()
    kept.commit()
    assert dict(kept.store.all()) == {"ann": Profile("Ann"), "joe": Profile("Joe", 2)}


def test_several_values_are_read_and_written_at_once(kept: Kept) -> None:
    kept.store.put_many({"a": Profile("A"), "b": Profile("B"), "c": Profile("C")})
    kept.commit()
    kept.store.put("c", Profile("C", 1))
    kept.store.delete_many(["b"])
    assert kept.store.get_many(["a", "b", "c", "d"]) == {"a": Profile("A"), "c": Profile("C", 1)}


def test_put_many_puts_all_values_or_none(kept: Kept) -> None:
    with pytest.raises(StateError, match="cannot be stored"):
        kept.store.put_many([("a", Profile("A")), ("b", object())])
    assert kept.store.get("a") is None


def test_a_range_of_tuples_is_in_order(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "task", StoreSpec("visits", tuple, int))
    for at in (9, 3, 300, -1, 7):
        kept.store.put(("joe", at), at)
        kept.store.put(("ann", at), -at)
        if at == 3:
            kept.commit()
    assert [value for _, value in kept.store.range(("joe", -1), ("joe", 300))] == [-1, 3, 7, 9]
    kept.database.close()


def test_a_tuple_of_one_part_comes_back_as_one(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "task", StoreSpec("seen", tuple, int))
    for key in [("joe",), ("joe", 1), (7,), (b"x\x00",)]:
        kept.store.put(key, 1)
    assert {key for key, _ in kept.store.all()} == {("joe",), ("joe", 1), (7,), (b"x\x00",)}
    kept.commit()
    assert [key for key, _ in kept.store.range(("joe",), ("joe", 9))] == [("joe",), ("joe", 1)]
    for key, _ in list(kept.store.all()):
        kept.store.delete(key)
    assert list(kept.store.all()) == []
    kept.database.close()


def test_a_range_over_all_keys_is_in_order(kept: Kept) -> None:
    for n in range(200):
        kept.store.put(f"{n:03}", Profile(str(n)))
        if n == 120:
            kept.commit()
    kept.store.delete("050")
    found = [key for key, _ in kept.store.range("040", "140")]
    assert found == [f"{n:03}" for n in range(40, 140) if n != 50]


def test_a_wrong_key_or_value_is_refused_by_name(kept: Kept) -> None:
    with pytest.raises(StateError, match="store 'profiles': 7 is a int; its keys are str"):
        kept.store.put(7, Profile("seven"))
    with pytest.raises(StateError, match="None put for 'joe'; use delete"):
        kept.store.put("joe", None)


@pytest.mark.parametrize(
    ("kind", "key", "told"),
    [
        (tuple[str, int], ("a",), "has 1 part"),
        (tuple[str, int], ("a", 1, 2), "has 3 parts"),
        (tuple[str, int], (1, "a"), "has part 1 of type int"),
        (tuple[str, int], ("a", "b"), "has part 2 of type str"),
        (tuple[str, int], ("a", True), "has part 2 of type bool"),
        (tuple[str, int | bytes], ("a", "b"), "has part 2 of type str"),
        (tuple[str, ...], ("a", "b", 3), "has part 3 of type int"),
        (tuple[str, int], "a", "is a str"),
    ],
)
def test_a_tuple_is_checked_by_the_parts_that_are_declared(
    tmp_path: Path, kind: Any, key: Any, told: str
) -> None:
    kept = Kept(tmp_path / "task", StoreSpec("visits", kind, int))
    store = kept.store
    said = f"store 'visits': {key!r} {told}; its keys are {kind}"
    for call in (
        lambda: store.put(key, 1),
        lambda: store.put_many({key: 1}),
        lambda: store.get(key),
        lambda: store.get_many([key]),
        lambda: store.delete(key),
        lambda: store.delete_many([key]),
    ):
        with pytest.raises(StateError, match=f"^{re.escape(said)}$"):
            call()
    assert list(store.all()) == []
    kept.database.close()


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (tuple, ("a", 1, b"")),
        (tuple[Any, int], (b"", 1)),
        (tuple[str | None, int], ("a", 1)),
        (tuple[Literal["a", 7], Annotated[int, "of a day"]], (7, 1)),
        (tuple[NewType("User", str), int], ("joe", 1)),
        (tuple[str, ...], ("a",)),
        (tuple[str, ...], ("a", "b", "c")),
        (tuple[str, *tuple[int, ...]], ("a",)),
        (tuple[str, *tuple[int, ...]], ("a", 1, 2)),
        (tuple[str, Unpack[tuple[int, ...]]], ("a", 1, 2)),  # noqa: UP044
    ],
    ids=repr,
)
def test_a_tuple_of_the_parts_that_are_declared_is_a_key(
    tmp_path: Path, kind: Any, key: Any
) -> None:
    kept = Kept(tmp_path / "task", StoreSpec("visits", kind, int))
    kept.store.put(key, 1)
    assert kept.store.get(key) == 1
    assert list(kept.store.all()) == [(key, 1)]
    kept.database.close()


def test_a_range_takes_the_beginnings_of_keys_and_no_wrong_part(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "task", StoreSpec("visits", tuple[str, int], int))
    kept.store.put_many({(user, at): at for user in ("ann", "joe") for at in (1, 5, 9)})
    for start, end, found in (
        (("joe", 1), ("joe", 9), [("joe", 1), ("joe", 5)]),
        (("joe",), ("joe", 9), [("joe", 1), ("joe", 5)]),
        (("ann", 9), ("joe",), [("ann", 9)]),
        (("ann",), ("b",), [("ann", 1), ("ann", 5), ("ann", 9)]),
    ):
        assert [key for key, _ in kept.store.range(start, end)] == found
    for bound in (("joe", "1"), (1,), ("joe", 1, 1)):
        with pytest.raises(StateError, match=re.escape(f"{bound!r} has ")):
            list(kept.store.range(bound, ("joe", 9)))
    kept.database.close()


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (
            Profile,
            {"name": 3},
            "'joe' is not of type Profile: Expected `str`, got `int`",
        ),
        (
            Profile,
            msgspec.structs.replace(Profile("Joe"), name=3),
            "'joe' is not of type Profile: Expected `str`, got `int`",
        ),
        (int, 1.5, "the value of 'joe' is not of type int: Expected `int`, got `float`"),
        (dict[str, int], {"a": "b"}, r"is not of type dict\[str, int\]: Expected `int`, got `str`"),
        (bool, 1, "is not of type bool: Expected `bool`, got `int`"),
    ],
)
def test_a_value_that_could_not_be_read_again_is_refused_when_it_is_put(
    tmp_path: Path, kind: Any, value: Any, told: str
) -> None:
    kept = Kept(tmp_path / "task", StoreSpec("profiles", str, kind))
    with pytest.raises(StateError, match=told):
        kept.store.put("joe", value)
    with pytest.raises(StateError, match=told):
        kept.store.put_many({"joe": value})
    assert kept.store.get("joe") is None
    kept.database.close()


def test_a_whole_number_is_put_as_a_float_and_anything_as_any(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "task", StoreSpec("ratios", str, float))
    kept.store.put("joe", 2)
    assert kept.store.get("joe") == 2.0
    anything = Kept(tmp_path / "another", StoreSpec("anything", str, Any))
    anything.store.put("joe", {"a": [1, None]})
    assert anything.store.get("joe") == {"a": [1, None]}
    kept.database.close()
    anything.database.close()


@pytest.mark.parametrize("ttl", [0.0, 60.0])
def test_a_value_that_no_longer_fits_is_named_with_its_key(tmp_path: Path, ttl: float) -> None:
    first = Kept(tmp_path / "task", StoreSpec("profiles", str, dict, ttl))
    first.store.put_many({"ann": {"name": "Ann"}, "joe": {"name": 3}})
    first.commit()
    now: KeyValueStore[str, Profile] = KeyValueStore(
        StoreSpec("profiles", str, Profile, ttl), FIRST_TABLE, first.database, Changes(), crc32m
    )
    told = "store 'profiles' holds a value for 'joe' that is not of type Profile: Expected `str`"
    assert now.get_many(["ann"]) == {"ann": Profile("Ann")}
    for read in (
        lambda: now.get("joe"),
        lambda: now.get_many(["ann", "joe"]),
        lambda: list(now.all()),
        lambda: list(now.range("a", "z")),
    ):
        with pytest.raises(StateError, match=told):
            read()
    first.database.close()


def test_a_value_of_an_older_class_gets_the_new_fields_defaults(tmp_path: Path) -> None:
    first = Kept(tmp_path / "task", StoreSpec("profiles", str, dict))
    first.store.put("joe", {"name": "Joe"})
    first.commit()
    first.database.close()
    second = Kept(tmp_path / "task", StoreSpec("profiles", str, Profile))
    assert second.store.get("joe") == Profile("Joe", 0)
    second.database.close()


def test_expired_values_are_gone_and_then_deleted(tmp_path: Path) -> None:
    now = [1000.0]
    kept = Kept(tmp_path / "task", StoreSpec("seen", str, int, ttl=60), now=lambda: now[0])
    kept.store.put("old", 1)
    now[0] += 30
    kept.store.put("young", 2)
    kept.commit()
    now[0] += 31
    assert kept.store.get("old") is None
    assert dict(kept.store.all()) == {"young": 2}
    assert kept.store.expire(100) == b""
    kept.commit()
    rows = [r for r, _ in kept.database.scan(b"", b"\xff\xff\x00\x00")]
    assert len(rows) == 1
    kept.database.close()


def test_expiring_goes_on_where_it_stopped(tmp_path: Path) -> None:
    now = [0.0]
    kept = Kept(tmp_path / "task", StoreSpec("seen", int, int, ttl=1), now=lambda: now[0])
    kept.store.put_many((n, n) for n in range(50))
    kept.commit()
    now[0] = 2.0
    looks, at = 0, b""
    while True:
        looks += 1
        at = kept.store.expire(20, at)
        if not at:
            break
    kept.commit()
    assert looks == 3
    assert kept.database.chunk(b"", b"\xff\xff\x00\x00", 10) == []
    kept.database.close()


def test_a_folder_in_use_is_refused(kept: Kept, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from s4node.state.database import Database\n"
        "Database(Path(sys.argv[1]))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "task")], capture_output=True, text=True
    )
    assert other.returncode == 1
    assert "in use by another process" in other.stderr


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "task", StoreSpec("numbers", int, bytes))
    kept.store.put_many((n, bytes(100)) for n in range(2000))
    kept.commit()
    kept.database.checkpoint(tmp_path / "copy")
    kept.database.close()
    (table,) = (tmp_path / "copy").glob("*.sst")
    data = bytearray(table.read_bytes())
    data[len(data) // 3] ^= 0xFF
    table.write_bytes(data)

    def read() -> None:
        list(Database(tmp_path / "copy").scan(b"", b"\xff\xff\xff"))

    with pytest.raises(StoreCorrupt, match="copy is damaged"):
        read()


def test_another_format_is_refused(tmp_path: Path) -> None:
    database = Database(tmp_path / "task")
    database.write([task_row(META, b"format")], [b"99"])
    database.close()
    with pytest.raises(StateError, match="has the format b'99'"):
        Database(tmp_path / "task")


def test_a_checkpoint_is_a_database_of_its_own(kept: Kept, tmp_path: Path) -> None:
    kept.store.put("joe", Profile("Joe"))
    kept.commit()
    kept.database.checkpoint(tmp_path / "copy")
    kept.store.put("joe", Profile("Joe", 2))
    kept.commit()
    copy = Database(tmp_path / "copy")
    row = crc32m("joe") % 4096
    (found,) = copy.scan(row.to_bytes(2, "big"), (row + 1).to_bytes(2, "big"))
    assert found[0].endswith(encode("joe"))
    assert msgspec.msgpack.decode(found[1], type=Profile) == Profile("Joe")
    copy.close()


class AgainstADict(RuleBasedStateMachine):
    """Whatever is done, in whatever order: the store is a dict that commits."""

    folder: Path
    count = 0

    @initialize()
    def begin(self) -> None:
        AgainstADict.count += 1
        self.kept = Kept(self.folder / str(AgainstADict.count), StoreSpec("s", str, int))
        self.model: dict[str, int] = {}
        self.taken = False

    keys = st.text("ab\x00é", max_size=3)

    @rule(key=keys, value=st.integers(-5, 5))
    def put(self, key: str, value: int) -> None:
        self.kept.store.put(key, value)
        self.model[key] = value

    @rule(key=keys)
    def delete(self, key: str) -> None:
        self.kept.store.delete(key)
        self.model.pop(key, None)

    @rule()
    def take(self) -> None:
        if not self.taken:
            self.kept.changes.begin_commit()
            self.taken = True

    @rule(fails=st.booleans())
    def write(self, fails: bool) -> None:
        if self.taken:
            self.taken = False
            if fails:
                self.kept.changes.failed()
            else:
                self.kept.database.write(*self.kept.changes.rows_to_write())
                self.kept.changes.written()

    @rule(start=keys, end=keys)
    def range(self, start: str, end: str) -> None:
        expected = sorted((k, v) for k, v in self.model.items() if start <= k < end)
        assert list(self.kept.store.range(start, end)) == expected

    @invariant()
    def the_same_as_the_dict(self) -> None:
        if hasattr(self, "model"):
            assert dict(self.kept.store.all()) == self.model
            assert self.kept.store.get_many(self.model) == self.model

    def teardown(self) -> None:
        if hasattr(self, "kept"):
            self.kept.database.close()


def test_a_store_is_a_dict_that_commits(tmp_path: Path) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    machine = type("Machine", (AgainstADict,), {"folder": tmp_path})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=40, stateful_step_count=25, deadline=None)
    )


# -- set-up ---------------------------------------------------------------------------------------


class Kept:
    """A store with its database, and commits when the test says so."""

    def __init__(self, folder: Path, spec: StoreSpec[Any, Any], **named: Any) -> None:
        self.database = Database(folder)
        self.changes = Changes()
        self.store = KeyValueStore(spec, FIRST_TABLE, self.database, self.changes, crc32m, **named)

    def commit(self) -> None:
        self.changes.begin_commit()
        self.database.write(*self.changes.rows_to_write())
        self.changes.written()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path / "task", StoreSpec("profiles", str, Profile))
    yield made
    made.database.close()
