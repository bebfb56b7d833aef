"""Pickles an app with everything that its file defines, so that another process has it by value.

Rules
- What the app's file defines (classes, functions, values) goes by value; what it imports goes by
  name, and must be importable where it is loaded.
- Prototypes, streams and event types hold compiled code and decoders: what goes is how they were
  declared, and they are made anew.
- Apps, streams and PEs refer to each other in circles, through the names that handlers use too. So
  streams and prototypes go as empty objects, and the app fills them last, when all is there.
"""

from __future__ import annotations

import inspect
import io
import pickle
from types import FunctionType, ModuleType
from typing import Any, ClassVar, NamedTuple, get_origin

import cloudpickle
import msgspec

from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.prototype import Prototype, Trigger
from s4node.app.stream import Stream
from s4node.errors import PackageError

_STRUCT_OPTIONS = (
    "frozen", "eq", "order", "array_like", "gc", "repr_omit_defaults", "omit_defaults",
    "forbid_unknown_fields", "weakref", "dict", "cache_hash", "tag", "tag_field",
)  # fmt: skip
_STRUCT_MACHINERY = {
    "__annotations__", "__dict__", "__doc__", "__match_args__", "__module__", "__qualname__",
    "__slots__", "__weakref__", "__annotate_func__", "__annotations_cache__",
    "__static_attributes__", "__firstlineno__",
}  # fmt: skip
_OPTIONS = ("singleton", "timer_interval", "cache_size", "cache_idle")


def dumps(found: object, module: ModuleType) -> bytes:
    """An App object or class, with what ``module`` defines by value; raises PackageError."""
    out = io.BytesIO()
    cloudpickle.register_pickle_by_value(module)
    try:
        _Pickler(out, found, module.__name__).dump(found)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error.__cause__, RecursionError):
            raise PackageError(
                f"{module.__file__} cannot be packaged: an event type refers to itself; move it to "
                f"a file of its own beside this one"
            ) from error
        raise PackageError(
            f"{module.__file__} cannot be packaged: {error}; make such values in on_init rather "
            f"than at the top of the file, or deploy a package.module"
        ) from error
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    return out.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, out: io.BytesIO, found: object, module: str) -> None:
        super().__init__(out)
        self._module = module
        self._app = found if isinstance(found, App) else None

    def reducer_override(self, obj: Any) -> Any:
        """How to make ``obj`` again; NotImplemented where pickle knows by itself."""
        if isinstance(obj, type):
            if issubclass(obj, msgspec.Struct) and obj.__module__ == self._module:
                return _reduced_struct(obj)
            if issubclass(obj, ProcessingElement) and obj.__module__ == self._module:
                return _reduced_element_class(obj, super().reducer_override(obj))
        elif isinstance(obj, App) and obj is self._app:
            return _new, (type(obj),), _state_of(obj), None, None, _set_app
        elif isinstance(obj, Prototype | Stream):
            return self._reduced_part(obj)
        elif isinstance(obj, ProcessingElement):
            raise pickle.PicklingError(f"a handler refers to the PE prototype {obj!r}")
        elif isinstance(obj, FunctionType):
            return _reduced_function(obj, super().reducer_override(obj))
        return super().reducer_override(obj)

    def _reduced_part(self, part: Prototype | Stream) -> Any:
        """Only the object: what is in it comes with the app, when all objects are there."""
        app = self._app
        known: list[object] = []
        if app is not None:
            known = [*app.streams.values(), *(p for p, _ in app.prototypes.values())]
        if not any(part is each for each in known):
            raise pickle.PicklingError(f"{part!r} belongs to another app")
        return _new, (part.__class__,)


def _new(cls: Any) -> Any:
    return cls.__new__(cls)


# -- apps, prototypes, streams --------------------------------------------------------------------


class _PrototypeState(NamedTuple):
    prototype: Prototype
    cls: type[ProcessingElement]
    name: str
    options: dict[str, Any]
    triggers: list[tuple[type, int, float]]
    values: dict[str, Any]


class _StreamState(NamedTuple):
    stream: Stream
    name: str
    position: int
    targets: tuple[Prototype, ...]
    named: dict[str, Any]
    rest: dict[str, Any]


_STREAM_MADE = {
    "_accepts", "_declared", "_index", "_types", "broadcast", "carrier", "key", "name", "targets",
}  # fmt: skip


def _state_of(app: App) -> Any:
    prototypes = []
    for prototype, element in app.prototypes.values():
        values = {name: getattr(element, name) for name in prototype.cls._state} | vars(element)
        options = {name: getattr(prototype, name) for name in _OPTIONS}
        triggers = [(t.event_type, t.events, t.seconds) for t in prototype.triggers]
        cls = prototype.cls.__mro__[1]  # the author's, below the one bound to the app
        prototypes.append(
            _PrototypeState(prototype, cls, prototype.name, options, triggers, values)
        )
    streams = []
    for stream in app.streams.values():
        named = {"key": stream.key, "types": stream._declared, "broadcast": stream.broadcast}
        rest = {name: value for name, value in vars(stream).items() if name not in _STREAM_MADE}
        streams.append(
            _StreamState(stream, stream.name, stream._index, stream.targets, named, rest)
        )
    others = {n: v for n, v in vars(app).items() if n not in ("streams", "prototypes")}
    return others, prototypes, streams


def _set_app(
    app: App, state: tuple[dict[str, Any], list[_PrototypeState], list[_StreamState]]
) -> None:
    others, prototypes, streams = state
    vars(app).update(others, prototypes={}, streams={})
    for prototype, cls, name, options, triggers, values in prototypes:
        Prototype.__init__(prototype, cls, app, name)
        vars(prototype).update(options, triggers=[Trigger(*trigger) for trigger in triggers])
        element = prototype._element_cls.__new__(prototype._element_cls)
        element.key = None
        for attribute, value in values.items():
            setattr(element, attribute, value)
        app.prototypes[name] = prototype, element
    for stream, name, index, targets, named, rest in streams:
        type(stream).__init__(stream, name, index, targets, **named)
        vars(stream).update(rest)
        app.streams[name] = stream


def _reduced_element_class(cls: type[ProcessingElement], reduced: Any) -> Any:
    """As cloudpickle does it, and with the slots, which it leaves out."""
    _, _, state, _, _, set_state = reduced
    return (
        _element_class,
        (type(cls), cls.__name__, cls.__bases__, cls.__module__, cls.__dict__["__slots__"]),
        state,
        None,
        None,
        set_state,
    )


def _element_class(
    metaclass: Any, name: str, bases: tuple[type, ...], module: str, slots: tuple[str, ...]
) -> Any:
    return metaclass(name, bases, {"__module__": module, "__slots__": slots})


# -- functions ------------------------------------------------------------------------------------


def _reduced_function(function: FunctionType, reduced: Any) -> Any:
    """As cloudpickle does it, and with the names that only annotations use."""
    if not isinstance(reduced, tuple) or len(reduced) < 6:  # by name
        return reduced
    texts = [kind for kind in function.__annotations__.values() if isinstance(kind, str)]
    names = {name for text in texts for name in _names_in(text)}
    known = function.__globals__
    annotated = {name: known[name] for name in names if name in known}
    make, arguments, state, *_, set_state = reduced
    return make, arguments, (set_state, state, annotated), None, None, _set_function


def _names_in(annotation: str) -> tuple[str, ...]:
    try:
        return compile(annotation, "<annotation>", "eval").co_names
    except SyntaxError:
        return ()


def _set_function(function: FunctionType, state: tuple[Any, Any, dict[str, Any]]) -> None:
    set_state, inner, annotated = state
    set_state(function, inner)
    function.__globals__.update(annotated)


# -- event types ----------------------------------------------------------------------------------


def _reduced_struct(cls: type[msgspec.Struct]) -> Any:
    own = inspect.get_annotations(cls)
    infos = {info.name: info for info in msgspec.structs.fields(cls)}
    fields = []
    for name in own:
        if name in infos:
            info = infos[name]
            given = {"default": info.default, "default_factory": info.default_factory}
            given = {word: value for word, value in given.items() if value is not msgspec.NODEFAULT}
            fields.append((name, info.type, given))
    parameters = inspect.signature(cls).parameters
    by_name = [parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name, _, _ in fields]
    options = {name: getattr(cls.__struct_config__, name) for name in _STRUCT_OPTIONS}
    options["kw_only"] = bool(by_name) and all(by_name)
    options["rename"] = {
        name: infos[name].encode_name for name, _, _ in fields if infos[name].encode_name != name
    }
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    rest = {
        name: value
        for name, value in vars(cls).items()
        if name not in own or name not in infos
        if name not in _STRUCT_MACHINERY and not name.startswith("__struct_")
    }
    class_variables = [n for n, kind in own.items() if _is_class_variable(kind)]
    plain = (cls.__name__, cls.__bases__, names, fields, class_variables, options)
    return _struct, plain, rest, None, None, _set_class


def _is_class_variable(kind: Any) -> bool:
    return "ClassVar" in kind if isinstance(kind, str) else get_origin(kind) is ClassVar


def _struct(
    name: str,
    bases: tuple[type, ...],
    names: dict[str, Any],
    fields: list[tuple[str, Any, dict[str, Any]]],
    class_variables: list[str],
    options: dict[str, Any],
) -> type:
    annotations = dict.fromkeys(class_variables, ClassVar[Any])
    annotations |= {field: kind for field, kind, _ in fields}
    body = {**names, "__annotations__": annotations}
    body |= {field: msgspec.field(**given) for field, _, given in fields if given}
    metaclass: Any = type(msgspec.Struct)
    made: type = metaclass(name, bases, body, **options)
    return made


def _set_class(cls: type, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(cls, name, value)
