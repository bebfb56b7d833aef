"""The limits of what peers may take up of a container, and how they are counted. Pure.

Rules
- They hold for every peer, trusted or not, and for each process of a node by itself. No setting
  changes them; the settings ``s4.listener.*`` have those that depend on a machine or an app.
- What connections take up together, in bytes and in lanes, has a budget each. If it is exceeded,
  the connection that takes most of it is ended: one that takes its fair share is never that one.
- What a connection asks for beyond its rate is not refused, but read later. Beyond the rate of all
  together, those wait that have asked for more than a little lately.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

_BURST_SECONDS = 4


class PeerLimits(NamedTuple):
    """The table; a test may have another one."""

    connections_per_host: int = 512
    """From one address, or half of ``s4.listener.maxConnections`` if that is more."""

    half_open_per_host: int = 128
    """Connections from one address whose handshake of TLS is not over."""

    frame_events: int = 4096
    """The events of a frame, which bound the time that it takes from others."""

    bytes: int = 64 << 20
    """Messages that are unfinished or not handled, answers that were not read, and declared types,
    of all connections."""

    unread_bytes: int = 1 << 20
    """The answers at which nothing more is read from a connection."""

    type_bytes: int = 256 << 10
    """The event types that a connection may declare."""

    lanes: int = 131_072
    """Of all connections; a producer has one, of about 700 bytes, in each partition of a stream."""

    own_lanes: int = 32_768
    """Of one connection."""

    producers: int = 1024
    """For which a connection may open a stream."""

    hellos_per_second: int = 500
    """Hellos, queries and bad frames that are read from a connection."""

    all_hellos_per_second: int = 4000
    """The same of all connections."""

    few_hellos: int = 64
    """Those of a connection that never wait for those of others."""

    log_type_bytes: int = 8 << 20
    """The event types of all streams of a log; an answer with all of them is one message."""


LIMITS = PeerLimits()

Owner = TypeVar("Owner", bound=Hashable)


class Budget(Generic[Owner]):
    """The amount that owners take up of something, together at most ``limit``."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._total = 0
        self._amounts: dict[Owner, int] = {}

    def set(self, owner: Owner, amount: int) -> None:
        self._total += amount - self._amounts.pop(owner, 0)
        if amount:
            self._amounts[owner] = amount

    def largest(self) -> Owner | None:
        """The owner to end now, or None within the budget."""
        if self._total <= self.limit:
            return None
        return max(self._amounts, key=self._amounts.__getitem__)


class Rate:
    """Counts what may happen ``per_second``; a few seconds' worth may come at once."""

    __slots__ = ("_left", "_most", "_since", "per_second")

    def __init__(self, per_second: float, burst_seconds: float = _BURST_SECONDS) -> None:
        self.per_second = per_second
        self._most = self._left = per_second * burst_seconds
        self._since = 0.0

    def count(self, now: float, times: int = 1) -> None:
        left = min(self._most, self._left + (now - self._since) * self.per_second)
        self._left = left - times
        self._since = now

    @property
    def spent(self) -> float:
        """The counts of the last seconds, as of the last count."""
        return self._most - self._left

    def seconds_until_next(self, now: float) -> float:
        return max(0.0, -self._left / self.per_second - (now - self._since))
