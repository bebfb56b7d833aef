"""Streams that are read as server-sent events.

Rules
- The readers of a stream share one subscription, which ends with the last of them. Each gets what
  comes from then on.
- A reader that does not take what has come, up to a number of bytes, is cut off, without a last
  chunk, as it lacks events: its browser connects again. If the stream or the server ends, a reader
  gets what has come, and the last chunk. There are at most ``MOST_READERS``; further ones get 503.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import trio

from s4node.errors import ConnectionRefused, DecodeError, S4Error
from s4node.http.bodies import try_again
from s4node.http.messages import EVENTS, Answer, Request
from s4node.http.sending import AWAY, Reach
from s4node.logger import get_logger
from s4node.net.client.subscription import Subscription

log = get_logger("s4node.http")

MOST_READERS = 500
_MOST_BYTES = 1 << 20
_OPEN_SECONDS = 10.0
_QUIET_SECONDS = 15.0
"""A reader of a quiet stream gets an empty line so often, which shows whether it is there."""

_encode = msgspec.json.Encoder(enc_hook=str).encode


class Reader:
    """The events of a stream that one reader has not been sent."""

    def __init__(self) -> None:
        self.parts: deque[bytes] = deque()
        self.bytes = 0
        self.has_ended = False
        self.news = trio.Event()

    def offer(self, part: bytes) -> None:
        if self.bytes <= _MOST_BYTES:
            self.parts.append(part)
        self.bytes += len(part)
        self.news.set()

    async def next_part(self) -> bytes:
        """All that has come, or an empty line after some time; raises BrokenResourceError if that
        was too much."""
        if not self.news.is_set():
            with trio.move_on_after(_QUIET_SECONDS):
                await self.news.wait()
        if self.bytes > _MOST_BYTES:
            raise trio.BrokenResourceError("the reader is too slow")
        self.news = trio.Event()
        part = b"".join(self.parts) or b":\n\n"
        self.parts.clear()
        self.bytes = 0
        return part


class Reading:
    """The streams at ``reach`` that are read; :meth:`run` it."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._readers: dict[str, set[Reader]] = {}
        self._opening: dict[str, trio.Lock] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    async def subscribe(self, request: Request) -> Answer:
        """The events that an app puts on a stream from now on."""
        name = request.parameters["stream"]
        if sum(map(len, self._readers.values())) >= MOST_READERS:
            return try_again(503, f"{MOST_READERS} readers are connected, and no more may be", 10)
        async with self._opening.setdefault(name, trio.Lock()):
            if name not in self._readers:
                addresses = self._reach.addresses()
                if not addresses or self._nursery is None:
                    return try_again(503, AWAY)
                credentials = self._reach.credentials
                events = Subscription(
                    addresses, name, timeout=_OPEN_SECONDS, credentials=credentials
                )
                try:
                    await self._nursery.start(self._subscribed, events)
                except ConnectionRefused as error:
                    del self._opening[name]
                    if "no answer within" in str(error):
                        return try_again(503, AWAY)
                    return Answer(404, f"{error}\n")
            reader = Reader()
            self._readers[name].add(reader)
        return Answer(200, "", EVENTS, parts=self._parts(name, reader))

    async def _parts(self, name: str, reader: Reader) -> AsyncGenerator[bytes, None]:
        try:
            while reader.parts or not reader.has_ended:
                yield await reader.next_part()
        finally:
            readers = self._readers.get(name, set())
            readers.discard(reader)

    async def _subscribed(self, events: Subscription, task_status: trio.TaskStatus[None]) -> None:
        name = events.stream
        async with events:
            readers = self._readers[name] = set()
            task_status.started()
            assert self._nursery is not None
            try:
                with trio.CancelScope() as scope:
                    self._nursery.start_soon(_watch, readers, scope)
                    while True:
                        await _offer_next(events, readers)
            except S4Error as error:
                log.warning("a stream is read no more", stream=name, reason=str(error))
            finally:
                scope.cancel()
                del self._readers[name]
                for reader in readers:
                    reader.has_ended = True
                    reader.news.set()


async def _watch(readers: set[Reader], scope: trio.CancelScope) -> None:
    """End a subscription when nobody has read it for some time."""
    while not scope.cancel_called:
        await trio.sleep(_QUIET_SECONDS)
        if not readers:
            scope.cancel()


async def _offer_next(events: Subscription, readers: set[Reader]) -> None:
    lines: list[bytes] = []
    await events.fetch()
    while events.buffered:
        try:
            event: Any = events.next_decoded()
        except DecodeError as error:
            lines.append(b": %b\n\n" % str(error).replace("\n", " ").encode())
        else:
            lines.append(b"data: %b\n\n" % _encode(event.attributes))
    part = b"".join(lines)
    for reader in readers:
        reader.offer(part)
