"""The store of progress: real files, several processes, and what can be wrong with a disk."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from harness import environment

from s4node.errors import CheckpointError, ProgressUnwritten, TaskFenced
from s4node.ops.serve import exit_status
from s4node.progress.checkpoint import Checkpoint, JobGuard
from s4node.progress.store import FILE, ProgressStore

CLICKS = ("log", "clicks", 0)
JOB = JobGuard(4, "by-partition", "crc32", {"log.clicks": 4})


def at(offset: int) -> Checkpoint:
    return Checkpoint({CLICKS: offset}, 1_000 + offset)


def test_what_was_written_is_there_for_the_next_to_claim_the_task(tmp_path: Path) -> None:
    store = ProgressStore(tmp_path / "new" / "folder")
    claim, kept = store.claim("Partition 0", "", 0)
    assert kept == Checkpoint()
    store.write(claim, at(7))
    store.write(claim, at(9))
    store.close()
    again = ProgressStore(tmp_path / "new" / "folder")
    assert again.claim("Partition 0", "", 0)[1] == at(9)
    assert again.read() == {"Partition 0": at(9)}


def test_a_claim_fences_those_before_it(tmp_path: Path) -> None:
    one, other = ProgressStore(tmp_path), ProgressStore(tmp_path)
    old, _ = one.claim("Partition 0", "tree", 1)
    one.write(old, at(3))
    new, kept = other.claim("Partition 0", "tree", 2)
    assert kept == at(3)
    with pytest.raises(TaskFenced, match="another container has taken task 'Partition 0' over"):
        one.write(old, at(99))
    other.write(new, at(5))
    assert one.read() == {"Partition 0": at(5)}


def test_an_owner_that_slept_through_later_epochs_cannot_claim(tmp_path: Path) -> None:
    store = ProgressStore(tmp_path)
    store.claim("Partition 0", "tree", 5)
    with pytest.raises(TaskFenced, match=r"belongs to epoch 5 by now, .* had it in epoch 4"):
        store.claim("Partition 0", "tree", 4)
    store.claim("Partition 0", "tree", 5)  # the same owner again


def test_epochs_of_another_coordination_are_no_matter(tmp_path: Path) -> None:
    store = ProgressStore(tmp_path)
    before, _ = store.claim("Partition 0", "one tree", 70)
    store.claim("Partition 0", "another tree", 1)
    with pytest.raises(TaskFenced):
        store.write(before, at(1))


def test_tasks_do_not_disturb_each_other(tmp_path: Path) -> None:
    store = ProgressStore(tmp_path)
    claims = [store.claim(f"Partition {number}", "", 0)[0] for number in range(3)]
    for number, claim in enumerate(claims):
        store.write(claim, at(number))
    assert store.read() == {f"Partition {number}": at(number) for number in range(3)}


def test_a_job_that_does_not_fit_is_refused_with_every_reason_and_the_way_out(
    tmp_path: Path,
) -> None:
    store = ProgressStore(tmp_path)
    store.admit(JOB)
    store.admit(JOB)
    other = JobGuard(2, "by-ssp", "crc32", {"log.clicks": 2})
    with pytest.raises(CheckpointError) as caught:
        store.admit(other)
    said = str(caught.value)
    assert "had 4 tasks and would have 2" in said
    assert "now by-ssp" in said
    assert "log.clicks had 4 partitions and has 2" in said
    assert f"the progress in {tmp_path / FILE} does not fit" in said
    assert "Or delete that folder" in said
    store.admit(JOB)  # a job that was refused leaves nothing


def test_processes_that_share_the_folder_wait_for_each_other(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        from pathlib import Path
        from s4node.progress.checkpoint import Checkpoint
        from s4node.progress.store import ProgressStore
        import sys
        store = ProgressStore(Path({str(tmp_path)!r}))
        claim, _ = store.claim(sys.argv[1], "", 0)
        for number in range(200):
            store.write(claim, Checkpoint({{("log", "clicks", 0): number}}, number))
        """
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, f"task {number}"], env=environment())
        for number in range(4)
    ]
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    kept = ProgressStore(tmp_path).read()
    assert {name: one.offsets[CLICKS] for name, one in kept.items()} == {
        f"task {number}": 199 for number in range(4)
    }


def test_damage_is_told_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    with pytest.raises(
        CheckpointError, match=r"is damaged .*; delete it to begin without"
    ) as caught:
        ProgressStore(tmp_path)
    assert not isinstance(caught.value, ProgressUnwritten)


def test_a_row_that_is_no_checkpoint_is_damage(tmp_path: Path) -> None:
    store = ProgressStore(tmp_path)
    store.claim("Partition 0", "", 0)
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("UPDATE task SET offsets = '{'")
    with pytest.raises(CheckpointError, match=r"is damaged"):
        store.claim("Partition 0", "", 0)


def test_a_newer_format_and_another_program_s_file_are_refused(tmp_path: Path) -> None:
    ProgressStore(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("PRAGMA user_version = 9")
    with pytest.raises(CheckpointError, match="format 9, and this s4node reads format 1"):
        ProgressStore(tmp_path)
    with sqlite3.connect(tmp_path / "x.sqlite") as database:
        database.execute("CREATE TABLE mine (a)")
    (tmp_path / "sub").mkdir()
    (tmp_path / "x.sqlite").rename(tmp_path / "sub" / FILE)
    with pytest.raises(CheckpointError, match="database of another program"):
        ProgressStore(tmp_path / "sub")


def test_a_folder_that_cannot_be_made_is_told_and_can_be_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "taken"
    folder.write_text("a file is in the way")
    with pytest.raises(ProgressUnwritten, match=r"cannot be kept.*s4.state.folder"):
        ProgressStore(folder / "below")
    folder.unlink()
    ProgressStore(folder / "below").close()


def test_a_file_that_another_process_holds_for_long_is_a_passing_trouble(tmp_path: Path) -> None:
    store = ProgressStore(tmp_path)
    claim, _ = store.claim("Partition 0", "", 0)
    holder = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(ProgressUnwritten, match="locked"):
        store.write(claim, at(1))
    holder.execute("ROLLBACK")
    store.write(claim, at(1))
    assert store.read() == {"Partition 0": at(1)}


def test_a_full_disk_is_a_passing_trouble_and_nothing_is_forgotten(tmp_path: Path) -> None:
    store = ProgressStore(tmp_path)
    claim, _ = store.claim("Partition 0", "", 0)
    store.write(claim, at(1))
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    large = Checkpoint({("log", f"stream-{n}", 0): n for n in range(2000)}, 1)
    with pytest.raises(ProgressUnwritten, match=r"is full.*make room on the disk"):
        store.write(claim, large)
    assert store.read() == {"Partition 0": at(1)}
    store._db.execute("PRAGMA max_page_count = 100000")
    store.write(claim, large)
    assert store.read() == {"Partition 0": large}


def test_progress_that_cannot_be_kept_is_told_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(ProgressUnwritten) as raised:
        ProgressStore(tmp_path)
    assert exit_status(raised.value) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"s4: progress cannot be kept in {tmp_path / FILE} (")
    assert told.count("\n") == 1
