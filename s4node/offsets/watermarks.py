"""The watermark of a stream in one task: up to which time its events have come. Pure.

Theory of operation

A window from 10:00 to 10:05 may be counted when no more of its events come. Nobody knows that for
certain, so the task derives a *watermark*: the time up to which all events are assumed to have
come. An event before the watermark still counts if its window has not ended. After that, and after
the grace of the window, it is late.

A stream has several *sources*: producers, partitions of an input, other tasks. Each source sends
its own events about in order, but one may be minutes behind another. So the watermark follows the
slowest source, not the latest event. An example with two sources and a lateness of 10 s:

    a is at 10:06:00, b at 10:02:00     the watermark is 10:01:50
    b sends an event of 10:03           it is counted in the window until 10:05
    b is at 10:05:10                    the watermark is 10:05:00: the window ends

With the latest event of all the watermark would have been 10:05:50 in the first line. The window
would have ended, and the event of 10:03 would have been late.

A source that sends nothing would hold all windows open for ever. So it is *idle* after a while, and
is not waited for. The hard part is to call a source idle only if it had the chance to send:

    b waits for credit for a minute, because this task is slow
    b counted as idle: the watermark goes to 10:05:50, and b's events of 10:03 are late
    the minute does not count: the watermark waits for b

Rules
- A source is at the latest time of its events, or at the time that it has reported. Its watermark
  is that less the lateness of the stream.
- A source is active or idle; one that has finished is removed. The watermark of the stream is the
  lowest of the active sources. The others do not count as infinity: a stream without an active
  source would end all windows that will ever be.
- It is derived when the lowest source has moved, or who is active has changed; no other news can
  change it. So it costs nothing that the other sources move, as they do with each event.
- The watermark never decreases, because windows that have ended stay so. A source that joins or
  returns begins at the current watermark; what it sends from before that is late.
- A source becomes idle after ``idle`` seconds without news in which it could have sent. Time in
  which it waits for credit, or its events wait here, does not count.
- If all sources are idle, the watermark goes to the latest time of all, less the lateness. So all
  windows end but those of the latest events. It does not pass the clock: one producer whose clock
  is a day ahead would make the events of all others late for a day.
- While fewer sources are known than there must be, there is no watermark. After a start the first
  of two partitions would otherwise end the windows of the second.
- A stream is silent if all its sources are idle, or if it has had none for ``idle`` seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

NEVER = -math.inf
"""The watermark before any event."""


class _Source:
    __slots__ = ("idle", "news", "time", "waited")

    def __init__(self, time: float) -> None:
        self.time = time
        self.idle = False
        self.news = False  # it has sent or reported anything
        self.waited = 0.0  # seconds without news in which it could have sent


class Watermarks:
    """The sources of one stream in one task, and its watermark, the ``value``.

    There are at least ``expected`` sources. ``newest`` is the latest time of any source so far. By
    ``beyond`` the watermark is later than that when no source is active; ``wall`` gives Unix time.
    It joins ``marked`` when the value may rise, or the stream become silent or be so no longer.
    """

    __slots__ = (
        "_active",
        "_alone",
        "_changed",
        "_expected",
        "_first",
        "_sources",
        "_wall",
        "beyond",
        "idle",
        "lateness",
        "marked",
        "newest",
        "value",
    )

    def __init__(
        self,
        lateness: float = 0.0,
        idle: float = math.inf,
        expected: int = 0,
        *,
        beyond: float | None = None,
        wall: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.lateness = lateness
        self.idle = idle
        self.marked: set[Watermarks] = set()
        self.beyond = -lateness if beyond is None else beyond
        self.value = self.newest = NEVER
        self._wall = wall
        self._sources: dict[str, _Source] = {}
        self._active = 0  # the number of active sources
        self._first: float | None = None  # the lowest time of these; None if that is not known
        self._changed = True  # so the value may be another one
        self._alone = 0.0  # seconds without any source
        self.expect(expected)

    def __contains__(self, source: str) -> bool:
        return source in self._sources

    @property
    def sources(self) -> Collection[str]:
        return self._sources.keys()

    def expect(self, sources: int) -> None:
        """Have no watermark while there are fewer sources."""
        self._expected = sources
        self._mark()

    def is_idle(self, source: str) -> bool:
        return source in self._sources and self._sources[source].idle

    def active_time(self, source: str) -> float | None:
        """The time of a source that is waited for; None if it is not."""
        known = self._sources.get(source)
        return None if known is None or known.idle else known.time

    @property
    def is_silent(self) -> bool:
        """True if nothing of the stream is waited for."""
        return not self._active if self._sources else self._alone >= self.idle

    @property
    def waits(self) -> bool:
        """True if the stream may become silent, or a source idle."""
        if self.idle == math.inf:
            return False
        if not self.is_silent:
            return True
        # the clock has yet to pass the latest time
        return len(self._sources) >= self._expected and self.value < self.newest + self.beyond

    @property
    def holding(self) -> str:
        """The active source with the earliest time, which holds the watermark back; or empty."""
        if 0 < len(self._sources) < self._expected:
            return f"{self._expected - len(self._sources)} sources that are not known yet"
        active = {name: each.time for name, each in self._sources.items() if not each.idle}
        return min(active, key=active.__getitem__, default="")

    @property
    def furthest(self) -> tuple[float, str]:
        """The latest time of the sources, and which one is there; NEVER and empty without any."""
        times = ((each.time, name) for name, each in self._sources.items())
        return max(times, default=(NEVER, ""))

    def lowest_but(self, others: Collection[str]) -> float | None:
        """The lowest time of the active sources without ``others``; None if there is none."""
        times = [s.time for name, s in self._sources.items() if not s.idle and name not in others]
        return min(times, default=None)

    def slowest(self, ended: Collection[str] = (), unread: Collection[str] = ()) -> float:
        """The lowest watermark of the active sources with news; infinity if there is none.

        A source with events that are ``unread`` counts without news, too.
        """
        times = [
            each.time
            for name, each in self._sources.items()
            if (each.news or name in unread) and not each.idle and name not in ended
        ]
        return min(times, default=math.inf) - self.lateness

    def join(self, source: str) -> None:
        """Add a source, if it is new, at the current watermark."""
        if source not in self._sources:
            self._sources[source] = _Source(self.value + self.lateness)
            self._active += 1
            self._mark()

    def reach(self, source: str, time: float) -> None:
        """Note that a source is at ``time``: none of its events from now on is much older."""
        known = self._sources.get(source)
        if known is None:
            self.join(source)
            known = self._sources[source]
        known.waited, known.news = 0.0, True
        if known.idle:
            known.idle = False
            self._active += 1
            self._mark()
        if time > known.time:
            if known.time == self._first:
                self._mark()
            known.time = time
        if time > self.newest:
            self.newest = time

    def rest(self, source: str) -> None:
        """Wait for a source no longer, until there is news of it."""
        if source in self._sources and not self._sources[source].idle:
            self.advance()
            self._sources[source].idle = True
            self._active -= 1
            self._mark()

    def leave(self, source: str) -> None:
        if source in self._sources:
            self.advance()
            self._active -= not self._sources.pop(source).idle
            self._mark()

    def quiet(self, seconds: float) -> list[str]:
        """The active sources that have had no news for longer than these seconds.

        Also those that are idle after them: of all these it matters whether they could have sent.
        """
        return [
            name
            for name, each in self._sources.items()
            if not each.idle and (each.waited > 0 or seconds >= self.idle)
        ]

    def wait(self, seconds: float, blocked: Collection[str] = ()) -> None:
        """Count seconds that have passed, except for sources that could not send.

        Sources without any news become idle first, so that the watermark moves to the times of the
        others before these become idle.
        """
        if not self._sources:
            self._alone += seconds
            self._mark()
            self.advance()
            return
        self._alone = 0.0
        for news in (False, True):
            self.advance()
            for name, source in self._sources.items():
                if source.news is news and not source.idle and name not in blocked:
                    source.waited += seconds
                    if source.waited >= self.idle:
                        source.idle = True
                        self._active -= 1
                        self._mark()

    @property
    def lowest(self) -> float:
        """The watermark that the active sources allow; NEVER if there is none."""
        if len(self._sources) < self._expected or not self._active:
            return NEVER
        if self._first is None:
            self._first = min(each.time for each in self._sources.values() if not each.idle)
        return self._first - self.lateness

    def _mark(self) -> None:
        """Note that the value, or whether the stream is silent, may be another."""
        self._first, self._changed = None, True
        self.marked.add(self)

    def advance(self) -> bool:
        """Derive the watermark, if it may have changed; return True if it has risen.

        That of a silent stream may change again by the clock, until it is at the latest time.
        """
        if not self._changed:
            return False
        lowest, self._changed = self.lowest, False
        if lowest == NEVER and self.is_silent and len(self._sources) >= self._expected:
            lowest = min(self.newest, self._wall()) + self.beyond
            if lowest < self.newest + self.beyond:
                self._mark()
        if lowest <= self.value:
            return False
        self.value = lowest
        return True

    def times(self, sources: Iterable[str]) -> dict[str, float]:
        known = {name: self._sources[name].time for name in sources if name in self._sources}
        return {name: time for name, time in known.items() if time > NEVER}

    def restore(self, value: float, times: Mapping[str, float | None]) -> None:
        """Resume where an earlier run has stopped; None is the time of a source without news."""
        self.value = value
        self._mark()
        for name, time in times.items():
            self.join(name)
            if time is not None:
                self.reach(name, time)
