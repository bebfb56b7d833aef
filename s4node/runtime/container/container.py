"""The container: one process's share of an app, from its start to its end.

Rules
- Start: on_init, check the graph, make the parts, start the tasks, listen, on_start. Nothing is
  accepted before the app can process it: a partition opens when its task has started.
- A container by itself owns all partitions, and listens when they have started; where it has the
  log, it serves that first of all, for the app may read from it. As a member of a
  cluster it listens first, for its address is what it joins with; it owns the partitions that its
  view gives it, and passes what belongs to others on to them.
- A member that was stopped (a SIGSTOP, a handler that blocks) for long goes on only when it knows
  that it still is one: neither does it take what came meanwhile, nor process what waits.
- Where tasks keep what they do, a member with more partitions than its share hands some over: it
  stops with one after the other, and another goes on from its last commit.
- What the app reads from systems is known before anything is made of it: it says how many tasks
  there are. A task claims its progress before it starts, and its inputs are read when it has.
- A task that goes back for an event at which it failed is closed, and another takes its place; the
  others go on.
- Tasks and on_close are closed after a failure, too, and listeners are told of every step of the
  start and of the end: see lifecycle.
- Stop, in this order: stop the app's sources, accept and read nothing further, drain what was
  admitted, send what it emitted, commit, leave the cluster, on_close, close. One deadline over all;
  what is left then, and is kept nowhere, is the failure that ends it.
- Only this room knows both the app's side and the sockets. This module knows the parts, and lets
  each have of the others what it needs.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import trio

from s4node.app import dataflow as flow
from s4node.app import graph
from s4node.app.app import App
from s4node.app.stream import InputStream
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.config import settings
from s4node.config.settings import Config
from s4node.errors import S4Error, TaskFenced
from s4node.events.keys import Partitioner, hasher_named
from s4node.logger import get_logger
from s4node.metrics.snapshot import MetricsSnapshot
from s4node.net.egress.remote_sender import RemoteSender
from s4node.net.ingress.listener import check_reachable
from s4node.runtime.commit import recovery
from s4node.runtime.commit.producers import Producers
from s4node.runtime.container import hooks
from s4node.runtime.container.accounts import Accounts
from s4node.runtime.container.drain import Drain
from s4node.runtime.container.durable_parts import Replay, check_live, kind_of, tell_left
from s4node.runtime.container.frame_router import Front
from s4node.runtime.container.lifecycle import Closing, Lifecycle, listeners_of
from s4node.runtime.container.ownership import Ownership
from s4node.runtime.container.partitions import Partitions
from s4node.runtime.container.quiescence import Quiescence
from s4node.runtime.container.refusals import Refusals
from s4node.runtime.inputs.binding import durable_of, exchanges, inner_of, live_of, replayable
from s4node.runtime.inputs.job_model import JobModel, model_of
from s4node.runtime.inputs.port import InputPort
from s4node.runtime.inputs.ports import Inputs, close
from s4node.runtime.loop.pipeline import Pipeline
from s4node.runtime.loop.run_loop import EventLoop
from s4node.runtime.loop.watchdog import Watchdog
from s4node.runtime.outputs.dispatch import Dispatch
from s4node.runtime.outputs.exchange import Exchange
from s4node.runtime.outputs.members import Members
from s4node.runtime.outputs.output_streams import Outputs
from s4node.runtime.outputs.subscribers import Readers
from s4node.runtime.task.chooser import ChooserSettings
from s4node.runtime.task.settings import TaskSettings
from s4node.runtime.task.statistics import ContainerStatistics
from s4node.runtime.task.task import Task

log = get_logger("s4node.container")

_FAREWELL_SECONDS = 1.0
"""How long a stopping node waits for peers that neither read their last verdicts nor say that
they have stopped sending."""

_LAST_SECONDS = 1.0
"""What handlers, the last commit and closing have each when the deadline of a stop is over."""


class Container:
    """Runs ``app`` in this process: all its partitions, or as a member those that it is given.

    With an ``enrolment`` it is a member. ``listeners`` are told of its life, with those that the
    settings name; see :class:`ContainerListener`. Call :meth:`run` once. ``tasks``, ``ports`` and
    ``senders`` are for those who look.
    """

    def __init__(
        self,
        app: App,
        config: Config,
        *,
        node: str = "",
        enrolment: Enrolment | None = None,
        listeners: Sequence[object] = (),
    ) -> None:
        self.app = app
        self.config = config
        self.node = node or f"{config[settings.CLUSTER_NAME]}-{os.getpid()}"
        self.incarnation = secrets.token_hex(6)
        self.enrolment = enrolment
        self._lifecycle = Lifecycle(
            [*listeners_of(config), *listeners], config[settings.CONTAINER_END_TIMEOUT]
        )
        self._closing: Closing  # of the app
        self._going: trio.Nursery  # where tasks go back, and what was heard is raised
        self._began = False  # on_start was called
        self.accounts = Accounts(self)
        self.tasks: dict[int, Task] = {}
        self.ports: dict[str, InputPort] = {}
        self.senders: dict[str, RemoteSender] = {}
        self.ready = trio.Event()
        self._prepared = False
        self._stopping = trio.Event()
        self._reaching = trio.CancelScope()  # the systems of the inputs
        self.refusals = Refusals()
        self.front = Front(
            config,
            node=self.node,
            incarnation=self.incarnation,
            taken=self._has_stream,
            held=self._in_doubt,
        )
        self.listener = self.front.listener
        self.log = self.front.log
        self.ownership: Ownership
        self.quiescence: Quiescence | None = None  # there where tasks keep what they do
        self._drain: Drain | None = None  # there is nothing to drain before the parts are made
        self.pipeline: Pipeline
        self.loop: EventLoop
        self.readers: Readers
        self.outputs: Outputs
        self.members: Members | None = None
        self.replay: Replay | None = None
        self.model: JobModel
        self._choosers: ChooserSettings
        self.partitioner: Partitioner
        self.partitions: Partitions
        self.inputs: Inputs

    @property
    def address(self) -> str:
        """Where others reach the container."""
        return self.listener.address

    @property
    def processed(self) -> int:
        """Events handled, over all tasks and streams."""
        return self.partitions.processed

    @property
    def exchange(self) -> Exchange | None:
        """What tasks send each other, where they keep what they do."""
        return self.replay.exchange if self.replay is not None else None

    def statistics(self) -> ContainerStatistics:
        """Counts since the start."""
        return self.accounts.statistics()

    def metrics(self) -> list[MetricsSnapshot]:
        """The values of the container and its tasks, and those that tasks measure themselves."""
        return self.accounts.metrics()

    def stop(self) -> None:
        """Begin an orderly stop; ``run`` returns when it is done."""
        self._stopping.set()
        self._reaching.cancel()

    # -- life --------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Let the app declare its graph, check it, and find out which tasks it has.

        ``run`` does it unless it is done. It waits for systems that cannot be reached, until
        :meth:`stop`, after which ``run`` returns at once.
        """
        if self._prepared:
            return
        self._prepared = True
        app, config = self.app, self.config
        await hooks.declare(app, config, config[settings.CLUSTER_PARTITIONS])
        with self._reaching:
            self.replay = await Replay.prepared(app, config, self.address if self.log else "")
        if self._reaching.cancelled_caught:
            return
        if self.replay is not None:
            graph.check_kept(app)
        else:
            if app.stores:
                graph.refuse_stores(app)
            tell_left(app, config, self._job_name)
        counts = self.replay.counts if self.replay is not None else {}
        self.model = model_of(config, kind_of(app), self._inputs(), counts)
        app.partitions = len(self.model.tasks)
        self.partitioner = Partitioner(app.partitions, hasher_named(config[settings.HASHER]))
        await check_live(app, config)
        durable = durable_of(app, config)
        fast = [name for name in live_of(app) if name not in durable]
        recovery.check(app, config, fast, kept=self.replay is not None)
        self._choosers = ChooserSettings.of(config)
        self._choosers.check([stream.name for stream in replayable(app)], live_of(app))
        if self.log is not None:
            self.log.check_names()

    def _inputs(self) -> list[tuple[str, str]]:
        return [(each.system, each.name) for each in replayable(self.app) if each.whole]

    async def run(self) -> None:
        """Run the app until :meth:`stop`; raises what stopped it otherwise."""
        async with self._lifecycle.living():
            if self.log is None:
                await self.prepare()  # its errors come as they are
            if not self._reaching.cancelled_caught:
                try:
                    await self._live()
                finally:
                    left = self._drain.tell_left() if self._drain is not None else []
                if self._drain is not None and left:
                    raise self._drain.lost(left)

    async def _live(self) -> None:
        async with trio.open_nursery() as outer:
            if self.log is not None:
                await self.front.serve_log(outer)
                await self.prepare()
                if self._reaching.cancelled_caught:
                    outer.cancel_scope.cancel()
                    return
            drain = await self._begin(outer)
            with Watchdog(self.loop, self.config[settings.WATCHDOG_MS]):
                async with trio.open_nursery() as inner:
                    self._going = inner
                    loop_ended = trio.Event()
                    inner.start_soon(self._run_loop, loop_ended)
                    await self._own(outer, inner)
                    with trio.CancelScope() as patience:
                        await self._work(inner, patience, drain)
                        await self._work_off(loop_ended)
                    if patience.cancelled_caught:
                        await self._give_up(drain)
                    inner.cancel_scope.cancel()
            left = patience.deadline - trio.current_time()
            with trio.move_on_after(max(left, _LAST_SECONDS)) as closing:
                await self._close_tasks()
            if closing.cancelled_caught:
                log.warning("tasks or on_close did not end in time", app=self.app.name)
            outer.cancel_scope.cancel()

    async def _begin(self, nursery: trio.Nursery) -> Drain:
        """Make the parts and start those that are there before any task."""
        self._make(nursery)
        drain = self._drain = Drain(
            self.app.name,
            self.partitions.tasks,
            self.outputs,
            self.members,
            self.exchange,
            self.config[settings.DEAD_LETTERS] if self.replay is not None else "",
            inner_of(self.app) if self.replay is None else (),
        )
        self._lifecycle.closes("files", self.pipeline.close)
        if self.replay is not None:
            self._lifecycle.closes("state", self.replay.close)
        self._going = nursery
        self._closing = self._lifecycle.closes("on_close", self._close_app)
        await self.outputs.start(nursery)
        if self.replay is not None:
            await self.replay.start(nursery)
        if self.members is not None:
            await nursery.start(self.members.emitter.run)
            await self._open(nursery)
        return drain

    async def _own(self, outer: trio.Nursery, inner: trio.Nursery) -> None:
        """Have the partitions that are ours: all of them, or what the cluster gives."""
        if self.enrolment is not None:
            anywhere = bool(self.config[settings.STATE_URL])
            await self.ownership.join(self.enrolment, inner, self.outputs, anywhere=anywhere)
            return
        await self.ownership.own_all()
        await self._open(outer)
        if self.replay is not None:
            self.replay.exchange.assign([self.address] * self.partitioner.partitions, 0)

    async def _work(self, nursery: trio.Nursery, patience: trio.CancelScope, drain: Drain) -> None:
        """Run the app's sources until it is to stop; from then on there is a deadline."""
        grace = self.config[settings.TASK_SHUTDOWN_MS]
        async with trio.open_nursery() as sources:
            self.app.spawn = partial(self._spawn, sources)
            sources.start_soon(self._start)
            await self._stopping.wait()
            nursery.start_soon(drain.tell, grace)
            patience.deadline = trio.current_time() + grace
            sources.cancel_scope.cancel()

    async def _work_off(self, loop_ended: trio.Event) -> None:
        """Stop in order, from the inputs to the peers."""
        self.ownership.keep()
        self._stop_accepting()
        if self.replay is not None:
            await self.replay.consumers.stop()
            self.loop.give_back()
        await self._quiesce()
        self.loop.drain()
        await loop_ended.wait()
        if self.replay is not None:
            await self.outputs.settle()
            await self.replay.commit(self.tasks.values())
        await self.ownership.leave()
        await self.outputs.settle()
        if self.log is not None:
            self.log.close()
            await self.log.settle()
        if self.members is not None:
            await self.members.finish()
        with trio.move_on_after(_FAREWELL_SECONDS):
            await self.listener.farewell()

    async def _give_up(self, drain: Drain) -> None:
        """The deadline is over: say what was waited for, and commit what is done."""
        log.warning("not drained in time", seconds=self.config[settings.TASK_SHUTDOWN_MS],
                    setting=settings.TASK_SHUTDOWN_MS.name,
                    waits_for=drain.waits_for())  # fmt: skip
        self.loop.grace = _LAST_SECONDS
        if self.replay is not None:
            with trio.move_on_after(_LAST_SECONDS):
                await self.replay.commit(self.tasks.values())

    async def _close_tasks(self) -> None:
        """Have the tasks and then the app close; after a failure the lifecycle does it."""
        for closing in reversed([self._closing, *self.ownership.closings.values()]):
            await closing()

    async def _close_app(self) -> None:
        if self._began:
            await hooks.call(self.app, self.app.on_close)

    async def _start(self) -> None:
        self._began = True
        await hooks.call(self.app, self.app.on_start)
        await self._lifecycle.started()
        self.accounts.started()
        log.info("running", app=self.app.name, node=self.node, address=self.address,
                 partitions=self.partitioner.partitions)  # fmt: skip
        self.ready.set()

    def _spawn(
        self, nursery: trio.Nursery, function: Callable[..., Awaitable[Any]], *arguments: Any
    ) -> None:
        nursery.start_soon(hooks.source(self.app, function, *arguments), name=function)

    async def _open(self, nursery: trio.Nursery) -> None:
        """Let producers and readers of the app come."""
        await self.front.open(
            nursery, self.inputs, self.readers, lambda: self.ownership.view.owners
        )

    async def _run_loop(self, ended: trio.Event) -> None:
        self.front.begin(self.loop)
        await self.loop.run()
        ended.set()

    def _stop_accepting(self) -> None:
        if self.members is None and self.replay is None:
            self.listener.stop_accepting()
        if self.members is not None:  # others that stop as well may still come, and we to them
            self.members.emitter.insist()
        if self.replay is not None:
            self.replay.exchange.emitter.insist()
        self.front.drain()
        close(self.ports.values())
        self.listener.flush(float("inf"))

    async def _quiesce(self) -> None:
        """Work off what tasks, and the members, still send each other."""
        if self.quiescence is not None:
            self.loop.end_windows()
            await self.quiescence.wait()
        if self.members is not None:
            self.loop.end_windows()
            await self.members.drain(self.loop, self.partitions)
            if self.quiescence is not None:  # what the others have sent meanwhile
                await self.quiescence.wait()
            self.inputs.leave()
        self.listener.stop_accepting()

    def _in_doubt(self) -> bool:
        """Whether we were stopped for so long that others may own our partitions by now."""
        return self.enrolment is not None and self.enrolment.session.doubtful

    # -- making ------------------------------------------------------------------------------

    def _make(self, nursery: trio.Nursery) -> None:
        app, config = self.app, self.config
        durable = durable_of(app, config)
        app.clock = trio.current_time
        for prototype, _ in app.prototypes.values():
            prototype.on_event.on_unhandled = partial(self._unhandled, prototype.name)
        self.pipeline = Pipeline(app, config, flow.edges(app), durable)
        self._make_ways()
        self._make_tasks(durable)
        if self.replay is not None:
            self.quiescence = Quiescence(
                self.loop,
                self.partitions.tasks,
                self.replay.committer,
                self.replay.exchange,
                undoes=self.replay.recovery.undoes,
            )
        self.ownership = Ownership(
            app,
            self.node,
            self.incarnation,
            model=self.model,
            lifecycle=self._lifecycle,
            loop=self.loop,
            front=self.front,
            partitions=self.partitions,
            inputs=self.inputs,
            readers=self.readers,
            members=self.members,
            replay=self.replay,
            report=partial(self.accounts.report, nursery),
        )
        self.tasks = self.partitions.tasks
        self.ports = self.inputs.ports
        self.senders = self.outputs.senders

    def _make_ways(self) -> None:
        """The loop, and whom events go to: readers, other apps, other members, other tasks."""
        app, config = self.app, self.config
        self.loop = EventLoop(
            max_events=config[settings.STEP_MAX_EVENTS],
            max_seconds=config[settings.STEP_MAX_MS],
            after_turn=self._after_turn,
            held=self._in_doubt,
            on_shutdown=self.stop,
            arrived=lambda: self.quiescence is None or self.quiescence.arrived(),
            threads=config[settings.THREAD_POOL_SIZE],
            grace=config[settings.TASK_SHUTDOWN_MS],
        )
        self.readers = Readers(
            app,
            node=self.node,
            incarnation=self.incarnation,
            headers=self.front.headers,
            queue_size=config[settings.SENDER_WORK_QUEUE_SIZE],
            on_refused=self.refusals.take,
        )
        self.outputs = Outputs(
            app,
            config,
            self.pipeline,
            node=self.node,
            incarnation=self.incarnation,
            enrolment=self.enrolment,
            on_room=self._room,
            on_news=self._heard,
            on_refused=self.refusals.take,
        )
        if self.enrolment is not None:
            check_reachable(config)
            self.members = Members(
                app,
                config,
                self.pipeline,
                node=self.node,
                incarnation=self.incarnation,
                partitions=self.partitioner.partitions,
                on_news=self._heard,
                on_refused=self.refusals.take,
            )
        if self.replay is not None:
            self.replay.exchange = Exchange(
                app,
                config,
                self.pipeline,
                self.outputs,
                name=self._job_name,
                incarnation=self.incarnation,
                partitions=self.partitioner.partitions,
                wake=self.loop.wake,
                on_news=self._heard,
                on_refused=self.refusals.take,
            )

    @property
    def _job_name(self) -> str:
        """What the app is called where it is deployed; else its own name."""
        deployed = self.enrolment is not None and self.enrolment.version != ""
        return self.enrolment.app if self.enrolment is not None and deployed else self.app.name

    def _make_tasks(self, durable: frozenset[str]) -> None:
        """Where tasks come to be, and what brings them events."""
        app, config = self.app, self.config
        exchanging = self.replay is not None and self.partitioner.partitions > 1 and exchanges(app)
        self.partitions = Partitions(
            app,
            self.pipeline,
            self.loop,
            Dispatch(app, self.partitioner),
            self.outputs,
            self.readers,
            self.members,
            self.exchange,
            TaskSettings.of(config, exchanging=exchanging),
            self._choosers,
        )
        self.inputs = Inputs(
            app,
            config,
            self.partitioner,
            node=self.node,
            incarnation=self.incarnation,
            headers=self.front.headers,
            deserializers=self.pipeline.deserializers,
            offer=self.partitions.offer,
            shared=self.members is not None or self.replay is not None,
            durable=durable if self.replay is None else durable | inner_of(app),
            on_full=self.partitions.commit_soon,
            send=self._send,
            full=self._full,
        )
        if self.replay is not None:
            producers = Producers(
                self.inputs.durable, trio.lowlevel.current_clock().current_time, self._committed
            )
            self.replay.make(
                self._job_name,
                self.model,
                self.partitioner,
                self.partitions,
                self.outputs,
                producers,
                self._goes_back,
            )

    def _send(self, stream: str, home: int, partition: int, events: list[Any]) -> None:
        """Put events that a task has got on the way to the task of their keys."""
        self.partitions.send(self.tasks[home], stream, partition, events)

    def _full(self, stream: str, home: int) -> bool:
        """Whether much of what a task has sent on waits for others to commit it."""
        return self.partitions.full(self.tasks[home], stream)

    def _committed(self) -> None:
        """More of what producers have sent is committed: tell them."""
        self.inputs.committed()
        self.front.nudge()

    def _goes_back(self, task: Task) -> None:
        self._going.start_soon(self.ownership.go_back, task)

    def _has_stream(self, name: str) -> str:
        """For the log: whether the app serves a stream of this name itself."""
        stream = self.app.streams.get(name)
        served = stream is not None and not (isinstance(stream, InputStream) and not stream.is_live)
        return f"app {self.app.name!r}" if served else ""

    # -- what moves on when something has happened ---------------------------------------------

    def _after_turn(self) -> float | None:
        """Between two turns: let held inputs and waiting sources go on, send verdicts."""
        if self.partitions.turned:
            self.partitions.turned.unpark_all()
        now = trio.current_time()
        dues = [self.listener.flush(now)]
        if self.members is not None:
            dues.append(self.members.pump(now))
        if self.senders:
            dues.append(self.outputs.pump(now))
        self._room()
        self.inputs.tick(now)
        if self.replay is not None:
            self.replay.consumers.released()
        if self.readers:
            dues.append(self.readers.feed(now))
        return min((due for due in dues if due is not None), default=None)

    def _room(self) -> None:
        """Some stage may have room again."""
        if self.pipeline.strained and self.pipeline.settle():
            for task in self.tasks.values():
                self.loop.wake(task)

    def _heard(self) -> None:
        """A consumer or another member has ruled, come or gone."""
        try:
            self.outputs.heard()
            if self.members is not None:
                self.members.heard()
            if self.replay is not None:
                self.replay.exchange.heard()
                self.inputs.released()
                if self.loop.ending:  # it may wait for what has just arrived
                    self.loop.nudge()
        except S4Error as error:  # not here, for whoever calls knows nothing of it
            self._going.start_soon(self._fail, error)
            return
        if self.replay is not None:
            self.replay.consumers.released()
        self._room()
        if self.members is not None and self.members.waiting:
            self.loop.nudge()  # there may be room for what waits

    async def _fail(self, error: S4Error) -> None:
        """Stop for what was heard: perhaps since our tasks are another container's by now."""
        if self.replay is not None:
            try:
                await self.replay.committer.check()
            except TaskFenced:
                if self.ownership.left:  # and all was committed before
                    return
                raise
        raise error

    def _unhandled(self, pe: str, cls: type) -> None:
        log.warning("no handler for an event type; further ones are only counted",
                    app=self.app.name, pe=pe, event_type=cls.__name__)  # fmt: skip
