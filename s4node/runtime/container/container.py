"""The container: one process's share of an app, from its start to its end.

Rules
- Start, in this order: on_init, check the graph, make the parts, start the tasks, listen, on_start.
  Nothing is accepted before the app can process it: a partition opens when its task has started.
- A container by itself owns all partitions, and listens once they have started. If it has the log,
  it serves the log first, because the app may read from it. A member of a cluster listens first,
  because it joins with its address; it owns the partitions that its view gives it, and passes
  events for other partitions to their owners.
- A member that was stopped for long (a SIGSTOP, a handler that blocks) goes on only when it knows
  that it is still a member: until then it neither takes frames nor processes waiting events.
- If tasks keep state, a member with more partitions than its share hands some over, one after the
  other. The next owner goes on from the last commit.
- The inputs from systems are known before the parts are made, because they decide how many tasks
  there are. A task claims its progress before it starts, and its inputs are read after that.
- A task that fails on an event, and rolls back, is closed and replaced; the others go on.
- Tasks and on_close are closed after a failure, too, and listeners get every step of the
  start and of the end: see ``lifecycle``.
- Stop, in this order: stop the app's sources, accept and read nothing further, process what was
  admitted, send what was emitted, commit, leave the cluster, on_close, close. One deadline is for
  all of it. What has ended by then is committed, but nothing of a task whose handler is running.
  If events are left that are stored nowhere, the container ends with a failure.
- Only this room knows both the app and the sockets; ``wiring`` makes and connects the parts.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import trio

from s4node import tokens
from s4node.app.app import App
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.node.restart_policy import END_SECONDS
from s4node.config import settings
from s4node.config.config import Config
from s4node.events.keys import Partitioner, hasher_named
from s4node.logger import get_logger
from s4node.metrics.statistics import ContainerStatistics, ReplayStatistics
from s4node.metrics.table import Sample
from s4node.offsets.checkpoint import JobGuard
from s4node.runtime.commit import recovery
from s4node.runtime.commit.state_answers import StateAnswers
from s4node.runtime.container import hooks
from s4node.runtime.container.accounts import Accounts
from s4node.runtime.container.drain import Drain
from s4node.runtime.container.durable_parts import DurableParts, check_live, kind_of
from s4node.runtime.container.fast_parts import FastParts
from s4node.runtime.container.frame_router import FrameRouter
from s4node.runtime.container.lifecycle import Closing, Lifecycle, listeners_of
from s4node.runtime.container.wiring import Parts
from s4node.runtime.inputs.binding import durable_of, live_of, replayable
from s4node.runtime.inputs.job_model import JobModel, model_of
from s4node.runtime.inputs.port import InputPort
from s4node.runtime.loop.stage_configs import StageConfigs
from s4node.runtime.loop.watchdog import Watchdog
from s4node.runtime.outputs.output_carrier import OutputCarrier
from s4node.runtime.task.chooser import ChooserSettings
from s4node.runtime.task.task import Task
from s4node.savepoints.manifest import StateCheck

log = get_logger("s4node.runtime")

_PEERS_SECONDS = 1.0
"""A stopping container waits so long for peers that neither read their last verdicts nor say that
they have stopped sending."""
_BACKLOG_SECONDS = 0.5
"""A stopping container processes for so long events that producers could send again: a small rest
is done by then, and producers that stop as well get their verdicts."""

_LOOK_SECONDS = 0.005

_LAST_SECONDS = 1.0
"""The time for handlers, the last commit and closing, each, after the deadline of a stop."""


class Container:
    """Runs ``app`` in this process: all its partitions, or as a member those that it is given.

    With an ``enrolment`` it is a member. State is saved under the name that the app is
    ``deployed_as``, or under the app's own name. ``node_log`` is the address at which the process
    that started this one serves a log. ``listeners`` get the steps of its life, and so do those
    that the settings name; see :class:`ContainerListener`. Call :meth:`run` once. ``tasks``,
    ``ports`` and ``senders`` are for observers.
    """

    def __init__(
        self,
        app: App,
        config: Config,
        *,
        node: str = "",
        enrolment: Enrolment | None = None,
        listeners: Sequence[object] = (),
        deployed_as: str = "",
        node_log: str = "",
    ) -> None:
        self.app = app
        self.config = config
        self.node = node or f"{config[settings.CLUSTER_NAME]}-{os.getpid()}"
        self.incarnation = tokens.fresh(6)
        self.enrolment = enrolment
        self._deployed_as = deployed_as
        self._node_log = node_log
        self._lifecycle = Lifecycle([*listeners_of(config), *listeners], END_SECONDS)
        self._closing: Closing  # on_close of the app
        self._began = False  # on_start was called
        self.tasks: dict[int, Task] = {}
        self.ports: dict[str, InputPort] = {}
        self.carriers: dict[str, OutputCarrier] = {}
        self.ready = trio.Event()
        self._prepared = False
        self._fenced = False  # a former owner can do no harm
        self._stopping = trio.Event()
        self._reaching = trio.CancelScope()  # around waiting for the systems of the inputs
        self.router = FrameRouter(
            app, config, node=self.node, incarnation=self.incarnation, enrolment=enrolment
        )
        self.listener = self.router.listener
        self.log = self.router.log
        self.accounts = Accounts(app, config, self.node, self.listener, self.log)
        self.replay = FastParts(app, config)
        self.model: JobModel
        self._job_before: JobGuard | None = None
        self.partitioner: Partitioner
        self._choosers: ChooserSettings
        self.parts: Parts
        self._drain: Drain | None = None  # none before the parts are made

    @property
    def address(self) -> str:
        return self.listener.address

    @property
    def processed(self) -> int:
        """The number of events processed by all tasks."""
        return self.parts.partitions.processed

    def statistics(self) -> ContainerStatistics:
        """Counts since the start; before the parts are made only what cannot be read."""
        if self._drain is None:
            away = dict.fromkeys(self.replay.away, "it cannot be reached")
            replay = ReplayStatistics(failing=dict(self.replay.failing), away=away)
            return ContainerStatistics(app=self._job_name, replay=replay)
        return self.accounts.statistics()

    def metrics(self) -> list[Sample]:
        """All samples: of the container, of its process, and of the app's author."""
        return self.accounts.metrics()

    def own_metrics(self) -> list[Sample]:
        """The metrics that the app's author has defined."""
        return [] if self._drain is None else self.accounts.own_metrics()

    @property
    def died(self) -> tuple[str, int]:
        """At which event the process before this one has died, and when (Unix time, ms)."""
        return ("", 0) if self._drain is None else self.replay.died

    def stop(self) -> None:
        """Begin an orderly stop; ``run`` returns once it is done."""
        self._stopping.set()
        self._reaching.cancel()

    def abandon(self) -> None:
        """Call no hook of the app at the next cancellation, as if the process had been killed."""
        self._lifecycle.keep_only("files", "state")

    # -- life --------------------------------------------------------------------------------

    async def prepare(self, *, waits: bool = True) -> None:
        """Let the app declare its graph, check it, and find out which tasks it has.

        ``run`` calls this unless it was called. It waits for systems that cannot be reached, and
        with ``waits`` for the place for state, until :meth:`stop`; ``run`` then returns at once.
        """
        if self._prepared:
            return
        self._prepared = True
        app, config = self.app, self.config
        await hooks.declare(app, config, config[settings.CLUSTER_PARTITIONS])
        with self._reaching:
            own_log = self.address if self.log else self._node_log
            self.replay = await DurableParts.prepared(
                app, config, own_log, self._stopping, self.replay.away
            )
            self._job_before = await self.replay.before(self._job_name, waits=waits)
        if self._reaching.cancelled_caught:
            return
        counts, before = self.replay.counts, self._job_before
        self.model = model_of(
            config, kind_of(app), self._inputs(), counts, before, self.replay.identities
        )
        app.partitions = len(self.model.tasks)
        self.partitioner = Partitioner(app.partitions, hasher_named(config[settings.HASHER]))
        await check_live(app, config)
        durable = durable_of(app, config)
        fast = [name for name in live_of(app) if name not in durable]
        recovery.check(app, config, fast, kept=self.replay.keeps)
        StageConfigs(app, config, durable, keeps=self.replay.keeps).check_executors()
        self._fenced = self.replay.keeps and not fast and bool(config[settings.STATE_URL])
        self._choosers = ChooserSettings.from_config(config)
        self._choosers.check([stream.name for stream in replayable(app)], live_of(app))
        if self.log is not None:
            self.log.check_names()

    async def check_saved_state(self, check: StateCheck) -> None:
        """Raise S4Error if the prepared app cannot read the state of an earlier version, or that of
        a savepoint, or does not use it.

        Only a sample is read, while the earlier version runs.
        """
        before = self._job_before
        await self.replay.check_saved_state(self._job_name, self.model, before, check)

    @property
    def _job_name(self) -> str:
        """The name under which the app is deployed, or its own name."""
        return self._deployed_as or self.app.name

    def _inputs(self) -> list[tuple[str, str]]:
        return [(each.system, each.name) for each in replayable(self.app) if each.whole]

    async def run(self) -> None:
        """Run the app until :meth:`stop`; raises the error that stopped it otherwise."""
        async with self._lifecycle.living():
            if self.log is None:
                await self.prepare()  # outside of a nursery, so its errors are not wrapped
            if not self._reaching.cancelled_caught:
                try:
                    await self._live()
                finally:
                    left = self._drain.log_left() if self._drain is not None else []
                if self._drain is not None and left:
                    raise self._drain.lost(left)
                if self._drain is not None:
                    self.replay.check_published()

    async def _live(self) -> None:
        async with trio.open_nursery() as outer:
            if self.log is not None:
                await self.router.serve_log(outer)
                await self.prepare()
                if self._reaching.cancelled_caught:
                    outer.cancel_scope.cancel()
                    return
            await self._begin(outer)
            parts = self.parts
            with Watchdog(parts.loop, self.config[settings.WATCHDOG_MS]):
                async with trio.open_nursery() as inner:
                    parts.nursery = inner
                    self.router.attach_loop(parts.loop)
                    inner.start_soon(parts.loop.run)
                    await self._own(outer, inner)
                    with trio.CancelScope() as patience:
                        await self._work(inner, patience)
                        await self._stop_in_order()
                    if patience.cancelled_caught:
                        await self._give_up()
                    inner.cancel_scope.cancel()
            left = patience.deadline - trio.current_time()
            with trio.move_on_after(max(left, _LAST_SECONDS)) as closing:
                await self._close_tasks()
            if closing.cancelled_caught:
                log.warning("tasks or on_close did not end in time", app=self.app.name)
            outer.cancel_scope.cancel()

    async def _begin(self, nursery: trio.Nursery) -> None:
        """Make the parts, and start those that run before any task."""
        if self.enrolment is not None:
            self.enrolment = replace(self.enrolment, fenced=self._fenced)
        parts = self.parts = Parts(
            self.app,
            self.config,
            node=self.node,
            incarnation=self.incarnation,
            enrolment=self.enrolment,
            lifecycle=self._lifecycle,
            router=self.router,
            name=self._job_name,
            model=self.model,
            partitioner=self.partitioner,
            choosers=self._choosers,
            replay=self.replay,
            nursery=nursery,
            reporting=self.accounts.reporting,
            stopping=self._stopping,
        )
        self.tasks = parts.partitions.tasks
        self.ports = parts.inputs.ports
        self.carriers = parts.outputs.carriers
        self.accounts.made(self._job_name, parts, self.replay)
        self._drain = parts.drain
        self._lifecycle.closes("files", parts.pipeline.close)
        self._lifecycle.closes("state", self.replay.close)
        self._closing = self._lifecycle.closes("on_close", self._close_app)
        await parts.outputs.start(nursery)
        await self.replay.start(nursery, self.enrolment)
        self.router.state = StateAnswers(
            self.replay.committer.owned,
            self.partitioner,
            nursery,
            self.listener.waker,
            keeps=self.replay.keeps,
        )
        if self.enrolment is not None:
            await self._open(nursery)

    async def _own(self, outer: trio.Nursery, inner: trio.Nursery) -> None:
        """Own all partitions, or those that the cluster gives."""
        ownership = self.parts.ownership
        if self.enrolment is not None:
            await ownership.join(self.enrolment, inner)
            return
        await ownership.own_all()
        await self._open(outer)
        self.parts.outputs.assign([self.address] * self.partitioner.partitions, 0)

    async def _work(self, nursery: trio.Nursery, patience: trio.CancelScope) -> None:
        """Run the app's sources until the stop, which sets the deadline of ``patience``."""
        grace = self.config[settings.TASK_SHUTDOWN_MS]
        async with trio.open_nursery() as sources:
            self.app.spawn = partial(self._spawn, sources)
            sources.start_soon(self._start)
            await self._stopping.wait()
            nursery.start_soon(self.parts.drain.log_waiting, grace)
            patience.deadline = trio.current_time() + grace
            sources.cancel_scope.cancel()

    async def _stop_in_order(self) -> None:
        """Stop the parts in order, from the inputs to the peers."""
        parts = self.parts
        parts.ownership.stop_handing_over()
        self._stop_accepting()
        await self.replay.stop_reading()
        await self._leave_to_producers()
        await self._quiesce()
        parts.loop.drain()
        await parts.loop.ended.wait()
        await self.replay.end_run()
        await parts.ownership.leave()
        await parts.outputs.wait_acknowledged()
        if self.log is not None:
            self.log.close()
            await self.log.wait_written()
        await parts.outputs.finish()
        with trio.move_on_after(_PEERS_SECONDS):
            await self.listener.shut_down()

    async def _give_up(self) -> None:
        """Log what was waited for until the deadline, and commit all that has ended."""
        log.warning(
            "not drained in time",
            seconds=self.config[settings.TASK_SHUTDOWN_MS],
            setting=settings.TASK_SHUTDOWN_MS.name,
            waits_for=self.parts.drain.waits_for(),
        )
        self.parts.loop.grace = _LAST_SECONDS
        with trio.move_on_after(_LAST_SECONDS):
            await self.replay.commit_ended(list(self.tasks.values()))

    async def _close_tasks(self) -> None:
        """Close the tasks, and then the app; after a failure the lifecycle does it."""
        for closing in reversed([self._closing, *self.parts.ownership.closings.values()]):
            await closing()

    async def _close_app(self) -> None:
        if self._began:
            await hooks.call(self.app, self.app.on_close)

    async def _start(self) -> None:
        self._began = True
        await hooks.call(self.app, self.app.on_start)
        await self._lifecycle.started()
        self.accounts.started()
        log.info(
            "running",
            app=self.app.name,
            node=self.node,
            address=self.address,
            partitions=self.partitioner.partitions,
        )
        self.ready.set()

    def _spawn(
        self, nursery: trio.Nursery, function: Callable[..., Awaitable[Any]], *arguments: Any
    ) -> None:
        nursery.start_soon(hooks.source(self.app, function, *arguments), name=function)

    async def _open(self, nursery: trio.Nursery) -> None:
        """Accept producers and subscribers of the app."""
        parts, ownership = self.parts, self.parts.ownership
        await self.router.accept_peers(
            nursery,
            parts.inputs,
            parts.readers,
            parts.partitions,
            lambda: ownership.view.owners,
        )

    def _stop_accepting(self) -> None:
        if self.enrolment is None and not self.replay.keeps:
            self.listener.stop_accepting()
        self.parts.outputs.ignore_drain()
        self.router.drain()
        now = trio.current_time()
        for port in self.ports.values():  # frames that have come go to their tasks
            port.closed = True
            while port.sort_out(now):
                self.parts.partitions.offer_all(self.listener.effects.batches)
        self.parts.partitions.offer_all(self.listener.effects.batches)
        self.listener.send_due(float("inf"))

    async def _leave_to_producers(self) -> None:
        """Leave events that have not begun to their producers, if many of them wait."""
        with trio.move_on_after(_BACKLOG_SECONDS):
            while self.parts.partitions.has_sent:  # noqa: ASYNC110 - each turn may end it
                await trio.sleep(_LOOK_SECONDS)
        self.parts.partitions.leave_to_producers(self.parts.inputs.keeps)

    async def _quiesce(self) -> None:
        """Process the events that tasks, and members, still send each other."""
        parts = self.parts
        if parts.quiescence is not None:
            parts.loop.end_windows()
            await parts.quiescence.wait()
        if self.enrolment is not None:
            parts.loop.end_windows()
            await parts.drain.members()
            if parts.quiescence is not None:  # for events that other members have sent meanwhile
                await parts.quiescence.wait()
            parts.inputs.revoke_all()
        self.listener.stop_accepting()
