"""The container: one process's share of an app, from its start to its end.

Rules
- Start: on_init, check the graph, make tasks and senders, listen, on_start. Nothing is accepted
  before the app can process it.
- A container by itself owns all partitions. As a member of a cluster it owns those that its view
  gives it, and passes what belongs to others on to them.
- Stop, in this order: stop the app's sources and accept nothing further from outside, drain what
  was admitted, send what it emitted, leave the cluster, on_close, close. One deadline over all.
- Only this room knows both the app's side and the sockets.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog
import trio

from s4node import config as settings
from s4node import flow
from s4node.app import App
from s4node.cluster.directory import Consumers, Directory
from s4node.cluster.enrolment import Enrolment
from s4node.cluster.membership import Membership
from s4node.cluster.topology import Topology
from s4node.cluster.view import View
from s4node.comm import frame as wire
from s4node.comm.emitter import Emitter
from s4node.comm.forwarder import Forwarder
from s4node.comm.listener import Connection, Listener, check_reachable
from s4node.comm.outbox import Outbox, Refusal
from s4node.comm.outgoing import Outgoing
from s4node.comm.sender import RemoteSender
from s4node.comm.subscriber import Subscriber
from s4node.config import Config
from s4node.container import hooks
from s4node.container.dispatch import Dispatch
from s4node.container.loop import EventLoop
from s4node.container.pipeline import Pipeline
from s4node.container.port import FrameBatch, InputPort
from s4node.container.task import Task, TaskStatistics
from s4node.container.watchdog import Watchdog
from s4node.errors import S4Error, WouldBlock
from s4node.event import EventBatch, footprint
from s4node.executors.stage import StageStatistics
from s4node.keys import Partitioner, hasher_named
from s4node.stream import InputStream, OutputStream, Stream

log = structlog.get_logger("s4node.container")

_FAREWELL_SECONDS = 1.0
"""How long a stopping node waits for peers that neither read their last verdicts nor say that
they have stopped sending."""

_SUBSCRIBER_BYTES = 131_072
_SUBSCRIBER_SECONDS = 0.005
"""How much a subscriber is sent at a time, and how soon it is looked at again."""

_QUIET_SECONDS = 0.25
"""How long a stopping member goes on taking what the others of its cluster still send to it."""


@dataclass(frozen=True)
class InputStatistics:
    """What came in on one stream, in events but for ``gaps`` and ``over_credit``: frames dropped.

    ``left`` were left to their producers for lack of room, ``redispatched`` came to the wrong
    partition.
    """

    admitted: int
    refused: int
    shed: int
    left: int
    duplicates: int
    gaps: int
    over_credit: int
    redispatched: int


@dataclass(frozen=True)
class ContainerStatistics:
    """What a container has done since its start."""

    tasks: tuple[TaskStatistics, ...]
    admitted: dict[str, int]
    refused: dict[str, int]
    sent: dict[str, int]
    peers: dict[str, int]
    stages: tuple[StageStatistics, ...] = ()
    inputs: dict[str, InputStatistics] = field(default_factory=dict)

    @property
    def processed(self) -> int:
        """Events handled, over all tasks and streams."""
        return sum(task.processed for task in self.tasks)


class Container:
    """Runs ``app`` in this process: all its partitions, or as a member those that it is given.

    With an ``enrolment`` it is a member. Call :meth:`run` once.
    """

    def __init__(
        self,
        app: App,
        config: Config,
        *,
        node: str = "",
        enrolment: Enrolment | None = None,
    ) -> None:
        self.app = app
        self.config = config
        self.node = node or f"{config[settings.CLUSTER_NAME]}-{os.getpid()}"
        self.incarnation = secrets.token_hex(6)
        self.partitions = config[settings.CLUSTER_PARTITIONS]
        self.partitioner = Partitioner(self.partitions, hasher_named(config[settings.HASHER]))
        self.tasks: dict[int, Task] = {}
        self.view = View.alone(self.partitions)
        self.ports: dict[str, InputPort] = {}
        self.senders: dict[str, RemoteSender] = {}
        self.ready = trio.Event()
        self._prepared = False
        self._drain_word = b""
        self._left = False
        self.pipeline: Pipeline
        self._parallel: dict[str, int] = {}
        self.enrolment = enrolment
        self._membership: Membership | None = None
        self._directory: Directory | None = None
        self._inner_ports: dict[str, InputPort] = {}
        self._emitters: dict[str, Emitter] = {}
        self._subscribers: dict[str, dict[Connection, Subscriber]] = {}
        self._found: set[str] = set()  # consumers that the cluster told of
        self._peers: Emitter | None = None
        self._outer: trio.Nursery
        self._ways: dict[str, Outgoing] = {}  # streams to the other members
        self._forwarders: dict[str, Forwarder] = {}
        self._streams_of: dict[Connection, set[str]] = {}
        self._told: wire.Headers = {}
        self._refusals: Counter[str] = Counter()
        self._warned: set[str] = set()
        self._stopping = trio.Event()
        self._news = trio.Event()
        self.turned = trio.lowlevel.ParkingLot()
        self.loop: EventLoop
        self.dispatch: Dispatch
        self.listener: Listener

    @property
    def address(self) -> str:
        """Where others reach the container."""
        return self.listener.address

    def stop(self) -> None:
        """Begin an orderly stop; ``run`` returns when it is done."""
        self._stopping.set()

    # -- life --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the app until :meth:`stop`; raises what stopped it otherwise."""
        await self.prepare()
        self._make()
        grace = self.config[settings.TASK_SHUTDOWN_MS]
        async with trio.open_nursery() as outer:
            self._outer = outer
            for emitter in self._all_emitters():
                await outer.start(emitter.run)
            await outer.start(self.listener.serve)
            with Watchdog(self.loop, self.config[settings.WATCHDOG_MS]):
                async with trio.open_nursery() as inner:
                    loop_ended = trio.Event()
                    inner.start_soon(self._run_loop, loop_ended)
                    await self._join(inner)
                    patience = trio.CancelScope()
                    with patience:
                        async with trio.open_nursery() as sources:
                            self.app.spawn = partial(self._spawn, sources)
                            sources.start_soon(self._start)
                            await self._stopping.wait()
                            patience.deadline = trio.current_time() + grace
                            sources.cancel_scope.cancel()
                        self._stop_accepting()
                        if self._membership is not None:
                            await self._drain_with_others()
                        self.loop.drain()
                        await loop_ended.wait()
                        await self._settle()
                        with trio.move_on_after(_FAREWELL_SECONDS):
                            await self.listener.farewell()
                    if patience.cancelled_caught:
                        log.warning(
                            "not drained in time", seconds=grace, setting="task.shutdown.ms"
                        )
                    inner.cancel_scope.cancel()
            left = patience.deadline - trio.current_time()
            with trio.move_on_after(max(left, _FAREWELL_SECONDS)) as closing:
                await hooks.call(self.app, self.app.on_close)
            if closing.cancelled_caught:
                log.warning("on_close did not end in time", app=self.app.name)
            outer.cancel_scope.cancel()
        self.pipeline.close()

    async def _join(self, nursery: trio.Nursery) -> None:
        """Own our partitions; as a member, from the first view on that gives us any."""
        if self.enrolment is None:
            await self._own(self.view)
            return
        self._membership = self.enrolment.membership(self.address, self.partitions)
        send, views = trio.open_memory_channel[View](math.inf)
        nursery.start_soon(self._membership.run, send.send_nowait)
        view = await views.receive()
        while not view.epoch:  # nothing is assigned before all are here
            view = await views.receive()
        self._directory = self.enrolment.directory(self.ports, self.senders)
        await self._directory.register()
        nursery.start_soon(self._directory.run, self._consumed)
        await self._directory.learned.wait()  # what is put before would go nowhere
        await self._own(view)
        nursery.start_soon(self._follow, views)

    def _consumed(self, stream: str, consumers: Consumers) -> None:
        """These apps consume one of our output streams now, besides those of the configuration."""
        sender = self.senders[stream]
        ourselves = f"{self.enrolment.cluster}.{self.enrolment.app}" if self.enrolment else ""
        for name in [name for name in sender.consumers if name in self._found]:
            if name not in consumers:
                left = sender.disconnect(name)
                log.warning("an app consumes a stream no longer", stream=stream, consumer=name,
                            events_without_verdict=left)  # fmt: skip
        for name, consumer in consumers.items():
            if name == ourselves:
                continue
            emitter = self._emitters.get(name)
            if emitter is None:
                emitter = self._emitters[name] = self._emitter(consumer.members)
                self._found.add(name)
                self._outer.start_soon(emitter.run)
            else:
                emitter.seeds(consumer.members)
            if name not in sender.consumers:
                sender.connect(name, emitter, self._outbox(self.app.streams[stream]))
                log.info("an app consumes a stream", stream=stream, consumer=name)
        self.turned.unpark_all()

    async def _follow(self, views: trio.MemoryReceiveChannel[View]) -> None:
        async for view in views:
            if self._stopping.is_set() and view.mine < self.tasks.keys():
                return  # we are leaving, and others have taken over
            await self._own(view)

    async def _own(self, view: View) -> None:
        """Take over what ``view`` gives us, and tell everybody who owns what."""
        lost = self.tasks.keys() - view.mine
        if lost:
            raise S4Error(
                f"{self.node} has lost partitions {sorted(lost)} of app {self.app.name!r} to other "
                f"members while it was running them; it stops, for two owners would count twice"
            )
        gained = sorted(view.mine - self.tasks.keys())
        for partition in gained:
            self._open(partition)
        for partition in gained:
            await self.tasks[partition].start()
            self.loop.wake(self.tasks[partition])
        self.view = view
        if self._membership is None:
            return
        if gained:
            log.info("owns partitions", app=self.app.name, node=self.node, partitions=gained,
                     epoch=view.epoch)  # fmt: skip
        nodes = list(dict.fromkeys((self.address, *view.members)))
        at = {address: index for index, address in enumerate(nodes)}
        self._told |= {
            wire.ADDRESS: self.address,
            wire.NODES: nodes,
            wire.OWNERS: [at.get(owner, -1) for owner in view.owners],
            wire.EPOCH: view.epoch,
        }
        for connection, streams in self._streams_of.items():
            for name in streams:
                word = self._port(name).word(self.node, self.incarnation, unasked=True)
                connection.answer(wire.encode_frame(word))
        for stream, subscribers in self._subscribers.items():
            word = self._welcome(self.app.streams[stream])
            for connection in subscribers:
                connection.answer(wire.encode_frame(word))
        self._assign_ways()
        self.loop.nudge()

    def _assign_ways(self) -> None:
        """Lead the ways to the other members to where the partitions are now."""
        assert self._peers is not None
        for way in self._ways.values():
            owners = [
                "" if partition in self.tasks and not way.behind(partition) else owner
                for partition, owner in enumerate(self.view.owners)
            ]
            self._peers.assign(way.outbox, owners, self.view.epoch)

    async def _drain_with_others(self) -> None:
        """Work off what the members of a stopping cluster still send each other."""
        while True:
            before = self.processed
            with trio.move_on_after(_QUIET_SECONDS):
                await trio.sleep_forever()
            ways = [way for way in self._ways.values() if way.unsettled]
            stages = (stage for task in self.tasks.values() for stage in task.stages.values())
            waiting = not self.loop.idle or any(stage.depth for stage in stages)
            if self.processed == before and not waiting and not ways:
                break
            if ways and self._peers is not None:
                self._peers.hurry()
        self._left = True
        self.listener.stop_accepting()
        for port in self._all_ports():
            port.closed = True
            port.members.clear()
        with trio.move_on_after(_FAREWELL_SECONDS):
            await self.listener.tell()
            self._give_up()
            await self.listener.tell()
        assert self._membership is not None
        await self._membership.leave()

    def _give_up(self) -> None:
        """Tell the producers that these were our last words, so that they go on with others."""
        for port in self._all_ports():
            for lane in port.admission.lanes.values():
                if isinstance(lane.connection, Connection):
                    last = wire.Ruling(
                        lane.partition, wire.NOT_OWNER, lane.upto, 0, lane.expected, (), ""
                    )
                    word = wire.Verdict(port.stream.name, lane.producer, (last,))
                    lane.connection.answer(wire.encode_frame(word))

    @property
    def processed(self) -> int:
        """Events handled, over all tasks and streams."""
        return sum(task.processed for task in self.tasks.values())

    def _all_ports(self) -> list[InputPort]:
        return [*self.ports.values(), *self._inner_ports.values()]

    def _all_emitters(self) -> list[Emitter]:
        peers = [] if self._peers is None else [self._peers]
        return [*self._emitters.values(), *peers]

    async def prepare(self) -> None:
        """Let the app declare its graph, and check it; ``run`` does it unless it is done."""
        if not self._prepared:
            self._prepared = True
            await hooks.declare(self.app, self.config, self.partitions)

    async def _start(self) -> None:
        await hooks.call(self.app, self.app.on_start)
        log.info("running", app=self.app.name, node=self.node, address=self.address,
                 partitions=self.partitions)  # fmt: skip
        self.ready.set()

    def _spawn(
        self, nursery: trio.Nursery, function: Callable[..., Awaitable[Any]], *arguments: Any
    ) -> None:
        nursery.start_soon(function, *arguments)

    async def _run_loop(self, ended: trio.Event) -> None:
        await self.loop.run()
        ended.set()

    def _stop_accepting(self) -> None:
        if self._peers is None:
            self.listener.stop_accepting()
        else:  # others that stop as well may still come, and we to them
            self._peers.insist()
        self._drain_word = wire.encode_frame(wire.Drain(f"{self.node} is stopping"))
        self.listener.broadcast(self._drain_word)
        for port in self.ports.values():
            port.closed = True
        self.listener.flush(float("inf"))

    async def _settle(self) -> None:
        """Wait until what was emitted to other clusters has its verdict."""
        for emitter in self._emitters.values():
            emitter.hurry()
        while not all(sender.settled for sender in self.senders.values()):
            self._news = trio.Event()
            await self._news.wait()
        for emitter in self._all_emitters():
            emitter.finish()
            await emitter.wait_quiet()

    # -- making ------------------------------------------------------------------------------

    def _make(self) -> None:
        app, config = self.app, self.config
        clock = trio.current_time
        app.clock = clock
        self.dispatch = Dispatch(app, self.partitioner)
        self.pipeline = Pipeline(app, config, flow.edges(app))
        self._parallel = self.pipeline.parallel()
        self.loop = EventLoop(
            max_events=config[settings.STEP_MAX_EVENTS],
            max_seconds=config[settings.STEP_MAX_MS],
            clock=clock,
            after_turn=self._after_turn,
        )
        for prototype, _ in app.prototypes.values():
            prototype.on_event.on_unhandled = partial(self._unhandled, prototype.name)
        self.listener = Listener(
            config[settings.LISTENER_ADDRESS],
            self,
            advertise=config[settings.LISTENER_ADVERTISE],
            max_envelope_bytes=config[settings.LISTENER_MAX_ENVELOPE_BYTES],
            max_frame_bytes=config[settings.LISTENER_MAX_FRAME_BYTES],
            max_connections=config[settings.LISTENER_MAX_CONNECTIONS],
            handshake_seconds=config[settings.COMM_TIMEOUT],
            verdict_delay=config[settings.COMM_VERDICT_DELAY],
            nudge=self.loop.nudge,
        )
        self._told[wire.MAX_FRAME_BYTES] = config[settings.LISTENER_MAX_FRAME_BYTES]
        self._told[wire.MAX_ENVELOPE_BYTES] = config[settings.LISTENER_MAX_ENVELOPE_BYTES]
        if self.enrolment is not None:
            check_reachable(config)
            self._peers = self._emitter(())
        for stream in app.streams.values():
            if isinstance(stream, OutputStream):
                stream.carrier = self.senders[stream.name] = self._sender(stream)
                continue
            stream.carrier = _Inner(self, stream)
            if isinstance(stream, InputStream):
                self.ports[stream.name] = self._make_port(stream)
            elif self._peers is not None:
                self._inner_ports[stream.name] = self._make_port(stream)
            if self._peers is not None:
                self._ways[stream.name] = self._make_way(stream, self._peers)

    def _make_port(self, stream: Stream) -> InputPort:
        return InputPort(
            stream,
            {},
            self.partitioner,
            self.config[settings.HASHER],
            self._offer,
            _notify,
            self._told,
            self.pipeline.deserializers[stream.name],
        )

    def _make_way(self, stream: Stream, peers: Emitter) -> Outgoing:
        """The outbox that carries ``stream`` to the partitions of the other members."""
        outbox = Outbox(
            stream.name,
            f"{self.node}-{self.incarnation}",
            self.incarnation,
            types=[kind.cls for kind in stream.types],
            headers={wire.CLUSTER: self.config[settings.CLUSTER_NAME]},
            max_frame_events=self.config[settings.SENDER_MAX_FRAME_EVENTS],
            max_frame_bytes=self.config[settings.SENDER_MAX_FRAME_BYTES],
        )
        outbox.open_lanes(self.partitions, wire.ROUTED)
        peers.add(outbox)
        if isinstance(stream, InputStream):
            self._forwarders[stream.name] = Forwarder(outbox)
        return Outgoing(self.pipeline.sender(stream.name, remote=False), outbox)

    def _open(self, partition: int) -> None:
        """Make the task of a partition, and open the ports for it."""
        stages = self.pipeline.stages_of(partition)
        task = self.tasks[partition] = Task(
            self.app,
            partition,
            stages=stages,
            clock=trio.current_time,
            deliver=self._deliver,
            held=self.pipeline.order.held,
            rates=self.pipeline.limits(stages),
            parallel=self._parallel,
        )
        self.loop.adopt(task)
        for ports in (self.ports, self._inner_ports):
            for port in ports.values():
                port.open(partition, task.stages[port.stream.name])

    def _port(self, name: str) -> InputPort:
        return self.ports.get(name) or self._inner_ports[name]

    def _sender(self, stream: OutputStream) -> RemoteSender:
        sender = RemoteSender(
            stream.name,
            make_stage=partial(self.pipeline.sender, stream.name, remote=True),
            on_room=self._room,
            on_refused=self._refused,
            awaited=self.enrolment is not None,
        )
        for cluster, address in Topology(self.config).consumers(stream.name).items():
            if cluster not in self._emitters:
                self._emitters[cluster] = self._emitter([address])
            sender.connect(cluster, self._emitters[cluster], self._outbox(stream))
        if not sender.consumers and self.enrolment is None:
            log.warning("nobody consumes an output stream; its events go nowhere",
                        stream=stream.name,
                        setting=f"s4.stream.{stream.name}.consumers")  # fmt: skip
        return sender

    def _emitter(self, seeds: Sequence[str]) -> Emitter:
        return Emitter(
            seeds, queue_size=self.config[settings.SENDER_WORK_QUEUE_SIZE], on_news=self._heard
        )

    def _outbox(self, stream: Stream) -> Outbox:
        return Outbox(
            stream.name,
            f"{self.node}-{self.incarnation}",  # another host's container may have our name
            self.incarnation,
            key=stream.key,
            types=[kind.cls for kind in stream.types],
            max_frame_events=self.config[settings.SENDER_MAX_FRAME_EVENTS],
            max_frame_bytes=self.config[settings.SENDER_MAX_FRAME_BYTES],
        )

    # -- events on their way -----------------------------------------------------------------

    def _offer(self, batch: EventBatch) -> None:
        """A batch for one of the tasks, here or with another member."""
        partition = batch.partition
        task = self.tasks.get(partition)
        arrived = isinstance(batch, FrameBatch)  # so its order is that of its producer
        if task is not None and (arrived or not self._is_behind(batch.stream, partition)):
            task.offer(batch)
            self.loop.add(task)
        else:
            self._forwarders[batch.stream].forward(batch)
            self._wake_peers()

    def _put(self, stream: str, partition: int, events: list[Any], *, waits: bool = True) -> None:
        """Events that the app itself has put, for one of the tasks, here or with another member."""
        task = self.tasks.get(partition)
        if task is None or self._is_behind(stream, partition):
            way = self._ways[stream]
            self._dropped(stream, way.offer(events, trio.current_time(), partition, waits=waits))
            self.pipeline.watch(stream, "sender", way)
            self._wake_peers()
            return
        stage = task.stages[stream]
        size = footprint(events)
        if stage.overflow is None and not stage.executor.withholds:
            now = trio.current_time()
            room = stage.executor.room_for_put(stage, len(events), size, now, waits=waits)
            if room < len(events):
                stage.dropped(len(events) - room, stage.executor.reason)
                self._dropped(stream, len(events) - room)
                size = size * room // len(events)
                events = events[:room]
                if not events:
                    return
        task.offer(EventBatch(stream, partition, events, weight=size))
        self.loop.add(task)
        self.pipeline.watch(stream, partition, stage)

    def _dropped(self, stream: str, count: int) -> None:
        """Events of our own were dropped; they are counted in their stage."""
        if count and stream not in self._warned:
            self._warned.add(stream)
            log.warning("events that the app has put were dropped; further ones are only counted",
                        stream=stream, events=count)  # fmt: skip

    def _is_behind(self, stream: str, partition: int) -> bool:
        """Whether earlier events for a partition of ours are still on their way over the socket."""
        way = self._ways.get(stream)
        return way is not None and way.behind(partition)

    def _wake_peers(self) -> None:
        assert self._peers is not None
        self._peers.wake()

    def _deliver(self, task: Task, source: str, stream: Stream, events: list[Any]) -> None:
        """Hand on what the handlers of ``task`` have put on ``stream``, processing ``source``."""
        if source:
            self.pipeline.put(source, stream.name)
        if stream.name in self._subscribers:
            self._show(stream.name, events)
        if isinstance(stream, OutputStream):
            sender = self.senders[stream.name]
            sender.extend(events, waits=bool(source))
            self.pipeline.watch(stream.name, "sender", sender)
            return
        for partition, share in self.dispatch.shares(stream, events, task.partition):
            self._put(stream.name, partition, share, waits=bool(source))

    def _show(self, stream: str, events: list[Any]) -> None:
        for subscriber in self._subscribers.get(stream, {}).values():
            subscriber.offer(events)

    def _feed_subscribers(self) -> bool:
        """Send subscribers what they have room for; whether something has to be sent later."""
        rest = False
        now_ms = int(time.time() * 1000)
        for subscribers in self._subscribers.values():
            for connection, subscriber in subscribers.items():
                if subscriber.waits and not connection.answers:
                    for frame in subscriber.frames(_SUBSCRIBER_BYTES, now_ms):
                        connection.answer(frame)
                rest = rest or subscriber.waits
        return rest

    def _after_turn(self) -> float | None:
        """Between two turns: let held inputs and waiting sources go on, send verdicts."""
        self.turned.unpark_all()
        now = trio.current_time()
        dues = [self.listener.flush(now)]
        for way in self._ways.values():
            if way.stage.depth:
                if way.pump(now):
                    self._wake_peers()
                dues.append(way.due(now))
        dues += [sender.pump(now) for sender in self.senders.values()]
        if self.pipeline.strained:
            self._room()
        expiry = self.config[settings.PRODUCER_EXPIRY]
        for ports in (self.ports, self._inner_ports):
            for port in ports.values():
                port.admission.released()
                port.admission.tick(now, expiry)
        if self._subscribers and self._feed_subscribers():
            dues.append(now + _SUBSCRIBER_SECONDS)
        return min((due for due in dues if due is not None), default=None)

    def _room(self) -> None:
        """Some stage may have room again."""
        if self.pipeline.settle():
            for task in self.tasks.values():
                self.loop.wake(task)

    def _heard(self) -> None:
        for sender in self.senders.values():
            sender.news()
        for way in self._ways.values():
            for refusal in way.outbox.take_refusals():
                self._refused(refusal)
            if way.outbox.error:
                raise S4Error(
                    f"stream {way.outbox.stream!r} to the other members: {way.outbox.error}"
                )
        if self.pipeline.strained:
            self._room()
        if any(way.stage.depth for way in self._ways.values()):
            self.loop.nudge()  # there may be room for what waits
        self._news.set()

    def _refused(self, refusal: Refusal) -> None:
        name = f"{refusal.stream} ({'shed' if refusal.shed else 'refused'} by the consumer)"
        first = name not in self._refusals
        self._refusals[name] += refusal.count
        if first:
            log.warning("a consumer refused an event; further ones are only counted",
                        stream=refusal.stream, reason=refusal.reason)  # fmt: skip

    def _unhandled(self, pe: str, cls: type) -> None:
        log.warning("no handler for an event type; further ones are only counted",
                    app=self.app.name, pe=pe, event_type=cls.__name__)  # fmt: skip

    # -- what stands behind the listener -----------------------------------------------------

    def on_frame(self, frame: wire.Frame, connection: Connection) -> None:
        """Take a frame from a peer."""
        header = frame.header
        if isinstance(header, wire.Data):
            port = self.ports.get(header.stream) or self._inner_ports.get(header.stream)
            if port is None:
                connection.bad_frame(self._unknown(header.stream), header)
                return
            if header.partition not in self.tasks and 0 <= header.partition < self.partitions:
                connection.answer(wire.encode_frame(self._not_owner(header)))
                return
            now = trio.current_time()
            problem = port.on_data(header, frame.body, connection, now)
            if problem:
                connection.bad_frame(problem, header)
        elif isinstance(header, wire.Hello):
            connection.answer(wire.encode_frame(self._hello(header, connection)))
            if self._drain_word:
                connection.answer(self._drain_word)
        elif isinstance(header, wire.Idle):
            if header.flags & wire.ANSWER_NOW and self._knows(header.stream):
                self._port(header.stream).admission.ask(header.producer, connection)
        elif isinstance(header, wire.EndOfStream):
            if self._knows(header.stream):
                self._port(header.stream).admission.forget(header.producer, connection)
        elif isinstance(header, wire.Drain):
            connection.silent.set()
        elif isinstance(header, wire.Verdict):
            subscriber = self._subscribers.get(header.stream, {}).get(connection)
            if subscriber is None:
                connection.bad_frame("a node takes no verdict frame but from its subscribers")
                return
            subscriber.on_verdict(header)
            self.loop.nudge()

    def on_drained(self) -> None:
        """The frames that had arrived have been taken."""
        self.loop.take_turn()

    def on_gone(self, connection: Connection) -> None:
        """The peer's connection has ended."""
        now = trio.current_time()
        self._streams_of.pop(connection, None)
        for stream in [s for s, readers in self._subscribers.items() if connection in readers]:
            del self._subscribers[stream][connection]
            if not self._subscribers[stream]:
                del self._subscribers[stream]
        for port in self._all_ports():
            port.members.discard(connection)
            port.admission.gone(connection, now)

    def _hello(self, hello: wire.Hello, connection: Connection) -> wire.Hello:
        if hello.headers.get(wire.SUBSCRIBE):
            return self._subscribe(hello, connection)
        port = self.ports.get(hello.stream)
        member = hello.headers.get(wire.CLUSTER) == self.config[settings.CLUSTER_NAME]
        if member:
            port = port or self._inner_ports.get(hello.stream)
        if port is None:
            reason = self._unknown(hello.stream)
            log.warning("hello for an unknown stream", stream=hello.stream, peer=connection.peer)
            return wire.Hello(self.node, self.incarnation, hello.stream, error=reason)
        before = port.admission.connection_of(hello.peer)
        if isinstance(before, Connection) and before.serial > connection.serial:
            reason = f"producer {hello.peer!r} has a newer connection; this one is out of date"
            return wire.Hello(self.node, self.incarnation, hello.stream, error=reason)
        answer = port.on_hello(hello, connection, self.node, self.incarnation, trio.current_time())
        if not answer.error:
            self._streams_of.setdefault(connection, set()).add(hello.stream)
            if member and not self._left:
                port.members.add(connection)
        connection.incarnation = hello.incarnation
        if not answer.error and isinstance(before, Connection) and before is not connection:
            if hello.incarnation and before.incarnation == hello.incarnation:
                return answer  # the same process, by another of our names
            reason = (
                f"producer {hello.peer!r} has connected again from {connection.peer}; give each "
                f"client a producer id of its own"
            )
            before.answer(wire.encode_frame(wire.Verdict(hello.stream, hello.peer, error=reason)))
        return answer

    def _subscribe(self, hello: wire.Hello, connection: Connection) -> wire.Hello:
        """Let somebody read one of the app's own streams from now on."""
        streams = {s.name: s for s in self.app.streams.values() if not isinstance(s, InputStream)}
        stream = streams.get(hello.stream)
        if stream is None:
            known = ", ".join(streams) or "none"
            reason = (
                f"app {self.app.name!r} puts nothing on a stream {hello.stream!r}; it can be read "
                f"from: {known}"
            )
            return wire.Hello(self.node, self.incarnation, hello.stream, error=reason)
        self._subscribers.setdefault(stream.name, {})[connection] = Subscriber(
            hello,
            [kind.cls for kind in stream.types],
            self.node,
            self.config[settings.SENDER_WORK_QUEUE_SIZE],
        )
        return self._welcome(stream)

    def _welcome(self, stream: Stream) -> wire.Hello:
        """What a subscriber is told: the types, and who else runs the app."""
        return wire.Hello(
            self.node,
            self.incarnation,
            stream.name,
            tuple(kind.declaration for kind in stream.types),
            partitions=1,
            headers=dict(self._told),
        )

    def _knows(self, stream: str) -> bool:
        return stream in self.ports or stream in self._inner_ports

    def _not_owner(self, data: wire.Data) -> wire.Verdict:
        owner = self.view.owners[data.partition]
        ruling = wire.Ruling(data.partition, wire.NOT_OWNER, 0, 0, 0, (), owner)
        return wire.Verdict(data.stream, data.producer, (ruling,))

    def _unknown(self, stream: str) -> str:
        known = ", ".join(self.ports) or "none"
        return f"app {self.app.name!r} has no input stream {stream!r}; its input streams: {known}"

    def statistics(self) -> ContainerStatistics:
        """Counts since the start."""
        return ContainerStatistics(
            tuple(task.statistics() for task in self.tasks.values()),
            {name: port.admission.admitted for name, port in self.ports.items()},
            {name: port.admission.refused for name, port in self.ports.items()},
            {name: sender.sent for name, sender in self.senders.items()},
            dict(self.listener.counts),
            tuple(self._stages()),
            {
                name: InputStatistics(
                    one.admitted, one.refused, one.shed, one.left, one.duplicates, one.gaps,
                    one.over_credit, port.redispatched,
                )
                for name, port in (*self.ports.items(), *self._inner_ports.items())
                for one in [port.admission]
            },
        )  # fmt: skip

    def _stages(self) -> Iterator[StageStatistics]:
        for gauge in self.pipeline.deserializers.values():
            if gauge.settings.stream in self.ports or gauge.settings.stream in self._inner_ports:
                yield gauge.statistics()
        for task in self.tasks.values():
            for stage in task.stages.values():
                yield stage.statistics()
        for way in self._ways.values():
            yield way.statistics()
        for sender in self.senders.values():
            yield from sender.statistics().values()


class _Inner:
    """Carries events of sources into a stream of the app itself."""

    def __init__(self, container: Container, stream: Stream) -> None:
        self._container = container
        self._stream = stream
        self._turn = 0

    @property
    def pressure(self) -> float:
        """How full the fullest partition's stage is."""
        name, container = self._stream.name, self._container
        stages = [task.stages[name] for task in container.tasks.values()]
        here = max((stage.depth / stage.capacity for stage in stages), default=0.0)
        way = container._ways.get(name)
        return here if way is None else max(here, way.pressure)

    async def send(self, events: Sequence[Any]) -> None:
        """Take events once there is room."""
        await trio.lowlevel.checkpoint()
        while self.pressure >= 1:
            await self._container.turned.park()
        self._put(events)

    def send_nowait(self, events: Sequence[Any]) -> None:
        """Take events if there is room."""
        if self.pressure >= 1:
            raise WouldBlock(f"stream {self._stream.name!r} is full")
        self._put(events)

    def _put(self, events: Sequence[Any]) -> None:
        container = self._container
        self._turn += 1
        homes = list(container.tasks) or [0]
        home = homes[self._turn % len(homes)]
        for partition, share in container.dispatch.shares(self._stream, list(events), home):
            container._put(self._stream.name, partition, share)
        container.loop.nudge()


def _notify(lane: Any) -> None:
    lane.connection.notify(lane)
