"""The open windows of a prototype in one task, of each kind. Pure.

Rules
- ``runtime.event_time.task_times`` sets the watermark; a window is due once it has ended by that.
- Windows that all keys have in common (of a length, or days, or overlapping): there is a table of
  instances for each open window. The dispatch asks for the table of an event's time only when that
  leaves the last window.
- An overlapping window is made of its panes when it ends: a copy of the first one into which the
  later ones are merged. A pane stays until the last window that holds it is gone.
- Each key has its own sessions and counts. Sessions of a key that an event connects become the
  oldest one, into which the later are merged. A count ends with its last event, in the dispatch.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush
from typing import Any

from s4node.app.instances import Instances
from s4node.app.prototype import Prototype
from s4node.app.window_instances import NEVER, PE, Due, WindowInstances, copy_state
from s4node.app.windows import Span
from s4node.errors import EventTimeError, S4Error
from s4node.events.event_time import TimeRule


class _Table(Instances):
    """The instances of one window, or pane."""

    __slots__ = ("owner", "span")

    def __init__(self, owner: TableWindows, span: Span) -> None:
        super().__init__(owner.prototype, owner.partition)
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
    """Windows that all keys have in common: of a length, or days, or overlapping."""

    __slots__ = ("_again", "_ending", "_ends", "_over", "_whole", "by_number", "tables")

    def __init__(self, prototype: Prototype, partition: int, wall: Callable[[], float]) -> None:
        super().__init__(prototype, partition, wall)
        self.tables: dict[float, _Table] = {}
        self.by_number: dict[float, _Table] = {}
        """The tables that have not ended, by number, if their kind has numbers."""
        self._whole = self._kind.whole
        self._ends: list[tuple[float, float]] = []  # the end of a window, the start of a table
        self._ending = math.inf  # the end whose calls are being made
        self._over: list[tuple[float, float]] = []  # when a table goes, and its start
        # ends and keys changed since, with a table; a plain dict is slow to find its first of many
        self._again: OrderedDict[tuple[float, Any], float] = OrderedDict()

    def all(self) -> Iterator[PE]:
        """All instances, by window."""
        for table in self.tables.values():
            yield from table.values()

    def __len__(self) -> int:
        return sum(map(len, self.tables.values()))

    @property
    def open_windows(self) -> int:
        return len(self.tables)

    @property
    def called_until(self) -> float:
        first = min(self._ending, self._ends[0][0] if self._ends else math.inf)
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
                    heappush(self._ends, (end, span[0]))
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
        self.held = -1  # counted anew
        if instance._again and self._early and self.is_open(instance._span[1]):
            self.note_change(instance)
        elif instance._again:
            self._changed(instance)

    def remove(self, instance: PE) -> None:
        """Drop the instance of an open window, or pane."""
        dropped, table, key = instance, self.tables.get(instance._span[0]), instance.key
        if table is not None and table.get(key) is instance:
            del table[key]
            self._forget(dropped)
            dropped._until = math.inf
        elif self._kind.is_hopping and instance._until < math.inf:  # made of copies of its panes
            raise S4Error(
                f"{instance!r} cannot be removed in on_window: windows overlap, so its events are "
                f"in others, too; leave the remove() out"
            )

    @property
    def first(self) -> list[Any]:
        """The ends of windows; the first entry begins with the earliest one."""
        return self._ends

    @property
    def next_end(self) -> float:
        if self._again:
            return NEVER
        return min((heap[0][0] for heap in (self._ends, self._over) if heap), default=math.inf)

    def calls(self) -> Iterator[Due | None]:
        """The calls that are due at the current watermark; None after other work.

        The watermark may rise between two calls. Windows that it ends then wait for the next
        :meth:`calls`: else a table would go before all its windows had their calls.
        """
        watermark = self.watermark
        while self._ends and self._ends[0][0] <= watermark:
            end = self._ending = self._ends[0][0]
            starts = []
            while self._ends and self._ends[0][0] == end:
                starts.append(heappop(self._ends)[1])
            tables = [self.tables[start] for start in starts if start in self.tables]
            if self._whole:
                for table in tables:
                    self.by_number.pop(table.span[0] // self._whole, None)
            called = set[Any]()
            for at, table in enumerate(tables):
                keys = [*reversed(table)]
                while keys:  # they go one by one: to free a million at once is a pause
                    key = keys.pop()
                    if key in called:
                        continue
                    mine = [each[key] for each in tables[at:] if key in each]
                    yield self._call(key, end, mine)
                    if len(tables) > 1:
                        called.add(key)
            self._ending = math.inf
        while self._again:
            (end, key), start = next(iter(self._again.items()))
            if end > watermark:
                break
            yield self._call(key, end, self._panes(key, start, end), again=True)
        while self._over and self._over[0][0] <= watermark:
            _, start = heappop(self._over)
            instances = [*self.tables[start].values()]
            while instances:
                self.remove(instances.pop())
                yield None
            del self.tables[start]

    def _panes(self, key: Any, start: float, end: float) -> list[PE]:
        """The instances of a key in the window that ends at ``end``; one begins at ``start``."""
        first = self._kind.start_of(end) if self._kind.is_hopping else start
        return [
            table[key]
            for _, table in sorted(self.tables.items())
            if first <= table.span[0] and table.span[1] <= end and key in table
        ]

    def _ended_before(self, key: Any, time: float) -> Iterator[tuple[float, Due | None]]:
        ends = {
            end: start
            for start, table in self.tables.items()
            if table.span[1] < time and key in table
            for end in self._kind.ends_of(table.span)
            if max(table[key]._until, self.called_before) < end < time
        }
        for end, start in sorted(ends.items()):
            yield end, self._call(key, end, self._panes(key, start, end))

    def _call(self, key: Any, end: float, panes: list[PE], *, again: bool = False) -> Due | None:
        if self._again:
            self._again.pop((end, key), None)
        if len(panes) > 1:
            panes = [pane for pane in panes if pane._until < math.inf]  # not removed
        newest = panes[-1] if panes else None
        if newest is None or newest._until == math.inf or (newest._until >= end and not again):
            return None
        for pane in panes:
            if pane is newest or pane._again:
                self.touch(pane)
        if not self._kind.is_hopping:
            return Due(newest, partial(self._fired, newest, end))
        whole = self._merged(key, end, panes)
        return Due(whole, partial(self._ended, panes, end))

    def _merged(self, key: Any, end: float, panes: list[PE]) -> PE:
        """An instance of an overlapping window, made of copies of its panes."""
        whole: PE = self.prototype.make(key, self)
        whole._span = self._kind.start_of(end), end
        whole._round = int(any(pane._until >= end for pane in panes))
        copy_state(panes[0], whole)
        for pane in panes[1:]:
            whole.merge(pane)
        return whole

    def _ended(self, panes: list[PE], end: float) -> None:
        """Note in the panes of a key that a window of theirs has ended."""
        panes[-1]._until = max(panes[-1]._until, end)
        for pane in panes:
            if pane._again:  # as long as another window of it is to be called again
                ends = self._kind.ends_of(pane._span)
                pane._again = any((each, pane.key) in self._again for each in ends)


class SessionWindows(WindowInstances):
    """Sessions: each key has its own, the oldest first."""

    __slots__ = ("_again", "_by_key", "_ends", "_number", "_open", "_over")

    def __init__(self, prototype: Prototype, partition: int, wall: Callable[[], float]) -> None:
        super().__init__(prototype, partition, wall)
        self._by_key: dict[Any, list[PE]] = {}
        self._ends: list[tuple[float, int, PE]] = []  # as they were; sessions grow
        self._over: list[tuple[float, int, PE]] = []
        self._again: OrderedDict[PE, None] = OrderedDict()
        self._number = 0
        self._open = 0

    def all(self) -> Iterator[PE]:
        """All instances, by key."""
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
        """Take an instance, new or saved."""
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
            heappush(self._ends, (end, self._number, instance))
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

    @property
    def first(self) -> list[Any]:
        """The ends of sessions as they were; the first entry begins with the earliest one."""
        return self._ends

    @property
    def next_end(self) -> float:
        if self._again:
            return NEVER
        return min((heap[0][0] for heap in (self._ends, self._over) if heap), default=math.inf)

    def calls(self) -> Iterator[Due | None]:
        """The calls that are due at the current watermark, as above; None after other work."""
        watermark = self.watermark
        for instance in self._passed(self._ends, watermark):
            end = instance._span[1]
            if instance._until < end:
                self.touch(instance)
                yield self._call(instance, end)
        while self._again:
            instance = next(iter(self._again))
            del self._again[instance]
            if instance._until < instance._span[1]:  # it has grown, and its end is awaited
                continue
            self.touch(instance)
            yield self._call(instance, instance._span[1])
        for instance in self._passed(self._over, watermark, self._grace):
            self.remove(instance)
            yield None

    def _ended_before(self, key: Any, time: float) -> Iterator[tuple[float, Due | None]]:
        for instance in [*self._by_key.get(key, ())]:
            end = instance._span[1]
            if instance._until < end < time:
                self.touch(instance)
                yield end, self._call(instance, end)

    def _call(self, instance: PE, end: float) -> Due:
        return Due(instance, lambda: self._fired(instance, end))

    def _passed(
        self, heap: list[tuple[float, int, PE]], watermark: float, grace: float = 0.0
    ) -> Iterator[PE]:
        """The sessions whose end, as it is now, has passed, in order."""
        while heap and heap[0][0] <= watermark:
            _, number, instance = heappop(heap)
            if instance not in self._by_key.get(instance.key, ()):
                continue
            at = instance._span[1] + grace
            if at > watermark:
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
        self[instance.key] = instance

    def remove(self, instance: PE) -> None:
        key = instance.key
        if self.get(key) is instance:
            del self[key]
            self._forget(instance)
