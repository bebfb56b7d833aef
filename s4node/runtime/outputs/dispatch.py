"""The dispatch of events on an app's own streams: which partition gets which. Pure.

Rules
- Events of a keyed stream go to the partitions of their keys; events of an unkeyed stream stay
  where they were put; events of a broadcast stream go to all partitions.
- If the key of an event that the app itself has put cannot be found, the app fails. For events from
  outside, call ``routed`` and report the failures to their sender.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from s4node.app.app import App
from s4node.app.plan import graph
from s4node.app.stream import OutputStream, Stream
from s4node.errors import ProcessingError
from s4node.events.copies import copies_of
from s4node.events.keys import Partitioner
from s4node.events.routing import Router


class Dispatch:
    """The routes of an app's streams among its partitions; ``local`` streams need none."""

    def __init__(self, app: App, partitioner: Partitioner) -> None:
        self._app = app
        self._partitions = partitioner.partitions
        self._routers: dict[str, Router] = {}
        for stream in app.streams.values():
            rule = graph.rule_of(stream)
            if rule is not None and self._partitions > 1 and not isinstance(stream, OutputStream):
                self._routers[stream.name] = Router(rule, partitioner)
        self.local = frozenset(
            name
            for name, stream in app.streams.items()
            if not stream.broadcast and name not in self._routers
        )

    def shares(
        self, stream: Stream, events: list[Any], home: int
    ) -> Sequence[tuple[int, list[Any]]]:
        """Events put in partition ``home``, by their target partition.

        Raises ProcessingError for the first event whose key is not found.
        """
        if stream.broadcast:
            shares = [(0, events)]
            shares += [(n, list(copies_of(events))) for n in range(1, self._partitions)]
            return shares
        lanes, failures = self.routed(stream, events, home)
        if failures:
            index, reason = failures[0]
            raise ProcessingError(
                self._app.name,
                f"KeyFinder of {stream.name!r}",
                None,
                f"{stream.name} (put in partition {home}, event {events[index]!r})",
                ValueError(reason),
            )
        return lanes

    def routed(
        self, stream: Stream, events: list[Any], home: int
    ) -> tuple[list[tuple[int, list[Any]]], list[tuple[int, str]]]:
        """As ``shares``, and the ``(index, reason)`` of each event whose key is not found.

        With a single partition, keys are not looked for before the events are processed.
        """
        router = self._routers.get(stream.name)
        if router is None:
            return [(home, events)], []
        lanes, failures = router.shares(events)
        return [(partition, lane) for partition, lane in enumerate(lanes) if lane], failures
