"""The subscribers of a container: programs that read its app's own streams live.

Rules
- A subscription lasts as long as its connection.
- A subscriber never holds up the app: it gets what it has room for, and learns how much it missed.
- Subscribers learn again who runs the app when that changes, because each member shows only the
  events of its own partitions.
"""

from __future__ import annotations

from typing import Any

from s4node import clocks
from s4node.app.app import App
from s4node.app.stream import InputStream, Stream
from s4node.errors import StartpointError
from s4node.events.copies import copies_of
from s4node.net.egress.subscriber import Subscriber
from s4node.net.ingress.connection import Connection
from s4node.net.wire import frame as wire
from s4node.runtime.outputs.refusals import Refusals
from s4node.stages.executors import SUBSCRIBER

_FEED_BYTES = 131_072
_FEED_SECONDS = 0.005
"""The bytes that a subscriber is sent at a time, and the seconds to the next check."""


class Subscribers:
    """The subscribers of ``app`` here.

    ``headers`` go with every answer; their owner changes them. ``queue_size`` events may wait for
    each subscriber. ``refusals`` counts events that cannot be sent.
    """

    def __init__(
        self,
        app: App,
        *,
        node: str,
        incarnation: str,
        headers: wire.Headers,
        queue_size: int,
        refusals: Refusals,
    ) -> None:
        self._app = app
        self._node = node
        self._incarnation = incarnation
        self._headers = headers
        self._queue_size = queue_size
        self._refusals = refusals
        self.subscribers: dict[str, dict[Connection, Subscriber]] = {}
        """By stream; only streams with subscribers."""

    def hello(self, hello: wire.Hello, connection: Connection) -> wire.Hello:
        """Let a peer read one of the app's own streams from now on, or say why not."""
        streams = {s.name: s for s in self._app.streams.values() if not isinstance(s, InputStream)}
        stream = streams.get(hello.stream)
        if stream is None:
            known = ", ".join(streams) or "none"
            reason = (
                f"app {self._app.name!r} puts nothing on a stream {hello.stream!r}; its streams "
                f"are: {known}"
            )
            return self._refusal(hello, reason)
        start = hello.headers.get(wire.START, wire.UPCOMING)
        if start != wire.UPCOMING:
            reason = (
                f"stream {hello.stream!r} of app {self._app.name!r} is live: its events are not "
                f"stored, so it can only be read from now on; leave start out, or read a stream "
                f"of a log"
            )
            return self._refusal(hello, reason, StartpointError.__name__)
        if reason := connection.refusal(hello, 1):
            return self._refusal(hello, reason)
        self.subscribers.setdefault(stream.name, {})[connection] = Subscriber(
            hello, [kind.cls for kind in stream.types], self._node, self._queue_size
        )
        return self._welcome(stream)

    def _refusal(self, hello: wire.Hello, reason: str, fault: str = "") -> wire.Hello:
        headers = {wire.FAULT: fault} if fault else {}
        return wire.Hello(
            self._node, self._incarnation, hello.stream, error=reason, headers=headers
        )

    def _welcome(self, stream: Stream) -> wire.Hello:
        """The answer to a subscriber: the types, and the members that run the app."""
        return wire.Hello(
            self._node,
            self._incarnation,
            stream.name,
            tuple(kind.declaration for kind in stream.types),
            partitions=1,
            headers=dict(self._headers),
        )

    def announce(self) -> None:
        """Send all subscribers the current headers, because partitions have moved."""
        for stream, subscribers in self.subscribers.items():
            welcome = wire.encode_frame(self._welcome(self._app.streams[stream]))
            for connection in subscribers:
                connection.answer(welcome)

    def on_verdict(self, verdict: wire.Verdict, connection: Connection) -> bool:
        """Take the credit of a subscriber; return False if the peer is not a subscriber."""
        subscriber = self.subscribers.get(verdict.stream, {}).get(connection)
        if subscriber is None:
            return False
        subscriber.on_verdict(verdict)
        return True

    def gone(self, connection: Connection) -> None:
        """Forget a peer whose connection has ended."""
        for stream in [s for s, readers in self.subscribers.items() if connection in readers]:
            del self.subscribers[stream][connection]
            if not self.subscribers[stream]:
                del self.subscribers[stream]

    def look_on(self, stream: str, onlooker: Any) -> None:
        """Offer the events of a stream to an observer in this process, too."""
        self.subscribers.setdefault(stream, {})[onlooker] = onlooker

    def show(self, stream: str, events: list[Any]) -> None:
        if stream in self.subscribers:
            shown = copies_of(events)  # a PE that gets them may change them
            for subscriber in self.subscribers[stream].values():
                subscriber.deliver(shown)

    def feed(self, now: float) -> float | None:
        """Send what there is room for; return when to call again, or None."""
        rest = False
        now_ms = int(clocks.wall() * 1000)
        for subscribers in self.subscribers.values():
            for connection, subscriber in subscribers.items():
                if subscriber.waits and not connection.answers:
                    for frame in subscriber.frames(_FEED_BYTES, now_ms):
                        connection.answer(frame)
                    for refusal in subscriber.take_unsendable():
                        self._refusals.report(SUBSCRIBER, refusal)
                rest = rest or subscriber.waits
        return now + _FEED_SECONDS if rest else None
