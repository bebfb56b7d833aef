"""Streams whose watermark does not rise although windows or timers wait for it. Pure.

Rules
- A stream is held if a source is waited for that is not as far as the latest event, or if it has no
  watermark at all. One whose sources are all idle has gone as far as its events.
- It is logged once, after a time in which nothing has risen, and again only once it has risen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from s4node.offsets.watermarks import NEVER, Watermarks

_PATIENCE = 60.0
"""Seconds without a later watermark after which a stream that is held is logged."""


class HeldStream(NamedTuple):
    """The watermark of a stream, -inf if it has none, and the source that holds it back."""

    stream: str
    watermark: float
    held_back_by: str


class HeldStreams:
    def __init__(self, watermarks: Mapping[str, Watermarks]) -> None:
        self._watermarks = watermarks
        self._since: dict[str, tuple[float, float]] = {}  # where each one is, and since when
        self._logged: set[str] = set()

    def note(self, awaited: Collection[str], now: float) -> None:
        """Look at the streams for which windows or timers wait."""
        for name in self._since.keys() - awaited:
            del self._since[name]
        for name in awaited:
            value, known = self._watermarks[name].value, self._since.get(name)
            if known is None or known[0] != value:
                self._since[name] = value, now
                self._logged.discard(name)

    @property
    def waits(self) -> bool:
        """True if a look at a stream is due that has no watermark, be its sources idle or not."""
        unlogged = self._since.keys() - self._logged
        return any(self._watermarks[name].value == NEVER for name in unlogged)

    def take_due(self, now: float) -> list[HeldStream]:
        found = []
        for name, (value, since) in self._since.items():
            if name not in self._logged and now - since >= _PATIENCE and self._is_held(name):
                found.append(HeldStream(name, value, self._watermarks[name].holding))
                self._logged.add(name)
        return found

    def _is_held(self, name: str) -> bool:
        each = self._watermarks[name]
        ahead = each.value < each.newest - each.lateness
        return each.value == NEVER or (ahead and bool(each.holding))
