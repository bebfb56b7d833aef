"""Queries of the Nexmark benchmark, each an app: persons open auctions, and others bid.

Events of the three inputs may be five seconds out of order, among each other, too. Run one with
``s4 run apps/nexmark/app.py:HotItems``.
"""

from __future__ import annotations

from typing import Any

from s4node import (
    Aggregates,
    App,
    Count,
    Event,
    InputStream,
    OutputStream,
    ProcessingElement,
    Stream,
    hopping,
    session,
    tumbling,
)

LATENESS = 5


class Person(Event):
    """A person who has registered."""

    id: int
    name: str
    city: str
    state: str
    at: float


class Auction(Event):
    """An auction that ``seller`` has opened."""

    id: int
    item: str
    category: int
    seller: int
    expires: float
    at: float


class Bid(Event):
    """A bid on an auction."""

    auction: int
    bidder: int
    price: int
    at: float


class Row(Event):
    """A row of a result; its time is the last moment of what it counts."""

    values: list[Any]
    at: float = 0.0


class Nexmark(App):
    """The base of all queries: their output, and inputs with time."""

    rows: OutputStream

    def on_init(self) -> None:
        """Declare the output, then the query."""
        self.rows = self.create_output_stream("rows", types=Row)
        self.query()

    def query(self) -> None:
        """Declare the query."""

    def input(self, name: str, key: str, *pes: ProcessingElement) -> InputStream:
        """One of the inputs."""
        types = {"persons": Person, "auctions": Auction, "bids": Bid}[name]
        return self.create_input_stream(
            name, *pes, key=key, types=types, time="at", lateness=LATENESS
        )


# -- 0 to 2: each bid by itself -------------------------------------------------------------------


class Each(ProcessingElement):
    """Looks at each bid; one instance for each partition."""

    rows: Stream

    def row(self, bid: Bid) -> list[Any] | None:
        """The row of a bid, if it has one."""
        return [bid.auction, bid.bidder, bid.price, bid.at]

    def on_event(self, bid: Bid) -> None:
        values = self.row(bid)
        if values is not None:
            self.rows.put(Row(values, bid.at))


class EachInEuro(Each):
    """The prices in another currency."""

    def row(self, bid: Bid) -> list[Any]:
        return [bid.auction, bid.bidder, round(bid.price * 0.908, 3), bid.at]


class EachOfSome(Each):
    """The bids on some auctions."""

    def row(self, bid: Bid) -> list[Any] | None:
        """The auction and the price."""
        return [bid.auction, bid.price] if bid.auction % 7 == 0 else None


class PassThrough(Nexmark):
    """Query 0: the bids."""

    each: type[Each] = Each

    def query(self) -> None:
        each = self.create_pe(self.each)
        each.rows = self.rows
        self.input("bids", "auction", each)


class Currency(PassThrough):
    """Query 1: the bids in euros."""

    each = EachInEuro


class Selection(PassThrough):
    """Query 2: the bids on some auctions."""

    each = EachOfSome


# -- 3: who sells what in which states ------------------------------------------------------------


class Seller(ProcessingElement):
    """A person with the auctions that came before."""

    rows: Stream
    person: Person | None = None
    waiting: list[int] = []

    def on_event_person(self, person: Person) -> None:
        """Join the auctions that wait."""
        if person.state in ("OR", "ID", "CA"):
            self.person = person
            for auction in self.waiting:
                self.join(auction)
        self.waiting = []

    def on_event_auction(self, auction: Auction) -> None:
        """Join an auction, or let it wait for its seller."""
        if auction.category != 10:
            return
        if self.person is not None:
            self.join(auction.id)
        else:
            self.waiting.append(auction.id)

    def join(self, auction: int) -> None:
        """Put the row of an auction."""
        assert self.person is not None
        self.rows.put(Row([self.person.name, self.person.city, self.person.state, auction]))


class LocalItems(Nexmark):
    """Query 3: the auctions of a category by sellers in some states."""

    def query(self) -> None:
        seller = self.create_pe(Seller)
        seller.rows = self.rows
        self.input("persons", "id", seller)
        self.input("auctions", "seller", seller)


# -- 4: what auctions of a category end at --------------------------------------------------------


class Closing(ProcessingElement):
    """An auction until it has expired, with its highest bid."""

    closed: Stream
    category: int = -1
    opened: float = 0.0
    expires: float = 0.0
    bids: list[tuple[float, int]] = []

    def on_event_auction(self, auction: Auction) -> None:
        """Wait for the end of the auction."""
        self.category, self.opened, self.expires = auction.category, auction.at, auction.expires
        self.at(auction.expires)

    def on_event_bid(self, bid: Bid) -> None:
        """Keep a bid, which may come before its auction."""
        self.bids.append((bid.at, bid.price))

    def on_timer(self, _name: str) -> None:
        """Put the price at which the auction ends."""
        prices = [price for at, price in self.bids if self.opened <= at < self.expires]
        if prices:
            self.closed.put(Row([self.category, max(prices)], self.expires))
        self.remove()


class Average(ProcessingElement):
    """The average of a category so far."""

    rows: Stream
    total: int = 0
    count: int = 0

    def on_event(self, row: Row) -> None:
        """Put the average with each auction."""
        self.total += row.values[1]
        self.count += 1
        self.rows.put(Row([row.values[0], self.count, self.total / self.count]))


class Averages(Nexmark):
    """Query 4: the average price of the auctions of each category that have ended."""

    def query(self) -> None:
        closing, average = self.create_pe(Closing), self.create_pe(Average)
        closing.set_ttl(3600)  # of bids that come after the end
        average.rows = self.rows
        closing.closed = self.create_stream("closed", average, key=lambda row: row.values[0])
        self.input("auctions", "id", closing)
        self.input("bids", "auction", closing)


# -- 5 and 7: the most of each window, over two hops ----------------------------------------------


class Bids(Aggregates, of=Bid):
    """The number of bids on an auction in a window."""

    counted: Stream
    n = Count()

    def on_window(self) -> None:
        self.counted.put(Row([self.key, self.n, self.window.end], self.window.last))


class Most(ProcessingElement):
    """The rows of a window with the greatest value."""

    rows: Stream
    most: int = 0
    found: list[list[Any]] = []

    def on_event(self, row: Row) -> None:
        """Keep the row if no value is greater."""
        if row.values[1] > self.most:
            self.most, self.found = row.values[1], []
        if row.values[1] == self.most:
            self.found.append(row.values)

    def on_window(self) -> None:
        for values in sorted(self.found):
            self.rows.put(Row(values, self.window.last))


class HotItems(Nexmark):
    """Query 5: the auctions with the most bids in the last ten seconds, every two."""

    def query(self) -> None:
        bids, most = self.create_pe(Bids), self.create_pe(Most)
        bids.set_window(hopping(10, every=2))
        most.set_window(tumbling(2))
        most.rows = self.rows
        bids.counted = self.create_stream("counted", most, key=lambda _row: "all", time="at")
        self.input("bids", "auction", bids)


class Highest(ProcessingElement):
    """The highest bids on an auction in a window."""

    counted: Stream
    most: int = 0
    bids: list[tuple[int, float]] = []

    def on_event(self, bid: Bid) -> None:
        """Keep a bid if none is higher."""
        if bid.price > self.most:
            self.most, self.bids = bid.price, []
        if bid.price == self.most:
            self.bids.append((bid.bidder, bid.at))

    def on_window(self) -> None:
        for bidder, at in self.bids:
            self.counted.put(Row([self.key, self.most, bidder, at], self.window.last))


class HighestBids(Nexmark):
    """Query 7: the highest bids of each ten seconds."""

    def query(self) -> None:
        highest, most = self.create_pe(Highest), self.create_pe(Most)
        for pe in (highest, most):
            pe.set_window(tumbling(10))
        most.rows = self.rows
        highest.counted = self.create_stream("counted", most, key=lambda _row: "all", time="at")
        self.input("bids", "auction", highest)


# -- 8: new users who sell at once ----------------------------------------------------------------


class NewSeller(ProcessingElement):
    """A person in a window: whether they have registered and opened an auction in it."""

    rows: Stream
    name: str = ""
    sells: bool = False

    def on_event_person(self, person: Person) -> None:
        self.name = person.name

    def on_event_auction(self, _auction: Auction) -> None:
        self.sells = True

    def on_window(self) -> None:
        if self.name and self.sells:
            self.rows.put(Row([self.key, self.name, self.window.start], self.window.last))


class NewSellers(Nexmark):
    """Query 8: who has registered and opened an auction in the same ten seconds."""

    def query(self) -> None:
        seller = self.create_pe(NewSeller)
        seller.set_window(tumbling(10))
        seller.rows = self.rows
        self.input("persons", "id", seller)
        self.input("auctions", "seller", seller)


# -- 11: sessions ---------------------------------------------------------------------------------


class Visit(Aggregates, of=Bid):
    """The bids of a bidder without a pause of ten seconds."""

    rows: Stream
    n = Count()

    def on_window(self) -> None:
        self.rows.put(Row([self.key, self.n, self.window.start, self.window.end]))


class Sessions(Nexmark):
    """Query 11: the bids of each bidder's sessions."""

    def query(self) -> None:
        visit = self.create_pe(Visit)
        visit.set_window(session(gap=10))
        visit.rows = self.rows
        self.input("bids", "bidder", visit)


app = HotItems("nexmark")
