"""The part of PEs with windows in an app's graph: their mistakes, and their dispatch.

Rules
- All mistakes about windows and times are found before anything runs.
- An input that leads to windows by the time of events, and names no field, has the time of sending.
- The dispatch loop of a stream asks for the table of a window only when an event's time leaves the
  last one. Sessions are asked for each event; counts need no time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from s4node.app.app import App, no_time
from s4node.app.in_order import HeldBack, InOrder
from s4node.app.instances import Instances
from s4node.app.open_windows import CountWindows, SessionWindows, TableWindows
from s4node.app.overlapping_windows import OverlappingWindows
from s4node.app.prototype import Prototype, WindowOptions
from s4node.app.stream import InputStream, Stream
from s4node.app.window_instances import WindowInstances
from s4node.events.event_time import SendingRule, TimeRule


def window_problems(app: App, prototype: Prototype) -> Iterable[str]:
    where, options = f"PE {prototype.name!r}", prototype.windows
    _, element = app.prototypes[prototype.name]
    if options is None:
        for name in prototype.cls._of_key:
            yield (
                f"{where} has no windows, so all its state is of its key; leave OfKey out of the "
                f"annotation of {name!r}, or call set_window"
            )
        return
    for hook, why in (
        (prototype.triggers, "set_trigger"),
        (prototype.timer_interval, "set_timer_interval"),
        (prototype.cache_size or prototype.cache_idle, "set_pe_cache"),
        (prototype.on_remove, "on_remove"),
        (prototype.on_timer, "on_timer"),
    ):
        if hook:
            yield f"{where} has windows, which end by on_window alone; leave out {why}"
    if prototype.awaits_create:
        yield f"{where} has windows, so its on_create cannot be async"
    for stream in app.streams.values():
        if prototype not in stream.targets:
            continue
        if _by_events(options) and stream.time is None:
            yield (
                f"{where} has windows by the time of events, but stream {stream.name!r} does not "
                f"say which field has it; add time= to the stream, or clock='wall' to the windows"
            )
        if stream.parallelism > 1 and not isinstance(element, InOrder):
            yield (
                f"{where} has windows, so stream {stream.name!r}, which leads to it, cannot have "
                f"a parallelism; handlers of a window run one after the other"
            )
        if stream.key is None and not prototype.singleton:
            yield (
                f"{where} has windows, and stream {stream.name!r} has no key that finds them; give "
                f"the stream a key or call set_singleton() on the PE"
            )
        if options.late is not None and options.late._declared:
            for cls in stream.taken_by(prototype):
                if cls not in options.late._declared:
                    yield (
                        f"{where}: late events of {stream.name!r} go to {options.late.name!r}, "
                        f"which does not take {cls.__name__}; add it to its types"
                    )


_TIMES = {"float", "int", "datetime"}


def time_problems(stream: Stream, name: str) -> Iterable[str]:
    for kind in stream.types:
        declared = kind.kind_of(name)
        if issubclass(kind.cls, msgspec.Struct) and declared not in _TIMES:
            has = f"is {declared}" if declared else "is not there"
            yield (
                f"stream {stream.name!r} has the time of its events in {name!r}, but that {has} in "
                f"{kind.name}; it has to be a float (seconds), an int (ms) or a datetime"
            )


def time_rule(stream: Stream) -> TimeRule | None:
    if stream.time is None:
        return None
    if not stream.time.field:
        return SendingRule(stream.name)
    return TimeRule(stream.name, stream.time.field, stream.types)


def take_times_of_sending(app: App) -> None:
    """Give inputs that lead to windows, and name no field, the time of sending."""
    for stream in app.streams.values():
        if not isinstance(stream, InputStream) or stream.time is not None:
            continue
        windows = [pe.windows for pe, _ in app.prototypes.values() if pe in stream.targets]
        if any(each is not None and _by_events(each) for each in windows):
            stream.time = stream.sending
        elif stream.sending is not None and stream.sending.lateness:
            raise no_time(stream.name)


def _by_events(options: WindowOptions) -> bool:
    return not options.on_wall_clock and not options.kind.events


def window_lines(
    stream: Stream,
    number: int,
    home: WindowInstances,
    bindings: dict[str, Any],
    *,
    touches: bool,
) -> tuple[list[str], list[str]]:
    """Source of the share of a PE with windows: before the loop, and in its body."""
    target = home.prototype
    options, begin = target.windows, list[str]()
    assert options is not None
    direct = only_handler(stream, target)
    bindings[f"_h{number}"] = target.on_event if direct is None else direct
    handler = f"_h{number}" if direct is not None else f"_h{number}[e.__class__]"
    call = target.call_lines(f"{handler}(i, e)", "i")
    if touches:
        call = target.touch_lines(number) + call
    key = "None" if target.singleton else "k"
    at = f"_t{number}"
    rule = None
    if options.on_wall_clock:
        bindings[f"_w{number}"] = home.now
        begin.append(f"    {at} = _w{number}()")
        lines = []
    elif not options.kind.events:
        rule = time_rule(stream)
        assert rule is not None
        bindings |= rule.bindings
        lines = [f"{at} = {rule.expression('e')}"]
        if rule.by_batch:
            begin, lines = [f"    {lines[0]}"], []
    bindings[f"_r{number}"] = rule
    if isinstance(home, HeldBack):
        bindings[f"_f{number}"] = home.hold
        return begin, [*lines, f"_f{number}(_r{number}, {key}, {at}, e)"]
    bindings[f"_l{number}"] = home.come_late
    if isinstance(home, TableWindows):
        bindings[f"_f{number}"] = home.table_of
        table, start, end = f"_d{number}", f"_a{number}", f"_b{number}"
        found = [f"{table}, {start}, {end} = _f{number}(_r{number}, {at})"]
        if size := options.kind.whole:
            bindings[f"_n{number}"] = home.by_number
            found = [
                f"{table} = _n{number}.get({at} // {size!r})",
                f"if {table} is None: {found[0]}",
                f"else: {start}, {end} = {table}.span",
            ]
        begin.append(f"    {table} = None; {start} = {end} = 0.0")
        lines += [
            f"if not {start} <= {at} < {end}:",
            *(f"    {line}" for line in found),
            f"if {table} is None: _l{number}(e, {key}, {at})",
            "else:",
            f"    i = {table}[{key}]",
            *(f"    {line}" for line in call),
        ]
    elif isinstance(home, SessionWindows):
        bindings[f"_f{number}"] = home.session_of
        lines += [
            f"i = _f{number}(_r{number}, {key}, {at})",
            f"if i is None: _l{number}(e, {key}, {at})",
            "else:",
            *(f"    {line}" for line in call),
        ]
    else:
        assert isinstance(home, CountWindows)
        bindings |= {f"_f{number}": home, f"_o{number}": target.on_window}
        bindings[f"_x{number}"] = home.remove
        over = [f"r = _o{number}(i)"]
        over += ["if _isawaitable(r): await r"] if target.is_async else []
        lines = [
            f"i = _f{number}[{key}]",
            *call,
            "i._round += 1",
            f"if i._round >= {options.kind.events}:",
            *(f"    {line}" for line in over),
            f"    _x{number}(i)",
        ]
    return begin, lines


def before_lines(
    stream: Stream, number: int, home: Instances, bindings: dict[str, Any]
) -> list[str]:
    """Source of the calls of a key that are due before its event in a stream in order."""
    rule, target = time_rule(stream), home.prototype
    assert rule is not None
    bindings |= rule.bindings
    key = "None" if target.singleton else "k"
    bindings[f"_p{number}"] = home.before
    if target.windows is None:
        assert home.timers is not None
        bindings |= {f"_q{number}": home.timers.by_key, f"_b{number}": home.timers.is_before}
        due = f"{key} in _q{number} and _b{number}({key}, t)"
    else:
        bindings[f"_q{number}"] = home.ends  # type: ignore[attr-defined]
        due = f"_q{number} and t > _q{number}[0][0]"
    hook = target.on_timer if target.windows is None else target.on_window
    awaits = "await " if inspect.iscoroutinefunction(hook) else ""
    return [f"t = {rule.expression('e')}", f"if {due}: {awaits}_p{number}({key}, t)"]


def only_handler(stream: Stream, target: Prototype) -> Any:
    """The one handler of a PE for all its events of the stream, or None if they differ."""
    found = {target.on_event.find(cls) for cls in stream.taken_by(target)}
    return found.pop() if len(found) == 1 else None


def make_windows(
    prototype: Prototype, partition: int, wall: Callable[[], float]
) -> WindowInstances:
    assert prototype.windows is not None
    kind = prototype.windows.kind
    if issubclass(prototype.cls, InOrder):
        return HeldBack(prototype, partition, wall)
    tables = OverlappingWindows if kind.is_hopping else TableWindows
    made = SessionWindows if kind.gap else CountWindows if kind.events else tables
    return made(prototype, partition, wall)
