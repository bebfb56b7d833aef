"""The refusals of a container: of what its app has put, that which others did not take.

Rules
- The first of each stream is told, of what was refused, shed, and could not be sent at all; and of
  what a stage of this container dropped.
- What could not be sent is counted by the stage that it was to leave by. It stays counted when the
  task that has put it, or who was to get it, is gone. What others refuse they count themselves.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from s4node.logger import get_logger
from s4node.net.egress.refusal import Refusal

log = get_logger("s4node.runtime")


class Refusals:
    """``unsendable`` are events by stage and stream."""

    def __init__(self) -> None:
        self.unsendable: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._told: set[tuple[str, ...]] = set()

    def dropped(self, stage: str, stream: str, count: int, reason: str) -> None:
        """A stage has dropped events that the app has put; they are counted there."""
        what = "events that the app has put were dropped; further ones are only counted"
        if (what, stage, stream) not in self._told:
            self._told.add((what, stage, stream))
            log.warning(what, stage=stage, stream=stream, events=count, reason=reason)

    def take(self, stage: str, refusal: Refusal) -> None:
        """Events of a stream were not taken behind ``stage``, or could not leave it."""
        if refusal.unsent:
            self.unsendable[stage][refusal.stream] += refusal.count
            what = "an event of the app cannot be sent; further ones are only counted"
        elif refusal.shed:
            what = "a consumer shed an event; further ones are only counted"
        else:
            what = "a consumer refused an event; further ones are only counted"
        if (what, refusal.stream) not in self._told:
            self._told.add((what, refusal.stream))
            log.warning(what, stream=refusal.stream, reason=refusal.reason)
