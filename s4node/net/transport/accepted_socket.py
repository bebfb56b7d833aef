"""A node's end of a connection: a TCP socket that speaks nng's framing, awaited through trio.

Rules
- The peer is any program that dials with nng's Pair0, or writes the same bytes. nng itself is not
  used here: it receives in threads of its own and reserves the length that a peer announces.
- Receiving and sending never block. One call to the kernel may bring many messages. They come
  through a buffer that all connections of a listener share, so a quiet one needs no memory.
- The kernel may take only a part of a message. The rest is sent by ``send_rest``, and until then
  nothing else is accepted.
- A peer that breaks the framing is as good as gone: its connection ends.
"""

from __future__ import annotations

import socket as stdlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import trio

from s4node.errors import RemoteFrameError, StageBroken
from s4node.net.transport.sp_messages import HANDSHAKE, SpMessages, framed

_RECEIVED_BYTES = 262_144
_KERNEL_BYTES = 1 << 20
"""What the kernel keeps of a peer while its connection waits to be read. Its own choice begins at
64 KiB, which is less than a producer sends between two turns of a busy node."""

_KEEPALIVE = (
    (stdlib.TCP_KEEPIDLE, 30),  # seconds of silence
    (stdlib.TCP_KEEPINTVL, 10),
    (stdlib.TCP_KEEPCNT, 3),
)
"""A peer whose host is gone is noticed after a minute."""


class Accepting:
    """A TCP socket that listens."""

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener
        self._buffer = memoryview(bytearray(_RECEIVED_BYTES))
        self.port: int = listener.socket.getsockname()[1]

    async def accept(self) -> Accepted | None:
        """The next peer, or None if it has gone again, as port scanners do."""
        raw = (await self._listener.accept()).socket
        try:
            name = "{}:{}".format(*raw.getpeername()[:2])
        except OSError:
            raw.close()
            return None
        peer = stdlib.socket(raw.family, raw.type, raw.proto, fileno=raw.detach())
        return Accepted(peer, name, self._buffer)

    def close(self) -> None:
        """Stop listening."""
        self._listener.socket.close()


async def listen_tcp(host: str, port: int) -> list[Accepting]:
    """Listen on all addresses of a host; raises OSError."""
    listeners = await trio.open_tcp_listeners(port, host=host)
    for each in listeners:  # a window can be this large only if it is before a peer connects
        each.socket.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_RCVBUF, _KERNEL_BYTES)
    return [Accepting(each) for each in listeners]


class Accepted:
    """A peer that has connected over TCP; ``name`` is its ``host:port``."""

    def __init__(self, raw: stdlib.socket, name: str, buffer: memoryview) -> None:
        self.name = name
        self._raw = raw
        self._buffer = buffer

    def make_pipe(self, max_bytes: int, on_change: Callable[[bool], None]) -> AcceptedSocket:
        """Accept the connection; raises StageBroken, and closes it, if it has ended."""
        try:
            return AcceptedSocket(self._raw, self._buffer, max_bytes, on_change)
        except OSError as error:
            self._raw.close()
            raise StageBroken(f"an accepted connection has ended: {error}") from error

    def turn_away(self, word: bytes) -> None:
        """Close the connection, after a last envelope."""
        with suppress(OSError):
            self._raw.setblocking(False)
            self._raw.send(HANDSHAKE + framed(word))
            self._raw.shutdown(stdlib.SHUT_WR)
        self._raw.close()


class AcceptedSocket:
    """The connection over the socket ``raw``, which it takes over.

    ``on_change(connected)`` is called when the peer's handshake has come, and at the end.
    """

    def __init__(
        self,
        raw: stdlib.socket,
        buffer: memoryview,
        max_bytes: int,
        on_change: Callable[[bool], None],
    ) -> None:
        raw.setblocking(False)
        raw.setsockopt(stdlib.IPPROTO_TCP, stdlib.TCP_NODELAY, 1)
        raw.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            raw.setsockopt(stdlib.IPPROTO_TCP, option, value)
        raw.send(HANDSHAKE)  # a new socket has room for it
        self._raw = raw
        self._buffer = buffer
        self._on_change = on_change
        self._splitting = SpMessages(max_bytes)
        self._messages: deque[bytes | RemoteFrameError] = deque()
        self._rest = memoryview(b"")
        self._has_rest = trio.lowlevel.ParkingLot()
        self._has_room = trio.lowlevel.ParkingLot()
        self._ended = False
        self._closed = False
        self.connected = False
        self.fault = ""
        self.unfinished = self.taken = self.sent = 0

    def receive_nowait(self) -> bytes | None:
        """The next envelope, or None; raises RemoteFrameError for one that is too long."""
        while not self._messages:
            try:
                size = self._raw.recv_into(self._buffer)
            except BlockingIOError:
                return None
            except OSError:
                size = 0
            if not size:
                self._end()
                return None
            try:
                found = self._splitting.split(self._buffer[:size])
            except RemoteFrameError as error:
                self.fault = str(error)
                self._end()
                return None
            self._messages += found
            self.taken += len(found)
            self.unfinished = self._splitting.unfinished
            if not self.connected and self._splitting.greeted:
                self.connected = True
                self._on_change(True)
        message = self._messages.popleft()
        if isinstance(message, RemoteFrameError):
            raise message
        return message

    def send_nowait(self, data: bytes) -> bool:
        """Send an envelope; return False, without sending, while it cannot be accepted."""
        if self._ended:
            raise StageBroken("the connection has ended")
        if self._rest:
            return False
        self._rest = memoryview(framed(data))
        self._push()
        if self._rest:
            self._has_rest.unpark_all()
        return True

    def _push(self) -> None:
        try:
            sent = self._raw.send(self._rest)
        except BlockingIOError:
            pass
        except OSError:
            self._rest = memoryview(b"")  # the peer is gone, which receiving finds
        else:
            self._rest = self._rest[sent:]
            self.sent += sent

    @property
    def unsent(self) -> int:
        """The bytes that were accepted and have not left."""
        return len(self._rest)

    async def send_rest(self) -> None:
        """Send what the kernel has not taken at once, until cancelled."""
        while True:
            while not self._rest:
                await self._has_rest.park()
            await trio.lowlevel.wait_writable(self._raw)
            self._push()
            if not self._rest:
                self._has_room.unpark_all()

    def answered(self) -> None:
        """Do nothing: the peer is not dialled from here."""

    async def wait_readable(self) -> None:
        """Wait until an envelope may have arrived, or the connection has ended."""
        if self._messages or self._ended:
            await trio.lowlevel.checkpoint()
            return
        await trio.lowlevel.wait_readable(self._raw)

    async def wait_writable(self) -> None:
        """Wait until an envelope may be accepted; raises ClosedResourceError at the end."""
        await trio.lowlevel.checkpoint()
        while self._rest and not self._ended:
            await self._has_room.park()
        if self._ended:
            raise trio.ClosedResourceError

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._has_room.unpark_all()
            self.connected = False
            self._on_change(False)

    def drop_input(self) -> None:
        """Take nothing more from the peer, and forget what has come in part."""
        self._end()
        self._splitting = SpMessages(0)
        self._messages.clear()
        self.unfinished = 0

    async def close(self) -> None:
        """Close; tasks that wait here get ClosedResourceError."""
        if not self._closed:
            self._closed = True
            with suppress(OSError):
                trio.lowlevel.notify_closing(self._raw)
            self._raw.close()
            self._has_room.unpark_all()
            self._rest = memoryview(b"")
            self.drop_input()
        await trio.lowlevel.cancel_shielded_checkpoint()
