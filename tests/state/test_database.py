"""Commits of many rows, which are written in pieces: all of one is there, or nothing of it."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from harness import filled

from s4node.errors import StateError, StoreCorrupt
from s4node.state.database import PIECE_ROWS, Database
from s4node.state.rows import FIRST_TABLE, REDO, TASK_GROUP, prefix, task_row

PIECES = 3


@pytest.mark.parametrize(
    ("fault", "life"),
    [
        ("pieces.prepared", None),
        ("pieces.piece:2", b"1"),
        ("pieces.prepared:2", b"1"),
        (f"pieces.piece:{2 * PIECES}", b"2"),
        pytest.param("pieces.done:2", b"2", marks=pytest.mark.long),
    ],
)
def test_a_commit_of_many_rows_is_whole_or_nothing_wherever_its_process_dies(
    tmp_path: Path, fault: str, life: bytes | None
) -> None:
    folder = tmp_path / "task"
    command = [sys.executable, "-c", COMMITS, str(folder)]
    died = subprocess.run(command, env={**os.environ, "S4_FAULT": fault}, timeout=60, check=False)
    assert died.returncode == -signal.SIGKILL
    for _ in range(2):
        database = Database(folder)
        assert lives(database) == {life}
        database.close()


def test_the_pieces_of_an_earlier_release_become_rows(tmp_path: Path) -> None:
    number = struct.Struct(">I").pack
    old = msgspec.msgpack.encode([(b"one", b"1"), (b"two", None)])
    database = Database(tmp_path / "task")
    database.write([b"two"], [b"2"])
    database.write([task_row(REDO, number(0)), task_row(REDO, b"")], [old, number(1)])
    database.close()
    database = Database(tmp_path / "task")
    assert database.get_many([b"one", b"two"]) == [b"1", None]
    assert database.chunk(prefix(TASK_GROUP, REDO), prefix(TASK_GROUP, REDO + 1), 10) == []
    database.close()


FULL = f"""
import resource, sys
from pathlib import Path
sys.path[:0] = {[str(each) for each in Path(__file__).parents[:2]]!r}
from test_database import commit, lives, row
from s4node.errors import StateError
from s4node.state.database import Database

hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
for size in range(*map(int, sys.argv[2:])):
    database = Database(Path(sys.argv[1]) / str(size))
    commit(database, 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        commit(database, 2)
        outcome = "written"
    except StateError:
        outcome = "failed"
    try:
        database.get(row(1))
        outcome += ", read"
    except StateError:
        outcome += ", in part"
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert database.get(row(1)) is not None
    database.write([b"any"], [b"thing"])
    print(outcome, *(value.decode() for value in lives(database)))
    database.close()
"""


def test_a_small_commit_does_not_wait_for_a_large_one_of_another_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = Database(tmp_path / "large"), Database(tmp_path / "small")
    written = list[int]()
    seen = list[bool]()

    def between(step: str) -> None:
        if step == "pieces.piece" and not seen:
            beside = threading.Thread(target=lambda: written.append(small.write([b"k"], [b"v"])))
            beside.start()
            beside.join(30)
            seen.append(bool(written))

    monkeypatch.setattr("s4node.state.database.passing", between)
    rows = [b"%d" % number for number in range(2 * PIECE_ROWS)]
    large.write(rows, [b"v"] * len(rows))
    assert seen == [True]
    for each in (large, small):
        each.close()


@pytest.mark.long
def test_on_a_full_disk_a_commit_of_many_rows_is_whole_or_nothing(tmp_path: Path) -> None:
    sizes = ("600000", "1900000", "20000")  # bytes of a file; the log of commits is the largest
    told = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path), *sizes],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    outcomes = set(told.stdout.splitlines())
    possible = {"written, read 2", "failed, read 1", "failed, in part 2"}
    assert outcomes <= possible
    assert {"written, read 2", "failed, read 1"} <= outcomes, outcomes


def test_while_a_disk_is_full_all_rows_can_be_read_and_then_written_again(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", FULL_FOR_A_WHILE, str(tmp_path / "task")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.stdout.split() == ["failed", "failed", "read", "read", "written"], told.stderr


def test_a_database_whose_folder_was_removed_is_not_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    database = Database(tmp_path / "task")
    database.write([b"one"], [b"1"])
    shutil.rmtree(tmp_path / "task")
    with monkeypatch.context() as patch:
        patch.setattr(Database, "_write", full)
        with pytest.raises(StateError):
            database.write([b"two"], [b"2"])
    with pytest.raises(StoreCorrupt, match="does not exist"):
        database.write([b"two"], [b"2"])
    with pytest.raises(StateError, match="already closed"):
        database.close()


def test_what_is_missing_of_a_commit_is_written_by_the_first_reader_once_there_is_room(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(step: str) -> None:
        if step == "pieces.piece":
            filled(small_disk)

    database = Database(small_disk / "task")
    rows = [b"%d" % number for number in range(3 * PIECE_ROWS)]
    monkeypatch.setattr("s4node.state.database.passing", fill)
    for _ in range(2):
        with pytest.raises(StateError, match="No space left on device"):
            database.write(rows, [b"v" * 100] * len(rows))
    with pytest.raises(StateError, match="No space left on device"):
        database.get_many(rows)
    (small_disk / "ballast").unlink()
    assert set(database.get_many(rows)) == {b"v" * 100}
    database.close()


# -- set-up ---------------------------------------------------------------------------------------


ROWS = PIECES * PIECE_ROWS - 5

GONE = range(0, ROWS, 1000)  # of the second commit

COMMITS = f"""
import sys
from pathlib import Path
sys.path[:0] = {[str(each) for each in Path(__file__).parents[:2]]!r}
from test_database import commit
from s4node.state.database import Database
database = Database(Path(sys.argv[1]))
commit(database, 1)
commit(database, 2)
"""


FULL_FOR_A_WHILE = """
import resource, sys
from pathlib import Path
from s4node.errors import StateError
from s4node.state.database import Database

hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
database = Database(Path(sys.argv[1]))
database.write([b"a"], [b"1"])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
for _ in range(2):  # the second one fails when it opens the database again
    try:
        database.write([b"a"], [b"2" * 1000])
    except StateError:
        print("failed")
if database.get(b"a") == b"1" and list(database.scan(b"a", b"b")) == [(b"a", b"1")]:
    print("read")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
if database.get_many([b"a", b"b"]) == [b"1", None]:
    print("read")
database.write([b"a"], [b"3"])
if database.get(b"a") == b"3":
    print("written")
database.close()
"""


def row(number: int) -> bytes:
    return prefix(number % 7, FIRST_TABLE) + b"%08d" % number


def commit(database: Database, life: int) -> None:
    values = [None if life == 2 and n in GONE else b"%d" % life for n in range(ROWS)]
    database.write([row(n) for n in range(ROWS)], values)


def lives(database: Database) -> set[bytes | None]:
    """The rows that are not among ``GONE``; nothing else is left."""
    found = database.get_many([row(n) for n in range(ROWS)])
    gone = {found[n] for n in GONE}
    kept = {value for n, value in enumerate(found) if n not in GONE}
    assert gone == ({None} if kept == {b"2"} else kept)
    assert database.chunk(prefix(TASK_GROUP, REDO), prefix(TASK_GROUP, REDO + 1), 10) == []
    return kept
