"""A lane of an outbox: the events for one partition, in frames, until their verdict. Pure.

Rules
- A lane sends only below its credit limit. It keeps every frame until the node has acknowledged all
  of its events, and resends it, byte for byte, when the node says "expected n" and after a
  reconnect.
- If events have a time, the latest one is reported to the owners of lanes: later events are not
  much older. A lane's owner gets it once all earlier events of the lane were sent.
- A frame stays within the limits of events and bytes. After large events fewer are tried, and then
  gradually more. A frame that is longer than the node's limit is not sent: it would be refused.
- From an earlier life of its producer, a lane has the committed frames and their numbers.
- Between nodes of a cluster, a lane knows which producers outside have sent the waiting events, in
  runs, and a frame says so. It costs nothing if all events are the app's own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from s4node.errors import EventError
from s4node.events.event_time import TimeRule, far_ahead
from s4node.events.schema import EventType, JsonType
from s4node.net.egress.refusal import Refusal
from s4node.net.egress.stream_types import StreamTypes
from s4node.net.transport.number_ranges import NumberRanges
from s4node.net.wire import frame as wire
from s4node.net.wire.body import encoded


class OutgoingFrame(NamedTuple):
    """A frame that is kept until its events are acknowledged.

    The data of one that is ``stored`` are only in its row; that is how many bytes there are.
    """

    first: int
    end: int
    data: bytes
    stored: int = 0

    @property
    def size(self) -> int:
        return self.stored or len(self.data)


@dataclass(eq=False, repr=False, slots=True)
class Lane:
    """The part of an outbox for one partition."""

    partition: int
    open: bool = False  # its owner has answered the hello
    pending: list[Any] = field(default_factory=list)
    senders: deque[tuple[str, int]] = field(default_factory=deque)
    frames: deque[OutgoingFrame] = field(default_factory=deque)  # not acknowledged yet
    excepted: NumberRanges = field(default_factory=NumberRanges)
    cursor: int = 0
    start: int = 0
    next_number: int = 0
    upto: int = 0
    known: int = 0  # below this, an earlier life of this producer has settled numbers
    life: int = 0  # the number of this life, from the owner
    limit: int = 0
    released: int = wire.MAX_NUMBER  # frames from here on may not leave yet
    reported_time: float = -math.inf  # to its owner
    reported_idle: bool = False
    ahead: int = 0  # the cut of its owner, if ours is older: settled after ours
    settles: int = 0  # where that is

    def restore(self, frames: Sequence[OutgoingFrame], next_number: int) -> None:
        """Resume where an earlier life has stopped, with the frames that it has committed."""
        self.frames = deque(frames)
        self.next_number = self.released = next_number
        self.start = self.upto = frames[0].first if frames else next_number

    def note_sender(self, sender: str, count: int) -> None:
        """Note who has sent the next ``count`` events, before they are added to those that wait;
        ``sender`` is a producer outside the cluster, or empty."""
        senders = self.senders
        if self.pending and not senders:
            senders.append(("", len(self.pending)))
        before = senders.pop()[1] if senders and senders[-1][0] == sender else 0
        senders.append((sender, before + count))

    def first_senders(self, count: int) -> list[tuple[str, int]]:
        """The senders of the first ``count`` waiting events, in runs."""
        found = []
        for sender, events in self.senders:
            if count <= 0:
                break
            found.append((sender, min(count, events)))
            count -= events
        return found

    def forget_senders(self, count: int) -> None:
        """Forget who has sent the first ``count`` waiting events."""
        while count and self.senders:
            sender, events = self.senders.popleft()
            if events > count:
                self.senders.appendleft((sender, events - count))
            count = max(0, count - events)

    def drop_first(self) -> None:
        del self.pending[:1]
        self.forget_senders(1)

    def wait_only(self, events: Sequence[Any] = ()) -> None:
        """Have only these events wait, of unknown senders."""
        self.pending = list(events)
        self.senders.clear()

    def cut_back(self) -> list[OutgoingFrame]:
        """Drop the frames that are not released, which were never sent; return them."""
        forgotten: list[OutgoingFrame] = []
        while self.frames and self.frames[-1].end > self.released:
            forgotten.append(self.frames.pop())
        self.next_number = self.released
        self.cursor = min(self.cursor, len(self.frames))
        return forgotten

    @property
    def send_limit(self) -> int:
        """The first number that may not be sent now."""
        return min(self.limit, self.released)

    def rewind(self, number: int) -> None:
        """Resend from the frame that holds ``number``."""
        self.cursor = sum(1 for frame in self.frames if frame.end <= number)
        self.reported_time = -math.inf

    def resend(self, budget: int, settlement: Settlement) -> list[bytes]:
        """The kept frames from the cursor on that may be sent now, up to about ``budget`` bytes."""
        frames: list[bytes] = []
        end = self.send_limit
        while self.cursor < len(self.frames) and budget > 0:
            frame = self.frames[self.cursor]
            if frame.first >= end:
                break
            self.cursor += 1
            frames.append(frame.data or settlement.data_of(self, frame))
            budget -= frame.size
        return frames

    def acknowledge(self, upto: int) -> list[OutgoingFrame]:
        """Settle everything below ``upto``, now or after our cut; return the frames that are no
        longer kept."""
        if self.ahead:
            self.settles = max(self.settles, upto)
            upto = min(upto, self.upto)
        waiting, settled = self.frames, []
        self.upto = max(self.upto, upto)
        if self.excepted.ranges:
            self.excepted.remove_below(self.upto)
        while waiting and waiting[0].end <= upto:
            settled.append(waiting.popleft())
            self.cursor = max(0, self.cursor - 1)
        return settled

    def reopen(self, position: wire.Position, *, again: bool = False) -> list[OutgoingFrame]:
        """Resume at the owner's position; return the frames that are no longer kept.

        If the position is after everything that this life has sent, the lane skips to it. A
        producer that sends everything ``again`` numbers on from 0 instead, and settled events do
        not leave.
        """
        settled: list[OutgoingFrame] = []
        if position.number > self.next_number:
            self.known = position.safe if again else position.number
            if not again:
                settled += self.frames
                self.frames.clear()
                self.start = self.next_number = self.upto = position.number
        settled += self.acknowledge(min(position.safe, self.next_number, self.released))
        self.rewind(position.number)
        self.limit, self.life = position.limit, position.life
        self.open = True
        return settled

    def close(self) -> None:
        """Close the lane, as its owner is unreachable; events without a verdict will be resent."""
        self.open = False
        self.cursor = 0

    def validate(self) -> None:
        assert 0 <= self.cursor <= len(self.frames)
        numbers = [n for frame in self.frames for n in (frame.first, frame.end)]
        assert numbers == sorted(numbers)
        assert all(
            a.end == b.first for a, b in zip(self.frames, list(self.frames)[1:], strict=False)
        )
        assert not self.frames or self.frames[-1].end == self.next_number
        assert self.start <= self.upto <= self.next_number
        self.excepted.validate()
        assert not self.senders or sum(n for _, n in self.senders) == len(self.pending)


class Built(NamedTuple):
    """A frame of the next ``events`` events of a lane."""

    events: int
    data: bytes


class NotBuilt(NamedTuple):
    """The next events of a lane do not fit; try ``fewer``, or 0 if there was only one event."""

    reason: str
    fewer: int


class FrameBuilder:
    """Builds frames of ``producer``, of up to ``max_events`` events and ``max_bytes`` of a body.

    ``event_bytes`` is the recent size of an event in frames; ``headers`` go with each frame.
    """

    def __init__(
        self, stream: str, producer: str, types: StreamTypes, max_events: int, max_bytes: int
    ) -> None:
        self.max_events = max_events
        self.event_bytes = 0.0
        self.headers: wire.Headers = {}
        self._stream = stream
        self._producer = producer
        self._types = types
        self._max_bytes = max_bytes
        self._fits = max_events

    def build(
        self, lane: Lane, count: int, routing: str, now_ms: int, flags: int, most_bytes: int
    ) -> Built | NotBuilt:
        """Build a frame of the lane's next ``count`` events, or of as many as fitted recently.

        ``most_bytes`` is the longest frame that the lane's owner accepts, 0 if unknown.
        """
        events = lane.pending[: min(count, self._fits)]
        count = len(events)
        try:
            encoding, sections, order, body = encoded(
                self._types.kinds, events, checked=self._types.checked
            )
        except EventError as error:
            return NotBuilt(str(error), count // 2)
        if len(body) > self._max_bytes:
            fits = count * self._max_bytes * 9 // (len(body) * 10)  # a little less to be sure
            fewer = min(max(1, fits), count - 1)
            if fewer:
                self._fits = fewer
            return NotBuilt(
                f"a {self._types.name_of(events[0])} takes {len(body)} bytes, over the frame limit "
                f"of {self._max_bytes} (s4.sender.maxFrameBytes)",
                fewer,
            )
        headers = self.headers
        if lane.senders:
            headers = {**headers, wire.SENDERS: lane.first_senders(count)}
        header = wire.Data(
            self._stream,
            lane.partition,
            self._producer,
            lane.next_number,
            count,
            sections,
            routing,
            encoding,
            flags,
            order,
            now_ms,
            headers,
        )
        data = wire.encode_frame(header, body)
        if 0 < most_bytes < len(data):
            return NotBuilt(
                f"the frame of a {self._types.name_of(events[0])} takes {len(data)} bytes, over "
                f"the node's limit of {most_bytes} (s4.listener.maxFrameBytes)",
                count // 2,
            )
        if lane.next_number + count > lane.known:  # else it is settled, and is not sent
            self.event_bytes = self.event_bytes * 0.75 + len(body) / count * 0.25
            if self._fits < self.max_events:  # grow back gradually after large events
                self._fits = min(self.max_events, self._fits + self._fits // 4 + 1)
        return Built(count, data)


def unnumbered(types: StreamTypes, events: Sequence[Any]) -> bytes:
    """Encode events as a frame for storage; raises EventError if one could not be read again."""
    encoding, sections, order, body = encoded(types.kinds, events, checked=True)
    count = len(events)
    header = wire.Data(types.stream, 0, "", 0, count, sections, encoding=encoding, order=order)
    return wire.encode_frame(header, body)


class Settlement(Protocol):
    """The settlement of an outbox, for its events that have their verdict."""

    def settled(self, lane: Lane, before: int, frames: Sequence[OutgoingFrame]) -> None:
        """Take settled frames; the owner has acknowledged events from ``before`` to ``upto``."""

    def data_of(self, lane: Lane, frame: OutgoingFrame) -> bytes: ...

    def takes(self, refusal: Refusal) -> bool:
        """Return True if refused or unsendable events are dealt with, else the caller has to."""

    def take_cuts(self, cuts: Mapping[int, int]) -> None:
        """Take the last cuts of owners, by partition."""

    def contradicts(self, lane: Lane, position: wire.Position) -> str:
        """Return why a lane cannot resume at its owner's position; empty if it can."""

    def prevents_layout(self, answer: wire.Hello) -> str:
        """Return why events cannot be routed again in the layout of an answer, or ""."""


class Forget:
    """The settlement of an outbox whose events are forgotten."""

    def settled(self, lane: Lane, before: int, frames: Sequence[OutgoingFrame]) -> None: ...

    def data_of(self, lane: Lane, frame: OutgoingFrame) -> bytes:  # noqa: ARG002
        return frame.data

    def takes(self, refusal: Refusal) -> bool:  # noqa: ARG002
        return False

    def take_cuts(self, cuts: Mapping[int, int]) -> None: ...

    def contradicts(self, lane: Lane, position: wire.Position) -> str:  # noqa: ARG002
        return ""

    def prevents_layout(self, answer: wire.Hello) -> str:  # noqa: ARG002
        return ""


_SET_BACK_MS = 3_600_000
"""If a clock is set back by at most so much, frames have the time of the last one until it is past
that. If it was further ahead, nodes have refused the events."""


class LatestTime:
    """The latest time of the events that were sent on ``stream``, or of what was said of them.

    ``field`` is None if events have no time, and empty if they have that of sending.
    ``by_commits``: the time is that of the task that sends when its last commit began, and
    ``coming`` follows with the next commit. ``idle`` says that nothing is waited for where the task
    has its events from. If events have the time of sending, no later time is reported than
    that before which nothing is sent any more, however far ahead the task's own event time is.
    """

    def __init__(self, stream: str, *, by_commits: bool) -> None:
        self.field: str | None = None
        self.value = self.coming = -math.inf
        self._since = self._coming_since = -math.inf
        self.idle = self.coming_idle = False
        self._stream = stream
        self.by_commits = by_commits
        self._rule: TimeRule | None = None
        self._types = 0  # that the rule knows
        self.made_ms = 0  # when the last frame was made

    def take_field(self, headers: wire.Headers) -> None:
        """Learn from a node's answer which field has the time."""
        field = headers.get(wire.TIME)
        known = isinstance(field, str) and (field.isidentifier() or not field)
        self.field = field if known else None

    def note(
        self, types: Mapping[type, EventType | JsonType], events: list[Any], count: int, now_ms: int
    ) -> None:
        """Note the first ``count`` events, which leave; 0 for ``now_ms`` if they do not.

        The node refuses what is not a valid time, or is ahead of now.
        """
        self.made_ms = now_ms or self.made_ms
        if self.field is None or self.by_commits or not now_ms:
            return
        if not self.field:
            self.value = max(self.value, now_ms / 1000)
            return
        if self._rule is None or len(types) != self._types:
            typed = [kind for kind in types.values() if isinstance(kind, EventType)]
            self._types = len(types)
            self._rule = TimeRule(self._stream, self.field, typed) if typed else None
        if self._rule is not None:
            latest = self._rule.latest(events[:count], now_ms / 1000)
            self.value = max(self.value, latest or -math.inf)

    def made_before(self, now_ms: int) -> int:
        """The time of a frame that is made before the last one; 0 for one that does not leave."""
        if now_ms and self.made_ms - now_ms > _SET_BACK_MS:
            self.made_ms = now_ms
        return now_ms and self.made_ms

    def reach(self, time: float, now: float) -> None:
        """Note that no event from now on is older; raises EventError for an invalid time."""
        self.value = max(self.value, checked_watermark(time, now))

    @property
    def reportable(self) -> float:
        return self.value if self.field or not self.by_commits else min(self.value, self._since)

    def reach_at_once(self, time: float) -> None:
        """Report a time without waiting for a commit."""
        self.value, self.idle = max(self.value, time), False

    def nothing_sent_before(self, since: float) -> None:
        self._since = since

    def begin_commit(self, now: float) -> None:
        """Note that a commit begins; what it does not hold is sent later."""
        self._coming_since = now

    def commit_written(self) -> None:
        self._since = self._coming_since
        self.idle = self.coming_idle and self.value <= self.coming
        self.value = max(self.value, self.coming)

    def leave(self) -> None:
        """Report that a program leaves, and may return; not for a task: it goes on elsewhere."""
        self.idle = self.idle or not self.by_commits

    def to_report(self, lanes: Iterable[Lane]) -> list[Lane]:
        if self.field is None:
            return []
        time, idle = self.reportable, self.idle
        return [
            lane
            for lane in lanes
            if (lane.reported_time < time or lane.reported_idle != idle)
            and lane.open
            and (self.by_commits or (not lane.pending and lane.cursor >= len(lane.frames)))
        ]


def checked_watermark(time: float, now: float) -> float:
    """A time that a program has said of its events; raises EventError for an invalid time."""
    try:
        good = 0 < time < math.inf
    except TypeError:  # a text, or a datetime
        good = False
    if not good:
        raise EventError(f"watermark({time!r}) is not a valid time; give seconds since 1970")
    if problem := far_ahead(time, now):
        raise EventError(f"watermark({time!r}): {problem}; give seconds since 1970")
    return time
