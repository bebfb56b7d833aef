"""The files of the embedded log: damage, a full disk, a process that is killed."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from harness import ROOT, environment, nobody, until
from log_files import MIB, database, disk, locked, opened
from log_frames import append, events, numbered, read_all

from s4node.errors import InputLost, StoreCorrupt, StoreError
from s4node.log.partition.ledger import Appended
from s4node.log.partition.partition_database import FORMAT, create_database
from s4node.log.partition.partition_file import PartitionFile
from s4node.log.store import LogSettings, open_log
from s4node.log.writer import Answer, LogWriter
from s4node.offsets.system import Bounds

# --- what can be wrong with files ----------------------------------------------------------------


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwrite_head(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"this is no database at all")


def empty(path: Path) -> None:
    os.truncate(path, 0)


def newer(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


def of_another_stream(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = 'views' WHERE name = 'stream'")
    connection.close()


def another_application(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE frames (x)")
    connection.close()


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (newer, f"has format 99, and this s4node reads format {FORMAT}"),
        (of_another_stream, "is partition 0 of stream 'views', not partition 0 of"),
        (os.unlink, "0 partition files, but its stream.json has 1"),
    ],
)
async def test_a_file_that_is_not_the_partitions_own_is_refused_by_name(
    tmp_path: Path, harm: Callable[[Path], None], says: str
) -> None:
    async with opened(tmp_path):
        pass
    harm(database(tmp_path))
    with pytest.raises(StoreError, match=says) as caught:
        async with open_log(LogSettings(tmp_path)):
            pass
    assert str(tmp_path / "clicks") in str(caught.value)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (truncate, "is damaged"),
        (overwrite_head, "is damaged"),
        (empty, "is not a log file"),
        (another_application, "is not a log file"),
    ],
)
async def test_other_partitions_are_served_if_one_file_cannot_be_opened(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    harm: Callable[[Path], None],
    says: str,
) -> None:
    async with opened(tmp_path, 2) as log:
        for partition in log.streams["clicks"].partitions:
            frames = [numbered("a", n * 10, 10, width=5000) for n in range(20)]
            await append(partition, *frames)
    path = database(tmp_path)
    harm(path)
    capsys.readouterr()
    async with open_log(LogSettings(tmp_path)) as log:
        damaged, sound = log.streams["clicks"].partitions
        for ask in (
            lambda: damaged.bounds,
            lambda: damaged.read(0, 1000),
            lambda: damaged.offset_at(0),
            lambda: damaged.trim(200),
            lambda: append(damaged, numbered("a", 200, 10)),
        ):
            with pytest.raises(StoreCorrupt, match=says) as caught:
                await ask()
            assert str(caught.value).startswith(f"log stream clicks[0]: {path} is damaged")
            assert "or rename it to 0000.lost" in str(caught.value)
        assert len(await read_all(sound)) == 20
        assert await append(sound, numbered("a", 200, 10)) == [Appended(200, 10, 210)]
        assert await sound.trim(210) == 210
    assert capsys.readouterr().err.count("a partition cannot be used; the others can") == 1


async def test_a_partition_whose_file_was_given_up_begins_anew_and_reports_its_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = [numbered("a", n * 10, 10) for n in range(20)]
    async with opened(tmp_path) as log:
        await append(log.streams["clicks"].partitions[0], *frames)
    path = database(tmp_path)
    left = path.with_name(f"{path.name}-wal")
    left.write_bytes(b"of the former file")
    path.rename(path.with_name("0000.lost"))
    async with open_log(LogSettings(tmp_path)) as log:
        partition = log.streams["clicks"].partitions[0]
        begin = partition.bounds.oldest
        assert partition.bounds == Bounds(begin, begin)
        assert begin > 1 << 40
        assert await append(partition, frames[-1]) == [Appended(begin, 10, 200)]
        with pytest.raises(InputLost, match=r"offset 200 .* was deleted"):
            await partition.read(200, 1000)
    assert "starts again without the events of its former file" in capsys.readouterr().err
    kept = path.with_name(f"0000.lost-{begin}")
    assert kept.stat().st_size > 1000
    assert kept.with_name(f"{kept.name}-wal").read_bytes() == b"of the former file"
    async with open_log(LogSettings(tmp_path)) as log:  # once
        assert log.streams["clicks"].partitions[0].bounds == Bounds(begin, begin + 10)
    path.unlink()
    with pytest.raises(StoreError, match="0 partition files"):
        async with open_log(LogSettings(tmp_path)):
            pass


async def test_files_that_were_given_up_or_cannot_be_opened_do_not_count_in_the_quota(
    tmp_path: Path,
) -> None:
    """Else the log that was mended would wait for somebody to delete what he has put aside."""
    frames = [numbered("a", n * 10, 10, width=5000) for n in range(100)]
    async with opened(tmp_path, 3) as log:
        for partition in log.streams["clicks"].partitions[:2]:
            await append(partition, *frames)
    database(tmp_path).rename(database(tmp_path).with_suffix(".lost"))
    overwrite_head(database(tmp_path, 1))
    async with open_log(LogSettings(tmp_path, quota_bytes=4 * MIB)) as log:
        assert disk(tmp_path) > 10 * MIB
        anew = log.streams["clicks"].partitions[0]
        assert await append(anew, frames[0]) == [Appended(anew.bounds.oldest, 10, 10)]
        await log.create("views", 1)


async def test_a_bit_that_flipped_in_a_frame_is_found_when_it_is_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        frames = [numbered("a", n * 10, 10, width=5000) for n in range(20)]
        await append(log.streams["clicks"].partitions[0], *frames)
    path = database(tmp_path)
    data = bytearray(path.read_bytes())
    at = data.index((105).to_bytes(8, "big") + b"....") + 20
    data[at] ^= 1
    path.write_bytes(data)
    async with open_log(LogSettings(tmp_path)) as log:
        partition = log.streams["clicks"].partitions[0]
        assert len(await partition.read(0, 400_000)) == 8
        with pytest.raises(StoreCorrupt, match="the checksum of the frame at offset 100 is wrong"):
            await partition.read(100, 1)
        assert events(await partition.read(110, 1))[0] == (110, "a", 110)
        assert await partition.trim(110) == 110
        assert len(await read_all(partition)) == 9


async def test_damage_to_one_partition_stops_no_other(tmp_path: Path) -> None:
    async with opened(tmp_path, 2) as log:
        for partition in log.streams["clicks"].partitions:
            frames = [numbered("a", n * 10, 10, width=5000) for n in range(20)]
            await append(partition, *frames)
            await partition.trim(100)
    with database(tmp_path).open("r+b") as file:  # SQLite's list of free pages
        file.seek(32)
        file.seek((int.from_bytes(file.read(4), "big") - 1) * 16_384)
        file.write(b"\xff" * 8)
    async with open_log(LogSettings(tmp_path)) as log:
        damaged, sound = log.streams["clicks"].partitions
        with pytest.raises(StoreCorrupt, match=r"0000\.sqlite is damaged"):
            await append(damaged, numbered("a", 200, 10, width=5000))
        with pytest.raises(StoreCorrupt, match=r"0000\.sqlite is damaged"):
            await damaged.trim(200)
        with pytest.raises(StoreCorrupt, match=r"0000\.sqlite is damaged"):
            await damaged.trim(150)
        assert len(await read_all(damaged)) == 10
        assert await append(sound, numbered("a", 200, 10)) == [Appended(200, 10, 210)]
        assert await sound.trim(210) == 210


async def test_a_frame_whose_pages_are_damaged_is_found_and_can_be_trimmed(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        frames = [numbered("a", n * 10, 10, width=5000) for n in range(20)]
        await append(log.streams["clicks"].partitions[0], *frames)
    path = database(tmp_path)
    data = bytearray(path.read_bytes())
    page = data.index((105).to_bytes(8, "big") + b"....") // 16_384 * 16_384
    data[page : page + 4] = b"\xff" * 4  # where the rest of the frame is
    path.write_bytes(data)
    async with open_log(LogSettings(tmp_path)) as log:
        partition = log.streams["clicks"].partitions[0]
        with pytest.raises(StoreCorrupt, match="is damaged"):
            await partition.read(100, 1)
        assert await partition.trim(110) == 110
        assert len(await read_all(partition)) == 9


@pytest.mark.slow
async def test_whatever_bytes_are_damaged_no_wrong_event_is_read(tmp_path: Path) -> None:
    """Damage is said, or it is where nothing is kept; all other errors fail the test."""
    async with opened(tmp_path) as log:
        frames = [numbered("a", n * 10, 10, width=700) for n in range(60)]
        await append(log.streams["clicks"].partitions[0], *frames)
    path = database(tmp_path)
    whole = path.read_bytes()
    chance = random.Random(4711)
    said = 0
    for _ in range(150):
        data = bytearray(whole)
        at = chance.randrange(len(data))
        if chance.random() < 0.5:  # where the structure of the file is
            at = at // 16_384 * 16_384 + chance.randrange(100)
        data[at : at + 4] = chance.randbytes(4)
        path.write_bytes(data)
        try:
            async with open_log(LogSettings(tmp_path)) as log:
                partition = log.streams["clicks"].partitions[0]
                upcoming = partition.bounds.upcoming
                for offset in range(partition.bounds.oldest, upcoming, 10):
                    rows = await partition.read(offset, 1)
                    assert events(rows)[offset - rows[0].start :] == [
                        (n, "a", n) for n in range(offset, rows[0].end)
                    ]
                await append(partition, numbered("b", 0, 1))
        except (StoreError, InputLost):
            said += 1
    assert said > 50


async def test_a_manifest_that_does_not_fit_the_files_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, 2):
        pass
    manifest = tmp_path / "clicks" / "stream.json"
    whole = manifest.read_text()
    manifest.write_bytes(whole.encode().replace(b"clicks", b"clicks\xff"))
    with pytest.raises(StoreError, match=r"stream.json cannot be read .*; put back a copy"):
        async with open_log(LogSettings(tmp_path)):
            pass
    for text, says in [
        (whole.replace('"partitions": 2', '"partitions": 3'), "has 2 partition files, but its"),
        (whole.replace('"format": 2', '"format": 3'), "has format 3"),
        (whole.replace('"clicks"', '"views"'), "belongs to stream 'views'"),
        (whole[:20], "cannot be read"),
        ("[]", "cannot be read"),
    ]:
        manifest.write_text(text)
        with pytest.raises(StoreError, match=says):
            async with open_log(LogSettings(tmp_path)):
                pass
    manifest.write_text(whole)
    async with open_log(LogSettings(tmp_path)) as log:
        assert list(log.streams) == ["clicks"]


# --- processes that die, disks that are full -----------------------------------------------------


def test_a_disk_that_fails_writes_loses_nothing_and_is_waited_for(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "log_process.py", "full", str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the disk is full" in done.stdout
    assert "went on" in done.stdout
    assert (done.stderr + done.stdout).count("appending to the log is waiting") == 1


async def test_a_full_file_system_is_waited_for_until_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(6 * MIB))
    async with opened(small_disk / "log") as log:
        partition = log.streams["clicks"].partitions[0]
        answers: list[Answer] = []
        for n in range(130):
            partition.append(numbered("a", n * 10, 10, width=2000), answers.append)
        await until(lambda: log.writer.trouble)
        assert "the disk is full" in log.writer.trouble
        there = partition.bounds.upcoming
        assert there == 10 * len(answers) < 1300
        assert len(events(await read_all(partition))) == there
        ballast.unlink()
        await until(lambda: len(answers) == 130)
        await until(lambda: not log.writer.trouble)
        assert events(await read_all(partition)) == [(n, "a", n) for n in range(1300)]


async def test_a_file_that_somebody_else_has_locked_is_waited_for(tmp_path: Path) -> None:
    answers: list[Answer] = []
    async with opened(tmp_path, 2) as log:
        waits, other = log.streams["clicks"].partitions
        await append(waits, numbered("a", 0, 10))
        with locked(database(tmp_path)):
            waits.append(numbered("a", 10, 10), answers.append)
            await until(lambda: log.writer.trouble)
            assert (
                f"{database(tmp_path)} cannot be written (database is locked)" in log.writer.trouble
            )
            waits.append(numbered("a", 20, 10), answers.append)
            assert await append(other, numbered("a", 0, 10)) == [Appended(0, 10, 10)]
            with trio.move_on_after(0.5):
                await waits.trim(10)
            assert answers == []
        await until(lambda: answers == [Appended(10, 10, 20), Appended(20, 10, 30)])
        await until(lambda: not log.writer.trouble)
        await until(lambda: waits.bounds.oldest == 10)
        assert events(await read_all(waits)) == [(n, "a", n) for n in range(10, 30)]
        assert await waits.trim(20) == 20


@pytest.mark.parametrize("suffixes", [("",), ("", "-shm")], ids=["the file", "all"])
async def test_a_file_that_may_not_be_written_is_waited_for_until_it_may(
    reachable: Path, suffixes: tuple[str, ...]
) -> None:
    """As when a copy was put back by another user: it was opened for reading alone."""
    path = database(reachable)
    async with opened(reachable, 2) as log:
        await append(log.streams["clicks"].partitions[0], numbered("a", 0, 10))
    files = [path.with_name(path.name + suffix) for suffix in suffixes]
    for file in files:
        file.touch(mode=0o444)
        file.chmod(0o444)
    answers: list[Answer] = []
    with nobody(reachable):
        async with open_log(LogSettings(reachable)) as log:
            waits, other = log.streams["clicks"].partitions
            assert len(await read_all(waits)) == 1
            waits.append(numbered("a", 10, 10), answers.append)
            await until(lambda: log.writer.trouble)
            assert (
                f"{path} cannot be written (attempt to write a readonly database)"
                in log.writer.trouble
            )
            assert await append(other, numbered("a", 0, 10)) == [Appended(0, 10, 10)]
            assert len(await read_all(waits)) == 1
            for file in files:
                file.chmod(0o644)
            await until(lambda: answers == [Appended(10, 10, 20)])
            await until(lambda: not log.writer.trouble)
            assert events(await read_all(waits)) == [(n, "a", n) for n in range(20)]


async def test_a_file_that_is_moved_away_is_not_written_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = database(tmp_path)
    answers: list[Answer] = []
    tries: list[str] = []
    blocked = LogWriter._blocked

    def noting(writer: LogWriter, lane: Any, frames: Any, trouble: str) -> None:
        tries.append(trouble)
        blocked(writer, lane, frames, trouble)

    monkeypatch.setattr(LogWriter, "_blocked", noting)
    async with opened(tmp_path, 2) as log:
        moved, other = log.streams["clicks"].partitions
        await append(moved, numbered("a", 0, 10))
        path.rename(path.with_name("0000.lost"))
        moved.append(numbered("a", 10, 10), answers.append)
        await until(lambda: log.writer.trouble)
        assert f"{path} is not the file that the log opened" in log.writer.trouble
        assert await append(other, numbered("a", 0, 10)) == [Appended(0, 10, 10)]
        path.write_bytes(path.with_name("0000.lost").read_bytes())  # a copy, while it runs
        moved.append(numbered("a", 20, 10), answers.append)
        tries.clear()
        await until(lambda: len(tries) >= 3)
        assert answers == []
    assert [type(answer) for answer in answers] == [StoreError, StoreError]


async def test_retention_by_size_stops_if_sizes_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s4node.log.writer.TICK_SECONDS", 0.1)
    steps: list[bool] = []
    do = LogWriter._do

    def noting(writer: LogWriter, *arguments: Any) -> bool:
        steps.append(do(writer, *arguments))
        return steps[-1]

    path, lost = database(tmp_path), database(tmp_path).with_suffix(".lost")
    async with opened(tmp_path) as log:
        frames = [numbered("a", n * 10, 10, width=500) for n in range(60)]
        await append(log.streams["clicks"].partitions[0], *frames)
    async with open_log(LogSettings(tmp_path, retention_bytes=200_000)):
        path.rename(lost)
        monkeypatch.setattr(LogWriter, "_do", noting)
        await until(lambda: len(steps) >= 3)
        assert not any(steps)
    lost.rename(path)
    async with open_log(LogSettings(tmp_path)) as log:
        partition = log.streams["clicks"].partitions[0]
        assert partition.standing.size > 190_000


async def test_a_producer_with_an_unwritten_frame_is_not_forgotten(
    tmp_path: Path,
) -> None:
    answers: list[Answer] = []
    async with open_log(LogSettings(tmp_path)) as log:
        partition = (await log.create("clicks", 1)).partitions[0]
        await append(partition, numbered("a", 0, 10))
        with locked(database(tmp_path)):
            partition.append(numbered("a", 10, 10), answers.append)
            await until(lambda: log.writer.trouble)
            assert partition.forget("a", lambda _: None)
        await until(lambda: answers == [Appended(10, 10, 20)])
        assert await append(partition, numbered("a", 0, 20)) == [Appended(20, 0, 20)]


def test_work_on_a_file_that_is_missing_raises_nothing(tmp_path: Path) -> None:
    path = tmp_path / "0000.sqlite"
    create_database(path, "clicks", 0)
    file = PartitionFile(path, "clicks", 0)
    path.rename(path.with_name("0000.lost"))
    file.work_off()
    file.close()


async def test_closing_a_log_whose_disk_is_full_answers_what_was_not_written(
    small_disk: Path,
) -> None:
    answers: list[Answer] = []
    async with opened(small_disk / "log") as log:
        partition = log.streams["clicks"].partitions[0]
        for n in range(500):
            partition.append(numbered("a", n * 10, 10, width=2000), answers.append)
        await until(lambda: log.writer.trouble)
    assert len(answers) == 500
    assert sum(isinstance(answer, StoreError) for answer in answers) > 0
    written = sum(answer.count for answer in answers if isinstance(answer, Appended))
    async with open_log(LogSettings(small_disk / "log")) as log:
        assert log.streams["clicks"].partitions[0].bounds.upcoming == written


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
async def test_a_partition_behaves_as_a_list_of_events(tmp_path: Path, seed: int) -> None:
    """Against a list in memory: appending, sending again, trimming, reading, opening again."""
    chance = random.Random(seed)
    model: list[tuple[int, str, int]] = []
    sent = {"a": 0, "b": 0, "c": 0}
    ends, oldest = [0], 0
    for _ in range(4):
        async with opened(tmp_path) as log:
            partition = log.streams["clicks"].partitions[0]
            assert partition.bounds == Bounds(oldest, len(model))
            known = {name: row.number for name, row in partition.producers.items()}
            assert [known.get(name, 0) for name in sent] == list(sent.values())
            for _ in range(25):
                if chance.random() < 0.1:
                    below = chance.randint(0, len(model))
                    oldest = max([oldest, *(end for end in ends if end <= below)])
                    assert await partition.trim(below) == oldest
                    continue
                group = []
                name = chance.choice("abc")
                for _ in range(chance.randint(1, 5)):
                    first = max(0, sent[name] - chance.choice([0, 0, 0, 3, 20]))
                    count = chance.choice([1, 7, 40])
                    group.append(numbered(name, first, count, width=chance.choice([8, 900])))
                    for number in range(sent[name], first + count):
                        model.append((len(model), name, number))
                    sent[name] = max(sent[name], first + count)
                    ends.append(len(model))
                await append(partition, *group)
                at = chance.randint(oldest, len(model) - 1)
                rows = await partition.read(at, chance.choice([1, 50_000]))
                assert events(rows) == model[rows[0].start : rows[-1].end]
            ends = sorted({oldest, *(row.end for row in await read_all(partition))})
            assert events(await read_all(partition)) == model[oldest:]


async def test_a_stream_that_the_disk_has_no_room_for_leaves_nothing_behind(
    small_disk: Path,
) -> None:
    async with open_log(LogSettings(small_disk / "log")) as log:
        with pytest.raises(StoreError, match=r"\.new-clicks/.*(full|I/O)"):
            await log.create("clicks", 200)
        assert [path.name for path in (small_disk / "log").iterdir()] == ["lock"]
        await log.create("clicks", 2)


async def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file/log cannot be used .*s4\.log\.folder"):
        async with open_log(LogSettings(tmp_path / "file" / "log")):
            pass
