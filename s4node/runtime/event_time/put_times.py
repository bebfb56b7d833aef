"""The event time of what a task puts on streams, or sends on to other tasks. Pure.

Rules
- What is put on a stream is at the lowest watermark of the streams from which it is put. In a cycle
  only the streams from outside count, so events on their way around may be late.
- A task that reads an input of which it sends on the events of other tasks is at the lowest time of
  what it reads itself. Until it knows whether there are such events, it says nothing.
- It is idle on a stream while nothing is waited for where its events come from.
- A stream that is put from streams without time is ``untimed``: its events have it. So the task is
  at the latest of those that it has for itself; what it sends to others comes on top of that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from s4node.app.app import App
from s4node.app.plan.cycles import components
from s4node.offsets.watermarks import NEVER, Watermarks

OWN = "own"
"""The source of what a task has put for itself."""


class PutTimes:
    """The ``times`` by stream: what the task puts from now on is not older.

    ``idle`` are the streams on which it is idle. ``feeders`` are the streams from which each one is
    put, ``watermarks`` those of streams with time. The owner sets ``on_passed_on``, which is called
    with inputs that are at a later time for other tasks, and notes the streams that are ``behind``:
    one from which they are put has changed.
    """

    def __init__(
        self,
        feeders: Mapping[str, Sequence[str]],
        watermarks: Mapping[str, Watermarks],
        untimed: Collection[str] = (),
    ) -> None:
        self.untimed = untimed
        self.times = dict.fromkeys([*feeders, *untimed], NEVER)
        self.idle: set[str] = set()
        self.on_passed_on: Callable[[Collection[str]], None] = lambda _: None
        self.feeders = feeders
        self.behind = set(feeders)
        self._silent: set[str] = set()  # the streams whose feeders all are
        self._watermarks = watermarks
        self._read: dict[str, bool] = {}  # inputs, and whether their events are known to be ours
        self._passed_on: set[str] = set()
        # others wait until the task is known to them: the first commit sends it
        self._saved = None if untimed else (dict(self.times), set(self.idle))

    def read(self, stream: str) -> None:
        """Say of an input that the task reads how far it is, if other tasks wait for that."""
        self._read.setdefault(stream, False)
        self.times.setdefault(stream, NEVER)

    def keeps(self, stream: str) -> None:
        """Note that the events of an input are the task's own."""
        self._read[stream] = True

    def passes(self, stream: str) -> None:
        """Note that the events of an input may be other tasks'."""
        self._passed_on.add(stream)
        self.times.setdefault(stream, NEVER)

    def passes_on(self, stream: str) -> bool:
        """Return True if other tasks wait for what is read of an input."""
        return stream in self._read or stream in self._passed_on

    def advance(
        self, waits: Callable[[str], bool], reports: Callable[[str], Collection[str]]
    ) -> list[str]:
        """Derive the times; return the streams, put from others, whose time has risen.

        ``waits`` says of an input if events of it wait, and ``reports`` which of its sources are
        other tasks.
        """
        if not (self.behind or self.untimed or self._read or self._passed_on):
            return []
        put, passed = list[str](), list[str]()
        for name in self.behind:
            self._silent.discard(name)
            if all(self._watermarks[each].is_silent for each in self.feeders[name]):
                self._silent.add(name)
            if self._rises(name, lowest(self._watermarks, self.feeders[name])):
                put.append(name)
        self.behind.clear()
        self.idle = {*self._silent}
        for name in self.untimed:
            self._rises(name, self._watermarks[name].times([OWN]).get(OWN, NEVER))
        for name in self._read.keys() - self._passed_on:
            if self._read[name] or not waits(name):
                self.idle.add(name)
        for name in self._passed_on:
            time = self._watermarks[name].lowest_but(reports(name))
            if time is None:
                self.idle.add(name)
            elif self._rises(name, time):
                passed.append(name)
        if passed:
            self.on_passed_on(passed)
        return put

    def _rises(self, name: str, time: float) -> bool:
        rises = time > self.times[name]
        if rises:
            self.times[name] = time
        return rises

    @property
    def moved(self) -> bool:
        """True if receivers may get later times after another commit."""
        return (self.times, self.idle) != self._saved

    def save(self) -> dict[str, float]:
        self._saved = dict(self.times), set(self.idle)
        reported = self.times.keys() - self.untimed
        return {name: self.times[name] for name in reported if self.times[name] > NEVER}

    def restore(self, saved: Mapping[str, float]) -> list[str]:
        """Resume where the last commit was; return the streams of ``save`` that are put."""
        for name in saved.keys() & self._watermarks.keys() - self.feeders.keys():
            self.passes(name)
        self.times |= {name: time for name, time in saved.items() if name in self.times}
        return [name for name in saved if name in self.feeders]


def feeders_in(
    app: App, edges: Mapping[str, set[str]], timed: Collection[str]
) -> dict[str, list[str]]:
    """By stream of ``app``, the ``timed`` streams from which it is put."""
    group = {name: frozenset(each) for each in components(edges) for name in each}
    found = {}
    for name in app.streams if timed else ():
        ours = group.get(name, frozenset((name,)))
        feeders = [
            other
            for other, to in edges.items()
            if other not in ours and other in timed and to & ours
        ]
        if feeders:
            found[name] = feeders
    return found


def lowest(watermarks: Mapping[str, Watermarks], names: Iterable[str]) -> float:
    """The lowest watermark of these streams, without silent ones; the highest if all of them are.

    So it does not depend on which one was silent first.
    """
    found = [watermarks[name] for name in names if name in watermarks]
    awaited = [each.value for each in found if not each.is_silent]
    return min(awaited) if awaited else max((each.value for each in found), default=NEVER)
