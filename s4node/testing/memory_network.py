"""Connections in memory: a test's replacement for TCP.

Rules
- Every action is an entry in one list, by time and then in the order of requests; so envelopes of
  one pipe stay in order, and the same delays give the same run.
- A caller has the host that :data:`host` says; a listener, the host of its address. A host that is
  cut reaches nobody: its pipes break, and what is in transit is lost. Callers retry.
- A pipe holds a bounded number of envelopes that have not been received.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar

import trio

from s4node.errors import StageBroken
from s4node.net.certificates.credentials import Credentials
from s4node.net.certificates.identity import Holder
from s4node.net.transport.pair_socket import host_and_port

host: ContextVar[str] = ContextVar("host", default="")
"""The host of the code that dials."""

_MOST_ENVELOPES = 16
_REDIAL_SECONDS = 0.05
_REDIAL_MOST_SECONDS = 1.0


class MemoryNetwork:
    """A network in memory; ``delay()`` gives the seconds from one host to another."""

    def __init__(self, delay: Callable[[], float] = lambda: 0.0) -> None:
        self.delay = delay
        self.cut_off: set[str] = set()
        self.trace: list[tuple[float, str, str, int]] = []
        """Every envelope that has arrived: time, sending host, receiving host, size."""
        self._ports = itertools.count(1)
        self._places: dict[tuple[str, int], MemoryPlace] = {}
        self._ends: dict[_End, None] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._turn = itertools.count()
        self._news = trio.lowlevel.ParkingLot()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver, until cancelled."""
        task_status.started()
        while True:
            now = trio.current_time()
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            with trio.move_on_at(self._due[0][0] if self._due else math.inf):
                await self._news.park()

    def cut(self, name: str) -> None:
        """Take a host off the network."""
        self.cut_off.add(name)
        for end in list(self._ends):
            if name in (end.host, end.far):
                end.lose()

    def heal(self, name: str) -> None:
        self.cut_off.discard(name)

    # -- the contract ------------------------------------------------------------------------

    async def listen(
        self,
        name: str,
        port: int,
        credentials: Credentials | None,  # noqa: ARG002 - nobody else is on this network
    ) -> list[MemoryPlace]:
        """Listen on a host; raises OSError."""
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
        on_change: Callable[[bool], None],
        credentials: Credentials | None,
    ) -> _End:
        """Connect now, and reconnect whenever the connection is lost."""
        del max_bytes, credentials  # the reader checks sizes, and the network has no others
        end = _End(self, host.get(), on_change)
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
        """Return True: nobody else is on this network."""
        return True

    # -- inside ------------------------------------------------------------------------------

    def listener_of(self, name: str, there: str, port: int) -> MemoryPlace | None:
        """The listener that a caller at the host ``name`` reaches; None if there is none."""
        cut = self.cut_off & {name, there}
        return None if cut and name != there else self._places.get((there, port))

    def gone(self, place: MemoryPlace) -> None:
        """A listener has stopped."""
        self._places.pop((place.host, place.port), None)

    def after(self, at: float, action: Callable[[], None]) -> None:
        """Run ``action`` at that time, after all that comes at the same time."""
        heapq.heappush(self._due, (at, next(self._turn), action))
        self._news.unpark()

    def made(self, end: _End) -> None:
        """Note a new end of a pipe, or the close of a known one."""
        if end in self._ends:
            del self._ends[end]
        else:
            self._ends[end] = None


class MemoryPlace:
    """A listener."""

    def __init__(self, network: MemoryNetwork, name: str, port: int) -> None:
        self.host = name
        self.port = port
        self._network = network
        self._callers: deque[_Caller] = deque()
        self._came = trio.lowlevel.ParkingLot()

    async def accept(self) -> _Caller:
        """The next peer."""
        await trio.lowlevel.checkpoint()
        while not self._callers:
            await self._came.park()
        return self._callers.popleft()

    def arrive(self, end: _End) -> None:
        """A caller has come."""
        self._callers.append(_Caller(self._network, self.host, end))
        self._came.unpark()

    def close(self) -> None:
        self._network.gone(self)
        for caller in self._callers:
            caller.turn_away(b"")


class _Caller:
    """A caller that has not been accepted yet."""

    def __init__(self, network: MemoryNetwork, name: str, end: _End) -> None:
        self.name = f"{end.host or 'test'}:0"
        self._network = network
        self._host = name
        self._end = end

    def make_pipe(self, max_bytes: int, on_change: Callable[[bool], None]) -> _End:
        """The connection; raises StageBroken if it is gone."""
        del max_bytes
        if self._end.closed:
            raise StageBroken("the caller is gone")
        ours = _End(self._network, self._host, on_change)
        ours.joins(self._end)
        return ours

    def turn_away(self, word: bytes) -> None:
        """Close the connection; the last word is lost."""
        del word
        self._end.dial_later()


class _End:
    """One end of a pipe; see the contract :class:`~s4node.net.transport.network.Pipe`."""

    def __init__(
        self, network: MemoryNetwork, name: str, on_change: Callable[[bool], None]
    ) -> None:
        self.host = name
        self.far = ""
        self.connected = False
        self.closed = False
        self.fault = ""
        self.holder: Holder | None = None
        self.unfinished = self.untaken = self.taken = self.sent = self.unsent = 0
        self._network = network
        self._on_change = on_change
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
        self._after(self._arrive)

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
        self._network.after(trio.current_time() + pause, self._arrive)

    def joins(self, other: _End) -> None:
        """Connect both ends soon."""
        self.far = other.host
        self._peer, other._peer = other, self
        self._after(lambda: self._came(other))
        other._after(lambda: other._came(self))

    def _came(self, peer: _End) -> None:
        if self._peer is peer and not self.closed:
            self.connected = True
            self._sent = 0
            self._writable.unpark_all()
            self._on_change(True)

    def lose(self) -> None:
        """Break the connection, for both ends."""
        peer, self._peer = self._peer, None
        if peer is None:
            return
        if peer._peer is self:
            peer.lose()
        self._next_at = 0.0
        self._readable.unpark_all()
        if not self.closed:
            was, self.connected = self.connected, False
            if was or self._target is None:
                self._on_change(False)
            self.dial_later()

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.connected = False
        self._network.made(self)
        peer, self._peer = self._peer, None
        if peer is not None and peer._peer is self:
            self._after(lambda: peer.lose() if peer._peer is self else None)
        self._readable.unpark_all()
        self._writable.unpark_all()
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _after(self, action: Callable[[], None]) -> None:
        """Run ``action`` when everything sent before has arrived."""
        self._next_at = max(self._next_at, trio.current_time() + self._network.delay())
        self._network.after(self._next_at, action)

    # -- envelopes ---------------------------------------------------------------------------

    def receive_nowait(self) -> bytes | None:
        if not self._inbox:
            return None
        data = self._inbox.popleft()
        if self._peer is not None:
            self._peer._sent -= 1
            self._peer._writable.unpark_all()
        return data

    def send_nowait(self, data: bytes) -> bool:
        peer = self._peer
        if self.closed or peer is None or not self.connected or self._sent >= _MOST_ENVELOPES:
            return False
        self._sent += 1

        def arrive() -> None:
            if peer._peer is self and not peer.closed:
                peer._inbox.append(bytes(data))
                at = trio.current_time()
                self._network.trace.append((at, self.host, peer.host, len(data)))
                peer._readable.unpark_all()

        self._after(arrive)
        return True

    def answered(self) -> None:
        """Note a good frame: if this connection is lost, dial again at once."""
        self._tries = 0

    async def wait_readable(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self._inbox and (self._target is not None or self._peer is not None):
            self._check_open()
            await self._readable.park()
        self._check_open()

    def drop_input(self) -> None:
        """Take nothing more from the peer."""
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
