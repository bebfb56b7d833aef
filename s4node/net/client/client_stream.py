"""A stream of the trio client: takes events, and returns what became of them.

Rules
- ``send`` waits only while the queue is full, by events or by bytes; otherwise it appends and
  returns. It lets other trio tasks run every few hundred events, or every MiB of them, so not every
  call is a checkpoint.
- When ``flush`` returns, every event sent before it was processed, except refused and shed ones,
  which it returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import trio

from s4node import clocks
from s4node.errors import EventError, StageBroken, StageClosed, WouldBlock
from s4node.events.copies import copies_of
from s4node.events.event import GenericEvent
from s4node.events.schema import GENERIC, EventType
from s4node.events.type_declaration import TypeDecl
from s4node.logger import get_logger
from s4node.net.egress.emitter import Emitter
from s4node.net.egress.refusal import Refusal
from s4node.net.egress.routes import Routes
from s4node.net.transport import fork_guard
from s4node.net.wire import frame as wire

log = get_logger("s4node.net")

_BREATHE = 255
"""Events to take before other tasks run. The number is odd, so that if large and small events
alternate, the last one, which is weighed, is not always of the same kind."""
_BREATHE_BYTES = 1 << 20
"""The same in bytes."""


class ClientStream:
    """One stream of a client. Get it from :meth:`s4node.Client.stream`.

    ``raised`` is the error of the stream, once it was raised.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        producer: str,
        routes: Routes,
        emitter: Emitter,
        news: trio.lowlevel.ParkingLot,
        *,
        timeout: float,
        queue_size: int,
    ) -> None:
        self.closed = False
        self._addresses = addresses
        self._producer = producer
        self._timeout = timeout
        self._routes = routes
        self._outbox = outbox = routes.outbox
        self._emitter = emitter
        self._news = news
        self._queue_size = queue_size
        self._put = outbox.put
        self._known, self._changing = outbox.types.kinds, outbox.types.changing
        self.raised = ""  # the error of the stream, once it was raised
        self.warnings = routes.warnings
        self._unbreathed = 0
        self._breath = 1  # the first event is weighed

    @property
    def name(self) -> str:
        return self._outbox.stream

    @property
    def partitions(self) -> int:
        """The number of partitions of the app."""
        return len(self._outbox.lanes)

    @property
    def types(self) -> tuple[TypeDecl, ...]:
        """The event types that the app accepts on this stream."""
        return self._outbox.answer.types if self._outbox.answer else ()

    @property
    def pressure(self) -> float:
        """How full the queue is; ``send`` waits from 1 on."""
        outbox = self._outbox
        return max(outbox.pending / self._queue_size, outbox.unsettled_bytes / wire.WINDOW_BYTES)

    @property
    def is_durable(self) -> bool:
        """Return True if an acknowledged event survives the node, as on a durable stream or a
        log's."""
        return self._routes.durable

    @property
    def is_failed(self) -> bool:
        """Return True if nothing can be sent any more."""
        return self.closed or bool(self._outbox.error)

    @property
    def refused_as(self) -> str:
        """The kind of a node's refusal that the wire protocol has, or empty."""
        return self._routes.refused_as

    @property
    def unsent_events(self) -> int:
        """The number of events that were never sent."""
        return self._outbox.pending

    @property
    def breath(self) -> int:
        """The number of events that may be taken before the next check for room."""
        weight = self._outbox.weight or _BREATHE_BYTES
        return _BREATHE if weight * _BREATHE <= _BREATHE_BYTES else int(_BREATHE_BYTES / weight) | 1

    @property
    def counts(self) -> dict[str, int]:
        """Counts of events: admitted, shed, refused by the node, unsent (refused here), pending."""
        outbox = self._outbox
        return {"admitted": outbox.admitted, **outbox.refusals.counts, "pending": outbox.unsettled}

    async def resume_at(self, partition: int = 0) -> int:
        """Return the number of committed events of this producer's earlier lives in a partition.

        For durable streams; 0 if no earlier life is known. Raises EventError if the app has got
        another number of partitions since, for then no partition has the first events.
        """
        if self._outbox.counted_before:
            raise EventError(
                f"stream {self.name!r}: {self._outbox.counted_before} events of earlier lives were "
                f"counted in another number of partitions; send all again, with again=True"
            )
        lane = self._outbox.lanes[partition]
        while not lane.open:
            self._check_open()
            await self._news.park()
        return lane.known

    async def wait_open(self) -> None:
        """Wait until the owners of all partitions take events. Raises EventError if one refuses."""
        while not all(lane.open for lane in self._outbox.lanes):
            self._check_open()
            await self._news.park()
        self._check_open()

    async def send(self, event: Any) -> None:
        """Send one event; wait while the queue is full, by events or by bytes.

        If the call is cancelled while it waits, the event has been taken all the same.
        """
        cls = event.__class__
        if cls not in self._known or cls in self._changing:
            (event,) = self._admit((event,))
        self._put(event)
        self._unbreathed += 1
        if not self._emitter.awake:
            self._emitter.send_soon()
        if self._unbreathed >= self._breath:
            await self._breathe()

    async def send_many(self, events: Iterable[Any]) -> None:
        """Send events in order; as ``send``, but one call for all of them.

        All of the events are taken, or none: none if one is not an event that the stream carries
        (EventError), if ``events`` itself raises, or if the stream has failed. An event that the
        app refuses or sheds later does not affect the others; ``flush`` returns it. If the call is
        cancelled while it waits for room, all have been taken.
        """
        await self.send_owned(self._admit(events if isinstance(events, list) else list(events)))

    async def send_owned(self, batch: Sequence[Any]) -> None:
        """As ``send_many``, of admitted events."""
        self._outbox.extend(batch)
        self._unbreathed += len(batch)
        self._emitter.wake()
        if self._unbreathed >= self._breath:
            await self._breathe()

    def read_as(self, type_name: str = "", *, by_key: bool = False) -> None:
        """Send JSON objects as ``bytes``, which the node reads as its type of this name.

        With ``by_key`` they go to the owners of their keys at once; otherwise one node sends them
        on, which costs this program less.

        Without a name, the stream's only type is used. A stream of a log also accepts
        GenericEvents, and uses them if it has no other type. Raises EventError if there is no such
        type.
        """
        types, answer = self.types, self._outbox.answer
        if answer is not None and answer.headers.get(wire.LOG):
            generic = EventType(GenericEvent).declaration
            if type_name == GENERIC or not types:
                types = (*types, generic)
        names = [kind.name for kind in types]
        if not type_name and len(names) != 1:
            raise EventError(f"stream {self.name!r} takes {', '.join(names)}; name one of them")
        for kind in types:
            if kind.name == (type_name or names[0]):
                self._outbox.declare_json(kind, by_key=by_key)
                return
        raise EventError(f"stream {self.name!r} takes {', '.join(names)}, not {type_name!r}")

    def send_nowait(self, event: Any) -> None:
        """Send one event, or raise WouldBlock if the queue is full."""
        if self.pressure >= 1:
            raise WouldBlock(
                f"stream {self.name!r} is full: {self._outbox.pending} events wait, and with the "
                f"unacknowledged ones take about {self._outbox.unsettled_bytes} bytes"
            )
        (event,) = self._admit((event,))
        self._put(event)
        self._emitter.wake()

    def take_refusals(self) -> list[Refusal]:
        """The events refused or shed since the last call, without waiting."""
        return self._outbox.refusals.drain()

    def extend_nowait(self, events: list[Any]) -> None:
        """Take admitted events even if the queue is full; for callers with their own bound."""
        self._check_open()
        self._outbox.extend(events)
        self._emitter.wake()

    async def flush(self) -> list[Refusal]:
        """Wait until every event sent so far has its verdict; return the refused and shed ones.

        On a durable stream, this waits until all events are committed. Raises EventError if the
        node refused the stream meanwhile, and StageBroken if it was away for longer than the
        client's ``timeout``; unacknowledged events are then still kept.
        """
        self._check_open()
        outbox = self._outbox
        await trio.lowlevel.checkpoint()
        self._emitter.hurry()
        asked_last = not outbox.pending
        stuck = 0.0
        while outbox.unsettled and not outbox.error:
            with trio.move_on_after(1) as second:
                await self._news.park()
            if second.cancelled_caught or not (asked_last or outbox.pending):
                asked_last = not outbox.pending
                self._emitter.hurry()
            if outbox.unsettled:
                stuck = self._still_stuck(stuck)
        self._check_open()
        return outbox.refusals.drain() if outbox.refusals.waiting else []

    def watermark(self, time: float) -> None:
        """Say that no event sent from now on is older than ``time`` (seconds since 1970).

        More than the lateness of the stream, that is. Without this, the nodes get the latest
        time of the events sent; with it, a quiet program need not be waited for. Raises EventError
        for an invalid time, or one that is more than an hour ahead of the clock.
        """
        self._check_open()
        self._outbox.latest.reach(time, clocks.wall())
        self._emitter.wake()

    def end(self) -> None:
        """Have the nodes forget this producer's id when the client is left.

        A program that starts with the same id later begins at 0. A producer with a random id is
        forgotten anyway.
        """
        self._routes.over = True

    async def wait_room(self) -> None:
        """Wait while the queue is full, as ``send`` does, but not for ever.

        Raises StageBroken, as ``flush``, if the node was away for longer than ``timeout``.
        """
        self._emitter.wake()
        await trio.lowlevel.checkpoint()
        stuck = 0.0
        while self.pressure >= 1:
            self._check_open()
            with trio.move_on_after(1):
                await self._news.park()
            stuck = self._still_stuck(stuck)

    def _still_stuck(self, since: float) -> float:
        """Return the time since which events wait for unreachable partitions; 0 if none do."""
        now = trio.current_time()
        since = (since or now) if self._routes.stuck else 0.0
        if since and now - since >= self._timeout:
            raise self._broken()
        return since

    def _broken(self) -> StageBroken:
        """The error if events have had no verdict for the client's timeout."""
        outbox, seconds = self._outbox, f"{self._timeout:g} s"
        left = f"{outbox.unsettled} events have no verdict"
        closed = ", ".join(map(str, self._routes.closed))
        stranger, drain = self._emitter.stranger, self._emitter.last_drain
        if stranger or not (closed and self._emitter.connected):
            why = stranger or drain
            what = f"; {why}" if why else ""
            places = ", ".join(self._addresses)
            return StageBroken(
                f"stream {self.name!r}: no answer from {places} for {seconds}{what}; {left}",
                "Flush again when a node answers",
            )
        what = (
            "The app may be failing: s4 status and the node's log say why. Or it is starting, or "
            "has yet to commit events of an earlier life of this producer"
        )
        if drain:
            what = f"The node at {drain}"
        elif unreached := ", ".join(self._emitter.unreached):
            what = (
                f"Nothing answers at {unreached}, where they are to go: if that node has ended, "
                f"another takes over; if it runs, set its s4.listener.advertise to a host, and a "
                f"port, at which this machine reaches it"
            )
        return StageBroken(
            f"stream {self.name!r}: a node answers, but no node takes partition {closed} for "
            f"{seconds}; {left}. {what}",
            "Flush again when it runs",
        )

    def log_warnings(self) -> None:
        while self.warnings:
            what, facts = self.warnings.popleft()
            log.warning(what, stream=self.name, producer=self._producer, **facts)

    def _admit(self, events: Sequence[Any]) -> Sequence[Any]:
        """Declare new event classes; return the events, with copies of those that can change.

        Raises EventError for anything but events.
        """
        self._check_open()
        for cls in set(map(type, events)):
            if cls not in self._known:
                self._outbox.types.declare(cls)
        return copies_of(events)

    async def _breathe(self) -> None:
        """Let other tasks run, and wait for room."""
        self._unbreathed = 0
        self._emitter.wake()
        await trio.lowlevel.checkpoint()
        while self.pressure >= 1:
            self._check_open()
            await self._news.park()
        self._breath = self.breath

    def _check_open(self) -> None:
        if fork_guard.forked:
            fork_guard.check()
        if self._outbox.error:
            self.raised = self._outbox.error
            raise EventError(f"stream {self.name!r}: {self._outbox.error}")
        if self.closed:
            raise StageClosed(f"stream {self.name!r}: the client is closed")
