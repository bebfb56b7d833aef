"""The questions that a log answers: about its streams, its producers and its sinks.

Rules
- A question may be asked again, because an answer may be lost: the second answer is as good as the
  first.
- Questions are answered beside each other; one that waits delays no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import trio

from s4node.errors import LimitReached, S4Error, StartpointError, StoreError, UnknownStream
from s4node.events.type_declaration import TypeDecl
from s4node.log.hosted import describe
from s4node.log.hosted_streams import HostedStreams
from s4node.log.partition.ledger import Incoming, unfit
from s4node.log.sink.decision import Attempt
from s4node.log.sinks import Sinks
from s4node.log.store import SPOOL
from s4node.log.streams import LogPartition, answered
from s4node.logger import get_logger
from s4node.net.ingress.connection import Connection
from s4node.net.wire import frame as wire

log = get_logger("s4node.log")

_SCAN_BYTES = 1 << 20


class Questions:
    """Answers the queries of connections, in tasks of ``nursery``."""

    def __init__(self, streams: HostedStreams, sinks: Sinks, nursery: trio.Nursery) -> None:
        self._streams = streams
        self._sinks = sinks
        self._nursery = nursery
        self._asking: dict[Connection, int] = {}

    def on_query(self, query: wire.Query, connection: Connection) -> None:
        asking = self._asking.get(connection, 0)
        if asking >= wire.MAX_QUESTIONS:
            reason = f"{asking} queries of this connection are unanswered; wait for them"
            connection.answer(_answer(query, {}, StoreError(connection.limited(reason))))
            return
        self._asking[connection] = asking + 1
        self._nursery.start_soon(self._answer, query, connection)

    def gone(self, connection: Connection) -> None:
        self._asking.pop(connection, None)

    async def _answer(self, query: wire.Query, connection: Connection) -> None:
        answer = b""
        error: S4Error | None = None
        try:
            ask = _QUESTIONS.get(query.question)
            if ask is None:
                known = ", ".join(_QUESTIONS)
                raise StoreError(f"the log has no query {query.question!r}; it answers: {known}")
            answer = _answer(query, await ask(self, query.arguments))
        except S4Error as found:
            error = found
            if isinstance(found, LimitReached):
                connection.limited(str(found))
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
            connection.answer(answer or _answer(query, {}, error))

    def _partition(self, arguments: Mapping[str, Any]) -> LogPartition:
        hosted, number = self._streams.find(arguments["stream"]), _whole(arguments["partition"])
        if not 0 <= number < len(hosted.partitions):
            raise UnknownStream(
                f"stream {hosted.name!r} of the log has partitions 0 to "
                f"{len(hosted.partitions) - 1}, not {number}"
            )
        return hosted.partitions[number]

    # -- streams -------------------------------------------------------------------------------

    async def _list(self, _: Mapping[str, Any]) -> Mapping[str, Any]:
        return {
            "streams": [describe(hosted) for hosted in self._streams.listed],
            "trouble": self._streams.store.writer.trouble,
        }

    async def _describe(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        found = describe(self._streams.find(arguments["stream"]))
        return {**found, "trouble": self._streams.store.writer.trouble}

    async def _create(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        hosted = await self._streams.create_stream(
            str(arguments["stream"]),
            _whole(arguments.get("partitions", 1)),
            str(arguments.get("key", "")),
            retention_ms=_maybe_whole(arguments.get("retention_ms")),
            retention_bytes=_maybe_whole(arguments.get("retention_bytes")),
        )
        return describe(hosted)

    async def _drop(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Remove a stream with its events; no error if it is gone already."""
        name = str(arguments["stream"])
        if name not in self._streams.by_name:
            return {"dropped": False}
        if name.startswith(SPOOL):
            raise StoreError(f"{name!r} is the spool of a sink; use s4 log sinks --forget")
        sink = self._sinks.writing_to(name)
        if sink:
            raise StoreError(
                f"sink {sink!r} is publishing a batch in {name!r}; try again, or s4 log sinks "
                f"--forget {sink}"
            )
        await self._streams.drop_stream(name)
        return {"dropped": True}

    async def _trim(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Trim one partition, or all, below an offset or a time of appending."""
        hosted = self._streams.find(arguments["stream"])
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
        streams = list(self._streams.by_name.values())
        if arguments.get("stream"):
            streams = [self._streams.find(arguments["stream"])]
        found = [(hosted, each) for hosted in streams for each in hosted.rows.ids_of(producer)]
        if not found:
            raise StoreError(f"the log knows no producer {producer!r}; copy its id from an error")
        for hosted, each in found:
            if hosted.rows.is_here(each):
                raise StoreError(
                    f"producer {each!r} is connected to stream {hosted.name!r}, or some of its "
                    f"events are not on disk yet; stop the producer first"
                )
        answers: list[object] = []
        all_answered = trio.Event()
        partitions: dict[str, list[int]] = {}

        def done(answer: object) -> None:
            answers.append(answer)
            if len(answers) == sum(map(len, partitions.values())):
                all_answered.set()

        for hosted, each in found:
            partitions.setdefault(hosted.name, [])
            partitions[hosted.name] += hosted.rows.forget_known(each, done)
        if any(partitions.values()):
            await all_answered.wait()
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
        hosted = self._streams.find(arguments["stream"])
        self._streams.check_open()
        asked = {"order": b"", "created_ms": 0, **arguments}
        names = ("producer", "first", "count", "sections")
        numbers = [1, hosted.name, partition.number, *(asked[name] for name in names)]
        rest = ["", wire.MSGPACK, 0, asked["order"], asked["created_ms"]]
        data = msgspec.convert([*numbers, *rest], wire.Data)  # within the bounds of a frame
        body = msgspec.convert(arguments["body"], bytes)
        problem = wire.check_sections(data, memoryview(body))
        types = msgspec.convert(arguments["types"], tuple[TypeDecl, ...])
        problem = problem or unfit(data.producer) or hosted.declare(types)
        if problem:
            raise StoreError(f"{hosted.name}[{partition.number}]: {problem}")
        hosted.rows.check_room(data.producer)
        frame: Incoming = hosted.incoming(data, body, own_id=bool(arguments.get("own_id")))
        answer = await answered(partial(partition.append, frame))
        if not answer.count:  # a repeated query: the first answer was lost
            if arguments.get("once"):
                return {"offset": -1}
            return {"offset": await _offset_of(partition, data.producer, data.first)}
        hosted.grown()
        return {"offset": answer.offset}

    # -- sinks ---------------------------------------------------------------------------------

    async def _stage(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._sinks.stage(
            str(arguments["sink"]), str(arguments["stream"]), last=bool(arguments.get("last"))
        )

    async def _publish(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        attempts = msgspec.convert(arguments["attempts"], tuple[Attempt, ...])
        return await self._sinks.publish(
            str(arguments["sink"]),
            str(arguments["stream"]),
            _whole(arguments["batch"]),
            attempts,
            last=bool(arguments.get("last")),
            commit=str(arguments.get("commit", "")),
            first=_whole(arguments.get("first", 0)),
            total=_maybe_whole(arguments.get("total")),
        )

    async def _carried(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._sinks.carried(str(arguments["sink"]), str(arguments["stream"]))

    async def _abort(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        over = bool(arguments.get("over"))
        return await self._sinks.abort(str(arguments["sink"]), str(arguments["stream"]), over=over)

    async def _end_sink(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._sinks.end_write(str(arguments["sink"]), str(arguments["stream"]))

    async def _list_sinks(self, _: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"sinks": self._sinks.list()}

    async def _forget_sink(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._sinks.forget(str(arguments["sink"]))


_QUESTIONS: dict[str, Callable[[Questions, Mapping[str, Any]], Any]] = {
    "list": Questions._list,
    "describe": Questions._describe,
    "create": Questions._create,
    "drop": Questions._drop,
    "trim": Questions._trim,
    "forget": Questions._forget,
    "offset": Questions._offset,
    "append": Questions._append,
    "sink.stage": Questions._stage,
    "sink.publish": Questions._publish,
    "sink.carried": Questions._carried,
    "sink.abort": Questions._abort,
    "sink.end": Questions._end_sink,
    "sink.list": Questions._list_sinks,
    "sink.forget": Questions._forget_sink,
}


def shortly(value: object) -> str:
    """``repr(value)``, cut to 200 characters for a message."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _answer(query: wire.Query, values: Mapping[str, Any], error: S4Error | None = None) -> bytes:
    if error is None:
        return wire.encode_frame(wire.Answer(query.id, dict(values)))
    fault = {wire.FAULT: type(error).__name__}
    return wire.encode_frame(wire.Answer(query.id, {}, str(error), fault))


async def _offset_of(partition: LogPartition, producer: str, number: int) -> int:
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
