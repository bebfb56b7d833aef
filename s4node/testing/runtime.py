"""An app's tasks in memory: what stands in for a container during a test.

Rules
- The tasks, their gates, stages, dispatch plans and timers are those of a node. Left out are
  sockets, processes, real time, and threads for tasks; output streams end in lists.
- At rest, all is processed but for what waits for time, for room, or for the world outside.
- Time moves from one moment at which something is due to the next.
"""

from __future__ import annotations

import inspect
import math
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import trio
import trio.testing

from s4node.app.app import App
from s4node.app.stream import InputStream, OutputStream, Stream
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import GraphError, S4Error, WouldBlock
from s4node.events.event import EventBatch
from s4node.events.keys import Partitioner, hasher_named
from s4node.offsets.startpoint import Specific
from s4node.runtime.container import hooks
from s4node.runtime.loop.pipeline import Pipeline
from s4node.runtime.loop.step_runner import StepRunner
from s4node.runtime.outputs.dispatch import Dispatch
from s4node.runtime.task.coordinator_requests import CoordinatorRequests
from s4node.runtime.task.gate import Op
from s4node.runtime.task.settings import TaskSettings
from s4node.runtime.task.stream_task_processor import processor_of
from s4node.runtime.task.task import Task
from s4node.state.database import Database
from s4node.state.task_state import TaskState
from s4node.testing.client import ClientStream, InputClient
from s4node.testing.failures import Failures
from s4node.testing.guest import Guest

T = TypeVar("T")

_MOMENT = 1e-6
"""Seconds by which time moves where something is due that is a rounding error away."""


class Runtime:
    """Runs ``app``; every call returns when the app has come to rest.

    What makes a node's app fail is raised by the call during which it happens.
    """

    def __init__(self, app: App, config: Config) -> None:
        self.app = app
        self.config = config
        self.now = 0.0
        self.failed = False
        self.asked_to_stop = False
        self.tasks: list[Task] = []
        self.clients: dict[str, ClientStream] = {}
        self.put: dict[str, list[Any]] = {}
        self.overflowing: set[str] = set()
        self.failures = Failures()
        self._ready: deque[Task] = deque()
        self._held: deque[EventBatch] = deque()
        self._parked: list[trio.Event] = []
        self._guest: Guest | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._states: dict[Task, TaskState] = {}
        self._requests = CoordinatorRequests(self._shut_down, self._add)
        self._steps = StepRunner(self._add)
        self._dispatch: Dispatch
        self._pipeline: Pipeline

    # -- life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Declare the app's graph, make its tasks, start its sources."""
        app, config = self.app, self.config
        if app._frozen and type(app).on_init is not App.on_init:
            raise GraphError(
                f"app {app.name!r} has run before and declares its graph in on_init; give AppTest "
                f"the class, or a new object"
            )
        app.clock = self._clock
        app.spawn = self._spawn
        if any(map(inspect.iscoroutinefunction, (app.on_init, app.on_start, app.on_close))):
            self._guest = Guest(self._clock)
        partitions = config[settings.CLUSTER_PARTITIONS]
        self._run(lambda: hooks.declare(app, config, partitions))
        for prototype, _ in app.prototypes.values():
            self.failures.wrap(prototype)
            if prototype.is_async or inspect.iscoroutinefunction(prototype.on_time):
                self._guest = self._guest or Guest(self._clock)
        if app.has_tasks:
            self._guest = self._guest or Guest(self._clock)
        self._dispatch = Dispatch(
            app, Partitioner(partitions, hasher_named(config[settings.HASHER]))
        )
        self._pipeline = Pipeline(app, config)
        for stream in app.streams.values():
            stream.carrier = _Carrier(self, stream)
            self.put[stream.name] = []
            if not isinstance(stream, OutputStream):
                self.clients[stream.name] = (
                    InputClient(stream, self._dispatch, partitions)
                    if isinstance(stream, InputStream) and not stream.is_live
                    else ClientStream(stream, self._dispatch, partitions)
                )
        for partition in range(partitions):
            self.tasks.append(self._make_task(partition))
        for task in self.tasks:
            self._run(task.start)
            self._begin_inputs(task)
        self.settle()
        self._run(lambda: hooks.call(app, app.on_start))
        self.settle()

    def _make_task(self, partition: int) -> Task:
        app, name = self.app, f"Partition {partition}"
        inputs = {
            client.ssps[partition]: client
            for client in self.clients.values()
            if isinstance(client, InputClient)
        }
        settings = replace(TaskSettings.of(self.config), threads=0)
        task = Task(
            app,
            partition,
            stages=self._pipeline.stages_of(partition),
            clock=self._clock,
            deliver=lambda task, _, stream, events: self.carry(stream, events, task.partition),
            held=_Held(self),
            name=name,
            processor=processor_of(
                app, partition, self._clock, name=name, settings=settings, inputs=list(inputs)
            ),
            settings=settings,
        )
        for ssp in inputs:
            task.backlog.add_input(ssp, self._pipeline.stage_of(ssp.stream, partition))
        task.on_commit = self._commit
        if app.stores:
            self._keep(task)
        self._requests.add(task)
        self._steps.adopt(task, self._guest.token if self._guest is not None else None)
        return task

    def _begin_inputs(self, task: Task) -> None:
        """Number the inputs from where the task has said that they begin."""
        for ssp, start in task.starts.items():
            client = self.clients.get(ssp.stream)
            if isinstance(client, InputClient) and isinstance(start, Specific):
                client.begin(ssp.partition, start.offset)

    def _keep(self, task: Task) -> None:
        """Give a task its stores."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="s4-test-")
        database = Database(Path(self._folder.name) / str(task.partition))
        hasher = hasher_named(self.config[settings.HASHER])
        state = self._states[task] = TaskState(database, hasher, now=self._clock)
        task.keep(state, self.config[settings.STATE_CHANGES_BYTES])

    def _commit(self, task: Task) -> None:
        if task in self._states:
            state = self._states[task]
            state.begin_commit({})
            state.write()
            state.end_commit(written=True)
        for client in self.clients.values():
            if isinstance(client, InputClient):
                progress = client.progress[task.partition]
                progress.committed = progress.safe

    def end(self, stream: str, partition: int) -> None:
        """An input that can be read again ends."""
        self.settle()
        task = self.tasks[partition]
        task.ended(self.clients[stream].source(partition))
        self._add(task)
        self.settle()

    def _shut_down(self) -> None:
        self.asked_to_stop = True
        for task in self.tasks:
            task.give_back()

    def stop(self) -> None:
        """Stop in order, as a node does: sources, what waits, ``on_close``."""
        for name in list(self.overflowing):
            self.relieve(name)
        if self._guest is not None:
            self._guest.cancel_sources()
        grace = self.now + self.config[settings.TASK_SHUTDOWN_MS]
        self._run(lambda: self._move_to(grace, stop=lambda: not self._busy))
        self._check()
        if self._busy:
            raise S4Error(
                "the app has handlers that have not ended by themselves within task.shutdown.ms; "
                "give them what they wait for before the test ends"
            )
        for task in self.tasks:
            task.drain()
            self._add(task)
        self.settle()
        for task in self.tasks:
            self._run(task.close)
        self._run(lambda: hooks.call(self.app, self.app.on_close))

    def close(self) -> None:
        """End whatever still runs."""
        self.failures.unwrap()
        for state in self._states.values():
            state.close()
        if self._folder is not None:
            self._folder.cleanup()
        if self._guest is not None:
            self._guest.close()

    # -- what a test does --------------------------------------------------------------------

    def settle(self) -> None:
        """Come to rest."""
        self._run(self._come_to_rest)
        self._check()

    def advance(self, seconds: float) -> None:
        """Move the clock, doing on the way what falls due."""
        self._run(lambda: self._move_to(self.now + seconds))
        self._check()

    def overflow(self, stream: str) -> None:
        """Have the stream's stage full from now on."""
        self.overflowing.add(stream)

    def relieve(self, stream: str) -> None:
        """End an overflow: what waits goes on."""
        self.overflowing.discard(stream)
        held, self._held = self._held, deque()
        for batch in held:
            self._offer(batch)
        for task in self.tasks:
            self._add(task)
        self.settle()

    def give_time(self, seconds: float) -> bool:
        """Let the world outside get on for a while; False if the app has nothing to do with it."""
        if self._guest is None:
            return False
        self._guest.give_time(seconds)
        self.settle()
        return True

    # -- running -----------------------------------------------------------------------------

    def _clock(self) -> float:
        return self.now

    def _run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a part of the app to its end."""
        try:
            if self._guest is not None:
                return self._guest.run(function)
            return _finish(function())
        except Exception:
            self.failed = True
            raise

    def _spawn(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        self._guest = self._guest or Guest(self._clock)
        self._guest.start_source(hooks.source(self.app, function, *arguments))

    def _check(self) -> None:
        """Raise what a source or an async handler has raised meanwhile."""
        if self._guest is not None and self._guest.failures:
            self.failed = True
            raise self._guest.failures[0]

    async def _come_to_rest(self) -> None:
        """Process until nothing is left but what waits."""
        while True:
            self._admit()
            self._step_all()
            self._requests.settle()
            if self._admit() or self._ready:
                continue
            if self._guest is None:
                return
            self._unpark()
            await trio.testing.wait_all_tasks_blocked()
            if self._guest.failures or not self._ready:
                return

    def _step_all(self) -> None:
        limit = self.config[settings.STEP_MAX_EVENTS]
        while self._ready:
            task = self._ready.popleft()
            op = task.next_op()
            if op in (Op.NOTHING, Op.DONE):
                task.ready = False
                continue
            self._ready.append(task)
            self._steps.take(task, op, limit, self._start_soon)

    def _start_soon(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        assert self._guest is not None
        self._guest.start_soon(function, *arguments)

    async def _move_to(self, target: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Move the clock from one time at which something is due to the next, up to ``target``."""
        await self._come_to_rest()
        while not stop():
            due = self._next_due()
            if due > target:
                self.now = max(self.now, target)
                return
            self.now = due if due > self.now else self.now + _MOMENT
            for task in self.tasks:
                if task.timetable.check_due(self.now):
                    self._add(task)
            await self._come_to_rest()
            if self._guest is not None and self._guest.failures:
                return

    def _next_due(self) -> float:
        """When the next timer, expiry or sleep ends; infinity if there is none."""
        due = min((task.timetable.next_due for task in self.tasks), default=math.inf)
        if self._guest is not None:
            left = trio.lowlevel.current_statistics().seconds_to_next_deadline
            due = min(due, self.now + left)
        return due

    @property
    def _busy(self) -> bool:
        """Whether some handler has not ended, or something waits to be processed."""
        return bool(self._ready or self._held) or any(
            task.gate.in_flight or task.gate.running or task.next_op() is Op.PROCESS
            for task in self.tasks
        )

    # -- events on their way -----------------------------------------------------------------

    def _admit(self) -> bool:
        """Take from the clients what there is room for; whether there was any."""
        taken = False
        for client in self.clients.values():
            for partition in range(len(self.tasks)):
                batch = client.take(partition, self._room(client, partition))
                if batch is not None:
                    self._offer(batch)
                    taken = True
        return taken

    def _room(self, client: ClientStream, partition: int) -> int:
        """How many more events of a client the stage of a partition takes."""
        if client.stream.name in self.overflowing:
            return 0
        stage = self.tasks[partition].backlog.stages[client.source(partition)]
        return stage.capacity - stage.depth

    def _offer(self, batch: EventBatch) -> None:
        if batch.stream in self.overflowing:
            self._held.append(batch)
            return
        task = self.tasks[batch.partition]
        task.backlog.offer(batch)
        self._add(task)

    def _add(self, task: Task) -> None:
        if not task.ready:
            task.ready = True
            self._ready.append(task)

    def carry(self, stream: Stream, events: list[Any], home: int) -> None:
        """Take on what was put on ``stream`` in partition ``home``, or sent by a source."""
        self.put[stream.name] += events
        if isinstance(stream, OutputStream):
            for kind in stream.types:  # what cannot travel fails as it would on its way out
                kind.encode([event for event in events if type(event) is kind.cls])
            return
        for partition, share in self._dispatch.shares(stream, events, home):
            self._offer(EventBatch(stream.name, partition, share))

    def holds(self, stream: str) -> bool:
        """Whether a stream must wait: all for an output that nobody takes from, inputs for what the
        test holds back inside of the app."""
        streams = self.app.streams
        if any(isinstance(streams[name], OutputStream) for name in self.overflowing):
            return True
        return bool(self._held) and isinstance(streams[stream], InputStream)

    def park(self) -> trio.Event:
        """What is set when there may be room again."""
        event = trio.Event()
        self._parked.append(event)
        return event

    def _unpark(self) -> None:
        parked, self._parked = self._parked, []
        for event in parked:
            event.set()


class _Held(Collection[str]):
    """The streams that must wait."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def __contains__(self, stream: object) -> bool:
        return self._runtime.holds(str(stream))

    def __iter__(self) -> Iterator[str]:
        return filter(self._runtime.holds, self._runtime.app.streams)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Carrier:
    """Takes what the app's sources send."""

    def __init__(self, runtime: Runtime, stream: Stream) -> None:
        self._runtime = runtime
        self._stream = stream
        self._turn = 0

    @property
    def pressure(self) -> float:
        """1 while the test makes the stream overflow; otherwise as in a node."""
        runtime = self._runtime
        if self._stream.name in runtime.overflowing:
            return 1.0
        if isinstance(self._stream, OutputStream):
            return 0.0
        stages = [task.backlog.stages[self._stream.name] for task in runtime.tasks]
        return max(stage.depth / stage.capacity for stage in stages)

    async def send(self, events: Sequence[Any]) -> int:
        """Take events once there is room; none is dropped."""
        await trio.lowlevel.checkpoint()
        while self.pressure >= 1:
            await self._runtime.park().wait()
        self._carry(events)
        return 0

    def send_nowait(self, events: Sequence[Any]) -> int:
        """Take events if there is room; none is dropped."""
        if self.pressure >= 1:
            raise WouldBlock(f"stream {self._stream.name!r} is full")
        self._carry(events)
        return 0

    def _carry(self, events: Sequence[Any]) -> None:
        self._turn = (self._turn + 1) % len(self._runtime.tasks)
        self._runtime.carry(self._stream, list(events), self._turn)


def _finish(waited: Awaitable[T]) -> T:
    """The result of a coroutine that never waits."""
    coroutine = cast("Coroutine[Any, Any, T]", waited)
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    coroutine.close()
    raise S4Error("a hook of the app waits although it is not async; write 'async def'")
