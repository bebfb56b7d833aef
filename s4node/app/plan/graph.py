"""An app's graph: its checks, and the dispatch plan compiled from it.

Rules
- All mistakes of a graph are reported together, before anything runs.
- A plan is one generated loop a stream: key, instance, handler; nothing else per event. What is
  known when the app starts (single handler, singleton, no trigger, no async) costs nothing later.
- A failing event is found from how far the loop's iterator came, not by counting.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, MappingProxyType
from typing import Any, Protocol, get_origin

import msgspec

from s4node.app.app import App
from s4node.app.handlers import check_returned
from s4node.app.instances import BoundedInstances, Instances
from s4node.app.pe_codec import ElementCodec, check_defaults
from s4node.app.plan.window_dispatch import (
    before_lines,
    make_windows,
    only_handler,
    time_problems,
    window_lines,
    window_problems,
)
from s4node.app.processing_element import ProcessingElement, unset_streams
from s4node.app.prototype import Prototype, shared_containers
from s4node.app.stream import OutputStream, Stream
from s4node.app.window_instances import WindowInstances
from s4node.errors import EventTimeError, GraphError, KeyFinderError
from s4node.events.copies import copied
from s4node.events.routing import KeyRule, compiled, holds_keys, is_generic, may_be_key
from s4node.store_spec import StoreSpec


def check(app: App) -> None:
    """Raise one GraphError with every mistake in the app's graph."""
    problems = [problem for stream in app.streams.values() for problem in _problems(app, stream)]
    for prototype, element in app.prototypes.values():
        problems += [f"PE {prototype.name!r}: {each}" for each in unset_streams(element)]
        if not prototype.on_event.declared and not prototype.on_time:
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
    """The mistakes about the end of a PE's state."""
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
    """Raise one GraphError with every PE whose state cannot be saved."""
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
    """The stream's compiled key, or None without one."""
    if stream.key is None:
        return None
    generic = is_generic([kind.cls for kind in stream.types])
    rule = KeyRule(stream.key, generic=generic)
    if holds_keys((kind.declaration for kind in stream.types), rule.attributes):
        return rule
    return KeyRule(stream.key, generic=generic, checked=True)


def finder_of(stream: Stream) -> Callable[[Any], Any]:
    """The function that finds the key of an event of a keyed stream."""
    rule = rule_of(stream)
    assert rule is not None
    return rule.finder()


class TriggerState:
    """Counts for each key since its trigger last fired, in one task and for one prototype."""

    __slots__ = ("_clock", "_fire", "_rules", "_state")

    def __init__(self, prototype: Prototype, clock: Callable[[], float]) -> None:
        self._rules = prototype.triggers
        self._fire = prototype.on_trigger
        self._clock = clock
        self._state: dict[tuple[Any, int], list[float]] = {}

    def __call__(self, instance: ProcessingElement, event: Any) -> Any:
        """Count the event; call ``on_trigger`` if it fires, and return what that returned."""
        fires = False
        for index, rule in enumerate(self._rules):
            if not isinstance(event, rule.event_type):
                continue
            now = self._clock()
            state = self._state.get((instance.key, index))
            if state is None:
                if instance._home.get(instance.key) is not instance:
                    return None  # its own handler has just removed it
                state = self._state[instance.key, index] = [0, now]
            state[0] += 1
            by_count = rule.events and state[0] >= rule.events
            if by_count or (rule.seconds and now - state[1] >= rule.seconds):
                state[0], state[1] = 0, now
                fires = True
        return self._fire[event.__class__](instance, event) if fires else None

    def fired(self, key: Any, unix: float) -> list[tuple[float, float] | None]:
        """For each rule the events since it fired, and when it did; None if it has not begun.

        Times are Unix times, and ``unix`` is now: a process's own clock means nothing to the next.
        """
        zero = unix - self._clock()  # the Unix time at which the clock showed 0
        found = (self._state.get((key, index)) for index in range(len(self._rules)))
        return [None if state is None else (state[0], zero + state[1]) for state in found]

    def restore(self, key: Any, fired: Sequence[tuple[float, float] | None], unix: float) -> None:
        """Continue from saved counts; from the beginning if there are other rules now."""
        if len(fired) != len(self._rules):
            return
        now = self._clock()
        for index, kept in enumerate(fired):
            if kept is not None:
                events, at = kept
                # a clock that was set back since then must not make a trigger wait for it
                self._state[key, index] = [events, now - max(0.0, unix - at)]

    def remove(self, key: Any) -> None:
        for index in range(len(self._rules)):
            self._state.pop((key, index), None)


@dataclass(frozen=True)
class Plan:
    """The compiled dispatch of one stream in one task.

    ``run(iterator)`` handles events until the iterator ends or something raises; it is a
    coroutine function if ``is_async``.
    """

    run: Callable[[Any], Any]
    is_async: bool
    source: str


class Saver(Protocol):
    """Saves the instances of a prototype that have changed."""

    @property
    def mark(self) -> object:
        """The mark on touched instances; it changes between two runs only."""
        ...

    def touch_one(self, instance: Any, /) -> None:
        """An unmarked instance is about to change."""
        ...


def make_instances(
    prototype: Prototype,
    partition: int,
    clock: Callable[[], float],
    wall: Callable[[], float] = lambda: math.inf,
) -> Instances:
    """The instance map that the prototype's configuration asks for."""
    if prototype.windows is not None:
        return make_windows(prototype, partition, wall)
    bounded = prototype.cache_size or prototype.cache_idle or prototype.ttl
    if bounded and not prototype.singleton:
        return BoundedInstances(prototype, partition, clock)
    return Instances(prototype, partition)


def compile_plan(
    stream: Stream,
    instances: dict[str, Instances],
    triggers: dict[str, TriggerState],
    savers: Mapping[str, Saver] = MappingProxyType({}),
) -> Plan:
    """The dispatch loop of ``stream`` over one task's instances (by prototype name).

    Instances of the prototypes in ``savers`` are touched before their events.
    """
    rule = rule_of(stream)
    is_async = any(
        target.is_async or _before_is_async(instances[target.name]) for target in stream.targets
    )
    bindings: dict[str, Any] = {"_isawaitable": inspect.isawaitable, "_returned": check_returned}
    body: list[str] = []
    fetched: list[str] = []
    if rule is not None and not all(target.singleton for target in stream.targets):
        bindings |= rule.bindings
        body.append(f"k = {rule.expression('e')}")
    shared = stream.can_change and (len(stream.targets) > 1 or stream.key is None)
    if shared:
        bindings["_copy"] = copied
        body.append("o = e")
    for number, target in enumerate(stream.targets):
        made, fires = instances[target.name], triggers.get(target.name)
        touches = target.name in savers
        if shared:
            body.append("e = o" if target is stream.targets[-1] else "e = _copy(o)")
        if isinstance(made, WindowInstances):
            begin, lines = window_lines(stream, number, made, bindings, touches=touches)
            fetched += begin
        else:
            lines = _target_lines(stream, number, made, fires, bindings, touches=touches)
        if stream.in_order_of and made.before is not None:
            lines = before_lines(stream, number, made, bindings) + lines
        takes = stream.taken_by(target)
        if len(takes) < len(stream.types):
            bindings[f"_c{number}"] = takes
            lines = [f"if e.__class__ in _c{number}:", *(f"    {line}" for line in lines)]
        body += lines
        if touches:
            bindings[f"_k{number}"] = savers[target.name]
            bindings[f"_u{number}"] = savers[target.name].touch_one
            fetched.append(f"    _m{number} = _k{number}.mark")
    head = ["async def run(it):" if is_async else "def run(it):", *fetched, "    for e in it:"]
    bindings[_KEY_LINE] = len(head) + 1
    lines = head + [f"        {line}" for line in body]
    return Plan(compiled("run", lines, bindings), is_async, "\n".join(lines))


def goes_by_order(app: App, home: Instances) -> bool:
    """Return True if calls of a PE come before the later events of their key, one by one.

    So it is for timers, and for windows that share state of the key, if nothing but one stream in
    order has the times of the PE.
    """
    target = home.prototype
    timed = [s for s in app.streams.values() if s.time is not None and target in s.targets]
    if len(timed) != 1 or not timed[0].in_order_of:
        return False
    if timed[0].key is None and not target.singleton:  # events are for all instances
        return False
    options = target.windows
    if options is None:
        return home.timers is not None
    return target.own is not None and not options.on_wall_clock and not options.kind.events


def _before_is_async(home: Instances) -> bool:
    """Return True if calls that come before an event are awaited."""
    return home.before is not None and inspect.iscoroutinefunction(home.prototype.on_timer)


def _target_lines(
    stream: Stream,
    number: int,
    home: Instances,
    trigger: TriggerState | None,
    bindings: dict[str, Any],
    *,
    touches: bool,
) -> list[str]:
    """Source of one PE's share of the loop body."""
    target = home.prototype
    instances, handler = f"_i{number}", f"_h{number}"
    bindings[instances] = home
    direct = only_handler(stream, target)
    if direct is not None:
        bindings[handler] = direct
        call = f"{handler}({{i}}, e)"
    else:
        bindings[handler] = target.on_event
        call = f"{handler}[e.__class__]({{i}}, e)"
    lines: list[str] = []
    indent = ""
    if target.singleton:
        bindings[f"_s{number}"] = home.singleton()
        instance = f"_s{number}"
    elif stream.key is None:
        lines.append(f"for i in list({instances}.values()):")
        indent, instance = "    ", "i"
        if stream.can_change:
            lines.append("    e = _copy(o)")
    elif inspect.iscoroutinefunction(target.on_create):
        bindings[f"_o{number}"] = home.obtain
        lines.append(f"i = await _o{number}(k)")
        instance = "i"
    elif target.is_async or trigger is not None or touches:
        lines.append(f"i = {instances}[k]")
        instance = "i"
    else:
        instance = f"{instances}[k]"
    if touches:
        lines.append(f"if i._mark is not _m{number}: _u{number}(i)")
    known = "None" if "[" in instance else instance  # looking it up again might make it anew
    call = call.format(i=instance)
    lines += [f"{indent}{line}" for line in target.call_lines(call, known)]
    if trigger is not None:
        bindings[f"_t{number}"] = trigger
        lines.append(f"{indent}r = _t{number}({instance}, e)")
        check = (
            "if _isawaitable(r): await r"
            if target.is_async
            else f"if r is not None: _returned({instance}, r)"
        )
        lines.append(f"{indent}{check}")
    return lines


_PLAN_FILE = "<s4node run>"
_KEY_LINE = "_key_line"  # the global of a plan with the number of the line that finds the key


def _frames(error: BaseException) -> list[FrameType]:
    """The frames that the error went through, outermost first."""
    frames: list[FrameType] = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames


def _below_plan(error: BaseException) -> list[FrameType]:
    """The frames that the dispatch loop called, outermost first."""
    frames = _frames(error)
    for index, frame in enumerate(frames):
        if frame.f_code.co_filename == _PLAN_FILE:
            return frames[index + 1 :]
    return []


def is_key_failure(error: BaseException) -> bool:
    """Return True if finding the key raised, not a handler."""
    if isinstance(error, EventTimeError):
        return True
    frames = _below_plan(error)
    if not frames:  # raised in the loop itself: no such attribute, or a key that cannot be hashed
        return True
    if _finding_key(error):
        return True
    if not isinstance(frames[0].f_locals.get("self"), Instances):
        return False
    # raised while the instance was looked up: its key is none, or cannot be hashed
    return isinstance(error, KeyFinderError) or all(
        isinstance(frame.f_locals.get("self"), Instances) for frame in frames
    )


def _finding_key(error: BaseException) -> bool:
    """Return True if the dispatch loop stood at the line that finds the key."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != _PLAN_FILE:
        trace = trace.tb_next
    if trace is None or trace.tb_lineno != trace.tb_frame.f_globals[_KEY_LINE]:
        return False
    return "k" in trace.tb_frame.f_code.co_varnames


def blame(error: BaseException) -> ProcessingElement | None:
    """The PE instance whose handler raised, if known."""
    for frame in _below_plan(error) or _frames(error):
        names = frame.f_code.co_varnames
        candidate = frame.f_locals.get(names[0]) if names else None
        if isinstance(candidate, ProcessingElement):
            return candidate
    return None
