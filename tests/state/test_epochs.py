"""Whose database of a task is true: claiming, inheriting, damage. Real folders and processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from s4node.errors import StateError, StoreCorrupt, TaskFenced
from s4node.state.database import Database
from s4node.state.epochs import claim, copied, epochs_of, sweep


def test_the_next_owner_has_what_the_last_one_committed(tmp_path: Path) -> None:
    first = claim(tmp_path / "t", 0, Database)
    put(first, b"1")
    first.close()
    second = claim(tmp_path / "t", 0, Database)
    assert second.get(ROW) == b"1"
    assert epochs_of(tmp_path / "t") == [2, 1]
    second.close()


def test_an_owner_that_wakes_up_writes_where_nobody_reads(tmp_path: Path) -> None:
    paused = claim(tmp_path / "t", 3, Database)
    put(paused, b"before")
    owner = claim(tmp_path / "t", 4, Database)
    put(paused, b"too late")
    assert owner.get(ROW) == b"before"
    put(owner, b"after")
    third = claim(tmp_path / "t", 5, Database)
    assert third.get(ROW) == b"after"
    for database in (paused, owner, third):
        database.close()


def test_a_reader_gets_no_error_for_damage_that_it_did_not_read(tmp_path: Path) -> None:
    """RocksDB tidies the copy up meanwhile, finds the damage, and says so when it is closed."""
    owner = claim(tmp_path / "t", 0, Database)
    rows = [b"\x00\x01\x00\x10%06d" % number for number in range(4000)]
    owner.write(rows, [b"value"] * len(rows))
    owner.close()
    with copied(tmp_path / "t") as look:
        look.write(rows, [b"another"] * len(rows))
        put(look, b"1")
        look._db.flush()
        assert look.get(ROW) == b"1"
        for table in look.folder.glob("*.sst"):
            data = bytearray(table.read_bytes())
            data[100] ^= 1
            table.write_bytes(data)
        look._db.compact_range(None, None)


def test_a_lower_epoch_is_fenced(tmp_path: Path) -> None:
    claim(tmp_path / "t", 7, Database).close()
    with pytest.raises(TaskFenced, match="taken over under epoch 7; this container has epoch 6"):
        claim(tmp_path / "t", 6, Database)
    with pytest.raises(TaskFenced):
        claim(tmp_path / "t", 7, Database)


def test_a_claim_that_was_cut_short_leaves_what_was_there(tmp_path: Path) -> None:
    first = claim(tmp_path / "t", 1, Database)
    put(first, b"1")
    first.close()
    (tmp_path / "t" / "2").mkdir()  # claimed, and killed before it was copied
    third = claim(tmp_path / "t", 0, Database)
    assert third.get(ROW) == b"1"
    third.close()
    assert epochs_of(tmp_path / "t") == [3, 1]


def test_after_damage_the_epoch_before_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = claim(tmp_path / "t", 1, Database)
    put(first, b"1")
    first.checkpoint(tmp_path / "unused")  # has it write its files
    first.close()
    second = claim(tmp_path / "t", 2, Database)
    put(second, b"2")
    second.checkpoint(tmp_path / "unused2")
    second.close()
    newest = max((tmp_path / "t" / "2").glob("*.sst"), key=lambda path: path.name)
    newest.write_bytes(newest.read_bytes()[:-20])  # a file of its own: no link to the first's
    third = claim(tmp_path / "t", 3, Database)
    assert third.get(ROW) == b"1"
    assert "a state folder is damaged; resuming from the one before it" in capsys.readouterr().err
    third.close()


def test_an_error_says_that_all_epochs_are_damaged(tmp_path: Path) -> None:
    claim(tmp_path / "t", 1, Database).close()
    (tmp_path / "t" / "1" / "CURRENT").write_bytes(b"MANIFEST-9999\n")
    with pytest.raises(StoreCorrupt, match="all 1 databases below"):
        claim(tmp_path / "t", 2, Database)
    assert not (tmp_path / "t" / "2").exists()


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StateError, match=r"set s4\.state\.folder to a folder that you may"):
        claim(tmp_path / "file" / "t", 1, Database)


WRITER = """
import sys
from pathlib import Path
from s4node.state.database import Database
from s4node.state.epochs import claim
database = claim(Path(sys.argv[1]), 1, lambda p: Database(p, write_buffer_bytes=65_536))
print("ready", flush=True)
n = 0
while True:
    n += 1
    number = n.to_bytes(8, "big")
    rows = [b"\\x00\\x01\\x00\\x10" + bytes((key,)) for key in range(20)]
    database.write(rows, [number * 30] * 20)
    if n % 50 == 0:
        print(n, flush=True)
"""


def test_a_copy_of_a_busy_owner_is_a_whole_commit_and_none_is_lost(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "t")], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        try:
            for epoch in range(2, 12):
                told = int(writer.stdout.readline())
                writer.send_signal(signal.SIGSTOP)
                os.sched_yield()
                copy = claim_from_first(tmp_path / "t", epoch)
                writer.send_signal(signal.SIGCONT)
                rows = copy.chunk(b"", b"\xff\xff", 100)
                copy.close()
                assert len(rows) == 20
                assert len({value for _, value in rows}) == 1  # all of one commit
                assert int.from_bytes(rows[0][1][:8], "big") >= told
        finally:
            writer.kill()


def claim_from_first(folder: Path, epoch: int) -> Database:
    """As claim, but always a copy of the first epoch's, whose owner is alive."""
    for other in epochs_of(folder):
        if other != 1:
            (folder / str(other) / "complete").unlink()
    return claim(folder, epoch, Database)


def test_sweeping_keeps_the_newest(tmp_path: Path) -> None:
    for epoch in range(1, 6):
        claim(tmp_path / "t", epoch, Database).close()
    (tmp_path / "t" / "2" / "complete").unlink()
    assert sweep(tmp_path / "t", keep=3, older_than=3600, now=time.time()) == 2
    assert epochs_of(tmp_path / "t") == [5, 4, 3]
    assert sweep(tmp_path / "t", keep=3, older_than=3600, now=time.time() + 4000) == 2
    assert epochs_of(tmp_path / "t") == [5]


# -- set-up ---------------------------------------------------------------------------------------


ROW = b"\x00\x01\x00\x10joe"


def put(database: Database, value: bytes) -> None:
    database.write([ROW], [value])
