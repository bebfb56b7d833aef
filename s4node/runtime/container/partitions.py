"""The partitions of a container: their tasks, and the path of events to each.

Rules
- If tasks keep state, events from one task to another go through the sender's channels.
- Events for a partition go to its task if it runs here, otherwise to the other members. They also
  follow earlier events that are still on their way to another member, to stay in order.
- Frames that have arrived from a producer are in order, and go to their task at once.
- Nothing here waits: sources wait for room by themselves, and the pipeline holds tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from s4node import clocks
from s4node.app.app import App
from s4node.app.stream import OutputStream, Stream
from s4node.app.stream_task import TaskApp
from s4node.errors import WouldBlock
from s4node.events.event import EventBatch, footprint
from s4node.metrics.registry import MetricsRegistry
from s4node.net.ingress.producer_lane import Mark, ProducerLane
from s4node.net.ingress.unbegun import WillResend, last_frames
from s4node.offsets.cuts import AT_ONCE
from s4node.offsets.system import SystemStreamPartition
from s4node.runtime.inputs.frame_batches import MixedFrameBatch
from s4node.runtime.inputs.ports import Ports
from s4node.runtime.loop.pipeline import Pipeline
from s4node.runtime.loop.run_loop import RunLoop
from s4node.runtime.outputs.dispatch import Dispatch
from s4node.runtime.outputs.outputs import Outputs
from s4node.runtime.outputs.refusals import Refusals
from s4node.runtime.outputs.subscribers import Subscribers
from s4node.runtime.task.chooser import ChooserSettings
from s4node.runtime.task.gate import Phase
from s4node.runtime.task.schedule import OF_CONTAINER, CommitBudget
from s4node.runtime.task.settings import TaskSettings
from s4node.runtime.task.stream_task_processor import StreamTaskProcessor
from s4node.runtime.task.task import Task
from s4node.stages.executors import STREAM
from s4node.stages.stage import Stage


class Partitions:
    """The partitions of ``app`` that this container runs; other members run the others."""

    def __init__(
        self,
        app: App,
        pipeline: Pipeline,
        loop: RunLoop,
        dispatch: Dispatch,
        outputs: Outputs,
        subscribers: Subscribers,
        settings: TaskSettings,
        choosers: ChooserSettings,
        refusals: Refusals,
        inputs: Ports,
    ) -> None:
        self.tasks: dict[int, Task] = {}
        self.turned = trio.lowlevel.ParkingLot()
        self._app = app
        self._pipeline = pipeline
        self._loop = loop
        self.dispatch = dispatch
        self.outputs = outputs
        self._subscribers = subscribers
        self._settings = settings
        self._choosers = choosers
        self._parallel = pipeline.configs.parallel()
        self._commit_budget = CommitBudget(OF_CONTAINER, trio.current_time(), loop.rest)
        self._refusals = refusals
        self._inputs = inputs
        self._known_edges = pipeline.order.edges.known
        for stream in app.streams.values():
            if not isinstance(stream, OutputStream):
                stream.carrier = _Inner(self, stream)

    def make(
        self,
        partition: int,
        name: str = "",
        inputs: Sequence[SystemStreamPartition] = (),
        stages: Mapping[Any, Stage] | None = None,
    ) -> Task:
        """Make the task of a partition, without starting it.

        A task that replaces a failed one takes over its ``stages``.
        """
        before = stages or {}
        stages = {s: q for s, q in before.items() if s in self._app.streams}
        stages = stages or self._pipeline.stages_of(partition)
        name = name or f"Partition {partition}"
        metrics = MetricsRegistry(name)
        clock = trio.lowlevel.current_clock().current_time  # tasks may run in threads
        processor = None
        if isinstance(self._app, TaskApp):
            processor = StreamTaskProcessor(
                self._app,
                partition,
                clock,
                name=name,
                settings=self._settings,
                inputs=inputs,
                metrics=metrics,
            )
        bootstrap = self._choosers.bootstrap_of(inputs)
        task = self.tasks[partition] = Task(
            self._app,
            partition,
            stages=stages,
            clock=clock,
            held=self._pipeline.order.held,
            rates=self._pipeline.limits(stages),
            parallel=self._parallel,
            name=name,
            processor=processor,
            settings=self._settings,
            chooser=self._choosers.make(self._app.parameters, bootstrap),
            bootstrap=bootstrap,
            commit_budget=self._commit_budget,
            phase=Phase.REPLACING if before else Phase.CREATED,
            wall=lambda: clocks.wall(),
        )
        task.metrics = metrics
        for stream in self._app.streams.values():
            sources = (
                None if stream.time is None else self._inputs.sources_of(stream.name, partition)
            )
            if sources is not None:
                task.processor.times.watch(stream.name, sources)
        for ssp in inputs if before else ():
            self._add_input(task, ssp, before[ssp])
        self._loop.adopt(task)
        return task

    def replace(self, old: Task, inputs: Sequence[SystemStreamPartition]) -> Task:
        """Make a task that replaces a failed one, without starting it."""
        self._loop.drop(old)
        old.backlog.discard()
        return self.make(old.partition, old.name, inputs, old.backlog.stages)

    def remove(self, task: Task) -> None:
        """Stop running a task that has retired."""
        self._loop.drop(task)
        task.backlog.discard()
        self._pipeline.drop(task.backlog.stages.values())
        del self.tasks[task.partition]

    def take_times(self, times: list[tuple[ProducerLane, Mark]]) -> None:
        for lane, (number, time, idle) in times:
            task = self.tasks.get(lane.partition)
            if task is not None and number <= lane.safe:  # else its events were rolled back
                stream, idle = lane.admission.stream, idle and number == lane.safe
                task.processor.times.reported(stream, lane.origin, time, idle=idle)
        times.clear()

    # -- feeding -----------------------------------------------------------------------------

    def add_input(self, task: Task, ssp: SystemStreamPartition) -> None:
        self._add_input(task, ssp, self._pipeline.stage_of(ssp.stream, STREAM, task.partition))

    def _add_input(self, task: Task, ssp: SystemStreamPartition, stage: Stage) -> None:
        rates = self._pipeline.limits({ssp.stream: stage}).get(ssp.stream, ())
        task.backlog.add_input(ssp, stage, rates)

    def feed(self, task: Task, batch: EventBatch) -> None:
        task.backlog.offer(batch)
        self._loop.wake(task)

    def backpressured(self, task: Task, stream: str) -> bool:
        """Return True if too many events of a stream wait that a task has sent to others."""
        return (stream, (task.partition, stream)) in self._pipeline.full

    def wake(self, task: Task) -> None:
        self._loop.wake(task)

    def commit_soon(self, partition: int) -> None:
        task = self.tasks[partition]
        task.want_commit()
        self._loop.wake(task)

    def have_committed(self, wanted: dict[int, float]) -> None:
        """Have tasks commit, by partition within so many seconds, and empty ``wanted``. The loop
        looks when that is."""
        for partition, patience in wanted.items():
            task = self.tasks.get(partition)
            if task is None:
                continue
            if task.gate.phase is Phase.RESTING:  # it is not called any more
                self._loop.commit(task)
            elif patience == AT_ONCE:
                task.want_commit()
                self._loop.wake(task)
            else:
                task.await_commit(patience)
        wanted.clear()

    def end_input(self, task: Task, ssp: SystemStreamPartition) -> None:
        task.end_input(ssp)
        if not task.alone:
            self._loop.inputs_end()
        self._loop.wake(task)

    @property
    def processed(self) -> int:
        return sum(task.processed for task in self.tasks.values())

    @property
    def has_waiting(self) -> bool:
        return any(
            stage.depth for task in self.tasks.values() for stage in task.backlog.stages.values()
        )

    @property
    def has_sent(self) -> bool:
        """True if events wait that a producer sent and that cannot be replayed."""
        return any(task.backlog.has_sent for task in self.tasks.values())

    def leave_to_producers(self, kept: WillResend) -> None:
        """Leave events that have not begun to their producers, as far as possible."""
        waiting = [batch for task in self.tasks.values() for batch in task.unbegun()]
        frames = last_frames(waiting, kept)
        for batch in waiting:
            if isinstance(batch, MixedFrameBatch) and batch.receipt in frames:
                batch.left_to_producer()
        for task in self.tasks.values():
            task.leave_to_producers(frames, kept)
            self._loop.wake(task)

    # -- events on their way -----------------------------------------------------------------

    def offer_all(self, batches: list[EventBatch]) -> None:
        """Give the batches that ports have made to their tasks, here or with other members."""
        for batch in batches:
            task = self.tasks.get(batch.partition)
            if task is not None and (  # a frame is in the order of its producer
                batch.is_frame or not self.outputs.carries(batch.stream, batch.partition)
            ):
                task.backlog.offer(batch)
                self._loop.add(task)
            else:
                self.outputs.forward(batch)
        batches.clear()

    def put(self, stream: str, partition: int, events: list[Any], *, waits: bool = True) -> int:
        """Give events that the app has put to a task, here or with another member.

        The source or task that has put them keeps no state. Return how many were dropped.
        """
        task, others = self.tasks.get(partition), self.outputs.to_members
        if task is None or (others and others[stream].release.behind(partition)):
            return self.outputs.put_to_member(stream, partition, events, waits=waits)
        stage = task.backlog.stages[stream]
        size, dropped = footprint(events), 0
        if stage.overflow is None and not stage.executor.withholds:
            now = trio.current_time()
            room = stage.executor.admits_put(stage, len(events), size, now)
            if room < len(events):
                dropped = len(events) - room
                stage.dropped(dropped, stage.executor.reason)
                self._refusals.dropped(STREAM, stream, dropped, stage.executor.reason)
                size = size * room // len(events)
                events = events[:room]
                if not events:
                    return dropped
        task.backlog.offer(EventBatch(stream, partition, events, weight=size))
        self._loop.add(task)
        if stage.holds:
            self._pipeline.watch(stream, partition, stage)
        return dropped

    def hand_on(self, task: Task, source: str, stream: Stream, events: list[Any]) -> None:
        if source and (source, stream.name) not in self._known_edges:
            self._pipeline.learn(source, stream.name)
        if self._subscribers.subscribers:
            self._subscribers.show(stream.name, events)
        if isinstance(stream, OutputStream):
            self.outputs.send(task, stream.name, events)
            return
        shares: Sequence[tuple[int, list[Any]]] = [(task.partition, events)]
        if stream.name not in self.dispatch.local:
            shares = self.dispatch.shares(stream, events, task.partition)
        for partition, share in shares:
            if partition == task.partition or not self.outputs.keeps:
                self.put(stream.name, partition, share, waits=bool(source))
            else:
                self.outputs.put(task.partition, stream.name, partition, share)

    # -- sources -----------------------------------------------------------------------------

    def pressure(self, stream: str) -> float:
        """The fullness of the fullest stage of one of the app's own streams."""
        stages = [task.backlog.stages[stream] for task in self.tasks.values()]
        here = max((stage.depth / stage.capacity for stage in stages), default=0.0)
        channel = self.outputs.to_members.get(stream)
        return here if channel is None else max(here, channel.release.pressure)

    def carry(self, stream: Stream, events: list[Any], turn: int) -> int:
        """Take events of a source; ``turn`` distributes events without a key over the partitions.

        Return how many events were dropped.
        """
        homes = list(self.tasks) or [0]
        home = homes[turn % len(homes)]
        shares = self.dispatch.shares(stream, events, home)
        dropped = sum(self.put(stream.name, partition, share) for partition, share in shares)
        self._loop.nudge()
        return dropped


@dataclass(eq=False, repr=False)
class _Inner:
    """Carries events of sources into one of the app's own streams."""

    _partitions: Partitions
    _stream: Stream
    _turn: int = 0

    @property
    def pressure(self) -> float:
        """The fullness of the fullest partition's stage."""
        return self._partitions.pressure(self._stream.name)

    async def send(self, events: Sequence[Any]) -> int:
        """Take events once there is room; return how many were dropped."""
        await trio.lowlevel.checkpoint()
        while self.pressure >= 1:
            await self._partitions.turned.park()
        return self._put(events)

    def send_nowait(self, events: Sequence[Any]) -> int:
        """Take events; return how many were dropped, or raise WouldBlock."""
        if self.pressure >= 1:
            raise WouldBlock(f"stream {self._stream.name!r} is full")
        return self._put(events)

    def _put(self, events: Sequence[Any]) -> int:
        self._turn += 1
        return self._partitions.carry(self._stream, list(events), self._turn)
