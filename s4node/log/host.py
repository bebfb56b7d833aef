"""The log host: handles the frames that a listener receives for the embedded log.

Rules
- One process owns the folder. Producers, readers and queries all reach it through sockets.
- The owner of the listener may serve streams of its own; a stream belongs to one of the two.
- An acknowledged event is on disk. A stopping host admits nothing more and waits for the events
  that it has admitted.
- A reader is limited only by its own credit and socket, and delays nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import trio

from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import S4Error, StartpointError, StoreError, UnknownStream
from s4node.events.keys import hasher_named
from s4node.events.routing import KeyRule
from s4node.events.schema import TypeDecl
from s4node.log.feed import Feed
from s4node.log.hosted import HostedStream, describe
from s4node.log.ledger import Appended, Incoming, unfit
from s4node.log.store import LogSettings, LogStore, open_log
from s4node.log.streams import LogPartition, LogStream
from s4node.logger import get_logger
from s4node.net.ingress.admission import PERIOD
from s4node.net.ingress.listener import Connection
from s4node.net.ingress.producer_lane import ProducerLane
from s4node.net.wire import frame as wire
from s4node.stages.executors import DESERIALIZER, UNLIMITED, StageSettings
from s4node.stages.stage import Gauge

log = get_logger("s4node.log")

WINDOW = 262_144
"""Events of one partition that may be on their way to disk, of all producers together. Their bytes
are bounded separately; a large window makes large commits."""

QUEUE_BYTES = 16 << 20
"""The approximate number of bytes that producers may have under way to the disk."""

_SCAN_BYTES = 1 << 20

WhoHas = Callable[[str], str]
"""Says in words who else serves a stream of this name at this address; empty if nobody does."""


class LogHost:
    """Serves the log in the folder of ``config`` to the peers of a listener.

    Every answer carries ``node`` and ``headers``. ``taken`` says which stream names the owner of
    the listener uses itself.
    """

    def __init__(
        self,
        config: Config,
        *,
        node: str,
        incarnation: str,
        headers: wire.Headers,
        taken: WhoHas,
    ) -> None:
        self._config = config
        self._node = node
        self._incarnation = incarnation
        self._headers = headers
        self._taken = taken
        self._streams: dict[str, HostedStream] = {}
        self._feeds: dict[Connection, Feed] = {}
        self._scopes: dict[Connection, trio.CancelScope] = {}
        self._asking: dict[Connection, int] = {}
        self._closing = False
        self._queue: Gauge
        self._store: LogStore
        self._nursery: trio.Nursery

    @classmethod
    def from_config(
        cls,
        config: Config,
        node: str,
        incarnation: str,
        headers: wire.Headers,
        taken: WhoHas,
    ) -> LogHost | None:
        """The host of the log that ``config`` names, or None if it names none."""
        if not config[settings.LOG_FOLDER]:
            return None
        return cls(config, node=node, incarnation=incarnation, headers=headers, taken=taken)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started once the files are open.

        Raises StoreError if another process owns the folder.
        """
        async with open_log(LogSettings.from_config(self._config)) as self._store:
            stage = StageSettings(DESERIALIZER, capacity=UNLIMITED, max_bytes=QUEUE_BYTES)
            self._queue = Gauge(stage)
            for stream in self._store.streams.values():
                self._host(stream)
            log.info(
                "the log is open",
                folder=self._config[settings.LOG_FOLDER],
                streams=len(self._streams),
            )
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                while True:
                    await trio.sleep(PERIOD)
                    self._tick(trio.current_time())

    def check_names(self) -> None:
        """Raise StoreError if the listener's owner also serves a stream of the log."""
        for name in self._streams:
            taken = self._taken(name)
            if taken:
                raise StoreError(
                    f"the log in {self._config[settings.LOG_FOLDER]} has a stream {name!r}, and so "
                    f"has {taken}; rename that one, or take another s4.log.folder"
                )

    def _host(self, stream: LogStream) -> None:
        self._streams[stream.name] = HostedStream(
            stream,
            capacity=WINDOW,
            max_bytes=self._queue.max_bytes,
            queue=self._queue,
            notify=_notify,
            grown=self._grown,
        )

    def _grown(self, _: int) -> None:
        for feed in self._feeds.values():
            feed.wake()

    def _tick(self, now: float) -> None:
        expiry = self._config[settings.PRODUCER_EXPIRY]
        for stream in self._streams.values():
            stream.admission.released()
            stream.admission.tick(now, expiry)

    # -- stopping ------------------------------------------------------------------------------

    def close(self) -> None:
        """Admit nothing more; producers keep their events."""
        self._closing = True

    async def wait_written(self) -> None:
        """Stop the readers and wait until all admitted events are on disk."""
        for scope in list(self._scopes.values()):
            scope.cancel()
        while any(  # noqa: ASYNC110 - it is rare, and short
            stream.under_way for stream in self._streams.values()
        ):
            await trio.sleep(_SETTLE_SECONDS)

    # -- frames of the listener ------------------------------------------------------------------

    def on_frame(self, frame: wire.Frame, connection: Connection) -> bool:
        """Handle a frame for the log; returns False if the frame is not for the log."""
        header = frame.header
        if isinstance(header, wire.Query):
            self._on_query(header, connection)
            return True
        if isinstance(header, (wire.Drain, wire.Answer)):
            return False
        hosted = self._streams.get(header.stream)
        if hosted is None:
            return False
        if isinstance(header, wire.Data):
            if not self._closing:
                problem = hosted.on_data(header, frame.body, connection, trio.current_time())
                if problem:
                    connection.bad_frame(problem, header)
        elif isinstance(header, wire.Hello):
            if header.headers.get(wire.SUBSCRIBE):
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
        elif isinstance(header, wire.Verdict):
            feed = self._feeds.get(connection)
            if feed is None or not feed.on_verdict(header):
                connection.bad_frame("the log accepts verdict frames only from its readers")
        return True

    def gone(self, connection: Connection) -> None:
        """Forget the connection of a peer, which has ended."""
        self._feeds.pop(connection, None)
        scope = self._scopes.pop(connection, None)
        if scope is not None:
            scope.cancel()
        self._asking.pop(connection, None)
        for stream in self._streams.values():
            stream.admission.gone(connection, trio.current_time())

    def _on_hello(self, hosted: HostedStream, hello: wire.Hello, connection: Connection) -> None:
        before = hosted.admission.connection_of(hello.peer)
        later = hosted.admission.is_later(hello)
        error = "" if later else connection.outdated(before, hello.peer)
        positions: tuple[wire.Position, ...] = ()
        headers = {**self._headers, wire.LOG: True, wire.PRODUCER: hello.peer}
        if not error:
            lost = hosted.lost(hello)
            positions, error = hosted.hello(hello, connection, trio.current_time())
            if lost and not error:
                headers[wire.LOST] = lost
        if not error:
            connection.takes_over(before, hello)
        answer = wire.Hello(
            self._node,
            self._incarnation,
            hosted.name,
            hosted.told_types,
            hosted.routing,
            len(hosted.partitions),
            positions,
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
                await feed.run()

    # -- queries -------------------------------------------------------------------------------

    def _on_query(self, query: wire.Query, connection: Connection) -> None:
        asking = self._asking.get(connection, 0)
        if asking >= wire.MAX_QUESTIONS:
            error = StoreError(f"{asking} queries of this connection are unanswered; wait for them")
            connection.answer(_answer(query, {}, error))
            return
        self._asking[connection] = asking + 1
        self._nursery.start_soon(self._answer, query, connection)

    async def _answer(self, query: wire.Query, connection: Connection) -> None:
        values: Mapping[str, Any] = {}
        error: S4Error | None = None
        try:
            ask = _QUESTIONS.get(query.question)
            if ask is None:
                known = ", ".join(_QUESTIONS)
                raise StoreError(f"the log has no query {query.question!r}; it answers: {known}")
            values = await ask(self, query.arguments)
        except S4Error as found:
            error = found
        except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as found:
            error = StoreError(
                f"the arguments of the query {query.question!r} are invalid ({found!r}): "
                f"{shortly(query.arguments)}"
            )
        except Exception as found:  # a failed query must not stop the node
            log.exception("a query failed", question=query.question)
            error = StoreError(f"the log could not answer the query {query.question!r}: {found}")
        if connection in self._asking:
            self._asking[connection] -= 1
            connection.answer(_answer(query, values, error))

    def _find(self, arguments: Mapping[str, Any]) -> HostedStream:
        name = arguments["stream"]
        hosted = self._streams.get(name)
        if hosted is None:
            known = ", ".join(sorted(self._streams)) or "none"
            raise UnknownStream(
                f"the log at {self._headers.get(wire.ADDRESS, self._node)} has no stream {name!r}; "
                f"its streams: {known}. Create it with: s4 log create {name}"
            )
        return hosted

    def _partition(self, arguments: Mapping[str, Any]) -> LogPartition:
        hosted, number = self._find(arguments), _whole(arguments["partition"])
        if not 0 <= number < len(hosted.partitions):
            raise UnknownStream(
                f"stream {hosted.name!r} of the log has partitions 0 to "
                f"{len(hosted.partitions) - 1}, not {number}"
            )
        return hosted.partitions[number]

    async def _list(self, _: Mapping[str, Any]) -> Mapping[str, Any]:
        return {
            "streams": [describe(self._streams[name]) for name in sorted(self._streams)],
            "trouble": self._store.writer.trouble,
        }

    async def _describe(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**describe(self._find(arguments)), "trouble": self._store.writer.trouble}

    async def _create(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        name, key = str(arguments["stream"]), str(arguments.get("key", ""))
        taken = self._taken(name)
        if taken:
            raise StoreError(f"{taken} already has a stream {name!r}; choose another name")
        if self._closing:
            raise StoreError("the log's node is stopping; try again when it has restarted")
        if key:
            KeyRule(key.split("+"))
        hasher = self._config[settings.HASHER]
        hasher_named(hasher)
        stream = await self._store.create(
            name,
            _whole(arguments.get("partitions", 1)),
            key=key,
            hasher=hasher,
            retention_ms=_maybe_whole(arguments.get("retention_ms")),
            retention_bytes=_maybe_whole(arguments.get("retention_bytes")),
        )
        if name not in self._streams:
            self._host(stream)
        return describe(self._streams[name])

    async def _trim(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Trim one partition, or all, below an offset or a time of appending."""
        hosted = self._find(arguments)
        partitions = hosted.partitions
        if arguments.get("partition") is not None:
            partitions = (self._partition(arguments),)
        oldest = {}
        for partition in partitions:
            if arguments.get("offset") is not None:
                below = _whole(arguments["offset"])
            else:
                below = await partition.offset_at(_whole(arguments["before_ms"]))
            bounds = partition.bounds
            if not 0 <= below <= bounds.upcoming:
                raise StartpointError(
                    f"{hosted.name}[{partition.number}] has offsets {bounds.oldest} to "
                    f"{bounds.upcoming}, not {below}; trim up to one of these"
                )
            oldest[str(partition.number)] = await partition.trim(below)
        return {"oldest": oldest}

    async def _forget(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Forget a disconnected producer in one stream or all; returns where it was known."""
        producer = str(arguments["producer"])
        streams = [self._find(arguments)] if arguments.get("stream") else self._streams.values()
        found = [(hosted, each) for hosted in streams for each in hosted.admission.ids_of(producer)]
        if not found:
            raise StoreError(f"the log knows no producer {producer!r}; copy its id from an error")
        for hosted, each in found:
            if hosted.admission.is_here(each):
                raise StoreError(
                    f"producer {each!r} is connected to stream {hosted.name!r}, or some of its "
                    f"events are not on disk yet; stop the producer first"
                )
        answers: list[object] = []
        answered = trio.Event()
        partitions: dict[str, list[int]] = {}

        def done(answer: object) -> None:
            answers.append(answer)
            if len(answers) == sum(map(len, partitions.values())):
                answered.set()

        for hosted, each in found:
            partitions.setdefault(hosted.name, [])
            partitions[hosted.name] += hosted.admission.forget_known(each, done)
        if any(partitions.values()):
            await answered.wait()
        for answer in answers:
            if isinstance(answer, S4Error):
                raise answer
        return {"forgotten": partitions}

    async def _offset(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        partition = self._partition(arguments)
        return {"offset": await partition.offset_at(_whole(arguments["millis"]))}

    async def _append(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Append one frame to the given partition; the answer has its offset."""
        partition = self._partition(arguments)
        hosted = self._find(arguments)
        if self._closing:
            raise StoreError("the log's node is stopping; try again when it has restarted")
        data = wire.Data(
            hosted.name,
            partition.number,
            str(arguments["producer"]),
            _whole(arguments["first"]),
            _whole(arguments["count"]),
            msgspec.convert(arguments["sections"], tuple[wire.Section, ...]),
            order=msgspec.convert(arguments.get("order", b""), bytes),
            created_ms=_whole(arguments.get("created_ms", 0)),
        )
        body = msgspec.convert(arguments["body"], bytes)
        problem = wire.check_sections(data, memoryview(body))
        types = msgspec.convert(arguments["types"], tuple[TypeDecl, ...])
        problem = problem or unfit(data.producer) or hosted.declare(types)
        problem = problem or hosted.admission.no_room(data.producer)
        if problem:
            raise StoreError(f"{hosted.name}[{partition.number}]: {problem}")
        answered = trio.Event()
        answers: list[Appended | S4Error] = []

        def done(answer: Appended | S4Error) -> None:
            answers.append(answer)
            answered.set()

        frame: Incoming = hosted.incoming(data, body, own_id=bool(arguments.get("own_id")))
        partition.append(frame, done)
        await answered.wait()
        answer = answers[0]
        if not isinstance(answer, Appended):
            raise answer
        if not answer.count:  # a repeated query: the first answer was lost
            if arguments.get("once"):
                return {"offset": -1}
            return {"offset": await _offset_of(partition, data.producer, data.first)}
        hosted.grown(partition.number)
        return {"offset": answer.offset}


_SETTLE_SECONDS = 0.005

_QUESTIONS: dict[str, Callable[[LogHost, Mapping[str, Any]], Any]] = {
    "list": LogHost._list,
    "describe": LogHost._describe,
    "create": LogHost._create,
    "trim": LogHost._trim,
    "forget": LogHost._forget,
    "offset": LogHost._offset,
    "append": LogHost._append,
}


def shortly(value: object) -> str:
    """``repr(value)``, cut to 200 characters for a message."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _answer(query: wire.Query, values: Mapping[str, Any], error: S4Error | None) -> bytes:
    if error is None:
        return wire.encode_frame(wire.Answer(query.id, dict(values)))
    fault = {wire.FAULT: type(error).__name__}
    return wire.encode_frame(wire.Answer(query.id, {}, str(error), fault))


async def _offset_of(partition: LogPartition, producer: str, number: int) -> int:
    """The offset of a frame that was appended earlier."""
    at = partition.bounds.oldest
    while at < partition.bounds.upcoming:
        for row in await partition.read(at, _SCAN_BYTES):
            if row.producer == producer and row.number == number:
                return row.first
            at = row.end
    raise StoreError(
        f"the frame that {producer!r} appended with number {number} was removed by retention; its "
        f"offset is no longer known"
    )


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= wire.MAX_NUMBER:
        raise TypeError(f"{value!r} is not a whole number, 0 or more")
    return value


def _maybe_whole(value: object) -> int | None:
    return None if value is None else _whole(value)


def _notify(lane: ProducerLane) -> None:
    connection = lane.connection
    assert isinstance(connection, Connection)
    connection.notify(lane)
