"""The event loop of a container, by itself: two benchmarks.

loop: the loop's own cost of an event and of a batch, with 1, 10 and 100 tasks. The limit is a bare
loop that calls the same ``process`` with the same arguments. The rest is the loop's own: making
envelopes, choosing, the gate, counting, and reporting to the input.

async-io: events that each await a simulated remote call of 1 to 200 ms, in one container. Ten tasks
have 1, 10 and 100 events in flight each. The limit is Little's law: the events in flight, divided
by the mean latency of the calls. The figure counts calls that end between the first and the last
tenth of the run.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from typing import Any

import trio
import trio.lowlevel

from benchmarks.runner import Result, container_of, middle, running
from s4node.app.stream_task import Collector, Coordinator, Envelope, TaskApp
from s4node.config import settings
from s4node.config.config import Config
from s4node.events.event import Event
from s4node.events.keys import Partitioner, hasher_named
from s4node.offsets.input_progress import InputProgress
from s4node.offsets.receipts import BatchReceipt
from s4node.offsets.system import InputBatch, SystemStreamPartition
from s4node.process import log_setup
from s4node.runtime.container import hooks
from s4node.runtime.container.wiring import MAX_STEP_SECONDS
from s4node.runtime.loop.pipeline import Pipeline
from s4node.runtime.loop.run_loop import RunLoop
from s4node.runtime.task.actions import Asked
from s4node.runtime.task.settings import TaskSettings
from s4node.runtime.task.stream_task_processor import StreamTaskProcessor
from s4node.runtime.task.task import Task
from s4node.runtime.task.task_context import StreamCollector
from s4node.stages.executors import STREAM
from s4node.systems.memory import MemorySystem

BATCH = 2048


class Number(Event):
    number: int


class Sum:
    def __init__(self) -> None:
        self.total = 0

    def process(self, envelope: Envelope, _to: Collector, _of: Coordinator) -> None:
        self.total += envelope.message.number


class Sums(TaskApp):
    """A sum in each partition."""

    def __init__(self) -> None:
        super().__init__("loop", self._make, inputs=["memory.numbers"])
        self.sums: list[Sum] = []

    def _make(self) -> Sum:
        self.sums.append(Sum())
        return self.sums[-1]

    def on_init(self) -> None:
        self.create_input_stream("numbers", types=Number)


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for whole batches and for small ones, for each number of tasks."""
    runs, events = (1, 40_000) if quick else (7, 2_000_000)
    results = []
    for batch, part in ((BATCH, 1), (100, 2), (10, 8), (1, 20)):
        wanted = events // part
        bare = middle([_bare(wanted) / wanted for _ in range(runs)])
        for tasks in (1, 10, 100):
            say(f"{runs} runs of {tasks} tasks, batches of {batch}")
            batches = _batches(wanted, batch, tasks)
            total = batches * batch * tasks
            found = [trio.run(_looped, batches, batch, tasks) for _ in range(runs)]
            each = middle([one for one, _ in found]) / total
            own = each - bare
            results.append(
                Result(
                    "loop",
                    events=total * runs,
                    seconds=each * total * runs,
                    events_per_s=1 / each,
                    limit_events_per_s=1 / bare,
                    ratio=bare / each,
                    cpu_s_per_million=each * 1e6,
                    checked=all(checked for _, checked in found),
                    notes={
                        "tasks": tasks,
                        "batch": batch,
                        "own_ns_an_event": own * 1e9,
                        "own_us_a_batch": own * batch * 1e6,
                    },
                )
            )
    return results


def _batches(events: int, batch: int, tasks: int) -> int:
    """The number of batches of each task."""
    return max(1, events // (batch * tasks))


def _bare(events: int) -> float:
    """The seconds of ``events`` calls of ``process`` in a loop."""
    task, collector, asked = Sum(), StreamCollector(Sums(), []), Asked()
    envelopes = [
        Envelope("memory", "numbers", 0, number, None, Number(number)) for number in range(BATCH)
    ]
    process = task.process
    began = time.process_time()
    for _ in range(events // BATCH):
        for envelope in envelopes:
            process(envelope, collector, asked)
    for envelope in envelopes[: events % BATCH]:
        process(envelope, collector, asked)
    return time.process_time() - began


class _Feed:
    """One task and its input: keeps a batch or two in its stage."""

    def __init__(self, task: Task, ssp: SystemStreamPartition, size: int, batches: int) -> None:
        self.task = task
        self.left = batches
        self._ssp = ssp
        self._size = size
        self._next = 0
        self._numbers = [Number(number) for number in range(size)]
        self._progress = InputProgress(ssp, 0, self)

    def reject(self, *_: object) -> None:
        """Nothing is refused."""

    @property
    def safe(self) -> int:
        return self._progress.safe

    def offer(self) -> bool:
        """Offer a batch if none waits; return True if one was offered."""
        if not self.left or self.task.backlog.stages[self._ssp].depth > self._size:
            return False
        batch = InputBatch(self._ssp, self._next, self._size, 0, 0)
        batch.events = self._numbers
        batch.receipt = BatchReceipt(self._progress, self._next, self._next + self._size)
        self._next += self._size
        self.left -= 1
        self.task.backlog.offer(batch)
        return True


class _Feeding:
    """The shell of tasks that are fed after each turn, and put nothing."""

    def __init__(self, feeds: list[_Feed], done: trio.Event) -> None:
        self.loop: RunLoop
        self._feeds = feeds
        self._done = done

    def after_turn(self) -> None:
        for feed in self._feeds:
            if feed.left and feed.offer():
                self.loop.add(feed.task)
        if not any(feed.left for feed in self._feeds):
            self._done.set()

    def hand_on(self, *_: Any) -> None:
        """Nothing to do: tasks put no events."""

    def commit(self, _: Task) -> bool:
        return False

    def replace(self, _: Task) -> None:
        """Never called: no task fails."""

    def arrived(self) -> bool:
        return True

    def shut_down(self) -> None:
        """Never called: no task asks for it."""


async def _looped(batches: int, size: int, tasks: int) -> tuple[float, bool]:
    """The seconds of a loop of ``tasks`` tasks, and True if the sums are right."""
    app, config = Sums(), Config.from_values({"s4.cluster.partitions": str(tasks)})
    await hooks.declare(app, config, tasks)
    pipeline = Pipeline(app, config)
    feeds: list[_Feed] = []

    done = trio.Event()
    feeding = _Feeding(feeds, done)
    loop = feeding.loop = RunLoop(
        max_events=config[settings.STEP_MAX_EVENTS],
        max_seconds=MAX_STEP_SECONDS,
        shell=feeding,
    )
    feeds += [_feed(app, config, pipeline, loop, number, size, batches) for number in range(tasks)]
    for feed in feeds:
        await loop.start(feed.task)
        feed.offer()
        feed.offer()
        loop.add(feed.task)
    began = time.process_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        await done.wait()
        while any(feed.safe < batches * size for feed in feeds):
            await trio.lowlevel.checkpoint()
        seconds = time.process_time() - began
        loop.drain()
    expected = batches * sum(range(size))
    return seconds, all(one.total == expected for one in app.sums)


def _feed(
    app: Sums,
    config: Config,
    pipeline: Pipeline,
    loop: RunLoop,
    number: int,
    size: int,
    batches: int,
) -> _Feed:
    ssp = SystemStreamPartition("memory", "numbers", number)
    chosen = TaskSettings.from_config(config)
    task = Task(
        app,
        number,
        stages=pipeline.stages_of(number),
        clock=trio.current_time,
        held=pipeline.order.held,
        processor=StreamTaskProcessor(
            app, number, trio.current_time, name=f"Partition {number}", settings=chosen
        ),
        settings=chosen,
    )
    task.backlog.add_input(ssp, pipeline.stage_of("numbers", STREAM, number))
    loop.adopt(task)
    return _Feed(task, ssp, size, batches)


# -- calls that are awaited ------------------------------------------------------------------------

TASKS = 10
KEYS = 100_000
SHORTEST, LONGEST = 0.001, 0.2
MARK = 0.9


class Request(Event):
    user: int
    seconds: float


class Requests(MemorySystem):
    """A system with a stream of requests; its address is their number."""

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        self.create("requests", TASKS)
        for partition, requests in enumerate(_requests(int(self.address))):
            self.put("requests", partition, *requests)


def _requests(events: int) -> list[list[Request]]:
    """The requests of each partition: the same at each call, equally many, of its own users."""
    draw = random.Random(events)
    home = Partitioner(TASKS, hasher_named("crc32m")).partition_of
    users: list[list[int]] = [[] for _ in range(TASKS)]
    for user in range(KEYS):
        users[home(user)].append(user)
    return [
        [
            Request(draw.choice(mine), draw.uniform(SHORTEST, LONGEST))
            for _ in range(events // TASKS)
        ]
        for mine in users
    ]


class Remote:
    """Awaits each request's answer."""

    def __init__(self, ended: list[float]) -> None:
        self._ended = ended

    async def process(self, envelope: Envelope, _to: Collector, _of: Coordinator) -> None:
        await trio.sleep(envelope.message.seconds)
        self._ended.append(time.perf_counter())


class Calls(TaskApp):
    """Tasks that call; ``ended`` has the time when each call returned."""

    def __init__(self) -> None:
        super().__init__("async-io", lambda: Remote(self.ended), inputs=["memory.requests"])
        self.ended: list[float] = []

    def on_init(self) -> None:
        self.create_input_stream("requests", types=Request, key="user")


def run_async(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each number in flight and order."""
    log_setup.configure("warning", "auto")
    seconds = 1.5 if quick else 12.0
    results = []
    for order in ("arrival", "key"):
        for outstanding in (10, 100, 1000):
            say(f"{outstanding} in flight, order by {order}")
            results.append(_measured(outstanding, order, seconds))
    return results


def _measured(outstanding: int, order: str, seconds: float) -> Result:
    mean = (SHORTEST + LONGEST) / 2
    events = int(outstanding / mean * seconds) // TASKS * TASKS
    drawn = [request.seconds for requests in _requests(events) for request in requests]
    mean = sum(drawn) / len(drawn)
    cpu = time.process_time()
    ended = trio.run(_run, events, outstanding, order)
    cpu = time.process_time() - cpu
    first, last = events // 10, events - events // 10
    taken = ended[last - 1] - ended[first - 1]
    rate, limit = (last - first) / taken, outstanding / mean
    return Result(
        "async-io",
        events=events,
        seconds=taken,
        events_per_s=rate,
        limit_events_per_s=limit,
        ratio=rate / limit,
        cpu_s_per_million=cpu / events * 1e6,
        checked=len(ended) == events,
        notes={"outstanding": outstanding, "order": order, "mark": MARK},
    )


async def _run(events: int, outstanding: int, order: str) -> list[float]:
    app = Calls()
    with tempfile.TemporaryDirectory() as folder:
        values: dict[str, Any] = {
            "s4.state.folder": folder,
            "systems.memory.type": "benchmarks.loop:Requests",
            "systems.memory.address": str(events),
            "streams.requests.samza.offset.default": "oldest",
            "task.max.concurrency": str(outstanding // TASKS),
            "task.order": order,
        }
        async with running(container_of(app, values)):
            while len(app.ended) < events:  # noqa: ASYNC110 - it polls rarely
                await trio.sleep(0.05)
    return app.ended
