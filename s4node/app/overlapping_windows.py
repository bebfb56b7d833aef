"""The open windows of a prototype in one task that overlap. Pure.

Rules
- An event is in one pane. A window is made of its panes when it ends: a copy of the first one into
  which the later ones are merged. A pane stays until the last window that holds it is gone.
- The panes of each key are in order, so those of a window are found without asking all tables.
- The last pane of a key in a window notes its end. It does so before the call: a call that fails
  rolls back everything.
- The panes that are over go after each end, so that few are looked at if many windows end at once.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop
from operator import attrgetter
from typing import Any

from s4node.app.instances import Instances
from s4node.app.open_windows import TableWindows
from s4node.app.prototype import Prototype
from s4node.app.window_instances import PE, Due, in_parts
from s4node.app.windows import Span
from s4node.errors import S4Error


class OverlappingWindows(TableWindows):
    """Windows of a length, of which each event is in several."""

    __slots__ = ("_panes",)

    def __init__(self, prototype: Prototype, partition: int, wall: Callable[[], float]) -> None:
        super().__init__(prototype, partition, wall)
        self._panes: dict[Any, list[PE]] = {}

    def made(self, key: Any, span: Span, home: Instances) -> PE:
        pane = super().made(key, span, home)
        self._hold(pane)
        return pane

    def restore(self, instance: PE) -> None:
        self._hold(instance)
        super().restore(instance)

    def _hold(self, pane: PE) -> None:
        panes = self._panes.setdefault(pane.key, [])
        if panes and pane._span < panes[-1]._span:
            insort(panes, pane, key=attrgetter("_span"))
        else:
            panes.append(pane)

    def remove(self, instance: PE) -> None:
        key, panes = instance.key, self._panes.get(instance.key, ())
        if panes and panes[0] is instance:
            at = 0
        else:
            at = next((at for at, pane in enumerate(panes) if pane is instance), -1)
        if at >= 0:
            if len(panes) == 1:
                del self._panes[key]
            else:
                del self._panes[key][at]
            super().remove(instance)
        elif instance._until < math.inf:  # made of copies of its panes
            raise S4Error(
                f"{instance!r} cannot be removed in on_window: windows overlap, so its events are "
                f"in others, too; leave the remove() out"
            )

    def _ended(self, most: Callable[[], int]) -> Iterator[Due]:
        end = self._ending = self.ends[0][0]
        tables = []
        while self.ends and self.ends[0][0] == end:
            start = heappop(self.ends)[1]
            if self._whole:
                self.by_number.pop(start // self._whole, None)
            if start in self.tables:
                tables.append(self.tables[start])
        called = set[Any]()
        for table in tables:
            for keys in in_parts([key for key in table if key not in called], most):
                yield self._of_end(keys, end)
                called.update(keys)
        self._ending = math.inf
        if not self._again:
            yield from self._dropped(end, most)

    def _changed_before(self, watermark: float, most: int) -> Due:
        found, work = list[PE](), 0
        while self._again and work < most:
            end, key = next(iter(self._again))
            if end > watermark:
                break
            del self._again[end, key]
            work += 1
            found += self._of_end([key], end, again=True).instances
        return Due(found, None, work)

    def _ended_before(self, key: Any, time: float) -> Iterator[tuple[float, Due]]:
        ends = {
            end
            for pane in self._panes.get(key, ())
            if pane._span[1] < time
            for end in self._kind.ends_of(pane._span)
            if max(pane._until, self.called_before) < end < time
        }
        for end in sorted(ends):
            yield end, self._of_end([key], end)

    def _of_end(self, keys: Sequence[Any], end: float, *, again: bool = False) -> Due:
        changed = list[PE]()
        mark, touch_one = None, None
        if self.saver is not None:
            mark, touch_one = self.saver.mark, self.saver.touch_one
        span = self._kind.start_of(end), end
        assert self.prototype.merge is not None
        found = self.prototype.merge(keys, self._panes, span, self, mark, touch_one, changed, again)
        if self._again:
            for each in found:
                self._again.pop((end, each.key), None)
        for pane in changed:  # as long as another window of it is to be called again
            self.touch(pane)
            ends = self._kind.ends_of(pane._span)
            pane._again = any((each, pane.key) in self._again for each in ends)
        return Due(found, None, len(keys))
