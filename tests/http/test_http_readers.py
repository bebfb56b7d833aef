"""Streams as server-sent events: real processes and sockets."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from harness import NodeProcess, node_process, until
from monitored import Monitored, monitored, told

pytestmark = pytest.mark.slow

COUNTER = """\
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
class Total(Event):
    user: str
    clicks: int
class Count(ProcessingElement):
    clicks: int = 0
    def on_event(self, click: Click):
        self.clicks += 1
        app.totals.put(Total(click.user, self.clicks))
class Counter(App):
    def on_init(self):
        self.totals = self.create_output_stream("totals", types=Total)
        self.create_input_stream("clicks", self.create_pe(Count), key="user")
app = Counter("counter")
"""


@asynccontextmanager
async def counter(folder: Path, *options: str) -> AsyncIterator[NodeProcess]:
    (folder / "app.py").write_text(COUNTER)
    async with node_process("app.py", *options, cwd=folder) as process:
        await until(lambda: process.url)
        yield process


async def reader_of(process: NodeProcess | Monitored, stream: str = "totals") -> trio.SocketStream:
    """A connection that reads a stream, once its head has come."""
    host, _, port = process.url.rpartition("/")[2].rpartition(":")
    reader = await trio.open_tcp_stream(host, int(port))
    await reader.send_all(f"GET /streams/{stream} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return reader


async def events_of(reader: trio.SocketStream, count: int) -> list[object]:
    text = b""
    while text.count(b"data: ") < count or not text.endswith(b"\n\n\r\n"):
        text += await reader.receive_some()
    return [
        json.loads(line.removeprefix(b"data: "))
        for line in text.splitlines()
        if line.startswith(b"data: ")
    ]


async def head_of(reader: trio.SocketStream) -> bytes:
    text = b""
    while b"\r\n\r\n" not in text:
        text += await reader.receive_some(1)
    return text


async def test_readers_get_what_comes_from_then_on(tmp_path: Path) -> None:
    async with counter(tmp_path) as process:
        clicks = f"{process.url}/streams/clicks"
        await told(clicks, {"user": "joe"})
        first = await reader_of(process)
        head = await head_of(first)
        assert head.startswith(b"HTTP/1.1 200")
        assert b"Content-Type: text/event-stream" in head
        await told(clicks, {"user": "joe"})
        assert await events_of(first, 1) == [{"user": "joe", "clicks": 2}]
        second = await reader_of(process)
        await head_of(second)
        await told(clicks, {"user": "ann"})
        for reader in (first, second):
            assert await events_of(reader, 1) == [{"user": "ann", "clicks": 1}]
            await reader.aclose()


async def test_a_stream_that_there_is_not_is_not_read(tmp_path: Path) -> None:
    async with counter(tmp_path) as process:
        for _ in range(2):
            answer = await told(f"{process.url}/streams/nowhere")
            assert answer.status == 404
            assert "totals" in answer.text


async def test_readers_are_bounded_and_one_that_takes_nothing_is_ended(tmp_path: Path) -> None:
    async with counter(tmp_path) as process:
        readers = [await reader_of(process) for _ in range(500)]
        for reader in readers:
            assert (await head_of(reader)).startswith(b"HTTP/1.1 200")
        further = await reader_of(process)
        assert (await head_of(further)).startswith(b"HTTP/1.1 503")
        clicks = f"{process.url}/streams/clicks"
        events = [{"user": "x" * 5000}] * 400
        async with trio.open_nursery() as nursery:
            ended = trio.Event()

            async def read_all() -> None:
                async for _ in readers[0]:
                    pass
                ended.set()

            nursery.start_soon(read_all)
            for _ in range(10):  # 20 MB to each, of which nobody but the first reads any
                assert (await told(clicks, events)).status == 202
            assert (await told(clicks, {"user": "joe"})).status == 202
            late = await reader_of(process)
            assert (await head_of(late)).startswith(b"HTTP/1.1 200")
            last = b""
            with trio.fail_after(60), suppress(trio.BrokenResourceError):
                async for data in readers[1]:  # it lacks events, so it is cut
                    last = data
            assert not last.endswith(b"0\r\n\r\n")
            nursery.cancel_scope.cancel()
        for reader in (*readers, late, further):
            await trio.aclose_forcefully(reader)


async def rest_of(reader: trio.SocketStream) -> bytes:
    with trio.fail_after(60):
        async with reader:
            return b"".join([data async for data in reader])


@pytest.mark.parametrize("nodes", [(), ("--nodes", "2")])
async def test_a_stream_is_ended_in_order_when_its_process_stops(
    tmp_path: Path, nodes: tuple[str, ...]
) -> None:
    async with counter(tmp_path, *nodes) as process:
        reader = await reader_of(process)
        await head_of(reader)
        process.signal(signal.SIGTERM)
        assert (await rest_of(reader)).endswith(b"0\r\n\r\n")


async def test_a_stream_is_ended_in_order_when_its_node_stops(tmp_path: Path) -> None:
    async with monitored(tmp_path) as node:
        assert (await node.deploy(source=COUNTER))[0] == 0
        await node.ready()
        reader = await reader_of(node)
        assert (await head_of(reader)).startswith(b"HTTP/1.1 200")
        node.process.signal(signal.SIGTERM)
        assert (await rest_of(reader)).endswith(b"0\r\n\r\n")
