"""The log's node: what stands behind a listener for the streams of the embedded log.

Rules
- One process has the folder, and everybody comes over its sockets: producers, readers, and those
  who ask. Beside it the listener's owner serves streams of its own; no stream is both.
- What was acknowledged is on the disk. A stop admits nothing more, and waits for what is under way.
- Readers hold nobody up, and nobody holds them up but their own credit and socket.
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
"""Events of a partition that its producers may have under way to the disk, all together. They are
only bytes, which have a bound of their own; many make large commits."""

_SCAN_BYTES = 1 << 20

WhoHas = Callable[[str], str]
"""Who else has a stream of this name at the same address, in words; empty if nobody has."""


class LogHost:
    """Serves the log in the folder of ``config`` to the peers of somebody's listener.

    ``node`` and ``headers`` are told with every answer. ``taken`` keeps names apart from those that
    the listener's owner serves.
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
    def of(
        cls,
        config: Config,
        node: str,
        incarnation: str,
        headers: wire.Headers,
        taken: WhoHas,
    ) -> LogHost | None:
        """The host of the log that the configuration names, if it names one."""
        if not config[settings.LOG_FOLDER]:
            return None
        return cls(config, node=node, incarnation=incarnation, headers=headers, taken=taken)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; ready once the files are open.

        Raises StoreError where the folder is another process's.
        """
        async with open_log(LogSettings.of(self._config)) as self._store:
            room = self._store.room
            self._queue = Gauge(
                StageSettings(DESERIALIZER, capacity=UNLIMITED, max_bytes=max(1024, room))
            )
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
        """Raise StoreError where somebody else has a stream of the log's names."""
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
        """Admit nothing more; the producers keep it."""
        self._closing = True

    async def settle(self) -> None:
        """Wait until everything that was admitted is on the disk, and stop feeding readers."""
        for scope in list(self._scopes.values()):
            scope.cancel()
        while any(  # noqa: ASYNC110 - it is rare, and short
            stream.under_way for stream in self._streams.values()
        ):
            await trio.sleep(_SETTLE_SECONDS)

    # -- what stands behind the listener ---------------------------------------------------------

    def on_frame(self, frame: wire.Frame, connection: Connection) -> bool:
        """Take a frame that is for the log; False if it is for somebody else."""
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
                feed.end(header.stream, header.producer)
            hosted.admission.forget(header.producer, connection)
        elif isinstance(header, wire.Verdict):
            feed = self._feeds.get(connection)
            if feed is None or not feed.on_verdict(header):
                connection.bad_frame("a node takes no verdict frame but from its subscribers")
        return True

    def gone(self, connection: Connection) -> None:
        """The peer's connection has ended."""
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
            if self._feeds.get(connection) is feed:  # not gone meanwhile
                self._scopes[connection] = scope
                await feed.run()

    # -- questions ---------------------------------------------------------------------------

    def _on_query(self, query: wire.Query, connection: Connection) -> None:
        asking = self._asking.get(connection, 0)
        if asking >= wire.MAX_QUESTIONS:
            error = StoreError(f"{asking} questions wait for answers already; wait for those first")
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
                raise StoreError(f"no question {query.question!r}; the log answers: {known}")
            values = await ask(self, query.arguments)
        except S4Error as found:
            error = found
        except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as found:
            error = StoreError(
                f"the arguments of {query.question!r} are no good ({found!r}): "
                f"{shortly(query.arguments)}"
            )
        except Exception as found:  # a question stops no node, whatever the disk does to it
            log.exception("a question failed", question=query.question)
            error = StoreError(f"the log could not answer {query.question!r}: {found}")
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
            "trouble": self._store.trouble,
        }

    async def _describe(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**describe(self._find(arguments)), "trouble": self._store.trouble}

    async def _create(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        name, key = str(arguments["stream"]), str(arguments.get("key", ""))
        taken = self._taken(name)
        if taken:
            raise StoreError(f"{taken} has a stream {name!r} already; choose another name")
        if self._closing:
            raise StoreError("the log's node is stopping; ask again when it is back")
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
        """Below an offset, or what was appended before a time; one partition or all."""
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
        """Forget a producer that is not here, of one stream or all; tells where it was known."""
        producer = str(arguments["producer"])
        streams = [self._find(arguments)] if arguments.get("stream") else self._streams.values()
        found = [(hosted, each) for hosted in streams for each in hosted.admission.ids_of(producer)]
        if not found:
            raise StoreError(f"the log knows no producer {producer!r}; ids are told by errors")
        for hosted, each in found:
            if hosted.admission.is_here(each):
                raise StoreError(
                    f"producer {each!r} is connected to stream {hosted.name!r}, or something that "
                    f"it has sent is not on the disk yet; stop it before"
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
        """A single frame, to a partition of the asker's choice; the answer tells its offset."""
        partition = self._partition(arguments)
        hosted = self._find(arguments)
        if self._closing:
            raise StoreError("the log's node is stopping; ask again when it is back")
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
        if not answer.count:  # it was asked before, and the answer was lost
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
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _answer(query: wire.Query, values: Mapping[str, Any], error: S4Error | None) -> bytes:
    if error is None:
        return wire.encode_frame(wire.Answer(query.id, dict(values)))
    fault = {wire.FAULT: type(error).__name__}
    return wire.encode_frame(wire.Answer(query.id, {}, str(error), fault))


async def _offset_of(partition: LogPartition, producer: str, number: int) -> int:
    """Where a frame is that was appended before."""
    at = partition.bounds.oldest
    while at < partition.bounds.upcoming:
        for row in await partition.read(at, _SCAN_BYTES):
            if row.producer == producer and row.number == number:
                return row.first
            at = row.end
    raise StoreError(
        f"what {producer!r} appended as {number} has been removed by retention; its offset is not "
        f"known any more"
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
