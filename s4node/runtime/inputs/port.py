"""The port of one input stream: turns data frames into batches in the stages of tasks.

Rules
- Admission decides by the header alone, before anything is decoded. Until it is decoded, a frame
  counts in the deserializer as well as in its stage.
- A body that is less than half of its envelope is copied: a small waiting frame must not hold on to
  the rest of the envelope.
- A batch is decoded in one call, right before it is processed. Stages hold undecoded frames, which
  take less memory than their events, and decoded events are still in the CPU's cache. If decoding
  fails, the frame is decoded event by event: bad events are refused, the others go on. That is
  slow, so it goes piece by piece, and others get their turn between two pieces. Frames with many
  events whose keys are not found go piece by piece, too.
- A refused event is done at once. On a durable stream, where a commit may end anywhere in a frame,
  the producer's number must be able to pass the refused event together with later ones.
- A port takes frames for the partitions that its container owns.
- An event counts as admitted in its own partition. In a frame with events of other tasks, only the
  task's own events count, and only once they are known.
- A keyed input decides the partition of each key. Unless the frame says that it was routed by the
  same hasher and key, its events are decoded and hashed on arrival, and each goes to its partition.
  On a durable stream, the task of the frame's partition sends on the events of other tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from copy import copy
from functools import partial
from typing import Any

from s4node.app.graph import rule_of
from s4node.app.stream import Stream
from s4node.events.event import EventBatch, footprint
from s4node.events.keys import Partitioner
from s4node.events.routing import Router
from s4node.events.schema import EventType, TypeReader, check_declared, misfit
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.ingress.durable_admission import DurableAdmission
from s4node.net.ingress.part_numbers import FrameNumbers, PartNumbers
from s4node.net.ingress.producer_lane import FrameReceipt, ProducerLane
from s4node.net.ingress.rerouted_batch import sorted_out
from s4node.net.wire import frame as wire
from s4node.net.wire.body import Apart, Decoded, FrameDecoder
from s4node.offsets.cuts import Cuts
from s4node.offsets.producer_offsets import Closings
from s4node.stages.stage import Gauge, Stage, put_back

FRAME_BYTES = 512
"""The approximate memory of a waiting frame besides its body."""

PIECE = 512
"""Events that are decoded one by one, or refused for lack of a key, in one piece: about 3 ms."""

MAX_VERSIONS = 4096
"""Versions of event types that producers may have declared on a stream; the oldest is forgotten."""


class FrameBatch(EventBatch):
    """The admitted events of a data frame, not yet decoded."""

    __slots__ = ("_apart", "_body", "_data", "_port", "frame")

    def __init__(
        self, port: InputPort, data: wire.Data, body: memoryview, frame: FrameReceipt
    ) -> None:
        self.stream = self.source = data.stream
        self.created_ms = data.created_ms
        self.partition = data.partition
        self.events = []
        self.numbers = None
        self.first = frame.first
        self.size = frame.end - frame.first
        self.at = 0
        self.bytes = len(body) + FRAME_BYTES
        self.receipt = self.frame = frame
        self._port, self._data, self._body = port, data, body
        self._apart: Apart | Decoded | None = None  # events that are taken piece by piece
        port.admission.deserializer.came(self.size, self.bytes)

    def precedes(self, other: EventBatch) -> bool:
        """Return True for a later frame of the same producer."""
        return isinstance(other, FrameBatch) and other.frame.progress is self.frame.progress

    def discard(self) -> None:
        """Drop the frame; its producer sends it again."""
        if self._body is not _NOTHING:
            self._body = _NOTHING
            self._port.admission.deserializer.went(self.size, self.bytes)

    def load(self) -> EventBatch | None:
        """Decode, refusing events that do not decode; return the rest if it goes piece by piece."""
        rest = self.decode()
        self.left()
        return rest

    def decode(self) -> FrameBatch | None:
        """As ``load``, but the frame stays in the deserializer."""
        rest = None
        decoder, skip = self._port.decoder, self.first - self._data.first
        if self._apart is None:
            events = decoder.at_once(self._data, self._body)
            if events is not None:  # later events of the frame were shed
                self.events = (
                    events if self.size == len(events) else events[skip : skip + self.size]
                )
                return None
            apart = self._apart = decoder.apart(self._data, self._body)
            apart.skip(skip)
        if self.size > PIECE:
            rest = self._cut(PIECE)
        events, refusals = self._apart.next_events(self.size)
        self._apart = None
        if not refusals:
            self.events = events
            return rest
        first, base = self._data.first, self.first
        reasons = {first + index: reason for index, reason in refusals}
        numbers = [n for n in range(base, base + self.size) if n not in reasons]
        self.events = [events[number - base] for number in numbers]
        self.numbers = numbers
        for number, reason in reasons.items():
            self.frame.refuse(number, reason)
        self.receipt = self.frame.without(reasons, numbers)
        return rest

    def left(self) -> None:
        """Leave the deserializer."""
        self._body = _NOTHING
        self._port.admission.deserializer.went(self.size, self.bytes)

    def keep_from(self, count: int) -> FrameBatch:
        """Split a frame that was decoded in one call; return the part after ``count`` events."""
        rest = self._cut(count)
        rest._apart, rest.events = Decoded(self.events, count), []
        return rest

    def _cut(self, count: int) -> FrameBatch:
        """Split the batch: keep ``count`` events, and return the rest as a batch."""
        rest = copy(self)
        rest.receipt = rest.frame = self.frame.cut(self.first + count)
        rest.first += count
        rest.size -= count
        rest.bytes -= self.bytes * count // self.size
        self.size, self.bytes = count, self.bytes - rest.bytes
        return rest


class MixedFrameBatch(FrameBatch):
    """A frame of a durable stream that may hold events of other tasks."""

    __slots__ = ()

    def left_to_producer(self) -> None:
        """Count the frame as never admitted."""
        self._port.uncounted -= self.size

    def load(self) -> EventBatch | None:
        """Decode, and keep the task's own events; send on the others as the task passes them."""
        rest = self.decode()
        port = self._port
        assert port.router is not None
        send = partial(port.pass_on, self.partition)
        found = sorted_out(self, self.frame, port.router, send, PIECE)
        if found.seen < len(self.events):
            rest = self.keep_from(found.seen)
        self.left()
        self.events, self.numbers, self.receipt = found.events, found.numbers, found.receipt
        port.redispatched += found.strays
        port.uncounted -= self.size - found.strays
        return rest


_NOTHING = memoryview(b"")
_NONE_CLOSED: Closings = ()


class InputPort:
    """Takes the frames of one stream.

    ``stages`` are its stages by partition; ``headers`` go with every answer to a hello.
    ``deliver(batch)`` puts a batch into the stage of its partition's task. A ``closed`` port admits
    frames only from ``members``, the connections of the app's other containers; producers keep
    theirs. The stream is durable if ``on_full`` is given; ``on_full`` and ``on_wait`` ask for
    commits. ``on_demand`` says that there are no other commits. Programs wait while a partition is
    ``held``.
    """

    def __init__(
        self,
        stream: Stream,
        stages: Mapping[int, Stage],
        partitioner: Partitioner,
        hasher_name: str,
        deliver: Callable[[EventBatch], None],
        notify: Callable[[ProducerLane], None],
        headers: wire.Headers,
        deserializer: Gauge | None = None,
        on_full: Callable[[int], None] | None = None,
        on_wait: Callable[[int, float], None] = lambda _, __: None,
        *,
        on_demand: bool = False,
        held: Callable[[int], bool] = lambda _: False,
        cuts: Cuts | None = None,
    ) -> None:
        self.stream = stream
        self.closed = False
        self.members: set[Hashable] = set()
        self._leaving: set[int] = set()  # partitions
        self._stages = dict(stages)
        self.admission = StreamAdmission(stream.name, self._stages, notify)
        self.durable: DurableAdmission | None = None
        if on_full is not None:
            self.admission = self.durable = DurableAdmission(
                stream.name,
                self._stages,
                notify,
                partitions=partitioner.partitions,
                on_full=on_full,
                on_wait=on_wait,
                on_demand=on_demand,
                held=held,
                cuts=cuts or Cuts(),
            )
        if deserializer is not None:
            self.admission.deserializer = deserializer
        self.redispatched = 0
        self._unsorted: deque[FrameBatch] = deque()  # their events are for several partitions
        self.forwarded = 0
        self.uncounted = 0  # admitted for other tasks, which count them, or for unknown tasks
        self.pass_on: Callable[[int, int, list[Any]], None]  # from and to which partition
        self.routing = ""
        self._told_routing = f"{hasher_name}:"
        self._headers = headers
        self._deliver = deliver
        self._partitions = partitioner.partitions
        self.router: Router | None = None  # None if the producer decides the partition
        rule = rule_of(stream)
        if rule is not None:
            self.routing = f"{hasher_name}:{rule.name}" if rule.name else ""
            self._told_routing = self.routing or f"{hasher_name}:{wire.UNNAMED_KEY}"
            if self._partitions > 1:
                self.router = Router(rule, partitioner)
        self._readers: dict[int, TypeReader] = {kind.fingerprint: kind for kind in stream.types}
        self.decoder = FrameDecoder(self._readers)

    def open_partition(self, partition: int, stage: Stage) -> None:
        """Take frames for a partition that the container now owns."""
        self._leaving.discard(partition)
        self.admission.enter(partition)
        self._stages[partition] = stage

    def refrain(self, partition: int) -> None:
        """Take no more frames for a partition that is about to move to another container."""
        self._leaving.add(partition)

    def revoke(self, partition: int) -> None:
        """Forget a partition that has moved; producers are told its new owner."""
        self.admission.revoke(partition)
        del self._stages[partition]

    def roll_back(self, partition: int) -> None:
        """Have the producers of a partition go back, because its task was rolled back."""
        if self.durable is not None:
            self.durable.roll_back(partition)

    def is_open(self, partition: int) -> bool:
        """Return True if the port takes frames for a partition."""
        return partition in self._stages

    def on_hello(
        self, hello: wire.Hello, connection: Hashable, node: str, incarnation: str, now: float
    ) -> wire.Hello | None:
        """Open the stream for a producer, or say why not; None if a commit must come first."""
        before, closings, error = hello, _NONE_CLOSED, self._accept_types(hello)
        if self.durable is not None:
            hello, closings = self.durable.in_layout(hello)
            if hello is not before:
                error = error or self.durable.lost_before(before, closings)
        error = error or self.admission.refusal(hello)
        error = error or self.admission.crowded(hello.peer, connection)
        headers = {**self._headers, wire.PRODUCER: hello.peer}
        if error:
            return self.word(node, incarnation, error=error, headers=headers)
        if self.durable is not None:
            if self.durable.unsettled(hello, now):
                return None
            unknown = self.durable.unknown(hello)
            if hello is not before and self._stages and not closings:
                unknown = [each.partition for each in before.positions if each.number > 0]
            if unknown:
                headers = {**headers, wire.UNKNOWN: unknown}
            if self._stages:
                headers = {**headers, wire.LAYOUT: self.durable.layout}
            if closings:
                headers = {**headers, wire.CLOSED: closings}
        positions = self.admission.hello(hello, connection, now)
        if hello.peer.startswith(wire.TASK):
            cuts = self.admission.cuts_of(position.partition for position in positions)
            headers = {**headers, wire.SAVEPOINT: cuts} if cuts else headers
        return self.word(node, incarnation, positions, headers=headers)

    def word(
        self,
        node: str,
        incarnation: str,
        positions: tuple[wire.Position, ...] = (),
        error: str = "",
        *,
        headers: wire.Headers | None = None,
        unasked: bool = False,
    ) -> wire.Hello:
        """The hello that describes the stream to a producer; unasked when owners have changed."""
        headers = dict(self._headers if headers is None else headers)
        if unasked:
            headers[wire.UNASKED] = True
        if self.durable is not None:
            headers[wire.DURABLE] = True
        if self.stream.time is not None:
            headers[wire.TIME] = self.stream.time.field
        return wire.Hello(
            node,
            incarnation,
            self.stream.name,
            tuple(kind.declaration for kind in self.stream.types),
            self._told_routing,
            self._partitions,
            positions,
            error,
            headers,
        )

    def _accept_types(self, hello: wire.Hello) -> str:
        """Learn the producer's versions of our types; return why they do not fit, or ""."""
        by_name = {kind.name: kind for kind in self.stream.types}
        taken = {name: kind.declaration for name, kind in by_name.items()}
        if error := check_declared(self.stream.name, hello.types):
            return error
        for declared in hello.types:
            reason = misfit(self.stream.name, taken, declared)
            if reason:
                return reason
            ours = by_name[declared.name]
            if declared.fingerprint != ours.fingerprint:
                self._learn(declared.fingerprint, ours)
        return ""

    def _learn(self, fingerprint: int, ours: EventType) -> None:
        """Read this version as our type; the version declared longest ago is forgotten."""
        self._readers.pop(fingerprint, None)
        self._readers[fingerprint] = ours
        if len(self._readers) > MAX_VERSIONS:
            own = {kind.fingerprint for kind in self.stream.types}
            del self._readers[next(known for known in self._readers if known not in own)]

    def on_data(self, data: wire.Data, body: memoryview, connection: Hashable, now: float) -> str:
        """Take a data frame; return what is wrong with it, or ""."""
        if problem := wire.check_data(data, body, self._partitions):
            return problem
        if self.closed and connection not in self.members:
            return ""
        if data.partition in self._leaving:  # the producer sends it to the next owner
            return ""
        admitted = self.admission.admit(data, connection, now, len(body) + FRAME_BYTES)
        if admitted is None:
            return ""
        if connection in self.members:
            self.forwarded += admitted.end - admitted.first
        if 2 * len(body) < len(body.obj):  # type: ignore[arg-type]
            body = memoryview(bytes(body))
        routed = data.routing == wire.ROUTED or (self.routing and data.routing == self.routing)
        if self.router is None or routed:
            self._deliver(FrameBatch(self, data, body, admitted))
        elif self.durable is not None:
            self.uncounted += admitted.end - admitted.first
            self._deliver(MixedFrameBatch(self, data, body, admitted))
        else:
            self._unsorted.append(FrameBatch(self, data, body, admitted))
            if len(self._unsorted) == 1:
                self.sort_out(now)
        return ""

    def sort_out(self, now: float) -> bool:
        """Send a piece of the unsorted frames to its partitions; return True if more waits."""
        if self._unsorted:
            batch = self._unsorted.popleft()
            rest = batch.decode()
            rest = self._redispatch(batch, now) or rest
            if rest is not None:
                put_back(self._unsorted, rest)
        return bool(self._unsorted)

    def _redispatch(self, batch: FrameBatch, now: float) -> FrameBatch | None:
        """Send each event to its own partition; the batch is done when all parts are.

        After many events without a key, stop and return the rest of the batch.
        """
        assert self.router is not None
        rest = None
        events, receipt = batch.events, batch.frame
        lane = receipt.progress
        shares, failures = self.router.shares(events, PIECE)
        for index, reason in failures:
            lane.refuse(batch.number(index), 1, f"{reason} (event {events[index]!r})")
        if len(failures) == PIECE and index + 1 < len(events):
            rest = batch.keep_from(index + 1)
        batch.left()
        parts = [(partition, share) for partition, share in enumerate(shares) if share]
        if not parts:
            receipt.done()
            return rest
        receipt.parts = len(parts)
        weight = max(footprint(events), batch.bytes) / len(events)
        whole = FrameNumbers(batch)
        for partition, mine in parts:
            if partition != lane.partition:
                self.redispatched += len(mine)
            numbers = PartNumbers(whole, mine)
            stage = self._stages.get(partition)
            if stage is not None and not stage.executor.withholds:
                room = stage.executor.admits(stage, len(mine), int(weight * len(mine)), now)
                if room < len(mine):
                    self._shed(stage, receipt, numbers[room:])
                    mine = mine[:room]
                    numbers = PartNumbers(whole, mine)
                if not mine:
                    receipt.done()
                    continue
            size = int(weight * len(mine))
            part = EventBatch(
                self.stream.name, partition, mine, receipt, batch.first, numbers, size
            )
            part.created_ms = batch.created_ms
            self._deliver(part)
        return rest

    def _shed(self, stage: Stage, receipt: FrameReceipt, numbers: list[int]) -> None:
        """Drop events for which the stage of their partition has no room."""
        reason = stage.executor.reason
        stage.dropped(len(numbers), reason)
        for number in numbers:
            receipt.refuse(number, reason, shed=True)
