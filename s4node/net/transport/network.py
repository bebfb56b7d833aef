"""The network of containers and clients: TCP, or a test's in memory; and why a peer is silent.

Rules
- A pipe carries envelopes between two peers, whole and in order, until one end closes. Envelopes
  sent and not received by then are lost. A dialled pipe reconnects whenever it is lost.
- No other room knows which network it uses.
- A failed connection leaves no trace in nng, so after a wait without an answer another connection
  is made to see the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import Protocol

import trio

from s4node import threads
from s4node.net.certificates.credentials import Credentials, is_tls
from s4node.net.certificates.identity import Holder
from s4node.net.transport.accepted_socket import Accepting, listen_tcp
from s4node.net.transport.pair_socket import PairSocket
from s4node.net.transport.probe import look
from s4node.net.transport.sp_socket import PipeOwner
from s4node.net.transport.tls_socket import TlsSocket

_PROBE_SECONDS = 1.0
_PAUSE_SECONDS = 0.1

_UNREACHED = "is the node running, and is its s4.listener.advertise reached from this machine?"


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


async def why_silent(address: str, stranger: str, credentials: Credentials | None) -> str:
    """The reason for no answer, as the end of a sentence; empty if a node answers now.

    ``stranger`` is from the peer's answers (see :mod:`s4node.net.transport.dialled_peer`). Takes at
    most two seconds.
    """
    if stranger:
        return stranger
    try:
        problem = await current.probe(address, _PROBE_SECONDS, credentials)
    except TimeoutError:
        return f"another connection was not answered either; {_UNREACHED}"
    except ConnectionRefusedError:
        return "is the node running?"
    except OSError:
        return _UNREACHED
    return f"the program there {problem}" if problem else ""


async def why_all_silent(
    addresses: Sequence[str], stranger: str, credentials: Credentials | None
) -> str:
    """As :func:`why_silent`, for several addresses; empty if a node answers at one of them now."""
    reasons: dict[str, str] = {}

    async def ask(address: str) -> None:
        reasons[address] = await why_silent(address, stranger, credentials)

    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(ask, address)
    return "" if "" in reasons.values() else reasons[addresses[0]]


async def first_answering(addresses: Sequence[str], credentials: Credentials | None) -> str:
    """Wait for a node to answer at one of the addresses; return that address.

    The only address is returned at once.
    """
    found = addresses[0] if len(addresses) == 1 else ""

    async def ask(address: str, scope: trio.CancelScope) -> None:
        nonlocal found
        if not await why_silent(address, "", credentials):
            found = address
            scope.cancel()

    while not found:
        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(ask, address, nursery.cancel_scope)
        if not found:
            await trio.sleep(_PAUSE_SECONDS)
    return found
