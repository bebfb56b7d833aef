"""The open windows of a prototype in one task, of each kind. Pure.

Rules
- ``runtime.event_time.task_times`` sets the watermark; a window is due once it has ended by that.
- Windows that all keys have in common (of a length, or days, or overlapping): there is a table of
  instances for each open window. The dispatch asks for the table of an event's time only when that
  leaves the last window.
- ``overlapping_windows`` has what is different if they overlap.
- Each key has its own sessions and counts. Sessions of a key that an event connects become the
  oldest one, into which the later are merged. A count ends with its last event, in the dispatch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Any

from s4node.app.instances import Instances
from s4node.app.prototype import Prototype
from s4node.app.window_instances import NEVER, PE, Due, WindowInstances, in_parts
from s4node.app.windows import Span
from s4node.errors import EventTimeError
from s4node.events.event_time import TimeRule


class _Table(Instances):
    __slots__ = ("owner", "span")

    def __init__(self, owner: TableWindows, span: Span) -> None:
        dict.__init__(self)  # a home needs no more
        self.partition = owner.partition
        self.timers = None
        self.owner = owner
        self.span = span

    def __missing__(self, key: Any) -> PE:
        instance = self[key] = self.owner.made(key, self.span, self)
        return instance

    def is_open(self, end: float) -> bool:
        return self.owner.is_open(end)

    def remove(self, instance: PE) -> None:
        self.owner.remove(instance)


class _Noted:
    """A table that notes the instances to which events come."""

    __slots__ = ("_note", "_table")

    def __init__(self, table: _Table, note: Callable[[PE], None]) -> None:
        self._table = table
        self._note = note

    def __getitem__(self, key: Any) -> PE:
        instance = self._table[key]
        self._note(instance)
        return instance


class TableWindows(WindowInstances):
    """Windows that all keys have in common: of a length, or days, or overlapping.

    The heaps have starts of tables; ``_again`` has ends and keys with the start of a table.
    """

    __slots__ = ("_ending", "_whole", "by_number", "tables")

    def __init__(self, prototype: Prototype, partition: int, wall: Callable[[], float]) -> None:
        super().__init__(prototype, partition, wall)
        self.tables: dict[float, _Table] = {}
        self.by_number: dict[float, _Table] = {}
        """The tables that have not ended, by number, if their kind has numbers."""
        self._whole = self._kind.whole
        self._ending = math.inf  # the end whose calls are being made

    def all(self) -> Iterator[PE]:
        for table in self.tables.values():
            yield from table.values()

    def __len__(self) -> int:
        return sum(map(len, self.tables.values()))

    @property
    def open_windows(self) -> int:
        return len(self.tables)

    @property
    def called_until(self) -> float:
        first = min(self._ending, self.ends[0][0] if self.ends else math.inf)
        return self.watermark if first > self.watermark else math.nextafter(first, NEVER)

    def table_of(self, rule: TimeRule | None, t: Any) -> tuple[Any, float, float]:
        """The table of a time, and the times that it holds; None and none if it is late.

        Raises EventTimeError for what is no time.
        """
        if rule is not None:
            t = rule.check(t, self.wall())
        assert self._kind.span is not None
        try:
            start, end = span = self._kind.span(t)
        except (ValueError, OverflowError, OSError) as error:
            raise EventTimeError(f"{t!r} is not a valid time: {error}") from error
        ends = self._kind.ends_of(span)
        if ends[-1] + self._grace <= self.watermark:
            return None, math.inf, math.inf
        table = self.tables.get(start) or self._opened(span, self.watermark)
        if ends[0] <= self.watermark:
            return _Noted(table, self._changed), start, end
        if self._early:
            return _Noted(table, self.note_change), start, end
        if self._whole:
            self.by_number[start // self._whole] = table
        return table, start, end

    def _opened(self, span: Span, after: float) -> _Table:
        """The table of a window or pane; only ends after ``after`` are awaited."""
        table = self.tables.get(span[0])
        if table is None:
            table = self.tables[span[0]] = _Table(self, span)
            ends = self._kind.ends_of(span)
            for end in ends:
                if end > after:
                    heappush(self.ends, (end, span[0]))
            heappush(self._over, (ends[-1] + self._grace, span[0]))
        return table

    def _changed(self, instance: PE) -> None:
        """Have ``on_window`` called again for windows that have ended, as an event came."""
        self.touch(instance)
        for end in self._kind.ends_of(instance._span):
            if end <= self.watermark < end + self._grace:
                instance._again = True
                self._again[end, instance.key] = instance._span[0]

    def restore(self, instance: PE) -> None:
        self._opened(instance._span, self.called_before)[instance.key] = instance
        if instance._again and self._early and self.is_open(instance._span[1]):
            self.note_change(instance)
        elif instance._again:
            self._changed(instance)

    def remove(self, instance: PE) -> None:
        key, table = instance.key, self.tables.get(instance._span[0])
        mine: PE = None if table is None else table.get(key)
        if table is not None and mine is instance:
            del table[key]
            self._forget(instance)
            instance._until = math.inf

    def calls(self, most: Callable[[], int]) -> Iterator[Due]:
        """The calls that are due at the current watermark.

        The watermark may rise between two parts. Windows that it ends then wait for the next
        :meth:`calls`: else a table would go before all its windows had their calls.
        """
        watermark = self.watermark
        while self.ends and self.ends[0][0] <= watermark:
            yield from self._ended(most)
        while self._again:
            due = self._changed_before(watermark, most())
            if not due.work:
                break
            yield due
        yield from self._dropped(watermark, most)

    def _ended(self, most: Callable[[], int]) -> Iterator[Due]:
        self._ending, start = heappop(self.ends)
        if self._whole:
            self.by_number.pop(start // self._whole, None)
        if (table := self.tables.get(start)) is not None:
            for keys in in_parts([*table], most):
                found: list[PE] = [one for key in keys if (one := table.get(key)) is not None]
                yield self._due([one for one in found if one._until < self._ending], len(keys))
        self._ending = math.inf

    def _changed_before(self, watermark: float, most: int) -> Due:
        """The calls that are made again, as an event came after the end of a window."""
        found, work = list[PE](), 0
        while self._again and work < most:
            (end, key), start = next(iter(self._again.items()))
            if end > watermark:
                break
            del self._again[end, key]
            work += 1
            if (one := self.tables[start].get(key)) is not None:
                found.append(one)
        return self._due(found, work)

    def _dropped(self, until: float, most: Callable[[], int]) -> Iterator[Due]:
        """Drop the tables whose windows are all over by then."""
        while self._over and self._over[0][0] <= until:
            start = heappop(self._over)[1]
            for instances in in_parts([*self.tables[start].values()], most):
                for instance in instances:
                    self.remove(instance)
                yield Due((), None, len(instances))
            del self.tables[start]
            yield Due((), None, 1)  # thousands may be empty

    def _ended_before(self, key: Any, time: float) -> Iterator[tuple[float, Due]]:
        for _, table in sorted(self.tables.items()):
            end = table.span[1]
            one: PE = table.get(key)
            if end < time and one is not None and max(one._until, self.called_before) < end:
                yield end, self._due([one], 1)

    def _due(self, instances: list[PE], work: int) -> Due:
        if self._again:
            for each in instances:
                self._again.pop((each._span[1], each.key), None)
        self.touch_all(instances)
        return Due(instances, self._fired, work)


class SessionWindows(WindowInstances):
    """Sessions: each key has its own, the oldest first. The heaps have ends as they were."""

    __slots__ = ("_by_key", "_number", "_open")

    def __init__(self, prototype: Prototype, partition: int, wall: Callable[[], float]) -> None:
        super().__init__(prototype, partition, wall)
        self._by_key: dict[Any, list[PE]] = {}
        self._number = 0
        self._open = 0

    def all(self) -> Iterator[PE]:
        for sessions in self._by_key.values():
            yield from sessions

    def __len__(self) -> int:
        return self._open

    def session_of(self, rule: TimeRule | None, key: Any, t: Any) -> PE | None:
        """The instance of the session that an event belongs to; None if the event is late."""
        instance = self._found(rule, key, t)
        if self._early and instance is not None:
            self.note_change(instance)
        return instance

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
        sessions = self._by_key.setdefault(instance.key, [])
        self._open += 1
        sessions.append(instance)
        sessions.sort(key=lambda each: each._span)
        self._await(instance)
        if self._early and instance._again:
            self.note_change(instance)
        if self._grace:  # one entry, which goes on as the session grows
            self._number += 1
            heappush(self._over, (instance._span[1] + self._grace, self._number, instance))

    def _await(self, instance: PE) -> None:
        """Have ``on_window`` called at the end of a session, or soon if it was called before."""
        end = instance._span[1]
        self._number += 1
        if instance._until < end:
            heappush(self.ends, (end, self._number, instance))
        elif instance._again:
            self._again[instance] = None

    def remove(self, instance: PE) -> None:
        sessions = self._by_key.get(instance.key, [])
        if instance in sessions:
            sessions.remove(instance)
            self._open -= 1
            if not sessions:
                del self._by_key[instance.key]
            self._again.pop(instance, None)
            self.changed.pop(instance, None)
            self._forget(instance)

    def calls(self, most: Callable[[], int]) -> Iterator[Due]:
        watermark = self.watermark
        while found := self._passed(self.ends, watermark, most()):
            yield self._due([one for one in found if one is not None], len(found))
        while self._again:
            part = [*islice(self._again, most())]
            for instance in part:
                del self._again[instance]
            # one that has grown awaits its end
            yield self._due([one for one in part if one._until >= one._span[1]], len(part))
        while found := self._passed(self._over, watermark, most(), self._grace):
            for instance in found:
                if instance is not None:
                    self.remove(instance)
            yield Due((), None, len(found))

    def _ended_before(self, key: Any, time: float) -> Iterator[tuple[float, Due]]:
        for instance in [*self._by_key.get(key, ())]:
            end = instance._span[1]
            if instance._until < end < time:
                yield end, self._due([instance], 1)

    def _due(self, instances: list[PE], work: int) -> Due:
        self.touch_all(instances)
        return Due(instances, self._fired, work)

    def _passed(
        self, heap: list[tuple[float, int, PE]], watermark: float, most: int, grace: float = 0.0
    ) -> list[PE]:
        """The next sessions whose end, as it is now, has passed, in order; None for other work."""
        found = list[PE]()
        while heap and heap[0][0] <= watermark and len(found) < most:
            _, number, instance = heappop(heap)
            found.append(None)
            if instance not in self._by_key.get(instance.key, ()):
                continue
            end = instance._span[1]
            if end + grace > watermark:
                heappush(heap, (end + grace, number, instance))
            elif heap is self._over:
                found[-1] = instance
            elif instance._until < end:  # it may be there twice
                found[-1] = instance
                self.touch(instance)
                instance._until = end
        return found


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
        self[instance.key] = instance

    def remove(self, instance: PE) -> None:
        key = instance.key
        if self.get(key) is instance:
            del self[key]
            self._forget(instance)
