"""The HTTP server of a node, or of ``s4 run``: connections, their limits, and who may ask.

Rules
- Nobody can hold the server up: the head of a request has to come within five seconds, its body
  within thirty, and an answer has to be taken within ten. A connection may be silent between two
  requests for ten. If too many are open, or their bodies take too much memory, the one that
  has waited for its peer for longest makes room.
- A browser's pages may ask only if they are of this node (``browsers``).
- Only programs of this machine may connect, unless there are certificates or ``s4.access`` is open.
  With TLS, a peer without a certificate gets only whether the node is alive and ready, and not
  what it lacks: what restarts nodes, such as Kubernetes, has none.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from socket import gethostname
from urllib.parse import urlsplit
from weakref import WeakSet

import trio

from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError, described, leaves
from s4node.forks import closed_in_forks
from s4node.http.browsers import refusal
from s4node.http.messages import (
    MOST_BODY_BYTES,
    Answer,
    Conversation,
    Request,
    Unreadable,
    too_large,
)
from s4node.http.routes import KNOWN, Route, found
from s4node.http.tokens import Tokens
from s4node.logger import get_logger
from s4node.net.certificates.credentials import Credentials, is_tls, missing
from s4node.net.certificates.identity import NODE, ROLES
from s4node.net.ingress.peer_rights import MAY, unwelcome
from s4node.net.transport import network
from s4node.net.transport.pair_socket import host_and_port

log = get_logger("s4node.http")

Answering = Callable[[Request], Awaitable[Answer]]

FIRST_PORT = 12080
"""``s4 run`` takes the first free port from here, if it is given none."""

_MOST_CONNECTIONS = 128
_MOST_BODIES_BYTES = 32 << 20
_REQUEST_SECONDS = 5.0
_IDLE_SECONDS = 10.0
_BODY_SECONDS = 30.0
_ANSWER_SECONDS = 10.0
_CLOSING_SECONDS = 1.0
_READ_BYTES = 1 << 16
_PORTS = 100

_ENDED = (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError, OSError)


class HttpServer:
    """Answers at ``s4.http.address``; ``answers`` are by the names of routes, and ``beside`` run
    as long. Call :meth:`listen`, then :meth:`run`.

    Without a configured address it takes the next free port of this machine from ``FIRST_PORT`` on,
    or any if a hundred are taken. Raises ConfigError if the configured address cannot be used.
    """

    def __init__(
        self,
        config: Config,
        answers: Mapping[str, Answering],
        beside: Iterable[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        given = config[settings.HTTP_ADDRESS]
        self._ports = 1 if given else _PORTS
        self.address = given or f"tcp://127.0.0.1:{FIRST_PORT}"
        self._answers = answers
        self._beside = beside
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
                f"127.0.0.1, or set s4.access = open: then any program may do here what a node may"
            )
        self._tokens = Tokens(config)
        if self._tokens and self._credentials is None:
            raise ConfigError(
                f"{settings.HTTP_TOKENS.name} is set, and s4.http.address = {self.address!r} has "
                f"no TLS: anybody on the way could read tokens; use tls+tcp://"
            )
        self._advertised = urlsplit(f"//{config[settings.LISTENER_ADVERTISE]}").hostname or ""
        names = {"localhost", gethostname(), host, self._advertised}
        self._names = frozenset(each.lower() for each in names - {"", "0.0.0.0", "::"})  # noqa: S104
        self._listeners: Sequence[trio.SocketListener] = ()
        self._waiting: dict[trio.CancelScope, Conversation] = {}  # for their peers
        self._making: WeakSet[trio.CancelScope] = WeakSet()  # of answers
        self._ended = trio.Event()
        self._reason = ""
        self._open = 0

    @property
    def url(self) -> str:
        """The address as browsers and curl write it, with a name that the certificate has."""
        scheme = "https" if self._credentials else "http"
        host, port = self.address.rpartition("://")[2].rpartition(":")[::2]
        if host in ("0.0.0.0", "[::]"):  # noqa: S104 - all of this machine
            host = self._advertised or "localhost"
        elif host == "127.0.0.1" and self._credentials and "localhost" in self._credentials.hosts:
            host = "localhost"
        return f"{scheme}://{host}:{port}"

    async def listen(self) -> None:
        """Take the address, which then has the actual port; raises ConfigError."""
        host, first = host_and_port(self.address)
        ports = [*range(first, first + self._ports), *([0] if self._ports > 1 else [])]
        for port in ports:
            try:
                self._listeners = await trio.open_tcp_listeners(port, host=host)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE or port == ports[-1]:
                    raise ConfigError(
                        f"cannot listen on s4.http.address = {self.address}: "
                        f"{error.strerror or error}; choose another one"
                    ) from error
        for each in self._listeners:
            closed_in_forks(each.socket)
        actual = self._listeners[0].socket.getsockname()[1]
        self.address = f"{self.address.rpartition(':')[0]}:{actual}"

    async def run(self) -> None:
        """Answer until cancelled, or until :meth:`end_with`."""
        async with trio.open_nursery() as connections, trio.open_nursery() as nursery:
            for each in self._beside:
                nursery.start_soon(each)
            listeners = list(self._listeners)
            serve = partial(trio.serve_listeners, handler_nursery=connections)
            nursery.start_soon(serve, self._take, listeners)
            await self._ended.wait()
            for scope in (*self._waiting, *self._making):
                scope.cancel()
            connections.cancel_scope.deadline = trio.current_time() + _CLOSING_SECONDS
            nursery.cancel_scope.cancel()

    def end_with(self, reason: str) -> None:
        """End soon: requests that have no answer yet get the reason."""
        self._reason = reason
        self._ended.set()

    async def _take(self, stream: trio.SocketStream) -> None:
        """Serve a connection, if there is room for one."""
        if self._open >= _MOST_CONNECTIONS and not self._make_room():
            await trio.aclose_forcefully(stream)
            return
        self._open += 1
        try:
            closed_in_forks(stream.socket)
            await self._serve(stream)
        except* _ENDED:
            pass
        finally:
            self._open -= 1

    def _make_room(self, body_bytes: int = 0) -> bool:
        """End the connection that has waited for its peer for longest, of those with at least so
        many bytes of a body; False if none waits.

        Those that have had an answer come last: floods of connections have none.
        """
        long = [scope for scope, each in self._waiting.items() if each.body_bytes >= body_bytes]
        new = (scope for scope in long if not self._waiting[scope].is_known)
        oldest = next(new, next(iter(long), None))
        if oldest is not None:
            oldest.cancel()
            del self._waiting[oldest]
        return oldest is not None

    async def _serve(self, raw: trio.SocketStream) -> None:
        stream: trio.abc.Stream = raw
        conversation = Conversation()
        seconds = _REQUEST_SECONDS
        try:
            if self._credentials is not None:
                with self._wait_for_peer(conversation, seconds) as scope:
                    stream = trio.SSLStream(raw, self._credentials.monitored(), server_side=True)
                    await stream.do_handshake()
                if scope.cancelled_caught:
                    return
            while await self._exchange(raw, stream, conversation, seconds):
                if self._ended.is_set():
                    return
                seconds = _IDLE_SECONDS
        finally:
            await trio.aclose_forcefully(stream)

    async def _exchange(
        self,
        raw: trio.SocketStream,
        stream: trio.abc.Stream,
        conversation: Conversation,
        seconds: float,
    ) -> bool:
        """Answer one request; returns False if the connection ends."""
        try:
            request = None
            with self._wait_for_peer(conversation, seconds):
                request = await _head(stream, conversation)
            if request is None:
                return False
            answer = await self._answered(request, stream, conversation)
        except Unreadable as error:
            answer = error.answer
        if answer.parts is not None:
            await self._send_parts(stream, conversation, answer, answer.parts)
            return False
        with self._wait_for_peer(conversation, _ANSWER_SECONDS):
            await stream.send_all(conversation.answer(answer))
            if conversation.next_cycle():
                return True
            await _close_in_order(raw)
        return False

    async def _send_parts(
        self,
        stream: trio.abc.Stream,
        conversation: Conversation,
        answer: Answer,
        parts: AsyncGenerator[bytes, None],
    ) -> None:
        """Send an answer whose parts come with time, until these or the server end, or its peer has
        gone or takes none."""
        self._open -= 1  # such answers have a limit of their own
        try:
            async with aclosing(parts), trio.open_nursery() as nursery:
                nursery.start_soon(_wait_end, stream, nursery.cancel_scope)
                part: bytes | None = b""
                data = conversation.answer(answer)
                while await _taken(stream, data) and part is not None:
                    part = await self._next(parts)
                    data = conversation.last_part() if part is None else conversation.part(part)
                nursery.cancel_scope.cancel()
        finally:
            self._open += 1

    async def _next(self, parts: AsyncGenerator[bytes, None]) -> bytes | None:
        """The next part of an answer, or None at its end or that of the server."""
        with self._until_end():
            return await anext(parts, None)
        return None

    @contextmanager
    def _wait_for_peer(
        self, conversation: Conversation, seconds: float
    ) -> Iterator[trio.CancelScope]:
        """Give the peer so many seconds, or until another connection needs the room."""
        with trio.move_on_after(seconds) as scope:
            self._waiting[scope] = conversation
            try:
                yield scope
            finally:
                self._waiting.pop(scope, None)

    async def _answered(
        self, request: Request, stream: trio.abc.Stream, conversation: Conversation
    ) -> Answer:
        """The answer to a request whose head has come; raises Unreadable."""
        refused = refusal(request, self._known_names())
        if refused is not None:
            return refused
        place = found(request.method, request.path)
        if isinstance(place, Answer):
            return place
        route, parameters = place
        caller, problem = self._caller(stream, request, route)
        if problem and route.right:
            asks = () if caller or not self._tokens else (("WWW-Authenticate", "Bearer"),)
            return Answer(401 if asks else 403, f"{problem}\n", headers=asks)
        if route.method == "POST":
            body = await self._body(request, stream, conversation)
            request = replace(request, body=body)
        answer = await self._made(route, replace(request, parameters=parameters, caller=caller))
        if problem and answer.status >= 500:  # errors name keys and files
            return Answer(answer.status, f"to learn why: {problem}\n")
        return answer

    def _known_names(self) -> frozenset[str]:
        return self._names | (self._credentials.hosts if self._credentials else frozenset())

    def _caller(self, stream: trio.abc.Stream, request: Request, route: Route) -> tuple[str, str]:
        """Who the peer is, and why it may not ask for a route; both empty without TLS."""
        if self._credentials is None:
            return "", ""
        authorization = request.headers.get("authorization")
        if authorization is not None and self._tokens:
            role, name = self._tokens.holder(authorization)
            who = role and f"{role}/{name}"
            return who, _unable(who, role, route.right) if role else "this is no token of a peer"
        assert isinstance(stream, trio.SSLStream)
        certificate = stream.getpeercert()
        if not certificate:
            or_token = " or a token" if self._tokens else ""
            return "", f"this needs a certificate of a member of the cluster{or_token}"
        try:
            peer = self._credentials.holder_of(certificate)
        except ValueError as error:
            return "", f"your certificate cannot be used: {error}"
        problem = unwelcome(peer, self._cluster) or self._credentials.refusal(peer)
        if problem:
            return "", problem
        role = peer.roles[self._cluster]
        return f"{role}/{peer.name}", _unable(str(peer), role, route.right)

    async def _body(
        self, request: Request, stream: trio.abc.Stream, conversation: Conversation
    ) -> bytes:
        """The body of a request; raises Unreadable if it does not come, or is too large."""
        if int(request.headers.get("content-length", "0")) > MOST_BODY_BYTES:
            raise Unreadable(too_large())
        with self._wait_for_peer(conversation, _BODY_SECONDS):
            if asked := conversation.continue_():
                await stream.send_all(asked)
            while (body := conversation.body()) is None and not conversation.is_over:
                conversation.feed(bytes(await stream.receive_some(_READ_BYTES)))
                if sum(each.body_bytes for each in self._waiting.values()) > _MOST_BODIES_BYTES:
                    self._make_room(1)
            if body is not None:
                return body
        raise Unreadable(Answer(408, "the body did not come in time, or others needed its room\n"))

    async def _made(self, route: Route, request: Request) -> Answer:
        try:
            with self._until_end():
                return await self._answers[route.name](request)
            taken = "some events may be taken: " if route.method == "POST" else ""
            failed = Answer(504 if taken else 503, f"{taken}{self._reason}\n")
        except* Exception as group:
            error = leaves(group)[0]
            log.error("a request failed", path=request.path, reason=described(error))
            failed = Answer(500, f"{described(error)}\n")
        return failed

    def _until_end(self) -> trio.CancelScope:
        """A scope that the end of the server cancels."""
        scope = trio.CancelScope()
        self._making.add(scope)
        if self._ended.is_set():
            scope.cancel()
        return scope


def _unable(peer: str, role: str, right: str) -> str:
    """The reason why a peer with a role may not do what a route does; empty if it may."""
    if right in ("", KNOWN) or right in MAY[role]:
        return ""
    able = " or ".join(each for each in ROLES if right in MAY[each] and each != NODE)
    return f"{peer} may not {right}: this needs the role {able}"


async def _head(stream: trio.abc.Stream, conversation: Conversation) -> Request | None:
    """The head of the next request, or None if the connection ends before; raises Unreadable."""
    while (request := conversation.head()) is None and not conversation.is_over:
        conversation.feed(bytes(await stream.receive_some(_READ_BYTES)))
    return request


async def _taken(stream: trio.abc.Stream, data: bytes) -> bool:
    """Send a part of an answer; returns False if the peer does not take it."""
    with trio.move_on_after(_ANSWER_SECONDS) as patience:
        await stream.send_all(data)
    return not patience.cancelled_caught


async def _wait_end(stream: trio.abc.Stream, scope: trio.CancelScope) -> None:
    """Cancel when the peer has ended the connection; what it sends meanwhile is left."""
    while await stream.receive_some(_READ_BYTES):
        pass
    scope.cancel()


async def _close_in_order(raw: trio.SocketStream) -> None:
    """Say that nothing more comes, and let the peer read it: unread bytes would reset it."""
    await raw.send_eof()
    with trio.move_on_after(_CLOSING_SECONDS):
        while await raw.receive_some(_READ_BYTES):
            pass
