"""Deployed apps whose state is at an S3 server that gives errors: real nodes, a real server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from harness import until, until_told
from s3_servers import find_servers_at, s3_server
from test_deploy import click, containers, deploy, node, printed, s4_of, write_app
from torture.store_forwarder import StoreForwarder

pytestmark = [pytest.mark.slow, pytest.mark.long]

DURABLE = ("-p", "s4.stream.clicks.grade=durable")


async def test_a_container_whose_state_is_at_a_server_that_answers_500_waits_and_goes_on(
    tmp_path: Path, store: StoreForwarder
) -> None:
    folder = tmp_path
    place = {"s4_state_folder": str(folder / "state"), "s4_state_url": "s3://bucket/state"}
    async with node(folder, "one", **place) as one:
        await deploy(folder, write_app(folder, "counter", "v1"), *DURABLE, "--partitions", "1")
        await click(one.address, "ann", "ann")
        await until(lambda: printed(one) == ["v1 ann 1", "v1 ann 2"])
        (pid,) = (await containers(folder)).values()
        store.faults["127.0.0.1"] = "refuse"
        os.kill(pid, signal.SIGKILL)
        shown = await until_told(lambda: status(folder), lambda text: "cannot be read" in text)
        assert "then starts and commits go on by themselves" in shown
        store.faults.clear()
        await click(one.address, "ann")
        await until(lambda: printed(one) == ["v1 ann 1", "v1 ann 2", "v1 ann 3"])
        assert "cannot be read" not in await status(folder)


async def status(folder: Path) -> str:
    return (await s4_of(folder, "status")).stdout


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    with s3_server("moto", tmp_path, monkeypatch) as port:
        yield port


@pytest.fixture
async def store(
    port: int, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> StoreForwarder:
    """What nodes find in place of the server."""
    forwarder = StoreForwarder(port)
    url = await nursery.start(forwarder.run, "127.0.0.1")
    find_servers_at(int(url.rpartition(":")[2]), monkeypatch)
    return forwarder
