"""The PEs of a task whose inputs can be read again: their instances outlive the process. Pure.

Rules
- Before a slice the keys of its events are found in one pass. Those that are not in memory are read
  in one call, and made without ``on_create``; all of them are part of the next commit.
- What a trigger has counted for a key is kept with the key's instance.
- The saved state says by which version of the class it was saved; see pe/codec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from s4node import graph
from s4node.app import App
from s4node.errors import KeyFinderError, StateError
from s4node.keys import check_key
from s4node.pe.codec import ElementCodec
from s4node.pe.element import ProcessingElement
from s4node.pe.instances import Instances, Keeper
from s4node.stores import StoreSpec
from s4node.stream import OutputStream, Stream

_encode = msgspec.msgpack.Encoder().encode


class _Counted(msgspec.Struct):
    """A row with what triggers have counted; one without is an array."""

    state: bytes
    counts: list[tuple[float, float] | None]


_COUNTED = 0x82  # how such a row begins: a map of two
_decode = msgspec.msgpack.Decoder(_Counted).decode


class Saved(Keeper, Protocol):
    """The saved instances of one prototype."""

    def fresh(self, keys: set[Any], /) -> set[Any]:
        """Those keys that are not part of the next commit yet."""
        ...

    def unknown(self, keys: set[Any], /) -> set[Any]:
        """Those keys whose state may have to be found."""
        ...

    def find(self, keys: Iterable[Any]) -> Mapping[Any, bytes]:
        """The saved states of those keys that have one."""
        ...

    def know(self, keys: set[Any], /) -> None:
        """These have been found."""
        ...


class State(Protocol):
    """What a task keeps."""

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
        fact = f"versions of {name}"
        versions = [tuple(map(tuple, fields)) for fields in state.meta(fact) or ()]
        self._codec = ElementCodec(instances.prototype.cls, versions)
        if len(self._codec.versions) != len(versions):
            state.set_meta(fact, self._codec.versions)
        self.saved = state.saved(name, instances, self)
        instances.keeper = self.saved

    def encode(self, instance: ProcessingElement) -> bytes:
        """An instance as it is saved."""
        data = self._codec.encode(instance)
        if self._trigger is None:
            return data
        return _encode(_Counted(data, self._trigger.counts(instance.key)))

    def restore(self, instance: ProcessingElement, data: bytes) -> None:
        """Give an instance the state that was saved."""
        if data[0] == _COUNTED:
            try:
                counted = _decode(data)
            except msgspec.MsgspecError as error:
                name = type(instance).__name__
                raise StateError(f"saved state of {name} cannot be read: {error}") from error
            data = counted.state
            if self._trigger is not None:
                self._trigger.resume(instance.key, counted.counts)
        self._codec.restore(instance, data)

    def prepare(self, keys: set[Any]) -> None:
        """Have the instances of these keys in memory that were saved; all are about to change."""
        keys = self.saved.fresh(keys)
        if not keys:
            return
        missing = self.saved.unknown(keys)
        if missing:
            for key in list(missing):
                try:
                    check_key(key)
                except KeyFinderError:  # the dispatch will say so
                    missing.discard(key)
                    keys.discard(key)
            home = self.instances
            for key, data in self.saved.find(missing).items():
                instance = home.prototype.make(key, home)
                self.restore(instance, data)
                home[key] = instance
            self.saved.know(missing)
        self.saved.touch(keys)


class KeptElements:
    """Keeps the instances of an app's PEs in ``state``."""

    def __init__(
        self,
        app: App,
        instances: Mapping[str, Instances],
        triggers: Mapping[str, graph.TriggerState],
        state: State,
    ) -> None:
        kept = {
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
        self._before = {
            stream.name: _Before(stream, [kept[target.name] for target in stream.targets])
            for stream in app.streams.values()
            if not isinstance(stream, OutputStream)
        }

    def before(self, stream: str, events: Iterable[Any]) -> None:
        """These events of a stream are about to be processed."""
        self._before[stream](events)


class _Before:
    """What is done before events of one stream."""

    def __init__(self, stream: Stream, targets: list[_Prototype]) -> None:
        single = [each for each in targets if each.instances.prototype.singleton]
        others = [each for each in targets if not each.instances.prototype.singleton]
        keyed = stream.key is not None and bool(others)
        self._find: Callable[[Any], Any] | None = graph.finder_of(stream) if keyed else None
        self._single = single
        self._others = others

    def __call__(self, events: Iterable[Any]) -> None:
        for one in self._single:
            one.saved.touch({None})
        if self._find is None:
            for each in self._others:  # without a key, an event is for all that are in memory
                each.saved.touch(set(each.instances))
            return
        try:
            keys = set(map(self._find, events))
        except Exception:
            keys = self._found(events)
        for each in self._others:
            each.prepare(keys)

    def _found(self, events: Iterable[Any]) -> set[Any]:
        """The keys of those events that have one; the dispatch will say what is wrong."""
        assert self._find is not None
        keys = set()
        for event in events:
            with suppress(Exception):
                keys.add(self._find(event))
        return keys
