"""Tasks that write down what they do, in every mode, and the rules that their traces must keep.

A trace is a list of steps in the order in which they happened, over all threads. A step is the
begin or the end of an event, of a window, or the one moment of a commit.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import trio

from s4node import Callback, Collector, Coordinator, Envelope, Event


class Click(Event):
    user: str
    n: int = 0


class Step(NamedTuple):
    """``what`` is event, window or commit; ``edge`` begin or end. The rest is of the event."""

    task: int
    what: str
    edge: str
    input: tuple[str, int] = ("", 0)
    offset: int = -1
    key: Any = None


class Trace:
    def __init__(self, *, commit_every: int = 0) -> None:
        self.steps: list[Step] = []
        self.threads: dict[str, set[int]] = defaultdict(set)
        self.commit_every = commit_every
        self.tasks: list[Traced] = []
        self.pool = ThreadPoolExecutor(8)
        self.chance = random.Random(7)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def note(self, *step: Any) -> None:
        self.steps.append(Step(*step))

    def seconds(self) -> float:
        """How long an event takes: mostly next to nothing, sometimes three milliseconds."""
        return self.chance.choice((0, 0, 0, 0.0005, 0.003))

    @property
    def ended(self) -> int:
        return sum(step[1:3] == ("event", "end") for step in self.steps)

    def close(self) -> None:
        self.pool.shutdown()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Traced:
    """A task of any mode: it notes, counts without a lock, and asks for commits."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.count = 0
        self.windowed = 0
        self.index = -1
        trace.tasks.append(self)

    def init(self, config: Mapping[str, str], context: Any) -> None:
        self.index = int(context.task_name.rpartition(" ")[2])

    def begin(self, envelope: Envelope, coordinator: Coordinator) -> int:
        """An event begins; returns what was counted before it."""
        self.trace.threads["process"].add(threading.get_ident())
        place = (envelope.stream, envelope.partition)
        self.trace.note(self.index, "event", "begin", place, envelope.offset, envelope.key)
        every = self.trace.commit_every
        if every and envelope.offset % every == every - 1:
            coordinator.commit()
        return self.count

    def end(self, envelope: Envelope, counted: int) -> None:
        """It ends: with one event at a time nobody else has counted meanwhile."""
        self.count = counted + 1
        place = (envelope.stream, envelope.partition)
        self.trace.note(self.index, "event", "end", place, envelope.offset, envelope.key)

    def window(self, collector: Collector, coordinator: Coordinator) -> None:
        self.trace.threads["window"].add(threading.get_ident())
        self.trace.note(self.index, "window", "begin")
        counted = self.count
        time.sleep(0.001)
        self.windowed += self.count - counted + 1
        self.trace.note(self.index, "window", "end")


class Plain(Traced):
    def process(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> None:
        counted = self.begin(envelope, coordinator)
        time.sleep(self.trace.seconds())
        self.end(envelope, counted)


class Async(Traced):
    async def process(
        self, envelope: Envelope, collector: Collector, coordinator: Coordinator
    ) -> None:
        counted = self.begin(envelope, coordinator)
        await trio.sleep(self.trace.seconds())
        self.end(envelope, counted)


class FromThreads(Traced):
    def process_async(
        self, envelope: Envelope, collector: Collector, coordinator: Coordinator, callback: Callback
    ) -> None:
        counted = self.begin(envelope, coordinator)
        seconds = self.trace.seconds()

        def work() -> None:
            time.sleep(seconds)
            self.end(envelope, counted)
            callback.complete()

        self.trace.pool.submit(work)


class FromFutures(Traced):
    def process_async(
        self, envelope: Envelope, collector: Collector, coordinator: Coordinator, callback: Callback
    ) -> None:
        counted = self.begin(envelope, coordinator)

        def ended(future: Future[None]) -> None:
            self.end(envelope, counted)
            callback.complete()

        self.trace.pool.submit(time.sleep, self.trace.seconds()).add_done_callback(ended)


class FromAsyncio(Traced):
    def process_async(
        self, envelope: Envelope, collector: Collector, coordinator: Coordinator, callback: Callback
    ) -> None:
        counted = self.begin(envelope, coordinator)
        seconds = self.trace.seconds()

        async def work() -> None:
            await asyncio.sleep(seconds)
            self.end(envelope, counted)
            callback.complete()

        asyncio.run_coroutine_threadsafe(work(), self.trace.loop)


class AtOnce(Traced):
    def process_async(
        self, envelope: Envelope, collector: Collector, coordinator: Coordinator, callback: Callback
    ) -> None:
        self.end(envelope, self.begin(envelope, coordinator))
        callback.complete()


MODES: dict[str, tuple[Callable[[Trace], Traced], Mapping[str, str]]] = {
    "on the loop": (Plain, {}),
    "in threads": (Plain, {"job.container.thread.pool.size": "4"}),
    "async def": (Async, {}),
    "callbacks from threads": (FromThreads, {}),
    "callbacks from futures": (FromFutures, {}),
    "callbacks from asyncio": (FromAsyncio, {}),
    "callbacks at once": (AtOnce, {}),
}


# -- the rules ------------------------------------------------------------------------------------


def of_task(trace: Trace, task: int) -> list[Step]:
    return [step for step in trace.steps if step.task == task]


def most_outstanding(steps: list[Step]) -> int:
    now = most = 0
    for step in steps:
        if step.what == "event":
            now += 1 if step.edge == "begin" else -1
            most = max(most, now)
    return most


def beside(steps: list[Step], what: str) -> list[Step]:
    """The steps of one task that happened beside a window or commit of it: there must be none."""
    outstanding: list[Step] = []
    alone: Step | None = None
    found = []
    for step in steps:
        if alone is not None and step != alone._replace(edge="end"):
            found.append(step)
        if step.what == "event" and step.edge == "begin":
            outstanding.append(step)
        elif step.what == "event":
            outstanding.remove(step._replace(edge="begin"))
        elif step.what == what and step.edge == "begin":
            found += outstanding
        if step.what == "window":
            alone = step if step.edge == "begin" else None
    return found


def out_of_order(steps: list[Step], edge: str, *, by_key: bool = False) -> list[Step]:
    """Events of one task that began, or ended, before one of their input that comes earlier."""
    last: dict[Any, int] = {}
    found = []
    for step in steps:
        if (step.what, step.edge) == ("event", edge):
            lane = (step.input, step.key) if by_key else step.input
            if step.offset <= last.get(lane, -1):
                found.append(step)
            last[lane] = step.offset
    return found


def overlaps(steps: list[Step], *, by_key: bool) -> list[Step]:
    """Events that began while another of their task, or of their key, was outstanding."""
    open_ = set()
    found = []
    for step in steps:
        if step.what == "event":
            lane = step.key if by_key else None
            if step.edge == "end":
                open_.discard(lane)
            elif lane in open_:
                found.append(step)
            else:
                open_.add(lane)
    return found
