"""Connections in memory: a test's replacement for TCP.

Rules
- What happens at the other end is an action of the other run (``runs``); envelopes of one pipe stay
  in order.
- A caller has the host that ``host`` in ``runs`` says; a listener, the host of its address. A host
  that is cut reaches nobody: its pipes break, and what is in transit is lost. Callers retry.
- A pipe holds a bounded number of envelopes that have not been received.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import trio

from s4node.errors import StageBroken
from s4node.net.certificates.credentials import Credentials
from s4node.net.certificates.identity import Holder
from s4node.net.transport.pair_socket import host_and_port
from s4node.net.transport.sp_socket import PipeOwner
from s4node.testing.runs import Run, Runs, host

_MOST_ENVELOPES = 16
_SLOW = 100
"""The factor by which messages to and from a slow host take longer."""
_REDIAL_SECONDS = 0.05
_REDIAL_MOST_SECONDS = 1.0


class Message(NamedTuple):
    """An envelope that has arrived, or a commit that was put at the URL: ``receiver`` is its object
    there."""

    at: float
    sender: str
    receiver: str
    data: bytes


class MemoryNetwork:
    """A network between runs; ``delay()`` gives the seconds from one host to another."""

    def __init__(self, runs: Runs, delay: Callable[[], float] = lambda: 0.0) -> None:
        self.delay = delay
        self.runs = runs
        self.cut_off: set[str] = set()
        self.cut_apart: set[tuple[str, str]] = set()
        self.slow: set[str] = set()
        self._held: dict[tuple[str, str], list[tuple[_End, Callable[[], None]]]] = {}
        self.trace: list[Message] = []
        self._ports = itertools.count(1)
        self._places: dict[tuple[str, int], MemoryPlace] = {}
        self._ends: dict[_End, None] = {}

    def cut(self, name: str, other: str = "") -> None:
        """Take a host off the network, or cut it from one other."""
        if other:
            self.cut_apart |= {(name, other), (other, name)}
        else:
            self.cut_off.add(name)
        for end in list(self._ends):
            if not self.reaches(end.host, end.far):
                end.lose()

    def heal(self, name: str, other: str = "") -> None:
        """End a cut of a host, or of two hosts from each other."""
        if other:
            self.cut_apart -= {(name, other), (other, name)}
        else:
            self.cut_off.discard(name)

    def hold(self, name: str, other: str) -> None:
        """Keep what a host sends to another one, whose connections do not break."""
        self._held.setdefault((name, other), [])

    def let_go(self, name: str, other: str) -> None:
        """Deliver what was kept, in its order."""
        for end, action in self._held.pop((name, other), ()):
            self.runs.after(self.runs.now, end.process, action)

    def kept(self, path: tuple[str, str], end: _End, action: Callable[[], None]) -> bool:
        held = self._held.get(path)
        if held is not None:
            held.append((end, action))
        return held is not None

    @property
    def connections(self) -> int:
        return len(self._ends)

    def seconds(self, name: str, other: str) -> float:
        """How long the next envelope takes."""
        return self.delay() * (1 if self.slow.isdisjoint((name, other)) else _SLOW)

    def killed(self, run: Run) -> None:
        """Close all that a run has open, as the kernel does when a process has died."""
        for end in [end for end in self._ends if end.process is run]:
            end.shut()
        for key in [key for key, place in self._places.items() if place.process is run]:
            self._places.pop(key).close()

    # -- the contract ------------------------------------------------------------------------

    async def listen(
        self,
        name: str,
        port: int,
        credentials: Credentials | None,  # noqa: ARG002 - nobody else is on this network
    ) -> list[MemoryPlace]:
        await trio.lowlevel.checkpoint()
        port = port or next(self._ports)
        if (name, port) in self._places:
            raise OSError(98, "Address already in use")
        place = self._places[name, port] = MemoryPlace(self, name, port)
        return [place]

    def dial(
        self,
        address: str,
        max_bytes: int,
        owner: PipeOwner,
        credentials: Credentials | None,
    ) -> _End:
        del max_bytes, credentials  # the reader checks sizes, and the network has no others
        end = _End(self, host.get(), owner)
        end.dials(*host_and_port(address))
        return end

    async def probe(
        self,
        address: str,
        seconds: float,
        credentials: Credentials | None = None,  # noqa: ARG002
    ) -> str:
        """The problem at ``address``: none; raises OSError if nothing listens there."""
        await trio.lowlevel.checkpoint()
        if self.listener_of(host.get(), *host_and_port(address)) is None:
            raise ConnectionRefusedError(111, f"no listener at {address} within {seconds:g} s")
        return ""

    def is_private(self, host: str) -> bool:  # noqa: ARG002
        return True

    # -- inside ------------------------------------------------------------------------------

    def listener_of(self, name: str, there: str, port: int) -> MemoryPlace | None:
        """The listener that a caller at the host ``name`` reaches; None if there is none."""
        return self._places.get((there, port)) if self.reaches(name, there) else None

    def reaches(self, name: str, there: str) -> bool:
        cut = self.cut_off & {name, there} or (name, there) in self.cut_apart
        return name == there or not cut

    def gone(self, place: MemoryPlace) -> None:
        self._places.pop((place.host, place.port), None)

    def made(self, end: _End) -> None:
        """Note a new end of a pipe, or the close of a known one."""
        if end in self._ends:
            del self._ends[end]
        else:
            self._ends[end] = None


class MemoryPlace:
    def __init__(self, network: MemoryNetwork, name: str, port: int) -> None:
        self.host = name
        self.port = port
        self.process = network.runs.here
        self._network = network
        self._callers: deque[_Caller] = deque()
        self._came = trio.lowlevel.ParkingLot()

    async def accept(self) -> _Caller:
        await trio.lowlevel.checkpoint()
        while not self._callers:
            await self._came.park()
        return self._callers.popleft()

    def arrive(self, end: _End) -> None:
        self._callers.append(_Caller(self._network, self.host, end))
        self._network.runs.soon(self.process, self._came.unpark)

    def close(self) -> None:
        self._network.gone(self)
        for caller in self._callers:
            caller.turn_away(b"")


class _Caller:
    def __init__(self, network: MemoryNetwork, name: str, end: _End) -> None:
        self.name = f"{end.host or 'test'}:0"
        self._network = network
        self._host = name
        self._end = end

    def make_pipe(self, max_bytes: int, owner: PipeOwner) -> _End:
        del max_bytes
        if self._end.closed:
            raise StageBroken("the caller is gone")
        ours = _End(self._network, self._host, owner)
        ours.joins(self._end)
        return ours

    def turn_away(self, last: bytes) -> None:
        """Close the connection; the last frame is lost."""
        del last
        self._end.dial_later()


class _End:
    """One end of a pipe; see the contract :class:`~s4node.net.transport.network.Pipe`."""

    def __init__(self, network: MemoryNetwork, name: str, owner: PipeOwner) -> None:
        self.host = name
        self.far = ""
        self.process = network.runs.here
        self.connected = False
        self.closed = False
        self.fault = ""
        self.holder: Holder | None = None
        self.unfinished = self.untaken = self.taken = self.sent = self.unsent = 0
        self._network = network
        self._owner = owner
        self._peer: _End | None = None
        self._target: tuple[str, int] | None = None
        self._tries = 0
        self._next_at = 0.0
        self._sent = 0  # and not received
        self._inbox: deque[bytes] = deque()
        self._readable = trio.lowlevel.ParkingLot()
        self._writable = trio.lowlevel.ParkingLot()
        network.made(self)

    # -- coming and going --------------------------------------------------------------------

    async def run(self) -> None:
        """Wait until cancelled: the network does it all."""
        await trio.sleep_forever()

    def dials(self, there: str, port: int) -> None:
        """Connect, and reconnect whenever the connection is lost."""
        self.far, self._target = there, (there, port)
        self._after(self, self._arrive)

    def _arrive(self) -> None:
        if self.closed or self._peer is not None or self._target is None:
            return
        place = self._network.listener_of(self.host, *self._target)
        if place is None:
            self.dial_later()
        else:
            place.arrive(self)

    def dial_later(self) -> None:
        """Try again after a while."""
        if self.closed or self._target is None:
            return
        pause = min(_REDIAL_SECONDS * 2**self._tries, _REDIAL_MOST_SECONDS)
        self._tries = min(self._tries + 1, 8)
        runs = self._network.runs
        runs.after(runs.now + pause, self.process, self._arrive)

    def joins(self, other: _End) -> None:
        """Connect both ends soon."""
        self.far = other.host
        self._peer, other._peer = other, self
        self._after(self, lambda: self._came(other))
        other._after(other, lambda: other._came(self))

    def _came(self, peer: _End) -> None:
        if self._peer is peer and not self.closed:
            self.connected = True
            self._sent = 0
            self._writable.unpark_all()
            self._owner.set_connected(True)

    def lose(self) -> None:
        """Break the connection, for both ends."""
        peer, self._peer = self._peer, None
        if peer is None:
            return
        if peer._peer is self:
            peer.lose()
        self._next_at = 0.0
        was, self.connected = self.connected, False
        self._network.runs.soon(self.process, lambda: self._lost(was))

    def _lost(self, was: bool) -> None:
        self._readable.unpark_all()
        if not self.closed:
            if was or self._target is None:
                self._owner.set_connected(False)
            self.dial_later()

    async def close(self) -> None:
        if not self.closed:
            self.shut()
            self._readable.unpark_all()
            self._writable.unpark_all()
            await trio.lowlevel.cancel_shielded_checkpoint()

    def shut(self) -> None:
        """Close the connection; the peer notices once it has all that was sent."""
        self.closed = True
        self.connected = False
        self._network.made(self)
        peer, self._peer = self._peer, None
        if peer is not None and peer._peer is self:
            self._after(peer, lambda: peer.lose() if peer._peer is self else None)

    def _after(self, end: _End, action: Callable[[], None]) -> None:
        """Run ``action`` at an end when everything sent before has arrived."""
        network = self._network
        if not network.kept((self.host, self.far), end, action):
            at = network.runs.now + network.seconds(self.host, self.far)
            self._next_at = max(self._next_at, at)
            network.runs.after(self._next_at, end.process, action)

    # -- envelopes ---------------------------------------------------------------------------

    def receive_nowait(self) -> bytes | None:
        if not self._inbox:
            return None
        data = self._inbox.popleft()
        if self._peer is not None:
            self._peer._sent -= 1
            if self._peer._writable:
                self._network.runs.soon(self._peer.process, self._peer._writable.unpark_all)
        return data

    def send_nowait(self, data: bytes) -> bool:
        peer = self._peer
        if self.closed or peer is None or not self.connected or self._sent >= _MOST_ENVELOPES:
            return False
        self._sent += 1

        def arrive() -> None:
            if peer._peer is self and not peer.closed:
                said = Message(self._network.runs.now, self.host, peer.host, bytes(data))
                peer._inbox.append(said.data)
                self._network.trace.append(said)
                peer._readable.unpark_all()

        self._after(peer, arrive)
        return True

    def answered(self) -> None:
        self._tries = 0

    async def wait_readable(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self._inbox and (self._target is not None or self._peer is not None):
            self._check_open()
            await self._readable.park()
        self._check_open()

    def drop_input(self) -> None:
        self.lose()

    async def send_rest(self) -> None:
        """Wait to be cancelled: everything that was accepted has left."""
        await trio.sleep_forever()

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()
        self._check_open()
        while not self.connected or self._sent >= _MOST_ENVELOPES:
            await self._writable.park()
            self._check_open()

    def _check_open(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError
