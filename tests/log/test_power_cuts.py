"""A log after a power cut: readers are told of lost events, and get the new ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import structlog
import trio
from harness import free_port, plain_errors, s4_process, until
from log_bench import Bench, append
from log_files import opened
from log_frames import append as append_frames
from log_frames import numbered
from power import Power
from shared_apps import KEEPER

from s4node import Client, Event
from s4node.errors import StartpointError
from s4node.log.store import LogSettings, open_log
from s4node.offsets.system import Bounds, SystemStreamPartition
from s4node.systems.embedded_log import EmbeddedLog


def test_an_epoch_ends_where_the_next_begins() -> None:
    bounds = Bounds(0, 900, epochs=((3, 0), (7, 500), (9, 700)))
    assert [bounds.end_of(epoch) for epoch in (1, 3, 4, 7, 8, 9, 10)] == [
        0, 500, 500, 700, 700, 900, 900,
    ]  # fmt: skip
    assert bounds.epoch == 9


async def test_an_epoch_begins_at_each_open_but_after_a_clean_close(tmp_path: Path) -> None:
    async def epochs() -> tuple[tuple[int, int], ...]:
        async with opened(tmp_path / "log") as log:
            partition = log.streams["clicks"].partitions[0]
            found = partition.bounds.epochs
            await append_frames(partition, numbered("a", 10 * len(seen), 10))
            if not seen:
                shutil.copytree(tmp_path / "log", tmp_path / "copy")  # as if it was killed there
        seen.append(found)
        return found

    seen: list[tuple[tuple[int, int], ...]] = []
    ((first, at),) = await epochs()
    assert at == 0
    assert await epochs() == ((first, 0),)
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "copy").rename(tmp_path / "log")
    (_, (second, begins)) = await epochs()
    assert second > first
    assert begins == 10


async def test_without_waiting_for_the_disk_no_close_is_clean(tmp_path: Path) -> None:
    found = []
    for number in range(2):
        async with open_log(LogSettings(tmp_path, sync="none")) as log:
            partition = (await log.create("clicks", 1)).partitions[0]
            await append_frames(partition, numbered("a", 10 * number, 10))
            found.append(partition.bounds.epochs)
    assert len(found[1]) == 2


class Click(Event):
    user: str
    number: int


@pytest.mark.long
@pytest.mark.slow
async def test_after_a_power_cut_of_the_log_a_job_reads_all_new_events_and_tells_what_is_lost(
    tmp_path: Path,
) -> None:
    (tmp_path / "keeper.py").write_text(KEEPER)
    power = Power(tmp_path / "log")
    keeper = ["run", tmp_path / "keeper.py", "-p", f"s4.log.folder={tmp_path / 'log'}"]
    with trio.fail_after(100):
        async with s4_process(
            *keeper, "--listen", "tcp://127.0.0.1:0", cwd=tmp_path, fault=power.fault
        ) as process:
            address = process.address
            async with trio.open_nursery() as nursery:
                log = EmbeddedLog("log", address)
                await nursery.start(log.run)
                await log.create("clicks", 1)
                it = Bench(tmp_path, log)
                job = it.arguments("tasks", **{"task.commit.ms": "10"})
                await append(log, 0, 1000, partitions=1)
                async with s4_process(*job, cwd=tmp_path) as reader:
                    await until(lambda: it.offsets("tasks") == {0: 1000}, "all is committed")
                    await reader.kill()
                nursery.cancel_scope.cancel()
            await process.kill()
        power.cut()
        async with s4_process(*keeper, "--listen", address, cwd=tmp_path) as process:
            async with Client(address, producer="another") as client:
                clicks = await client.stream("clicks")
                await clicks.send_many([Click("joe", n) for n in range(1500)])
                assert await clicks.flush() == []
            async with s4_process(*job, cwd=tmp_path) as reader:
                await until(lambda: len(it.seen) == 2500, "the new ones are read, too")
                assert "the end of an input is lost, and stays counted" in reader.errors
                offsets = [int(line[-1]) for line in it.seen]
                assert offsets == [*range(1000), *range(1500)]
            async with s4_process(*job, cwd=tmp_path) as reader:  # and it is told once
                await until(lambda: "input resumes" in reader.errors)
                assert "stays counted" not in reader.errors


@pytest.mark.slow
async def test_a_producer_is_told_what_the_log_has_lost_of_what_it_acknowledged(
    tmp_path: Path,
) -> None:
    (tmp_path / "keeper.py").write_text(KEEPER)
    power = Power(tmp_path / "log")
    address = f"tcp://127.0.0.1:{free_port()}"
    keeper = ["run", tmp_path / "keeper.py", "-p", f"s4.log.folder={tmp_path / 'log'}"]
    keeper += ["--listen", address]
    with plain_errors(), trio.fail_after(100), structlog.testing.capture_logs() as logs:
        async with s4_process(*keeper, cwd=tmp_path, fault=power.fault) as process:
            async with trio.open_nursery() as nursery:
                log = EmbeddedLog("log", address)
                await nursery.start(log.run)
                await log.create("clicks", 1)
                nursery.cancel_scope.cancel()
            async with Client(address, producer="import") as client:
                clicks = await client.stream("clicks")
                await clicks.send_many([Click("joe", n) for n in range(1000)])
                assert await clicks.flush() == []
                await process.kill()
                power.cut()
                async with s4_process(*keeper, cwd=tmp_path) as again:
                    await clicks.send(Click("joe", 1000))
                    assert await clicks.flush() == []
                    assert "acknowledged events are missing from the log" in again.errors
    told = [
        line for line in logs if line["event"].startswith("the log has lost acknowledged events")
    ]
    assert [(line["stream"], line["events"]) for line in told] == [("clicks", {0: 1000})]


@pytest.mark.long
@pytest.mark.slow
async def test_a_reader_that_reconnects_beyond_the_end_of_its_epoch_is_told(tmp_path: Path) -> None:
    (tmp_path / "keeper.py").write_text(KEEPER)
    power = Power(tmp_path / "log")
    keeper = ["run", tmp_path / "keeper.py", "-p", f"s4.log.folder={tmp_path / 'log'}"]
    address = f"tcp://127.0.0.1:{free_port()}"
    with plain_errors(), trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            log = EmbeddedLog("log", address)
            async with s4_process(
                *keeper, "--listen", address, cwd=tmp_path, fault=power.fault
            ) as process:
                await nursery.start(log.run)
                await log.create("clicks", 1)
                await append(log, 0, 1000, partitions=1)
                reader = await log.open(SystemStreamPartition("log", "clicks", 0), 0, [Click])
                while reader.position < 1000:
                    await reader.read()
                await process.kill()
            power.cut()
            # what comes before the reader is back has the offsets of what it has read
            async with open_log(LogSettings(tmp_path / "log")) as alone:
                partition = alone.streams["clicks"].partitions[0]
                for number in range(150):
                    await append_frames(partition, numbered("a", 10 * number, 10))
            async with s4_process(*keeper, "--listen", address, cwd=tmp_path):
                with pytest.raises(StartpointError, match=r"from offset 0 to 1000 are lost"):
                    await reader.read()
            nursery.cancel_scope.cancel()
