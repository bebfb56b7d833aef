"""A subscription: reads an app's live stream from now on, or a log's stream from anywhere.

Rules
- A live stream is read from every container of the app. The events of each container come in order,
  without an order between containers. A stream of a log comes from its node, each partition in
  order.
- A slow reader of a live stream misses events and does not hold up the app; ``missed`` counts
  those, and events that the node cannot send. Events put while a connection is lost are missed,
  too, and ``interruptions`` counts that. A log waits for the reader: no event is missed or comes
  twice.
- An event that does not decode raises in its place; iterating goes on after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import trio

from s4node import tokens
from s4node.errors import ConnectionRefused, DecodeError, S4Error, StageClosed
from s4node.net.certificates.credentials import Credentials
from s4node.net.client.reader_link import ReaderLink
from s4node.net.client.reading import Arrived, Lost, Reading
from s4node.net.transport import fork_guard
from s4node.net.transport.network import first_answering, why_all_silent
from s4node.net.transport.pair_socket import host_and_port, need_trio
from s4node.offsets.startpoint import Startpoint, Upcoming, check_places, startpoint_of

WINDOW_BYTES = 16_777_216
"""The most bytes of events that a node sends ahead of a reader."""


class Place(NamedTuple):
    """The place of an event: its partition, and its offset if the stream is in a log."""

    partition: int
    offset: int


def not_open(stream: str) -> StageClosed:
    """The error of reading a subscription outside its block."""
    return StageClosed(
        f"the subscription to {stream!r} is closed; read it inside of its block, as in "
        f"'with client.subscribe({stream!r}) as events' ('async with' in trio)"
    )


def _checked(start: Startpoint | Mapping[int, int] | None) -> Startpoint | Mapping[int, int]:
    """The start to use; raises StartpointError for a bad one."""
    if start is None:
        return Upcoming()
    if isinstance(start, Mapping):
        check_places(start)
        return start
    return startpoint_of(start)


class Subscription:
    """A stream to read with ``async for``; get it from ``Client.subscribe``.

    Events of a class in ``types`` come as objects of it, others as GenericEvents. Each node may
    send ``queue_size`` events ahead of the reader. ``on_news`` is called when events have arrived,
    and when a connection has come or gone.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        stream: str,
        types: Sequence[type] = (),
        *,
        start: Startpoint | Mapping[int, int] | None = None,
        timeout: float = 10.0,
        queue_size: int = 10_000,
        credentials: Credentials | None = None,
    ) -> None:
        self.stream = stream
        self._addresses = addresses
        self._types = types
        self._start = _checked(start)
        self._timeout = timeout
        self._credentials = credentials
        self._window = queue_size
        self._arrived: deque[Arrived | Lost] = deque()
        self._batch: list[Any] = []
        self._at = 0
        self._of: Arrived | None = None  # the frame of the events in ``_batch``
        self._reasons: dict[int, str] = {}
        self._sources: dict[str, Reading] = {}
        self._links: list[ReaderLink] = []
        self._news = trio.lowlevel.ParkingLot()
        self._manager: Any = None
        self._nursery: trio.Nursery | None = None
        self.on_news: Callable[[], None] = lambda: None

    @property
    def missed(self) -> int:
        """Events not sent because the reader was slow, or because no frame can hold them."""
        return sum(source.missed for source in self._sources.values())

    @property
    def interruptions(self) -> int:
        """The number of times that a connection to an app, and events meanwhile, were lost."""
        return sum(source.interruptions for source in self._sources.values())

    @property
    def connections(self) -> int:
        """The number of nodes that send events of the stream now."""
        return sum(source.opened for source in self._sources.values())

    @property
    def place(self) -> Place:
        """The place of the last event; resume later at ``place.offset + 1``."""
        if self._of is None:
            raise StageClosed("no event has been read yet; read one first")
        return Place(self._of.place.partition, self._of.first + self._at - 1)

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each partition, for ``start``; empty for a live stream.

        Events that the iteration has returned are before it.
        """
        at = {
            place.partition: place.passed
            for source in self._sources.values()
            if source.log
            for place in source.places.values()
        }
        if self._of is not None and self._of.reading.log:
            at[self._of.place.partition] = self._of.first + self._at
        return at

    async def __aenter__(self) -> Subscription:
        need_trio()
        fork_guard.use()
        for address in self._addresses:
            host_and_port(address)
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        try:
            with trio.move_on_after(self._timeout):
                # one of them, which names the others: two may be of one node, and all come twice
                self._ask(await first_answering(self._addresses, self._credentials))
                while not self._answered and self._error is None:
                    await self._news.park()
            if not self._answered:
                error = self._error
                if error is not None and not isinstance(error, ConnectionRefused):
                    raise error
                reason = error or await self._unanswered()
                raise ConnectionRefused(
                    f"stream {self.stream!r} at {', '.join(self._addresses)}: {reason}"
                )
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end()

    async def _unanswered(self) -> str:
        known = (link.answers.stranger for link in self._links)
        stranger = next(filter(None, known), "")
        why = await why_all_silent(self._addresses, stranger, self._credentials)
        return f"no answer within {self._timeout:g} s" + (
            f"; {why}" if why else ", though the node is there: the app is starting; see s4 status"
        )

    async def _end(self) -> None:
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            nursery.cancel_scope.cancel()
            await self._manager.__aexit__(None, None, None)
        self._news.unpark_all()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while self._at == len(self._batch):
            await self.fetch()
        event = self._batch[self._at]
        self._at += 1
        if event is None:
            self._check_decoded()
        return event

    @property
    def buffered(self) -> bool:
        """Return True if :meth:`next_decoded` has an event to give."""
        return self._at < len(self._batch)

    def next_decoded(self) -> Any:
        """The next decoded event; raises DecodeError in place of one that does not decode."""
        event = self._batch[self._at]
        self._at += 1
        if event is None:
            self._check_decoded()
        return event

    def _check_decoded(self) -> None:
        if self._at - 1 in self._reasons:
            place = self.place
            raise DecodeError(
                f"{self.stream}[{place.partition}] at {place.offset}: "
                f"{self._reasons[self._at - 1]}. Iterate on to skip it"
            )

    async def fetch(self) -> None:
        """Wait for the next events, and decode them."""
        if self._of is not None and self._at:
            self._of.reading.acknowledge(self._of.place, self._of.end)
        while not self._arrived:
            if self._nursery is None:
                raise not_open(self.stream)
            if self._error is not None:  # reading did not go on after a reconnect
                raise self._error
            await self._news.park()
        arrived = self._arrived.popleft()
        if isinstance(arrived, Lost):
            raise arrived.error
        events, refusals = arrived.reading.decoder.decode(arrived.data, arrived.body)
        skip = arrived.first - arrived.data.first
        self._of = arrived
        self._batch, self._at = events[skip:] if skip else events, 0
        self._reasons = {index - skip: reason for index, reason in refusals}

    @property
    def _answered(self) -> bool:
        return self.connections > 0

    @property
    def _error(self) -> S4Error | None:
        errors = [source.error for source in self._sources.values() if source.error is not None]
        return errors[0] if len(errors) == len(self._sources) and errors else None

    def _ask(self, address: str) -> None:
        known = {a for at, source in self._sources.items() for a in (at, source.alias)}
        if address in known or self._nursery is None:
            return
        link = ReaderLink(address, self._on_news, self._credentials)
        self._links.append(link)
        reading = self._sources[address] = Reading(
            self.stream,
            f"subscriber-{tokens.fresh(5)}",
            self._types,
            self._start,
            window=self._window,
            window_bytes=WINDOW_BYTES,
            others=True,
            deliver=self._arrived.append,
            on_credit=link.wake,
        )
        link.add(reading)
        self._nursery.start_soon(link.run)

    def _on_news(self) -> None:
        for source in list(self._sources.values()):
            for node in source.nodes:
                self._ask(node)
        self._news.unpark_all()
        if self._nursery is not None and all(link.is_carried for link in self._links):
            self.on_news()  # not while closing, or when Ctrl-C ends a link
