"""Event time in one task: the watermarks of its streams, its windows, and what it puts. Pure.

Rules
- A stream with a time has a watermark, from its sources; ``timed_stream`` has them.
- A source is at the latest time of its *processed* events, or at what it has reported. One that
  reports by itself (a task) is only at what it has reported, unless events have the time at which
  they were sent.
- Windows of a PE end by the lowest watermark of the streams that lead to it, without silent ones.
- The events that a task puts have reached a time once all windows that end by it have had their
  calls; see ``put_times``.
- A task that reads an input and sends on the events of other tasks is a source for them. All
  readers of an input are waited for until each has said whether it has such events.
- What a stream with ``order="time"`` hands on comes from this task alone.
- The watermarks that have changed are derived in a step, and what depends on them; see
  ``derived_times``. That is at once if a window or timer may be due by it, and soon if it may not.
  Before events are processed they are right in any case.
- Time changes them at deadlines only; ``deadlines`` has these.
- An input that runs ahead of others waits for them, and is not idle meanwhile; see ``alignment``.
- The watermarks are part of each commit. After a restart they are not lower.
- At the end of the inputs all windows end, hop by hop: those of results after these have arrived.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from s4node.app.app import App
from s4node.app.in_order import HeldBack
from s4node.app.instances import Instances
from s4node.app.pe_codec import Facts
from s4node.app.plan import dataflow
from s4node.app.plan.window_dispatch import time_rule
from s4node.app.stream import InputStream, OutputStream, Stream
from s4node.app.window_instances import WindowInstances
from s4node.events.event import EventBatch
from s4node.events.event_time import MOST_AHEAD
from s4node.offsets.watermarks import NEVER, Watermarks
from s4node.runtime.event_time.alignment import Alignment
from s4node.runtime.event_time.deadlines import Deadlines
from s4node.runtime.event_time.derived_times import DerivedTimes
from s4node.runtime.event_time.held_streams import HeldStream, HeldStreams
from s4node.runtime.event_time.put_times import OWN, PutTimes, feeders_in, lowest
from s4node.runtime.event_time.saved_times import EVENT_TIME
from s4node.runtime.event_time.sources import Sources
from s4node.runtime.event_time.timed_stream import Saved, TimedStream
from s4node.stages.stage import Gauge

_AHEAD = 1.0
"""Seconds that the clock of a source may be ahead before it is reported."""


class TaskTimes:
    """The times of the streams of ``app``, or of these ``streams``, in the task of a partition.

    ``queues`` has the queue of each stream, and ``has_unread`` says of an input if its events
    wait where they are read from; their owner sets both. ``puts`` has what other tasks get.
    """

    def __init__(
        self,
        app: App,
        instances: Mapping[str, Instances],
        wall: Callable[[], float],
        clock: Callable[[], float],
        *,
        streams: Iterable[Stream] | None = None,
    ) -> None:
        self._wall = wall
        self._clock = clock
        self._app = app
        self._streams: dict[str, TimedStream] = {}
        self.queues: Mapping[Any, Gauge] = {}
        self._queues_known = 0  # so many queues are sorted into _read
        self._read: dict[str, list[Any]] = {}
        self.has_unread: Callable[[Any], bool] = lambda _: False
        for stream in app.streams.values() if streams is None else streams:
            rule = time_rule(stream)
            if rule is not None and stream.time is not None:
                if isinstance(stream, OutputStream):
                    continue
                watermarks = Watermarks(
                    stream.time.lateness, stream.time.idle, beyond=stream.time.beyond, wall=wall
                )
                self._streams[stream.name] = TimedStream(stream.name, rule, watermarks)
        self._in_order = {s.name for s in app.streams.values() if s.in_order_of}
        edges = dataflow.edges(app) if self._streams else {}
        self._watermarks = {name: each.watermarks for name, each in self._streams.items()}
        feeders = {
            name: found
            for name, found in feeders_in(app, edges, self._streams).items()
            if name in self._streams or isinstance(app.streams[name], OutputStream)
        }
        untimed = {
            name
            for name in self._streams.keys() - feeders.keys() - self._in_order
            if app.partitions > 1 and not isinstance(app.streams[name], InputStream)
        }
        self.puts = PutTimes(feeders, self._watermarks, untimed)
        hops = dataflow.hops(edges)
        for name, timed in self._streams.items():
            timed.feeders = [self._watermarks[each] for each in feeders.get(name, ())]
            timed.untimed = name in untimed
            inner = timed.feeders and not isinstance(app.streams[name], InputStream)
            inner = inner or timed.untimed
            if inner and name not in self._in_order:
                # its own, and a lane of each, also of this one
                timed.watermarks.expect(1 if app.partitions == 1 else app.partitions + 1)
        self._windows = [
            (each, [s.name for s in app.streams.values() if each.prototype in s.targets])
            for each in instances.values()
            if isinstance(each, WindowInstances)
        ]
        self._held_back = [each for each, _ in self._windows if isinstance(each, HeldBack)]
        self._timers = [
            (each.timers, [s.name for s in app.streams.values() if each.prototype in s.targets])
            for each in instances.values()
            if each.timers is not None
        ]
        self._by_wall = [each for each, _ in self._windows if _on_wall(each)]
        by_event = [(each, names) for each, names in self._windows if not _on_wall(each)]
        self._derived = DerivedTimes(self._streams, [*by_event, *self._timers], self.puts, hops)
        self._alignment = Alignment(
            app,
            edges,
            [names for _, names in (*self._windows, *self._timers)],
            self._watermarks,
        )
        self.timed = bool(self._streams or self._windows or self._timers)
        """True if any stream has time, or any window."""
        self._deadlines = Deadlines(clock(), wall())
        self._deadlines.news = bool(self._streams)
        self._ends: list[tuple[int, Any]] | None = None  # what has yet to end, by hop
        self._finishing = False
        self._ending: dict[int, tuple[Any, float]] = {}  # what ends now, by id, and where it was
        self._late_before: dict[str, int] = {}  # late events of earlier runs
        self._held = HeldStreams(self._watermarks)
        self._saved: Any = None

    def has_time(self, stream: str) -> bool:
        return stream in self._streams

    def watch(self, stream: str, sources: Sources) -> None:
        if stream in self._streams and stream not in self._in_order:
            self._streams[stream].watch(sources)
            self._deadlines.news = True

    def pass_on(self, stream: str, readers: int, *, reads: bool) -> None:
        """Wait for the ``readers`` of an input, which send on the events of other tasks.

        ``reads``: this task is one of them.
        """
        if stream in self._streams:
            self._streams[stream].watermarks.expect(readers + reads)  # with the task's own lane
            if reads:
                self.puts.read(stream)

    # -- what comes --------------------------------------------------------------------------

    def events_begin(self) -> None:
        """Have the watermarks right for the events that are processed next."""
        if self._deadlines.has_waiting:
            self._advance()

    def events_done(self, batch: EventBatch, events: list[Any], *, last: bool) -> None:
        """Note that events of a stream were processed, with the ``last`` ones its strays."""
        self._deadlines.look_again()
        self._derived.processed(batch.stream)
        timed = self._streams.get(batch.stream)
        if timed is None:
            return
        if batch.strays is not None:
            self.puts.passes(timed.name)
            events = [*events, *batch.strays] if last else events
            self._deadlines.news = True
        elif batch.source in self._inputs(timed):
            self.puts.keeps(timed.name)
        self._deadlines.news = self._deadlines.news or timed.in_motion
        self._before_news()
        if batch.receipt is None:
            self._deadlines.news = True
            if timed.feeders:
                return
            source = OWN
        else:
            source = batch.receipt.origin
        if source not in timed.watermarks:
            self._look(timed)
        if source in timed.reports and not timed.rule.by_batch:
            return
        latest = timed.rule.latest_of(batch, events, self._wall())
        if latest is not None:
            self._reach(timed, source, latest)

    def reported(self, stream: str, source: str, time: float, *, idle: bool = False) -> None:
        """Note what a source has reported, once its events before that are processed.

        ``idle``: it is not waited for until it reports again.
        """
        timed = self._streams.get(stream)
        mine = stream not in self._in_order
        if timed is not None and mine and time <= self._wall() + MOST_AHEAD:
            self._before_news()
            self._reach(timed, source, time)
            if idle:
                timed.watermarks.rest(source)
                timed.note_silence()
                self._deadlines.news = True

    def _reach(self, timed: TimedStream, source: str, time: float) -> None:
        if not self._deadlines.known:
            self._look_ahead()
        if timed.reach(source, time) or self.puts.passes_on(timed.name):
            self._deadlines.news = True
        else:
            self._deadlines.step_soon(self._clock())

    def runs_ahead(self, stream: str, source: str, ended: Collection[str]) -> bool:
        """Return True if an input has to wait for others; ``ended`` are inputs, too."""
        tasks = (each.reports for each in self._streams.values())  # which wait for nobody
        unread = {str(q) for q in self.queues if not isinstance(q, str) and self._waits(q)}
        return self._alignment.must_wait(stream, source, {*ended}.union(*tasks), unread)

    def finish_inputs(self) -> None:
        """Nothing more comes: the windows of the next hop end, and its timers are due.

        No further effect until ``inputs_finished``.
        """
        if self._finishing:
            return
        self._finishing = True
        if self._ends is None:
            self._ends = self._by_hop()
        ending = [each for hop, each in self._ends if hop == self._ends[0][0]]
        self._ends = self._ends[len(ending) :]
        self._ending = {id(each): (each, each.watermark) for each in ending}
        for each in ending:
            each.watermark = math.inf
        self.look_again()

    def inputs_finished(self) -> bool:
        """These have ended; those of a further run begin where they have stopped.

        Return False if ``finish_inputs`` was not called.
        """
        finished, self._finishing = self._finishing, False
        for each, watermark in self._ending.values():
            each.watermark = watermark
        self._ending = {}
        self._derived.derive_all()
        self.look_again()
        return finished

    @property
    def ends_again(self) -> bool:
        """True if windows of further hops end when the results of these have arrived."""
        return bool(self._ends)

    def _by_hop(self) -> list[tuple[int, Any]]:
        """The windows and timers, and by how many hops their events come."""
        hops = dataflow.hops(dataflow.edges(self._app))
        found = [
            (max((hops[name] for name in names), default=0), each)
            for each, names in self._derived.waiting
        ]
        return sorted(found, key=itemgetter(0))

    # -- what follows ------------------------------------------------------------------------

    def look_again(self) -> None:
        self._deadlines.look_again()
        self._derived.called()

    @property
    def next_due(self) -> float | None:
        """When the next step is due, by the clock of the task; None if none is."""
        if self._deadlines.news:
            return -math.inf
        if self._deadlines.is_stale:
            self._look_ahead()
        return self._deadlines.step_due

    def _look_ahead(self) -> None:
        """Find out when something is due, by the clock and by the watermark of each stream."""
        self._follow_clock()
        streams = self._streams.values()
        waits = any(each.watermarks.waits or each.has_marks for each in streams)
        ticks = bool(self._held.waits) or waits
        first, now, wall = self._first_by_clock, self._clock(), self._wall()
        self._deadlines.note_due(first, now, wall, is_due=self._windows_due, ticks=ticks)

    @property
    def _first_by_clock(self) -> float:
        """When something is due by the clock; infinity if nothing is."""
        found = [each.next_end for each in self._by_wall]
        found += [each.early_at for each, _ in self._windows]
        found += [timers.next_at(by_wall=True) for timers, _ in self._timers]
        return min(found, default=math.inf)

    def _follow_clock(self) -> None:
        """Leave what is due in so many seconds where it is, if the clock was set."""
        if by := self._deadlines.clock_set(self._clock(), self._wall()):
            for windows, _ in self._windows:
                windows.early_at += by
            for timers, _ in self._timers:
                timers.clock_set(by)

    @property
    def _windows_due(self) -> bool:
        self._derived.look_ahead()
        return self._derived.is_due or any(each.failed.is_due for each, _ in self._windows)

    def step(self) -> bool:
        """Look at the sources, and derive the watermarks; return True if calls are due by them.

        ``windows_ended`` follows these.
        """
        self._before_news()
        self._follow_clock()
        self._deadlines.begin_step()
        if len(self.queues) != self._queues_known:
            self._find_inputs()
        for name, timed in self._streams.items():
            if timed.may_settle:
                timed.settle(map(str, self._inputs(timed)), self.queues.get(name))
        self._advance()
        wall = self._wall()
        for windows in self._by_wall:
            windows.watermark = max(windows.watermark, wall)
        due = self._windows_due
        if not due:
            self._deadlines.news = self._put_on()
        return due or self._first_by_clock <= max(
            (each.watermark for each in self._by_wall), default=wall
        )

    def _advance(self) -> None:
        """Derive the watermarks of streams, windows and timers."""
        self._deadlines.look_again()
        for name in self.puts.untimed:
            self._streams[name].hold_own(self.queues.get(name))
        self._derived.derive()

    def windows_ended(self) -> None:
        """All windows that were due have had their turn; sources may have become idle meanwhile."""
        self._advance()
        if not self._windows_due:
            self._deadlines.news = self._put_on() or self._deadlines.news

    def _before_news(self) -> None:
        """Count the time before news of a source, so that none of it counts as after them."""
        if self._deadlines.ticks(self._clock()):
            self._tick()

    def _tick(self) -> None:
        """Count the time that has passed for the sources that had no news in it."""
        now = self._clock()
        passed = self._deadlines.tick(now)
        self.look_again()
        for timed in self._streams.values():
            self._look(timed)
            blocked = {str(each) for each in self._inputs(timed) if self._waits(each)}
            blocked |= self._alignment.waiting
            if not timed.rest():
                blocked.add(OWN)
            timed.pass_time(passed, blocked)
        self._held.note(self._awaited, now)

    @property
    def _awaited(self) -> set[str]:
        """The streams for which windows or timers wait."""
        waits = (names for each, names in self._derived.waiting if each.next_end < math.inf)
        return {name for names in waits for name in names if name in self._streams}

    def held_streams(self) -> list[HeldStream]:
        """Take the streams to be logged, because their watermark does not rise."""
        return self._held.take_due(self._clock())

    def _put_on(self) -> bool:
        """Raise the times of what is put; return True if another step follows."""
        risen = self.puts.advance(
            lambda name: any(map(self._waits, self._inputs(self._streams[name]))),
            lambda name: self._streams[name].reports,
        )
        inner = [name for name in risen if name in self._streams]
        for name in inner:
            timed = self._streams[name]
            timed.put_at, timed.unsettled = self.puts.times[name], True
        return bool(inner)

    def _waits(self, source: Any) -> bool:
        return bool(self.queues[source].depth) or self.has_unread(source)

    def _inputs(self, timed: TimedStream) -> Sequence[Any]:
        if len(self.queues) != self._queues_known:
            self._find_inputs()
        return self._read.get(timed.name, ())

    def _find_inputs(self) -> None:
        """Sort the queues of inputs by stream, as some were added."""
        self._queues_known, self._read = len(self.queues), {}
        for each in self.queues:
            if not isinstance(each, str):
                self._read.setdefault(each.stream, []).append(each)
        for timed in self._streams.values():
            timed.unsettled = True

    def _look(self, timed: TimedStream) -> None:
        timed.look(map(str, self._inputs(timed)))

    # -- commits -----------------------------------------------------------------------------

    def save(self, state: Facts) -> None:
        """Save the watermarks with the commit that begins now."""
        streams: dict[str, Saved] = {}
        for name, timed in self._streams.items():
            self._look(timed)
            timed.watermarks.advance()  # to the events of this commit: who sent them may leave
            streams[name] = timed.save(map(str, self._inputs(timed)))
        windows = {
            each.prototype.name: (_or_none(at), each.late, _or_none(min(at, each.called_until)))
            for each, _ in self._windows
            for _, at in [self._ending.get(id(each), (each, each.watermark))]
        }
        fact = [streams, windows, self.puts.save()]
        if fact != self._saved:
            self._saved = fact
            state.set_meta(EVENT_TIME, fact)

    def restore(self, state: Facts) -> None:
        fact = state.meta(EVENT_TIME)
        if fact is None:
            return
        streams, windows, put = fact
        for name, saved in streams.items():
            if name in self._streams:
                self._streams[name].restore(saved)
        for each, _ in self._windows:
            value, each.late, called = windows.get(each.prototype.name, (None, 0, None))
            self._late_before[each.prototype.name] = each.late
            each.watermark = NEVER if value is None else value
            each.called_before = NEVER if called is None else called
        for timers, names in self._timers:
            timers.watermark = lowest(self._watermarks, names)
        for name in self.puts.restore(put):
            if name in self._streams:  # its mark may not have been passed
                self._streams[name].put_at = put[name]
        self.look_again()

    # -- looking -----------------------------------------------------------------------------

    def statistics_parts(self) -> dict[str, Any]:
        """Open windows, late events by PE, the watermarks, and what holds them back.

        A watermark is 0 if windows or timers wait for it and there is none yet. Late events count
        since the start; waiting are inputs that run ahead of others. Behind is a
        watermark as far as the latest event of its stream is later; ahead is a source whose clock
        is later than the one here.
        """
        self.events_begin()
        windows = [each for each, _ in self._windows]
        named = [(each.prototype.name, each) for each in windows]
        awaited = self._awaited
        wall, newest = self._wall(), {n: s.watermarks.furthest for n, s in self._streams.items()}
        return {
            "windows": sum(each.open_windows for each in windows),
            "held_back": sum(map(len, self._held_back)),
            "late": {name: each.late - self._late_before.get(name, 0) for name, each in named},
            "watermarks": {
                name: (max(0.0, each.watermarks.value), each.watermarks.holding)
                for name, each in self._streams.items()
                if each.watermarks.value > NEVER or name in awaited
            },
            "behind": {
                name: newest[name][0] - each.watermarks.value
                for name, each in self._streams.items()
                if each.watermarks.value > NEVER and newest[name][1]
            },
            "waiting": sorted(self._alignment.waiting),
            "ahead": {
                name: (time - wall, source)
                for name, (time, source) in newest.items()
                if wall + _AHEAD < time < math.inf
            },
        }

    def watermark_of(self, stream: str) -> HeldStream:
        self.events_begin()
        each = self._watermarks[stream]
        return HeldStream(stream, each.value, each.holding)

    def windows(self) -> Iterable[WindowInstances]:
        return [each for each, _ in self._windows]


def _on_wall(windows: WindowInstances) -> bool:
    assert windows.prototype.windows is not None
    return windows.prototype.windows.on_wall_clock


def _or_none(time: float) -> float | None:
    """A watermark to be saved: there may be none yet."""
    return time if math.isfinite(time) else None
