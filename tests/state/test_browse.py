"""Saved state, for those who look at it: `s4 state` where that is not easy."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from s4node.cli.main import main
from s4node.errors import ProgressUnwritten
from s4node.events.keys import crc32m
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.task_claims import TaskClaims
from s4node.state import epochs
from s4node.state.database import Database
from s4node.state.job import task_folder
from s4node.state.task_state import TaskState
from s4node.store_spec import StoreSpec


@pytest.mark.parametrize("key", ['["k",1]', '["k", 1]', "('k', 1)"])
def test_a_key_is_taken_as_scan_shows_it_in_text_and_in_json(s4: S4, key: str) -> None:
    (row,) = (json.loads(line) for line in s4("state scan notes --json")[1].splitlines()[1:])
    assert row["key"] == ["k", 1]
    assert s4(f"state get notes {shlex.quote(key)}") == (0, "Partition 1  seen  ('k', 1)  8\n", "")

    ended, _, err = s4(f"state get notes {'[' * 100_000}")
    assert ended == 1
    assert "there is no state of '[[[" in err


def test_a_row_is_a_line_whatever_is_in_its_key(s4: S4, job: Path) -> None:
    folder = task_folder(job, "Partition 0")
    database = epochs.claim(folder, epochs.epochs_of(folder)[0] + 1, Database)
    state = TaskState(database, crc32m)
    state.store(StoreSpec("texts", str, int)).put("two\nlines\x1b[31m", 1)
    state.begin_commit({})
    state.write_commit()
    state.end_commit(written=True)
    state.close()
    quoted = "Partition 0  texts  two\\nlines\\x1b[31m  1\n"
    assert s4("state scan notes --table texts") == (0, quoted, "")


def test_scan_says_that_there_are_more_rows_than_it_shows(s4: S4) -> None:
    shown = "Partition 0  seen  ('k', 0)  7\n"
    more = "there are more rows than the limit of 1; --limit N shows more\n"
    assert s4("state scan notes --limit 1") == (0, shown, more)
    assert s4("state scan notes --limit 1 --json")[2] == more
    for whole in ("--limit 2", "--limit 3", "--limit 1 --task 'Partition 1'", ""):
        assert s4(f"state scan notes {whole}")[::2] == (0, "")


def test_a_task_that_is_damaged_is_named_and_hides_no_other(s4: S4, job: Path) -> None:
    place = task_folder(job, "Partition 1") / "1"
    (place / "CURRENT").write_bytes(b"MANIFEST-9999\n")
    said = f"s4: task 'Partition 1': {place} is damaged: "
    for command, shown in (
        ("state scan notes", "Partition 0  seen  ('k', 0)  7\n"),
        ("state get notes '[\"k\", 0]'", "Partition 0  seen  ('k', 0)  7\n"),
        ("state tasks notes", "Partition 0: nothing written\n  memory.clicks[0]: 5\n"),
    ):
        ended, out, err = s4(command)
        assert (ended, out) == (1, shown)
        assert err.startswith(said)
        assert ".look-" not in err
    assert s4("state scan notes --task 'Partition 0'")[0] == 0
    assert s4("state tasks notes --task 'Partition 0'")[0] == 0
    _, out, err = s4("state get notes joe")
    assert out == ""
    assert err.startswith(said)
    assert "there is no state of 'joe' in the other tasks" in err
    assert not (place / "damaged").exists()  # who looks changes nothing


# -- where nothing can be written -----------------------------------------------------------------


@contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """The same folder where nothing can be written, where this process may mount it so."""
    place = folder.with_name(f"{folder.name} to read")
    place.mkdir()
    if subprocess.run(
        ["mount", "--bind", folder, place], check=False, capture_output=True
    ).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", place], check=True)
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.parametrize("in_use", [False, True], ids=["alone", "beside its owner"])
def test_a_read_only_database_can_be_read(s4: S4, job: Path, in_use: bool) -> None:
    owner = TaskClaims(job) if in_use else None
    before = sorted(job.rglob("*"))
    with read_only(job.parent.parent) as place:
        for command in ("state scan notes", "state tasks notes", "startpoint show notes"):
            ended, out, err = s4(command, place)
            assert (ended, err) == (0, "") or "no startpoints are set" in err
            assert ("Partition 1" in out) is not command.startswith("startpoint")
        ended, _, err = s4("startpoint set notes memory.clicks[0] --oldest", place)
        assert ended == 1
        assert "fix its permissions" in err
    assert sorted(job.rglob("*")) == before
    if owner is not None:
        owner.close()


@contextmanager
def small(place: Path) -> Iterator[Path]:
    """A disk of its own, where this process may mount one."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "s4-test", place]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path) -> None:
    """Leave a little: for what SQLite needs, and not for a copy."""
    left = shutil.disk_usage(place).free - (80 << 10)
    (place / "filling").write_bytes(bytes(left))


LOOKS = ["state scan notes", "state tasks notes", "state tasks notes -p s4.state.url=URL"]


@pytest.mark.parametrize("command", LOOKS)
def test_where_the_disk_is_full_a_copy_goes_elsewhere_or_it_is_said_what_is_full(
    s4: S4, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    folder = task_folder(job, "Partition 0")
    database = epochs.claim(folder, epochs.epochs_of(folder)[0] + 1, Database)
    database.write([b"\xff" * 8], [bytes(200_000)])  # the log of commits is copied, not linked
    database.close()
    (tmp_path / "shipped" / "default" / "notes").mkdir(parents=True)
    command = command.replace("URL", f"file://{tmp_path}/shipped")
    (roomy := tmp_path / "roomy").mkdir()
    with small(tmp_path / "small") as disk:
        shutil.copytree(job.parent.parent, disk / "state")
        (disk / "tmp").mkdir()
        fill(disk)
        before = sorted(disk.rglob("*"))
        monkeypatch.setattr(tempfile, "tempdir", str(roomy))
        ended, out, err = s4(command, disk / "state")
        assert (ended, err) == (0, "")
        assert "Partition 0" in out
        assert "Partition 1" in out
        monkeypatch.setattr(tempfile, "tempdir", str(disk / "tmp"))
        ended, out, err = s4(command, disk / "state")
        tasks = disk / "state" / "default" / "notes" / "tasks"
        assert (ended, out) == (1, "")
        assert err == (
            f"s4: {tasks}/Partition%200 cannot be copied for reading: {tasks} is full, "
            f"{disk}/tmp is full; free some space, or set TMPDIR to a folder that you may write to "
            f"on a disk with space\n"
        )
        assert [path for path in sorted(disk.rglob("*")) if "-wal" not in path.name] == before
    assert not list(roomy.iterdir())


def test_the_last_commit_of_a_killed_owner_is_seen_in_a_read_only_folder(job: Path) -> None:
    owner = TaskClaims(job)
    owner.claim("Partition 2", "", 0)
    (folder := job.parent / "killed").mkdir()
    for path in job.glob("progress.sqlite*"):  # as a process leaves it that is killed
        (folder / path.name).write_bytes(path.read_bytes())
    owner.close()
    with read_only(folder) as place:
        store = TaskClaims(place)
        assert sorted(store.tasks()) == ["Partition 0", "Partition 1", "Partition 2"]
        with pytest.raises(ProgressUnwritten, match=r"is not writable .* to a copy"):
            store.claim("Partition 3", "", 0)
        store.close()
    assert "Partition 2" in TaskClaims(folder).tasks()


# -- set-up ---------------------------------------------------------------------------------------


SEEN = StoreSpec("seen", tuple[str, int], int)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The state of an app of two tasks: ``("k", n)`` of each task's ``n`` in a store."""
    folder = tmp_path / "state" / "default" / "notes"
    store = TaskClaims(folder)
    store.admit(JobGuard(2, "by-partition", "crc32m", {"memory.clicks": 2}))
    for number in range(2):
        claim = store.claim(f"Partition {number}", "", 0)
        database = epochs.claim(task_folder(folder, claim.task), claim.fence, Database)
        state = TaskState(database, crc32m, fence=claim.fence)
        state.store(SEEN).put(("k", number), 7 + number)
        state.begin_commit({f"memory.clicks[{number}]": 5})
        state.write_commit()
        state.end_commit(written=True)
        state.close()
    store.close()
    return folder


@pytest.fixture
def s4(job: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(command: str, state: Path = job.parent.parent) -> tuple[int, str, str]:
        ended = main([*shlex.split(command), "-p", f"s4.state.folder={state}"])
        told = capsys.readouterr()
        return ended, told.out, told.err

    return run


S4 = Callable[..., tuple[int, str, str]]
