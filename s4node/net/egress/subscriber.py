"""A subscriber, seen from the node: it reads what the app puts on a stream. Pure.

Rules
- It gets what comes from its hello on. The connection is the subscription: nothing is kept for
  somebody who is gone.
- A subscriber never holds the app up. What finds its queue full is missed, and so is what no frame
  can hold; it is told how much.
- It gives credit as a node does, so a slow one costs its queue and no more.
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
        self._told = 0
        self._queue_size = queue_size
        self._outbox = Outbox(hello.stream, node, types=types)
        self._outbox.open_lanes(1, "")
        routes = Routes(self._outbox)
        self._route = routes.to(hello.peer)
        routes.assign([hello.peer], 0)
        self._route.hello()  # the node's answer says the same
        self._route.opened = True
        for position in hello.positions[:1]:
            self._outbox.lanes[0].reopen(position)  # it keeps nothing yet

    def offer(self, events: Sequence[Any]) -> None:
        """The app has put these on the stream."""
        room = max(0, self._queue_size - self._outbox.pending)
        if self._outbox.pending_bytes >= wire.WINDOW_BYTES:
            room = 0
        taken = events if room >= len(events) else events[:room]
        for cls in set(map(type, taken)):
            self._outbox.types.declare(cls)
        self._outbox.extend_lane(0, taken)
        self._no_room += len(events) - len(taken)

    def on_verdict(self, verdict: wire.Verdict) -> None:
        """It has read on, and gives credit."""
        self._route.on_verdict(verdict)

    @property
    def missed(self) -> int:
        """Events that it has not got and never will: no room for them, or no frame."""
        return self._no_room + self._outbox.refusals.counts["unsent"]

    def take_unsendable(self) -> list[Refusal]:
        """What no frame could hold since the last call, and why."""
        return [each for each in self._outbox.refusals.take() if each.unsent]

    @property
    def waits(self) -> bool:
        """Whether there is something to send now."""
        return bool(self._route.sendable.events) or self.missed != self._told

    def frames(self, budget: int, now_ms: int) -> list[bytes]:
        """What may leave now."""
        out = self._route.frames(budget, now_ms)
        if self.missed != self._told:
            self._told = self.missed
            headers = {wire.MISSED: self.missed}
            out.append(wire.encode_frame(wire.Idle(self.stream, "", headers=headers)))
        return out
