"""The inputs of a container: a port for each stream, as its producers see it.

Rules
- The app's live input streams are open to all producers; other streams only to the other members,
  whose hellos name our cluster.
- A partition is opened when its task has started; frames that come earlier are not taken.
- Of two connections of one producer the newer counts; the older learns that it is out of date.
- A hello to a durable stream may have to wait for a commit; it is answered then. Other members need
  not be saved as sources: a task knows how many there must be.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping

import trio

from s4node import clocks
from s4node.app.app import App
from s4node.app.stream import InputStream, OutputStream, Stream
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import LimitReached
from s4node.events.event_time import far_ahead
from s4node.events.keys import Partitioner
from s4node.logger import get_logger
from s4node.metrics.statistics import InputStatistics, StageStatistics
from s4node.net.egress.settlements import PassedOn
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.ingress.commit_rows import CommitRows
from s4node.net.ingress.connection import Connection
from s4node.net.ingress.flow import Presence
from s4node.net.ingress.producer_lane import Effects, ProducerLane, WaitingHello, cuts_of
from s4node.net.ingress.roster import Roster
from s4node.net.ingress.settlement import Commits
from s4node.net.wire import frame as wire
from s4node.offsets.cuts import Cuts
from s4node.runtime.inputs.lane_sources import LaneSources
from s4node.runtime.inputs.port import InputPort
from s4node.runtime.outputs.outputs import Outputs
from s4node.stages.stage import Gauge, Room, Stage

log = get_logger("s4node.runtime")

_NO_HEADERS: wire.Headers = {}


class Ports:
    """The ports of ``app``: ``ports`` for all producers, ``inner`` for the other members.

    ``headers`` go with every answer to a hello; their owner changes them.
    ``shared`` says that there are other members. For ``durable`` streams, tasks commit the
    producers' numbers, and ``outputs`` send events of one task to another; ``room`` is that where
    streams lead. ``cuts`` are of the tasks.
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
        shared: bool,
        durable: Collection[str],
        effects: Effects,
        outputs: Outputs,
        room: Room,
        cuts: Cuts,
    ) -> None:
        self.ports: dict[str, InputPort] = {}
        self.inner: dict[str, InputPort] = {}
        self._app = app
        self._config = config
        self._node = node
        self._incarnation = incarnation
        self._deserializers = deserializers
        self._streams_of: dict[Connection, dict[str, None]] = {}
        self._left = False
        self._effects = effects

        def port(stream: Stream) -> InputPort:
            stages: dict[int, Stage] = {}
            roster = Roster()
            if stream.name in durable:
                commits = Commits(
                    partitioner.partitions,
                    on_demand=not config[settings.TASK_COMMIT_MS],
                    cuts=cuts,
                )
                timed = isinstance(stream, InputStream) and stream.time is not None
                roster = CommitRows(commits, timed=timed)
            admission = StreamAdmission(stream.name, stages, effects, room, roster=roster)
            gauge, hasher = deserializers[stream.name], config[settings.HASHER]
            made = InputPort(
                stream, stages, admission, gauge, partitioner, hasher, headers, outputs.leads
            )
            made.deserializer.outputs = outputs
            return made

        for stream in app.streams.values():
            if isinstance(stream, InputStream) and stream.is_live:
                self.ports[stream.name] = port(stream)
            elif shared and not isinstance(stream, OutputStream):
                self.inner[stream.name] = port(stream)

        self.by_stream = self.ports | self.inner
        self._all = self.by_stream.values()
        self._expiry = config[settings.PRODUCER_EXPIRY]

    def unknown(self, stream: str) -> str:
        known = ", ".join(self.ports) or "none"
        return f"app {self._app.name!r} has no input stream {stream!r}; its input streams: {known}"

    def open_partition(self, partition: int, stages: Mapping[Hashable, Stage]) -> None:
        for port in self._all:
            port.open_partition(partition, stages[port.stream.name])

    def refrain(self, partition: int) -> None:
        for port in self._all:
            port.refrain(partition)

    def leave_one(self, partition: int) -> None:
        """Leave a partition to another member, and announce that to its producers."""
        for port in self._all:
            _say_last(
                port,
                [lane for lane in port.admission.lanes.values() if lane.partition == partition],
            )
            port.revoke(partition)
        self.answer_hellos(changed=True)  # ask the next owner

    def roll_back(self, partition: int) -> None:
        """Have producers go back, because the task of a partition was rolled back."""
        for producers in self.durable:
            producers.roll_back(partition)
        self.answer_hellos(changed=True)

    # -- producers ---------------------------------------------------------------------------

    def hello(self, hello: wire.Hello, connection: Connection) -> wire.Hello | None:
        """Open a stream for a producer, or say why not; None if the answer comes later."""
        self._effects.hellos.pop((connection, hello.stream, hello.peer), None)  # this one counts
        port = self.ports.get(hello.stream)
        if self._is_member(hello):
            port = port or self.inner.get(hello.stream)
        if port is None:
            connection.warn("hello for an unknown stream", stream=hello.stream)
            return self._refusal(hello, self.unknown(hello.stream), {wire.WHY: wire.NO_STREAM})
        reason = connection.problem(hello, port.admission)
        if connection.outdated(hello, port.admission):
            return self._refusal(hello, reason, {wire.WHY: wire.REPLACED})
        return self._refusal(hello, reason) if reason else self._greet(port, hello, connection)

    def _greet(
        self, port: InputPort, hello: wire.Hello, connection: Connection
    ) -> wire.Hello | None:
        """Open a stream for a producer that may have it; None if the answer waits for commits."""
        before, now = port.admission.connection_of(hello.peer), trio.current_time()
        try:
            answer = port.on_hello(hello, connection, self._node, self._incarnation, now)
        except LimitReached as reached:
            return self._refusal(hello, connection.limited(str(reached)), {wire.WHY: wire.LIMIT})
        if answer is None:
            connection.takes_over(before, hello)
            self._wait(hello, connection, None)
            return None
        if answer.error:
            return answer
        connection.takes_over(before, hello)
        if not self._is_member(hello) and port.admission.roster.must_save(hello.peer):
            self._wait(hello, connection, answer)
            return None
        self._opened(port, hello, connection)
        return answer

    def _wait(self, hello: wire.Hello, connection: Connection, answer: wire.Hello | None) -> None:
        whose = connection, hello.stream, hello.peer
        self._effects.hellos[whose] = WaitingHello(hello, answer)

    def _opened(self, port: InputPort, hello: wire.Hello, connection: Connection) -> None:
        self._streams_of.setdefault(connection, {})[hello.stream] = None
        if self._is_member(hello) and not self._left:
            port.members.add(connection)

    def _is_member(self, hello: wire.Hello) -> bool:
        return hello.headers.get(wire.CLUSTER) == self._config[settings.CLUSTER_NAME]

    def answer_hellos(self, *, changed: bool = False) -> None:
        """Answer hellos that have waited for a commit. If the partitions or numbers have
        ``changed``, those that wait to be saved begin again."""
        hellos = self._effects.hellos
        for whose, (hello, answer) in list(hellos.items()):
            connection, port = whose[0], self.by_stream[hello.stream]
            assert isinstance(connection, Connection)
            saves = answer is not None and not changed
            if connection.live and saves and port.admission.roster.saves(hello.peer):
                continue
            del hellos[whose]
            if not connection.live:
                continue
            if saves:
                self._opened(port, hello, connection)
            else:
                reason = connection.outdated(hello, port.admission)
                why = {wire.WHY: wire.REPLACED}
                answer = self._refusal(hello, reason, why) if reason else None
                answer = answer or self._greet(port, hello, connection)
            if answer is not None:
                connection.answer(wire.encode_frame(answer))

    @property
    def durable(self) -> list[CommitRows]:
        """The producers of the durable streams."""
        rosters = (port.admission.roster for port in self._all)
        return [each for each in rosters if isinstance(each, CommitRows)]

    def _refusal(
        self, hello: wire.Hello, reason: str, headers: wire.Headers = _NO_HEADERS
    ) -> wire.Hello:
        return wire.Hello(
            self._node,
            self._incarnation,
            hello.stream,
            error=reason,
            headers={wire.PRODUCER: hello.peer, **headers},
        )

    def announce(self) -> None:
        """Send all producers the current headers, because partitions or ways have changed."""
        for connection, streams in self._streams_of.items():
            for name in streams:
                hello = self.by_stream[name].hello(self._node, self._incarnation, unasked=True)
                connection.answer(wire.encode_frame(hello))

    def on_idle(self, idle: wire.Idle, connection: Connection) -> None:
        """Handle an idle producer, which may ask for its verdicts."""
        port = self.by_stream.get(idle.stream)
        if port is not None and idle.flags & wire.ANSWER_NOW:
            port.admission.ask(idle.producer, connection)

    def on_watermark(self, report: wire.Watermark, connection: Connection) -> None:
        """Take a producer's report of its time, if the stream has one."""
        port = self.by_stream.get(report.stream)
        if port is None or port.stream.time is None:
            return
        time = report.millis / 1000
        if problem := far_ahead(time, clocks.wall()):
            connection.bad_frame(f"stream {report.stream!r}: watermark({time:.15g}): {problem}")
            return
        port.admission.take_time(report, connection)

    def sources_of(self, stream: str, partition: int) -> LaneSources | None:
        port = self.by_stream.get(stream)
        if port is None:
            return None
        # without state, tasks send each other events in the name of their container
        forwards = stream in self.ports or port.durable
        return LaneSources(port.admission, partition, port.members if forwards else ())

    def on_end(self, end: wire.EndOfStream, connection: Connection) -> None:
        port = self.by_stream.get(end.stream)
        if port is not None:
            waited = self._effects.hellos.pop((connection, end.stream, end.producer), None)
            # lanes with events of an earlier life have no connection before these are committed
            without = waited is not None and waited.answer is None
            port.admission.forget(end.producer, None if without else connection)
            connection.left(end.stream, end.producer)

    def gone(self, connection: Connection) -> bool:
        """Forget some of a connection that has ended; return True if there is more."""
        now = trio.current_time()
        self._streams_of.pop(connection, None)
        for port in self._all:
            port.members.discard(connection)
        return any(port.admission.gone(connection, now) for port in self._all)

    def keeps(self, lane: ProducerLane) -> bool:
        """Return True if the producer is connected from outside the app, so it can resend."""
        port = self.ports.get(lane.admission.stream)
        outside = port is not None and lane.connection not in port.members
        return outside and lane.presence is Presence.HERE

    # -- leaving the cluster -----------------------------------------------------------------

    def revoke_all(self) -> None:
        """Admit nothing more, because others will own our partitions."""
        self._left = True
        for port in self._all:
            port.closed = True
            port.members.clear()

    def give_up(self) -> None:
        """Announce to all producers that others own our partitions now."""
        for port in self._all:
            _say_last(port, port.admission.lanes.values())

    def released(self) -> None:
        """Let producers go on that were held back for lack of room."""
        for port in self._all:
            port.admission.released()

    def tick(self, now: float, *, busy: bool) -> float | None:
        """Work between two turns; return when the next call is due. ``busy``: tasks are ready.

        Let held producers go on, forget those long gone, and sort out unsorted frames.
        """
        due = None
        for port in self._all:
            port.admission.released()
            port.admission.tick(now, self._expiry)
            if (port.unsorted or port.gathers) and port.tick(now, busy=busy):
                due = now
        return due

    # -- statistics --------------------------------------------------------------------------

    def statistics(self, passed_on: Mapping[str, PassedOn]) -> dict[str, InputStatistics]:
        """The counts by stream, without events ``passed_on`` to others, which count them."""
        return {
            name: InputStatistics(
                one.admitted - port.deserializer.uncounted - others.events,
                one.refused - others.refused,
                one.shed - others.shed,
                one.left,
                one.duplicates,
                one.gaps,
                one.over_credit,
                port.deserializer.redispatched,
                port.forwarded if name in self.ports else 0,
            )
            for name, port in (*self.ports.items(), *self.inner.items())
            for one, others in [(port.admission, passed_on.get(name, PassedOn()))]
        }

    def stages(self) -> Iterator[StageStatistics]:
        for name, gauge in self._deserializers.items():
            if name in self.by_stream:
                yield gauge.statistics()


def _say_last(port: InputPort, lanes: Iterable[ProducerLane]) -> None:
    for lane in lanes:
        if isinstance(lane.connection, Connection):
            last = wire.Ruling(lane.partition, wire.NOT_OWNER, lane.upto, 0, lane.expected, (), "")
            headers = cuts_of([lane])
            verdict = wire.Verdict(port.stream.name, lane.producer, (last,), headers=headers)
            lane.connection.answer(wire.encode_frame(verdict))
