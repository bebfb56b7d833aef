"""The trio client: sends events to a running app.

Rules
- A client has a stream for each input that it sends to; ``client_stream`` has the rules of sending.
- A lost connection is made again, and events without a verdict are resent, so nothing is lost while
  both processes live. On a durable stream verdicts come with commits, and nothing is lost or
  counted twice when the node dies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any

import trio

from s4node import tokens
from s4node.errors import ConfigError, ConnectionRefused, S4Error, StageClosed, leaves
from s4node.events.keys import KeySpec
from s4node.logger import get_logger
from s4node.net.certificates.credentials import Credentials, is_tls, missing
from s4node.net.client.client_stream import ClientStream
from s4node.net.client.subscription import Subscription
from s4node.net.egress.emitter import Emitter
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.refusal import Refusal
from s4node.net.egress.routes import Routes
from s4node.net.transport import fork_guard
from s4node.net.transport.network import first_answering, why_all_silent
from s4node.net.transport.pair_socket import host_and_port, need_trio
from s4node.net.wire import frame as wire
from s4node.offsets.startpoint import Startpoint

log = get_logger("s4node.net")


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
    events they may take about 64 MiB for each stream. Leaving the block flushes first, unless an
    error leaves it; then a warning says how many events have no verdict. Raises
    ConfigError for an id that begins with ``~`` or has more than 1,024 bytes; streams of a log
    refuse an id that ends in a tab and a number.

    A ``batch`` is for a ``producer`` whose id begins with ``=``: the hash of all the events that it
    ever sends. Nodes refuse other events under that id, which they remember for a day.

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
        batch: str = "",
    ) -> None:
        self.addresses = _addresses_of(address, credentials)
        self.producer = _id_of(producer, credentials)
        self._own_id = bool(producer)
        self.credentials = credentials
        self.timeout = timeout
        self.queue_size = queue_size
        self._incarnation = batch or tokens.fresh(6)
        self._streams: dict[str, ClientStream] = {}
        self._opening: dict[str, trio.Lock] = {}
        self._emitter = Emitter(credentials=credentials, queue_size=queue_size, owner=self)
        self._news = trio.lowlevel.ParkingLot()
        self._nursery_manager: Any = None
        self._nursery: trio.Nursery | None = None
        self._abandoned = ""
        self._unsent: Mapping[str, int] = {}

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
        why = self._abandoned or why_given_up(value)
        try:
            if not why:
                why = "the block was left while it waited for verdicts"
                warn_of(await self._last_flush())
                why = ""
                with trio.move_on_after(1):
                    await self._emitter.finish()
                    await self._emitter.wait_taken()
        finally:
            known = cancelled or isinstance(value, S4Error)  # by the program, or named by the error
            for stream in self._streams.values() if why and not known else ():
                if not stream.raised:
                    _unacknowledged(stream, why, self._unsent.get(stream.name, 0))
            self._nursery.cancel_scope.cancel()
            self._nursery = None
            for stream in self._streams.values():
                stream.closed = True
            # the block's own error is raised as it is, not inside the nursery's group
            ours = (kind, value, traceback) if cancelled else (None, None, None)
            handled = await self._nursery_manager.__aexit__(*ours)
        return bool(handled) and cancelled

    def abandon(
        self,
        why: str = "the client was abandoned",
        unsent: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Leave the block without flushing; unacknowledged events, and so many ``unsent`` ones of
        each stream, are given up."""
        self._abandoned, self._unsent = why, unsent

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

        ``types`` may be left out: the node gets each event type with its first event. Raises
        ConnectionRefused if the app has no such stream or no node answers in time.

        With ``again``, and the ``producer`` id of an earlier life, the program sends all events
        that it has ever sent on this durable stream, from the first one and in the same order.
        Committed events are not sent, so each event counts once, however often the program dies.
        If no earlier life is known, as at the first start, all events are new, and a warning says
        so. Without ``again``, all events are new; :meth:`ClientStream.resume_at` returns how many
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
        stream = ClientStream(
            self.addresses,
            self.producer,
            routes,
            self._emitter,
            self._news,
            timeout=self.timeout,
            queue_size=self.queue_size,
        )
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
            message = f"stream {name!r} at {', '.join(self.addresses)}: {reason}"
            raise ConnectionRefused(message, routes.refused_as)
        return stream

    async def _reach(self) -> None:
        """Dial one node, which names the others.

        Only one is dialled, because two addresses may belong to the same node, which refuses a
        second connection of a producer.
        """
        if not self._emitter.connected:
            self._emitter.seeds([await first_answering(self.addresses, self.credentials)])

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
            if not stream.raised:
                open_streams.append(stream)
                continue
            refusals += stream.take_refusals()
            _unacknowledged(stream, stream.raised)
        return refusals + await self._flush(open_streams)

    async def _flush(self, streams: list[ClientStream]) -> list[Refusal]:
        refusals: list[Refusal] = []
        failure: S4Error | None = None
        for stream in streams:
            raised = stream.raised
            try:
                refusals += await stream.flush()
            except S4Error as error:
                if failure is not None:
                    stream.raised = raised
                failure = failure or error
        if failure is not None:
            warn_of(refusals)
            raise failure
        return refusals

    def take_news(self) -> None:
        """Go on after news of a node; its connections call this."""
        self._news.unpark_all()
        for stream in self._streams.values():
            if stream.warnings:
                stream.log_warnings()


def why_given_up(error: BaseException | None) -> str:
    """The reason why a block that was left gives up events without a verdict; or empty.

    ``sys.exit(0)`` and a generator that is closed end a program as its last line does.
    """
    for leaf in leaves(error) if error is not None else ():
        if not isinstance(leaf, GeneratorExit) and not (
            isinstance(leaf, SystemExit) and not leaf.code
        ):
            return f"the block was left by {type(leaf).__name__}"
    return ""


def _unacknowledged(stream: ClientStream, why: str, unsent: int = 0) -> None:
    if events := stream.counts["pending"] + unsent:
        log.warning("events stay unacknowledged", stream=stream.name, events=events, reason=why)


def warn_of(refusals: list[Refusal]) -> None:
    """Log refusals that were not collected before the client was left."""
    if refusals:
        events = sum(refusal.count for refusal in refusals)
        log.warning(
            "events were not processed; call flush() to see which",
            events=events,
            reason=refusals[0].reason,
        )


def _addresses_of(address: str | Sequence[str], credentials: Credentials | None) -> tuple[str, ...]:
    """The address or addresses as a tuple; raises ConfigError for a bad one, none, or one that
    needs credentials."""
    several = isinstance(address, Iterable) and not isinstance(address, str)
    found: tuple[Any, ...] = tuple(address) if several else (address,)
    for one in found:
        host_and_port(one)
        if credentials is None and is_tls(one):
            raise missing(one)
    if not found:
        raise ConfigError("a client needs the address of a node; give one, or a list of them")
    return found


def _id_of(producer: str, credentials: Credentials | None) -> str:
    """The id of a producer, a new one if none is given; raises ConfigError for one that it may not
    have."""
    if producer.startswith(wire.TASK):
        raise ConfigError(
            f"producer {producer!r}: ids that begin with {wire.TASK} belong to tasks; give this "
            f"one another first character"
        )
    if long := wire.too_long(producer):
        raise ConfigError(long)
    made = producer or f"client-{tokens.fresh(5)}"
    if credentials is None:
        return made
    holder = credentials.holder
    if producer and not holder.may_be(producer):
        raise ConfigError(
            f"producer {producer!r} is not an id for the certificate of {holder}; take "
            f"{holder.name!r} or one that begins with {holder.name + '/'!r}"
        )
    return made if producer else holder.own_id(made)
