"""Pickling an app by value, with everything that its file defines, for another process.

Rules
- What the app's file defines (classes, functions, values) is pickled by value. What it imports is
  pickled by name, and has to be importable where the app is loaded.
- Names of s4node refer to :mod:`s4node.packaged`, which never moves, so that a package still loads
  after other modules have moved.
- Annotations that are texts may name things that nothing else in the pickle refers to. So a class
  is pickled with the names in its annotations, and a module of its name has them where it is
  loaded.
- That module has the classes and functions themselves, too, so that the app can pickle them.
- Code keeps the name of its file, which some releases of cloudpickle drop: tracebacks need it.
- Prototypes, streams and event types hold compiled code and decoders. Their declarations are
  pickled, and they are compiled again.
- Apps, streams and PEs refer to each other in cycles, also through names in handlers. So streams
  and prototypes are pickled as empty objects, which the app fills last.
"""

from __future__ import annotations

import inspect
import io
import pickle
import sys
from collections.abc import Iterable, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, ClassVar, get_origin

import cloudpickle
import msgspec

from s4node import packaged
from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.prototype import Prototype
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
_NO_FILE = "<dynamic-code>"  # what cloudpickle writes instead of a file, from 3.1.3 on
_OPTIONS = ("singleton", "timer_interval", "cache_size", "cache_idle", "ttl", "windows")


def dumps(found: object, module: ModuleType) -> bytes:
    """Pickle an App object or class, and what ``module`` defines, by value; raises PackageError."""
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
            f"{module.__file__} cannot be packaged: {error}; create such values in on_init instead "
            f"of at the top of the file, or deploy a package.module"
        ) from error
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    return out.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, out: io.BytesIO, found: object, module: str) -> None:
        super().__init__(out)
        self._module = module
        self._app = found if isinstance(found, App) else None
        self._code_files: dict[str, str] = {}

    def reducer_override(self, obj: Any) -> Any:
        """How to rebuild ``obj``; NotImplemented if pickle knows by itself."""
        if isinstance(obj, type | FunctionType) and (name := packaged.name_of(obj)):
            return packaged.find, (name,)
        if isinstance(obj, type):
            if obj.__module__ != self._module:
                return super().reducer_override(obj)
            if issubclass(obj, msgspec.Struct):
                return _in_module(obj, _reduced_struct(obj), {})
            reduced = super().reducer_override(obj)
            if issubclass(obj, ProcessingElement):
                reduced = _reduced_element_class(obj, reduced)
            annotations = inspect.get_annotations(obj).values()
            return _in_module(obj, reduced, _names_in_texts(annotations, _module_of(obj)))
        if isinstance(obj, App) and obj is self._app:
            return packaged.new, (type(obj),), _state_of(obj), None, None, packaged.set_app
        if isinstance(obj, Prototype | Stream):
            return self._reduced_part(obj)
        if isinstance(obj, ProcessingElement):
            raise pickle.PicklingError(f"a handler refers to the PE prototype {obj!r}")
        if isinstance(obj, FunctionType):
            return _reduced_function(obj, super().reducer_override(obj))
        if isinstance(obj, CodeType):
            return self._reduced_code(obj)
        return super().reducer_override(obj)

    def _reduced_code(self, code: CodeType) -> Any:
        """As cloudpickle does, with the file's name, as one text for all code."""
        make, arguments = self.dispatch_table[CodeType](code)
        file = self._code_files.setdefault(code.co_filename, code.co_filename)
        return make, tuple(file if each == _NO_FILE else each for each in arguments)

    def _reduced_part(self, part: Prototype | Stream) -> Any:
        """The empty object: the app brings its contents, once all objects exist."""
        app = self._app
        known: list[object] = []
        if app is not None:
            known = [*app.streams.values(), *(p for p, _ in app.prototypes.values())]
        if not any(part is each for each in known):
            raise pickle.PicklingError(f"{part!r} belongs to another app")
        return packaged.new, (part.__class__,)


# -- apps, prototypes, streams --------------------------------------------------------------------


_STREAM_MADE = {
    "_accepts", "_checks", "_copiers", "_declared", "_index", "_types", "broadcast", "carrier",
    "key", "name", "put", "targets",
}  # fmt: skip


def _state_of(app: App) -> Any:
    prototypes = []
    for prototype, element in app.prototypes.values():
        values = {name: getattr(element, name) for name in prototype.cls._state} | vars(element)
        options = {name: getattr(prototype, name) for name in _OPTIONS}
        triggers = [(t.event_type, t.events, t.seconds) for t in prototype.triggers]
        cls = prototype.cls.__mro__[1]  # the author's class, below the one bound to the app
        prototypes.append(
            packaged.PrototypeState(prototype, cls, prototype.name, options, triggers, values)
        )
    streams = []
    for stream in app.streams.values():
        named = {"key": stream.key, "types": stream._declared, "broadcast": stream.broadcast}
        rest = {name: value for name, value in vars(stream).items() if name not in _STREAM_MADE}
        streams.append(
            packaged.StreamState(stream, stream.name, stream._index, stream.targets, named, rest)
        )
    others = {n: v for n, v in vars(app).items() if n not in ("streams", "prototypes", "metrics")}
    return others, prototypes, streams


def _reduced_element_class(cls: type[ProcessingElement], reduced: Any) -> Any:
    """As cloudpickle does, but with the slots, which cloudpickle drops."""
    _, _, state, _, _, set_state = reduced
    return (
        packaged.element_class,
        (type(cls), cls.__name__, cls.__bases__, cls.__module__, cls.__dict__["__slots__"]),
        state,
        None,
        None,
        set_state,
    )


def _in_module(found: Any, reduced: Any, names: dict[str, Any]) -> Any:
    """As ``reduced``, with what its module has where it is loaded: ``names``, and itself."""
    if not isinstance(reduced, tuple) or len(reduced) < 6:  # by name
        return reduced
    name = found.__name__
    if _module_of(found).get(name) is found:
        names = {**names, name: found}
    if not names:
        return reduced
    make, arguments, state, *_, set_state = reduced
    return make, arguments, (set_state, state, names), None, None, packaged.set_annotated_class


def _module_of(found: Any) -> dict[str, Any]:
    module = sys.modules.get(found.__module__)
    return {} if module is None else vars(module)


def _names_in_texts(annotations: Iterable[Any], known: Mapping[str, Any]) -> dict[str, Any]:
    texts = [kind for kind in annotations if isinstance(kind, str)]
    return {name: known[name] for text in texts for name in _names_in(text) if name in known}


# -- functions ------------------------------------------------------------------------------------


def _reduced_function(function: FunctionType, reduced: Any) -> Any:
    """As cloudpickle does, with the values of names in the function's annotations."""
    if not isinstance(reduced, tuple) or len(reduced) < 6:  # by name
        return reduced
    annotated = _names_in_texts(function.__annotations__.values(), function.__globals__)
    make, arguments, state, *_, set_state = reduced
    state = set_state, state, annotated
    return _in_module(function, (make, arguments, state, None, None, packaged.set_function), {})


def _names_in(annotation: str) -> tuple[str, ...]:
    try:
        return compile(annotation, "<annotation>", "eval").co_names
    except SyntaxError:
        return ()


# -- event types ----------------------------------------------------------------------------------


def _reduced_struct(cls: type[msgspec.Struct]) -> Any:
    own = inspect.get_annotations(cls)
    infos = {info.name: info for info in msgspec.structs.fields(cls)}
    fields = []
    for name in own:
        if name in infos:
            info = infos[name]
            given = {"default": info.default, "default_factory": info.default_factory}
            given = {name: value for name, value in given.items() if value is not msgspec.NODEFAULT}
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
    return packaged.struct, plain, rest, None, None, packaged.set_class


def _is_class_variable(kind: Any) -> bool:
    return "ClassVar" in kind if isinstance(kind, str) else get_origin(kind) is ClassVar
