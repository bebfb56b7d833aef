"""A node's end of connections: a TCP socket that listens, and the peers that it accepts.

Rules
- What a peer sends is read here, not by nng: see :mod:`s4node.net.transport.sp_socket`.
- With credentials, peers speak TLS; one that is refused before its handshake gets no reason.
"""

from __future__ import annotations

import socket as stdlib
from contextlib import suppress

import trio

from s4node.errors import StageBroken
from s4node.forks import closed_in_forks
from s4node.net.certificates.credentials import Credentials
from s4node.net.transport.sp_messages import HANDSHAKE, framed
from s4node.net.transport.sp_socket import PipeOwner, SpSocket

_RECEIVED_BYTES = 262_144
_KERNEL_BYTES = 1 << 20
"""The bytes that the kernel keeps of a peer while its connection waits. Its default begins at
64 KiB, which is less than a producer sends between two turns of a busy node."""


class Accepting:
    def __init__(self, listener: trio.SocketListener, credentials: Credentials | None) -> None:
        self._listener = listener
        self._credentials = credentials
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
        return Accepted(closed_in_forks(peer), name, self._buffer, self._credentials)

    def close(self) -> None:
        self._listener.socket.close()


async def listen_tcp(host: str, port: int, credentials: Credentials | None) -> list[Accepting]:
    """Listen on all addresses of a host; raises OSError."""
    listeners = await trio.open_tcp_listeners(port, host=host)
    for each in listeners:  # a window can be this large only if it is before a peer connects
        closed_in_forks(each.socket).setsockopt(stdlib.SOL_SOCKET, stdlib.SO_RCVBUF, _KERNEL_BYTES)
    return [Accepting(each, credentials) for each in listeners]


class Accepted:
    """A peer that has connected over TCP; ``name`` is its ``host:port``."""

    def __init__(
        self,
        raw: stdlib.socket,
        name: str,
        buffer: memoryview,
        credentials: Credentials | None,
    ) -> None:
        self.name = name
        self._raw = raw
        self._buffer = buffer
        self._credentials = credentials

    def make_pipe(self, max_bytes: int, owner: PipeOwner) -> SpSocket:
        """Accept the connection; raises StageBroken, and closes it, if it has ended."""
        try:
            if self._credentials is not None:
                self._raw.setblocking(False)
                self._raw = self._credentials.serving(self._raw)
            return SpSocket(self._raw, self._buffer, max_bytes, owner, self._credentials)
        except OSError as error:
            self._raw.close()
            raise StageBroken(f"an accepted connection has ended: {error}") from error

    def turn_away(self, message: bytes) -> None:
        with suppress(OSError):
            self._raw.setblocking(False)
            if self._credentials is None:
                self._raw.send(HANDSHAKE + framed(message))
            self._raw.shutdown(stdlib.SHUT_WR)
        self._raw.close()
