"""Connections as containers and clients make them: over TCP, or over what a test has instead.

Rules
- A pipe carries envelopes between two peers, whole and in order, until one end goes. What was sent
  and not received by then is lost. A dialled pipe is made again whenever it is lost.
- Nothing above this room knows which network it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from s4node import threads
from s4node.net.transport.pair_socket import Accepting, PairSocket, listen_tcp
from s4node.net.transport.probe import look


class Pipe(Protocol):
    """A connection to one peer; see :class:`~s4node.net.transport.pair_socket.PairSocket`."""

    connected: bool

    def receive_nowait(self) -> bytes | None:
        """The next envelope, or None if none has arrived."""
        ...

    def send_nowait(self, data: bytes, /) -> bool:
        """Send an envelope; False, and nothing sent, while it cannot be taken."""
        ...

    def answered(self) -> None:
        """What was received is a peer's."""
        ...

    async def wait_readable(self) -> None:
        """Return once an envelope may have arrived; ClosedResourceError when it is closed."""
        ...

    async def wait_writable(self) -> None:
        """Return once an envelope may be taken; ClosedResourceError when it is closed."""
        ...

    async def close(self) -> None:
        """End it."""
        ...


class Caller(Protocol):
    """A peer that has come, before anything is made of its connection."""

    name: str

    def take(self, max_bytes: int, on_change: Callable[[bool], None], /) -> Pipe:
        """The connection; raises StageBroken if there is none any more."""
        ...

    def refuse(self) -> None:
        """Close it."""
        ...


class Place(Protocol):
    """Where peers come to. ``port`` is the one that was taken."""

    port: int

    async def accept(self) -> Caller | None:
        """The next peer, or None for one that has gone again; raises OSError."""
        ...

    def close(self) -> None:
        """Take no more."""
        ...


class Network(Protocol):
    """Makes connections."""

    async def listen(self, host: str, port: int, /) -> Sequence[Place]:
        """Listen there; raises OSError."""
        ...

    def dial(self, address: str, max_bytes: int, on_change: Callable[[bool], None], /) -> Pipe:
        """A connection that is made now, and made again whenever it is lost."""
        ...

    async def probe(self, address: str, seconds: float, /) -> str:
        """See :func:`s4node.net.transport.probe.look`."""
        ...


class Tcp:
    """The network that there is."""

    async def listen(self, host: str, port: int) -> list[Accepting]:
        """Listen there; raises OSError."""
        return await listen_tcp(host, port)

    def dial(self, address: str, max_bytes: int, on_change: Callable[[bool], None]) -> PairSocket:
        """A connection that is made now, and made again whenever it is lost."""
        return PairSocket.dialing(address, max_bytes, on_change)

    async def probe(self, address: str, seconds: float) -> str:
        """What is wrong with what listens at ``address``."""
        return await threads.run_sync(look, address, seconds, abandon_on_cancel=True)


current: Network = Tcp()


@contextmanager
def replaced(other: Network) -> Iterator[None]:
    """Make connections elsewhere inside of the block."""
    global current
    before, current = current, other
    try:
        yield
    finally:
        current = before
