"""A forwarder between machines and an S3 server, which delays requests, or spoils their answers.

Rules
- What happens to a request depends on the machine that it comes from, when it begins.
- A connection has one request: then it is closed, and its client opens another.
- Conditional requests are forwarded one at a time: moto looks for an object, and then writes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

import h11
import trio

SLOW_SECONDS = 1.5

_READ_BYTES = 1 << 16
_ABOUT_CONNECTIONS = {b"connection", b"expect"}
_Headers = Iterable[tuple[bytes, bytes]]


class StoreForwarder:
    """Forwards to a server at ``port`` of this machine; ``faults`` has the machines' addresses.

    A fault is *slow* (requests wait), *refuse* (requests are answered with an error), or *spoil*
    (requests are done, and then answered with an error).
    """

    def __init__(self, port: int) -> None:
        self.faults: dict[str, str] = {}
        self._port = port
        self._conditional = trio.Lock()

    async def run(self, host: str, *, task_status: trio.TaskStatus[str]) -> None:
        """Forward until cancelled; starts with the URL."""
        (listener,) = await trio.open_tcp_listeners(0, host=host)
        task_status.started(f"http://{host}:{listener.socket.getsockname()[1]}")
        await trio.serve_listeners(self._serve, [listener])

    async def _serve(self, client: trio.SocketStream) -> None:
        ended = (OSError, trio.BrokenResourceError, h11.RemoteProtocolError)
        try:
            async with client:
                await self._forward(client)
        except* ended:
            pass  # a machine that is cut off, or whose process was killed

    async def _forward(self, client: trio.SocketStream) -> None:
        incoming = h11.Connection(h11.SERVER)
        request, body = await _message(client, incoming)
        if request is None:
            return
        assert isinstance(request, h11.Request)
        fault = self.faults.get(client.socket.getpeername()[0], "")
        if fault == "slow":
            await trio.sleep(SLOW_SECONDS)
        answer: h11.Response | None = None
        content = b""
        if fault != "refuse":
            if_none = any(name == b"if-none-match" for name, _ in request.headers)
            async with self._conditional if if_none else nullcontext():
                answer, content = await self._answer(request, body)
        if fault in ("refuse", "spoil") or answer is None:
            answer, content = h11.Response(status_code=503, headers=[]), b""
        headers = [*_kept(answer.headers), (b"connection", b"close")]
        if not any(name == b"content-length" for name, _ in headers):
            headers.append((b"content-length", b"%d" % len(content)))
        told = h11.Response(status_code=answer.status_code, headers=headers)
        out = incoming.send(told) or b""
        if request.method != b"HEAD":
            out += incoming.send(h11.Data(content)) or b""
        await client.send_all(out)

    async def _answer(self, request: h11.Request, body: bytes) -> tuple[h11.Response | None, bytes]:
        outgoing = h11.Connection(h11.CLIENT)
        headers = [*_kept(request.headers), (b"connection", b"close")]  # the host is signed
        asked = h11.Request(method=request.method, target=request.target, headers=headers)
        async with await trio.open_tcp_stream("127.0.0.1", self._port) as server:
            out = (outgoing.send(asked) or b"") + (outgoing.send(h11.Data(body)) or b"")
            await server.send_all(out + (outgoing.send(h11.EndOfMessage()) or b""))
            answer, content = await _message(server, outgoing)
        assert answer is None or isinstance(answer, h11.Response)
        return answer, content


def _kept(headers: _Headers) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name not in _ABOUT_CONNECTIONS]


async def _message(
    stream: trio.SocketStream, connection: h11.Connection
) -> tuple[h11.Request | h11.Response | None, bytes]:
    """The head and the body that come next; no head if the stream ends before."""
    head: h11.Request | h11.Response | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[])
                await stream.send_all(connection.send(go_on) or b"")
            connection.receive_data(await stream.receive_some(_READ_BYTES))
        elif isinstance(event, h11.Request | h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return head, bytes(body)
        elif isinstance(event, h11.ConnectionClosed):
            return None, b""
