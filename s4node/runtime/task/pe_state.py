"""The durable PEs of a task: their instances outlive the process. Pure.

Rules
- A saved instance that is not in memory is read when the first one is missed, together with all
  others of the slice in one call. It is made without ``on_create``.
- The dispatch of a stream touches instances as it comes to them. If handlers overlap, or an event
  is for all instances, they are touched before.
- The counts and times of a trigger are saved with the key's instance. Time goes on while an
  instance is not in memory, and while no process runs.
- The saved state names the version of the class that saved it; see ``app.pe_codec``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from s4node.app.app import App
from s4node.app.instances import Instances, Saver
from s4node.app.pe_codec import codec_in
from s4node.app.plan import dispatch, graph
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import OutputStream, Stream
from s4node.app.window_instances import WindowInstances
from s4node.errors import KeyFinderError, StateError, is_signal
from s4node.events.keys import check_key
from s4node.runtime.event_time.window_state import FAILED, WindowCodec, check_order, go_on

if TYPE_CHECKING:
    from s4node.state.task_state import TaskState

TTL = "pe ttl of "
"""Begins the name of the fact with the seconds after which the state of a PE ends; 0 for never."""

_encode = msgspec.msgpack.Encoder().encode


class _Counted(msgspec.Struct, omit_defaults=True):
    """A row with the counts of triggers; a row without triggers is an array.

    For each trigger ``fired`` has the events since it fired, and when that was. In rows of earlier
    versions, ``counts`` has the seconds before the row was written. ``used`` is the Unix time of
    the last event, if the state ends some time after it.
    """

    state: bytes
    fired: list[tuple[float, float] | None] = []
    counts: list[tuple[float, float] | None] = []
    used: float = 0.0


def _is_counted(data: bytes) -> bool:
    return data[0] & 0xF0 == 0x80  # a map


_decode = msgspec.msgpack.Decoder(_Counted).decode


class _Prototype:
    """The instances of one prototype, in memory and saved, and their codec."""

    def __init__(
        self,
        name: str,
        instances: Instances,
        trigger: dispatch.TriggerState | None,
        state: TaskState,
    ) -> None:
        self.instances = instances
        self._trigger = trigger
        self._now = state.now
        self._ttl = instances.prototype.ttl
        if self._ttl != (state.meta(f"{TTL}{name}") or 0):
            state.set_meta(f"{TTL}{name}", self._ttl)
        self._codec = codec_in(state, name, instances.prototype.cls)
        self._find: Callable[[Any], Any]
        self._coming: Iterable[Any] = ()
        self.saved = state.saved(name, instances, self)
        go_on(state, name, self.saved, None)
        self.saved.ends = bool(self._ttl)
        instances.keeper = self.saved
        instances.fetch = self._fetch

    def encode(self, instance: ProcessingElement) -> bytes:
        data = self._codec.encode(instance)
        if self._trigger is None and not self._ttl:
            return data
        now, fired = self._now(), self._trigger
        counts = [] if fired is None else fired.fired(instance.key, now)
        used = now - self.instances.unused(instance.key) if self._ttl else 0.0
        return _encode(_Counted(data, counts, used=used))

    def encode_all(self, instances: list[ProcessingElement]) -> list[bytes]:
        if self._trigger is None and not self._ttl:
            return self._codec.encode_all(instances)
        return list(map(self.encode, instances))

    def ended(self, key: Any, data: bytes) -> bytes | None:
        """A row that may have ended: None if it has, otherwise the row, which may begin to age.

        The timers of a key that has ended end with it.
        """
        if not self._ttl:
            return data
        if not _is_counted(data):
            return _encode(_Counted(data, used=self._now()))
        counted = self._counted(data)
        if not counted.used:
            counted.used = self._now()
            return _encode(counted)
        if counted.used + self._ttl > self._now():
            return data
        if self.instances.timers is not None:
            self.instances.timers.cancel_all(key)
        return None

    def _unused(self, data: bytes) -> float:
        """The seconds since the last event of a row's key, as far as that is known."""
        used = self._counted(data).used if self._ttl and _is_counted(data) else 0.0
        return max(0.0, self._now() - used) if used else 0.0

    def _counted(self, data: bytes) -> _Counted:
        try:
            return _decode(data)
        except msgspec.MsgspecError as error:
            name = self.instances.prototype.name
            raise StateError(f"saved state of {name} cannot be read: {error}") from error

    def restore(self, instance: ProcessingElement, data: bytes, *, look: bool = False) -> None:
        """Restore the saved state of an instance, and its triggers unless it is only looked at."""
        if _is_counted(data):
            counted = self._counted(data)
            data = counted.state
            if self._trigger is not None and not look:
                now = self._now()
                ago = [each and (each[0], now - each[1]) for each in counted.counts]
                self._trigger.restore(instance.key, counted.fired or ago, now)
        self._codec.restore(instance, data)

    def instance_of(self, key: Any) -> ProcessingElement | None:
        data = self.saved.find([key]).get(key)
        if data is None or self.ended(key, data) is None:
            return None
        instance = self.instances.prototype.make(key, self.instances)
        self.restore(instance, data, look=True)
        return instance

    def coming(self, find: Callable[[Any], Any], events: Iterable[Any]) -> None:
        self._find, self._coming = find, events

    def _fetch(self) -> None:
        """Load the saved instances of the coming events, because one of them was missed."""
        if self._coming:
            events, self._coming = self._coming, ()
            if self.saved.stored:
                self._have(keys_of(self._find, events))

    def prepare(self, keys: set[Any]) -> None:
        """Load the saved instances of these keys, and mark all of them as changing."""
        self._coming = ()  # of an ended slice; handlers in threads must not load it
        if self.saved.stored:
            self._have(keys)
        self.saved.touch(keys)

    def _have(self, keys: Iterable[Any]) -> None:
        """Load the saved instances of these keys."""
        home = self.instances
        missing = []
        for key in keys:
            if key not in home:
                with suppress(KeyFinderError):  # the dispatch reports it
                    missing.append(check_key(key))
        if not missing:
            return
        for key, data in self.saved.find(missing).items():
            if self._ttl and self.ended(key, data) is None:
                continue
            instance = home.prototype.make(key, home)
            self.restore(instance, data)
            home[key] = instance
            home.loaded(key, self._unused(data))


def keys_of(find: Callable[[Any], Any], events: Iterable[Any]) -> set[Any]:
    """The keys of the events that have one; the dispatch reports those that have none."""
    keys: set[Any] = set()
    it = iter(events)
    while True:
        try:
            keys.update(map(find, it))
            return keys
        except BaseException as error:  # the app's KeyFinder may raise anything
            if is_signal(error):
                raise


class PeState:
    """Saves the instances of an app's PEs in ``state``."""

    def __init__(
        self,
        app: App,
        instances: Mapping[str, Instances],
        triggers: Mapping[str, dispatch.TriggerState],
        state: TaskState,
    ) -> None:
        self._saved = saved = {
            name: _Prototype(name, each, triggers.get(name), state)
            for name, each in instances.items()
            if not isinstance(each, WindowInstances)
        }
        windows = {n: i for n, i in instances.items() if isinstance(i, WindowInstances)}
        self._codecs = [
            codec
            for name, windowed in windows.items()
            for codec in (
                WindowCodec(name, windowed, state),
                WindowCodec(f"{name}{FAILED}", windowed.failed, state),
            )
        ]
        check_order(state)
        found = [each.instances.timers for each in saved.values()]
        self._timers = [timers for timers in found if timers is not None]
        for timers in self._timers:
            timers.keeper = state.saved_timers(timers.pe)
        self.resumed: set[str] = set()
        """Singletons that were created in an earlier run."""
        for name, each in saved.items():
            if each.instances.prototype.singleton:
                data = each.saved.find([None]).get(None)
                if data is not None:
                    each.restore(each.instances.singleton(), data)
                    self.resumed.add(name)
        fed = [each for each in app.streams.values() if not isinstance(each, OutputStream)]
        self._before = {
            stream.name: _Before(
                stream, [saved[each.name] for each in stream.targets if each.name in saved]
            )
            for stream in fed
        }
        keyed = [each for each in saved.values() if not each.instances.prototype.singleton]
        self._windows: dict[str, Saver] = {
            name: each.saver for name, each in windows.items() if each.saver is not None
        }
        self._savers = {each.instances.prototype.name: each.saved for each in keyed}

    def restore(self) -> Iterator[None]:
        """Restore the saved windows and timers, one after the other."""
        for codec in self._codecs:
            yield from codec.restore()
        for timers in self._timers:
            yield from timers.restore_all()

    def savers(self, stream: Stream, *, parallel: bool) -> Mapping[str, Saver]:
        if parallel or stream.key is None:
            return self._windows
        return {**self._savers, **self._windows}

    def have(self, name: str, keys: Iterable[Any]) -> None:
        self._saved[name].prepare(set(keys))

    def instance_of(self, name: str, key: Any) -> ProcessingElement | None:
        return self._saved[name].instance_of(key)

    def before(self, stream: str, events: Iterable[Any]) -> None:
        self._before[stream].slice(events)

    def before_one(self, stream: str, event: Any) -> None:
        """Prepare for one event of a stream, which may be processed beside others."""
        self._before[stream].single(event)


class _Before:
    """Loads and marks instances before the events of one stream."""

    def __init__(self, stream: Stream, targets: list[_Prototype]) -> None:
        self._single = [each for each in targets if each.instances.prototype.singleton]
        others = [each for each in targets if not each.instances.prototype.singleton]
        self._find = graph.finder_of(stream) if stream.key is not None and others else None
        self._others = others

    def slice(self, events: Iterable[Any]) -> None:
        """Prepare for several events, processed one after the other."""
        if self._find is None:
            self._all()
            return
        for one in self._single:
            one.saved.touch((None,))
        for each in self._others:
            each.coming(self._find, events)

    def single(self, event: Any) -> None:
        """Prepare for one event that may be processed beside others."""
        if self._find is None:
            self._all()
            return
        for one in self._single:
            one.saved.touch((None,))
        keys = keys_of(self._find, [event])
        for each in self._others:
            each.prepare(keys)

    def _all(self) -> None:
        """Mark all instances in memory: an event without a key is for all of them."""
        for one in self._single:
            one.saved.touch((None,))
        for each in self._others:
            each.saved.touch(list(each.instances))
