"""Nodes and programs at the embedded log that are killed: what was acknowledged is there once."""

from __future__ import annotations

import resource
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from harness import NodeProcess, free_port, run_s4, s4_process, until_told
from log_nodes import log_at, log_node, read_all
from shared_apps import Click

from s4node import Client
from s4node.errors import StartpointError
from s4node.offsets.startpoint import Oldest, Specific
from s4node.offsets.system import SystemStreamPartition


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
            await until_told(log.streams, lambda told: told["trouble"])
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
        await until_told(lambda: log.bounds(ssp), lambda bounds: bounds.oldest >= 2)
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
