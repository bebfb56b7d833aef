"""The frame router of a container: gives each frame of a peer to the part that it is for.

Rules
- If the container has the log, the log is served first, because the app may read from it. Hellos
  for the app that come before it is open wait; peers resend other frames.
- A frame for a partition of another member is answered with the owner's address.
- Answers are sent between two turns of the loop, or from here before the loop runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio

from s4node.app.app import App
from s4node.app.stream import InputStream
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.node.node_status import StatusAnswers
from s4node.config import settings
from s4node.config.config import Config
from s4node.net.ingress.connection import Connection
from s4node.net.ingress.listener import Listener, no_log
from s4node.net.wire import frame as wire
from s4node.runtime.commit.state_answers import StateAnswers
from s4node.runtime.container.partitions import Partitions
from s4node.runtime.inputs.ports import Ports
from s4node.runtime.loop.run_loop import RunLoop
from s4node.runtime.outputs.subscribers import Subscribers

if TYPE_CHECKING:
    from s4node.log.host import LogHost

_MOST_EARLY = 4096
_NO_BODY = memoryview(b"")


class FrameRouter:
    """The listener of a container of ``app``, and the log that it has, if any.

    ``headers`` go with every answer to a hello; their owner changes them.
    """

    def __init__(
        self,
        app: App,
        config: Config,
        *,
        node: str,
        incarnation: str,
        enrolment: Enrolment | None,
    ) -> None:
        self.headers: wire.Headers = {
            wire.MAX_FRAME_BYTES: config[settings.LISTENER_MAX_FRAME_BYTES],
            wire.MAX_ENVELOPE_BYTES: config[settings.LISTENER_MAX_ENVELOPE_BYTES],
        }
        self.listener = Listener(config, self)
        self.log: LogHost | None = None
        if config[settings.LOG_FOLDER]:
            from s4node.log.host import LogHost  # late: most containers have no log

            self.log = LogHost(
                config,
                self.listener,
                node=node,
                incarnation=incarnation,
                headers=self.headers,
                owner=self,
            )
        self.status: StatusAnswers | None = None
        """Says how the container is, if nobody else does."""
        self.state: StateAnswers | None = None
        self._app = app
        self._enrolment = enrolment
        self._node = node
        self._drain_frame = b""
        self._early: list[tuple[wire.Frame, Connection]] = []  # hellos before the app is open
        self._loop: RunLoop | None = None
        self._opened = False
        self._clock: Callable[[], float]
        self._inputs: Ports
        self._subscribers: Subscribers
        self._owners: Callable[[], Sequence[str]]
        self._partitions: Partitions

    # -- life --------------------------------------------------------------------------------

    async def serve_log(self, nursery: trio.Nursery) -> None:
        assert self.log is not None
        await nursery.start(self.log.run)
        await nursery.start(self.listener.serve)
        nursery.start_soon(self._answer_early)

    async def accept_peers(
        self,
        nursery: trio.Nursery,
        inputs: Ports,
        subscribers: Subscribers,
        partitions: Partitions,
        owners: Callable[[], Sequence[str]],
    ) -> None:
        """Accept producers and subscribers of the app; ``owners`` returns partitions' addresses."""
        self._inputs, self._subscribers, self._owners = inputs, subscribers, owners
        self._partitions = partitions
        self._clock = trio.lowlevel.current_clock().current_time
        self._opened = True
        if self.log is None:
            await nursery.start(self.listener.serve)
        early, self._early = self._early, []
        for frame, connection in early:
            if connection.live and not connection.scope.cancel_called:
                self.on_frame(frame, connection)

    def attach_loop(self, loop: RunLoop) -> None:
        self._loop = loop
        self.listener.waker.nudge()  # earlier answers wait

    def drain(self) -> None:
        """Announce to all peers, present and future, that we are stopping."""
        self._drain_frame = wire.encode_frame(wire.Drain(f"{self._node} is stopping"))
        self.listener.broadcast(self._drain_frame)

    async def _answer_early(self) -> None:
        """Send the answers of the log until the loop does so."""
        while self._loop is None:
            await self.listener.waker.sleep_until(self.listener.send_due(trio.current_time()))

    def taker_of(self, stream: str) -> str:
        """The app's name if it serves a stream of this name itself, else ""."""
        found = self._app.streams.get(stream)
        served = found is not None and not (isinstance(found, InputStream) and not found.is_live)
        return f"app {self._app.name!r}" if served else ""

    # -- peers -------------------------------------------------------------------------------

    @property
    def held(self) -> bool:
        """True while it is not known whether we are still a member."""
        return self._enrolment is not None and self._enrolment.in_doubt()

    def on_frame(self, frame: wire.Frame, connection: Connection) -> None:
        header = frame.header
        if isinstance(header, wire.Data) and self.log is None:
            if self._opened:
                self._on_data(header, frame.body, connection)
            return
        if self.status is not None and self.status.on_frame(header, connection):
            return
        if (
            isinstance(header, wire.Query)
            and self.state is not None
            and self.state.on_query(header, connection)
        ):
            return
        if self.log is not None and self.log.on_frame(frame, connection):
            if self._drain_frame and isinstance(header, wire.Hello):
                connection.answer(self._drain_frame)
        elif isinstance(header, wire.Drain):
            connection.silent.set()
        elif isinstance(header, wire.Query):
            connection.answer(no_log(header))
        elif not self._opened:
            if isinstance(header, wire.Hello):
                self._early.append((wire.Frame(header, _NO_BODY), connection))
                if len(self._early) > _MOST_EARLY:
                    connection.end_because("the app is not open yet, and too many wait for it")
        elif isinstance(header, wire.Data):
            self._on_data(header, frame.body, connection)
        elif isinstance(header, wire.Hello):
            peers = self._subscribers if header.headers.get(wire.SUBSCRIBE) else self._inputs
            answer = peers.hello(header, connection)
            if answer is not None:
                connection.answer(wire.encode_frame(answer))
            if self._drain_frame:
                connection.answer(self._drain_frame)
        elif isinstance(header, wire.Idle):
            self._inputs.on_idle(header, connection)
        elif isinstance(header, wire.Watermark):
            self._inputs.on_watermark(header, connection)
        elif isinstance(header, wire.EndOfStream):
            self._inputs.on_end(header, connection)
        elif isinstance(header, wire.Verdict):
            if self._subscribers.on_verdict(header, connection):
                self.listener.waker.nudge()
            else:
                connection.bad_frame("a node takes no verdict frame but from its subscribers")

    def _on_data(self, data: wire.Data, body: memoryview, connection: Connection) -> None:
        port = self._inputs.by_stream.get(data.stream)
        if port is None:
            connection.bad_frame(self._inputs.unknown(data.stream), data)
            return
        if data.partition not in port.stages:
            owners = self._owners()
            if 0 <= data.partition < len(owners):
                owner = owners[data.partition]
                if (
                    owner != self.listener.address
                ):  # else it just left us; its owner is announced soon
                    ruling = wire.Ruling(data.partition, wire.NOT_OWNER, 0, 0, 0, (), owner)
                    verdict = wire.Verdict(data.stream, data.producer, (ruling,))
                    connection.answer(wire.encode_frame(verdict))
                return
        problem = port.on_data(data, body, connection, self._clock())
        if problem:
            connection.bad_frame(problem, data)
        if batches := self.listener.effects.batches:
            self._partitions.offer_all(batches)

    def on_drained(self) -> None:
        """Have a turn now that all arrived frames are taken, after what they ask for."""
        effects = self.listener.effects
        if self._loop is not None:
            if self._opened and effects.times:
                self._partitions.take_times(effects.times)
            if self._opened and effects.commits:
                self._partitions.have_committed(effects.commits)
                self._loop.nudge()
            self._loop.take_turn()
        else:
            self.listener.waker.nudge()

    def on_gone(self, connection: Connection) -> bool:
        if self.log is not None and self.log.gone(connection):
            return True
        if not self._opened:
            return False
        self._subscribers.gone(connection)
        return self._inputs.gone(connection)
