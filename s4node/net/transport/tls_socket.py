"""The dialling end of a connection in TLS, which connects again whenever it is lost.

Rules
- nng is not used here: it does not show the identity in a node's certificate, keeps the
  certificates that it began with, and takes twice the time. The framing is the same.
- An address that does not answer with good frames is dialled less and less often, as by
  :mod:`s4node.net.transport.pair_socket`.
- A peer that is not a node of ours gets nothing. Why it is not is logged once, each of a few
  reasons, and again only after a good connection.
"""

from __future__ import annotations

import random
import socket as stdlib
import ssl
from contextlib import suppress

import trio

from s4node.errors import RemoteFrameError
from s4node.logger import get_logger
from s4node.net.certificates.credentials import Credentials, tls_problem
from s4node.net.transport import fork_guard
from s4node.net.transport.pair_socket import REDIAL_MOST_MS, REDIAL_MS, host_and_port
from s4node.net.transport.sp_socket import RECORD_BYTES, PipeOwner, SpSocket

log = get_logger("s4node.net")

_CONNECT_SECONDS = 10.0
_REASONS = 4


class TlsSocket:
    """Connections to ``address``, one after the other, while ``run`` runs."""

    def __init__(
        self,
        address: str,
        max_bytes: int,
        owner: PipeOwner,
        credentials: Credentials | None,
    ) -> None:
        fork_guard.use()
        host_and_port(address)
        self.connected = False
        self._address = address
        self._max_bytes = max_bytes
        self._owner = owner
        self._credentials = credentials
        self._buffer = memoryview(bytearray(8 * RECORD_BYTES))
        self._now: SpSocket | None = None
        self._lost = trio.Event()
        self._changes = trio.lowlevel.ParkingLot()
        self._unanswered = 0  # connections in a row that brought nothing good
        self._logged: set[str] = set()  # what was wrong
        self._closed = False

    async def run(self) -> None:
        """Connect, connect again, and send what the kernel does not take at once."""
        if self._credentials is None:  # another node has named this one
            log.warning("no connection in TLS", address=self._address, reason="no certificate")
            await trio.sleep_forever()
        while True:
            problem = "does not answer in TLS"
            try:
                with trio.move_on_after(_CONNECT_SECONDS) as patience:
                    secured = await self._secured()
                if not patience.cancelled_caught:
                    problem = await self._carry(secured)
            except ssl.SSLError as error:
                problem = tls_problem(error)
            except OSError:
                problem = ""  # nobody listens there, which callers notice
            if problem and problem not in self._logged and len(self._logged) < _REASONS:
                self._logged.add(problem)
                log.warning("no connection in TLS", address=self._address, reason=problem)
            most = min(REDIAL_MS << min(self._unanswered, 8), REDIAL_MOST_MS)
            self._unanswered += 1
            await trio.sleep(random.uniform(0, most) / 1000)  # noqa: S311 - only spreads dialling

    async def _secured(self) -> ssl.SSLSocket:
        """A connection to a node of ours, after the handshake; raises OSError."""
        assert self._credentials is not None
        stream = await trio.open_tcp_stream(*host_and_port(self._address))
        found = stream.socket
        raw = stdlib.socket(found.family, found.type, found.proto, fileno=found.detach())
        raw.setblocking(False)
        secured = self._credentials.dialling(raw)
        try:
            while True:
                try:
                    secured.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await trio.lowlevel.wait_readable(secured)
                except ssl.SSLWantWriteError:
                    await trio.lowlevel.wait_writable(secured)
            self._credentials.check_node(secured)
        except BaseException:
            secured.close()
            raise
        return secured

    async def _carry(self, secured: ssl.SSLSocket) -> str:
        """Carry a connection until it ends; return what was wrong with the peer, or empty."""
        now = SpSocket(secured, self._buffer, self._max_bytes, self, self._credentials)
        self._now, self._lost = now, trio.Event()
        self._changes.unpark_all()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(now.send_rest)
                await self._lost.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._closed = not self._lost.is_set()  # then this was cancelled: nothing is lost
            await now.close()
        return now.fault

    def set_connected(self, connected: bool) -> None:
        """Pass on that the peer has greeted, or that the connection has ended."""
        before, self.connected = self.connected, connected and not self._closed
        if not connected:
            self._now = None
            self._lost.set()
        if before != connected and not self._closed:
            self._owner.set_connected(connected)

    def receive_nowait(self) -> bytes | None:
        """The next envelope, or None if none has arrived; one that is too long is passed over."""
        try:
            return None if self._now is None else self._now.receive_nowait()
        except RemoteFrameError:
            return None

    def send_nowait(self, data: bytes) -> bool:
        return self._now is not None and self.connected and self._now.send_nowait(data)

    def answered(self) -> None:
        self._unanswered = 0
        self._logged.clear()

    async def wait_readable(self) -> None:
        await (await self._connection()).wait_readable()

    async def wait_writable(self) -> None:
        while True:
            now = await self._connection()
            with suppress(trio.ClosedResourceError):
                return await now.wait_writable()

    async def _connection(self) -> SpSocket:
        while (now := self._now) is None:
            if self._closed:
                raise trio.ClosedResourceError
            await self._changes.park()
        return now

    async def close(self) -> None:
        self._closed = True
        if self._now is not None:
            await self._now.close()
        self._changes.unpark_all()
