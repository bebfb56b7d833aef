"""The store of progress: real files, several processes, and what can be wrong with a disk."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import environment

from s4node.errors import CheckpointError, ProgressUnwritten, TaskFenced
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.task_claims import FILE, TaskClaims
from s4node.process.exit_status import exit_status


def test_a_container_that_has_claimed_a_task_may_write_and_says_when(tmp_path: Path) -> None:
    store = TaskClaims(tmp_path / "new" / "folder")
    claim = store.claim("Partition 0", "", 0)
    assert store.tasks() == {"Partition 0": 0}
    store.renew(claim, 1_007)
    store.renew(claim, 1_009)
    store.close()
    again = TaskClaims(tmp_path / "new" / "folder")
    assert again.tasks() == {"Partition 0": 1_009}
    assert again.claim("Partition 0", "", 0).fence == claim.fence + 1


def test_a_new_fence_is_above_all_known_folders_and_fences(tmp_path: Path) -> None:
    store = TaskClaims(tmp_path)
    assert store.claim("Partition 0", "", 0, above=7).fence == 8
    assert store.claim("Partition 0", "", 0, above=3).fence == 9


def test_a_claim_fences_those_before_it(tmp_path: Path) -> None:
    one, other = TaskClaims(tmp_path), TaskClaims(tmp_path)
    old = one.claim("Partition 0", "tree", 1)
    one.renew(old, 3)
    new = other.claim("Partition 0", "tree", 2)
    with pytest.raises(TaskFenced, match="another container has taken over task 'Partition 0'"):
        one.renew(old, 99)
    other.renew(new, 5)
    assert one.tasks() == {"Partition 0": 5}


def test_an_owner_that_slept_through_later_epochs_cannot_claim(tmp_path: Path) -> None:
    store = TaskClaims(tmp_path)
    store.claim("Partition 0", "tree", 5)
    with pytest.raises(TaskFenced, match=r"now belongs to epoch 5, .* has epoch 4"):
        store.claim("Partition 0", "tree", 4)
    store.claim("Partition 0", "tree", 5)  # the same owner again


def test_epochs_of_another_coordination_do_not_matter(tmp_path: Path) -> None:
    store = TaskClaims(tmp_path)
    before = store.claim("Partition 0", "one tree", 70)
    store.claim("Partition 0", "another tree", 1)
    with pytest.raises(TaskFenced):
        store.renew(before, 1)


def test_tasks_do_not_disturb_each_other(tmp_path: Path) -> None:
    store = TaskClaims(tmp_path)
    claims = [store.claim(f"Partition {number}", "", 0) for number in range(3)]
    for number, claim in enumerate(claims):
        store.renew(claim, number)
    assert store.tasks() == {f"Partition {number}": number for number in range(3)}


def test_a_job_that_does_not_fit_is_refused_with_every_reason_and_the_way_out(
    tmp_path: Path,
) -> None:
    store = TaskClaims(tmp_path)
    store.admit(JOB)
    store.admit(JOB)
    other = JobGuard(2, "by-ssp", "s4", {"log.clicks": 2})
    with pytest.raises(CheckpointError) as caught:
        store.admit(other)
    said = str(caught.value)
    assert "written with s4.hasher = crc32m, which is now s4" in said
    assert "now by-ssp" in said
    assert "log.clicks had 4 partitions and has 2" in said
    assert f"the progress in {tmp_path / FILE} does not fit" in said
    assert "Or delete that folder" in said
    store.admit(JOB)  # a job that was refused leaves nothing


def test_many_that_make_the_file_at_once_all_get_it(tmp_path: Path) -> None:
    """SQLite does not wait where two change a new file to a write-ahead log."""
    for number in range(60):
        start = threading.Barrier(6)

        def opened(folder: Path = tmp_path / str(number), start: threading.Barrier = start) -> None:
            start.wait()
            TaskClaims(folder).close()

        with ThreadPoolExecutor(6) as pool:
            for done in [pool.submit(opened) for _ in range(6)]:
                done.result()


def test_processes_that_share_the_folder_wait_for_each_other(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        from pathlib import Path
        from s4node.offsets.task_claims import TaskClaims
        import sys
        store = TaskClaims(Path({str(tmp_path)!r}))
        claim = store.claim(sys.argv[1], "", 0)
        for number in range(200):
            store.renew(claim, number)
        """
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, f"task {number}"], env=environment())
        for number in range(4)
    ]
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    assert TaskClaims(tmp_path).tasks() == {f"task {number}": 199 for number in range(4)}


def test_damage_is_reported_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    with pytest.raises(
        CheckpointError, match=r"is damaged .*; put back a copy of it, or delete it"
    ) as caught:
        TaskClaims(tmp_path)
    assert not isinstance(caught.value, ProgressUnwritten)


def test_an_unreadable_guard_is_damage(tmp_path: Path) -> None:
    store = TaskClaims(tmp_path)
    store.admit(JOB)
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("UPDATE job SET guard = '{'")
    with pytest.raises(CheckpointError, match=r"is damaged"):
        store.admit(JOB)


def test_a_newer_format_and_another_program_s_file_are_refused(tmp_path: Path) -> None:
    TaskClaims(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("PRAGMA user_version = 9")
    with pytest.raises(CheckpointError, match="format 9, and this s4node reads format 7"):
        TaskClaims(tmp_path)
    with sqlite3.connect(tmp_path / "x.sqlite") as database:
        database.execute("CREATE TABLE mine (a)")
    (tmp_path / "sub").mkdir()
    (tmp_path / "x.sqlite").rename(tmp_path / "sub" / FILE)
    with pytest.raises(CheckpointError, match="database of another program"):
        TaskClaims(tmp_path / "sub")


def test_a_folder_that_cannot_be_made_is_reported_and_can_be_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "taken"
    folder.write_text("a file is in the way")
    with pytest.raises(ProgressUnwritten, match=r"cannot be saved.*s4.state.folder"):
        TaskClaims(folder / "below")
    folder.unlink()
    TaskClaims(folder / "below").close()


def test_a_file_that_another_process_holds_for_long_is_a_passing_trouble(tmp_path: Path) -> None:
    store = TaskClaims(tmp_path)
    claim = store.claim("Partition 0", "", 0)
    holder = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(ProgressUnwritten, match="locked"):
        store.renew(claim, 1)
    holder.execute("ROLLBACK")
    store.renew(claim, 1)
    assert store.tasks() == {"Partition 0": 1}


def test_a_full_disk_is_a_passing_trouble_and_nothing_is_forgotten(tmp_path: Path) -> None:
    store = TaskClaims(tmp_path)
    claim = store.claim("Partition 0", "", 0)
    store.renew(claim, 1)
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(ProgressUnwritten, match=r"is full.*free some space on the disk"):
        store.claim("a task with a long name " * 2000, "", 0)
    assert store.tasks()["Partition 0"] == 1
    store._db.execute("PRAGMA max_page_count = 100000")
    store.claim("task 2000", "", 0)
    store.renew(claim, 2)
    assert store.tasks()["Partition 0"] == 2


def test_progress_that_cannot_be_saved_is_reported_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(ProgressUnwritten) as raised:
        TaskClaims(tmp_path)
    assert exit_status(raised.value) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"s4: progress cannot be saved in {tmp_path / FILE} (")
    assert told.count("\n") == 1


# -- set-up ---------------------------------------------------------------------------------------


JOB = JobGuard(4, "by-partition", "crc32m", {"log.clicks": 4})
