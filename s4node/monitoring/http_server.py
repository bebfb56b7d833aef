"""A small HTTP server, which answers GET requests of monitoring programs.

Rules
- A connection has one request, and is closed after the answer.
- Nobody can hold the server up: the head of a request has at most 8 KiB and has to come within
  five seconds, the answer has to be taken within ten. If too many connections are open, the one
  that has waited for its peer for longest makes room, be it for a request, or for the end.
- A body is not read, and no method but GET is answered.
- Only programs of this machine may connect, unless there are certificates or ``s4.access`` is open.
  With TLS, a peer without a certificate gets only whether the node is alive and ready, and not
  what it lacks: what restarts nodes, such as Kubernetes, has none.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import h11
import trio

from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError, described, leaves
from s4node.forks import closed_in_forks
from s4node.logger import get_logger
from s4node.net.certificates.credentials import Credentials, is_tls, missing
from s4node.net.ingress.peer_rights import unwelcome
from s4node.net.transport import network
from s4node.net.transport.pair_socket import host_and_port

log = get_logger("s4node.monitoring")

_MOST_HEAD_BYTES = 8192
_MOST_CONNECTIONS = 32
_REQUEST_SECONDS = 5.0
_ANSWER_SECONDS = 10.0
_CLOSING_SECONDS = 1.0
_READ_BYTES = 4096

_ENDED = (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError, OSError)


@dataclass(frozen=True)
class Answer:
    """An answer: a status of HTTP, and a text."""

    status: int
    text: str
    content_type: str = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Page:
    """How a path is answered, and whether peers without a certificate get the status."""

    answer: Callable[[], Awaitable[Answer]]
    is_public: bool = False


class HttpServer:
    """Answers at ``s4.http.address``; ``pages`` are by path. Call :meth:`listen`, then :meth:`run`.

    Raises ConfigError if the configured address cannot be used.
    """

    def __init__(self, config: Config, pages: dict[str, Page]) -> None:
        self.address = config[settings.HTTP_ADDRESS]
        self._pages = pages
        self._cluster = config[settings.CLUSTER_NAME]
        self._credentials = Credentials.configured(config) if is_tls(self.address) else None
        if is_tls(self.address) and self._credentials is None:
            raise missing(f"{settings.HTTP_ADDRESS.name} = {self.address}")
        host, _ = host_and_port(self.address)
        is_open = config[settings.ACCESS] == "open" or network.current.is_private(host)
        if self._credentials is None and not is_open:
            raise ConfigError(
                f"other machines reach s4.http.address = {self.address!r}, and nobody there would "
                f"need a certificate; use tls+tcp:// with s4.tls.certificate (see s4 certs), "
                f"127.0.0.1, or set s4.access = open: then any program may read the metrics and "
                f"the status"
            )
        self._listeners: Sequence[trio.SocketListener] = ()
        self._waiting: dict[trio.CancelScope, None] = {}  # connections that wait for their peers
        self._open = 0

    async def listen(self) -> None:
        """Take the address, which then has the actual port; raises ConfigError."""
        host, port = host_and_port(self.address)
        try:
            self._listeners = await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on s4.http.address = {self.address}: {error.strerror or error}; "
                f"choose another one"
            ) from error
        for each in self._listeners:
            closed_in_forks(each.socket)
        actual = self._listeners[0].socket.getsockname()[1]
        self.address = f"{self.address.rpartition(':')[0]}:{actual}"

    async def run(self) -> None:
        """Answer until cancelled."""
        await trio.serve_listeners(self._take, list(self._listeners))

    async def _take(self, stream: trio.SocketStream) -> None:
        """Serve a connection, if there is room for one."""
        if self._open >= _MOST_CONNECTIONS:
            oldest = next(iter(self._waiting), None)
            if oldest is None:
                await trio.aclose_forcefully(stream)
                return
            oldest.cancel()
            del self._waiting[oldest]
        self._open += 1
        try:
            closed_in_forks(stream.socket)
            await self._serve(stream)
        except* _ENDED:
            pass
        finally:
            self._open -= 1

    async def _serve(self, raw: trio.SocketStream) -> None:
        stream: trio.abc.Stream = raw
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MOST_HEAD_BYTES)
        request: h11.Request | None = None
        answer: Answer | None = None
        try:
            with self._wait_for_peer(_REQUEST_SECONDS):
                try:
                    if self._credentials is not None:
                        stream = await self._secured(raw, self._credentials)
                    request = await _request_of(stream, connection)
                except h11.RemoteProtocolError as error:
                    answer = Answer(error.error_status_hint, f"{error}\n")
            if request is not None:
                answer = await self._answer_to(request, stream)
            if answer is not None:
                with self._wait_for_peer(_ANSWER_SECONDS):
                    await stream.send_all(_encoded(connection, request, answer))
                    await _close_in_order(raw)
        finally:
            await trio.aclose_forcefully(stream)

    @contextmanager
    def _wait_for_peer(self, seconds: float) -> Iterator[None]:
        """Give the peer so many seconds, or until another connection needs the room."""
        with trio.move_on_after(seconds) as scope:
            self._waiting[scope] = None
            try:
                yield
            finally:
                self._waiting.pop(scope, None)

    async def _secured(self, raw: trio.SocketStream, credentials: Credentials) -> trio.abc.Stream:
        stream = trio.SSLStream(raw, credentials.monitored(), server_side=True)
        await stream.do_handshake()
        return stream

    async def _answer_to(self, request: h11.Request, stream: trio.abc.Stream) -> Answer:
        if request.method != b"GET":
            return Answer(405, "only GET is answered here\n")
        page = self._pages.get(_path_of(request))
        if page is None:
            return Answer(404, f"there is nothing here; see {', '.join(self._pages)}\n")
        problem = self._problem_of(stream)
        if problem and not page.is_public:
            return Answer(403, f"{problem}\n")
        answer = await self._page(request)
        if problem and answer.status != 200:  # errors name keys and files
            return Answer(answer.status, f"to learn why: {problem}\n")
        return answer

    def _problem_of(self, stream: trio.abc.Stream) -> str:
        """The reason why a peer may not read everything; empty if it may."""
        if self._credentials is None:
            return ""
        assert isinstance(stream, trio.SSLStream)
        certificate = stream.getpeercert()
        if not certificate:
            return "this needs a certificate of a member of the cluster"
        try:
            peer = self._credentials.holder_of(certificate)
        except ValueError as error:
            return f"your certificate cannot be used: {error}"
        return unwelcome(peer, self._cluster) or self._credentials.refusal(peer)

    async def _page(self, request: h11.Request) -> Answer:
        try:
            return await self._pages[_path_of(request)].answer()
        except* Exception as group:
            error = leaves(group)[0]
            log.error("a page cannot be made", path=_path_of(request), reason=described(error))
            failed = Answer(500, f"{described(error)}\n")
        return failed


async def _request_of(stream: trio.abc.Stream, connection: h11.Connection) -> h11.Request | None:
    """The request of a connection, or None if it ends before; raises h11.RemoteProtocolError."""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            return None
        connection.receive_data(bytes(await stream.receive_some(_READ_BYTES)))


def _path_of(request: h11.Request) -> str:
    return request.target.partition(b"?")[0].decode("ascii", "replace")


def _encoded(connection: h11.Connection, request: h11.Request | None, answer: Answer) -> bytes:
    body = answer.text.encode("utf-8", "replace")
    if request is not None and request.method == b"HEAD":
        body = b""
    headers = [
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        ("Connection", "close"),
    ]
    if answer.status == 405:
        headers.append(("Allow", "GET"))
    events = (
        h11.Response(status_code=answer.status, headers=headers),
        h11.Data(data=body),
        h11.EndOfMessage(),
    )
    return b"".join(connection.send(event) or b"" for event in events)


async def _close_in_order(raw: trio.SocketStream) -> None:
    """Say that nothing more comes, and let the peer read it: unread bytes would reset it."""
    await raw.send_eof()
    with trio.move_on_after(_CLOSING_SECONDS):
        while await raw.receive_some(_READ_BYTES):
            pass
