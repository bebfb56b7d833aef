"""State at a URL: who takes over, what is true, what is removed. Real file systems of fsspec."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import pytest
from harness import filled

from s4node.errors import StateError, StoreCorrupt, TaskFenced
from s4node.events.keys import crc32m
from s4node.state import epochs, remote_log, remote_task
from s4node.state.checkpoint_policy import CheckpointRetention, Policy
from s4node.state.commit_id import shipped_of
from s4node.state.database import Database
from s4node.state.remote_job import RemoteJob
from s4node.state.remote_log import Checkpoint
from s4node.state.task_state import TaskState
from s4node.store_spec import StoreSpec

# -- taking over ----------------------------------------------------------------------------------


def test_a_node_without_the_folder_goes_on_from_the_last_commit(url: str, tmp_path: Path) -> None:
    committed(url, tmp_path / "one", 1, 2, 3)
    second = Owner(url, tmp_path / "two")
    assert second.found == at(3)
    second.commit(4)
    second.close()
    third = Owner(url, tmp_path / "three")
    assert third.found == at(4)
    assert third.state.last == (second.fence, 4, 1)
    third.close()


def test_a_node_that_has_been_it_before_needs_only_what_it_lacks(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Owner(url, tmp_path / "one")
    one.commit(1, keys=300)
    one.checkpoint()
    one.commit(2)
    one.close()
    two = Owner(url, tmp_path / "two")
    assert "state is being fetched" in capsys.readouterr().err
    two.commit(3)
    two.close()
    again = Owner(url, tmp_path / "one")
    assert "state is being fetched" not in capsys.readouterr().err
    assert again.found == ({1, 3}, {"log.clicks[0]": 3})
    again.close()


def test_a_folder_that_has_missed_a_checkpoint_is_filled_anew(url: str, tmp_path: Path) -> None:
    committed(url, tmp_path / "one", 1)
    two = Owner(url, tmp_path / "two")
    for n in range(2, 5):
        two.commit(n)
        two.checkpoint()
    two.close()
    assert found(url, tmp_path / "one") == at(4)


def test_a_damaged_folder_is_filled_anew_and_nothing_is_missing(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = committed(url, tmp_path / "one", 1, 2, 3)
    (tmp_path / "one" / str(first.fence) / "CURRENT").write_bytes(b"MANIFEST-9999\n")
    again = Owner(url, tmp_path / "one")
    assert again.found == at(3)
    assert "a state folder is damaged; resuming from what was shipped" in capsys.readouterr().err
    again.close()


def test_state_that_was_there_before_the_url_is_shipped_first(url: str, tmp_path: Path) -> None:
    state = TaskState(epochs.claim(tmp_path / "one", 1, Database), crc32m, fence=1)
    state.store(COUNTS).put("key-0", 7)
    state.begin_commit({"log.clicks[0]": 7})
    state.write_commit()
    state.end_commit(written=True)
    state.close()
    Owner(url, tmp_path / "one").close()
    assert found(url, tmp_path / "two") == at(7)


def test_unshipped_commits_are_reported(url: str, tmp_path: Path) -> None:
    """The URL was taken out of the settings for a while."""
    committed(url, tmp_path / "one", 1)
    state = TaskState(epochs.claim(tmp_path / "one", 0, Database), crc32m, fence=9)
    state.begin_commit({"log.clicks[0]": 2})
    state.write_commit()
    state.end_commit(written=True)
    state.close()
    told = r"has commit 2, which was written without .*last is 1\. To continue from the shipped"
    with pytest.raises(StateError, match=told):
        Owner(url, tmp_path / "one")
    assert found(url, tmp_path / "two") == at(1)


def unshipped(folder: Path, n: int) -> tuple[int, int, int]:
    """A commit without the URL; returns its fence, number and try."""
    fence = epochs.highest(folder) + 1
    state = TaskState(epochs.claim(folder, fence, Database), crc32m, fence=fence)
    state.store(COUNTS).put("key-0", n)
    state.begin_commit({"log.clicks[0]": n})
    state.write_commit()
    state.end_commit(written=True)
    last = state.last
    state.close()
    return last


@pytest.mark.parametrize("more", [0, 1, 2])
def test_an_unshipped_commit_is_not_taken_for_a_shipped_one_of_its_number(
    url: str, tmp_path: Path, more: int
) -> None:
    committed(url, tmp_path / "one", 1)
    second = committed(url, tmp_path / "two", *range(2, 3 + more))
    assert unshipped(tmp_path / "one", 50) == (second.fence, 2, 1)  # as the second's first one
    with pytest.raises(StateError, match=r"has commit 2, which was written without s4.state.url"):
        Owner(url, tmp_path / "one")
    assert found(url, tmp_path / "two") == at(2 + more)


def test_state_shipped_elsewhere_is_refused_at_a_url_that_is_not_empty(
    url: str, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        owner = Owner(f"{url}/{name}", tmp_path / name)
        owner.commit(1)
        owner.close()
    with pytest.raises(StateError, match=f"never shipped to {url}/b/"):
        Owner(f"{url}/b", tmp_path / "a")


def test_an_owner_with_a_new_url_goes_on_from_the_newest_shipped_commit(
    url: str, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        owner = Owner(f"{url}/old", tmp_path / name)
        owner.commit(len(name))
        owner.close()
    told = r"task folder 't' has commit 1, and .*/old/here/app, .* has commit 2"
    with pytest.raises(StateError, match=told):
        Owner(f"{url}/new", tmp_path / "one")
    Owner(f"{url}/new", tmp_path / "two").close()
    other = Owner(f"{url}/new", tmp_path / "three")
    assert other.found == at(3)
    other.close()


def test_a_folder_that_was_left_behind_is_filled_where_the_task_has_moved_with_its_place(
    url: str, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        owner = Owner(f"{url}/old", tmp_path / name)
        owner.commit(len(name))
        owner.close()
    third = Owner(f"{url}/new", tmp_path / "two")
    third.commit(4)
    third.close()
    for place in ("new", "/new"):  # however it is spelt
        again = Owner(f"{url}/{place}", tmp_path / "one")
        assert again.found == at(4)
        again.close()


def test_what_is_shipped_may_be_moved(url: str, tmp_path: Path) -> None:
    first = Owner(f"{url}/old", tmp_path / "one")
    first.commit(1)
    first.commit(2)
    first.close()
    files, root = fsspec.core.url_to_fs(url)
    files.copy(f"{root}/old", f"{root}/new", recursive=True)
    files.rm(f"{root}/old", recursive=True)
    again = Owner(f"{url}/new", tmp_path / "one")
    assert again.found == at(2)
    again.commit(3)
    again.close()
    other = Owner(f"{url}/new", tmp_path / "two")
    assert other.found == at(3)
    other.close()


def test_a_commit_without_the_url_after_a_rollback_is_reported_as_unshipped(
    url: str, tmp_path: Path
) -> None:
    committed(url, tmp_path / "one", 1)
    fence = epochs.highest(tmp_path / "one") + 1
    state = TaskState(epochs.claim(tmp_path / "one", fence, Database), crc32m, fence=fence)
    state.store(COUNTS).put("key-0", 50)
    state = state.reloaded()  # the task has failed at an event
    state.begin_commit({"log.clicks[0]": 2})
    state.write_commit()
    state.end_commit(written=True)
    assert shipped_of(state.database) == ""
    state.close()
    with pytest.raises(StateError, match="and never shipped to"):
        Owner(url, tmp_path / "one")


def test_a_crash_before_anything_is_there_changes_nothing(url: str, tmp_path: Path) -> None:
    unshipped(tmp_path / "one", 7)
    shipment = RemoteJob(url, Path("here/app")).task("t")
    shipment.claim(shipment.highest() + 2, "origin", 2)
    epochs.claim(tmp_path / "one", 2, Database, shipment).close()
    assert found(url, tmp_path / "one") == at(7)


@pytest.mark.parametrize(
    ("file", "stored"),
    [
        ("../outside", "{object}"),
        ("{place}/outside", "{object}"),
        ("below/outside", "{object}"),
        ("..", "{object}"),
        ("", "{object}"),
        ("a" * 300, "{object}"),
        ("a\\b", "{object}"),
        ("a\0", "{object}"),
        ("CURRENT", "../../../{object}"),
        ("CURRENT", "0000000000000001-../{object}"),
    ],
)
def test_a_manifest_whose_names_lead_elsewhere_is_refused_before_anything_is_written(
    url: str, tmp_path: Path, file: str, stored: str
) -> None:
    first = Owner(url, tmp_path / "one")
    first.commit(1)
    first.checkpoint()
    first.close()
    files, root = fsspec.core.url_to_fs(url)
    name = names(url, "log")[-1]
    place = f"{root}/here/app/tasks/t/log/{name}"
    sound = files.cat_file(place)
    checkpoint = remote_log.decoded(sound, name)
    assert isinstance(checkpoint, Checkpoint)
    known = checkpoint.files["CURRENT"]
    named = file.format(place=tmp_path), stored.format(object=known.object)
    listed = {**checkpoint.files, named[0]: msgspec.structs.replace(known, object=named[1])}
    bad = msgspec.structs.replace(checkpoint, files=listed)
    files.pipe_file(place, remote_log.encoded(bad))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StateError) as caught:
        Owner(url, tmp_path / "two")
    wrong = named[0] if stored == "{object}" else named[1]
    assert str(caught.value).startswith(
        f"{url}/here/app/tasks/t/log/{name} names a file {wrong!r}, which s4node does not"
    )
    made = {path for path in tmp_path.rglob("*") if path.is_file()} - set(before)
    assert {path.parent.name for path in made} <= {"claims", "log"}  # those of the new owner
    files.pipe_file(place, sound)
    assert found(url, tmp_path / "three") == at(1)


def test_an_object_never_gets_other_content_and_the_last_of_two_tries_counts(
    tmp_path: Path,
) -> None:
    owner = Owner(f"file://{tmp_path}/remote_job", tmp_path / "one")
    remote_job = tmp_path / "remote_job"
    seen: dict[Path, bytes] = {}

    def look() -> None:
        for path in remote_job.rglob("*"):
            if path.is_file():
                assert seen.setdefault(path, path.read_bytes()) == path.read_bytes(), path

    owner.commit(1)
    look()
    for n, there in ((2, 0), (3, 1)):  # no answer, whether it is there or not
        lose(owner, there)
        with pytest.raises(StateError, match="no answer"):
            owner.commit(n)
        look()
    lose(owner, -1)
    owner.checkpoint()
    look()
    owner.commit(4)
    owner.checkpoint()
    owner.checkpoint()  # of the same commit
    look()
    other = Owner(f"file://{tmp_path}/remote_job", tmp_path / "two")
    look()
    assert other.found == at(4)
    owner.close()
    other.close()


@pytest.mark.parametrize("there", [0, 1])
def test_a_commit_after_a_rollback_takes_back_what_a_failed_one_may_have_shipped(
    tmp_path: Path, there: int
) -> None:
    url = f"file://{tmp_path}/remote_job"
    owner = Owner(url, tmp_path / "one")
    owner.commit(1, keys=2)
    lose(owner, there)
    with pytest.raises(StateError, match="no answer"):
        owner.commit(2, keys=3)
    lose(owner, -1)
    owner.state = owner.state.reloaded()
    owner.counts = owner.state.store(COUNTS)
    owner.commit(3)
    expected = {"key-0": 3, "key-1": 1}
    assert dict(owner.counts.all()) == expected
    owner.close()
    other = Owner(url, tmp_path / "two")
    assert dict(other.counts.all()) == expected
    other.close()


def test_a_commit_of_a_shipped_task_is_written_as_soon_as_its_disk_has_room(
    tmp_path: Path, small_disk: Path
) -> None:
    owner = Owner(f"file://{tmp_path}/remote_job", small_disk / "one")
    owner.commit(1)
    ballast = filled(small_disk)
    for n in (2, 3):  # the second one fails when it opens the database again
        with pytest.raises(StateError, match="No space left on device"):
            owner.commit(n, keys=2000)
    assert owner.counts.get("key-0") == 3
    ballast.unlink()
    owner.commit(4)
    owner.close()
    other = Owner(f"file://{tmp_path}/remote_job", tmp_path / "two")
    assert (other.counts.get("key-0"), other.counts.get("key-1")) == (4, 3)
    other.close()


# -- who may write --------------------------------------------------------------------------------


def test_an_owner_that_wakes_up_can_commit_nothing(url: str, tmp_path: Path) -> None:
    paused = Owner(url, tmp_path / "one")
    paused.commit(1)
    owner = Owner(url, tmp_path / "two")
    with pytest.raises(TaskFenced, match="another container has taken"):
        paused.commit(100)
    assert paused.state.last[1] == 1  # not in its own folder, either
    owner.commit(2)
    there = names(url, "log")
    paused.checkpoint()  # which is no error: it may have handed the task over in order
    assert url.startswith("memory") or names(url, "log") == there
    third = Owner(url, tmp_path / "three")
    assert third.found == at(2)
    for one in (paused, owner, third):
        one.close()


@pytest.mark.parametrize("calls", range(12))
def test_an_upload_that_is_overtaken_by_the_next_owner_ends_without_an_error(
    tmp_path: Path, calls: int
) -> None:
    """As after a task was handed over in order, while what its last checkpoint holds is shipped."""
    url = f"memory://{tmp_path}/remote_job-{secrets.token_hex(4)}"
    before = Owner(url, tmp_path / "one")
    for n in range(1, 4):
        before.commit(n)
        before.checkpoint()
    upload = before.keeping.make_checkpoint(before.state)
    assert upload is not None
    before.close()
    owners: list[Owner] = []
    meddle(before, calls, lambda: owners.append(Owner(url, tmp_path / "two")))
    upload()
    assert not before.shipment.uploading
    after = owners[0] if owners else Owner(url, tmp_path / "two")
    assert after.found == at(3)
    after.commit(4)
    after.checkpoint()
    after.close()


def test_an_owner_of_an_earlier_epoch_is_refused(url: str, tmp_path: Path) -> None:
    owner = Owner(url, tmp_path / "one")
    owner.shipment.claim(owner.fence + 1, "origin", 7)
    late = owner.remote_job.task("t")
    late.highest()
    with pytest.raises(TaskFenced, match="now belongs to epoch 7"):
        late.claim(owner.fence + 2, "origin", 6)
    late.claim(owner.fence + 2, "another", 1)
    owner.close()


class Between:
    """Files of a job at which something happens between two calls."""

    def __init__(self, files: Any, at: int, what: Callable[[], None]) -> None:
        self._files = files
        self._left = at
        self._what: Callable[[], None] | None = what

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._files, name)
        if name not in ("names", "names_below", "get", "put", "put_new", "put_file", "remove"):
            return found

        def call(*arguments: Any, **more: Any) -> Any:
            self._left -= 1
            if self._left < 0 and self._what is not None:
                what, self._what = self._what, None
                what()
            return found(*arguments, **more)

        return call


def meddle(owner: Owner, at: int, what: Callable[[], None]) -> None:
    """Have something happen at a call of the owner's to come."""
    files: Any = owner.shipment._files
    owner.shipment._files = Between(files, at, what)  # type: ignore[assignment]


class Lost:
    """Files of a job that are put without an answer, in all tries: they are there if ``there``."""

    def __init__(self, files: Any, *, there: bool) -> None:
        self.files = files
        self._there = there

    def __getattr__(self, name: str) -> Any:
        return getattr(self.files, name)

    def put_new(self, place: str, data: bytes) -> bool:
        if self._there:
            self.files.put_new(place, data)
        raise OSError("no answer")


def lose(owner: Owner, at: int) -> None:
    """Have what an owner puts be lost (0), or be there without an answer (1); -1 ends that."""
    files: Any = owner.shipment._files
    files = files.files if isinstance(files, Lost) else files
    owner.shipment._files = files if at < 0 else Lost(files, there=bool(at))  # type: ignore[assignment]


# -- what is there --------------------------------------------------------------------------------


def test_what_cannot_be_removed_is_told_and_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = Owner((tmp_path / "remote_job").as_uri(), tmp_path / "one")
    log = tmp_path / "remote_job" / "here" / "app" / "tasks" / "t" / "log"
    before = set(log.iterdir())
    owner.commit(1)
    (entry,) = set(log.iterdir()) - before
    entry.rename(tmp_path / "entry")
    (entry / "kept").mkdir(parents=True)  # which cannot be removed as an object can
    for n in (2, 3):
        owner.checkpoint()
        owner.commit(n)
    told = capsys.readouterr().err
    assert "what checkpoints replace could not be removed; it is retried with the next" in told
    assert "could not be shipped" not in told
    (entry / "kept").rmdir()
    entry.rmdir()
    (tmp_path / "entry").rename(entry)
    owner.checkpoint()
    assert not entry.exists()
    assert capsys.readouterr().err == ""
    owner.close()


def test_a_table_is_put_there_once_and_what_nobody_needs_is_removed(
    url: str, tmp_path: Path
) -> None:
    owner = Owner(url, tmp_path / "one")
    tables: list[set[str]] = []
    for n in range(1, 6):
        owner.commit(n, keys=100)
        owner.checkpoint()
        (newest,) = names(url, "log")[-1:]
        files, root = fsspec.core.url_to_fs(url)
        data = files.cat_file(f"{root}/here/app/tasks/t/log/{newest}")
        checkpoint = remote_log.decoded(data, newest)
        assert isinstance(checkpoint, Checkpoint)
        tables.append({one.object for n, one in checkpoint.files.items() if n.endswith(".sst")})
    assert tables[0] & tables[1]  # the first table was not put there again
    assert set(names(url, "files")) >= tables[-1] | tables[-2]
    # the claim, the checkpoint before the last, a commit after it, and the last checkpoint
    assert [remote_log.number_of(name) for name in names(url, "log")] == [1, 9, 10, 11]
    assert len(names(url, "claims")) == 1
    owner.close()


def test_a_table_that_has_the_inode_and_the_size_of_one_that_is_gone_is_shipped_as_it_is(
    url: str, tmp_path: Path
) -> None:
    owner = Owner(url, tmp_path / "own")
    owner.commit(1)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    table = folder / "000001.sst"
    for text, written in ((b"one", 1), (b"two", 2)):
        table.write_bytes(text)  # the same inode again
        os.utime(table, (written, written))
        owner.shipment.upload_of(folder, (owner.fence, 1, 1))()
    fs, root = fsspec.core.url_to_fs(url)
    shipped = [fs.cat_file(path) for path in fs.find(root) if "/files/" in path]
    assert b"two" in shipped
    owner.close()


def test_many_commits_make_a_checkpoint_due(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_task, "MOST_COMMITS", 3)
    owner = Owner(url, tmp_path / "one")
    due = []
    for n in range(1, 4):
        owner.commit(n)
        due.append(owner.keeping.due)
    assert due == [False, False, True]
    owner.checkpoint()
    assert not owner.keeping.due
    owner.close()


def damage(url: str, folder: str, name: str, change: Callable[[bytes], bytes]) -> None:
    files, root = fsspec.core.url_to_fs(url)
    place = f"{root}/here/app/tasks/t/{folder}/{name}"
    files.pipe_file(place, change(files.cat_file(place)))


def flipped(data: bytes) -> bytes:
    if not data:
        return b"x"
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


def test_a_damaged_commit_at_the_url_ends_the_resumed_state_and_is_reported(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    committed(url, tmp_path / "one", 1, 2, 3, 4)
    damage(url, "log", names(url, "log")[3], flipped)
    second = Owner(url, tmp_path / "two")
    assert second.found == at(2)
    assert "a shipped commit is missing or damaged" in capsys.readouterr().err
    second.commit(3)
    second.close()
    assert found(url, tmp_path / "three") == at(3)


def test_a_file_that_is_damaged_there_leads_back_to_the_manifest_before(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Owner(url, tmp_path / "one")
    first.commit(1, keys=50)
    first.checkpoint()
    before = set(names(url, "files"))
    first.commit(2, keys=50)
    first.checkpoint()
    first.commit(3, keys=50)
    first.close()
    for name in set(names(url, "files")) - before:
        damage(url, "files", name, flipped)
    second = Owner(url, tmp_path / "two")
    assert second.found == at(3)  # the commits behind the earlier checkpoint are there, too
    assert (
        "a shipped checkpoint is damaged; resuming from the one before it"
        in capsys.readouterr().err
    )
    second.close()


def test_commits_on_other_state_are_not_applied_without_the_checkpoint_that_has_it(
    url: str, tmp_path: Path
) -> None:
    """As after a savepoint was restored: its owner does not go on from the last commit."""
    first = Owner(url, tmp_path / "one")
    first.commit(1, keys=3)
    first.checkpoint()
    first.commit(2, keys=3)
    first.close()
    before = set(names(url, "files"))
    unshipped(tmp_path / "two", 50)
    ship = RemoteJob(url, Path("here/app")).task("t")
    fence = ship.highest() + 1
    ship.claim(fence, "", 0)
    other = TaskState(
        epochs.claim(tmp_path / "two", fence, Database), crc32m, fence=fence, ship=ship
    )
    ship.take_over((1, 3, 0), other.owners, lambda: tmp_path / "two" / str(fence))
    other.store(COUNTS).put("key-0", 51)
    other.begin_commit({"log.clicks[0]": 51})
    other.write_commit()
    other.close()
    for name in set(names(url, "files")) - before:
        damage(url, "files", name, flipped)
    assert found(url, tmp_path / "three") == at(2)
    assert found(url, tmp_path / "four") == at(2)


def test_the_state_from_before_the_url_is_not_taken_for_empty_if_its_checkpoint_is_damaged(
    url: str, tmp_path: Path
) -> None:
    unshipped(tmp_path / "one", 7)
    committed(url, tmp_path / "one", 8)
    for name in names(url, "files"):
        damage(url, "files", name, flipped)
    with pytest.raises(StoreCorrupt, match=r"all 1 checkpoints at .* are damaged"):
        Owner(url, tmp_path / "two")


def test_without_a_sound_checkpoint_at_the_url_the_start_is_refused(
    url: str, tmp_path: Path
) -> None:
    first = Owner(url, tmp_path / "one")
    first.commit(1)
    first.checkpoint()
    first.commit(2)
    first.checkpoint()
    first.commit(3)
    first.checkpoint()
    first.close()
    for name in names(url, "files"):
        damage(url, "files", name, flipped)
    with pytest.raises(StoreCorrupt, match=r"all 2 checkpoints at .* are damaged"):
        Owner(url, tmp_path / "two")


def test_what_a_newer_version_has_shipped_is_refused(url: str, tmp_path: Path) -> None:
    committed(url, tmp_path / "one", 1)
    name = names(url, "log")[-1]
    damage(url, "log", name, lambda data: data[:3] + b"9" + data[4:])
    with pytest.raises(StateError, match="has format 9, and this s4node reads 1; use the"):
        Owner(url, tmp_path / "two")


def test_a_url_that_cannot_be_used_is_reported_and_tried_again(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/remote_job"
    owner = Owner(url, tmp_path / "one")
    owner.commit(1)
    entries = tmp_path / "remote_job" / "here" / "app" / "tasks" / "t" / "log"
    entries.rename(tmp_path / "away")
    with pytest.raises(
        StateError,
        match=r"remote_job/here/app cannot be read or written: FileNotFound.*; create the",
    ):
        owner.commit(2)
    assert owner.state.last[1] == 1
    (tmp_path / "away").rename(entries)
    owner.commit(3)
    owner.close()
    assert found(url, tmp_path / "two") == at(3)


# -- how much at a time -----------------------------------------------------------------------


def test_many_objects_are_fetched_at_a_time_and_written_at_once(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/remote_job"
    committed(url, tmp_path / "one", *range(1, 70))
    writes: list[int] = []

    class Counting(Database):
        def fill(self, rows: list[bytes], values: list[bytes | None]) -> None:
            writes.append(len(rows))
            super().fill(rows, values)

    task = RemoteJob(url, Path("here/app")).task("t")
    cat = task._files.fs.cat_file
    together = threading.Barrier(remote_log.AT_ONCE)
    left = [remote_log.AT_ONCE]

    def cat_file(place: str) -> bytes:
        left[0] -= 1
        if left[0] >= 0:
            together.wait(60)  # it breaks if fewer are fetched at a time
        return bytes(cat(place))

    task._files.fs.cat_file = cat_file
    try:
        database = task.restored(tmp_path / "two", lambda: None, Counting)
    finally:
        task._files.fs.cat_file = cat
    assert TaskState(database, crc32m).positions() == {"log.clicks[0]": 69}
    database.close()
    assert len(writes) == 1
    assert (task.fetched, task.wanted) == (34, 34)  # the last 32, and two before them


def test_the_slower_a_place_is_the_fewer_commits_follow_a_checkpoint(tmp_path: Path) -> None:
    owner = Owner(f"file://{tmp_path}/remote_job", tmp_path / "one")
    owner.shipment._restore_seconds = 1e-12
    assert not owner.keeping.due
    owner.commit(1)
    assert owner.keeping.due
    owner.checkpoint()
    assert not owner.keeping.due
    owner.close()


# -- set-up ---------------------------------------------------------------------------------------


COUNTS = StoreSpec("counts", str, int)


class Owner:
    """Who has taken the task over, with a folder of its own; commits count in the key ``n``."""

    def __init__(self, url: str, folder: Path) -> None:
        self.remote_job = RemoteJob(url, Path("here/app"))
        self.shipment = self.remote_job.task("t")
        self.folder = folder
        self.fence = max(self.shipment.highest(), epochs.highest(folder)) + 1
        self.shipment.claim(self.fence, "origin", self.fence)
        database = epochs.claim(folder, self.fence, Database, self.shipment)
        self.state = TaskState(database, crc32m, fence=self.fence, ship=self.shipment)
        self.keeping = CheckpointRetention(folder, self.fence, Policy(0, 1, 0), self.shipment)
        self.keeping.take_over(self.state)
        self.counts = self.state.store(COUNTS)

    def commit(self, n: int, keys: int = 1) -> None:
        self.counts.put_many({f"key-{key}": n for key in range(keys)})
        self.state.begin_commit({"log.clicks[0]": n})
        written = False
        try:
            self.state.write_commit()
            written = True
        finally:
            self.state.end_commit(written=written)

    def checkpoint(self) -> None:
        upload = self.keeping.make_checkpoint(self.state)
        assert upload is not None
        upload()

    @property
    def found(self) -> tuple[set[int], dict[str, int]]:
        return set(dict(self.counts.all()).values()), self.state.positions()

    def close(self) -> None:
        self.state.close()


def committed(url: str, folder: Path, *numbers: int) -> Owner:
    """An owner that has committed these numbers, and has closed."""
    owner = Owner(url, folder)
    for n in numbers:
        owner.commit(n)
    owner.close()
    return owner


def found(url: str, folder: Path) -> tuple[set[int], dict[str, int]]:
    """The state that the next owner finds."""
    owner = Owner(url, folder)
    try:
        return owner.found
    finally:
        owner.close()


def at(n: int) -> tuple[set[int], dict[str, int]]:
    return {n}, {"log.clicks[0]": n}


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    name = f"{request.param}://{tmp_path}/remote_job-{secrets.token_hex(4)}"
    yield name
    files, root = fsspec.core.url_to_fs(name)
    if files.exists(root):
        files.rm(root, recursive=True)


def names(url: str, folder: str) -> list[str]:
    files, root = fsspec.core.url_to_fs(url)
    files.invalidate_cache()
    return sorted(
        str(path).rpartition("/")[2]
        for path in files.ls(f"{root}/here/app/tasks/t/{folder}", detail=False)
    )
