"""The refusals of a container: events of its app that others refused or that could not leave.

Rules
- The first event of each kind and stream is logged; all are counted.
- Unsendable events are counted by the stage that they were to leave by, and stay counted when the
  task or the receiver has gone. Receivers count what they refuse.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from s4node.logger import get_logger
from s4node.net.egress.refusal import Refusal

log = get_logger("s4node.runtime")


class Refusals:
    """Logs and counts refusals; ``unsendable`` counts events by stage and stream."""

    def __init__(self) -> None:
        self.unsendable: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._logged: set[tuple[str, ...]] = set()

    def dropped(self, stage: str, stream: str, count: int, reason: str) -> None:
        what = "events that the app has put were dropped; further ones are only counted"
        if (what, stage, stream) not in self._logged:
            self._logged.add((what, stage, stream))
            log.warning(what, stage=stage, stream=stream, events=count, reason=reason)

    def report(self, stage: str, refusal: Refusal) -> None:
        """Report events that a receiver did not accept, or that could not leave ``stage``."""
        if refusal.unsent:
            self.unsendable[stage][refusal.stream] += refusal.count
            what = "an event of the app cannot be sent; further ones are only counted"
        elif refusal.shed:
            what = "a consumer shed an event; further ones are only counted"
        else:
            what = "a consumer refused an event; further ones are only counted"
        if (what, refusal.stream) not in self._logged:
            self._logged.add((what, refusal.stream))
            log.warning(what, stream=refusal.stream, reason=refusal.reason)
