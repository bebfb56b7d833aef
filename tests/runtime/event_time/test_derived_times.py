"""Times derived by change equal those derived from everything, after any history."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from s4node.app.app import App
from s4node.app.plan import dispatch
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import Stream
from s4node.app.windows import tumbling
from s4node.events.event import Event
from s4node.runtime.event_time.put_times import OWN, lowest
from s4node.runtime.event_time.task_times import TaskTimes
from s4node.stages.stage import Stage


class Seen(Event):
    key: str
    at: float


class Passes(ProcessingElement):
    out: Stream

    def on_event(self, seen: Seen) -> None: ...

    def on_window(self) -> None: ...


class Alone(ProcessingElement):
    def on_event(self, seen: Seen) -> None: ...

    def on_window(self) -> None: ...


class Chain(App):
    """Two inputs that meet at windows, and two hops after these."""

    def on_init(self) -> None:
        first, second, last = self.create_pe(Passes), self.create_pe(Passes), self.create_pe(Alone)
        for pe in (first, second, last):
            pe.set_window(tumbling(10))
        options: dict[str, Any] = {"key": "key", "types": Seen, "time": "at", "idle": 3}
        second.out = self.create_stream("b", last, lateness=1, **options)
        first.out = self.create_stream("a", second, **options)
        self.create_input_stream("x", first, lateness=2, **options)
        self.create_input_stream("y", first, last, **options)


OPS = st.one_of(
    st.tuples(st.sampled_from("xy"), st.sampled_from("pq"), st.integers(0, 60), st.booleans()),
    st.tuples(st.sampled_from("ab"), st.sampled_from("tu"), st.integers(0, 60), st.booleans()),
    st.tuples(st.just("pass"), st.none(), st.sampled_from([0.1, 0.6, 1.0, 4.0]), st.none()),
    st.tuples(st.sampled_from(["step", "begin", "ended"]), st.none(), st.none(), st.none()),
)


@given(st.lists(OPS, max_size=60), st.sampled_from([1, 3]))
def test_a_derivation_by_change_leaves_nothing_to_a_plain_one(
    history: list[tuple[str, Any, Any, Any]], partitions: int
) -> None:
    app = Chain("chain")
    app.partitions = partitions
    app.on_init()
    app.freeze()
    now = [100.0]
    instances = {
        name: dispatch.make_instances(prototype, 0, lambda: now[0], lambda: now[0])
        for name, (prototype, _) in app.prototypes.items()
    }
    times = TaskTimes(app, instances, lambda: now[0], lambda: now[0])
    times.queues = {name: Stage(100) for name in app.streams}
    for what, source, value, idle in history:
        if what == "pass":
            now[0] += value
        elif what == "step":
            times.step()
        elif what == "begin":
            times.events_begin()
        elif what == "ended":
            times.windows_ended()
        else:
            times.reported(what, source, value, idle=idle)
        if times.next_due == float("-inf") or what in ("step", "ended"):
            times.step()
            compare(times)


def compare(times: Any) -> None:
    """Derive all of it, as if nothing were known, and find it as it is."""
    for timed in times._streams.values():
        marks = timed.watermarks
        assert marks.is_silent is all(each.idle for each in marks._sources.values()) or (
            not marks._sources
        )
        value, marks._changed, marks._first = marks.value, True, None
        marks.advance()
        assert marks.value == value
        own = timed.feeders and not timed.unsettled and OWN in marks
        if own and all(each.is_silent for each in timed.feeders):
            assert marks.is_idle(OWN)
    derived = times._derived
    for at, (waiting, names) in zip(derived._awaited, derived.waiting, strict=True):
        assert lowest(times._watermarks, names) <= waiting.watermark
        assert waiting.next_end == at
    for name, feeders in times.puts.feeders.items():
        silent = all(times._watermarks[each].is_silent for each in feeders)
        assert (name in times.puts.idle) is silent
        assert lowest(times._watermarks, feeders) <= times.puts.times[name]
