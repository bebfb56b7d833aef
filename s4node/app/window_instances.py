"""The instances of a prototype with windows, in one task: what all kinds have in common. Pure.

Rules
- The instance of (key, window) is made at its first event, and is in memory until its window ends.
- A window ends when the watermark (or the clock) reaches its end. ``on_window`` is called once on
  each of its instances, oldest window first, in parts; events go on in between.
- Within the grace after that, an event still counts, and ``on_window`` is called again on its
  instance. After that the window is gone, and an event for it is late: it is counted, and put on
  the stream of late events if there is one.
- An instance whose ``on_window`` has failed is kept apart, as it was before that call. The call is
  made again at the next start.
- ``open_windows`` has the kinds.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from s4node.app.instances import Instances, Saver
from s4node.app.prototype import Prototype, copied
from s4node.app.windows import Span
from s4node.events.event import report_to_sender
from s4node.events.keys import identity

PE: TypeAlias = Any
"""An instance of a bound class, which has the slots of windows."""

NEVER = -math.inf


class WindowKeeper(Saver, Protocol):
    def erase(self, instance: Any, /) -> None:
        """Delete the saved state of an instance that is gone."""

    def moved(self, instance: Any, /) -> None:
        """Save an instance under the new beginning of its window."""


class Due(NamedTuple):
    """Calls of ``on_window`` that are due on ``instances``; ``done(instances)`` follows all.

    They are made at once, without an event or a commit in between. ``work`` says how much that is,
    with what was done besides.
    """

    instances: Sequence[PE]
    done: Callable[[Sequence[PE]], None] | None
    work: int


class WindowInstances(Instances):
    """The windows of ``prototype`` in a partition.

    ``watermark`` is the time up to which events have come. ``late`` counts late events. ``failed``
    has the instances whose ``on_window`` has failed, ``own`` those of the keys beside their
    windows, if the class has any; ``have(keys)`` loads these. ``wall`` gives Unix time.
    ``changed`` are the instances for which there is an early result at ``early_at``.
    ``called_before`` is the ``called_until`` of an earlier run.
    """

    __slots__ = (
        "_again", "_early", "_grace", "_kind", "_options", "_over", "called_before", "changed",
        "early_at", "ends", "failed", "have", "late", "own", "saver", "wall", "watermark",
    )  # fmt: skip

    def __init__(self, prototype: Prototype, partition: int, wall: Callable[[], float]) -> None:
        super().__init__(prototype, partition)
        assert prototype.windows is not None
        self._options = prototype.windows
        self._kind = prototype.windows.kind
        self._grace = prototype.windows.grace
        self._early = prototype.windows.early
        self.ends: list[Any] = []  # heaps: the ends of windows, and when what is kept goes
        self._over: list[Any] = []
        # what an event has changed since its end; a plain dict is slow to find its first of many
        self._again: OrderedDict[Any, Any] = OrderedDict()
        self.changed: dict[PE, None] = {}
        self.early_at = math.inf
        self.wall = wall
        self.watermark = self.called_before = NEVER
        self.late = 0
        self.saver: WindowKeeper | None = None
        self.failed = FailedWindows(self)
        self.own: Instances | None = None
        self.have: Callable[[Iterable[Any]], None] | None = None

    # -- what is there -----------------------------------------------------------------------

    def all(self) -> Iterator[PE]:
        return iter(dict.values(self))

    def __len__(self) -> int:
        return sum(1 for _ in self.all())

    def __iter__(self) -> Iterator[Any]:
        return iter({instance.key: None for instance in self.all()})

    def of_key(self, key: Any) -> list[PE]:
        """The instances of a key, the oldest window first."""
        found = [instance for instance in self.all() if instance.key == key]
        return sorted(found, key=lambda each: each._span)

    @property
    def called_until(self) -> float:
        """All windows that end until then have had their calls, whatever comes later."""
        return self.watermark

    def now(self) -> float:
        """The time of an event by the clock. If the clock was set back, it is that of the windows
        that are open, so no event is late."""
        return max(self.wall(), self.watermark)

    @property
    def owner(self) -> WindowInstances:
        return self

    def is_open(self, end: float) -> bool:
        return end > self.watermark and not self._kind.events

    def note_change(self, instance: PE) -> None:
        """Have an early result for an instance, to which an event comes."""
        if not self.changed:
            self.early_at = self.wall() + self._early
        self.changed[instance] = None
        instance._again = True  # also after a crash

    def early_calls(self, most: Callable[[], int]) -> Iterator[Due]:
        """The calls before the end that are due by the clock, in parts."""
        if self.early_at > self.wall():
            return
        changed, self.changed, self.early_at = self.changed, {}, math.inf
        for part in in_parts([*changed], most):
            found = [one for one in part if one._until == NEVER and self.is_open(one._span[1])]
            self.touch_all(found)
            yield Due(found, _end_round, len(part))

    def state_of_key(self, key: Any) -> PE:
        """The instance of a key beside its windows, marked as changing."""
        own = self.own
        assert own is not None
        if own.prototype.singleton:
            instance = own.singleton()
        else:
            if self.have is not None and key not in own:
                self.have([key])
            instance = own[key]
        if own.keeper is not None:
            own.keeper.touch((key,))
        return instance

    @property
    def open_windows(self) -> int:
        """The number of open windows; each key has its own sessions and counts."""
        return len(self)

    # -- changes -----------------------------------------------------------------------------

    def come_late(self, event: Any, key: Any, time: float) -> None:
        """Count a late event, pass it on, and report it to its sender, as set_window says."""
        self.late += 1
        if self._options.report_late:
            by = self.watermark - time
            report_to_sender(f"late by {by:.3f} s for {self.prototype.name} {key!r}", event)
        if self._options.late is not None:
            self._options.late.put(event)

    def restore(self, instance: PE) -> None:
        raise NotImplementedError

    def calls(self, most: Callable[[], int]) -> Iterator[Due]:  # noqa: ARG002
        """The calls that are due at the current watermark; more may come while they are made.

        ``most()`` says how much work the next part of them may be, so that nobody waits for all.
        """
        return iter(())

    def calls_before(self, key: Any, time: float) -> Iterator[Due]:
        """The calls of a key for windows that end before ``time``, although others go on.

        For its window, the watermark is at its end during a call.
        """
        watermark = self.watermark
        try:
            for end, due in self._ended_before(key, time):
                self.watermark = max(watermark, end)
                yield due
        finally:
            self.watermark = watermark

    def _ended_before(self, key: Any, time: float) -> Iterator[tuple[float, Due]]:
        raise NotImplementedError

    @property
    def next_end(self) -> float:
        """The watermark at which something is due."""
        if self._again:
            return NEVER
        return min((heap[0][0] for heap in (self.ends, self._over) if heap), default=math.inf)

    def remove(self, instance: PE) -> None:
        """Drop the instance of an open window; its ``on_window`` is not called."""
        raise NotImplementedError

    def made(self, key: Any, span: Span, home: Instances) -> PE:
        checked = None
        if not self.prototype.singleton:
            self.new_keys.check_new(checked := identity(key), ())
        instance: PE = self.prototype.make(checked, home)
        instance._span = span
        if self.saver is not None:
            self.saver.touch_new(instance)
        if self.prototype.on_create is not None:
            try:
                self.prototype.on_create(instance)
            except BaseException:  # it may refuse the event, and there is no window then
                self._forget(instance)
                raise
        return instance

    def touch(self, instance: PE) -> None:
        if self.saver is not None and instance._mark is not self.saver.mark:
            self.saver.touch_one(instance)

    def touch_all(self, instances: Iterable[PE]) -> None:
        if self.saver is not None:
            mark, touch_one = self.saver.mark, self.saver.touch_one
            for instance in instances:
                if instance._mark is not mark:
                    touch_one(instance)

    def _forget(self, instance: PE) -> None:
        if self.saver is not None:
            self.saver.erase(instance)

    def _fired(self, instances: Sequence[PE]) -> None:
        for instance in reversed(instances):  # so the saver finds the last touched one at the end
            instance._round += 1
            instance._until = instance._span[1]
            instance._again = False
            if not self._grace:
                self.remove(instance)


class FailedWindows(Instances):
    """The instances of ``owner`` whose ``on_window`` has failed; each key may have several.

    Those that were restored are called again.
    """

    __slots__ = ("_again", "_by_key", "owner", "saver")

    def __init__(self, owner: WindowInstances) -> None:
        super().__init__(owner.prototype, owner.partition)
        self.owner = owner
        self.saver: WindowKeeper | None = None
        self._by_key: dict[Any, list[PE]] = {}
        self._again: list[PE] = []

    def add(self, instance: PE) -> None:
        """Keep a copy of an instance as it is now."""
        kept: PE = self.prototype.make(instance.key, self)
        kept._span, kept._round = instance._span, instance._round
        for name in instance._state:
            setattr(kept, name, copied(getattr(instance, name)))
        self.drop_within(instance)
        self._by_key.setdefault(kept.key, []).append(kept)
        if self.saver is not None:
            self.saver.touch_one(kept)

    def restore(self, instance: PE) -> None:
        """Take an instance that was saved; its ``on_window`` is called again."""
        self._by_key.setdefault(instance.key, []).append(instance)
        self._again.append(instance)

    def __bool__(self) -> bool:
        return bool(self._by_key)

    @property
    def is_due(self) -> bool:
        """True if calls are made again."""
        return bool(self._again)

    def calls(self) -> Iterator[Due]:
        """The calls that are made again, the oldest window first."""
        self._again.sort(key=lambda each: each._span, reverse=True)
        while self._again:
            instance = self._again.pop()
            if instance in self._by_key.get(instance.key, ()):
                yield Due([instance], self.drop_all_within, 1)

    def is_open(self, end: float) -> bool:
        return self.owner.is_open(end)

    def drop_within(self, instance: PE) -> None:
        start, end = instance._span
        mine = self._by_key.get(instance.key, ())
        for each in [each for each in mine if start <= each._span[0] and each._span[1] <= end]:
            self._by_key[each.key].remove(each)
            if not self._by_key[each.key]:
                del self._by_key[each.key]
            if self.saver is not None:
                self.saver.erase(each)

    def drop_all_within(self, instances: Iterable[PE]) -> None:
        for instance in instances:
            self.drop_within(instance)

    def remove(self, instance: PE) -> None:
        self.drop_within(instance)


def in_parts(items: list[Any], most: Callable[[], int]) -> Iterator[list[Any]]:
    """The items, of which a part is taken out at a time: to free a million at once is a pause."""
    items.reverse()
    while items:
        part = items[: -most() - 1 : -1]
        del items[-len(part) :]
        yield part


def _end_round(instances: Sequence[PE]) -> None:
    for instance in instances:
        instance._round += 1
        instance._again = False
