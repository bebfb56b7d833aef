"""The batches of data frames, and how a stream's frames become events. Pure.

Rules
- A batch is decoded in one call, right before it is processed. Stages hold undecoded frames, which
  take less memory than their events, and decoded events are still in the CPU's cache. If decoding
  fails, the frame is decoded event by event: bad events are refused, the others go on. That is
  slow, so it goes piece by piece, and others get their turn between two pieces. Frames with many
  events whose keys are not found go piece by piece, too.
- A refused event is done at once. On a durable stream, where a commit may end anywhere in a frame,
  the producer's number must be able to pass the refused event together with later ones.
- In a frame with events of other tasks, only the task's own events count as admitted, and only once
  they are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

from s4node.app.stream import Stream
from s4node.events.event import EventBatch
from s4node.events.routing import Router
from s4node.events.schema import EventType, TypeReader, misfit
from s4node.events.type_declaration import TypeDecl, check_declared
from s4node.net.ingress.producer_lane import FrameReceipt
from s4node.net.ingress.rerouted_batch import sorted_out
from s4node.net.wire import frame as wire
from s4node.net.wire.body import Apart, Decoded, FrameDecoder

if TYPE_CHECKING:
    from s4node.runtime.outputs.outputs import Outputs

FRAME_BYTES = 512
"""The approximate memory of a waiting frame besides its body."""

PIECE = 128
"""Events that are decoded one by one, or refused for lack of a key, in one piece: about 1 ms."""

MAX_VERSIONS = 4096
"""Versions of event types that producers may have declared on a stream; the oldest is forgotten."""

_NOTHING = memoryview(b"")


class Deserializer:
    """How the frames of a stream are decoded: by the types that producers have declared.

    ``router`` finds the tasks of events; it is None if their producer does. On a durable stream,
    ``outputs`` send a producer's events from one partition's task to another's. ``redispatched``
    counts such events, ``uncounted`` those admitted for other tasks, which count them, or for
    unknown tasks.
    """

    def __init__(self, stream: Stream, router: Router | None) -> None:
        self.router = router
        self.outputs: Outputs
        self.redispatched = 0
        self.uncounted = 0
        self._stream = stream
        self._readers: dict[int, TypeReader] = {kind.fingerprint: kind for kind in stream.types}
        self.decoder = FrameDecoder(self._readers)

    def accept(self, types: Sequence[TypeDecl]) -> str:
        """Learn a producer's versions of our types; return why they do not fit, or ""."""
        by_name = {kind.name: kind for kind in self._stream.types}
        if error := check_declared(self._stream.name, types):
            return error
        for declared in types:
            reason = misfit(self._stream.name, by_name, declared)
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
            own = {kind.fingerprint for kind in self._stream.types}
            del self._readers[next(known for known in self._readers if known not in own)]


class FrameBatch(EventBatch):
    """The admitted events of a data frame, not yet decoded."""

    __slots__ = ("_apart", "_body", "_data", "_deserializer", "frame")

    is_frame = True

    def __init__(
        self,
        deserializer: Deserializer,
        data: wire.Data,
        body: memoryview,
        frame: FrameReceipt,
    ) -> None:
        self.stream = self.source = data.stream
        self.created_ms = data.created_ms
        self.partition = data.partition
        self.events = []
        self.numbers = None
        self.strays = None
        self.first = frame.first
        self.size = frame.end - frame.first
        self.at = 0
        self.bytes = len(body) + FRAME_BYTES
        self.receipt = self.frame = frame
        self._deserializer, self._data, self._body = deserializer, data, body
        self._apart: Apart | Decoded | None = None  # events that are taken piece by piece

    def precedes(self, other: EventBatch) -> bool:
        """Return True for a later frame of the same producer."""
        return isinstance(other, FrameBatch) and other.frame.progress is self.frame.progress

    def load(self) -> FrameBatch | None:
        """Decode, refusing events that do not decode; return the rest if it goes piece by piece."""
        rest = None
        decoder, skip = self._deserializer.decoder, self.first - self._data.first
        if self._apart is None:
            body, self._body = self._body, _NOTHING
            events = decoder.at_once(self._data, body)
            if events is not None:  # later events of the frame were shed
                self.events = (
                    events if self.size == len(events) else events[skip : skip + self.size]
                )
                return None
            apart = self._apart = decoder.apart(self._data, body)
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

    @property
    def is_loaded(self) -> bool:
        return self._apart is None and self._body is _NOTHING

    @property
    def goes_by_pieces(self) -> bool:
        """True for the rest of a frame with many bad events."""
        return self._apart is not None

    def goes_on(self, later: FrameBatch) -> bool:
        """Return True if ``later`` is the next frame of the producer, or the rest of this one."""
        return later.frame.progress is self.frame.progress and later.first == self.frame.end

    def join(self, later: FrameBatch) -> bool:
        """Take the events of the next frame, too, decoded as well; return False if some of them
        were refused."""
        if self.numbers is not None or later.numbers is not None:
            return False
        self.frame.end = later.frame.end
        self.size += later.size
        self.bytes += later.bytes
        self.events += later.events
        return True

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
        self._deserializer.uncounted -= self.size

    def load(self) -> FrameBatch | None:
        """Decode, and keep the task's own events; send on the others as the task passes them."""
        rest = super().load()
        deserializer = self._deserializer
        assert deserializer.router is not None
        onward, sender = deserializer.outputs, self.frame.progress.producer
        found = sorted_out(self, self.frame, deserializer.router, onward, sender, PIECE)
        if found.seen < len(self.events):
            rest = self.keep_from(found.seen)
        self.events, self.numbers, self.receipt = found.events, found.numbers, found.receipt
        self.strays = found.strays
        deserializer.redispatched += len(found.strays)
        deserializer.uncounted -= self.size - len(found.strays)
        return rest
