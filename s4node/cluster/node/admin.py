"""What a node is asked, what it answers, and the admin socket of a process that has no cluster.

Rules
- Nodes are asked through the tree (:mod:`s4node.cluster.coordination.node_requests`). A process
  that runs an app alone has a Unix socket, in a folder that only its owner can enter; connections
  of other users, except root, are refused.
- A client first shows that it can read the socket's token, a file beside the socket (0600). The
  token does not follow if the socket is passed on to another container or host.
- A connection has one request: the token, then a line of JSON. The answer is a line.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
import trio

from s4node.cluster.node.container_status import ContainerStatus
from s4node.errors import NodeUnreachable, S4Error, SessionLost, described, leaves
from s4node.events.schema import UNREADABLE
from s4node.logger import get_logger
from s4node.metrics.statistics import ContainerStatistics

log = get_logger("s4node.cluster")

MAX_LINE_BYTES = 64 << 20
CONNECT_SECONDS = 5.0

M = TypeVar("M", bound=msgspec.Struct)


class AskStatus(msgspec.Struct, tag="status", tag_field="ask", frozen=True):
    """Asks for the status. Answered with NodeStatus."""


class AskSettings(msgspec.Struct, tag="settings", tag_field="ask", frozen=True):
    """Asks for the settings with which a container would run of an app ``deployed`` with some.
    Answered with Settings."""

    deployed: dict[str, str]


class AskDeploy(msgspec.Struct, tag="deploy", tag_field="ask", frozen=True):
    """Asks to start the package with this ``digest``, have it check itself, and hold it.

    Answered with Prepared, and with Ready once the registry has this version and its container
    runs; or with Failed. The container is held while the request lasts. With the folder of a
    ``savepoint`` it checks whether it can read that, rather than the state as it is.
    """

    digest: str
    partitions: int
    expected: int
    savepoint: str = ""


Ask = AskStatus | AskSettings | AskDeploy


class NodeStatus(msgspec.Struct, tag="status", tag_field="answer", frozen=True):
    """What a node says of itself; ``statistics`` are those of its containers that are ready."""

    name: str
    cluster: str
    pid: int
    address: str
    containers: list[ContainerStatus]
    statistics: list[ContainerStatistics]


class Settings(msgspec.Struct, tag="settings", tag_field="answer", frozen=True):
    """The settings of a container, by name."""

    settings: dict[str, str]


class Prepared(msgspec.Struct, tag="prepared", tag_field="answer", frozen=True):
    """The new version is loaded and checked."""

    inputs: list[str]
    outputs: list[str]


class Ready(msgspec.Struct, tag="ready", tag_field="answer", frozen=True):
    """The new version runs on this node."""

    address: str


class Failed(msgspec.Struct, tag="failed", tag_field="answer", frozen=True):
    """The request failed; ``trace`` is the traceback if the app's code raised."""

    error: str
    trace: str = ""


Answer = NodeStatus | Settings | Prepared | Ready | Failed

_asks: msgspec.json.Decoder[Ask] = msgspec.json.Decoder(Ask)
_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, SessionLost)
"""Raised if nobody can be answered any more."""


class Says(Protocol):
    """The way of an answer."""

    async def say(self, answer: msgspec.Struct, /) -> None:
        """Send an answer."""


def decode_answer(data: bytes) -> Answer:
    """The answer in JSON; raises msgspec.MsgspecError if it is invalid."""
    return _answers.decode(data)


Handler = Callable[[Ask, Says], Awaitable[None]]


async def answer_with(handle: Handler, data: bytes, way: Says) -> None:
    """Answer a request, given as JSON, with what ``handle`` says, or with its error."""
    try:
        ask = _asks.decode(data)
    except UNREADABLE as error:
        await way.say(Failed(f"the request is unknown: {error}"))
        return
    try:
        await handle(ask, way)
    except* _GONE:
        pass
    except* Exception as group:
        await way.say(_failed(group))


class Conversation:
    """One connection, from either side."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._data = bytearray()

    async def show(self, token: bytes) -> None:
        """Show the token; must come first."""
        await self._stream.send_all(token + b"\n")

    async def say(self, message: msgspec.Struct) -> None:
        """Send a message."""
        await self._stream.send_all(msgspec.json.encode(message) + b"\n")

    async def line(self) -> bytes | None:
        """The next line; None at the end."""
        searched = 0
        while (end := self._data.find(b"\n", searched)) < 0:
            searched = len(self._data)
            if searched > MAX_LINE_BYTES or not await self._more():
                return None
        line = bytes(self._data[:end])
        del self._data[: end + 1]
        return line

    async def _more(self) -> bool:
        try:
            data = await self._stream.receive_some()
        except trio.BrokenResourceError:
            return False
        self._data += data
        return bool(data)


# -- the process that has the socket --------------------------------------------------------------


async def serve(
    place: Path,
    handle: Handler,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer the requests of clients that can read the token, until cancelled."""
    token = secrets.token_hex(32).encode()
    _write_token(token_of(place), token)
    listening = trio.socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)  # nobody else may connect, even briefly
    try:
        await listening.bind(str(place))
    finally:
        os.umask(before)
    listening.listen(64)

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await _answer(stream, handle, token)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, answer, [trio.SocketListener(listening)])
        task_status.started()


def token_of(place: Path) -> Path:
    """The file with the token of the socket at ``place``."""
    return place.with_name(f"{place.name}.token")


def _write_token(file: Path, token: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(token)


async def _answer(stream: trio.SocketStream, handle: Handler, token: bytes) -> None:
    conversation = Conversation(stream)
    try:
        if not _is_ours(stream):
            return
        shown = await conversation.line()
        if shown is None:
            return
        if not hmac.compare_digest(shown, token):
            log.warning("a wrong token at the admin socket")
            await conversation.say(Failed("the token is not this node's; read it again"))
            return
        line = await conversation.line()
        if line is not None:
            await answer_with(handle, line, conversation)
    except* _GONE:
        pass


def _failed(group: BaseExceptionGroup[Exception]) -> Failed:
    """The answer for the first exception of a failed request."""
    error = leaves(group)[0]
    if isinstance(error, S4Error):
        return Failed(str(error))
    log.error("a request failed", reason=described(error), exc_info=error)
    return Failed(f"the node could not do this: {described(error)}; see its log")


def _is_ours(stream: trio.SocketStream) -> bool:
    """Return True if the peer is this user, or root."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    form = "3i"
    found = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form))
    _, user, _ = struct.unpack(form, found)
    if user in (0, os.getuid()):
        return True
    log.warning("another user at the admin socket", user=user)
    return False


# -- the other side -------------------------------------------------------------------------------


class Caller:
    """A request to a node, which is sent when its first answer is awaited."""

    def __init__(self, node: str, conversation: Conversation, token: bytes, ask: Ask) -> None:
        self.node = node
        self._conversation = conversation
        self._request: tuple[bytes, Ask] | None = (token, ask)

    async def answer(self, kind: type[M]) -> M:
        """The next answer; raises NodeUnreachable, or NodeRefused if the node answers Failed."""
        if self._request is not None:
            (token, ask), self._request = self._request, None
            with suppress(trio.BrokenResourceError):  # it may have answered before it hung up
                await self._conversation.show(token)
                await self._conversation.say(ask)
        line = await self._conversation.line()
        if line is None:
            raise NodeUnreachable(f"node {self.node!r} ended while it was asked; see its log")
        try:
            answer = _answers.decode(line)
        except UNREADABLE as error:
            raise NodeUnreachable(
                f"node {self.node!r} sent an answer that cannot be read ({error}); use the nodes' "
                f"version of s4node"
            ) from error
        return of_kind(self.node, answer, kind)


def of_kind(node: str, answer: Answer, kind: type[M]) -> M:
    """``answer`` of a node; raises NodeRefused if it is Failed, NodeUnreachable if of another
    kind."""
    if isinstance(answer, Failed):
        raise NodeRefused(node, answer)
    if not isinstance(answer, kind):
        raise NodeUnreachable(f"node {node!r} sent another answer: {answer!r}")
    return answer


class NodeRefused(S4Error):  # noqa: N818
    """A node could not do what it was asked; ``failed`` has the reason."""

    def __init__(self, node: str, failed: Failed) -> None:
        super().__init__(f"node {node!r}: {failed.error}")
        self.node = node
        self.failed = failed


@asynccontextmanager
async def asking(node: str, place: str, ask: Ask) -> AsyncIterator[Caller]:
    """Send a request to the process whose admin socket is at ``place``; raises NodeUnreachable."""
    try:
        with trio.fail_after(CONNECT_SECONDS):
            token = await trio.Path(token_of(Path(place))).read_bytes()
            stream = await trio.open_unix_socket(place)
    except (OSError, trio.TooSlowError, trio.BrokenResourceError) as error:
        raise NodeUnreachable(
            f"node {node!r} cannot be reached at {place} ({error or 'no answer'}); is it running?"
        ) from error
    async with stream:
        yield Caller(node, Conversation(stream), token, ask)
