"""The compiled dispatch of a stream to PEs: the loop that finds keys and calls handlers.

Rules
- A plan is one generated loop a stream: key, instance, handler; nothing else per event. What is
  known when the app starts (single handler, singleton, no trigger, no async) costs nothing later.
- A second loop does the same and measures each PE, for samples. It is compiled when it is needed.
- A failing event is found from how far the loop's iterator came, not by counting. The frames of its
  error say whether the key was not found or a handler failed, and of which PE.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, MappingProxyType
from typing import Any, NamedTuple

from s4node.app.app import App
from s4node.app.handlers import check_returned
from s4node.app.instances import BoundedInstances, Instances, Saver
from s4node.app.plan.graph import rule_of
from s4node.app.plan.window_dispatch import before_lines, make_windows, only_handler, window_lines
from s4node.app.processing_element import ProcessingElement
from s4node.app.prototype import Prototype
from s4node.app.stream import Stream
from s4node.app.window_instances import WindowInstances
from s4node.errors import EventTimeError, KeyFinderError
from s4node.events.copies import copied
from s4node.events.routing import compiled


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


class Probe(NamedTuple):
    """A dispatch loop that also measures: seconds and events by PE, and events by key, if the
    stream has one. It adds to these."""

    run: Callable[[Any], Any]
    costs: dict[str, list[float]]
    keys: dict[Any, int]


@dataclass
class Plan:
    """The compiled dispatch of one stream in one task.

    ``run(iterator)`` handles events until the iterator ends or something raises; it is a
    coroutine function if ``is_async``. ``probe(clock)`` is the loop that also measures. The
    user counts ``slices``, and the ``unmeasured`` events; the slice ``next_probe`` is measured.
    """

    run: Callable[[Any], Any]
    is_async: bool
    source: str
    compile_probe: Callable[[Callable[[], float]], Probe]
    slices: int = 0
    next_probe: int = 1
    unmeasured: int = 0
    _probe: Probe | None = None

    def probe(self, clock: Callable[[], float]) -> Probe:
        """The measuring loop, which is compiled when it is first needed."""
        if self._probe is None:
            self._probe = self.compile_probe(clock)
        return self._probe


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
    measured: list[str] = []
    fetched: list[str] = []
    if rule is not None and not all(target.singleton for target in stream.targets):
        bindings |= rule.bindings
        body.append(f"k = {rule.expression('e')}")
        measured += [*body, "_keys[k] = _keys.get(k, 0) + 1"]
    shared = stream.can_change and (len(stream.targets) > 1 or stream.key is None)
    if shared:
        bindings["_copy"] = copied
        body.append("o = e")
        measured.append("o = e")
    for number, target in enumerate(stream.targets):
        made, fires = instances[target.name], triggers.get(target.name)
        touches = target.name in savers
        if shared:
            line = "e = o" if target is stream.targets[-1] else "e = _copy(o)"
            body.append(line)
            measured.append(line)
        if isinstance(made, WindowInstances):
            begin, lines = window_lines(stream, number, made, bindings, touches=touches)
            fetched += begin
        else:
            lines = _target_lines(stream, number, made, fires, bindings, touches=touches)
        if stream.in_order_of and made.before is not None:
            lines = before_lines(stream, number, made, bindings) + lines
        timed = [
            "_began = _clock()",
            *lines,
            f"_cost{number}[0] += _clock() - _began; _cost{number}[1] += 1",
        ]
        takes = stream.taken_by(target)
        if len(takes) < len(stream.types):
            bindings[f"_c{number}"] = takes
            only = f"if e.__class__ in _c{number}:"
            lines = [only, *(f"    {line}" for line in lines)]
            timed = [only, *(f"    {line}" for line in timed)]
        body += lines
        measured += timed
        if touches:
            bindings[f"_k{number}"] = savers[target.name]
            bindings[f"_u{number}"] = savers[target.name].touch_one
            marks = "    _m{0}, _v{0}, _g{0} = _k{0}.mark, _k{0}.saving, _k{0}.touched.append"
            fetched.append(marks.format(number))
    head = ["async def run(it):" if is_async else "def run(it):", *fetched, "    for e in it:"]
    bindings[_KEY_LINE] = len(head) + 1
    lines = head + [f"        {line}" for line in body]

    def probe(clock: Callable[[], float]) -> Probe:
        costs: dict[str, list[float]] = {target.name: [0.0, 0] for target in stream.targets}
        keys: dict[Any, int] = {}
        own: dict[str, Any] = {
            f"_cost{number}": costs[each.name] for number, each in enumerate(stream.targets)
        }
        own |= {"_clock": clock, "_keys": keys}
        lines = head + [f"        {line}" for line in measured]
        run = compiled("run", lines, bindings | own, shared=True)
        return Probe(run, costs, keys)

    return Plan(compiled("run", lines, bindings), is_async, "\n".join(lines), probe)


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
    elif target.awaits_create:
        bindings[f"_o{number}"] = home.obtain
        lines.append(f"i = await _o{number}(k)")
        instance = "i"
    elif target.is_async or trigger is not None or touches:
        lines.append(f"i = {instances}[k]")
        instance = "i"
    else:
        instance = f"{instances}[k]"
    if touches:
        lines += target.touch_lines(number)
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
