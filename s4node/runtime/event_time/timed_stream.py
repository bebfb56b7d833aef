"""A stream with time in one task: its sources, and the marks of what is put on it. Pure.

Rules
- The sources are the producers of its frames, the partitions of an input, the other tasks. One that
  has left is a source until its events are done.
- What a source reports matters at once if something of the task becomes ``due`` by it, or if it was
  not waited for; otherwise it is enough that the watermark follows soon.
- The time in which a source is away is not idle time, until it has been away for an hour.
- Events that a task has put for itself count when they are processed: what it puts on a stream is
  at a time once the events that waited then are done. It is idle only while the streams from which
  it is put are silent.
- Saved are the sources that are waited for and may return, also those without an event, and the
  names of those that are idle and connected. After a restart the watermark waits for the former; it
  waits for the latter once they send. One that is idle and away is forgotten. A task is waited for
  until it says that it is idle: what it has sent since the commit comes again. So is a program
  whose events wait. One that has said that it leaves is waited for as an idle one after a restart,
  too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from s4node.errors import StateError
from s4node.events.event_time import TimeRule
from s4node.offsets.watermarks import NEVER, Watermarks
from s4node.runtime.event_time.put_times import OWN
from s4node.runtime.event_time.sources import Sources
from s4node.stages.stage import Gauge

LEFT = "left"
"""Saved in place of a source: the latest time of all that there were."""

Saved: TypeAlias = (
    "tuple[float | None, dict[str, float | None], list[str], dict[str, float], list[str]]"
)
"""The watermark, the times of sources, the idle ones, the times of the inputs that are read, and
the sources that have said that they leave."""

_SAVED = 5  # parts of it

_LONGEST_BREAK = 3600.0
"""Seconds that a source may be away before it counts as idle."""


class TimedStream:
    """The stream ``name``; its events have their time by ``rule``.

    ``feeders`` are the watermarks of the streams from which it is put; it is ``untimed`` if these
    have no time, and other tasks put on it, too. ``fed`` are the streams that are put from it.
    ``reports`` are the sources that report their time themselves. ``put_at`` is the time of what
    the task puts now. At the watermark ``due`` something of the task is due.
    """

    def __init__(self, name: str, rule: TimeRule, watermarks: Watermarks) -> None:
        self.name = name
        self.rule = rule
        self.watermarks = watermarks
        self.feeders: Sequence[Watermarks] = ()
        self.fed: list[TimedStream] = []
        self.unsettled = True  # so ``settle`` may change who is waited for
        self.untimed = False
        self.reports: set[str] = set()
        self.put_at: float | None = None
        self.due = math.inf
        self.sources: Sources | None = None
        self._leaving: set[str] = set()  # these have left, and their events wait
        self._unlisted: set[str] = set()  # counted, although ``sources`` may not have them
        self._returning: set[str] = set()
        self._expected: set[str] = set()  # idle in an earlier run, and not back yet
        self._awaited = 0.0  # seconds in which these could have come
        self._left: set[str] = set()  # may return, and have said that they leave
        self._away: dict[str, float] = {}  # may return, and for how many seconds they are away
        self._marks: deque[tuple[int, float]] = deque()  # of own events: admitted before, and time

    def watch(self, sources: Sources) -> None:
        self.sources = sources
        self._unlisted.update(self.watermarks.sources)

    @property
    def has_marks(self) -> bool:
        """True if marks wait until own events are processed."""
        return bool(self._marks)

    @property
    def in_motion(self) -> bool:
        """True if events that are processed may change who is waited for."""
        return bool(self._leaving or self._marks) or self.put_at is not None

    @property
    def may_settle(self) -> bool:
        """True if :meth:`settle` may change who is waited for."""
        return self.unsettled or (self.sources is not None and self.sources.has_changes)

    def settle(self, read: Iterable[str], queue: Gauge | None) -> None:
        """Take the sources as they are now, and what the task puts itself."""
        self.look(read)
        self.pass_marks(queue)
        self.rest()
        self.unsettled = self.in_motion

    def reach(self, source: str, time: float) -> bool:
        """Note that a source is at ``time``; return True if that matters at once."""
        watermarks = self.watermarks
        if source not in watermarks:
            self._unlisted.add(source)
        before = watermarks.active_time(source)
        watermarks.reach(source, time)
        if before is None or self.in_motion:
            return True
        at, lateness = before - watermarks.lateness, watermarks.lateness
        if self.due <= watermarks.value:
            return at <= watermarks.value < time - lateness
        return at < self.due <= time - lateness and watermarks.lowest >= self.due

    # -- who is there ------------------------------------------------------------------------

    def look(self, read: Iterable[str]) -> None:
        """Take the sources as they are now; ``read`` are the inputs that the task reads."""
        watermarks = self.watermarks
        known = [*read, OWN] if self.feeders or self.untimed else [*read]
        for name in known:
            watermarks.join(name)
        if self.sources is None or not (self.sources.has_changes or self._leaving):
            return
        news = {*self.sources.take_changes(), *self._leaving}
        names = news | self._unlisted
        listed: set[str] = set()
        self._leaving = set()
        for each in self.sources.states(names):
            stays = each.here or each.returns
            if each.waits and not stays:
                self._leaving.add(each.name)
            if not each.returns:
                self._returning.discard(each.name)
            if each.here:
                self._left.discard(each.name)
            if stays or each.waits:
                listed.add(each.name)
                watermarks.join(each.name)
                self._expected.discard(each.name)
                if each.returns:
                    self._returning.add(each.name)
                if each.reports:
                    self.reports.add(each.name)
                else:
                    self.reports.discard(each.name)
        self._unlisted = set()
        for name in names - listed - {*known, OWN}:
            if name not in watermarks:
                continue
            may_return = name in self._returning and not watermarks.is_idle(name)
            if may_return or name in self._expected:
                self._unlisted.add(name)
            else:
                watermarks.leave(name)
                self._returning.discard(name)
        self.note_silence()

    def pass_time(self, seconds: float, blocked: set[str]) -> None:
        """Count seconds that have passed for the sources that had no news in them.

        Not for those ``blocked``, for others that cannot send, and for those whose events wait.
        """
        quiet = self.watermarks.quiet(seconds)
        if self.sources is not None and quiet:
            states = self.sources.states(quiet)
            blocked |= {each.name for each in states if each.blocked or each.waits}
            self._left |= {each.name for each in states if each.left}
            here = {each.name for each in states if each.here}
            away = self._returning.intersection(quiet) - here - self._left
            self._away = {name: self._away.get(name, 0.0) + seconds for name in away}
            blocked |= {name for name, so_far in self._away.items() if so_far < _LONGEST_BREAK}
        self.watermarks.wait(seconds, blocked)
        self.note_silence()
        if self._expected:
            self._awaited += seconds
            if self._awaited >= self.watermarks.idle:
                self._expected.clear()

    # -- what the task has put ---------------------------------------------------------------

    def pass_marks(self, queue: Gauge | None) -> None:
        """Take what the task has put for itself to be at a time once it is processed."""
        if self.put_at is not None:  # what was put before it is in the queue by now
            assert queue is not None
            self._marks.append((queue.admitted, self.put_at))
            self.put_at = None
        while self._marks and queue is not None:
            if self._marks[0][0] > queue.admitted - queue.depth:
                break
            _, time = self._marks.popleft()
            self.watermarks.reach(OWN, time)

    def rest(self) -> bool:
        """Wait no longer for what the task puts on the stream; False if something is to come."""
        waits = self.put_at is not None or self._marks or any(not f.is_silent for f in self.feeders)
        if self.feeders and not waits:
            self.watermarks.rest(OWN)
        self.note_silence()
        return not waits

    def note_silence(self) -> None:
        """Have the streams that are put from this one look whether they are still waited for."""
        if self.watermarks.is_silent:
            for each in self.fed:
                each.unsettled = True

    def hold_own(self, queue: Gauge | None) -> None:
        """Wait for own events of an untimed stream while they wait in the queue, and only then.

        The task's own lane has the time of all that it puts.
        """
        if queue is not None and queue.depth:
            self.watermarks.reach(OWN, NEVER)
        else:
            self.watermarks.rest(OWN)
            self.note_silence()

    # -- commits -----------------------------------------------------------------------------

    def save(self, read: Iterable[str]) -> Saved:
        watermarks = self.watermarks
        awaited = (each for each in self._returning if not watermarks.is_idle(each))
        times: dict[str, float | None] = dict.fromkeys(awaited)
        idle = self._returning - times.keys()
        if idle and self.sources is not None:
            here = [each for each in self.sources.states(idle) if each.here]
            times |= dict.fromkeys(each.name for each in here if each.reports or each.waits)
            idle &= {each.name for each in here} | self._expected
            idle -= times.keys()
        times |= watermarks.times([*times, OWN])
        value = watermarks.value if math.isfinite(watermarks.value) else None
        newest = {LEFT: watermarks.newest} if watermarks.newest > NEVER else {}
        self._left &= times.keys()
        return value, times, sorted(idle), watermarks.times(read) | newest, sorted(self._left)

    def restore(self, saved: Saved) -> None:
        """Resume where an earlier run has stopped.

        Raises StateError if an earlier version of s4node has saved it.
        """
        if len(saved) != _SAVED:
            raise StateError(
                f"the times of stream {self.name!r} were saved by an earlier version of s4node; go "
                f"on with that version, or start with other state (s4.state.folder)"
            )
        self.unsettled = True
        value, times, idle, read, left = saved
        read = {**read}
        self.watermarks.newest = read.pop(LEFT, NEVER)
        self.watermarks.restore(NEVER if value is None else value, {**times, **read})
        self._unlisted.update(times, idle, read)
        self._returning |= times.keys() - {OWN}
        for name in idle:
            self.watermarks.join(name)
            self.watermarks.rest(name)
        self._returning.update(idle)
        self._expected.update(idle)
        self._left.update(left)
