"""The stages in which an app's PEs run over history, and what of an app does not fit. Pure.

Rules
- A stage has the PEs of one level: all events on their streams come from lower levels. So all
  events of a key, from all streams, are there before its PE gets the first one.
- A part of the app that would make the state differ from a node's is refused before anything runs.
  A part that the run skips (``on_time``, triggers by seconds, expiry) is reported; nodes do it
  later.
"""

from __future__ import annotations

import dis
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from types import FunctionType
from typing import Any, NamedTuple

from s4node.app.app import App
from s4node.app.in_order import InOrder
from s4node.app.plan import cycles
from s4node.app.plan.dataflow import edges, puts, reached
from s4node.app.processing_element import ProcessingElement, class_variables
from s4node.app.prototype import Prototype, can_change
from s4node.app.stream import InputStream, OutputStream, Stream

_CHANGES = {"append", "add", "update", "pop", "popitem", "setdefault", "extend", "insert", "remove",
            "discard", "clear", "appendleft", "popleft"}  # fmt: skip
_STORES = {"STORE_SUBSCR", "DELETE_SUBSCR"}
_OF_A_NODE = {
    "partition": "its partition",
    "created_ms": "created_ms(), the time of a frame",
    "event_id": "event_id(), the place of an event in a frame",
}


class Stage(NamedTuple):
    """PEs that run together, and the streams that lead to them. ``single`` is true for singletons,
    which run in one task."""

    level: int
    pes: tuple[str, ...]
    streams: tuple[str, ...]
    single: bool


def stages(app: App) -> list[Stage]:
    """The stages of an app without cycles, in order."""
    put = puts(app)
    levels: dict[str, int] = {}

    def level(name: str) -> int:
        if name not in levels:
            leading = {s.name for s in fed(app) if name in [t.name for t in s.targets]}
            before = [pe for pe, streams in put.items() if streams & leading]
            levels[name] = 1 + max(map(level, before), default=-1)
        return levels[name]

    found: dict[tuple[int, bool], list[str]] = {}
    of_keys = {p.own.name for p, _ in app.prototypes.values() if p.own is not None}
    for name, (prototype, _) in app.prototypes.items():
        if name in of_keys:
            continue  # it is where its windows are
        mine = [name] if prototype.own is None else [name, prototype.own.name]
        found.setdefault((level(name), prototype.singleton), []).extend(mine)
    return [
        Stage(
            number,
            tuple(pes),
            tuple(s.name for s in fed(app) if {t.name for t in s.targets} & set(pes)),
            single,
        )
        for (number, single), pes in sorted(found.items())
    ]


def fed(app: App) -> list[Stream]:
    return [s for s in app.streams.values() if not isinstance(s, OutputStream)]


def refused(app: App, tasks: int, histories: Collection[str]) -> list[str]:
    """The reason why the app cannot run over histories of these input streams; or empty."""
    return list(_refused(app, tasks, histories))


def _refused(app: App, tasks: int, histories: Collection[str]) -> Iterator[str]:
    if app.has_tasks:
        yield "its streams lead to tasks (TaskApp); only PEs have keys to sort the history by"
        return
    for cycle in cycles.cycles(edges(app)):
        yield f"the streams {cycles.describe(cycle)} feed themselves, so there is no last level"
    for name in histories:
        stream = app.streams.get(name)
        if not isinstance(stream, InputStream):
            known = [s.name for s in app.streams.values() if isinstance(s, InputStream)]
            yield f"it has no input stream {name!r}; it has {', '.join(known) or 'none'}"
        elif len(stream.types) != 1:
            kinds = ", ".join(kind.name for kind in stream.types)
            yield f"stream {name!r} takes {kinds}, and a DataFrame has one type of rows"
    for stream in fed(app):
        if stream.broadcast:
            yield f"stream {stream.name!r} is broadcast: each event would go to all tasks"
        for target in stream.targets:
            if target.singleton and tasks > 1:
                yield (
                    f"PE {target.name!r} is a singleton in each of {tasks} tasks, and which gets "
                    f"an event depends on where it came in; give the app one partition"
                )
            elif stream.key is None and not target.singleton:
                yield (
                    f"stream {stream.name!r} has no key, so its events go to the instances of "
                    f"{target.name!r} that exist when they come"
                )
    if has_time(app):
        yield from _without_time(app)
    for prototype, _ in app.prototypes.values():
        if issubclass(prototype.cls, InOrder):
            continue  # it shares nothing
        if prototype.windows is not None and prototype.windows.on_wall_clock:
            yield (
                f"PE {prototype.name!r} has windows by the clock, and a history does not say when "
                f"a node would have processed it; let them go by the time of events"
            )
        for function in _functions(prototype):
            yield from _shared(app, prototype, function)


def has_time(app: App) -> bool:
    return any(goes_by_time(app, prototype) for prototype, _ in app.prototypes.values())


def goes_by_time(app: App, prototype: Prototype) -> bool:
    """Return True if a PE has windows or timers by the time of events."""
    windows = prototype.windows
    if windows is not None:
        return not windows.kind.events and not windows.on_wall_clock
    streams = (s for s in app.streams.values() if prototype in s.targets)
    return prototype.on_timer is not None and any(s.time is not None for s in streams)


def _without_time(app: App) -> Iterator[str]:
    """Streams whose events have no time in a history, although others they meet have one."""
    leads = edges(app)
    inputs = [s for s in app.streams.values() if isinstance(s, InputStream)]
    for each in inputs:
        if each.time is not None and not each.time.field:
            yield (
                f"stream {each.name!r} has windows by the time when events were sent, which a "
                f"history does not have; name the field with the time (time=)"
            )
    for prototype, _ in app.prototypes.values():
        into = {s.name for s in app.streams.values() if prototype in s.targets}
        met = [s for s in inputs if reached(leads, s.name) & into]
        timed = [s.name for s in met if s.time is not None]
        for each in met:
            if timed and each.time is None:
                yield (
                    f"stream {each.name!r} has no time and {timed[0]!r} has one, by which a "
                    f"history is sorted, and both lead to PE {prototype.name!r}; give it time="
                )


def left_out(app: App, histories: Collection[str]) -> list[str]:
    """The parts of the app that the run over history skips, as text."""
    found = []
    for name, (prototype, _) in app.prototypes.items():
        if prototype.timer_interval:
            found.append(
                f"on_time of {name!r} is not called; nodes call it for keys that get events"
            )
        if any(rule.seconds for rule in prototype.triggers):
            found.append(f"triggers of {name!r} fire by number of events, not by seconds")
        if prototype.cache_idle:
            found.append(f"instances of {name!r} do not expire")
        if prototype.ttl:
            found.append(f"the state of {name!r} does not end; its keys age from this run on")
        if prototype.windows is not None and prototype.windows.early:
            found.append(f"windows of {name!r} have no results before their end")
        if any("after" in function.__code__.co_names for function in _functions(prototype)):
            found.append(f"what {name!r} sets with after() counts from this run on")
        if any("clock" in function.__code__.co_names for function in _functions(prototype)):
            found.append(f"{name!r} reads a clock, which shows the time of the run over history")
    inputs = [s.name for s in app.streams.values() if isinstance(s, InputStream)]
    found += _mixed(app)
    found += [f"input stream {name!r} has no history" for name in inputs if name not in histories]
    return found


def _mixed(app: App) -> Iterator[str]:
    """PEs that get a stream and what is made of it, in an order that a node does not promise."""
    leads = edges(app)
    for name, (prototype, _) in app.prototypes.items():
        into = [stream.name for stream in fed(app) if prototype in stream.targets]
        for first in into:
            for second in into:
                if second != first and second in reached(leads, first):
                    yield (
                        f"{name!r} gets {first!r} and what is made of it, {second!r}: an event is "
                        f"followed by what it led to; on nodes others may come between"
                    )


def _functions(prototype: Prototype) -> Iterator[FunctionType]:
    """The functions of a PE class that may run for events."""
    for cls in prototype.cls.__mro__:
        if cls in (ProcessingElement, object):
            continue
        for name, value in vars(cls).items():
            if isinstance(value, FunctionType) and name not in ("on_time", "__init__", "migrate"):
                yield value


def _shared(app: App, prototype: Prototype, function: FunctionType) -> Iterator[str]:
    """The attributes that a handler shares with other keys, and what it needs that only a node
    has."""
    place = f"{prototype.cls.__name__}.{function.__name__}"
    code = list(dis.get_instructions(function))
    names = set(function.__code__.co_names)
    for first, second in pairwise(code):
        if first.argval == "app" and second.opname == "STORE_ATTR":
            yield f"{place} sets app.{second.argval}, which all keys of a task share"
    changes = names & _CHANGES or any(each.opname in _STORES for each in code)
    containers: dict[str, Mapping[str, Any]] = {
        "app.": vars(app) if "app" in names else {},
        f"{prototype.cls.__name__}.": {
            name: getattr(prototype.cls, name, None) for name in class_variables(prototype.cls)
        },
    }
    for owner, values in containers.items():
        for name in sorted(names & values.keys()):
            if changes and can_change(values[name]) and name not in ("streams", "prototypes"):
                yield f"{place} changes {owner}{name}, which all keys of a task share"
    for name, what in _OF_A_NODE.items():
        if name in names:
            yield f"{place} depends on {what}, which a history does not have"
