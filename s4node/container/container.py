"""The container: one process's share of an app, from its start to its end.

Rules
- Start: on_init, check the graph, make tasks and senders, listen, on_start. Nothing is accepted
  before the app can process it.
- Stop, in this order: stop the app's sources and accept nothing further, drain what was admitted,
  send what it emitted, on_close, close. One deadline over all of it.
- Only this room knows both the app's side and the sockets.
"""

from __future__ import annotations

import inspect
import os
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
import trio

from s4node import config as settings
from s4node import graph
from s4node.app import AdapterApp, App
from s4node.cluster.topology import Topology
from s4node.comm import frame as wire
from s4node.comm.link import Link
from s4node.comm.listener import Connection, Listener
from s4node.comm.outbox import Outbox, Refusal
from s4node.comm.sender import RemoteSender
from s4node.config import Config
from s4node.container.loop import EventLoop
from s4node.container.port import InputPort
from s4node.container.task import Task, TaskStatistics
from s4node.container.watchdog import Watchdog
from s4node.errors import GraphError, ProcessingError, S4Error, WouldBlock
from s4node.event import EventBatch
from s4node.executors.stage import Stage
from s4node.keys import Partitioner, hasher_named
from s4node.routing import Router, route, router
from s4node.stream import InputStream, OutputStream, Stream

log = structlog.get_logger("s4node.container")

_FAREWELL_SECONDS = 1.0
"""How long a stopping node waits for peers that neither read their last verdicts nor say that
they have stopped sending."""


@dataclass(frozen=True)
class ContainerStatistics:
    """What a container has done since its start."""

    tasks: tuple[TaskStatistics, ...]
    admitted: dict[str, int]
    refused: dict[str, int]
    sent: dict[str, int]
    peers: dict[str, int]

    @property
    def processed(self) -> int:
        """Events handled, over all tasks and streams."""
        return sum(task.processed for task in self.tasks)


class Container:
    """Runs all partitions of ``app`` in this process. Call :meth:`run` once."""

    def __init__(self, app: App, config: Config, *, node: str = "") -> None:
        self.app = app
        self.config = config
        self.node = node or f"{config[settings.CLUSTER_NAME]}-{os.getpid()}"
        self.incarnation = secrets.token_hex(6)
        self.partitions = config[settings.CLUSTER_PARTITIONS]
        self.partitioner = Partitioner(self.partitions, hasher_named(config[settings.HASHER]))
        self.tasks: list[Task] = []
        self.ports: dict[str, InputPort] = {}
        self.senders: dict[str, RemoteSender] = {}
        self.ready = trio.Event()
        self._over: set[Stage] = set()
        self._routers: dict[str, Router] = {}
        self._links: dict[str, Link] = {}
        self._refusals: Counter[str] = Counter()
        self._stopping = trio.Event()
        self._news = trio.Event()
        self.turned = trio.lowlevel.ParkingLot()
        self.loop: EventLoop
        self.listener: Listener

    @property
    def address(self) -> str:
        """Where the container listens."""
        return self.listener.address

    def stop(self) -> None:
        """Begin an orderly stop; ``run`` returns when it is done."""
        self._stopping.set()

    # -- life --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the app until :meth:`stop`; raises what stopped it otherwise."""
        await self._init()
        self._make()
        grace = self.config[settings.TASK_SHUTDOWN_MS]
        async with trio.open_nursery() as outer:
            for link in self._links.values():
                await outer.start(link.run)
            await outer.start(self.listener.serve)
            with Watchdog(self.loop, self.config[settings.WATCHDOG_MS]):
                async with trio.open_nursery() as inner:
                    loop_ended = trio.Event()
                    inner.start_soon(self._run_loop, loop_ended)
                    patience = trio.CancelScope()
                    with patience:
                        async with trio.open_nursery() as sources:
                            self.app.spawn = partial(self._spawn, sources)
                            sources.start_soon(self._start)
                            await self._stopping.wait()
                            patience.deadline = trio.current_time() + grace
                            sources.cancel_scope.cancel()
                        self._stop_accepting()
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
                await self._hook("on_close", self.app.on_close)
            if closing.cancelled_caught:
                log.warning("on_close did not end in time", app=self.app.name)
            outer.cancel_scope.cancel()

    async def _init(self) -> None:
        app, config = self.app, self.config
        app.parameters = config.matching(settings.APP_PARAMETER)
        app.partitions = self.partitions
        if isinstance(app, AdapterApp) and config[settings.ADAPTER_OUTPUT_STREAM]:
            app.output_stream = config[settings.ADAPTER_OUTPUT_STREAM]
        await self._hook("on_init", app.on_init)
        graph.check(app)
        app.freeze()

    async def _start(self) -> None:
        for task in self.tasks:
            await task.start()
        self.loop.nudge()
        await self._hook("on_start", self.app.on_start)
        log.info("running", app=self.app.name, node=self.node, address=self.address,
                 partitions=self.partitions)  # fmt: skip
        self.ready.set()

    async def _hook(self, name: str, hook: Callable[[], Any]) -> None:
        """Call one of the app's own methods; what it raises names the app and the method."""
        try:
            result = hook()
            if inspect.isawaitable(result):
                await result
        except S4Error:
            raise
        except Exception as error:
            raise GraphError(
                f"{name} of app {self.app.name!r} raised {type(error).__name__}: {error}; the app "
                f"cannot run"
            ) from error

    def _spawn(
        self, nursery: trio.Nursery, function: Callable[..., Awaitable[Any]], *arguments: Any
    ) -> None:
        nursery.start_soon(function, *arguments)

    async def _run_loop(self, ended: trio.Event) -> None:
        await self.loop.run()
        ended.set()

    def _stop_accepting(self) -> None:
        self.listener.stop_accepting()
        self.listener.broadcast(wire.encode_frame(wire.Drain(f"{self.node} is stopping")))
        for port in self.ports.values():
            port.closed = True
        self.listener.flush(float("inf"))

    async def _settle(self) -> None:
        """Wait until what was emitted to other clusters has its verdict."""
        for link in self._links.values():
            link.hurry()
        while not all(sender.settled for sender in self.senders.values()):
            self._news = trio.Event()
            await self._news.wait()
        for link in self._links.values():
            link.finish()
            await link.wait_quiet()

    # -- making ------------------------------------------------------------------------------

    def _make(self) -> None:
        app, config = self.app, self.config
        clock = trio.current_time
        app.clock = clock
        for stream in app.streams.values():
            rule = graph.rule_of(stream)
            if rule is not None and self.partitions > 1 and not isinstance(stream, OutputStream):
                self._routers[stream.name] = router(rule, self.partitioner)
        self.tasks = [
            Task(
                app,
                partition,
                queue_size=config[settings.STREAM_WORK_QUEUE_SIZE],
                clock=clock,
                deliver=self._deliver,
                inputs_held=lambda: bool(self._over),
            )
            for partition in range(self.partitions)
        ]
        self.loop = EventLoop(
            self.tasks,
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
            max_envelope_bytes=config[settings.LISTENER_MAX_ENVELOPE_BYTES],
            max_frame_bytes=config[settings.LISTENER_MAX_FRAME_BYTES],
            max_connections=config[settings.LISTENER_MAX_CONNECTIONS],
            handshake_seconds=config[settings.COMM_TIMEOUT],
            verdict_delay=config[settings.COMM_VERDICT_DELAY],
            nudge=self.loop.nudge,
        )
        for stream in app.streams.values():
            if isinstance(stream, InputStream):
                self.ports[stream.name] = InputPort(
                    stream,
                    [task.stages[stream.name] for task in self.tasks],
                    self.partitioner,
                    config[settings.HASHER],
                    self._offer,
                    _notify,
                    config[settings.LISTENER_MAX_FRAME_BYTES],
                )
            if isinstance(stream, OutputStream):
                stream.carrier = self.senders[stream.name] = self._sender(stream)
            else:
                stream.carrier = _Inner(self, stream)

    def _sender(self, stream: OutputStream) -> RemoteSender:
        routes = []
        for address in Topology(self.config).consumers(stream.name).values():
            if address not in self._links:
                self._links[address] = Link(
                    address,
                    queue_size=self.config[settings.SENDER_WORK_QUEUE_SIZE],
                    on_news=self._heard,
                )
            outbox = Outbox(
                stream.name,
                f"{self.node}-{self.incarnation}",  # another host's container may have our name
                self.incarnation,
                key=stream.key,
                types=[kind.cls for kind in stream.types],
                max_frame_events=self.config[settings.SENDER_MAX_FRAME_EVENTS],
                max_frame_bytes=self.config[settings.SENDER_MAX_FRAME_BYTES],
            )
            routes.append((self._links[address], outbox))
        if not routes:
            log.warning("nobody consumes an output stream; its events go nowhere",
                        stream=stream.name,
                        setting=f"s4.stream.{stream.name}.consumers")  # fmt: skip
        return RemoteSender(
            stream.name,
            routes,
            queue_size=self.config[settings.SENDER_WORK_QUEUE_SIZE],
            on_room=self._room,
            on_refused=self._refused,
        )

    # -- events on their way -----------------------------------------------------------------

    def _offer(self, batch: EventBatch) -> None:
        """A batch for one of the tasks."""
        task = self.tasks[batch.partition]
        task.offer(batch)
        self.loop.add(task)

    def _deliver(self, task: Task, stream: Stream, events: list[Any]) -> None:
        """Hand on what the handlers of ``task`` have put on ``stream``."""
        if isinstance(stream, OutputStream):
            sender = self.senders[stream.name]
            sender.extend(events)
            if sender.full:
                for other in self.tasks:
                    other.gate.outputs_full = True
            return
        for partition, share in self._shares(stream, events, task.partition):
            self._offer(EventBatch(stream.name, partition, share))
            stage = self.tasks[partition].stages[stream.name]
            if stage.full:
                self._over.add(stage)

    def _shares(
        self, stream: Stream, events: list[Any], home: int
    ) -> Sequence[tuple[int, list[Any]]]:
        """Events put in partition ``home``, by the partition that they go to."""
        if stream.broadcast:
            return [(partition, events) for partition in range(self.partitions)]
        run = self._routers.get(stream.name)
        if run is None:
            return [(home, events)]
        lanes, failures = route(run, events, self.partitions)
        if failures:
            index, reason = failures[0]
            raise ProcessingError(
                self.app.name,
                f"KeyFinder of {stream.name!r}",
                None,
                f"{stream.name} (put in partition {home}, event {events[index]!r})",
                ValueError(reason),
            )
        return [(partition, lane) for partition, lane in enumerate(lanes) if lane]

    def _after_turn(self) -> float | None:
        """Between two turns: let held inputs and waiting sources go on, send verdicts."""
        self.turned.unpark_all()
        if self._over:
            self._over = {stage for stage in self._over if stage.full}
            if not self._over:
                for task in self.tasks:
                    self.loop.wake(task)
        for port in self.ports.values():
            port.admission.released()
        return self.listener.flush(trio.current_time())

    def _room(self) -> None:
        """A sender has room again."""
        if not any(sender.full for sender in self.senders.values()):
            for task in self.tasks:
                task.gate.outputs_full = False
                self.loop.wake(task)

    def _heard(self) -> None:
        for sender in self.senders.values():
            sender.news()
        self._news.set()

    def _refused(self, refusal: Refusal) -> None:
        name = f"{refusal.stream} ({'shed' if refusal.shed else 'refused'} by the consumer)"
        self._refusals[name] += 1
        if self._refusals[name] == 1:
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
            port = self.ports.get(header.stream)
            if port is None:
                connection.bad_frame(self._unknown(header.stream), header)
                return
            now = trio.current_time()
            problem = port.on_data(header, frame.body, connection, now)
            if problem:
                connection.bad_frame(problem, header)
        elif isinstance(header, wire.Hello):
            connection.answer(wire.encode_frame(self._hello(header, connection)))
        elif isinstance(header, wire.Idle):
            if header.flags & wire.ANSWER_NOW and header.stream in self.ports:
                self.ports[header.stream].admission.ask(header.producer, connection)
        elif isinstance(header, wire.EndOfStream):
            if header.stream in self.ports:
                self.ports[header.stream].admission.forget(header.producer, connection)
        elif isinstance(header, wire.Drain):
            connection.silent.set()
        elif not isinstance(header, wire.Watermark):
            connection.bad_frame(f"a node takes no {header.kind} frame")

    def on_drained(self) -> None:
        """The frames that had arrived have been taken."""
        self.loop.take_turn()

    def on_gone(self, connection: Connection) -> None:
        """The peer's connection has ended."""
        now = trio.current_time()
        for port in self.ports.values():
            port.admission.gone(connection, now)
            port.admission.expire(now - self.config[settings.PRODUCER_EXPIRY])

    def _hello(self, hello: wire.Hello, connection: Connection) -> wire.Hello:
        port = self.ports.get(hello.stream)
        if port is None:
            reason = self._unknown(hello.stream)
            log.warning("hello for an unknown stream", stream=hello.stream, peer=connection.peer)
            return wire.Hello(self.node, self.incarnation, hello.stream, error=reason)
        before = port.admission.connection_of(hello.peer)
        if isinstance(before, Connection) and before.serial > connection.serial:
            reason = f"producer {hello.peer!r} has a newer connection; this one is out of date"
            return wire.Hello(self.node, self.incarnation, hello.stream, error=reason)
        answer = port.on_hello(hello, connection, self.node, self.incarnation, trio.current_time())
        if not answer.error and isinstance(before, Connection) and before is not connection:
            reason = (
                f"producer {hello.peer!r} has connected again from {connection.peer}; give each "
                f"client a producer id of its own"
            )
            before.answer(wire.encode_frame(wire.Verdict(hello.stream, hello.peer, error=reason)))
        return answer

    def _unknown(self, stream: str) -> str:
        known = ", ".join(self.ports) or "none"
        return f"app {self.app.name!r} has no input stream {stream!r}; its input streams: {known}"

    def statistics(self) -> ContainerStatistics:
        """Counts since the start."""
        return ContainerStatistics(
            tuple(task.statistics() for task in self.tasks),
            {name: port.admission.admitted for name, port in self.ports.items()},
            {name: port.admission.refused for name, port in self.ports.items()},
            {name: sender.sent for name, sender in self.senders.items()},
            dict(self.listener.counts),
        )


class _Inner:
    """Carries events of sources into a stream of the app itself."""

    def __init__(self, container: Container, stream: Stream) -> None:
        self._container = container
        self._stream = stream
        self._turn = 0

    @property
    def pressure(self) -> float:
        """How full the fullest partition's stage is."""
        stages = [task.stages[self._stream.name] for task in self._container.tasks]
        return max(stage.depth / stage.capacity for stage in stages)

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
        self._turn = (self._turn + 1) % container.partitions
        for partition, share in container._shares(self._stream, list(events), self._turn):
            container._offer(EventBatch(self._stream.name, partition, share))
        container.loop.nudge()


def _notify(lane: Any) -> None:
    lane.connection.notify(lane)
