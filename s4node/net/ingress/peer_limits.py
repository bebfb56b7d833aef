"""The limits of what peers may take up, for each connection and for all together. Pure.

Rules
- They hold for every peer, trusted or not.
- What connections take up together has a budget. If it is exceeded, the connection that takes most
  of it is the one to end: a peer that takes its fair share is never that one.
- Several processes of a node share a budget: what each takes up is in a row of a file. The process
  that takes up most ends a connection.
- What a connection asks for beyond its rate is not refused, but read later. Beyond the rate of all
  together, those wait that have asked for more than a little lately.
"""

from __future__ import annotations

from collections.abc import Hashable, MutableSequence, Sequence
from typing import Generic, NamedTuple, TypeVar

from s4node.config import settings
from s4node.config.config import Config

_BURST_SECONDS = 4
LITTLE = 64
"""The hellos of a connection that never wait for those of others."""


class PeerLimits(NamedTuple):
    """The configured limits; see the settings of these names."""

    frame_events: int
    connections: int
    connections_per_host: int
    patience: float
    unfinished_bytes: int
    unread_bytes: int
    producers: int
    lanes: int
    type_bytes: int
    hellos_per_second: float

    @classmethod
    def configured(cls, config: Config) -> PeerLimits:
        """The limits that ``config`` has."""
        return cls(
            config[settings.LISTENER_MAX_FRAME_EVENTS],
            config[settings.LISTENER_MAX_CONNECTIONS],
            config[settings.LISTENER_MAX_CONNECTIONS_PER_HOST],
            config[settings.LISTENER_PATIENCE],
            config[settings.LISTENER_UNFINISHED_BYTES],
            config[settings.LISTENER_UNREAD_BYTES],
            config[settings.LISTENER_MAX_PRODUCERS],
            config[settings.LISTENER_MAX_LANES],
            config[settings.LISTENER_TYPE_BYTES],
            config[settings.LISTENER_HELLOS_PER_SECOND],
        )

    def rate_of_all(self) -> Rate:
        """The rate of hellos of all connections together, in short bursts."""
        return Rate(8 * self.hellos_per_second, 0.25)

    @property
    def own_unread_bytes(self) -> int:
        """The unread answers at which nothing more is read from a connection."""
        return self.unread_bytes // 64

    @property
    def own_type_bytes(self) -> int:
        """The most bytes of event types that one connection may declare."""
        return self.type_bytes // 64

    @property
    def own_lanes(self) -> int:
        """The most lanes of one connection."""
        return max(1, self.lanes // 4)


Owner = TypeVar("Owner", bound=Hashable)


class Budget(Generic[Owner]):
    """What its owners take up of something, together at most ``limit``.

    The row ``number`` of ``rows`` has the totals of the node's processes, at ``own`` that of this
    process.
    """

    def __init__(
        self, limit: int, rows: Sequence[MutableSequence[int]], number: int, own: int
    ) -> None:
        self.limit = limit
        self.total = 0
        self._rows, self._number, self._own = rows, number, own
        self._amounts: dict[Owner, int] = {}

    def set(self, owner: Owner, amount: int) -> Owner | None:
        """Note what an owner takes up now; return the one to end, or None within the budget."""
        self.total += amount - self._amounts.pop(owner, 0)
        if amount:
            self._amounts[owner] = amount
        self._rows[self._number][self._own] = self.total
        return self.largest()

    def largest(self) -> Owner | None:
        """The owner to end now: the largest, if the budget is exceeded and it is one of ours."""
        totals = self._rows[self._number]
        if not self.total or sum(totals) <= self.limit or self.total < max(totals):
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
        """Note that it has happened, so many times."""
        left = min(self._most, self._left + (now - self._since) * self.per_second)
        self._left = left - times
        self._since = now

    @property
    def spent(self) -> float:
        """What has happened lately, as of the last count."""
        return self._most - self._left

    def seconds_until_next(self, now: float) -> float:
        """The seconds until it may happen again."""
        return max(0.0, -self._left / self.per_second - (now - self._since))
