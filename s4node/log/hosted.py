"""A hosted stream: a stream of the log as its producers see it.

Rules
- Admission works as for every input: numbers, credit, verdicts. A number is settled when its event
  is on disk or refused.
- A producer that the files know resumes where they stopped: an event that it sends again is not
  appended twice, even after restarts.
- If the stream has a key, a frame that was routed otherwise is split. Its parts for other
  partitions are appended first; the number of the producer's own lane advances when all parts are
  on disk. Each lane keeps its order.
- Splitting goes piece by piece, and the producers' lanes take turns. Later frames of a lane wait.
- The files accept any number from a producer, so no number may pass an event that is neither on
  disk nor refused: a partition that cannot be written holds back its frames, and once the log has
  closed, a lane appends nothing after a frame that was not appended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from s4node.errors import LimitReached, S4Error, StoreCorrupt, UnknownStream
from s4node.events.event import GenericEvent
from s4node.events.keys import Partitioner, hasher_named
from s4node.events.routing import KeyRule, Router
from s4node.events.schema import GENERIC, EventType, OpenType, TypeReader
from s4node.events.type_declaration import MAX_DECLARED, TypeDecl, check_declared, size_of
from s4node.log.log_rows import LogRows
from s4node.log.partition.ledger import Appended, Incoming, part_name
from s4node.log.partition.partition_rows import StoredFrame
from s4node.log.split import Part, Splitting
from s4node.log.streams import LogPartition, LogStream
from s4node.logger import get_logger
from s4node.net.ingress import peer_limits
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.ingress.connection import Waker
from s4node.net.ingress.producer_lane import Effects, FrameReceipt, ProducerLane
from s4node.net.ingress.roster import Greeting
from s4node.net.wire import frame as wire
from s4node.offsets.receipts import runs
from s4node.stages.executors import StageSettings
from s4node.stages.stage import Gauge, Stage

log = get_logger("s4node.log")

FRAME_BYTES = 512
"""The approximate memory of a queued frame beside its body."""

_DECLARED_BYTES = 262_144
"""The bytes of the types that an answer has at most: what one connection may declare."""

_GENERIC = EventType(GenericEvent)


WINDOW = 262_144
"""Events of one partition that may be on their way to disk, of all producers together. Their bytes
are bounded separately; a large window makes large commits."""


class TypeBytes:
    """The bytes of the event types of all streams, at most ``limit``."""

    def __init__(self) -> None:
        self.limit = peer_limits.LIMITS.log_type_bytes
        self.used = 0


@dataclass(slots=True, eq=False)
class _Queued:
    """A frame on its way to disk: its part for the producer's own lane, None until it is split.
    ``before`` counts the parts for other partitions that have to be on disk first, and the
    splitting."""

    frame: Incoming | None
    receipt: FrameReceipt
    weight: int
    before: int = 0
    settles: bool = True


class _Split(NamedTuple):
    data: wire.Data
    splitting: Splitting
    queued: _Queued


class Reader(Protocol):
    def grown(self, stream: str) -> None: ...


@dataclass(eq=False)
class Shared:
    """The parts that the streams of a log share: ``queue`` counts events that wait for the disk,
    ``readers`` are notified of appended events, and ``waker`` has verdicts sent."""

    queue: Gauge
    effects: Effects
    waker: Waker
    readers: Mapping[Any, Reader] = field(default_factory=dict)
    types: TypeBytes = field(default_factory=TypeBytes)


class HostedStream:
    """One stream of the log. When it ``splits``, :meth:`split_next` is to be called until it
    returns False."""

    def __init__(self, stream: LogStream, shared: Shared, capacity: int = WINDOW) -> None:
        self.stream = stream
        self.name = stream.name
        self.partitions = stream.partitions
        self._shared, queue = shared, shared.queue
        self.splits = False
        settings = StageSettings(stream=stream.name, capacity=capacity, max_bytes=queue.max_bytes)
        numbers = [partition.number for partition in stream.partitions]
        self._stages = {n: Stage(settings, n, deserializer=queue) for n in numbers}
        self.rows = LogRows(stream.partitions)
        self.admission = StreamAdmission(
            stream.name, self._stages, shared.effects, roster=self.rows
        )
        self._type_bytes = shared.types
        self.types: dict[int, TypeDecl] = {_GENERIC.fingerprint: _GENERIC.declaration}
        self._declared_types: tuple[TypeDecl, ...] | None = None
        self._readers: dict[int, TypeReader] = {_GENERIC.fingerprint: _GENERIC}
        for each in stream.partitions:
            for declared in each.types.values():
                self._learn(declared)
        self._waiting: dict[ProducerLane, deque[_Queued]] = {}
        self._splits: dict[ProducerLane, deque[_Split]] = {}  # the lane whose turn it is, first
        partitioner = Partitioner(len(stream.partitions), hasher_named(stream.hasher))
        self.routing = f"{stream.hasher}:{stream.key}"
        self._routed = self.routing if stream.key else ""
        self._router: Router | None = None
        if stream.key:
            rule = KeyRule(stream.key.split("+"), generic=True, checked=True)
            self._router = Router(rule, partitioner)

    @property
    def declared_types(self) -> tuple[TypeDecl, ...]:
        """The newest event types, for producers, as far as they make no long answer. GenericEvent
        needs no declaration."""
        if self._declared_types is None:
            declared: list[TypeDecl] = []
            size = 0
            for kind in reversed(self.types.values()):
                size += 0 if kind.name == GENERIC else size_of(kind)
                if size > _DECLARED_BYTES or len(declared) == MAX_DECLARED:
                    break
                if kind.name != GENERIC:
                    declared.append(kind)
            self._declared_types = tuple(reversed(declared))
        return self._declared_types

    @property
    def has_unwritten(self) -> bool:
        return any(lane.safe < lane.expected for lane in self.admission.lanes.values())

    # -- producers ---------------------------------------------------------------------------

    def hello(self, hello: wire.Hello, connection: Hashable, now: float) -> Greeting:
        """Open the stream for a producer. Raises LimitReached as ``declare``."""
        error = self.admission.refusal(hello) or self.declare(hello.types)
        greeting = None if error else self.admission.greet(hello, connection, now)
        return greeting or Greeting(error=error)

    def lost(self, hello: wire.Hello) -> list[tuple[int, int]]:
        """The partitions that lack events they acknowledged, each with the first lost number. Parts
        for other partitions are not checked."""
        found = []
        for position in hello.positions:
            lane = (hello.peer, position.partition)
            if lane in self.admission.lanes or not 0 <= position.partition < len(self.partitions):
                continue
            partition = self.partitions[position.partition]
            row = partition.producers.get(hello.peer)
            number = 0 if row is None else row.number
            if number < position.number and not partition.damage:
                found.append((position.partition, number))
                log.error(
                    "acknowledged events are missing from the log: a power cut lost them, an older "
                    "copy of the file was put back, or the producer was forgotten",
                    partition=str(partition),
                    producer=hello.peer,
                    events=position.number - number,
                )
        return found

    def declare(self, types: Sequence[TypeDecl]) -> str:
        """Learn the event types of a producer; returns why not, or an empty text.

        Raises LimitReached if there are too many, or they are too long.
        """
        if error := check_declared(self.name, types):
            return error
        new = [one for one in types if one.fingerprint not in self.types]
        if len(self.types) + len(new) > wire.MAX_TYPES:
            raise LimitReached(
                f"stream {self.name!r} has {len(self.types)} versions of event types, and at most "
                f"{wire.MAX_TYPES} are allowed; create another stream"
            )
        taken = self._type_bytes
        if new and taken.used + sum(map(size_of, new)) > taken.limit:
            raise LimitReached(
                f"stream {self.name!r}: the event types of the log have {taken.used} bytes, and at "
                f"most {taken.limit} are allowed; delete a stream"
            )
        for declared in new:
            self._learn(declared)
        return ""

    def dropped(self) -> None:
        """Give back what the types took up, because the stream is removed."""
        self._type_bytes.used -= sum(map(size_of, self.types.values()))

    def _learn(self, declared: TypeDecl) -> None:
        if declared.fingerprint not in self.types:
            self._declared_types = None
            self.types[declared.fingerprint] = declared
            self._type_bytes.used += size_of(declared)
        if declared.name != GENERIC:
            self._readers.setdefault(declared.fingerprint, OpenType(declared))

    def on_data(self, data: wire.Data, body: memoryview, connection: Hashable, now: float) -> str:
        """Handle a data frame; returns what is wrong with it, or an empty text."""
        if problem := wire.check_data(data, body, len(self.partitions)):
            return problem
        weight = len(body) + FRAME_BYTES
        receipt = self.admission.admit(data, connection, now, weight)
        if receipt is None:
            return ""
        self._stages[data.partition].frame_came(receipt.end - receipt.first, weight)
        routed = self._router is None or data.routing == self._routed
        known = all(section.fingerprint in self._readers for section in data.sections)
        plain = known and data.encoding == wire.MSGPACK  # JSON may be hand-written: decode it
        if routed and plain and receipt.first == data.first:
            frame = self.incoming(data, bytes(body), receipt.progress)
            self._enqueue(_Queued(frame, receipt, weight))
        else:
            if 2 * len(body) < len(body.obj):  # type: ignore[arg-type]
                body = memoryview(bytes(body))  # not to hold on to the rest of its envelope
            self._split(data, body, receipt, weight, routed=routed)
        return ""

    def incoming(
        self,
        data: wire.Data | StoredFrame,
        body: bytes,
        lane: ProducerLane | None = None,
        end: int | None = None,
        numbers: Sequence[int] | None = None,
        *,
        own_id: bool = False,
    ) -> Incoming:
        """A frame in the form that the files take.

        ``lane`` is its producer's. A part of a frame has ``numbers`` of its own, and the ``end`` of
        the whole.
        """
        marks = [section.fingerprint for section in data.sections]
        return Incoming(
            producer=data.producer,
            first=data.first,
            count=data.count,
            body=body,
            sections=data.sections,
            order=data.order,
            encoding=data.encoding,
            routing=data.routing,
            created_ms=data.created_ms,
            headers=data.headers,
            types={mark: self.types[mark] for mark in marks if mark in self.types},
            end=end,
            numbers=numbers,
            life=0 if lane is None else lane.life.number,
            incarnation="" if lane is None else lane.life.incarnation,
            own_id=own_id if lane is None else lane.own_id,
        )

    def _split(
        self,
        data: wire.Data,
        body: memoryview,
        receipt: FrameReceipt,
        weight: int,
        *,
        routed: bool,
    ) -> None:
        """Split a frame by the events' keys; events that were appended before are skipped."""
        router = None if routed else self._router
        skip = receipt.first - data.first
        queued = _Queued(None, receipt, weight, 1)
        split = _Split(data, Splitting(data, body, self._readers, router, skip), queued)
        self._enqueue(queued)
        self._splits.setdefault(receipt.progress, deque()).append(split)
        if len(self._splits) == 1 == len(self._splits[receipt.progress]) and self.split_next():
            self.splits = True

    def split_next(self) -> bool:
        """Split a piece of a frame; return True if more waits."""
        if not self._splits:
            return False
        lane, waiting = next(iter(self._splits.items()))
        del self._splits[lane]
        split = waiting[0]
        if split.splitting.next_piece():
            waiting.popleft()
            self._is_split(*split)
        if waiting:
            self._splits[lane] = waiting
        return bool(self._splits)

    def _is_split(self, data: wire.Data, splitting: Splitting, queued: _Queued) -> None:
        """Append the parts of a frame."""
        receipt = queued.receipt
        own = receipt.progress.partition
        for index, reason in splitting.refusals:
            receipt.refuse(data.first + index, reason)
        mine = Part(own, [], (), b"", b"")
        others = []
        for part in splitting.parts():
            if part.partition == own:
                mine = part
            else:
                others.append(part)
        queued.frame = self._part(data, mine, receipt, data.producer)
        queued.before += len(others)
        for part in others:
            frame = self._part(data, part, receipt, part_name(data.producer, own))
            self.partitions[part.partition].append(frame, partial(self._part_done, queued, frame))
        self._one_less(queued)

    def _part(self, data: wire.Data, part: Part, receipt: FrameReceipt, producer: str) -> Incoming:
        alone = msgspec.structs.replace(
            data,
            producer=producer,
            first=receipt.first,
            count=len(part.numbers),
            sections=part.sections,
            order=part.order,
            routing=self._routed,
        )
        return self.incoming(alone, part.body, receipt.progress, receipt.end, part.numbers)

    # -- to disk ---------------------------------------------------------------------------------

    def _enqueue(self, queued: _Queued) -> None:
        """Append a frame after all earlier ones of its lane."""
        lane = queued.receipt.progress
        waiting = self._waiting.get(lane)
        if waiting is None:
            if not queued.before:
                self._append(queued)
                return
            waiting = self._waiting[lane] = deque()
        waiting.append(queued)

    def _append(self, queued: _Queued) -> None:
        assert queued.frame is not None
        number = queued.receipt.progress.partition
        self.partitions[number].append(queued.frame, partial(self._done, queued))

    def _part_done(self, queued: _Queued, part: Incoming, answer: Appended | S4Error) -> None:
        if not isinstance(answer, Appended):
            self._failed(queued, part, answer)
        self.grown()
        self._one_less(queued)

    def _one_less(self, queued: _Queued) -> None:
        queued.before -= 1
        lane = queued.receipt.progress
        waiting = self._waiting.get(lane)
        while waiting and waiting[0].settles and not waiting[0].before:
            self._append(waiting.popleft())
        if not waiting:
            self._waiting.pop(lane, None)

    def grown(self) -> None:
        """Notify readers that events were appended, or were there before, and send verdicts."""
        for reader in self._shared.readers.values():
            reader.grown(self.name)
        self._shared.waker.nudge()

    def _done(self, queued: _Queued, answer: Appended | S4Error) -> None:
        """Handle the answer to the part for the producer's own lane."""
        assert queued.frame is not None
        if not isinstance(answer, Appended):
            self._failed(queued, queued.frame, answer)
        if queued.settles:
            self._release(queued)
            queued.receipt.done()
            self.admission.released()
        # even if it was there before: readers may not know of it
        self.grown()

    def _release(self, queued: _Queued) -> None:
        receipt = queued.receipt
        events = receipt.end - receipt.first
        self._stages[receipt.progress.partition].frame_went(events, queued.weight)

    def _failed(self, queued: _Queued, part: Incoming, error: S4Error) -> None:
        """Refuse the events of a damaged partition or a dropped stream. Any other error says that
        the log has closed: nothing is settled, and the producers send the events again."""
        if not isinstance(error, (StoreCorrupt, UnknownStream)):
            queued.settles = False
            return
        receipt = queued.receipt
        if isinstance(error, StoreCorrupt):
            log.error(
                "a partition is damaged: events are refused", stream=self.name, reason=str(error)
            )
        whole = range(receipt.first, receipt.end)
        numbers = whole if part.numbers is None else part.numbers
        for first, end in runs(numbers, receipt.first, receipt.end):
            receipt.progress.refuse(first, end - first, str(error))


def describe(hosted: HostedStream) -> Mapping[str, Any]:
    """The stream as plain values, for an answer."""
    stream, known = hosted.stream, hosted.rows.known
    settings = stream.settings
    return {
        "stream": stream.name,
        "id": settings.id,
        "key": stream.key,
        "hasher": stream.hasher,
        "retention_ms": settings.retention_ms,
        "retention_bytes": settings.retention_bytes,
        "producers": known,
        "types": sorted({kind.name for each in stream.partitions for kind in each.types.values()}),
        "declarations": [(k.name, k.fingerprint, k.fields) for k in hosted.types.values()],
        "partitions": [_described(each) for each in stream.partitions],
    }


def _described(partition: LogPartition) -> Mapping[str, Any]:
    if partition.damage:
        none = {"oldest": 0, "upcoming": 0, "bytes": 0, "last_ms": 0}
        return {"partition": partition.number, **none, "damage": partition.damage}
    bounds = partition.bounds
    return {
        "partition": partition.number,
        "oldest": bounds.oldest,
        "upcoming": bounds.upcoming,
        "epochs": bounds.epochs,
        "bytes": partition.standing.size,
        "last_ms": partition.standing.last_ms,
    }
