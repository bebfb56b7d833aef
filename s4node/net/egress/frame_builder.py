"""The frame builder: encodes as many of a lane's events as fit into a frame. Pure.

Rules
- A frame stays within the limits of events and bytes. After large events fewer are tried, and then
  gradually more.
- A frame that is longer than the node's limit is not sent, because the node would refuse it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from s4node.errors import EventError
from s4node.net.egress.lane import Lane
from s4node.net.egress.stream_types import StreamTypes
from s4node.net.wire import frame as wire
from s4node.net.wire.body import encoded


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
