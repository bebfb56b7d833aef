"""Nodes and programs at the embedded log that are killed: what was acknowledged is there once."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from harness import (
    NodeProcess,
    environment,
    free_port,
    run_s4,
    s4_process,
    until,
)
from log_nodes import log_at, log_node, read_all
from shared_apps import Click

from s4node import Client
from s4node.errors import StartpointError
from s4node.offsets.startpoint import Oldest, Specific
from s4node.offsets.system import SystemStreamPartition


@pytest.mark.long
@pytest.mark.parametrize("routed", [True, False])
async def test_acknowledged_events_are_there_once_after_the_log_s_node_is_killed(
    tmp_path: Path, routed: bool
) -> None:
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    total, producers = 6000, 3
    done = allowed = 0

    async def produce(which: int) -> None:
        nonlocal done
        async with Client(address, producer=f"p{which}", timeout=30) as client:
            # by a function, the log does not know that it is its own key: it takes frames apart
            clicks = await client.stream("clicks", key=None if routed else lambda c: c.user)
            for n in range(0, total, 50):
                while n >= allowed:  # the node is to be killed while there is more to come
                    await trio.sleep(0.002)
                await clicks.send_many([Click(f"{which}-{k % 20}", k) for k in range(n, n + 50)])
                await trio.sleep(0.002)
            assert await clicks.flush() == []
            done += 1

    async def appended() -> int:
        async with log_at(address) as log:
            parts = (await log.describe("clicks"))["partitions"]
        return sum(each["upcoming"] for each in parts)

    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + 60
        for life in range(4):
            async with node_at(tmp_path, port) as node:
                allowed = total * (life + 2) // 5
                if life == 0:
                    async with log_at(address) as log:
                        await log.create("clicks", 3, key="user")
                    for which in range(producers):
                        nursery.start_soon(produce, which)
                if life < 3:
                    wanted = total * producers * (life + 1) // 5
                    while await appended() < wanted:
                        await trio.sleep(0.01)
                    assert done < producers
                    await node.kill()
                    continue
                await until(lambda: done == producers, "all producers have their verdicts")
                found = await read_all(
                    address, "clicks", total * producers, types=Click, start=Oldest()
                )
                assert await appended() == total * producers
    assert not nursery.cancel_scope.cancelled_caught, f"{done} of {producers} ended within 60 s"
    assert len(found) == total * producers
    for which in range(producers):
        mine = [click for click in found if click.user.startswith(f"{which}-")]
        assert sorted(click.n for click in mine) == list(range(total))
        for key in range(20):
            one = [click.n for click in mine if click.user == f"{which}-{key}"]
            assert one == sorted(one)


PRODUCER = """
import sys, trio
from s4node import Client, Event
class Click(Event):
    user: str
    n: int = 0
async def main(address):
    async with Client(address, producer="mortal") as client:
        clicks = await client.stream("clicks")
        for n in range(1_000_000):
            await clicks.send(Click("joe", n))
            if n % 100 == 99:
                await clicks.flush()
                print(n + 1, flush=True)
trio.run(main, sys.argv[1])
"""

READER = """
import sys, trio
from s4node import Client
from s4node.offsets.startpoint import Oldest
async def main(address):
    async with Client(address) as client, client.subscribe("clicks", start=Oldest()) as events:
        async for event in events:
            print(event.n, flush=True)
trio.run(main, sys.argv[1])
"""


@pytest.mark.long
async def test_producers_and_readers_may_be_killed_at_any_time(tmp_path: Path) -> None:
    async with log_node(tmp_path, deadline=60) as node, log_at(node.address) as log:
        await log.create("clicks")
        acknowledged = 0
        for _ in range(2):
            producer = await trio.lowlevel.open_process(
                [sys.executable, "-c", PRODUCER, node.address],
                stdout=subprocess.PIPE,
                env=environment(),
            )
            reader = await trio.lowlevel.open_process(
                [sys.executable, "-c", READER, node.address],
                stdout=subprocess.PIPE,
                env=environment(),
            )
            assert producer.stdout is not None
            assert reader.stdout is not None
            with trio.fail_after(20):
                told = b""
                while told.count(b"\n") < 5:
                    told += await producer.stdout.receive_some()
                assert await reader.stdout.receive_some()
            for process in (reader, producer):
                process.kill()
                await process.wait()
            acknowledged += int(told.rsplit(b"\n", 2)[-2])
        count = (await log.bounds(SystemStreamPartition("log", "clicks", 0))).upcoming
        assert count >= acknowledged
        found = await read_all(node.address, "clicks", count, types=Click, start=Oldest())
        lives = [index for index, click in enumerate(found) if click.n == 0] + [count]
        assert len(lives) == 3
        for first, end in pairwise(lives):
            assert [click.n for click in found[first:end]] == list(range(end - first))


@pytest.mark.long
async def test_an_orderly_stop_has_on_disk_what_was_acknowledged(tmp_path: Path) -> None:
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    async with node_at(tmp_path, port) as node, Client(address, timeout=30) as client:
        async with log_at(address) as log:
            await log.create("clicks", 2)
        clicks = await client.stream("clicks")
        await clicks.send_many([Click("joe", n) for n in range(30_000)])
        node.signal(signal.SIGTERM)
        assert await node.wait() == 0
        kept = clicks.counts["admitted"]
        async with node_at(tmp_path, port):
            async with log_at(address) as log:
                parts = (await log.describe("clicks"))["partitions"]
            assert sum(each["upcoming"] for each in parts) >= kept
            assert await clicks.flush() == []
            found = await read_all(address, "clicks", 30_000, types=Click, start=Oldest())
            assert sorted(click.n for click in found) == list(range(30_000))


async def test_two_nodes_on_one_folder_and_the_second_says_who_has_it(tmp_path: Path) -> None:
    async with node_at(tmp_path, free_port()):
        done = await run_s4(
            "node",
            "other",
            "--folder",
            tmp_path / "cluster2",
            "-p",
            f"s4.log.folder={tmp_path / 'log'}",
            "-p",
            "s4.listener.address=tcp://127.0.0.1:0",
            cwd=tmp_path,
        )
    assert done.returncode == 1
    assert "is in use by process" in done.stderr
    assert "set s4.log.folder to another folder" in done.stderr


def little_room() -> None:
    """As on a full disk: no file grows beyond a megabyte."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))


@pytest.mark.long
async def test_producers_wait_for_a_full_disk_and_then_go_on(tmp_path: Path) -> None:
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    async with node_at(tmp_path, port, limits=little_room) as node, log_at(address) as log:
        await log.create("clicks", 2)
        async with Client(address, timeout=60) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many([Click("x" * 500, n) for n in range(8000)])
            with trio.fail_after(20):
                while not (await log.streams())["trouble"]:
                    await trio.sleep(0.01)
            acknowledged = clicks.counts["admitted"]
            assert acknowledged < 8000
            told = await run_s4("log", "describe", "--to", address, cwd=tmp_path)
            assert "the log is waiting: " in told.stderr
            resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (-1, -1))
            with trio.fail_after(20):
                assert await clicks.flush() == []
        assert (await log.streams())["trouble"] == ""
        found = await read_all(address, "clicks", 8000, types=Click, start=Oldest())
        assert sorted(click.n for click in found) == list(range(8000))


async def test_events_older_than_the_stream_s_retention_go_by_themselves(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 1, retention_ms=50)
        ssp = SystemStreamPartition("log", "clicks", 0)
        for n in range(3):
            await log.append("clicks", 0, [Click("joe", n)])
        with trio.fail_after(20):
            while (await log.bounds(ssp)).oldest < 2:
                await trio.sleep(0.02)
        with pytest.raises(StartpointError, match=r"has no offset 0: it has [23] to 3"):
            await log.resolve(ssp, Specific(0))


# -- set-up ---------------------------------------------------------------------------------------


@asynccontextmanager
async def node_at(
    folder: Path, port: int, *more: str, limits: Callable[[], None] | None = None
) -> AsyncIterator[NodeProcess]:
    command = (
        "node",
        "demo",
        "--folder",
        folder / "cluster",
        "-p",
        f"s4.log.folder={folder / 'log'}",
        "-p",
        f"s4.listener.address=tcp://127.0.0.1:{port}",
        *more,
    )
    async with s4_process(*command, cwd=folder, limits=limits) as node:
        yield node
