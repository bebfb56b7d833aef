"""One end of a TCP connection in nng's framing, plain or in TLS, awaited through trio.

Rules
- The peer is any program that speaks nng's Pair0, or writes the same bytes. nng itself is not used
  here: it receives in threads of its own and reserves the length that a peer announces.
- Receiving and sending never block. One call to the kernel may bring many messages. They come
  through a buffer that all connections of a listener share, so a quiet one needs no memory.
- Receiving asks the kernel a few times at most, so a peer that sends a long message keeps nobody
  waiting; most envelopes come whole. After a few bytes it is not asked once more: there are no
  more, and an exception of ssl takes as long as a record.
- The kernel may take only a part of a message. The rest is sent by ``send_rest``, and until then
  nothing else is accepted.
- A peer that breaks the framing is as good as gone: its connection ends. So is one that asks for
  new keys of TLS and does not read.
- In TLS, nothing is sent or taken before the peer is known: its ``holder``.
"""

from __future__ import annotations

import socket as stdlib
import ssl
from collections import deque
from contextlib import suppress
from fcntl import ioctl
from termios import FIONREAD
from typing import Protocol

import trio

from s4node.errors import RemoteFrameError, StageBroken
from s4node.forks import closed_in_forks
from s4node.net.certificates.credentials import Credentials, tls_problem
from s4node.net.certificates.identity import Holder
from s4node.net.transport.sp_messages import HANDSHAKE, SpMessages, framed

_KEEPALIVE = (
    (stdlib.TCP_KEEPIDLE, 5),  # seconds of silence
    (stdlib.TCP_KEEPINTVL, 5),
    (stdlib.TCP_KEEPCNT, 3),
)
"""A peer whose host is gone is noticed after 20 s, before it counts as idle by default."""

_RECEIVES = 4
"""How often the kernel is asked for an envelope: for a megabyte, in half a millisecond. A peer that
has just come is asked once: many may come at the same time."""

_LITTLE = 4096
"""Fewer bytes than these were all that the kernel had."""

RECORD_BYTES = 16_384
"""The longest piece of data in TLS."""

_NO_BYTES = bytes(4)


class PipeOwner(Protocol):
    """The owner of one end of a connection."""

    def set_connected(self, connected: bool) -> None:
        """Note that the peer has come or gone."""
        ...


class SpSocket:
    """The connection over the socket ``raw``, which it takes over.

    ``owner`` learns that the peer's handshake has come, and of the end. With
    ``credentials``, ``raw`` speaks TLS; if its handshake is not over, it goes on as bytes come.
    """

    def __init__(
        self,
        raw: stdlib.socket,
        buffer: memoryview,
        max_bytes: int,
        owner: PipeOwner,
        credentials: Credentials | None = None,
    ) -> None:
        raw.setblocking(False)
        raw.setsockopt(stdlib.IPPROTO_TCP, stdlib.TCP_NODELAY, 1)
        raw.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            raw.setsockopt(stdlib.IPPROTO_TCP, option, value)
        self._raw = closed_in_forks(raw)
        self._tls = raw if isinstance(raw, ssl.SSLSocket) else None
        self._credentials = credentials
        self._shaking = True
        self.holder: Holder | None = None
        """Who the peer is; None if it is not known."""
        self._buffer = buffer
        self._owner = owner
        self._splitting = SpMessages(max_bytes)
        self._messages: deque[bytes | RemoteFrameError] = deque()
        self._dry = False  # the kernel had no more a moment ago
        self._rest = memoryview(b"")
        self._has_rest = trio.lowlevel.ParkingLot()
        self._has_room = trio.lowlevel.ParkingLot()
        self._ended = False
        self._closed = False
        self.connected = False
        self.fault = ""
        self.unfinished = self.untaken = self.taken = self.sent = self.unsent = 0
        if self._tls is None:
            raw.send(HANDSHAKE)  # a new socket has room for it
        elif self._tls.version() is not None:
            self._shaken()

    def receive_nowait(self) -> bytes | None:
        """The next envelope, or None if none is whole; then there may be more bytes at once.

        Raises RemoteFrameError for one that is too long.
        """
        if not self._messages:
            for _ in range(_RECEIVES if self.connected else 1):
                if not self._receive() or self._messages:
                    break
            if not self._messages:
                return None
        message = self._messages.popleft()
        if isinstance(message, RemoteFrameError):
            raise message
        self.untaken -= len(message)
        return message

    def _receive(self) -> bool:
        """Split what was received before, or else what the kernel has now, into messages; return
        True if so much has come that more may be there."""
        data = self._splitting.rest
        if not data:
            if self._dry:
                self._dry = False
                return False
            try:
                size = self._raw.recv_into(self._buffer) if self._tls is None else self._decrypted()
            except BlockingIOError:
                return False
            except OSError:
                size = 0
            if not size:
                self._end()
                return False
            data = self._buffer[:size]
            self._dry = size < _LITTLE
        try:
            found = self._splitting.split(data)
        except RemoteFrameError as error:
            self.fault = str(error)
            self._end()
            return False
        self._messages += found
        self.taken += len(found)
        self.untaken = len(self._splitting.rest)
        for message in found:
            if isinstance(message, bytes):
                self.untaken += len(message)
        self.unfinished = self._splitting.unfinished
        if not self.connected and self._splitting.greeted:
            self.connected = True
            self._owner.set_connected(True)
        return 2 * len(data) > len(self._buffer) and not self._ended

    def _decrypted(self) -> int:
        """Receive and decrypt what fits into the buffer; raises as ``recv_into``."""
        assert self._tls is not None
        size, most = 0, len(self._buffer) - RECORD_BYTES
        try:
            if self._shaking:
                self._tls.do_handshake()
                self._shaken()
            while size <= most:
                got = self._tls.recv_into(self._buffer[size:])
                if not got:
                    break
                size += got
                if got < _LITTLE and self._is_dry():
                    break
        except ssl.SSLWantReadError:
            if not size:
                raise BlockingIOError from None
        except ssl.SSLError as error:
            self.fault = f"the other end {tls_problem(error)}"
            raise
        return size

    def _is_dry(self) -> bool:
        """Return True if nothing waits to be decrypted."""
        assert self._tls is not None
        if self._tls.pending():
            return False
        return ioctl(self._raw, FIONREAD, _NO_BYTES) == _NO_BYTES

    def _shaken(self) -> None:
        """Greet the peer, which is known now."""
        assert self._tls is not None
        assert self._credentials is not None
        self._shaking = False
        try:
            self.holder = self._credentials.peer_of(self._tls)
        except ValueError as error:
            self.fault = f"the peer's certificate is not one of a peer: {error}"
            raise OSError(self.fault) from error
        self._tls.send(HANDSHAKE)

    def send_nowait(self, data: bytes) -> bool:
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
        except (BlockingIOError, ssl.SSLWantWriteError):
            pass
        except OSError:
            self._rest = memoryview(b"")  # the peer is gone, which receiving finds
        else:
            self._rest = self._rest[sent:]
            self.sent += sent
        self.unsent = len(self._rest)

    async def send_rest(self) -> None:
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
        waits = self._messages or self._splitting.rest or self._ended
        if waits or (self._tls is not None and self._tls.pending()):
            await trio.lowlevel.checkpoint()
            return
        await trio.lowlevel.wait_readable(self._raw)

    async def wait_writable(self) -> None:
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
            self._owner.set_connected(False)

    def drop_input(self) -> None:
        self._end()
        self._splitting = SpMessages(0)
        self._messages.clear()
        self.unfinished = self.untaken = 0

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            with suppress(OSError):
                trio.lowlevel.notify_closing(self._raw)
            self._raw.close()
            self._has_room.unpark_all()
            self._rest, self.unsent = memoryview(b""), 0
            self.drop_input()
        await trio.lowlevel.cancel_shielded_checkpoint()
