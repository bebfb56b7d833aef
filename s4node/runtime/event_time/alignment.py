"""Alignment: which inputs of a task run ahead of others in time, and so wait for them. Pure.

Rules
- An input waits while it is further ahead of the slowest source than its stream allows. It is not
  read meanwhile, so a log that is read fast opens no windows without end.
- The sources of all inputs count whose events meet those of the input at a PE with windows or
  timers, be it some hops later.
- A source that is idle or has ended holds nobody, nor does one without news since the start, unless
  events of it are there to be read: then nothing is read before the first of them.
- The slowest source is never ahead, so one always goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

from s4node.app.app import App
from s4node.app.plan import dataflow
from s4node.app.stream import InputStream
from s4node.offsets.watermarks import NEVER, Watermarks


class Alignment:
    """The inputs of a task that have time.

    ``edges`` are the app's; ``meetings`` has the streams of each PE with windows or timers.
    ``waiting`` are the inputs that wait, as last asked.
    """

    def __init__(
        self,
        app: App,
        edges: Mapping[str, AbstractSet[str]],
        meetings: Iterable[Collection[str]],
        watermarks: Mapping[str, Watermarks],
    ) -> None:
        self.waiting: set[str] = set()
        self._watermarks = watermarks
        self._drift: dict[str, float] = {}
        self._partners: dict[str, list[str]] = {}
        inputs = {
            name: dataflow.reached(edges, name)
            for name, stream in app.streams.items()
            if name in watermarks and isinstance(stream, InputStream)
        }
        met = [{name for name, to in inputs.items() if to & set(each)} for each in meetings]
        for name in inputs:
            time = app.streams[name].time
            partners = set[str]().union(*(each for each in met if name in each))
            if time is not None and partners:
                self._drift[name] = time.drift
                self._partners[name] = sorted(partners)

    def must_wait(
        self, stream: str, source: str, ended: Collection[str], unread: Collection[str]
    ) -> bool:
        """Return True if a source of an input is too far ahead; the others are sources, too."""
        self.waiting.discard(source)
        if stream not in self._partners:
            return False
        own = self._watermarks[stream]
        time = own.times([source]).get(source, NEVER) - own.lateness
        partners = [self._watermarks[each] for each in self._partners[stream]]
        slowest = min(each.slowest(ended, unread) for each in partners)
        if time <= slowest or time - slowest <= self._drift[stream]:
            return False
        self.waiting.add(source)
        return True
