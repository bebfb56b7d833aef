"""Windows that each key has for itself: sessions and counts. Pure.

Rules
- Sessions of a key that an event connects become the oldest one, into which the later are merged.
- A count ends with its last event, in the dispatch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any

from s4node.app.prototype import Prototype
from s4node.app.window_instances import NEVER, PE, Due, WindowInstances
from s4node.events.event_time import TimeRule


class SessionWindows(WindowInstances):
    """Sessions: each key has its own, the oldest first."""

    __slots__ = ("_again", "_by_key", "_ends", "_number", "_over")

    def __init__(self, prototype: Prototype, partition: int, wall: Callable[[], float]) -> None:
        super().__init__(prototype, partition, wall)
        self._by_key: dict[Any, list[PE]] = {}
        self._ends: list[tuple[float, int, PE]] = []  # as they were; sessions grow
        self._over: list[tuple[float, int, PE]] = []
        self._again: dict[PE, None] = {}
        self._number = 0

    def all(self) -> Iterator[PE]:
        """All instances, by key."""
        for sessions in self._by_key.values():
            yield from sessions

    def session_of(self, rule: TimeRule | None, key: Any, t: Any) -> PE | None:
        """The instance of the session that an event belongs to; None if the event is late."""
        if self._early:
            instance = self._found(rule, key, t)
            if instance is not None:
                self.change(instance)
            return instance
        return self._found(rule, key, t)

    def _found(self, rule: TimeRule | None, key: Any, t: Any) -> PE | None:
        if rule is not None:
            t = rule.check(t, self.wall())
        sessions = self._by_key.get(key)
        if sessions is not None:
            instance = sessions[-1]
            start, end = instance._span
            if start <= t < end and end > self.watermark:
                if t + self._kind.gap > end:
                    self.touch(instance)
                    instance._span = start, t + self._kind.gap
                return instance
        return self._joined(key, t, sessions or [])

    def _joined(self, key: Any, t: float, sessions: list[PE]) -> PE | None:
        """The session of an event that begins, extends or connects sessions."""
        start, end = t, t + self._kind.gap
        near = [each for each in sessions if each._span[0] < end and start < each._span[1]]
        if not near:
            if end + self._grace <= self.watermark:
                return None
            instance = self.made(key, (start, end), self)
            self.restore(instance)
            return instance
        kept, *others = near
        self.touch(kept)
        first, last = ended = kept._span
        for other in others:
            kept.merge(other)
            last = max(last, other._span[1])
            kept._round = max(kept._round, other._round)
            self.remove(other)
        kept._span = min(first, start), max(last, end)
        kept._again = True
        if kept._span[0] < first and self.saver is not None:
            self.saver.moved(kept)
        if ended[1] <= self.watermark:  # else its end is awaited, wherever that is now
            self._await(kept)
        return kept

    def restore(self, instance: PE) -> None:
        """Take an instance, new or saved."""
        sessions = self._by_key.setdefault(instance.key, [])
        sessions.append(instance)
        sessions.sort(key=lambda each: each._span)
        self._await(instance)

    def _await(self, instance: PE) -> None:
        """Have ``on_window`` called at the end of a session, or soon if it was called before."""
        end = instance._span[1]
        self._number += 1
        if instance._until < end:
            heappush(self._ends, (end, self._number, instance))
        elif instance._again:
            self._again[instance] = None
        if self._grace:
            heappush(self._over, (end + self._grace, self._number, instance))

    def remove(self, instance: PE) -> None:
        """Drop the instance of an open session."""
        sessions = self._by_key.get(instance.key, [])
        if instance in sessions:
            sessions.remove(instance)
            if not sessions:
                del self._by_key[instance.key]
            self._again.pop(instance, None)
            self.changed.pop(instance, None)
            self._forget(instance)

    @property
    def next_end(self) -> float:
        """The watermark at which something is due."""
        if self._again:
            return NEVER
        return min((heap[0][0] for heap in (self._ends, self._over) if heap), default=math.inf)

    def calls(self) -> Iterator[Due]:
        """The calls that are due at the current watermark."""
        for instance in self._passed(self._ends, 0.0):
            end = instance._span[1]
            if instance._until < end:
                self.touch(instance)
                yield self._call(instance, end)
        while self._again:
            instance = next(iter(self._again))
            del self._again[instance]
            self.touch(instance)
            yield self._call(instance, instance._span[1])
        for instance in self._passed(self._over, self._grace):
            self.remove(instance)

    def _call(self, instance: PE, end: float) -> Due:
        return Due(instance, lambda: self._fired(instance, end))

    def _passed(self, heap: list[tuple[float, int, PE]], grace: float) -> Iterator[PE]:
        """The sessions whose end, as it is now, has passed, in order."""
        while heap and heap[0][0] <= self.watermark:
            _, number, instance = heappop(heap)
            if instance not in self._by_key.get(instance.key, ()):
                continue
            at = instance._span[1] + grace
            if at > self.watermark:
                heappush(heap, (at, number, instance))
            else:
                yield instance


class CountWindows(WindowInstances):
    """Windows of a number of events; each key has its own. ``_round`` counts the events."""

    __slots__ = ()

    def __missing__(self, key: Any) -> PE:
        instance = self[key] = self.made(key, (0.0, float(self._kind.events)), self)
        return instance

    def __len__(self) -> int:
        return dict.__len__(self)

    def __iter__(self) -> Iterator[Any]:
        return dict.__iter__(self)

    def restore(self, instance: PE) -> None:
        """Take an instance that was saved."""
        self[instance.key] = instance

    def remove(self, instance: PE) -> None:
        """Drop an instance."""
        key = instance.key
        if self.get(key) is instance:
            del self[key]
            self._forget(instance)
