"""Damage, and what is gone on from: kept checkpoints, what is left of a log, the one before."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import nobody

from s4node.errors import StateError, StoreCorrupt
from s4node.events.keys import crc32m
from s4node.state import epochs
from s4node.state.checkpoint_policy import CheckpointRetention, Policy
from s4node.state.database import DAMAGED, Database
from s4node.state.epochs import claim, saved_checkpoints
from s4node.state.rows import META, task_row
from s4node.state.task_state import TaskState
from s4node.store_spec import StoreSpec


def test_a_damaged_database_is_resumed_from_its_last_checkpoint_with_a_log_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Owner(tmp_path / "t", 1)
    first.commit(1)
    first.commit(2)
    first.keep()
    first.commit(3)
    first.die()
    (first.own / "CURRENT").write_bytes(b"MANIFEST-9999\n")
    second = Owner(tmp_path / "t", 2)
    assert second.found == at(2)
    told = capsys.readouterr().err
    assert "a state folder is damaged; resuming from the one before it" in told
    assert f"{first.own} is damaged" in told
    assert str(second.own) not in told  # where it was only copied to
    second.commit(3)
    second.die()
    third = Owner(tmp_path / "t", 3)
    assert third.found == at(3)
    third.die()


@pytest.mark.parametrize("keeps", [True, False], ids=["with a checkpoint", "without"])
def test_a_log_with_a_wrong_bit_has_the_commits_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keeps: bool
) -> None:
    first = Owner(tmp_path / "t", 1)
    first.commit(1)
    if keeps:
        first.keep()
    for n in range(2, 12):
        first.commit(n)
    first.crash()
    flip(log_of(first.own), 0.7)
    second = Owner(tmp_path / "t", 2)
    numbers, positions, commits = second.found
    assert numbers == {positions["log.clicks[0]"]} == {commits}  # all of one commit
    assert 2 < commits < 11
    assert "the last commits in a state folder are damaged" in capsys.readouterr().err
    second.die()
    third = Owner(tmp_path / "t", 3)  # and it is sound from now on
    assert third.found == (numbers, positions, commits)
    assert capsys.readouterr().err == ""
    third.die()


def test_a_log_that_has_lost_its_end_has_the_commits_before_that(tmp_path: Path) -> None:
    first = Owner(tmp_path / "t", 1)
    for n in range(1, 12):
        first.commit(n)
    first.crash()
    log = log_of(first.own)
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    second = Owner(tmp_path / "t", 2)
    numbers, positions, commits = second.found
    assert numbers == {positions["log.clicks[0]"]} == {commits}
    assert 0 < commits < 11
    second.die()


def test_a_wrong_bit_in_a_table_is_found_by_its_reader_and_never_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checkpoints that share the file are no better; the first that does not is gone on from."""
    first = Owner(tmp_path / "t", 1)
    first.commit(1)
    first.keep()
    (sound,) = first.own.glob("*.sst")
    first.commit(2)
    first.keep()
    first.keep()  # nothing is new: it has the same files
    (new,) = set(first.own.glob("*.sst")) - {sound}
    flip(new, 0.2)
    first.die()
    second = Owner(tmp_path / "t", 2)
    with pytest.raises(StoreCorrupt, match="it resumes from the part that is sound"):
        dict(second.counts.all())
    assert (second.own / DAMAGED).exists()
    second.die()
    capsys.readouterr()
    third = Owner(tmp_path / "t", 3)
    assert third.found == at(1)
    assert capsys.readouterr().err.count("a state folder is damaged") == 4  # 2, 1, 1.3 and 1.2
    third.die()


def test_a_copy_whose_place_is_gone_is_no_damage(tmp_path: Path) -> None:
    first = Owner(tmp_path / "t", 1)
    first.commit(1)
    with pytest.raises(StateError, match=r"cannot be copied to /proc/gone: .* No such file"):
        first.state.database.checkpoint(Path("/proc/gone"))  # as if it was removed meanwhile
    first.commit(2)
    first.die()
    assert not (first.own / DAMAGED).exists()
    assert Owner(tmp_path / "t", 2).found == at(2)


def test_if_nothing_is_sound_an_error_says_so_and_nothing_is_removed(tmp_path: Path) -> None:
    first = Owner(tmp_path / "t", 1)
    first.commit(1)
    first.keep()
    first.die()
    for folder in (first.own, first.folder / "1.1"):
        (folder / "CURRENT").write_bytes(b"MANIFEST-9999\n")
    with pytest.raises(StoreCorrupt, match=r"all 2 databases below .* restore .* from a backup"):
        Owner(tmp_path / "t", 2)
    assert (first.folder / "1.1" / "CURRENT").exists()


def test_a_database_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    first = Owner(tmp_path / "t", 1)
    first.commit(1)
    first.keep()
    first.state.database.write([task_row(META, b"format")], [b"9"])
    first.die()
    with pytest.raises(StateError, match=r"format b'9'.*use the version of s4node that wrote it"):
        Owner(tmp_path / "t", 2)
    assert epochs.epochs_of(tmp_path / "t") == [1]
    assert [one.commit for one in saved_checkpoints(tmp_path / "t")] == [1]


def test_checkpoints_go_by_number_and_by_age_and_the_newest_stays(tmp_path: Path) -> None:
    owner = Owner(tmp_path / "t", 1)
    folder = tmp_path / "t"
    for n in range(1, 6):
        owner.commit(n)
        owner.keep(NOW + n)
    assert [one.commit for one in saved_checkpoints(folder)] == [5, 4, 3, 2, 1]
    assert epochs.remove_old_checkpoints(folder, 1, 3, 3600, NOW + 6) == 2
    assert [one.name for one in saved_checkpoints(folder)] == ["1.5", "1.4", "1.3"]
    assert epochs.remove_old_checkpoints(folder, 1, 3, 2.5, NOW + 6) == 1
    assert epochs.remove_old_checkpoints(folder, 1, 3, 1, NOW + 9999) == 1
    assert [one.commit for one in saved_checkpoints(folder)] == [5]
    owner.keep(NOW + 7)
    assert [one.name for one in saved_checkpoints(folder)] == ["1.6", "1.5"]
    owner.die()


def test_a_clock_that_goes_backwards_removes_no_checkpoint_too_early(tmp_path: Path) -> None:
    owner = Owner(tmp_path / "t", 1)
    folder = tmp_path / "t"
    for n, now in ((1, NOW), (2, NOW - 5000), (3, NOW - 4999)):
        owner.commit(n)
        owner.keep(now)
    assert epochs.remove_old_checkpoints(folder, 1, 3, 3600, NOW - 4998) == 0
    assert [one.commit for one in saved_checkpoints(folder)] == [
        3,
        2,
        1,
    ]  # by number, whatever the clock
    (owner.own / "CURRENT").write_bytes(b"MANIFEST-9999\n")
    owner.die()
    second = Owner(folder, 2)
    assert second.found == at(3)
    second.die()


def test_an_unfinished_checkpoint_is_not_used_and_is_removed(tmp_path: Path) -> None:
    owner = Owner(tmp_path / "t", 1)
    folder = tmp_path / "t"
    owner.commit(1)
    owner.keep()
    (folder / "1.2.tmp").mkdir()  # killed while RocksDB made it
    (folder / "1.3").mkdir()  # and before it was said to be whole
    (folder / "2.1").mkdir()  # a later owner is at it
    assert [one.name for one in saved_checkpoints(folder)] == ["1.1"]
    epochs.remove_old_checkpoints(folder, 1, 3, 3600, NOW)
    assert sorted(entry.name for entry in folder.iterdir()) == ["1", "1.1", "2.1"]
    owner.die()


def test_a_checkpoint_is_due_so_long_after_the_last_one_and_one_that_fails_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = Owner(tmp_path / "t", 1)
    owner.commit(1)
    clock = [100.0]
    keeping = CheckpointRetention(
        tmp_path / "t", 1, Policy(60, 2, 0), None, lambda: clock[0], lambda: NOW
    )
    assert not keeping.due
    clock[0] = 160.0
    assert keeping.due
    keeping.make_checkpoint(owner.state)
    assert not keeping.due
    assert [one.commit for one in saved_checkpoints(tmp_path / "t")] == [1]
    clock[0] = 221.0
    blocked = CheckpointRetention(tmp_path / "other", 1, Policy(60, 2, 0), None, lambda: clock[0])
    (tmp_path / "other").touch()  # no folder
    blocked.make_checkpoint(owner.state)
    assert "a checkpoint could not be kept; it is retried" in capsys.readouterr().err
    assert not blocked.due
    owner.die()
    never = CheckpointRetention(tmp_path / "t", 1, Policy(0, 2, 0), None, lambda: clock[0])
    clock[0] = 1e9
    assert not never.due


FULL = """
import resource, sys
from pathlib import Path
from s4node.errors import StateError
from s4node.state.database import Database
database = Database(Path(sys.argv[1]))
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
n = failed = 0

rows = [bytes(4) + bytes([key]) for key in range(9)]

def write(n):
    database.write(rows, [n.to_bytes(8, "big") * 100] * 9)

while failed < 3:
    try:
        write(n + 1)
        n += 1
    except StateError as error:
        failed += 1
        assert "cannot be" in str(error), error
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
assert database.get(bytes(5))[:8] == n.to_bytes(8, "big")
for key in range(9):
    write(n + 1)
print(n + 1)
database.close()
"""


def test_after_a_full_disk_writing_goes_on_once_there_is_room(tmp_path: Path) -> None:
    """The limit of a file's size stands for the disk: to RocksDB both are a write that fails."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "t")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    database = Database(tmp_path / "t")
    rows = database.chunk(bytes(4), bytes(4) + b"\xff", 10)
    assert {value[:8] for _, value in rows} == {int(done.stdout).to_bytes(8, "big")}
    database.close()


def test_a_folder_that_may_only_be_read_is_told_with_the_fix(reachable: Path) -> None:
    folder = reachable / "state"
    folder.mkdir(mode=0o555)
    told = r"set s4\.state\.folder to a folder that you may write to"
    with nobody(reachable), pytest.raises(StateError, match=told):
        claim(folder / "tasks" / "t", 1, Database)
    folder.chmod(0o755)


# -- set-up ---------------------------------------------------------------------------------------


COUNTS = StoreSpec("counts", str, int)

NOW = 1_700_000_000.0


class Owner:
    """Who has a task, and commits the number ``n`` for 200 keys each time."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self.folder = folder
        self.epoch = epoch
        self.own = folder / str(epoch)
        self.state = TaskState(claim(folder, epoch, Database), crc32m, fence=epoch)
        self.counts = self.state.store(COUNTS)

    def commit(self, n: int) -> None:
        self.counts.put_many({f"key-{key}": n for key in range(200)})
        self.state.begin_commit({"log.clicks[0]": n})
        self.state.write_commit()
        self.state.end_commit(written=True)

    def keep(self, now: float = NOW) -> None:
        epochs.keep(self.folder, self.epoch, self.state.database, self.state.last[1], now)

    def die(self) -> None:
        self.state.close()

    def crash(self) -> None:
        """As after a kill, where nobody closed what is in the folder."""
        shutil.copytree(self.own, self.folder / "crashed")
        self.state.close()
        shutil.rmtree(self.own)
        (self.folder / "crashed").rename(self.own)

    @property
    def found(self) -> tuple[set[int], dict[str, int], int]:
        """The numbers, the position that goes with them, and how many commits there were."""
        return set(dict(self.counts.all()).values()), self.state.positions(), self.state.last[1]


def at(n: int, commits: int = 0) -> tuple[set[int], dict[str, int], int]:
    return {n}, {"log.clicks[0]": n}, commits or n


def flip(path: Path, part: float = 0.5) -> None:
    """Another bit in the middle of a file, in all folders that share it."""
    data = bytearray(path.read_bytes())
    with path.open("r+b") as file:
        file.seek(int(len(data) * part))
        file.write(bytes([data[int(len(data) * part)] ^ 0x10]))


def log_of(folder: Path) -> Path:
    return max(folder.glob("*.log"), key=lambda path: path.stat().st_size)
