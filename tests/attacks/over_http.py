"""Peers that want to harm a node's HTTP, beside a healthy sender.

``python -m attacks.over_http URL`` runs them all at nice 19, until it is killed: 2,000 connections
that say half a line, bodies without end, readers that take nothing, and garbage.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import trio

SILENT, OTHERS = 2000, 4
_ENDED = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
_PAUSE = 0.05


class Peers:
    """Attackers of the server at ``url``."""

    def __init__(self, url: str) -> None:
        at = urlsplit(url)
        self.host, self.port = at.hostname or "", at.port or 80
        self.headers = f"Host: {at.netloc}\r\nContent-Type: application/json\r\n".encode()
        self._random = random.Random(1)

    async def connected(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(self.host, self.port)

    async def silent(self, stream: trio.SocketStream) -> None:
        await stream.send_all(b"GET / HT")
        while await stream.receive_some():
            pass
        await trio.sleep(self._random.uniform(0, 5))

    async def endless(self, stream: trio.SocketStream) -> None:
        post = b"POST /streams/clicks HTTP/1.1\r\n" + self.headers
        await stream.send_all(post + b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            await stream.send_all(b"1000\r\n" + b"x" * 4096 + b"\r\n")
            await trio.sleep(0.005)

    async def taking_nothing(self, stream: trio.SocketStream) -> None:
        await stream.send_all((b"GET /metrics HTTP/1.1\r\n" + self.headers + b"\r\n") * 50)
        await trio.sleep(20)

    async def garbage(self, stream: trio.SocketStream) -> None:
        await stream.send_all(self._random.randbytes(300) + b"\r\n\r\n")
        while await stream.receive_some():
            pass

    async def repeat(self, attack: Callable[[trio.SocketStream], Awaitable[None]]) -> None:
        """Connect again and again."""
        while True:
            try:
                async with await self.connected() as stream:
                    await attack(stream)
            except _ENDED:
                pass
            await trio.sleep(_PAUSE)

    async def all(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(SILENT):
                nursery.start_soon(self.repeat, self.silent)
            for attack in (self.endless, self.taking_nothing, self.garbage):
                for _ in range(OTHERS):
                    nursery.start_soon(self.repeat, attack)


async def p99_of_posts(url: str, seconds: float) -> float:
    """The 99th percentile of the times in which a healthy sender's posts are answered; it connects
    again if its connection ends."""
    peers = Peers(url)
    body = b'{"user": "joe"}'
    post = b"POST /streams/clicks HTTP/1.1\r\n" + peers.headers
    post += b"Content-Length: %d\r\n\r\n" % len(body) + body
    stream: trio.SocketStream | None = None
    times = []
    until = trio.current_time() + seconds
    while trio.current_time() < until:
        began = time.perf_counter()
        answer = b""
        while not answer.endswith(b"}"):
            try:
                if stream is None:
                    stream = await peers.connected()
                if not answer:
                    await stream.send_all(post)
                data = await stream.receive_some()
            except _ENDED:
                data = b""
            answer += data
            if not data:
                if stream is not None:
                    await trio.aclose_forcefully(stream)
                stream, answer = None, b""
        assert answer.startswith(b"HTTP/1.1 20"), answer
        times.append(time.perf_counter() - began)
        await trio.sleep(_PAUSE)
    if stream is not None:
        await stream.aclose()
    times.sort()
    return times[len(times) * 99 // 100]


if __name__ == "__main__":
    os.nice(19)
    trio.run(Peers(sys.argv[1]).all)
