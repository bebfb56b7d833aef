"""A subscriber in its node: it reads the events that the app puts on a stream. Pure.

Rules
- A subscriber gets events from its hello on. The connection is the subscription: nothing is kept
  for a subscriber that has gone.
- A subscriber never holds up the app. It misses events when its queue is full, and events that no
  frame can hold; the number is reported to it.
- It gives credit as a node does, so a slow subscriber costs only its queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from s4node.net.egress.outbox import Outbox
from s4node.net.egress.refusal import Refusal
from s4node.net.egress.routes import Routes
from s4node.net.wire import frame as wire


class Subscriber:
    """One reader of ``stream``; ``queue_size`` events may wait for it, and ``WINDOW_BYTES``."""

    def __init__(self, hello: wire.Hello, types: Sequence[type], node: str, queue_size: int):
        self.stream = hello.stream
        self._no_room = 0
        self._reported = 0
        self._queue_size = queue_size
        self._outbox = Outbox(hello.stream, node, types=types, checked=True)
        self._outbox.open_lanes(1, "")
        routes = Routes(self._outbox)
        self._route = routes.to(hello.peer)
        routes.assign([hello.peer], 0)
        self._route.hello_frame()  # the node's answer says the same
        self._route.opened = True
        for position in hello.positions[:1]:
            self._outbox.lanes[0].reopen(position)  # the lane is empty

    def deliver(self, events: Sequence[Any]) -> None:
        """Queue events that the app has put on the stream, as far as there is room."""
        room = max(0, self._queue_size - self._outbox.pending)
        if self._outbox.pending_bytes >= wire.WINDOW_BYTES:
            room = 0
        taken = events if room >= len(events) else events[:room]
        for cls in set(map(type, taken)):
            self._outbox.types.declare(cls)
        self._outbox.extend_lane(0, taken)
        self._no_room += len(events) - len(taken)

    def on_verdict(self, verdict: wire.Verdict) -> None:
        self._route.on_verdict(verdict)

    @property
    def missed(self) -> int:
        """The number of events that the subscriber will never get."""
        return self._no_room + self._outbox.refusals.counts["unsent"]

    def take_unsendable(self) -> list[Refusal]:
        """The events since the last call that no frame could hold, and why."""
        return [each for each in self._outbox.refusals.drain() if each.unsent]

    @property
    def waits(self) -> bool:
        """True if there is something to send now."""
        return bool(self._route.sendable.events) or self.missed != self._reported

    def frames(self, budget: int, now_ms: int) -> list[bytes]:
        out = self._route.frames(budget, now_ms)
        if self.missed != self._reported:
            self._reported = self.missed
            headers = {wire.MISSED: self.missed}
            out.append(wire.encode_frame(wire.Idle(self.stream, "", headers=headers)))
        return out
