"""The names of s4node in the pickles of packaged apps: the one module that never moves.

Rules
- A pickle refers to a class of s4node by ``find(NAME)``, never by the module that defines it.
- The functions here rebuild what :mod:`s4node.deploy.pickling` has taken apart. Old packages call
  them: names and parameters may be added, but none may change its meaning.
- A package of an earlier release is in ``tests/golden`` and has to load.
"""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any, ClassVar, NamedTuple

import msgspec

import s4node
from s4node.app.app import App
from s4node.app.processing_element import ElementType, ProcessingElement
from s4node.app.prototype import Prototype, Trigger
from s4node.app.stream import Stream, StreamTime, Target
from s4node.errors import PackageError
from s4node.pes.aggregates import Aggregate, AggregatesType, count_nan, in_64_bits
from s4node.store_spec import StoreSpec
from s4node.version import __version__

_INNER = {
    "Aggregate": Aggregate,
    "AggregatesType": AggregatesType,
    "ElementType": ElementType,
    "Prototype": Prototype,
    "StoreSpec": StoreSpec,
    "StreamTime": StreamTime,
    "count_nan": count_nan,
    "in_64_bits": in_64_bits,
}  # names that are not public


def find(name: str) -> Any:
    """The class of s4node that is called ``name``; raises PackageError."""
    try:
        return _INNER.get(name) or getattr(s4node, name)
    except AttributeError:
        raise PackageError(
            f"the package was made with another s4node: version {__version__}, which runs here, "
            f"has no {name}; package the app again with the s4node of the nodes"
        ) from None


def name_of(found: Any) -> str:
    """The name by which ``find`` finds an object; empty if it does not."""
    name: str = found.__name__
    if not (found.__module__ or "").startswith("s4node."):
        return ""
    known = name in _INNER or name in s4node.__all__
    return name if known and find(name) is found else ""


def new(cls: Any) -> Any:
    """An empty object, which ``set_app`` fills."""
    return cls.__new__(cls)


class PrototypeState(NamedTuple):
    prototype: Prototype
    cls: type[ProcessingElement]
    name: str
    options: dict[str, Any]
    triggers: list[tuple[type, int, float]]
    values: dict[str, Any]


class StreamState(NamedTuple):
    stream: Stream
    name: str
    position: int
    targets: tuple[Target, ...]
    named: dict[str, Any]
    rest: dict[str, Any]


def set_app(
    app: App, state: tuple[dict[str, Any], list[PrototypeState], list[StreamState]]
) -> None:
    """Fill an app, and the prototypes and streams that were made empty."""
    others, prototypes, streams = state
    vars(app).update(others, prototypes={}, streams={})
    for prototype, cls, name, options, triggers, values in prototypes:
        Prototype.__init__(prototype, cls, app, name)
        vars(prototype).update(options, triggers=[Trigger(*trigger) for trigger in triggers])
        element = prototype._element_cls.__new__(prototype._element_cls)
        element.key = None
        if prototype.windows is not None:
            prototype.give_windows(prototype.windows)
        for attribute, value in values.items():
            setattr(element, attribute, value)
        app.prototypes[name] = prototype, element
    for stream, name, index, targets, named, rest in streams:
        type(stream).__init__(stream, name, index, targets, **named)
        vars(stream).update(rest)
        app.streams[name] = stream


def element_class(
    metaclass: Any, name: str, bases: tuple[type, ...], module: str, slots: tuple[str, ...]
) -> Any:
    """A PE class with its slots, to which cloudpickle adds the members."""
    return metaclass(name, bases, {"__module__": module, "__slots__": slots})


def set_annotated_class(cls: type, state: tuple[Any, Any, dict[str, Any]]) -> None:
    """Fill a class as cloudpickle does, and give its module the names in its annotations."""
    set_state, inner, names = state
    set_state(cls, inner)
    module = sys.modules.setdefault(cls.__module__, ModuleType(cls.__module__))
    vars(module).update(names)


def set_function(function: FunctionType, state: tuple[Any, Any, dict[str, Any]]) -> None:
    """Fill a function as cloudpickle does, and add the names that only annotations use."""
    set_state, inner, annotated = state
    set_state(function, inner)
    function.__globals__.update(annotated)


def struct(
    name: str,
    bases: tuple[type, ...],
    names: dict[str, Any],
    fields: list[tuple[str, Any, dict[str, Any]]],
    class_variables: list[str],
    options: dict[str, Any],
) -> type:
    """An event type: ``fields`` are (name, type, options of ``msgspec.field``)."""
    annotations = dict.fromkeys(class_variables, ClassVar[Any])
    annotations |= {field: kind for field, kind, _ in fields}
    body = {**names, "__annotations__": annotations}
    body |= {field: msgspec.field(**given) for field, _, given in fields if given}
    metaclass: Any = type(msgspec.Struct)
    made: type = metaclass(name, bases, body, **options)
    return made


def set_class(cls: type, values: dict[str, Any]) -> None:
    """Set an event type's methods and other values."""
    for name, value in values.items():
        setattr(cls, name, value)
