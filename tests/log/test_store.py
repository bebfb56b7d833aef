"""The files of the embedded log: nothing acknowledged is lost, nothing is there twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing
from harness import ROOT, environment, until
from log_files import MIB, Clock, disk, opened
from log_frames import CLICK, append, events, numbered, read_all

from s4node import clocks
from s4node.config.config import Config
from s4node.errors import InputLost, S4Error, StartpointError, StoreError
from s4node.log.partition.ledger import Appended, Incoming
from s4node.log.store import LogSettings, open_log
from s4node.log.streams import LogPartition
from s4node.log.writer import Answer
from s4node.offsets.system import Bounds

# --- appending and reading -----------------------------------------------------------------------


async def test_a_frame_comes_out_as_it_went_in(tmp_path: Path) -> None:
    frame = Incoming(
        "phone",
        100,
        3,
        b"\x91\x01\x92\x02\x03",
        numbered("", 0, 1).sections,
        order=b"\x00\x01\x01",
        encoding=1,
        routing="crc32m:user",
        created_ms=1234,
        headers={"trace": b"\x00\xff", "depth": 2},
        types={CLICK.fingerprint: CLICK},
    )
    async with open_log(LogSettings(tmp_path), clock=Clock(77.5)) as log:
        partition = (await log.create("clicks", 1)).partitions[0]
        assert await append(partition, frame) == [Appended(0, 3, 103)]
        (row,) = await partition.read(1, 1)
        assert (row.start, row.first, row.end, row.appended_ms) == (0, 0, 3, 77_500)
        assert (row.producer, row.number, row.count) == ("phone", 100, 3)
        assert (row.body, row.order, row.encoding) == (frame.body, frame.order, 1)
        assert (row.routing, row.created_ms) == ("crc32m:user", 1234)
        assert row.headers == {"trace": b"\x00\xff", "depth": 2}
        assert row.sections == frame.sections
        assert partition.types == {CLICK.fingerprint: CLICK}


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path, 2) as log:
        one, other = log.streams["clicks"].partitions
        await append(one, numbered("a", 0, 5), numbered("b", 7, 5), numbered("a", 3, 4))
        await append(other, numbered("a", 0, 1))
    async with open_log(LogSettings(tmp_path)) as log:
        one, other = log.streams["clicks"].partitions
        assert (one.bounds, other.bounds) == (Bounds(0, 12), Bounds(0, 1))
        assert {name: row.number for name, row in one.producers.items()} == {"a": 7, "b": 12}
        assert one.types == {CLICK.fingerprint: CLICK}
        assert await append(one, numbered("a", 5, 4)) == [Appended(12, 2, 9)]
        assert events(await read_all(one)) == [
            *((n, "a", n) for n in range(5)),
            *((n + 5, "b", n + 7) for n in range(5)),
            (10, "a", 5),
            (11, "a", 6),
            (12, "a", 7),
            (13, "a", 8),
        ]


async def test_reading_gives_whole_rows_up_to_a_number_of_bytes(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        partition = log.streams["clicks"].partitions[0]
        await append(partition, *[numbered("a", n * 10, 10, width=10) for n in range(6)])
        assert [row.first for row in await partition.read(15, 1)] == [10]
        assert [row.first for row in await partition.read(15, 250)] == [10, 20]
        assert [row.first for row in await partition.read(10, 300)] == [10, 20, 30]
        assert await partition.read(60, 100) == []


async def test_reading_outside_of_the_partition_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        partition = log.streams["clicks"].partitions[0]
        await append(partition, numbered("a", 0, 5), numbered("a", 5, 5))
        assert await partition.trim(5) == 5
        with pytest.raises(InputLost, match=r"offset 4 .* was deleted, the oldest is 5"):
            await partition.read(4, 100)
        with pytest.raises(StartpointError, match=r"offset 11 .* end, 10"):
            await partition.read(11, 100)


async def test_an_offset_is_found_by_the_time_of_appending(tmp_path: Path) -> None:
    clock = Clock()
    async with open_log(LogSettings(tmp_path), clock) as log:
        partition = (await log.create("clicks", 1)).partitions[0]
        assert await partition.offset_at(0) == 0
        for n in range(40):
            clock.seconds = 1000.0 + 10 * (n // 3)
            await append(partition, numbered("a", n * 7, 7))
        for n in range(40):
            first = 7 * 3 * (n // 3)
            assert await partition.offset_at(1_000_000 + 10_000 * (n // 3)) == first
            assert await partition.offset_at(999_001 + 10_000 * (n // 3)) == first
        assert await partition.offset_at(1_130_001) == 280
        assert await partition.offset_at(0) == 0


async def test_a_clock_that_goes_back_does_not_disorder_the_times(tmp_path: Path) -> None:
    clock = Clock(2000.0)
    async with open_log(LogSettings(tmp_path), clock) as log:
        partition = (await log.create("clicks", 1)).partitions[0]
        await append(partition, numbered("a", 0, 1))
        clock.seconds = 1000.0
        await append(partition, numbered("a", 1, 1))
    clock.seconds = 500.0
    async with open_log(LogSettings(tmp_path), clock) as log:
        partition = log.streams["clicks"].partitions[0]
        await append(partition, numbered("a", 2, 1))
        clock.seconds = 2001.0
        await append(partition, numbered("a", 3, 1))
        times = [row.appended_ms for row in await read_all(partition)]
        assert times == [2_000_000, 2_000_000, 2_000_000, 2_001_000]
        assert await partition.offset_at(2_000_001) == 3


async def test_a_producer_is_forgotten_with_the_parts_of_its_frames_and_stays_so(
    tmp_path: Path,
) -> None:
    async with open_log(LogSettings(tmp_path)) as log:
        partition = (await log.create("clicks", 1)).partitions[0]
        for name in ("gone", "gone\t3", "here"):
            await append(partition, numbered(name, 0, 3))
        answers: list[object] = []
        assert partition.forget("gone", answers.append)
        await until(lambda: answers)
        assert list(partition.producers) == ["here"]
        assert not partition.forget("gone", answers.append)
    async with open_log(LogSettings(tmp_path)) as log:
        partition = log.streams["clicks"].partitions[0]
        assert list(partition.producers) == ["here"]
        assert await append(partition, numbered("gone", 50, 1)) == [Appended(9, 1, 51)]


# --- the queue -----------------------------------------------------------------------------------


async def test_a_producer_that_sends_much_does_not_hold_up_one_that_sends_little(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as log:
        partition = log.streams["clicks"].partitions[0]
        told: list[str] = []
        for n in range(150):
            frame = numbered("much", n * 100, 100, width=1000)
            partition.append(frame, lambda answer: told.append("much"))
        partition.append(numbered("little", 0, 1), lambda answer: told.append("little"))
        await until(lambda: len(told) == 151)
        assert told.index("little") < 100  # two groups of the first


async def test_busy_partitions_do_not_starve_a_quiet_one(tmp_path: Path) -> None:
    async with opened(tmp_path, 4) as log:
        *busy, quiet = log.streams["clicks"].partitions
        told: list[int] = []
        sent = 0

        def more(partition: LogPartition) -> None:
            """Keep the partition's queue full until the quiet one has been served."""
            nonlocal sent

            def done(answer: Answer) -> None:
                told.append(partition.number)
                if 3 not in told:
                    more(partition)

            sent += 1
            name = f"{partition.number}-{sent}"
            partition.append(numbered(name, 0, 100, width=10_000), done)

        for partition in busy:
            for _ in range(5):
                more(partition)
        quiet.append(numbered("a", 0, 1), lambda answer: told.append(3))
        await until(lambda: 3 in told and len(told) == sent + 1)
        assert told.index(3) <= 2 * 15


async def test_closing_writes_what_was_queued(tmp_path: Path) -> None:
    answers: list[Answer] = []
    async with opened(tmp_path) as log:
        partition = log.streams["clicks"].partitions[0]
        for n in range(200):
            partition.append(numbered("a", n * 10, 10, width=1000), answers.append)
    assert sum(a.count for a in answers if isinstance(a, Appended)) == 2000
    async with open_log(LogSettings(tmp_path)) as log:
        assert log.streams["clicks"].partitions[0].bounds == Bounds(0, 2000)


async def test_appending_to_a_closed_log_is_an_error(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        partition = log.streams["clicks"].partitions[0]
    with pytest.raises(StoreError, match="the log is closed"):
        await append(partition, numbered("a", 0, 1))


async def test_a_reader_is_told_when_the_log_is_closed(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        partition = log.streams["clicks"].partitions[0]
        await append(partition, numbered("a", 0, 5))
    with pytest.raises(StoreError, match="is closed"):
        await partition.read(0, 1)


async def test_a_writer_that_fails_answers_everything_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as log:
        partition = log.streams["clicks"].partitions[0]
        await append(partition, numbered("a", 0, 5))
        with monkeypatch.context() as patch:
            broken = "s4node.log.partition.partition_file.PartitionFile.write_plan"
            patch.setattr(broken, lambda file, plan: 1 / 0)
            with pytest.raises(StoreError, match=r"writer has failed .*ZeroDivisionError"):
                await append(partition, numbered("a", 5, 5))
        with pytest.raises(StoreError, match="restart the node"):
            await append(partition, numbered("a", 5, 5))
        with pytest.raises(StoreError, match="writer has failed"):
            await partition.trim(5)
        assert "writer has failed" in log.writer.trouble
        assert len(events(await read_all(partition))) == 5
    async with open_log(LogSettings(tmp_path)) as log:
        partition = log.streams["clicks"].partitions[0]
        assert await append(partition, numbered("a", 0, 10)) == [Appended(5, 5, 10)]


# --- streams -------------------------------------------------------------------------------------


async def test_a_stream_is_made_once_and_keeps_its_settings(tmp_path: Path) -> None:
    async with open_log(LogSettings(tmp_path)) as log:
        stream = await log.create("clicks", 3, key="user", retention_ms=5000)
        assert (stream.name, len(stream.partitions), stream.key) == ("clicks", 3, "user")
        assert await log.create("clicks", 3, key="user", retention_ms=5000) is stream
        with pytest.raises(StoreError, match="other settings: partitions 3, not 4; ask"):
            await log.create("clicks", 4, key="user", retention_ms=5000)
        with pytest.raises(StoreError, match="key user, not none; retention 5000 ms, not as the "):
            await log.create("clicks", 3)
    async with open_log(LogSettings(tmp_path)) as log:
        assert log.streams["clicks"].settings == stream.settings


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a b", "ü", "x" * 201, "-x"])
async def test_a_name_that_no_folder_should_have_is_refused(tmp_path: Path, name: str) -> None:
    async with open_log(LogSettings(tmp_path / "log")) as log:
        with pytest.raises(StoreError, match="not a valid stream name for the log"):
            await log.create(name, 1)
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["lock"]


@pytest.mark.parametrize("partitions", [0, -1, 4097])
async def test_a_number_of_partitions_out_of_bounds_is_refused(
    tmp_path: Path, partitions: int
) -> None:
    async with open_log(LogSettings(tmp_path)) as log:
        with pytest.raises(StoreError, match=f"1 to 4096 partitions, not {partitions}"):
            await log.create("clicks", partitions)


async def test_what_a_crash_left_of_a_stream_that_was_being_made_is_removed(tmp_path: Path) -> None:
    half = tmp_path / ".new-clicks"
    half.mkdir()
    (half / "0000.sqlite").write_bytes(b"")
    async with open_log(LogSettings(tmp_path)) as log:
        assert dict(log.streams) == {}
        assert not half.exists()
        await log.create("clicks", 1)


async def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    holder = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, ROOT / "tests" / "log_process.py", "append", str(tmp_path), "0"],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().startswith("p0 ")
        with pytest.raises(StoreError, match=rf"in use by process {holder.pid} on "):
            async with open_log(LogSettings(tmp_path)):
                pass
    finally:
        holder.kill()
        holder.communicate()
    async with open_log(LogSettings(tmp_path)) as log:  # the kernel let go of the lock
        assert log.streams["clicks"].partitions[0].bounds.upcoming > 0


def test_the_settings_come_from_the_configuration(tmp_path: Path) -> None:
    values = {
        "s4.log.folder": str(tmp_path),
        "s4.log.retention.ms": "1500",
        "s4.log.quotaBytes": "2000",
        "s4.log.sync": "full",
    }
    assert LogSettings.from_config(Config.from_values(values)) == LogSettings(
        tmp_path, 1500, quota_bytes=2000, sync="full"
    )
    for text, millis in [("0", 0), ("0.5", 1), ("1009", 1009), ("604800000", 604_800_000)]:
        assert (
            LogSettings.from_config(Config.from_values({"s4.log.retention.ms": text})).retention_ms
            == millis
        )


# --- retention and quota -------------------------------------------------------------------------


async def test_frames_that_are_too_old_go_and_the_newest_stays(tmp_path: Path) -> None:
    clock = Clock()
    async with open_log(LogSettings(tmp_path, retention_ms=60_000), clock) as log:
        partition = (await log.create("clicks", 1)).partitions[0]
        for n in range(10):
            await append(partition, numbered("a", n * 10, 10))
            clock.seconds += 10
        await until(lambda: partition.bounds == Bounds(40, 100))
        clock.seconds += 1_000_000
        await until(lambda: partition.bounds == Bounds(90, 100))
    async with open_log(LogSettings(tmp_path, retention_ms=60_000), clock) as log:
        partition = log.streams["clicks"].partitions[0]
        assert partition.bounds == Bounds(90, 100)
        assert partition.producers["a"].number == 100
        assert len(events(await read_all(partition))) == 10


async def test_a_clock_that_is_set_deletes_nothing_early(tmp_path: Path) -> None:
    steady, set_by = Clock(), Clock(0.0)
    settings = LogSettings(tmp_path, retention_ms=3_600_000)
    with clocks.replaced(steady, lambda: steady() + set_by()):
        async with open_log(settings) as log:
            partition = (await log.create("clicks", 1)).partitions[0]

            async def appended(after: float) -> Bounds:
                """Append ten events, and let time pass; return what is left."""
                await append(partition, numbered("a", partition.bounds.upcoming, 10))
                steady.seconds += after
                other = (await log.create(f"at-{int(steady.seconds)}", 1)).partitions[0]
                await append(other, numbered("a", 0, 1), numbered("a", 1, 1))
                await other.trim(1)  # whose answer comes once nothing is to be deleted
                return partition.bounds

            assert await appended(1800) == Bounds(0, 10)
            set_by.seconds = 7200
            assert await appended(60) == Bounds(0, 20)
            assert await appended(1800) == Bounds(10, 30)  # the first ones are an hour old
            set_by.seconds = 0
            assert await appended(3600) == Bounds(10, 40)  # those of before seem to be young
            assert await appended(7200) == Bounds(40, 50)


async def test_a_partition_keeps_no_more_bytes_than_its_stream_says_and_its_file_shrinks(
    tmp_path: Path,
) -> None:
    clock = Clock()
    async with open_log(LogSettings(tmp_path), clock) as log:
        stream = await log.create("clicks", 2, retention_bytes=MIB)
        for n in range(600):
            for partition in stream.partitions:
                await append(partition, numbered("a", n * 10, 10, width=3000))
        for partition in stream.partitions:
            await until(lambda p=partition: p.standing.size <= MIB)  # type: ignore[misc]
            kept = await read_all(partition)
            assert MIB - 40_000 < sum(len(row.body) for row in kept) <= MIB
            assert kept[-1].end == 6000
        clock.seconds += 10  # at rest
        await until(lambda: disk(tmp_path) < 2.6 * MIB + 2 * 200_000)


async def test_retention_of_a_stream_wins_over_that_of_the_log(tmp_path: Path) -> None:
    clock = Clock()
    async with open_log(LogSettings(tmp_path, retention_ms=1000), clock) as log:
        short = (await log.create("short", 1)).partitions[0]
        long = (await log.create("long", 1, retention_ms=0)).partitions[0]
        for partition in (short, long):
            await append(partition, numbered("a", 0, 1), numbered("a", 1, 1))
        clock.seconds += 2
        await until(lambda: short.bounds == Bounds(1, 2))
        assert long.bounds == Bounds(0, 2)


async def test_trimming_deletes_whole_frames_and_survives_the_last(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        partition = log.streams["clicks"].partitions[0]
        await append(partition, *[numbered("a", n * 10, 10) for n in range(300)])
        assert await partition.trim(1234) == 1230
        assert await partition.trim(5) == 1230
        assert await partition.trim(3000) == 3000
        assert partition.bounds == Bounds(3000, 3000)
        with pytest.raises(StartpointError, match="offset 3001"):
            await partition.trim(3001)
        assert await partition.trim(3000) == 3000
    async with open_log(LogSettings(tmp_path)) as log:
        partition = log.streams["clicks"].partitions[0]
        assert partition.bounds == Bounds(3000, 3000)
        assert await partition.offset_at(0) == 3000
        assert await append(partition, numbered("a", 2995, 10)) == [Appended(3000, 5, 3005)]
        assert events(await read_all(partition)) == [(n, "a", n) for n in range(3000, 3005)]


async def test_a_reader_that_is_slower_than_retention_is_told_so(tmp_path: Path) -> None:
    async with open_log(LogSettings(tmp_path, retention_bytes=100_000)) as log:
        partition = (await log.create("clicks", 1)).partitions[0]
        lost = trio.Event()

        async def slow_reader() -> None:
            at = 0
            while True:
                while at >= partition.bounds.upcoming:
                    await trio.lowlevel.checkpoint()
                rows = await partition.read(at, 1)
                assert rows[0].first <= at < rows[0].end
                at = rows[0].first + 1

        async def lose() -> None:
            with pytest.raises(InputLost, match="was deleted, the oldest is"):
                await slow_reader()
            lost.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose)
            number = 0
            while not lost.is_set():
                await append(partition, numbered("a", number, 10, width=3000))
                number += 10


async def test_a_quota_is_never_exceeded_and_what_does_not_fit_waits(tmp_path: Path) -> None:
    clock = Clock()
    settings = LogSettings(tmp_path, retention_ms=60_000, quota_bytes=8 * MIB)
    async with open_log(settings, clock) as log:
        stream = await log.create("clicks", 2)
        answers: list[Answer] = []
        most = 0
        for n in range(200):
            for partition in stream.partitions:
                partition.append(numbered("a", n * 10, 10, width=3000), answers.append)
            await trio.lowlevel.checkpoint()
            most = max(most, disk(tmp_path))
        await until(lambda: log.writer.trouble)
        assert "s4.log.quotaBytes (8388608)" in log.writer.trouble
        written = len(answers)
        assert 60 < written < 400
        assert [partition.bounds.oldest for partition in stream.partitions] == [0, 0]
        for _ in range(12):  # retention makes room, again and again
            clock.seconds += 61
            most = max(most, disk(tmp_path))
            if len(answers) == 400:
                break
            before = len(answers)
            await until(lambda b=before: len(answers) > b or not log.writer.trouble)  # type: ignore[misc]
        await until(lambda: len(answers) == 400)
        assert not any(isinstance(answer, S4Error) for answer in answers)
        assert max(most, disk(tmp_path)) <= 8 * MIB
        await until(lambda: not log.writer.trouble)
        assert [partition.bounds.upcoming for partition in stream.partitions] == [2000, 2000]


async def test_a_full_quota_is_not_logged_if_retention_makes_room(tmp_path: Path) -> None:
    settings = LogSettings(tmp_path, retention_bytes=MIB, quota_bytes=8 * MIB)
    async with open_log(settings) as log:
        partition = (await log.create("clicks", 1)).partitions[0]
        for n in range(1000):
            await append(partition, numbered("a", n * 10, 10, width=3000))
            assert not log.writer.trouble
        assert partition.bounds.upcoming == 10_000
        assert disk(tmp_path) <= 8 * MIB


async def test_a_log_has_a_bounded_number_of_partitions(tmp_path: Path) -> None:
    async with open_log(LogSettings(tmp_path, max_partitions=8)) as log:
        await log.create("clicks", 4)
        await log.create("clicks", 4)  # it is there
        with pytest.raises(StoreError, match=r"beyond s4\.log\.maxPartitions \(8\), of which 4"):
            await log.create("pages", 5)
        assert list(log.streams) == ["clicks"]


async def test_a_stream_that_the_quota_has_no_room_for_is_not_made(tmp_path: Path) -> None:
    async with open_log(LogSettings(tmp_path, quota_bytes=MIB)) as log:
        with pytest.raises(StoreError, match=r"16 partitions needs 4194304 bytes .* \(1048576\)"):
            await log.create("clicks", 16)
        assert dict(log.streams) == {}
