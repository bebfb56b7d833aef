"""The PEs of a task whose inputs can be read again: their instances outlive the process. Pure.

Rules
- Instances that are saved and not in memory are read when the first of them is missed, for all
  events of the slice in one call, and made without ``on_create``.
- The dispatch of a stream touches instances as it comes to them. Where handlers overlap, and where
  an event is for all instances, that is done before.
- What a trigger has counted for a key is kept with the key's instance, and since when: time goes on
  while an instance is not in memory, and while there is no process.
- The saved state says by which version of the class it was saved; see ``app.pe_codec``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from s4node.app import graph
from s4node.app.app import App
from s4node.app.instances import Instances, Keeper
from s4node.app.pe_codec import ElementCodec
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import OutputStream, Stream
from s4node.errors import KeyFinderError, StateError, is_signal
from s4node.events.keys import check_key
from s4node.store_spec import StoreSpec

_encode = msgspec.msgpack.Encoder().encode


class _Counted(msgspec.Struct, omit_defaults=True):
    """A row with what triggers have counted; one without is an array.

    For each trigger the events since it fired, and when that was, or in rows of earlier versions
    how many seconds before they were written.
    """

    state: bytes
    fired: list[tuple[float, float] | None] = []
    counts: list[tuple[float, float] | None] = []


_COUNTED = 0x82  # how such a row begins: a map of two
_decode = msgspec.msgpack.Decoder(_Counted).decode


class Saved(Keeper, graph.Saver, Protocol):
    """The saved instances of one prototype."""

    @property
    def stored(self) -> bool:
        """Whether there may be any that are not in memory."""
        ...

    def find(self, keys: Iterable[Any]) -> Mapping[Any, bytes]:
        """The saved states of those keys that have one."""
        ...


class State(Protocol):
    """What a task keeps."""

    def now(self) -> float:
        """Unix time."""
        ...

    def meta(self, name: str, /) -> Any:
        """A fact about the task; None where it was never set."""
        ...

    def set_meta(self, name: str, value: Any, /) -> None:
        """Keep a fact with the next commit."""
        ...

    def saved(self, name: str, live: Mapping[Any, Any], codec: Any, /) -> Saved:
        """Where the instances of a prototype are kept."""
        ...

    def store(self, spec: StoreSpec[Any, Any], /) -> Any:
        """The task's store of this declaration."""
        ...


class _Prototype:
    """The instances of one prototype, in memory and saved. It is their codec, too."""

    def __init__(
        self, name: str, instances: Instances, trigger: graph.TriggerState | None, state: State
    ) -> None:
        self.instances = instances
        self._trigger = trigger
        self._now = state.now
        fact = f"versions of {name}"
        versions = [tuple(map(tuple, fields)) for fields in state.meta(fact) or ()]
        self._codec = ElementCodec(instances.prototype.cls, versions)
        if len(self._codec.versions) != len(versions):
            state.set_meta(fact, self._codec.versions)
        self._find: Callable[[Any], Any]
        self._coming: Iterable[Any] = ()
        self.saved = state.saved(name, instances, self)
        instances.keeper = self.saved
        instances.fetch = self._fetch

    def encode(self, instance: ProcessingElement) -> bytes:
        """An instance as it is saved."""
        data = self._codec.encode(instance)
        if self._trigger is None:
            return data
        return _encode(_Counted(data, self._trigger.fired(instance.key, self._now())))

    def encode_all(self, instances: list[ProcessingElement]) -> list[bytes]:
        """Several instances as they are saved."""
        if self._trigger is None:
            return self._codec.encode_all(instances)
        return list(map(self.encode, instances))

    def restore(self, instance: ProcessingElement, data: bytes, *, look: bool = False) -> None:
        """Give an instance the state that was saved; where somebody only looks, nothing else."""
        if data[0] == _COUNTED:
            try:
                counted = _decode(data)
            except msgspec.MsgspecError as error:
                name = type(instance).__name__
                raise StateError(f"saved state of {name} cannot be read: {error}") from error
            data = counted.state
            if self._trigger is not None and not look:
                now = self._now()
                ago = [each and (each[0], now - each[1]) for each in counted.counts]
                self._trigger.resume(instance.key, counted.fired or ago, now)
        self._codec.restore(instance, data)

    def instance_of(self, key: Any) -> ProcessingElement | None:
        """A copy of the saved instance of a key; None if there is none."""
        data = self.saved.find([key]).get(key)
        if data is None:
            return None
        instance = self.instances.prototype.make(key, self.instances)
        self.restore(instance, data, look=True)
        return instance

    def coming(self, find: Callable[[Any], Any], events: Iterable[Any]) -> None:
        """These events come next; ``find`` finds their keys."""
        self._find, self._coming = find, events

    def _fetch(self) -> None:
        """An instance is missing: have all in memory that were saved, of the events that come."""
        if self._coming:
            events, self._coming = self._coming, ()
            if self.saved.stored:
                self._have(keys_of(self._find, events))

    def prepare(self, keys: set[Any]) -> None:
        """Have the instances of these keys in memory that were saved; all are about to change."""
        self._coming = ()  # of a slice that has ended: handlers in threads must read nothing more
        if self.saved.stored:
            self._have(keys)
        self.saved.touch(keys)

    def _have(self, keys: Iterable[Any]) -> None:
        """Have the instances of these keys in memory that were saved."""
        home = self.instances
        missing = []
        for key in keys:
            if key not in home:
                with suppress(KeyFinderError):  # the dispatch will say so
                    missing.append(check_key(key))
        if not missing:
            return
        for key, data in self.saved.find(missing).items():
            instance = home.prototype.make(key, home)
            self.restore(instance, data)
            home[key] = instance


def keys_of(find: Callable[[Any], Any], events: Iterable[Any]) -> set[Any]:
    """The keys of those events that have one; the dispatch will say what is wrong."""
    keys: set[Any] = set()
    it = iter(events)
    while True:
        try:
            keys.update(map(find, it))
            return keys
        except BaseException as error:  # a KeyFinder of the app's may raise anything
            if is_signal(error):
                raise


class PeState:
    """Keeps the instances of an app's PEs in ``state``."""

    def __init__(
        self,
        app: App,
        instances: Mapping[str, Instances],
        triggers: Mapping[str, graph.TriggerState],
        state: State,
    ) -> None:
        self._kept = kept = {
            name: _Prototype(name, each, triggers.get(name), state)
            for name, each in instances.items()
        }
        self.resumed: set[str] = set()
        """Singletons that have been created in an earlier life."""
        for name, each in kept.items():
            if each.instances.prototype.singleton:
                data = each.saved.find([None]).get(None)
                if data is not None:
                    each.restore(each.instances.singleton(), data)
                    self.resumed.add(name)
        fed = [each for each in app.streams.values() if not isinstance(each, OutputStream)]
        self._before = {
            stream.name: _Before(stream, [kept[each.name] for each in stream.targets])
            for stream in fed
        }
        keyed = [each for each in kept.values() if not each.instances.prototype.singleton]
        self._savers = {each.instances.prototype.name: each.saved for each in keyed}

    def savers(self, stream: Stream, *, parallel: bool) -> Mapping[str, Saved]:
        """By prototype, what the dispatch of a stream tells of each instance it is about to use."""
        return {} if parallel or stream.key is None else self._savers

    def have(self, name: str, keys: Iterable[Any]) -> None:
        """Have those instances of a prototype in memory that are saved for these keys."""
        self._kept[name].prepare(set(keys))

    def instance_of(self, name: str, key: Any) -> ProcessingElement | None:
        """A copy of the saved instance of a key; None if there is none."""
        return self._kept[name].instance_of(key)

    def before(self, stream: str, events: Iterable[Any]) -> None:
        """These events of a stream are about to be processed, one after the other."""
        self._before[stream].slice(events)

    def before_one(self, stream: str, event: Any) -> None:
        """An event of a stream is about to be processed, perhaps beside others."""
        self._before[stream].single(event)

    def check(self, stream: str, event: Any) -> None:
        """Raise NotSaveable where an instance in memory that an event is for cannot be saved."""
        for prototype, instance in self._before[stream].of(event):
            prototype.encode(instance)


class _Before:
    """What is done before events of one stream."""

    def __init__(self, stream: Stream, targets: list[_Prototype]) -> None:
        self._single = [each for each in targets if each.instances.prototype.singleton]
        others = [each for each in targets if not each.instances.prototype.singleton]
        self._find = graph.finder_of(stream) if stream.key is not None and others else None
        self._others = others

    def slice(self, events: Iterable[Any]) -> None:
        """Several events, one after the other."""
        if self._find is None:
            self._all()
            return
        for one in self._single:
            one.saved.touch((None,))
        for each in self._others:
            each.coming(self._find, events)

    def single(self, event: Any) -> None:
        """An event that may be processed beside others."""
        if self._find is None:
            self._all()
            return
        for one in self._single:
            one.saved.touch((None,))
        keys = keys_of(self._find, [event])
        for each in self._others:
            each.prepare(keys)

    def of(self, event: Any) -> Iterator[tuple[_Prototype, ProcessingElement]]:
        """The instances in memory that an event is for."""
        for one in self._single:
            yield one, one.instances.singleton()
        keys = None if self._find is None else keys_of(self._find, [event])
        for each in self._others:
            for key in list(each.instances) if keys is None else keys:
                instance = each.instances.get(key)
                if instance is not None:
                    yield each, instance

    def _all(self) -> None:
        """Without a key, an event is for all that are in memory."""
        for one in self._single:
            one.saved.touch((None,))
        for each in self._others:
            each.saved.touch(list(each.instances))
