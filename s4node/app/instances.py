"""The instances of one prototype in one task, by key.

Rules
- Reading a key makes its instance; that is all that the dispatch loop does.
- Bounds are applied between batches, never while a handler runs, so an instance never vanishes
  under its own handler. If handlers overlap for long, the size is bounded beside them by evicting
  other instances, many at a time, because finding the oldest is slow.
- Saved instances beyond a cache's size leave memory without being removed; ``on_remove`` is only
  for removed ones.
- ``on_create`` that is ``async`` is awaited before the instance's first event; ``on_remove`` that
  is ``async`` is awaited at the end of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile
from typing import Any, Protocol, cast

from s4node.app.pe_timers import PeTimers
from s4node.app.processing_element import Nowhere, ProcessingElement
from s4node.app.prototype import Prototype
from s4node.events.keys import Key, KeyCrowding, identity

PE = ProcessingElement

_BEYOND = 64  # excess instances (or an eighth of the size) before eviction beside handlers


class Saver(Protocol):
    @property
    def mark(self) -> object:
        """The mark of touched instances; it changes between two steps only."""

    @property
    def saving(self) -> object:
        """The mark of instances that a commit saves: ``touch_one`` has to be called for them."""

    @property
    def touched(self) -> list[Any]:
        """The touched instances; another list comes with another mark."""

    def touch_one(self, instance: Any, /) -> None:
        """Mark an instance that does not have the mark, and is about to change."""

    def touch_new(self, instance: Any, /) -> None:
        """Mark an instance that was made, and has no saved one."""


class Keeper(Saver, Protocol):
    def touch(self, keys: Iterable[Key | None]) -> None:
        """Mark the instances in memory of these keys as changing."""

    def evict(self, key: Key | None) -> None:
        """Save the key's instance, which is about to leave memory."""

    def remove(self, key: Key | None) -> None: ...


class Instances(dict[Any, PE]):
    """An unbounded map from key to instance."""

    __slots__ = (
        "before",
        "fetch",
        "gone",
        "keeper",
        "leaving",
        "new_keys",
        "partition",
        "prototype",
        "timers",
    )

    def __init__(self, prototype: Prototype, partition: int) -> None:
        super().__init__()
        self.prototype = prototype
        self.partition = partition
        self.leaving: list[PE] = []
        self.gone: Callable[[Any], None] | None = None
        self.keeper: Keeper | None = None
        self.timers: PeTimers | None = None
        # makes the calls of a key that are due before its event at a time, for streams in order
        self.before: Callable[[Any, float], Any] | None = None
        self.fetch: Callable[[], None] | None = None  # loads the saved instances of coming events
        self.new_keys = KeyCrowding()

    def __missing__(self, key: Key) -> PE:
        prototype = self.prototype
        checked = identity(key)
        self.new_keys.check_new(checked, self)
        if self.fetch is not None:
            self.fetch()
            if key in self:
                return super().__getitem__(key)
        instance = prototype.make(checked, self)
        if prototype.on_create is not None:
            assert not prototype.awaits_create, "async on_create goes through obtain()"
            prototype.on_create(instance)
        self[key] = instance
        if self.keeper is not None:  # an earlier one may have been removed in this slice
            self.keeper.touch_new(instance)
        return instance

    async def obtain(self, key: Key) -> PE:
        """The key's instance, if ``on_create`` is async."""
        if key in self:
            return self[key]
        checked = identity(key)
        self.new_keys.check_new(checked, self)
        if self.fetch is not None:
            self.fetch()
            if key in self:
                return self[key]
        instance = self.prototype.make(checked, self)
        assert self.prototype.on_create is not None
        await self.prototype.on_create(instance)
        self[key] = instance
        if self.keeper is not None:
            self.keeper.touch_new(instance)
        return self[key]  # counts as its first use

    def singleton(self) -> PE:
        """The one instance, made on the first call; the caller awaits its ``on_create``."""
        if None not in self:
            self[None] = self.prototype.make(None, self)
        return self[None]

    def remove(self, instance: PE) -> None:
        if self.get(instance.key) is not instance:
            return
        if self.keeper is not None:
            self.keeper.remove(instance.key)
        del self[instance.key]
        if self.timers is not None:
            self.timers.cancel_all(instance.key)
            instance._home = cast("Any", Nowhere(self.partition))  # which takes no timers
        if self.gone is not None:
            self.gone(instance.key)
        if self.prototype.awaits_remove:
            self.leaving.append(instance)
        elif self.prototype.on_remove is not None:
            self.prototype.on_remove(instance)

    async def finish_leaving(self) -> None:
        """Await ``on_remove`` of removed instances."""
        on_remove = self.prototype.on_remove
        assert on_remove is not None
        while self.leaving:
            await on_remove(self.leaving.pop(0))

    def is_open(self, _end: float) -> bool:
        return False

    def loaded(self, key: Any, unused: float) -> None:
        """Note an instance that was read, ``unused`` seconds after the last event of its key."""

    def unused(self, _key: Any) -> float:
        """The seconds since the last event of a key, if they are counted."""
        return 0.0

    def trim(self) -> None:
        """Apply the bounds; an unbounded map has none."""

    def shrink(self, in_use: Collection[Any]) -> None:
        """Apply the size bound to instances that are not in use."""

    @property
    def next_expiry(self) -> float | None:
        """When the first instance may expire; None if none ever does."""
        return None


class BoundedInstances(Instances):
    """A map that keeps the instances used last, bounded by number and idle time."""

    __slots__ = ("_clock", "_idle", "_loaded", "_number", "_used")

    def __init__(self, prototype: Prototype, partition: int, clock: Callable[[], float]) -> None:
        super().__init__(prototype, partition)
        self._clock = clock
        self._idle = prototype.ttl or prototype.cache_idle
        self._used: dict[Any, float] = {}  # the oldest first, but for those that were loaded
        self._loaded: list[tuple[float, int, Any]] = []
        self._number = 0

    def __getitem__(self, key: Any) -> PE:
        instance = super().pop(key, None)
        if instance is None:
            instance = self.__missing__(key)
        else:
            super().__setitem__(key, instance)  # now the youngest
        if self._idle:
            self._used.pop(key, None)
            self._used[key] = self._clock()
        return instance

    def loaded(self, key: Any, unused: float) -> None:
        if not self._idle:
            return
        used = self._used[key] = self._clock() - unused
        if len(self._loaded) > 2 * len(self._used) + _BEYOND:
            self._loaded = list(filter(self._is_unused, self._loaded))
            heapify(self._loaded)
        self._number += 1
        heappush(self._loaded, (used, self._number, key))

    def unused(self, key: Any) -> float:
        now = self._clock()
        return now - self._used.get(key, now)

    def _is_unused(self, loaded: tuple[float, int, Any]) -> bool:
        """Return True if a key that was loaded has had no event since."""
        used, _, key = loaded
        return self._used.get(key) == used

    def trim(self) -> None:
        """Remove the least recently used beyond the size, and all that are idle for too long."""
        self.shrink(())
        if self._idle:
            before = self._clock() - self._idle
            idle = takewhile(lambda item: item[1] <= before, self._used.items())
            keys = [key for key, _ in idle]
            while self._loaded and self._loaded[0][0] <= before:
                loaded = heappop(self._loaded)
                keys += [loaded[2]] if self._is_unused(loaded) else []
            for instance in [dict.__getitem__(self, key) for key in keys]:  # not a use
                self.remove(instance)

    def shrink(self, in_use: Collection[Any]) -> None:
        """Remove the least recently used beyond the size that are not in use."""
        size = self.prototype.cache_size
        beyond = len(self) - size
        if not size or beyond <= 0:
            return
        # found in one pass: a dict is slow to find its first entry after removed ones; and in one
        # step of the interpreter, for handlers in threads may add others
        oldest = list(islice(self.values(), beyond + len(in_use)))
        for instance in islice((each for each in oldest if each.key not in in_use), beyond):
            if self.keeper is None:
                self.remove(instance)
            else:
                self._evict(self.keeper, instance)

    def crowded(self, in_use: int) -> bool:
        """Return True if ``shrink`` is due while ``in_use`` keys are in use."""
        size = self.prototype.cache_size
        return 0 < size < len(self) - in_use - max(_BEYOND, size // 8)

    def _evict(self, keeper: Keeper, instance: PE) -> None:
        keeper.evict(instance.key)
        del self[instance.key]
        self._used.pop(instance.key, None)
        if self.gone is not None:
            self.gone(instance.key)

    def remove(self, instance: PE) -> None:
        super().remove(instance)
        if instance.key not in self:
            self._used.pop(instance.key, None)

    @property
    def next_expiry(self) -> float | None:
        if not self._idle:
            return None
        while self._loaded and not self._is_unused(self._loaded[0]):
            heappop(self._loaded)
        oldest = next(iter(self._used.values()), None)  # a thread may just have the only one out
        if oldest is None:
            return None
        return min(oldest, self._loaded[0][0] if self._loaded else oldest) + self._idle
