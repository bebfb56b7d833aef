"""Followers of tasks in a folder: what their folders have is what a restore from the URL has."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from shipped_task import COUNTS, Owner, Place, rows_of

from s4node.errors import StateError, StoreCorrupt
from s4node.events.keys import crc32m
from s4node.state import epochs
from s4node.state.checkpoint_policy import CheckpointRetention, Policy
from s4node.state.database import Database
from s4node.state.remote_log import StoredFile
from s4node.state.standby.follower import STALE_SECONDS, Follower
from s4node.state.task_state import TaskState


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_a_standby_leads_to_the_state_that_a_restore_finds(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    at = Place(tmp_path)
    follower = at.follower()
    owner = at.owner()
    for _ in range(40):
        step = dice.random()
        if step < 0.5:
            owner.commit({f"key-{dice.randrange(50)}": dice.randrange(1000) for _ in range(9)})
        elif step < 0.6:
            owner.checkpoint()
        elif step < 0.85:
            follow(follower)
        elif step < 0.9:
            follower.close()  # its process ends
            follower = at.follower()
        elif step < 0.95:
            owner.state.close()
            owner = at.owner(rolled_back=owner.kept if dice.random() < 0.4 else None)
        else:
            owner.state.close()
            expected = at.restored()
            assert expected == at.taken_over(follower)
            follower = at.follower()
            owner = at.owner()
    owner.state.close()
    expected = at.restored()
    assert expected == at.taken_over(follower)


def test_a_standby_whose_folder_is_removed_begins_anew_and_has_all_of_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of an open database are there until it is opened again, as after a full disk."""
    at = Place(tmp_path)
    owner = at.owner()
    owner.commit({"one": 1})
    follower = at.follower()
    follower.follow()
    shutil.rmtree(follower.folder)
    owner.commit({"two": 2})
    with monkeypatch.context() as patch:
        patch.setattr(Database, "_write", full)
        with pytest.raises(StateError, match="No space left"):
            follower.follow()
    with pytest.raises(StoreCorrupt):
        follower.follow()
    follower.follow()
    owner.state.close()
    expected = at.restored()
    assert expected == at.taken_over(follower)


def test_a_folder_that_another_process_follows_into_is_not_removed_as_left(tmp_path: Path) -> None:
    at = Place(tmp_path)
    owner = at.owner()
    owner.commit({"one": 1})
    follower = at.follower()
    follower.follow()
    at.follower().remove_left()
    assert epochs.is_complete(follower.folder)
    follower.close()
    at.follower().remove_left()
    assert not follower.folder.exists()
    owner.state.close()


def test_a_standby_fetches_only_what_follows(tmp_path: Path) -> None:
    at = Place(tmp_path)
    owner = at.owner()
    for n in range(40):
        owner.commit({"key": n})
    owner.checkpoint()
    follower = at.follower()
    follower.follow()
    owner.commit({"key": 40})
    owner.state.close()
    follower.task.fetched = 0
    with at.claimed(follower) as (database, used):
        assert used
        assert TaskState(database, crc32m).store(COUNTS).get("key") == 40
    assert follower.task.fetched < 10  # the last commit, the claim, and what may follow


def test_an_owner_that_was_a_standby_removes_entries_without_reading_them_again(
    tmp_path: Path,
) -> None:
    at = Place(tmp_path)
    owner, follower = at.owner(), at.follower()
    follower.follow()
    for n in range(8):
        owner.commit({"key": n})
    owner.checkpoint()
    follower.follow()
    owner.state.close()
    task = follower.task
    with at.claimed(follower) as (database, used):
        assert used
        fence = task.owner.fence
        state = TaskState(database, crc32m, fence=fence, ship=task)
        keeping = CheckpointRetention(at.here, fence, Policy(0, 1, 0), task)
        keeping.take_over(state)
        state.store(COUNTS).put("key", 8)
        state.begin_commit({})
        state.write_commit()
        state.end_commit(written=True)
        before, task.fetched = task.names_in("log"), 0
        upload = keeping.make_checkpoint(state)
        assert upload is not None
        upload()
        assert (len(before), len(task.names_in("log")), task.fetched) == (12, 5, 0)


def test_a_standby_that_is_too_late_begins_anew(tmp_path: Path) -> None:
    at = Place(tmp_path)
    owner, follower = left_behind(at)
    for _ in range(31):  # what comes next was removed
        follower.follow()
    with pytest.raises(StateError, match="does not lead on from entry"):  # the log was listed
        follower.follow()
    assert follower.at_end is None
    follower.follow()
    assert follower.at_end is not None
    owner.state.close()
    assert at.restored() == at.taken_over(follower)


def test_a_standby_that_was_long_away_is_not_at_the_end_of_what_is_left(tmp_path: Path) -> None:
    at = Place(tmp_path)
    _, follower = left_behind(at)
    assert follower.at_end is not None
    follower.at_end -= STALE_SECONDS
    with pytest.raises(StateError, match="does not lead on from entry"):
        follower.follow()


def test_a_standby_counts_how_often_the_log_goes_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Place(tmp_path)
    owner, follower = at.owner(), at.follower()
    owner.commit({"key": 1})
    owner.checkpoint()
    fetch = follower._fetch

    def slow(files: Mapping[str, StoredFile]) -> None:
        for n in range(3):
            owner.commit({"key": n})
            owner.checkpoint()
        fetch(files)

    monkeypatch.setattr(follower, "_fetch", slow)
    for times in (1, 2, 3):
        with pytest.raises(StoreCorrupt, match="is missing"):
            follower.follow()
        assert follower.left_behind == times
    monkeypatch.undo()
    follower.follow()
    follower.follow()
    assert (follower.left_behind, follower.at_end is None) == (0, False)
    owner.state.close()
    assert at.restored() == at.taken_over(follower)


def test_a_standby_is_not_left_behind_where_a_file_is_missing_for_good(tmp_path: Path) -> None:
    at = Place(tmp_path)
    owner, follower = at.owner(), at.follower()
    owner.commit({"key": 1})
    owner.checkpoint()
    shutil.rmtree(tmp_path / "store/here/app/tasks" / at.here.name / "files")
    for _ in range(3):
        with pytest.raises(StoreCorrupt, match="is missing"):
            follower.follow()
    assert follower.left_behind == 0  # who took the task over could not fetch it either


def test_nothing_is_followed_in_the_folder_of_the_owner(tmp_path: Path) -> None:
    at = Place(tmp_path)
    owner = at.owner(at.here)
    owner.commit({"key": 1})
    follower = at.follower()
    follower.follow()
    assert follower.at_end is not None
    assert follower.task.fetched == 0
    assert not follower.folder.exists()
    owner.state.close()
    expected = at.restored()
    with at.claimed(follower) as (database, was_followed):
        assert (rows_of(database), was_followed) == (expected, False)


def test_commits_that_were_never_shipped_are_reported_as_without_a_standby(tmp_path: Path) -> None:
    at = Place(tmp_path)
    owner = at.owner(at.here)
    owner.commit({"key": 1})
    owner.state.close()
    fence = epochs.highest(at.here) + 1
    state = TaskState(epochs.claim(at.here, fence, Database), crc32m, fence=fence)
    state.store(COUNTS).put("key", 2)
    state.begin_commit({})
    state.write_commit()
    state.end_commit(written=True)
    state.close()
    for _ in range(2):  # owners elsewhere, whose fences become higher
        owner = at.owner()
        owner.commit({"key": 3})
        owner.state.close()
    follower = at.follower()
    for _ in range(2):
        with pytest.raises(StateError, match=f"{at.here} has commit 2, .*and never shipped to"):
            follower.follow()
    with pytest.raises(StateError, match="and never shipped to"), at.claimed(follower):
        pass


def test_a_restore_without_its_standby_is_as_good(tmp_path: Path) -> None:
    at = Place(tmp_path)
    owner = at.owner()
    owner.commit({"key": 1})
    owner.checkpoint()
    follower = at.follower()
    follower.follow()
    owner.commit({"key": 2})
    owner.state.close()
    follower.close()
    for table in follower.folder.glob("CURRENT"):
        table.write_bytes(b"MANIFEST-9999\n")
    again = at.follower()
    with at.claimed(again) as (database, used):
        assert not used
        assert TaskState(database, crc32m).store(COUNTS).get("key") == 2


def test_a_folder_that_was_fetched_in_part_is_completed(tmp_path: Path) -> None:
    at = Place(tmp_path)
    owner = at.owner()
    owner.commit({f"key-{n}": n for n in range(5000)})
    owner.checkpoint()
    follower = at.follower()
    follower.follow()
    follower.close()
    tables = sorted(follower.folder.glob("*.sst"))
    assert tables
    epochs.unmark(follower.folder)
    tables[0].write_bytes(tables[0].read_bytes()[:-1])
    again = at.follower()
    again.follow()
    owner.state.close()
    assert at.restored() == at.taken_over(again)


def test_the_files_of_an_epoch_are_not_written_over(tmp_path: Path) -> None:
    at = Place(tmp_path)
    owner = at.owner(folder=at.here)
    owner.commit({f"key-{n}": n for n in range(5000)})
    owner.checkpoint()
    owner.state.close()
    before = {path.name: path.read_bytes() for path in at.newest().glob("*.sst")}
    other = at.owner()
    for n in range(3):
        other.commit({f"key-{n}": 7 for n in range(5000)})
        other.checkpoint()
    follower = at.follower()
    follower.follow()
    other.state.close()
    assert at.restored() == at.taken_over(follower)
    assert {path.name: path.read_bytes() for path in at.newest(1).glob("*.sst")} == before


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def follow(follower: Follower) -> None:
    with suppress(StateError):
        follower.follow()


def left_behind(at: Place) -> tuple[Owner, Follower]:
    """An owner, and a follower that was at the end of the log before entries of it were removed."""
    owner = at.owner()
    owner.commit({"key": 0})
    follower = at.follower()
    follower.follow()
    for n in range(3):
        owner.commit({"key": n})
        owner.checkpoint()
    return owner, follower
