"""The inputs of a container: a port for each stream, as its producers see it.

Rules
- The app's live input streams are open to everybody, all others to the other members only: where
  a hello names our cluster.
- A partition is opened when its task has started. What comes for it before is not ours yet.
- Of two connections of one producer the newer is true; the older is told that it is out of date.
- A hello to a durable stream may have to wait for a commit; it is answered then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import trio

from s4node.app.app import App
from s4node.app.stream import InputStream, OutputStream, Stream
from s4node.config import settings
from s4node.config.config import Config
from s4node.events.event import EventBatch
from s4node.events.keys import Partitioner
from s4node.logger import get_logger
from s4node.net.egress.forwarder import PassedOn
from s4node.net.ingress.durable_admission import DurableAdmission
from s4node.net.ingress.listener import Connection
from s4node.net.ingress.producer_lane import ProducerLane
from s4node.net.wire import frame as wire
from s4node.offsets.cuts import Cuts
from s4node.runtime.inputs.port import InputPort
from s4node.runtime.task.statistics import InputStatistics
from s4node.stages.stage import Gauge, Stage, StageStatistics

log = get_logger("s4node.runtime")

Send = Callable[[str, int, int, list[Any]], None]
"""Puts events on a stream: from the task of a partition, to that of another."""


class Ports:
    """The ports of ``app``: ``ports`` to everybody, ``inner`` to the other members.

    ``headers`` go with every answer to a hello; they change. ``offer`` takes the batches.
    ``shared`` tells that there are other members. Of streams that are ``durable`` tasks commit the
    producers' numbers; ``on_full`` asks the task of a partition to do that soon, ``on_wait``
    within some seconds, if it has time. ``send`` puts events of one task on the way to another, and
    ``full`` (of a stream, for a partition's task) says whether much of that waits. ``cuts`` are
    those of the tasks.
    """

    def __init__(
        self,
        app: App,
        config: Config,
        partitioner: Partitioner,
        *,
        node: str,
        incarnation: str,
        headers: wire.Headers,
        deserializers: Mapping[str, Gauge],
        offer: Callable[[EventBatch], None],
        shared: bool,
        durable: Collection[str],
        on_full: Callable[[int], None],
        on_wait: Callable[[int, float], None],
        send: Send,
        full: Callable[[str, int], bool],
        cuts: Cuts | None,
    ) -> None:
        self.ports: dict[str, InputPort] = {}
        self.inner: dict[str, InputPort] = {}
        self._app = app
        self._config = config
        self._node = node
        self._incarnation = incarnation
        self._deserializers = deserializers
        self._streams_of: dict[Connection, set[str]] = {}
        self._left = False
        self._waiting: list[tuple[wire.Hello, Connection]] = []

        def port(stream: Stream) -> InputPort:
            made = InputPort(
                stream,
                {},
                partitioner,
                config[settings.HASHER],
                offer,
                _notify,
                headers,
                deserializers[stream.name],
                on_full if stream.name in durable else None,
                on_wait,
                on_demand=not config[settings.TASK_COMMIT_MS],
                held=partial(full, stream.name),
                cuts=cuts,
            )
            made.pass_on = partial(send, stream.name)
            return made

        for stream in app.streams.values():
            if isinstance(stream, InputStream) and stream.is_live:
                self.ports[stream.name] = port(stream)
            elif shared and not isinstance(stream, OutputStream):
                self.inner[stream.name] = port(stream)

        self._all = [*self.ports.values(), *self.inner.values()]
        self._expiry = config[settings.PRODUCER_EXPIRY]

    def port(self, stream: str) -> InputPort | None:
        """Where frames of a stream arrive; None if none may come."""
        return self.ports.get(stream) or self.inner.get(stream)

    def unknown(self, stream: str) -> str:
        """What a producer of a stream that has no port is told."""
        known = ", ".join(self.ports) or "none"
        return f"app {self._app.name!r} has no input stream {stream!r}; its input streams: {known}"

    def open(self, partition: int, stages: Mapping[Hashable, Stage]) -> None:
        """Take frames for a partition from now on, into these stages by stream."""
        for port in self._all:
            port.open(partition, stages[port.stream.name])

    def refrain(self, partition: int) -> None:
        """Take no more frames for a partition that is about to be another member's."""
        for port in self._all:
            port.refrain(partition)

    def leave_one(self, partition: int) -> None:
        """A partition is another member's; tell its producers that these were our last words."""
        for port in self._all:
            _say_last(
                port,
                [lane for lane in port.admission.lanes.values() if lane.partition == partition],
            )
            port.leave(partition)
        self.committed()  # who has waited for a commit of it is to ask the next owner

    def go_back(self, partition: int) -> None:
        """The task of a partition has gone back to its last commit."""
        for port in self._all:
            port.go_back(partition)
        self.committed()

    # -- producers ---------------------------------------------------------------------------

    def hello(self, hello: wire.Hello, connection: Connection) -> wire.Hello | None:
        """Open a stream for a producer, or say why not; None if that is answered later."""
        port = self.ports.get(hello.stream)
        member = hello.headers.get(wire.CLUSTER) == self._config[settings.CLUSTER_NAME]
        if member:
            port = port or self.inner.get(hello.stream)
        if port is None:
            reason = self.unknown(hello.stream)
            log.warning("hello for an unknown stream", stream=hello.stream, peer=connection.peer)
            return self._refusal(hello, reason)
        before = port.admission.connection_of(hello.peer)
        later = port.admission.is_later(hello)
        reason = "" if later else connection.outdated(before, hello.peer)
        if reason:
            return self._refusal(hello, reason)
        now = trio.current_time()
        answer = port.on_hello(hello, connection, self._node, self._incarnation, now)
        if answer is None:
            connection.takes_over(before, hello)
            self._waiting.append((hello, connection))
        elif not answer.error:
            self._streams_of.setdefault(connection, set()).add(hello.stream)
            if member and not self._left:
                port.members.add(connection)
            connection.takes_over(before, hello)
        return answer

    def committed(self) -> None:
        """More is committed: answer those whose hello has waited for it."""
        waiting, self._waiting = self._waiting, []
        for hello, connection in waiting:
            if connection.live and (answer := self.hello(hello, connection)) is not None:
                connection.answer(wire.encode_frame(answer))

    @property
    def durable(self) -> list[DurableAdmission]:
        """The producers of which tasks commit the numbers, by stream."""
        return [port.durable for port in self._all if port.durable is not None]

    def _refusal(self, hello: wire.Hello, reason: str) -> wire.Hello:
        return wire.Hello(
            self._node,
            self._incarnation,
            hello.stream,
            error=reason,
            headers={wire.PRODUCER: hello.peer},
        )

    def tell_owners(self) -> None:
        """Partitions have moved: tell everybody what the headers say now."""
        for connection, streams in self._streams_of.items():
            for name in streams:
                port = self.port(name)
                assert port is not None
                word = port.word(self._node, self._incarnation, unasked=True)
                connection.answer(wire.encode_frame(word))

    def on_idle(self, idle: wire.Idle, connection: Connection) -> None:
        """A producer has nothing to send; it may ask for its verdicts."""
        port = self.port(idle.stream)
        if port is not None and idle.flags & wire.ANSWER_NOW:
            port.admission.ask(idle.producer, connection)

    def on_end(self, end: wire.EndOfStream, connection: Connection) -> None:
        """Nothing more will come from a producer."""
        port = self.port(end.stream)
        if port is not None:
            port.admission.forget(end.producer, connection)

    def gone(self, connection: Connection) -> None:
        """The peer's connection has ended."""
        now = trio.current_time()
        self._streams_of.pop(connection, None)
        for port in self._all:
            port.members.discard(connection)
            port.admission.gone(connection, now)

    def keeps(self, lane: ProducerLane) -> bool:
        """Whether a producer outside of the app is there, and sends again what has no verdict."""
        port, connection = self.ports.get(lane.admission.stream), lane.connection
        outside = port is not None and connection is not None and connection not in port.members
        return outside and not lane.ended

    # -- leaving the cluster -----------------------------------------------------------------

    def leave(self) -> None:
        """Admit nothing more from anybody: others will own our partitions."""
        self._left = True
        for port in self._all:
            port.closed = True
            port.members.clear()

    def give_up(self) -> None:
        """Tell the producers that these were our last words, so that they go on with others."""
        for port in self._all:
            _say_last(port, port.admission.lanes.values())

    def released(self) -> None:
        """Room has been made somewhere: let go on who was held back."""
        for port in self._all:
            port.admission.released()

    def tick(self, now: float) -> float | None:
        """Between two turns: let go on who was held back, forget who is long gone, sort out a
        piece of what came for several partitions; returns when the next is due."""
        due = None
        for port in self._all:
            port.admission.released()
            port.admission.tick(now, self._expiry)
            if port.sort_out(now):
                due = now
        return due

    # -- statistics --------------------------------------------------------------------------

    def statistics(self, passed_on: Mapping[str, PassedOn]) -> dict[str, InputStatistics]:
        """What came in, by stream; but for what others count, to whom it was ``passed_on``."""
        return {
            name: InputStatistics(
                one.admitted - port.uncounted - others.events,
                one.refused - others.refused,
                one.shed - others.shed,
                one.left,
                one.duplicates,
                one.gaps,
                one.over_credit,
                port.redispatched,
                port.forwarded if name in self.ports else 0,
            )
            for name, port in (*self.ports.items(), *self.inner.items())
            for one, others in [(port.admission, passed_on.get(name, PassedOn()))]
        }

    def stages(self) -> Iterator[StageStatistics]:
        """The ``deserializer`` stages of the streams that have a port."""
        for name, gauge in self._deserializers.items():
            if self.port(name) is not None:
                yield gauge.statistics()


def close(ports: Iterable[InputPort]) -> None:
    """Admit nothing more; the producers keep it. What has come goes to its tasks."""
    now = trio.current_time()
    for port in ports:
        port.closed = True
        while port.sort_out(now):
            pass


def _say_last(port: InputPort, lanes: Iterable[ProducerLane]) -> None:
    for lane in lanes:
        if isinstance(lane.connection, Connection):
            last = wire.Ruling(lane.partition, wire.NOT_OWNER, lane.upto, 0, lane.expected, (), "")
            cuts = port.admission.cuts_of([lane.partition])
            headers = {wire.SAVEPOINT: cuts} if cuts else {}
            word = wire.Verdict(port.stream.name, lane.producer, (last,), headers=headers)
            lane.connection.answer(wire.encode_frame(word))


def _notify(lane: Any) -> None:
    lane.connection.notify(lane)
