"""Totals of counters that are the sum of many sources. Pure.

Rules
- A counter of a stream is the sum over tasks and processes, which come and go. A total never falls:
  what a source had counted stays when the source has gone.
- A source that begins again counts from 0, under its former name or a new one.
- Only sources of the last collection are remembered.
"""

from __future__ import annotations

from collections.abc import Hashable

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A name and its labels."""


class Totals:
    def __init__(self) -> None:
        self._totals: dict[Series, float] = {}
        self._before: dict[tuple[Series, Hashable], float] = {}
        self._seen: dict[tuple[Series, Hashable], float] = {}

    def add(self, series: Series, source: Hashable, count: float) -> None:
        """Note that ``source`` has counted so far; once for each collection."""
        before = self._before.get((series, source), 0)
        gained = count - before if count >= before else count
        self._totals[series] = self._totals.get(series, 0) + gained
        self._seen[series, source] = count

    def collected(self) -> dict[Series, float]:
        self._before, self._seen = self._seen, {}
        return dict(self._totals)
