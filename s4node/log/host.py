"""The log host: handles the frames that a listener receives for the embedded log.

Rules
- One process owns the folder. Producers, readers and queries all reach it through sockets.
- The owner of the listener may serve streams of its own; a stream belongs to one of the two.
- An acknowledged event is on disk. A stopping host admits nothing more and waits for the events
  that it has admitted.
- A reader is limited only by its own credit and socket, and delays nobody else.
"""

from __future__ import annotations

import contextlib

import trio

from s4node import threads
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import LimitReached, StoreError
from s4node.log.feed import Feed
from s4node.log.hosted import HostedStream, Shared
from s4node.log.hosted_streams import HostedStreams, LogOwner
from s4node.log.questions import Questions
from s4node.log.sink.sink_file import SinkFile
from s4node.log.sinks import Sinks
from s4node.log.store import LogSettings, open_log
from s4node.logger import get_logger
from s4node.net.ingress.admission import PERIOD
from s4node.net.ingress.connection import Connection
from s4node.net.ingress.listener import Listener
from s4node.net.ingress.roster import Greeting
from s4node.net.wire import frame as wire
from s4node.stages.executors import DESERIALIZER, UNLIMITED, StageSettings
from s4node.stages.stage import Gauge

log = get_logger("s4node.log")

QUEUE_BYTES = 16 << 20
"""The approximate number of bytes that producers may have under way to the disk."""

_SETTLE_SECONDS = 0.005


class LogHost:
    """Serves the log in the folder of ``config`` to the peers of a listener.

    Every answer carries ``node`` and ``headers``. ``owner`` is that of the ``listener``.
    """

    def __init__(
        self,
        config: Config,
        listener: Listener,
        *,
        node: str,
        incarnation: str,
        headers: wire.Headers,
        owner: LogOwner,
    ) -> None:
        self._config = config
        self._listener = listener
        self._node = node
        self._incarnation = incarnation
        self._headers = headers
        self._owner = owner
        self._feeds: dict[Connection, Feed] = {}
        self._scopes: dict[Connection, trio.CancelScope] = {}
        self._streams: HostedStreams
        self._sinks: Sinks | None = None
        self._questions: Questions
        self._nursery: trio.Nursery

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started once the files are open.

        Raises StoreError if another process owns the folder, or if the writer fails.
        """
        wanted = LogSettings.from_config(self._config)
        async with open_log(wanted) as store:
            stage = StageSettings(DESERIALIZER, capacity=UNLIMITED, max_bytes=QUEUE_BYTES)
            shared = Shared(Gauge(stage), self._listener.effects, self._listener.waker, self._feeds)
            address = str(self._headers.get(wire.ADDRESS, self._node))
            self._streams = HostedStreams(self._config, store, shared, self._owner, address)
            log.info(
                "the log is open",
                folder=self._config[settings.LOG_FOLDER],
                streams=len(self._streams.listed),
            )
            file = await threads.run_sync(SinkFile, wanted.folder)
            async with trio.open_nursery() as self._nursery:
                with contextlib.closing(file):
                    expiry = self._config[settings.LOG_STAGED_EXPIRY]
                    sinks = self._sinks = Sinks(self._streams, file, self._nursery, expiry)
                    self._questions = Questions(self._streams, sinks, self._nursery)
                    self._nursery.start_soon(sinks.roll_forward)
                    self._nursery.start_soon(store.writer.wait_failed)
                    task_status.started()
                    while True:
                        await trio.sleep(PERIOD)
                        self._tick(trio.current_time())
                        sinks.tick(trio.current_time())

    @property
    def hosted(self) -> list[HostedStream]:
        return list(self._streams.by_name.values())

    @property
    def published(self) -> dict[str, int]:
        """Counts of the batches of sinks that were published since the start, and their events."""
        sinks = self._sinks
        return {} if sinks is None else {"batches": sinks.batches, "events": sinks.events}

    def check_names(self) -> None:
        """Raise StoreError if the listener's owner also serves a stream of the log."""
        for name in self._streams.by_name:
            taken = self._owner.taker_of(name)
            if taken:
                raise StoreError(
                    f"the log in {self._config[settings.LOG_FOLDER]} has a stream {name!r}, and so "
                    f"has {taken}; rename that one, or take another s4.log.folder"
                )

    def _tick(self, now: float) -> None:
        expiry = self._config[settings.PRODUCER_EXPIRY]
        for stream in self._streams.by_name.values():
            stream.admission.released()
            stream.admission.tick(now, expiry)
        if self._listener.effects:
            self._listener.waker.nudge()

    # -- stopping ------------------------------------------------------------------------------

    def close(self) -> None:
        """Admit nothing more; producers keep their events."""
        self._streams.closing = True

    async def wait_written(self) -> None:
        """Stop the readers and wait until all admitted events are on disk."""
        for scope in list(self._scopes.values()):
            scope.cancel()
        while any(  # noqa: ASYNC110 - it is rare, and short
            stream.has_unwritten for stream in self._streams.by_name.values()
        ):
            await trio.sleep(_SETTLE_SECONDS)

    # -- frames of the listener ------------------------------------------------------------------

    def on_frame(self, frame: wire.Frame, connection: Connection) -> bool:
        """Handle a frame for the log; returns False if the frame is not for the log."""
        header = frame.header
        if isinstance(header, wire.Query):
            self._questions.on_query(header, connection)
            return True
        if isinstance(header, (wire.Drain, wire.Answer)):
            return False
        hosted = self._streams.by_name.get(header.stream)
        if hosted is None:
            return False
        if isinstance(header, wire.Data):
            if not self._streams.closing:
                problem = hosted.on_data(header, frame.body, connection, trio.current_time())
                if hosted.splits:
                    hosted.splits = False
                    self._nursery.start_soon(_split, hosted)
                if problem:
                    connection.bad_frame(problem, header)
        elif isinstance(header, wire.Hello):
            if header.headers.get(wire.SUBSCRIBE):
                problem = connection.refusal(header, len(hosted.partitions))
                if problem:
                    headers = {wire.READER: header.peer, wire.FAULT: StoreError.__name__}
                    answer = wire.Hello(
                        self._node, self._incarnation, hosted.name, error=problem, headers=headers
                    )
                    connection.answer(wire.encode_frame(answer))
                else:
                    self._feed(connection).hello(hosted, header)
            else:
                self._on_hello(hosted, header, connection)
        elif isinstance(header, wire.Idle):
            if header.flags & wire.ANSWER_NOW:
                hosted.admission.ask(header.producer, connection)
        elif isinstance(header, wire.EndOfStream):
            feed = self._feeds.get(connection)
            if feed is not None:
                feed.unsubscribe(header.stream, header.producer)
            hosted.admission.forget(header.producer, connection)
            connection.left(header.stream, header.producer)
        elif isinstance(header, wire.Verdict):
            feed = self._feeds.get(connection)
            if feed is None or not feed.on_verdict(header):
                connection.bad_frame("the log accepts verdict frames only from its readers")
        return True

    def gone(self, connection: Connection) -> bool:
        """Forget some of the connection of a peer, which has ended; return True if there is
        more."""
        self._feeds.pop(connection, None)
        scope = self._scopes.pop(connection, None)
        if scope is not None:
            scope.cancel()
        self._questions.gone(connection)
        now = trio.current_time()
        return any(each.admission.gone(connection, now) for each in self._streams.by_name.values())

    def _on_hello(self, hosted: HostedStream, hello: wire.Hello, connection: Connection) -> None:
        before = hosted.admission.connection_of(hello.peer)
        error = connection.problem(hello, hosted.admission)
        greeting = Greeting()
        headers = {**self._headers, wire.LOG: True, wire.PRODUCER: hello.peer}
        if connection.outdated(hello, hosted.admission):
            headers[wire.WHY] = wire.REPLACED
        if not error:
            lost = hosted.lost(hello)
            try:
                greeting = hosted.hello(hello, connection, trio.current_time())
                error = greeting.error
            except LimitReached as reached:
                error = connection.limited(str(reached))
                headers[wire.WHY] = wire.LIMIT
            else:
                headers |= greeting.headers if error else {}
        if not error:
            headers |= {wire.LOST: lost} if lost else {}
            connection.takes_over(before, hello)
        answer = wire.Hello(
            self._node,
            self._incarnation,
            hosted.name,
            hosted.declared_types,
            hosted.routing,
            len(hosted.partitions),
            greeting.positions,
            error,
            headers,
        )
        connection.answer(wire.encode_frame(answer))

    def _feed(self, connection: Connection) -> Feed:
        feed = self._feeds.get(connection)
        if feed is None:
            feed = Feed(connection, self._node, self._incarnation, self._headers)
            self._feeds[connection] = feed
            self._nursery.start_soon(self._run_feed, connection, feed)
        return feed

    async def _run_feed(self, connection: Connection, feed: Feed) -> None:
        with trio.CancelScope() as scope:
            if self._feeds.get(connection) is feed:  # the connection has not ended meanwhile
                self._scopes[connection] = scope
                try:
                    await feed.run()
                except Exception as error:
                    connection.fail(error)


async def _split(hosted: HostedStream) -> None:
    """Split the frames that wait, and let others have their turn after each piece."""
    await trio.lowlevel.checkpoint()
    while hosted.split_next():
        await trio.lowlevel.checkpoint()
