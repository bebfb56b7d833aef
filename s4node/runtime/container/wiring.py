"""The wiring of a container: makes its parts and connects them.

Rules
- Parts are made in the order in which they need each other. What earlier parts want of later ones
  is an effect or news, which is looked at after the turn.
- Reactions that concern several parts are here.
- The container itself makes the parts that exist before the app is known: its frame router and
  its lifecycle.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

import trio

from s4node.app.app import App
from s4node.app.plan import dataflow
from s4node.app.stream import outlets_of
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import S4Error, TaskFenced
from s4node.events.keys import Partitioner
from s4node.logger import get_logger
from s4node.metrics.reporting import Reporting
from s4node.net.ingress.served_address import check_reachable
from s4node.offsets.cuts import Cuts
from s4node.runtime.container.drain import Drain, Quiescence
from s4node.runtime.container.durable_parts import DurableParts
from s4node.runtime.container.fast_parts import FastParts
from s4node.runtime.container.frame_router import FrameRouter
from s4node.runtime.container.lifecycle import Lifecycle
from s4node.runtime.container.ownership import Ownership
from s4node.runtime.container.partitions import Partitions
from s4node.runtime.inputs.binding import durable_of, exchanges, inner_of
from s4node.runtime.inputs.job_model import JobModel
from s4node.runtime.inputs.ports import Ports
from s4node.runtime.loop.pipeline import Pipeline
from s4node.runtime.loop.run_loop import RunLoop
from s4node.runtime.outputs.channels import parts_of
from s4node.runtime.outputs.dispatch import Dispatch
from s4node.runtime.outputs.outlets import OutletContext
from s4node.runtime.outputs.outputs import Outputs
from s4node.runtime.outputs.refusals import Refusals
from s4node.runtime.outputs.subscribers import Subscribers
from s4node.runtime.outputs.task_channels import ChannelContext
from s4node.runtime.task.chooser import ChooserSettings
from s4node.runtime.task.settings import TaskSettings
from s4node.runtime.task.task import Task

log = get_logger("s4node.runtime")

MAX_STEP_SECONDS = 0.005
"""The time after which a task yields, if that comes before ``s4.step.maxEvents``."""


class Parts:
    """The parts of a container that runs ``app``; none of them is started.

    Without an ``enrolment`` there are no other ``members``. ``replay`` may save the state of tasks,
    under ``name``; ``quiescence`` is None if it does not. Rollbacks run in ``nursery``, and errors
    of peers are raised there; the container may replace it. ``reporting`` starts before the tasks.
    ``stopping`` is set when tasks have asked for the container's end.
    """

    def __init__(
        self,
        app: App,
        config: Config,
        *,
        node: str,
        incarnation: str,
        enrolment: Enrolment | None,
        lifecycle: Lifecycle,
        router: FrameRouter,
        name: str,
        model: JobModel,
        partitioner: Partitioner,
        choosers: ChooserSettings,
        replay: FastParts,
        nursery: trio.Nursery,
        reporting: Reporting,
        stopping: trio.Event,
    ) -> None:
        durable = durable_of(app, config)
        app.clock = trio.current_time
        for prototype, _ in app.prototypes.values():
            prototype.on_event.on_unhandled = partial(_log_unhandled, app.name, prototype.name)
        self.nursery = nursery
        self._stopping = stopping
        self.quiescence: Quiescence | None = None
        self._router = router
        self._listener = router.listener
        self._effects = router.listener.effects
        self._replay = replay
        replay.cuts = Cuts(self._effects.commits)

        # the loop, and the receivers of events: readers, other apps, other members, other tasks
        self.refusals = Refusals()
        self.pipeline = Pipeline(app, config, dataflow.edges(app), durable, keeps=replay.keeps)
        self.loop = RunLoop(
            max_events=config[settings.STEP_MAX_EVENTS],
            max_seconds=MAX_STEP_SECONDS,
            shell=self,
            enrolment=enrolment,
            threads=config[settings.THREAD_POOL_SIZE],
            grace=config[settings.TASK_SHUTDOWN_MS],
            rest=replay.rest,
            waker=router.listener.waker,
        )
        self.readers = Subscribers(
            app,
            node=node,
            incarnation=incarnation,
            headers=router.headers,
            queue_size=config[settings.REMOTE_SENDER_SIZE],
            refusals=self.refusals,
        )
        context = OutletContext if outlets_of(app.streams) else ChannelContext
        channels = context(
            app,
            config,
            self.pipeline,
            name,
            incarnation,
            partitioner.partitions,
            self._effects,
            self.refusals,
            replay.cuts,
        )
        if enrolment is not None:
            check_reachable(config)
        self.outputs = Outputs(
            channels,
            self.loop,
            node=node,
            enrolment=enrolment,
            keeps=replay.keeps,
        )

        # the tasks, and the parts that bring them events
        self.inputs = Ports(
            app,
            config,
            partitioner,
            node=node,
            incarnation=incarnation,
            headers=router.headers,
            deserializers=self.pipeline.deserializers,
            shared=enrolment is not None or replay.keeps,
            durable=replay.durable,
            effects=self._effects,
            outputs=self.outputs,
            room=self.pipeline,
            cuts=replay.cuts,
        )
        exchanging = replay.keeps and partitioner.partitions > 1 and exchanges(app)
        self.partitions = Partitions(
            app,
            self.pipeline,
            self.loop,
            Dispatch(app, partitioner),
            self.outputs,
            self.readers,
            TaskSettings.from_config(config, exchanging=exchanging, keeps=replay.keeps),
            choosers,
            self.refusals,
            self.inputs,
        )
        self._tasks = self.partitions.tasks
        self.hand_on = self.partitions.hand_on
        parts = self.partitions, self.outputs, self.inputs, self.loop
        replay.make(name, model, partitioner, *parts)

        # the owners of partitions, and the parts of a stop
        if isinstance(replay, DurableParts):
            self.quiescence = Quiescence(
                self.loop,
                self._tasks,
                replay.committer,
                self.outputs,
                replay.recovery.undoes,
            )
        self.ownership = Ownership(
            app,
            node,
            incarnation,
            model=model,
            lifecycle=lifecycle,
            loop=self.loop,
            router=router,
            partitions=self.partitions,
            inputs=self.inputs,
            subscribers=self.readers,
            outputs=self.outputs,
            replay=replay,
            reporting=reporting,
            nursery=nursery,
        )
        self.drain = Drain(
            app.name,
            self.partitions,
            self.loop,
            self.outputs,
            config[settings.DEAD_LETTERS] if replay.keeps else "",
            () if replay.keeps else inner_of(app),
        )

    # -- the shell of the loop -------------------------------------------------------------------

    def commit(self, task: Task) -> bool:
        if self._effects.times:
            self.partitions.take_times(self._effects.times)
        return self._replay.committer.commit(task)

    def replace(self, task: Task) -> None:
        self.nursery.start_soon(self.ownership.replace, task)

    def shut_down(self) -> None:
        self._stopping.set()

    def arrived(self) -> bool:
        return self.quiescence is None or self.quiescence.arrived()

    # -- reactions -------------------------------------------------------------------------------

    def after_turn(self) -> float | None:
        """Between two turns: let held inputs and waiting sources go on, send verdicts."""
        if self.partitions.turned:
            self.partitions.turned.unpark_all()
        now = trio.current_time()
        dues = []
        if self.outputs.carriers or self.outputs.to_members:
            dues.append(self.outputs.pump(now))
        if self.outputs.has_news:
            self._handle_news()
        self._room()
        full = self.pipeline.full_outputs
        if full.since:
            dues.append(full.log_due(now, self._full_for))
        dues.append(self.inputs.tick(now, busy=self.loop.has_ready))
        if self._effects.batches:
            self.partitions.offer_all(self._effects.batches)
        if self._replay.held:
            self._replay.released()
        if self.readers.subscribers:
            dues.append(self.readers.feed(now))
        if self._effects.times:
            self.partitions.take_times(self._effects.times)
        if self._effects.commits or self._effects.committed:
            self._carry_out()
        dues.append(self._listener.send_due(now))
        earliest = None
        for due in dues:
            if due is not None and (earliest is None or due < earliest):
                earliest = due
        return earliest

    def _carry_out(self) -> None:
        """Have tasks commit for those who wait, and answer hellos that have waited for commits."""
        effects = self._effects
        if effects.committed:
            effects.committed = False
            if effects.hellos:
                self.inputs.answer_hellos()
        if effects.commits:
            self.partitions.have_committed(effects.commits)

    def _room(self) -> None:
        """Wake tasks if a full stage has room again."""
        if (self.pipeline.full or self.pipeline.freed) and self.pipeline.check_full():
            for task in self._tasks.values():
                self.loop.wake(task)

    def _full_for(self, stream: str, place: Hashable) -> Sequence[str]:
        """The consumers that give an output stream no room at a place."""
        if isinstance(place, tuple):  # a task's channel
            return [parts_of(place[1])[1]]
        return self.outputs.carriers[stream].full_for

    def _handle_news(self) -> None:
        try:
            if self.outputs.handle_news():
                self.inputs.announce()
        except S4Error as error:  # raised in the nursery, after a look at the fences
            self.nursery.start_soon(self._fail, error)

    async def _fail(self, error: S4Error) -> None:
        """Stop with an error of a peer, or with TaskFenced if another container has our tasks."""
        try:
            await self._replay.committer.check_fences()
        except TaskFenced:
            if self.ownership.left:  # and all was committed before
                return
            raise
        raise error


def _log_unhandled(app: str, pe: str, cls: type) -> None:
    log.warning(
        "no handler for an event type; further ones are only counted",
        app=app,
        pe=pe,
        event_type=cls.__name__,
    )
