"""The events that a stream with ``order="time"`` holds back in one task, by span. Pure.

Rules
- A received event is new until the next commit. It is kept as it came, in the list of its span:
  most events are handed on before they need an instance, a row or their bytes.
- A commit takes the new events over into instances, one for each key and span, which it saves. The
  first event of a span after a commit goes into its instance at once, so the state knows that there
  is something to commit. So do events that this process itself has put: one that cannot be encoded
  fails at its place, and the others are handed on as their receivers would read them.
- That is done in one go, so new events are also taken over when there are very many.
- All events of a span that has ended are handed on in one call, by an instance that is made for it.
  If the span has instances of an earlier run, or very many events, the calls are made key by key,
  as for other windows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from s4node.app.open_windows import Table, TableWindows
from s4node.app.prototype import Prototype
from s4node.app.window_instances import PE, Due
from s4node.events.event import handled
from s4node.events.event_time import TimeRule
from s4node.events.keys import identity

_NEW = 1 << 15
"""New events at most: to take one over is a matter of 2 µs, so to take all over one of 65 ms."""

_AT_ONCE = 4096
"""Events that are handed on at once: for some 2 ms."""

_OF_ONE_CALL = 4
"""Events that take about as long as a call."""

_KEYS = 1 << 16
"""Keys that are known to be good ones, at most."""


class HeldBack(TableWindows):
    """The events that the instances of an ``InOrder`` hold back.

    ``new`` are the lists of new events, by the number of the span. ``known`` are keys that were
    checked. ``held`` counts the events, -1 if that is not known; ``until`` is the number up to
    which events may be added to ``new``.
    """

    __slots__ = ("_earlier", "_whole_span", "held", "known", "new", "until")

    def __init__(self, prototype: Prototype, partition: int, wall: Callable[[], float]) -> None:
        super().__init__(prototype, partition, wall)
        self.new: dict[float, list[Any]] = {}
        self.known: set[Any] = set()
        self.held = self.until = -1
        self._whole_span: tuple[PE, list[Any]] | None = None  # while it is handed on
        self._earlier: set[float] = set()  # starts of spans with instances of an earlier run

    def counted(self) -> int:
        """The number of events that are held back; counted once."""
        if self.held < 0:
            self.held = sum(len(each.held) for each in super().all())
            self.held += sum(map(len, self.new.values()))
        return self.held

    def all(self) -> Iterator[PE]:
        """All instances, with the new events in them."""
        self.take_over()
        return super().all()

    def for_received(self) -> dict[float, list[Any]]:
        """``new`` for the dispatch, if the events that it processes were received."""
        return self.new if self._received() else {}

    def _received(self) -> bool:
        """Return True if the events that are processed now were received."""
        now = handled.get()
        return now is not None and now[1].receipt is not None

    def hold(self, rule: TimeRule, event: Any, key: Any, time: Any) -> None:
        """Hold an event back, or hand it on at once if it is late.

        The dispatch itself adds an event to ``new`` if its span and key are known, and ``held`` is
        below ``until``. Raises EventTimeError, KeyFinderError, EventError and HeldBackBeyond.
        """
        time = rule.check(time, self.wall())
        number = time // self._whole
        start, end = number * self._whole, (number + 1) * self._whole
        if end <= self.watermark:
            self.come_late(event, key, time)
            return
        if self.counted() >= self.until:
            self.take_over()
        table = self._opened((start, end), self.watermark)
        is_first = self.saver is not None and number not in self.new
        if is_first or self.held >= self.until or not self._received():
            instance: PE = table[key]
            self.touch(instance)
            instance.on_event(event)
            self.new.setdefault(number, [])
        else:
            self._check(key)
            self.new.setdefault(number, []).append(event)
            self.held += 1

    def take_over(self) -> None:
        """Take the new events over into instances."""
        for number, events in self.new.items():
            self._take_over(self.tables[number * self._whole], events)
        self.new.clear()
        cls: Any = self.prototype.cls
        self.until = cls.most if self.saver is None else min(cls.most, self.counted() + _NEW)

    def new_of(self, instance: PE) -> list[Any]:
        """The new events that an instance hands on beside those that it has itself."""
        whole = self._whole_span
        return whole[1] if whole is not None and whole[0] is instance else []

    def restore(self, instance: PE) -> None:
        """Take an instance that was saved."""
        super().restore(instance)
        self._earlier.add(instance._span[0])
        self.held = self.until = -1

    def _take_over(self, table: Table, events: list[Any]) -> None:
        cls: Any = self.prototype.cls
        by_key = defaultdict[Any, list[Any]](list)
        for key, event in zip(map(cls.key_of, events), events, strict=True):
            by_key[key].append(event)
        for key, some in by_key.items():
            instance: PE = table[key]
            self.touch(instance)
            instance.keep(some)

    def _check(self, key: Any) -> None:
        """Raise KeyFinderError for what is not a key."""
        if key in self.known:
            return
        if not self.prototype.singleton:
            identity(key)
        if len(self.known) >= _KEYS:
            self.known.clear()
        self.known.add(key)

    def _calls_at(self, end: float, tables: list[Table]) -> Iterator[Due | None]:
        for table in tables:
            start = table.span[0]
            new = self.new.pop(start // self._whole, [])
            instances: list[PE] = [*table.values()]
            size = len(new) + sum(len(each.held) for each in instances)
            if start in self._earlier or size > _AT_ONCE:
                self._take_over(table, new)
                yield from super()._calls_at(end, [table])
                self._earlier.discard(start)
                continue
            whole: PE = self.prototype.make(None, self)
            whole._span = table.span
            whole.held = [held for each in instances for held in each.held]
            self._whole_span = whole, new
            calls = 1 + size // _OF_ONE_CALL
            yield Due(whole, partial(self._remove_all, instances), calls)

    def _remove_all(self, instances: list[PE]) -> None:
        self._whole_span = None
        for instance in instances:
            self.remove(instance)
