"""The state of PE instances as bytes, and how it survives changes of the class. Pure.

Rules
- The state is what the class declares: its annotated attributes with defaults, in order.
- A saved instance names the version of the class. Versions are numbered as they come, and saved
  with the state.
- A new attribute gets its default. One that is gone, or whose type does not take all values of the
  saved one, is refused by name, unless the class has ``migrate``, which gets the saved attributes
  and returns the new ones.
- Python does not check values against annotations, so values whose bytes say what they are (None,
  numbers and truth values) come back whatever is declared. Any other value of the wrong type is
  refused by name.
- A value whose declared type does not say what it holds (a plain dict) is refused when it is saved,
  if it would come back as another one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import get_annotations
from typing import Any, Protocol

import msgspec
from msgspec import inspect

from s4node.app.processing_element import ProcessingElement
from s4node.errors import GraphError, NotRestorable, NotSaveable, StateError, described, is_signal
from s4node.events.keepable import saver_of
from s4node.events.routing import compiled
from s4node.events.type_text import takes, type_text

Fields = tuple[tuple[str, str], ...]
"""The attributes of one version of a class, each with its type as text."""

_DAMAGED = "it is damaged, or of another class; go back to a copy that is sound"

_encode = msgspec.msgpack.Encoder().encode
_raw_list = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_anything = msgspec.msgpack.Decoder().decode
_scalar = msgspec.msgpack.Decoder(int | float | bool | None).decode


class Facts(Protocol):
    """The facts that a task keeps of itself."""

    def meta(self, name: str, /) -> Any:
        """A fact about the task; None if it was never set."""
        ...

    def set_meta(self, name: str, value: Any, /) -> None:
        """Save a fact with the next commit."""
        ...


class ElementCodec:
    """Saves and restores instances of one PE class.

    ``versions`` are those of existing state, the oldest first; the class's own is added if it is
    new. Raises GraphError if the class has state that cannot be saved, StateError if saved state
    does not fit it.
    """

    def __init__(self, cls: type[ProcessingElement], versions: Sequence[Fields] = ()) -> None:
        self._name = cls.__name__
        self._types = _types_of(cls)
        check_defaults(cls, cls._state)
        self.fields: Fields = tuple(
            (name, _type_text(cls, name, kind)) for name, kind in self._types.items()
        )
        self._marked = {
            name: type_text(inspect.type_info(kind), marked=True)
            for name, kind in self._types.items()
        }
        self._migrate: Callable[[dict[str, Any]], dict[str, Any]] | None = getattr(
            cls, "migrate", None
        )
        self.versions: tuple[Fields, ...] = tuple(versions)
        if self.fields not in self.versions:
            self.versions = (*self.versions, self.fields)
        self._version = self.versions.index(self.fields)
        self._savers = {name: saver_of(kind) for name, kind in self._types.items()}
        savers = {f"_save_{n}": each for n, each in enumerate(self._savers.values()) if each}
        values = [
            f"_save_{n}(i.{name})" if f"_save_{n}" in savers else f"i.{name}"
            for n, name in enumerate(self._types)
        ]
        row = ", ".join([str(self._version), *values])
        source = ["def encode(instances):", f"    return [_encode(({row},)) for i in instances]"]
        self._encode_all = compiled("encode", source, {"_encode": _encode, **savers})
        # a row's fields are named by their position, for an attribute may have any name
        places = {name: f"at_{place}" for place, name in enumerate(self._types)}
        given = [f"    i.{name} = row.{at}" for name, at in places.items()] or ["    pass"]
        self._give = compiled("give", ["def give(i, row):", *given], {})
        self._decoders = {
            name: msgspec.msgpack.Decoder(kind).decode for name, kind in self._types.items()
        }
        saved = msgspec.defstruct(
            "Row",
            [("version", int), *zip(places.values(), self._types.values(), strict=True)],
            array_like=True,
            gc=False,
        )
        self._row: Callable[[bytes], Any] = msgspec.msgpack.Decoder(saved).decode
        for fields in self.versions:
            if not self._migrate:
                self._check_fields(fields)

    def encode(self, instance: ProcessingElement) -> bytes:
        """The instance's state; raises NotSaveable for a value that cannot be saved."""
        try:
            return self._encode_all([instance])[0]  # type: ignore[no-any-return]
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise NotSaveable(self._name, instance.key, self._worst(instance), error) from error

    def _worst(self, instance: ProcessingElement) -> str:
        """The attribute that cannot be encoded; all of them if only their combination cannot."""
        for name, saver in self._savers.items():
            try:
                value = getattr(instance, name)
                _encode(value if saver is None else saver(value))
            except (TypeError, ValueError, OverflowError, RecursionError):
                return name
        return ", ".join(self._types)

    def encode_all(self, instances: list[Any]) -> list[bytes]:
        """The states of several instances; raises NotSaveable."""
        try:
            return self._encode_all(instances)  # type: ignore[no-any-return]
        except (TypeError, ValueError, OverflowError, RecursionError):
            return [self.encode(instance) for instance in instances]

    def restore(self, instance: ProcessingElement, data: bytes) -> None:
        try:
            row = self._row(data)
            if row.version == self._version:
                self._give(instance, row)
                return
        except msgspec.MsgspecError:
            pass  # it is of another version, of values that are not as declared, or damaged
        for name, value in self._older(instance.key, data).items():
            setattr(instance, name, value)

    def _older(self, key: Any, data: bytes) -> dict[str, Any]:
        try:
            version, *values = _raw_list(data)
            fields = self.versions[_anything(version)]
            saved = dict(zip((name for name, _ in fields), values, strict=True))
        except (msgspec.MsgspecError, ValueError, IndexError, TypeError) as error:
            raise self._unread(key, str(error)) from error
        if self._migrate is None or fields == self.fields:
            return {name: self._value(key, name, raw) for name, raw in saved.items()}
        try:
            plain = {name: _anything(raw) for name, raw in saved.items()}
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise self._unread(key, str(error)) from error
        return self._migrated(key, self._migrate, plain)

    def _migrated(
        self, key: Any, migrate: Callable[[dict[str, Any]], Any], saved: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            migrated = migrate(saved)
        except BaseException as error:
            if is_signal(error):
                raise
            raise self._unmigrated(key, f"raised {described(error)}") from error
        if not isinstance(migrated, Mapping):
            raise self._unmigrated(key, f"returned {migrated!r} instead of a dict of attributes")
        found: dict[str, Any] = {}
        for name, value in migrated.items():
            if name not in self._types:
                returned = f"returned an attribute {name!r}, which it does not have"
                raise self._unmigrated(key, returned)
            try:
                found[name] = msgspec.convert(value, self._types[name])
            except msgspec.ValidationError as error:
                returned = f"returned an attribute {name!r} that is not of its type: {error}"
                raise self._unmigrated(key, returned) from error
        return found

    def _unmigrated(self, key: Any, what: str) -> NotRestorable:
        return NotRestorable(
            self._name, key, f"migrate of {self._name} {key!r} {what}", "fix migrate"
        )

    def _value(self, key: Any, name: str, raw: Any) -> Any:
        try:
            return self._decoders[name](raw)
        except msgspec.MsgspecError as error:
            with suppress(msgspec.MsgspecError):
                return _scalar(raw)
            declared = dict(self.fields)[name]
            raise self._unread(
                key,
                f"attribute {name!r} is declared {declared}, but held something else ({error})",
                "declare its real type, and convert saved values in the class's migrate(saved)",
            ) from error

    def _unread(self, key: Any, why: str, fix: str = _DAMAGED) -> NotRestorable:
        fact = f"saved state of {self._name} {key!r} cannot be read: {why}"
        return NotRestorable(self._name, key, fact, fix)

    def _check_fields(self, saved: Fields) -> None:
        own = dict(self.fields)
        for name, kind in saved:
            if name not in own:
                reason = f"saved state has an attribute {name}: {kind}, which it no longer has"
            elif own[name] != kind and not takes(self._marked[name], kind, marked=True):
                reason = f"attribute {name} is {own[name]}, but was saved as {kind}"
            else:
                continue
            raise StateError(
                f"PE class {self._name}: {reason}; keep it, or give the class a static method "
                f"migrate(saved: dict) -> dict"
            )


def codec_in(state: Facts, name: str, cls: type[ProcessingElement]) -> ElementCodec:
    """The codec of the prototype ``name``; ``state`` has the versions of its class."""
    fact = f"versions of {name}"
    versions = [tuple(map(tuple, fields)) for fields in state.meta(fact) or ()]
    codec = ElementCodec(cls, versions)
    if len(codec.versions) != len(versions):
        state.set_meta(fact, codec.versions)
    return codec


def _types_of(cls: type[ProcessingElement]) -> dict[str, Any]:
    """The attributes of the state with their types; a changed default keeps the type."""
    types: dict[str, Any] = dict.fromkeys(cls._state, Any)
    for base in reversed(cls.__mro__):
        module = sys.modules.get(base.__module__)
        for name, kind in get_annotations(base).items() if base is not ProcessingElement else ():
            if name in types:
                types[name] = _resolved(cls, name, kind, vars(module) if module else {})
    return types


def _resolved(cls: type, name: str, kind: Any, known: dict[str, Any]) -> Any:
    """The type of one attribute, whose annotation may be its text."""
    if not isinstance(kind, str):
        return kind
    try:
        return eval(kind, known, {cls.__name__: cls, **vars(cls)})  # noqa: S307  # the author's code
    except Exception as error:
        raise GraphError(
            f"PE class {cls.__name__}: the type {kind!r} of attribute {name} cannot be resolved "
            f"({described(error)}); define or import it at the top of the module"
        ) from error


def check_defaults(cls: type[ProcessingElement], defaults: Mapping[str, Any]) -> None:
    """Refuse a default that would be restored as another type, and so fail only after a restart.

    ``defaults`` are those of the class, or of its prototype.
    """
    for name, default in defaults.items():
        for plain in (dict, list, set):
            if isinstance(default, plain) and type(default) is not plain:
                raise GraphError(
                    f"PE class {cls.__name__}: attribute {name} is a {type(default).__name__}, but "
                    f"would be restored as a plain {plain.__name__}; give it a {plain.__name__} as "
                    f"its default"
                )


def _type_text(cls: type[ProcessingElement], name: str, kind: Any) -> str:
    try:
        msgspec.msgpack.Decoder(kind)
        return type_text(inspect.type_info(kind))
    except (TypeError, ValueError, NameError) as error:
        raise GraphError(
            f"PE class {cls.__name__}: attribute {name} is {kind!r}, which cannot be saved: "
            f"{error}; use numbers, text, lists, dicts, sets, dataclasses, msgspec structs"
        ) from error
