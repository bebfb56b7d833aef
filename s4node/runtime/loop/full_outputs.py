"""Output streams that have no room for long: the log names them, and says when they have some.

Rules
- A stream whose events lead back to this app is not among them: it spills, and holds nothing.
- A stream is logged once for all of its places, until all that were full for long have room.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable

import trio

from s4node.logger import get_logger

log = get_logger("s4node.runtime")

SECONDS = 10.0
"""How long an output stream has no room before that is logged."""


class FullOutputs:
    """Those of ``streams`` that have no room; ``since`` has when that began, by stream and place.

    While there are some, ``log_due`` is called between turns.
    """

    def __init__(self, streams: Collection[str]) -> None:
        self._streams = frozenset(streams)
        self.since: dict[tuple[str, Hashable], float] = {}
        self._logged: dict[str, set[Hashable]] = {}
        self._due = math.inf

    def filled(self, stream: str, place: Hashable) -> None:
        if stream in self._streams:
            self.since[stream, place] = now = trio.current_time()
            self._due = min(self._due, now + SECONDS)

    def emptied(self, stream: str, place: Hashable) -> None:
        since = self.since.pop((stream, place), math.inf)
        if not self.since:
            self._due = math.inf
        logged = self._logged.get(stream, set())
        if place in logged:
            logged.remove(place)
            if not logged:
                del self._logged[stream]
                seconds = round(trio.current_time() - since, 1)
                log.info("an output stream has room again", stream=stream, seconds=seconds)

    def log_due(
        self, now: float, consumers: Callable[[str, Hashable], Collection[str]]
    ) -> float | None:
        """Log what has had no room for long; return when to call again. ``consumers`` are those
        that give a stream at a place no room."""
        if now >= self._due:
            self._due = math.inf
            for (stream, place), since in self.since.items():
                if place in self._logged.get(stream, ()):
                    continue
                if now < since + SECONDS:
                    self._due = min(self._due, since + SECONDS)
                    continue
                if stream not in self._logged:
                    log.warning(
                        "an output stream is full, and its consumer takes nothing",
                        stream=stream,
                        consumers=sorted(consumers(stream, place)),
                        seconds=SECONDS,
                        fix="see whether the consumer runs, and what it waits for",
                    )
                self._logged.setdefault(stream, set()).add(place)
        return None if self._due == math.inf else self._due
