"""An app's graph: its checks, and the keys of its streams.

Rules
- All mistakes of a graph are reported together, before anything runs.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, get_origin

import msgspec

from s4node.app.app import App
from s4node.app.in_order import InOrder
from s4node.app.pe_codec import ElementCodec, check_defaults
from s4node.app.plan.window_dispatch import time_problems, window_problems
from s4node.app.processing_element import unset_streams
from s4node.app.prototype import Prototype, shared_containers
from s4node.app.stream import OutputStream, Stream
from s4node.errors import GraphError
from s4node.events.routing import KeyRule, holds_keys, is_generic, may_be_key
from s4node.store_spec import StoreSpec


def check(app: App) -> None:
    """Raise one GraphError with every mistake in the app's graph."""
    problems = [problem for stream in app.streams.values() for problem in _problems(app, stream)]
    for prototype, element in app.prototypes.values():
        problems += [f"PE {prototype.name!r}: {each}" for each in unset_streams(element)]
        handles = prototype.on_event.declared or prototype.on_time or isinstance(element, InOrder)
        if not handles:
            problems.append(f"PE {prototype.name!r} has neither on_event nor on_time")
        problems += window_problems(app, prototype)
        problems += _ttl_problems(prototype)
        problems += [
            f"PE {prototype.name!r}: {name} {_NEVER_RUNS}, and send with stream.put(event)"
            for name in _generators(prototype.hooks())
        ]
    problems += [problem for spec in app.stores.values() for problem in _store_problems(spec)]
    _raise(app.name, problems)


_NEVER_RUNS = "contains yield, so calling it would not run it; remove the yield"


def _generators(hooks: Iterable[tuple[str, object]]) -> list[str]:
    """The names of hooks that are generator functions.

    Calling one runs none of its code, and the event would count as processed.
    """
    return [name for name, hook in hooks if is_generator(hook)]


def is_generator(function: object) -> bool:
    """Return True for a function with a yield in it, plain or ``async``."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def check_hooks(app: App) -> None:
    """Raise one GraphError with every hook of the app that would never run."""
    hooks = ("on_init", app.on_init), ("on_start", app.on_start), ("on_close", app.on_close)
    names = _generators(hooks)
    _raise(app.name, [f"{name} {_NEVER_RUNS}" for name in names])


def check_task(app: str, task: object, hooks: Iterable[str]) -> None:
    """Raise one GraphError with every mistake in a task's class.

    Mistakes are methods that would never run, and mutable class attributes that are not ClassVar.
    """
    names = _generators((name, getattr(task, name, None)) for name in hooks)
    send = "collector.send(stream, event)"
    what = type(task).__name__
    problems = [f"{name} of {what} {_NEVER_RUNS}, and send with {send}" for name in names]
    problems += [
        f"all tasks of a process would share {name!r} of {what}, a {type(value).__name__}; "
        f"make it in __init__, or annotate it as ClassVar if they are to share it"
        for name, (_, value) in shared_containers(type(task)).items()
        if getattr(task, name, None) is value
    ]
    _raise(app, problems)


def uncalled(app: App) -> Iterable[tuple[str, str, str]]:
    """PE, handler, and the missing call on the prototype without which the handler never runs.

    A timer that was set to 0 is off on purpose.
    """
    for prototype, _ in app.prototypes.values():
        if not prototype.triggers:
            for handler in dict.fromkeys(prototype.on_trigger.declared.values()):
                yield prototype.name, handler.__name__, "set_trigger"
        if prototype.on_time is not None and prototype.timer_interval is None:
            yield prototype.name, "on_time", "set_timer_interval"
        if prototype.on_window is not None and prototype.windows is None:
            yield prototype.name, "on_window", "set_window"


def _ttl_problems(prototype: Prototype) -> Iterable[str]:
    if not prototype.ttl:
        return
    where = f"PE {prototype.name!r} has set_ttl"
    if prototype.on_remove is not None:
        yield (
            f"{where} and on_remove, which would not be called for state that is only on disk; use "
            f"a timer (self.after) that removes the instance"
        )
    if prototype.cache_idle:
        yield f"{where} and set_pe_cache(idle_seconds=...); leave out the latter"
    if prototype.singleton:
        yield f"{where}, but is a singleton, which lives as long as its partition; leave it out"
    if prototype.windows is not None and not prototype.cls._of_key:
        yield (
            f"{where} and windows, with which its state ends anyway; leave it out, or annotate the "
            f"state of keys with OfKey"
        )


def _store_problems(spec: StoreSpec[Any, Any]) -> Iterable[str]:
    where = f"store {spec.name!r}"
    if spec.key not in (str, int, bytes, tuple) and get_origin(spec.key) is not tuple:
        yield f"{where} has keys {spec.key!r}; give str, int, bytes or tuple"
    if spec.ttl < 0:
        yield f"{where} has a ttl of {spec.ttl:g} s; give seconds, or 0 for ever"
    try:
        msgspec.msgpack.Decoder(spec.value)
    except (TypeError, ValueError, NameError) as error:
        yield f"{where} has values {spec.value!r}, which cannot be saved: {error}"


def check_saveable(app: App) -> None:
    problems = []
    for prototype, element in app.prototypes.values():
        try:
            ElementCodec(prototype.cls)
            check_defaults(prototype.cls, {n: getattr(element, n) for n in prototype.cls._state})
        except GraphError as error:
            problems.append(str(error))
    _raise(app.name, problems)


def refuse_stores(app: App) -> None:
    """Raise the GraphError of an app that declares stores and has no replayable input."""
    names = ", ".join(map(repr, app.stores))
    raise GraphError(
        f"app {app.name!r} has the stores {names} but no replayable input or "
        f"durable stream, so a crash would lose their contents; read from a log, leave "
        f"s4.stream.<stream>.grade = durable, or keep the state in attributes"
    )


def _raise(app: str, problems: list[str]) -> None:
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise GraphError(f"app {app!r} cannot run:\n{lines}")


def _problems(app: App, stream: Stream) -> Iterable[str]:
    where = f"stream {stream.name!r}"
    if not stream.targets and not isinstance(stream, OutputStream) and not app.has_tasks:
        yield f"{where} leads to no PE"
    if stream.parallelism > 1 and any(stream.name in s.in_order_of for s in app.streams.values()):
        yield (
            f"{where} has order='time' and a parallelism; its handlers run one after the other, so "
            f"leave out set_parallelism"
        )
    if stream.broadcast and stream.key is not None:
        yield f"{where} has a key and broadcast; choose one"
    for target in stream.targets:
        keyed_elsewhere = any(
            target in other.targets and other.key is not None for other in app.streams.values()
        )
        if stream.key is None and not target.singleton and not keyed_elsewhere:
            yield (
                f"{where} has no key, so {target.name!r} would never get an instance; "
                f"give the stream a key or call set_singleton() on the PE"
            )
    for name, count in Counter(kind.name for kind in stream.types).items():
        if count > 1:
            yield f"{where} has {count} event types named {name!r}; set event_name on one"
    if stream.time is not None and stream.time.field and not isinstance(stream, OutputStream):
        yield from time_problems(stream, stream.time.field)
    try:
        rule = rule_of(stream)
    except GraphError as error:
        yield f"{where}: {error}"
        return
    for kind in stream.types if rule else ():
        if issubclass(kind.cls, msgspec.Struct):
            fields = kind.cls.__struct_fields__
            for name in rule.attributes if rule else ():
                if name in fields and not may_be_key(kind.cls, name):
                    yield (
                        f"{where} is keyed by {name!r}, of which no value in {kind.name} is a key; "
                        f"give it a field that is a str, an int or bytes, or a function that "
                        f"returns one of those"
                    )
                if not hasattr(kind.cls, name):
                    yield (
                        f"{where} is keyed by {name!r}, which {kind.name} does not have; "
                        f"it has {', '.join(fields) or 'no fields'}"
                    )


def rule_of(stream: Stream) -> KeyRule | None:
    if stream.key is None:
        return None
    generic = is_generic([kind.cls for kind in stream.types])
    rule = KeyRule(stream.key, generic=generic)
    if holds_keys((kind.declaration for kind in stream.types), rule.attributes):
        return rule
    return KeyRule(stream.key, generic=generic, checked=True)


def finder_of(stream: Stream) -> Callable[[Any], Any]:
    rule = rule_of(stream)
    assert rule is not None
    return rule.finder()
