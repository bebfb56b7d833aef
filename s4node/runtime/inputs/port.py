"""The port of one input stream: brings admitted data frames to the stages of tasks. Pure.

Rules
- Admission decides by the header alone, before anything is decoded.
- A body that is less than half of its envelope is copied: a small waiting frame must not hold on to
  the rest of the envelope.
- A port takes frames for the partitions that its container owns.
- An event counts as admitted in its own partition.
- A keyed input decides the partition of each key. Unless the frame says that it was routed by the
  same hasher and key, its events are decoded and hashed on arrival, and each goes to its partition.
  On a durable stream, the task of the frame's partition sends on the events of other tasks.
- While tasks have events of such frames to process, further ones wait, and those of a producer are
  sorted together: each step of a task costs more than a few events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence

from s4node.app.plan.graph import rule_of
from s4node.app.stream import Stream
from s4node.events.event import EventBatch, footprint
from s4node.events.keys import Partitioner
from s4node.events.routing import Router
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.ingress.producer_lane import FrameReceipt
from s4node.net.ingress.rerouted_batch import FrameNumbers, PartNumbers
from s4node.net.ingress.roster import Greeting
from s4node.net.wire import frame as wire
from s4node.runtime.inputs.frame_batches import (
    FRAME_BYTES,
    PIECE,
    Deserializer,
    FrameBatch,
    MixedFrameBatch,
)
from s4node.stages.stage import Gauge, Stage, put_back

GATHER_SECONDS = 0.005
"""Frames that are to be sorted wait no longer for a busy task."""

MOST_SORTED = 16_384
"""The events that are sorted together, about."""


class InputPort:
    """Takes the frames of one stream into ``stages``, by partition, as ``admission`` allows.

    Batches are effects, for the stages of their tasks. Those whose partitions are not known yet
    count in the ``gauge`` of the deserializer only. ``headers`` go with every answer to a hello,
    and so does what an input ``leads`` to. A port takes frames for the partitions of its
    ``stages``; a ``closed`` one only from ``members``, the connections of the app's other
    containers; producers keep theirs.
    """

    def __init__(
        self,
        stream: Stream,
        stages: dict[int, Stage],
        admission: StreamAdmission,
        gauge: Gauge,
        partitioner: Partitioner,
        hasher_name: str,
        headers: wire.Headers,
        leads: Mapping[str, Sequence[str]],
    ) -> None:
        self.stream = stream
        self.closed = False
        self.members: set[Hashable] = set()
        self._leaving: set[int] = set()  # partitions
        self.stages = stages
        self.admission = admission
        self.durable = admission.commits is not None
        self._gauge = gauge
        self.unsorted: deque[FrameBatch] = deque()  # their events are for several partitions
        self.gathers = False  # tasks have sorted events, so the next frames wait
        self.forwarded = 0
        self.routing = ""
        self._announced_routing = f"{hasher_name}:"
        self._headers = headers
        self._leads = leads
        self._deliver = admission.effects.batches.append
        self._partitions = partitioner.partitions
        router = None
        rule = rule_of(stream)
        if rule is not None:
            self.routing = f"{hasher_name}:{rule.name}" if rule.name else ""
            self._announced_routing = self.routing or f"{hasher_name}:{wire.UNNAMED_KEY}"
            if self._partitions > 1:
                router = Router(rule, partitioner)
        self.deserializer = Deserializer(stream, router)

    def open_partition(self, partition: int, stage: Stage) -> None:
        """Take frames for a partition that the container now owns."""
        self._leaving.discard(partition)
        self.admission.enter(partition)
        self.stages[partition] = stage

    def refrain(self, partition: int) -> None:
        """Take no more frames for a partition that is about to move to another container."""
        self._leaving.add(partition)

    def revoke(self, partition: int) -> None:
        """Forget a partition that has moved; producers learn its new owner."""
        self.admission.revoke(partition)
        del self.stages[partition]

    def on_hello(
        self, hello: wire.Hello, connection: Hashable, node: str, incarnation: str, now: float
    ) -> wire.Hello | None:
        """Open the stream for a producer, or say why not; None if a commit must come first. Raises
        LimitReached."""
        error = self.deserializer.accept(hello.types)
        greeting = Greeting(error=error) if error else self.admission.greet(hello, connection, now)
        if greeting is None:
            return None
        headers = {**self._headers, wire.PRODUCER: hello.peer, **greeting.headers}
        return self.hello(node, incarnation, greeting.positions, greeting.error, headers=headers)

    def hello(
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
        if self.durable:
            headers[wire.DURABLE] = True
        if leads := self._leads.get(self.stream.name):
            headers[wire.LEADS] = leads
        if self.stream.time is not None:
            headers[wire.TIME] = self.stream.time.field
        return wire.Hello(
            node,
            incarnation,
            self.stream.name,
            tuple(kind.declaration for kind in self.stream.types),
            self._announced_routing,
            self._partitions,
            positions,
            error,
            headers,
        )

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
            if wire.SENDERS in data.headers:
                admitted.progress.note_senders(data.first, wire.senders_of(data))
        if 2 * len(body) < len(body.obj):  # type: ignore[arg-type]
            body = memoryview(bytes(body))
        routed = data.routing == wire.ROUTED or (self.routing and data.routing == self.routing)
        deserializer = self.deserializer
        if deserializer.router is None or routed:
            self._deliver(FrameBatch(deserializer, data, body, admitted))
        elif self.durable:
            deserializer.uncounted += admitted.end - admitted.first
            self._deliver(MixedFrameBatch(deserializer, data, body, admitted))
        else:
            batch = FrameBatch(deserializer, data, body, admitted)
            batch.offered_at = now
            self._gauge.came(batch.size, batch.bytes)
            self.unsorted.append(batch)
            if not self.gathers:
                self.sort_out(now)
        return ""

    @property
    def unprocessed(self) -> int:
        """The number of events that are admitted and not processed."""
        unsorted = sum(batch.size for batch in self.unsorted)
        return unsorted + sum(stage.depth for stage in self.stages.values())

    def tick(self, now: float, *, busy: bool) -> bool:
        """Sort out frames if it is time for it; return True if more wait. ``busy``: tasks have
        events to process."""
        if not busy:
            self.gathers = False
        elif self.unsorted and now - self.unsorted[0].offered_at < GATHER_SECONDS:
            return True
        return bool(self.unsorted) and self.sort_out(now)

    def sort_out(self, now: float) -> bool:
        """Send unsorted frames to their partitions; return True if more wait.

        Each run of frames of one producer is sorted together. A piece of a frame is sorted alone:
        others get their turn between two pieces.
        """
        events = 0
        while self.unsorted and events < MOST_SORTED:
            if events and self.unsorted[0].goes_by_pieces:
                break
            events += self._sort_run(now)
        return bool(self.unsorted)

    def _sort_run(self, now: float) -> int:
        """Sort the next frames of one producer, or a piece of one; return their events."""
        self.gathers = True
        batch = self._next_unsorted()
        while self.unsorted and batch.size < MOST_SORTED and batch.goes_on(self.unsorted[0]):
            if self.unsorted[0].goes_by_pieces:
                break
            later = self._next_unsorted()
            if not batch.join(later):
                self.unsorted.appendleft(later)
                break
        rest = self._redispatch(batch, now)
        if rest is not None:
            put_back(self.unsorted, rest)
        return batch.size

    def _next_unsorted(self) -> FrameBatch:
        batch = self.unsorted.popleft()
        rest = None if batch.is_loaded else batch.load()
        if rest is not None:
            put_back(self.unsorted, rest)
        return batch

    def _redispatch(self, batch: FrameBatch, now: float) -> FrameBatch | None:
        """Send each event to its own partition; the batch is done when all parts are.

        After many events without a key, stop and return the rest of the batch.
        """
        router = self.deserializer.router
        assert router is not None
        rest = None
        events, receipt = batch.events, batch.frame
        lane = receipt.progress
        shares, failures = router.shares(events, PIECE)
        for index, reason in failures:
            lane.refuse(batch.number(index), 1, f"{reason} (event {events[index]!r})")
        if len(failures) == PIECE and index + 1 < len(events):
            rest = batch.keep_from(index + 1)
        self._gauge.went(batch.size, batch.bytes)
        parts = [(partition, share) for partition, share in enumerate(shares) if share]
        if not parts:
            receipt.done()
            return rest
        receipt.parts = len(parts)
        weight = max(footprint(events), batch.bytes) / len(events)
        whole = FrameNumbers(batch)
        for partition, mine in parts:
            if partition != lane.partition:
                self.deserializer.redispatched += len(mine)
            numbers = PartNumbers(whole, mine)
            stage = self.stages.get(partition)
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
