"""The network of containers and clients: TCP, or a test's network in memory.

Rules
- A pipe carries envelopes between two peers, whole and in order, until one end closes. Envelopes
  sent and not received by then are lost. A dialled pipe reconnects whenever it is lost.
- No other room knows which network it uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import Protocol

from s4node import threads
from s4node.net.certificates.credentials import Credentials, is_tls
from s4node.net.certificates.identity import Holder
from s4node.net.transport.accepted_socket import Accepting, listen_tcp
from s4node.net.transport.pair_socket import PairSocket
from s4node.net.transport.probe import look
from s4node.net.transport.sp_socket import PipeOwner
from s4node.net.transport.tls_socket import TlsSocket


class Pipe(Protocol):
    """A connection to one peer."""

    connected: bool

    def receive_nowait(self) -> bytes | None:
        """The next envelope, or None if none has arrived."""
        ...

    def send_nowait(self, data: bytes, /) -> bool:
        """Send an envelope; return False, without sending, while it cannot be accepted."""
        ...

    def answered(self) -> None:
        """Note that an s4node peer has sent a good frame."""
        ...

    async def wait_readable(self) -> None:
        """Wait until an envelope may have arrived; raises ClosedResourceError when closed."""
        ...

    async def wait_writable(self) -> None:
        """Wait until an envelope may be accepted; raises ClosedResourceError when closed."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class DialledPipe(Pipe, Protocol):
    """The end of who has dialled; it is of use while ``run`` runs."""

    async def run(self) -> None:
        """Do what the connection needs done beside its calls, until cancelled."""
        ...


class AcceptedPipe(Pipe, Protocol):
    """A node's end of a connection, which ends with it. ``wait_readable`` returns at the end.

    ``receive_nowait`` raises RemoteFrameError in the place of an envelope that is too long.
    """

    holder: Holder | None
    """Who the peer is, by its certificate; None if it is not known."""

    fault: str
    """How the peer has broken the framing of envelopes, which has ended it; empty if it has not."""

    unfinished: int
    """The bytes of an envelope that has not come whole."""

    taken: int
    """The envelopes that have come."""

    untaken: int
    """The bytes that have come in whole envelopes and were not taken."""

    sent: int
    """The bytes that have left."""

    unsent: int
    """The bytes that were accepted and have not left."""

    def drop_input(self) -> None:
        """Take nothing more from the peer, and forget what has come in part."""
        ...

    async def send_rest(self) -> None:
        """Send what was accepted and has not left yet, until cancelled."""
        ...


class Caller(Protocol):
    """A peer that has connected, before its connection is accepted or refused."""

    name: str

    def make_pipe(self, max_bytes: int, owner: PipeOwner, /) -> AcceptedPipe:
        """Accept the connection; raises StageBroken if it has ended."""
        ...

    def turn_away(self, message: bytes, /) -> None:
        """Close the connection, after a last envelope."""
        ...


class Place(Protocol):
    """A listening socket; ``port`` is its actual port."""

    port: int

    async def accept(self) -> Caller | None:
        """The next peer, or None if it has gone again; raises OSError."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Network(Protocol):
    """Makes connections."""

    async def listen(
        self, host: str, port: int, credentials: Credentials | None, /
    ) -> Sequence[Place]:
        """Listen on all addresses of a host, in TLS with ``credentials``; raises OSError."""
        ...

    def dial(
        self,
        address: str,
        max_bytes: int,
        owner: PipeOwner,
        credentials: Credentials | None,
        /,
    ) -> DialledPipe:
        """Connect now, and reconnect whenever the connection is lost; ``credentials`` are for
        ``tls+tcp://``."""
        ...

    def is_private(self, host: str, /) -> bool:
        """Return True if only programs of this machine reach a host's addresses."""
        ...

    async def probe(self, address: str, seconds: float, credentials: Credentials | None, /) -> str:
        """See :func:`s4node.net.transport.probe.look`."""
        ...


class Tcp:
    async def listen(
        self, host: str, port: int, credentials: Credentials | None
    ) -> list[Accepting]:
        return await listen_tcp(host, port, credentials)

    def dial(
        self,
        address: str,
        max_bytes: int,
        owner: PipeOwner,
        credentials: Credentials | None,
    ) -> PairSocket | TlsSocket:
        if not is_tls(address):
            return PairSocket.dialing(address, max_bytes, owner)
        return TlsSocket(address, max_bytes, owner, credentials)

    def is_private(self, host: str) -> bool:
        with suppress(ValueError):
            return ip_address(host).is_loopback
        return host == "localhost"

    async def probe(self, address: str, seconds: float, credentials: Credentials | None) -> str:
        return await threads.run_sync(look, address, seconds, credentials, abandon_on_cancel=True)


current: Network = Tcp()


@contextmanager
def replaced(other: Network) -> Iterator[None]:
    """Use another network inside the block."""
    global current
    before, current = current, other
    try:
        yield
    finally:
        current = before
