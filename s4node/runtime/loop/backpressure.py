"""The order of processing: which streams' events may be processed while stages are full. Pure.

Rules
- There is an edge S -> Y if handlers of S put on Y. Edges are found in the app before it runs if
  possible, and learned from what batches put.
- A batch of S may run unless a stage of Y is full, for some edge S -> Y. So a full stage is drained
  before more is put into it, and no stream waits for what it must drain itself.
- Streams that reach each other feed themselves. An edge between two of them holds nothing up, or
  they would wait for each other for ever: their puts always find room, and beyond the capacity wait
  on disk. Streams that lead into them are held until they are below their capacity. Programs get no
  more credit for a stream that feeds a full one and itself: what comes around goes first.
- A cycle may lead through other apps. Then there is an edge from an output stream to an input.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from s4node.app.plan.cycles import components, cycle_through


class Edges:
    """The edges, and the groups of streams that feed themselves."""

    __slots__ = ("_groups", "known", "targets")

    def __init__(self, edges: Mapping[str, Iterable[str]] | None = None) -> None:
        self.targets: dict[str, set[str]] = {}
        self.known: set[tuple[str, str]] = set()
        self._groups: dict[str, frozenset[str]] = {}
        for source, targets in (edges or {}).items():
            for target in targets:
                self._add(source, target)
        self._regroup()

    def learn(self, source: str, target: str) -> bool:
        """Learn an edge; True if it is new."""
        if (source, target) in self.known:
            return False
        self._add(source, target)
        self._regroup()
        return True

    def lead_to(self, stream: str) -> bool:
        """Return True if anything is put on a stream."""
        return any(target == stream for _, target in self.known)

    def group(self, stream: str) -> frozenset[str]:
        """The streams that feed themselves together with this one; empty if it does not."""
        return self._groups.get(stream, frozenset())

    @property
    def groups(self) -> set[frozenset[str]]:
        return set(self._groups.values())

    def holding(self, source: str) -> set[str]:
        return self.targets.get(source, set()) - self.group(source)

    def cycle(self, stream: str) -> list[str]:
        """A shortest path from the stream back to itself, both ends included; empty if none."""
        group = self.group(stream)
        return [*cycle_through(stream, group, self.targets), stream] if group else []

    def _add(self, source: str, target: str) -> None:
        self.targets.setdefault(source, set()).add(target)
        self.known.add((source, target))

    def _regroup(self) -> None:
        self._groups = {
            stream: frozenset(group) for group in components(self.targets) for stream in group
        }


class Order:
    """Which streams are held. ``held`` is one set for good, changed in place. ``feeding`` are those
    that put on a full one and feed themselves over it."""

    __slots__ = ("_full", "_stuck", "edges", "feeding", "held")

    def __init__(self, edges: Edges) -> None:
        self.edges = edges
        self.held: set[str] = set()
        self.feeding: set[str] = set()
        self._full: dict[str, set[Hashable]] = {}
        self._stuck: set[str] = set()

    def learn(self, source: str, target: str) -> bool:
        new = self.edges.learn(source, target)
        if new:
            self._hold()
        return new

    def filled(self, stream: str, place: Hashable) -> None:
        """Note that a stage of the stream, at this place, is full."""
        places = self._full.setdefault(stream, set())
        if place not in places:
            places.add(place)
            if len(places) == 1:
                self._hold()

    def emptied(self, stream: str, place: Hashable) -> bool:
        """Note that it has room again; return True if a held stream may go on."""
        places = self._full.get(stream, set())
        places.discard(place)
        if places or stream not in self._full:
            return False
        del self._full[stream]
        before = len(self.held)
        self._hold()
        return len(self.held) < before

    def stick(self, stream: str) -> None:
        """Hold a stream whatever is full, until ``unstick``; for tests."""
        self._stuck.add(stream)
        self._hold()

    def unstick(self, stream: str) -> None:
        self._stuck.discard(stream)
        self._hold()

    def _hold(self) -> None:
        targets, group = self.edges.targets, self.edges.group
        self.feeding = {
            source
            for source in targets
            if any(target in self._full for target in targets[source] & group(source))
        }
        held = {
            source
            for source in self.edges.targets
            if any(target in self._full for target in self.edges.holding(source))
        } | self._stuck
        if held != self.held:
            self.held.clear()
            self.held.update(held)

    def validate(self) -> None:
        for source in self.held - self._stuck:
            assert self.edges.holding(source) & self._full.keys()
        for group in self.edges.groups:
            for source in group:
                assert not self.edges.holding(source) & group
