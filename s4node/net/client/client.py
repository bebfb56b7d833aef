"""The trio client: sends events to a running app.

Rules
- ``send`` waits only while the queue is full, by events or by bytes; otherwise it appends and
  returns. It lets other trio tasks run every few hundred events, or every MiB of them, so not every
  call is a checkpoint.
- When ``flush`` returns, every event sent before it was processed, except refused and shed ones,
  which it returns.
- A lost connection is made again, and events without a verdict are resent, so nothing is lost while
  both processes live. On a durable stream verdicts come with commits, and nothing is lost or
  counted twice when the node dies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import trio

from s4node import tokens
from s4node.errors import (
    ConnectionRefused,
    EventError,
    S4Error,
    StageBroken,
    StageClosed,
    WouldBlock,
    leaves,
)
from s4node.events.event import GenericEvent
from s4node.events.keys import KeySpec
from s4node.events.schema import GENERIC, EventType, TypeDecl
from s4node.logger import get_logger
from s4node.net.certificates.credentials import Credentials
from s4node.net.client.names import addresses_of, id_of
from s4node.net.client.subscription import Subscription
from s4node.net.egress.emitter import Emitter
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.refusal import Refusal
from s4node.net.egress.routes import Routes
from s4node.net.transport import fork_guard
from s4node.net.transport.pair_socket import need_trio
from s4node.net.transport.why_silent import first_answering, why_all_silent
from s4node.net.wire import frame as wire
from s4node.offsets.startpoint import Startpoint

log = get_logger("s4node.net")

_BREATHE = 255
"""Events to take before other tasks run. The number is odd, so that if large and small events
alternate, the last one, which is weighed, is not always of the same kind."""
_BREATHE_BYTES = 1 << 20
"""The same in bytes."""


class Client:
    """A connection to the nodes at ``address``, such as ``tcp://127.0.0.1:12000``.

    ::

        async with Client("tcp://127.0.0.1:12000") as client:
            clicks = await client.stream("clicks")
            await clicks.send(Click("joe"))
            refused = await clicks.flush()

    ``address`` may be a list of nodes of one cluster. Any of them may be down when the program
    starts; a node that answers names the others.

    ``producer`` is this producer's id; by default it is random. If a program sends to a durable
    stream and may die, give it an id that it keeps for ever and no other program has: then it
    resumes where it stopped (see :meth:`stream`). ``timeout`` bounds connecting and opening a
    stream, and the wait for a node that is gone, in seconds: with the default it is longer than a
    failover takes. ``queue_size`` events may wait to be sent; together with unacknowledged
    events they may take about 64 MiB for each stream. Leaving the block flushes first. Raises
    ConfigError for an id that begins with ``~`` or has more than 1,024 bytes; streams of a log
    refuse an id that ends in a tab and a number.

    ``credentials`` are for addresses ``tls+tcp://host:port``. The producer's id is then the name in
    the certificate, or begins with it and a ``/``, also if it is random.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        producer: str = "",
        timeout: float = 30.0,
        queue_size: int = 32_768,
        credentials: Credentials | None = None,
    ) -> None:
        self.addresses = addresses_of(address, credentials)
        self.producer = id_of(producer, credentials)
        self._own_id = bool(producer)
        self.credentials = credentials
        self.timeout = timeout
        self.queue_size = queue_size
        self._incarnation = tokens.fresh(6)
        self._streams: dict[str, ClientStream] = {}
        self._opening: dict[str, trio.Lock] = {}
        self._emitter = Emitter(credentials=credentials, queue_size=queue_size, on_news=self._heard)
        self._news = trio.lowlevel.ParkingLot()
        self._nursery_manager: Any = None
        self._nursery: trio.Nursery | None = None
        self._abandoned = False

    async def __aenter__(self) -> Client:
        need_trio()
        fork_guard.use()
        self._nursery_manager = trio.open_nursery()
        nursery = await self._nursery_manager.__aenter__()
        try:
            await nursery.start(self._emitter.run)
        except BaseException:
            nursery.cancel_scope.cancel()
            await self._nursery_manager.__aexit__(None, None, None)
            raise
        self._nursery = nursery
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        assert self._nursery is not None
        cancelled = value is not None and any(isinstance(e, trio.Cancelled) for e in leaves(value))
        try:
            if kind is None and not self._abandoned:
                warn_of(await self._last_flush())
                self._emitter.finish()
                with trio.move_on_after(1):
                    await self._emitter.wait_quiet()
        finally:
            self._nursery.cancel_scope.cancel()
            self._nursery = None
            # the block's own error is raised as it is, not inside the nursery's group
            ours = (kind, value, traceback) if cancelled else (None, None, None)
            handled = await self._nursery_manager.__aexit__(*ours)
        return bool(handled) and cancelled

    def abandon(self) -> None:
        """Leave the block without flushing; unacknowledged events are given up."""
        self._abandoned = True

    async def stream(
        self,
        name: str,
        *,
        key: KeySpec | None = None,
        types: Sequence[type] | type = (),
        again: bool = False,
    ) -> ClientStream:
        """Open the input stream ``name`` of the app; further calls return the same object.

        If the input's key is attributes, events are routed by those. If it has no key, or a
        KeyFinder with the same name as ``key``, events are routed by ``key``. Otherwise all events
        go to one partition, whose node sends them on; a warning says so.

        ``types`` may be left out: the node is told each event type with its first event. Raises
        ConnectionRefused if the app has no such stream or no node answers in time.

        With ``again``, and the ``producer`` id of an earlier life, the program sends all events
        that it has ever sent on this durable stream, from the first one and in the same order.
        Committed events are not sent, so each event counts once, however often the program dies.
        If no earlier life is known, as at the first start, all events are new, and a warning says
        so. Without ``again``, all events are new; :meth:`ClientStream.resume_at` tells how many
        came before.
        """
        fork_guard.check()
        if self._nursery is None:
            raise StageClosed("the client is not open; use it in 'async with'")
        async with self._opening.setdefault(name, trio.Lock()):
            if name not in self._streams:
                self._streams[name] = await self._open(name, key, types, again)
            return self._streams[name]

    async def _open(
        self, name: str, key: KeySpec | None, types: Sequence[type] | type, again: bool
    ) -> ClientStream:
        types = (types,) if isinstance(types, type) else tuple(types)
        outbox = Outbox(name, self.producer, key=key, types=types, returns=self._own_id)
        routes = Routes(outbox, self._incarnation, own_id=self._own_id, again=again)
        stream = ClientStream(self, routes, self._emitter, self._news)
        self._emitter.add(routes)
        try:
            with trio.move_on_after(self.timeout):
                await self._reach()
                while not routes.opened and not outbox.error:
                    await self._news.park()
        finally:
            stranger = self._emitter.stranger
            if outbox.error or not routes.opened:
                self._emitter.remove(routes)
        if outbox.error or not routes.opened:
            reason = outbox.error or await self._unanswered(stranger)
            raise ConnectionRefused(f"stream {name!r} at {', '.join(self.addresses)}: {reason}")
        return stream

    async def _reach(self) -> None:
        """Dial one node, which names the others.

        Only one is dialled, because two addresses may belong to the same node, which refuses a
        second connection of a producer.
        """
        if self._emitter.connected:
            return
        several = len(self.addresses) > 1
        chosen = self.addresses[0]
        if several:
            chosen = await first_answering(self.addresses, self.credentials)
        self._emitter.seeds([chosen])

    async def _unanswered(self, stranger: str) -> str:
        within = f"no answer within {self.timeout:g} s"
        why = await why_all_silent(self.addresses, stranger, self.credentials)
        if why:
            return f"{within}; {why}"
        return (
            f"{within}, though the node is there. The app may be failing: s4 status and the node's "
            f"log say why. Or it is starting, or has yet to commit events of an earlier life of "
            f"this producer: try again"
        )

    def subscribe(
        self,
        stream: str,
        *,
        types: Sequence[type] | type = (),
        start: Startpoint | Mapping[int, int] | None = None,
        queue_size: int = 10_000,
    ) -> Subscription:
        """Read the events that the app puts on ``stream`` from now on::

            async with client.subscribe("results", types=Result) as results:
                async for result in results:
                    ...

        Events of other classes than ``types`` come as GenericEvents. Entering the block raises
        ConnectionRefused if the app has no such stream. A slow reader misses events; the
        subscription's ``missed`` counts them.

        A stream of the node's log can be read from any ``start``: a startpoint such as
        ``Oldest()``, or a dict of offsets by partition, such as an earlier subscription's
        ``positions``. No event of it is missed; if retention has deleted the next event, iterating
        raises InputLost. A live stream with another start than ``Upcoming()`` raises
        StartpointError.
        """
        types = (types,) if isinstance(types, type) else tuple(types)
        return Subscription(
            self.addresses,
            stream,
            types,
            start=start,
            timeout=self.timeout,
            queue_size=queue_size,
            credentials=self.credentials,
        )

    async def flush(self) -> list[Refusal]:
        """Wait until every event has its verdict; return the refused and shed ones.

        Raises the error of a stream's ``flush``, but only after the other streams are done.
        """
        return await self._flush(list(self._streams.values()))

    async def _last_flush(self) -> list[Refusal]:
        """As ``flush``, at the end of the block: an error that was raised is not raised again.

        Unacknowledged events of such a stream are logged.
        """
        open_streams: list[ClientStream] = []
        refusals: list[Refusal] = []
        for stream in self._streams.values():
            if not stream._told:
                open_streams.append(stream)
                continue
            refusals += stream.take_refusals()
            if stream.counts["pending"]:
                log.warning(
                    "events stay unacknowledged",
                    stream=stream.name,
                    events=stream.counts["pending"],
                    reason=stream._told,
                )
        return refusals + await self._flush(open_streams)

    async def _flush(self, streams: list[ClientStream]) -> list[Refusal]:
        refusals: list[Refusal] = []
        failure: S4Error | None = None
        for stream in streams:
            told = stream._told
            try:
                refusals += await stream.flush()
            except S4Error as error:
                if failure is not None:
                    stream._told = told
                failure = failure or error
        if failure is not None:
            warn_of(refusals)
            raise failure
        return refusals

    def _heard(self) -> None:
        self._news.unpark_all()
        for stream in self._streams.values():
            stream._tell_unknown()


def warn_of(refusals: list[Refusal]) -> None:
    """Log refusals that were not collected before the client was left."""
    if refusals:
        events = sum(refusal.count for refusal in refusals)
        log.warning(
            "events were not processed; call flush() to see which",
            events=events,
            reason=refusals[0].reason,
        )


class ClientStream:
    """One stream of a client. Get it from :meth:`Client.stream`."""

    def __init__(
        self, client: Client, routes: Routes, emitter: Emitter, news: trio.lowlevel.ParkingLot
    ) -> None:
        self._client = client
        self._routes = routes
        self._outbox = outbox = routes.outbox
        self._emitter = emitter
        self._news = news
        self._queue_size = client.queue_size
        self._put = outbox.put
        self._known = outbox.types.kinds
        self._told = ""  # the error of the stream, once it was raised
        self._told_new = False
        self._unbreathed = 0
        self._breath = 1  # the first event is weighed

    @property
    def name(self) -> str:
        """The stream's name."""
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

    async def send(self, event: Any) -> None:
        """Send one event; wait while the queue is full, by events or by bytes.

        If the call is cancelled while it waits, the event has been taken all the same.
        """
        cls = event.__class__
        if cls not in self._known or cls is GenericEvent:
            self._admit((event,))
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
        batch = events if isinstance(events, list) else list(events)
        self._admit(batch)
        self._outbox.extend(batch)
        self._unbreathed += len(batch)
        self._emitter.wake()
        if self._unbreathed >= self._breath:
            await self._breathe()

    def read_as(self, type_name: str = "") -> None:
        """Send JSON objects as ``bytes``, which the node reads as its type of this name.

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
                self._outbox.declare_json(kind)
                return
        raise EventError(f"stream {self.name!r} takes {', '.join(names)}, not {type_name!r}")

    def send_nowait(self, event: Any) -> None:
        """Send one event, or raise WouldBlock if the queue is full."""
        if self.pressure >= 1:
            raise WouldBlock(
                f"stream {self.name!r} is full: {self._outbox.pending} events wait, and with the "
                f"unacknowledged ones take about {self._outbox.unsettled_bytes} bytes"
            )
        self._admit((event,))
        self._put(event)
        self._emitter.wake()

    def take_refusals(self) -> list[Refusal]:
        """The events refused or shed since the last call, without waiting."""
        return self._outbox.refusals.drain()

    def extend_nowait(self, events: list[Any]) -> None:
        """Take events even if the queue is full; for callers with their own bound."""
        self._admit(events)
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
            stuck = self._still_stuck(stuck)
        self._check_open()
        return outbox.refusals.drain() if outbox.refusals.waiting else []

    def watermark(self, time: float) -> None:
        """Say that no event sent from now on is older than ``time`` (seconds since 1970).

        More than the lateness of the stream, that is. Without this, the nodes are told the latest
        time of the events sent; with it, a quiet program need not be waited for.
        """
        self._check_open()
        self._outbox.latest.reach(time)
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
        if since and now - since >= self._client.timeout:
            raise self._broken()
        return since

    def _broken(self) -> StageBroken:
        """The error if events have had no verdict for the client's timeout."""
        outbox, seconds = self._outbox, f"{self._client.timeout:g} s"
        left = f"{outbox.unsettled} events have no verdict"
        closed = ", ".join(map(str, self._routes.closed))
        stranger = self._emitter.stranger
        if stranger or not (closed and self._emitter.connected):
            what = f"; {stranger}" if stranger else ""
            places = ", ".join(self._client.addresses)
            return StageBroken(
                f"stream {self.name!r}: no answer from {places} for {seconds}{what}; {left}",
                "Start the node and flush again",
            )
        return StageBroken(
            f"stream {self.name!r}: a node answers, but no node takes partition {closed} for "
            f"{seconds}; {left}. The app may be failing: s4 status and the node's log say why. Or "
            f"it is starting, or has yet to commit events of an earlier life of this producer",
            "Flush again when it runs",
        )

    def _tell_unknown(self) -> None:
        """Log that nodes do not know earlier lives of this producer, and other warnings."""
        if self._routes.all_is_new and not self._told_new:
            self._told_new = True
            log.warning(
                "no earlier life of this producer is known: all its events are new",
                stream=self.name,
                producer=self._client.producer,
            )
        while self._routes.warnings:
            what, facts = self._routes.warnings.popleft()
            log.warning(what, stream=self.name, producer=self._client.producer, **facts)

    def _admit(self, events: Sequence[Any]) -> None:
        """Declare new event classes and freeze GenericEvents; raises for anything but events."""
        self._check_open()
        for cls in set(map(type, events)):
            if cls not in self._known:
                self._outbox.types.declare(cls)
            if cls is GenericEvent:
                for event in events:
                    if event.__class__ is GenericEvent:
                        event.freeze()

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
            self._told = self._outbox.error
            raise EventError(f"stream {self.name!r}: {self._outbox.error}")
        if self._client._nursery is None:
            raise StageClosed(f"stream {self.name!r}: the client is closed")
