"""The outputs of a container: all channels on which events leave it, and who takes them.

Rules
- What members of the app send each other of streams whose tasks keep no state leaves by the
  ``sender`` stage of the stream. Events of producers for another member's partition are forwarded;
  such an event is done when the owner has acknowledged it. If a partition moves to us, its lane
  leads to ourselves until its events have arrived, so that nothing overtakes them. A container that
  is alone has no such channels.
- Tasks that keep state have channels of their own (:mod:`s4node.runtime.outputs.task_channels`).
- The configuration names consumers of output streams, and the cluster's directory finds them. A
  consumer that was found goes when the directory no longer has it. Each consumer has one emitter,
  for all streams that it consumes, so a slow one holds back only its own sources.
- A stream that has no consumer, and cannot get one later, is logged once.
- A consumer's answer says to which inputs of all apps the events lead. If ours is among them, the
  output stream feeds itself: what its stages cannot hold spills, and nothing of us waits for it.
  Our inputs' producers get the same, whenever it changes, so it goes around any cycle.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import trio
from msgspec.structs import replace

from s4node.app.plan import dataflow
from s4node.app.stream import InputStream, OutputStream, Stream
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.coordination.stream_directory import SystemConsumers
from s4node.cluster.coordination.topology import Topology
from s4node.config import settings
from s4node.errors import EventError
from s4node.events.event import EventBatch
from s4node.logger import get_logger
from s4node.metrics.statistics import OutboxStatistics, StageStatistics
from s4node.net.certificates.credentials import Credentials
from s4node.net.egress.emitter import Emitter
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.release import AtOnce, ByExecutor
from s4node.net.egress.routes import Routes
from s4node.net.egress.settlements import PassedOn, Receipts
from s4node.net.wire import frame as wire
from s4node.runtime.loop.run_loop import RunLoop
from s4node.runtime.outputs.channels import Channel, R, outbox_options
from s4node.runtime.outputs.output_carrier import OutputCarrier
from s4node.runtime.outputs.task_channels import ChannelContext, TaskOverflow
from s4node.runtime.task.task import Task
from s4node.stages.executors import REMOTE_SENDER, SENDER

log = get_logger("s4node.runtime")

_CARRIER = "carrier"
"""The suffix of producers that forward the events of other producers."""


class Unacknowledged(NamedTuple):
    """The number of events of an output stream that a consumer has not acknowledged."""

    stream: str
    consumer: str
    events: int


class Outputs:
    """The channels of a container named ``node``; ``context`` is that of the tasks that keep state.

    Without an ``enrolment`` there are no other members. The ``loop`` gets a turn when there is news
    of a consumer, a member or a receiver, which ``handle_news`` then handles.
    """

    def __init__(
        self,
        context: ChannelContext,
        loop: RunLoop,
        *,
        node: str,
        enrolment: Enrolment | None,
        keeps: bool,
    ) -> None:
        app, config = context.app, context.config
        self.tasks = context.tasks
        self.keeps = keeps
        self.carriers: dict[str, OutputCarrier] = {}  # of output streams
        self.to_members: dict[str, Channel[ByExecutor]] = {}  # by stream
        self._forwarding: dict[str, Channel[AtOnce]] = {}
        self._receipts: dict[str, Receipts] = {}
        self.context = context
        self._loop = loop
        self._credentials = Credentials.configured(config)
        self._awaited = enrolment is not None
        self._ourselves = f"{enrolment.cluster}.{enrolment.app}" if enrolment else ""
        self.has_news = False
        self.emitter = self._emitter()  # to the other members
        self._emitters: dict[str, Emitter] = {}  # by consumer
        self._found: set[str] = set()  # consumers from the cluster's directory
        live = [s.name for s in app.streams.values() if isinstance(s, InputStream) and s.is_live]
        self._places = {name: f"{context.cluster}/{app.name}/{name}" for name in live}
        self.leads = {name: [place] for name, place in self._places.items()}
        self._known: list[object] = []  # of where events lead
        self._news = trio.lowlevel.ParkingLot()
        self._nursery: trio.Nursery
        context.emitter, context.carriers = self._emitter(), self.carriers
        if keeps:
            context.pipeline.overflow_of = partial(TaskOverflow, self.tasks)
        producer = f"{node}-{context.incarnation}"  # another host's container may have our name
        self._producer = producer
        if self._credentials is not None:
            self._producer = self._credentials.holder.own_id(producer)
        for stream in app.streams.values():
            if isinstance(stream, OutputStream):
                stream.carrier = self.carriers[stream.name] = self._carrier(stream)
            elif enrolment is not None:
                stage = context.pipeline.stage_of(stream.name, SENDER)
                release = ByExecutor(self._outbox(stream, producer), stage)
                self.to_members[stream.name] = self._lead(release)
            if isinstance(stream, InputStream) and enrolment is not None:
                outbox = self._outbox(stream, f"{producer}-{_CARRIER}")
                self._receipts[stream.name] = Receipts(outbox)
                self._forwarding[stream.name] = self._lead(AtOnce(outbox), wire.ANSWER_NOW)

    def _emitter(self, seeds: Sequence[str] = ()) -> Emitter:
        return Emitter(
            seeds,
            credentials=self._credentials,
            queue_size=self.context.config[settings.REMOTE_SENDER_SIZE],
            owner=self,
        )

    def _outbox(self, stream: Stream, producer: str, **more: Any) -> Outbox:
        options = outbox_options(stream, self.context.config)
        return Outbox(stream.name, producer, **options, **more)

    def _lead(self, release: R, flags: int = 0) -> Channel[R]:
        context = self.context
        release.box.open_lanes(context.partitions, wire.ROUTED)
        headers = {wire.CLUSTER: context.cluster}
        routes = Routes(release.box, context.incarnation, headers=headers, flags=flags)
        channel = Channel("", release, routes, self.emitter)
        channel.open()
        return channel

    def _carrier(self, stream: OutputStream) -> OutputCarrier:
        context = self.context
        carrier = OutputCarrier(stream.name, self._loop, context.refusals, awaited=self._awaited)
        if not stream.is_live:  # tasks write to a system
            return carrier
        for consumer, address in Topology(context.config).consumers(stream.name).items():
            if consumer not in self._emitters:
                self._emitters[consumer] = self._emitter([address])
            self._connect(carrier, consumer)
        if not carrier.channels and not self._awaited:
            log.warning(
                "no setting names a consumer of an output stream; only subscribers get its events",
                stream=stream.name,
                setting=f"s4.stream.{stream.name}.consumers",
            )
        return carrier

    def _connect(self, carrier: OutputCarrier, consumer: str) -> None:
        stream = self.context.app.streams[carrier.stream]
        stage = self.context.pipeline.stage_of(stream.name, REMOTE_SENDER)
        outbox = self._outbox(stream, self._producer, key=stream.key)
        routes = Routes(outbox, self.context.incarnation, headers={wire.APP: True})
        release = ByExecutor(outbox, stage)
        carrier.connect(Channel(consumer, release, routes, self._emitters[consumer]))

    def _disconnect(self, carrier: OutputCarrier, consumer: str) -> int:
        stage = carrier.channels[consumer].release.stage
        left = carrier.disconnect(consumer)
        stage.clear()
        self.context.pipeline.drop([stage])
        return left

    # -- who takes them ----------------------------------------------------------------------

    async def start(self, nursery: trio.Nursery) -> None:
        """Connect to members and consumers; ``nursery`` also runs those that come later."""
        self._nursery = nursery
        for emitter in (*self._emitters.values(), self.context.emitter, self.emitter):
            await nursery.start(emitter.run)

    def assign(
        self, owners: Sequence[str], epoch: int, origin: str = "", ours: Collection[int] = ()
    ) -> None:
        """Route events to the current owners of partitions; those that are ``ours`` run here."""
        for channel in self._unsaved(self.to_members.values()):
            others = [
                "" if partition in ours and not channel.release.behind(partition) else owner
                for partition, owner in enumerate(owners)
            ]
            self.emitter.assign(channel.routes, others, epoch, origin)
        context = self.context
        context.owners = owners, epoch, origin
        for routes in list(context.emitter.carried):
            context.emitter.assign(routes, owners, epoch, origin)

    def consumed(self, stream: str, consumers: SystemConsumers) -> None:
        """Set the consumers of a stream that the directory has, besides the configured ones."""
        carrier = self.carriers[stream]
        for name in [name for name in carrier.channels if name in self._found]:
            if name not in consumers:
                left = self._disconnect(carrier, name)
                self.consumer(stream, name)
                log.warning(
                    "an app no longer consumes a stream",
                    stream=stream,
                    consumer=name,
                    events_without_verdict=left,
                )
                self._loop.nudge()  # tasks no longer wait for this consumer
        for name, consumer in consumers.items():
            if name == self._ourselves:
                continue
            emitter = self._emitters.get(name)
            if emitter is None:
                emitter = self._emitters[name] = self._emitter(consumer.members)
                self._found.add(name)
                self._nursery.start_soon(emitter.run)
            else:
                emitter.seeds(consumer.members)
            if name not in carrier.channels:
                self._connect(carrier, name)
                self.consumer(stream, name)
                log.info("an app consumes a stream", stream=stream, consumer=name)

    def consumer(self, stream: str, consumer: str) -> None:
        """Add or remove the channels of tasks to a consumer that has come or gone."""
        for task in self.tasks.values():
            task.consumer(stream, consumer)

    def _known_ways(self) -> list[object]:
        """The known ways of events: in this app, and from consumers."""
        channels = (one for each in self.carriers.values() for one in each.channels.values())
        edges = self.context.pipeline.order.edges.known
        return [len(edges), *(channel.routes.leads for channel in channels)]

    def _learn_ways(self) -> bool:
        """Learn where events lead; return True if inputs lead elsewhere now."""
        pipeline = self.context.pipeline
        beyond = {
            stream: frozenset[str]().union(*(one.routes.leads for one in each.channels.values()))
            for stream, each in self.carriers.items()
        }
        for stream, places in beyond.items():
            for name, place in self._places.items():
                if place in places:
                    pipeline.learn(stream, name)
        self._known, before = self._known_ways(), dict(self.leads)
        edges = pipeline.order.edges.targets
        for name, place in self._places.items():
            further = (beyond.get(each, ()) for each in dataflow.reached(edges, name))
            self.leads[name] = sorted({place}.union(*further))
        return self.leads != before

    # -- events on their way -----------------------------------------------------------------

    def send(self, task: Task, stream: str, events: Sequence[Any]) -> None:
        carrier = self.carriers[stream]
        if self.keeps:
            self.tasks[task.partition].send(carrier, events)
            return
        carrier.extend(events)
        if carrier.was_full and carrier.holds:
            self.context.pipeline.watch(stream, "sender", carrier)

    def put(
        self, home: int, stream: str, partition: int, events: Sequence[Any], sender: str = ""
    ) -> None:
        """Send events that the task of ``home`` has put for another one, or has from a producer,
        ``sender``."""
        self.tasks[home].put(stream, partition, events, sender)

    def put_to_member(self, stream: str, partition: int, events: list[Any], *, waits: bool) -> int:
        """Send events that the app has put; return how many were dropped for lack of room.

        A source that never ``waits``, such as a timer, may put much more than fits.
        """
        release, pipeline = self.to_members[stream].release, self.context.pipeline
        if not waits and release.withheld:
            pipeline.spill(stream, release.stage)
        dropped = release.put(events, partition, trio.current_time())
        if dropped:
            reason = release.stage.executor.reason
            self.context.refusals.dropped(release.stage.settings.stage, stream, dropped, reason)
        if release.holds:
            pipeline.watch(stream, "sender", release)
        self.emitter.wake()
        return dropped

    def forward(self, batch: EventBatch) -> None:
        """Forward a producer's batch for a partition that another member runs."""
        self._receipts[batch.stream].forward(batch)
        self.emitter.wake()

    def carries(self, stream: str, partition: int) -> bool:
        """Return True if forwarded events of producers for our partition have yet to arrive."""
        channel = self._forwarding.get(stream)
        return channel is not None and channel.release.behind(partition)

    def _staged(self) -> Iterator[Channel[ByExecutor]]:
        yield from self.to_members.values()
        for carrier in self.carriers.values():
            yield from carrier.channels.values()

    def _unsaved(self, staged: Iterable[Channel[ByExecutor]]) -> Iterator[Channel[Any]]:
        yield from staged
        yield from self._forwarding.values()

    def pump(self, now: float) -> float | None:
        """Send events that have waited for a token; return when to call again, or None."""
        dues = []
        for channel in self._staged():
            if channel.release.has_staged:
                if channel.release.pump(now):
                    channel.emitter.wake()
                dues.append(channel.release.due(now))
        for carrier in self.carriers.values() if dues else ():
            carrier.make_room()
        return min((due for due in dues if due is not None), default=None)

    def take_news(self) -> None:
        self.has_news = True
        self._news.unpark_all()
        self._loop.nudge()

    def handle_news(self) -> bool:
        """Handle news of members, consumers and receivers; return True if inputs lead elsewhere
        now. Raises S4Error if one does not accept a stream."""
        self.has_news = False
        self._news.unpark_all()  # channels may change here
        for carrier in self.carriers.values():
            for consumer, channel in list(carrier.channels.items()):
                if channel.outbox.repartitioned and not channel.release.unsettled:
                    self._disconnect(carrier, consumer)
                    self._connect(carrier, consumer)
        for channel in self._unsaved(self._staged()):
            if channel.release.has_staged:
                self._loop.nudge()  # there may be room for them now
            channel.report_refusals(self.context.refusals)
            if error := channel.outbox.error:
                whom = "" if channel.consumer else " to the other members"
                raise EventError(f"stream {channel.outbox.stream!r}{whom}: {error}")
        for carrier in self.carriers.values():
            carrier.make_room()
        for task in self.tasks.values():
            task.handle_news()
        known = self._known_ways()
        return known != self._known and self._learn_ways()

    # -- what is on its way ------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """True if all events between tasks that keep state are committed by their receivers."""
        return all(task.idle for task in self.tasks.values())

    @property
    def moving(self) -> bool:
        """True if events of such tasks wait or are being sent that an owner could take now."""
        return any(task.moving for task in self.tasks.values())

    def unsettled(self, stream: str) -> int:
        """The number of a stream's events that other members have not acknowledged."""
        channels = self.to_members.get(stream), self._forwarding.get(stream)
        return sum(channel.release.unsettled for channel in channels if channel is not None)

    def unacknowledged(self) -> list[Unacknowledged]:
        """The events that consumers have not acknowledged and accept, without those of tasks that
        keep state, which are not lost."""
        return [
            Unacknowledged(stream, consumer, events)
            for stream, carrier in self.carriers.items()
            for consumer, channel in carrier.channels.items()
            if (events := channel.release.unsettled) and not channel.outbox.error
        ]

    async def wait_settled(self) -> None:
        """Wait until all events put on output streams so far are acknowledged by the consumers that
        are still there."""
        marks = [
            (carrier, channel, channel.release.mark())
            for carrier in self.carriers.values()
            for channel in carrier.channels.values()
        ]
        while any(
            carrier.channels.get(channel.consumer) is channel and not mark.reached
            for carrier, channel, mark in marks
        ):
            await self._news.park()

    # -- stopping ----------------------------------------------------------------------------

    def ignore_drain(self) -> None:
        """Send to members that stop, too: those that stop together still send to each other."""
        self.emitter.ignore_drain()
        self.context.emitter.ignore_drain()

    async def wait_acknowledged(self) -> None:
        """Wait until all events are acknowledged and the consumers know that no more will come."""
        for emitter in self._emitters.values():
            emitter.hurry()
        while self.unacknowledged():
            due = self.pump(trio.current_time())  # the loop may have ended
            with trio.move_on_at(math.inf if due is None else due):
                await self._news.park()
            if self._loop.ended.is_set():
                self.handle_news()
        for emitter in self._emitters.values():
            await emitter.finish()

    async def finish(self) -> None:
        """Announce to the other members that no more events will come."""
        await self.emitter.finish()

    # -- statistics --------------------------------------------------------------------------

    def passed_on(self) -> dict[str, PassedOn]:
        """The counts, by stream, of producers' events that other members count."""
        return {name: receipts.passed_on for name, receipts in self._receipts.items()}

    def outboxes(self) -> Iterator[OutboxStatistics]:
        """The unacknowledged events of each channel of tasks that keep state."""
        for task in self.tasks.values():
            yield from task.statistics()

    def stages(self) -> Iterator[StageStatistics]:
        """The stages by which events leave, including the forwarded events of producers."""
        for stream, channel in self.to_members.items():
            counts = channel.release.statistics()
            if stream in self._forwarding:
                box = self._forwarding[stream].outbox
                counts = replace(
                    counts,
                    depth=counts.depth + box.pending,
                    bytes=counts.bytes + box.pending_bytes,
                    in_flight=counts.in_flight + box.in_flight,
                )
            yield counts
        for carrier in self.carriers.values():
            yield from carrier.statistics().values()
