"""Apps with event time whose rows depend on nothing but their events, and histories of these.

They are those of ``apps``, and others with all that goes by the time of events: timers, windows
with state of the key, joins.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from apps.candles.app import CandlesApp, Trade
from apps.nexmark import app as nexmark
from apps.nexmark.app import Auction, Bid, Person
from apps.trending.app import Mention, TrendingApp
from s4node import (
    App,
    Event,
    OfKey,
    OutputStream,
    Pairs,
    ProcessingElement,
    Stream,
    hopping,
    session,
    tumbling,
)

BEGIN = 1_600_000_020.0  # a whole minute


class Rate(Event):
    symbol: str
    rate: float
    at: float


class Row(Event):
    key: str
    at: float
    values: list[float]


class Once(ProcessingElement):
    """Lets the first trade of a minute pass."""

    rows: OutputStream
    passed: bool = False

    def on_event(self, trade: Trade) -> None:
        if not self.passed:
            self.passed = True
            self.at(trade.at + 60)
            self.rows.put(Row(str(self.key), trade.at, [trade.price]))

    def on_timer(self, _name: str) -> None:
        self.remove()


class AsOf(ProcessingElement):
    """The price of each trade by the rate of its time; a symbol that is silent is forgotten."""

    rows: OutputStream
    rate: float = 0.0
    n: int = 0

    def on_event_rate(self, rate: Rate) -> None:
        self.rate = rate.rate

    def on_event_trade(self, trade: Trade) -> None:
        self.n += 1
        self.rows.put(Row(str(self.key), trade.at, [float(self.n), trade.price * self.rate]))
        self.at(trade.at + 4, "silent")

    def on_timer(self, _name: str) -> None:
        self.rows.put(Row(str(self.key), -1.0, [float(self.n), self.rate]))
        self.remove()


class Near(Pairs, left=Trade, right=Rate, within=(1, 2)):
    """Each trade with the rates around it."""

    rows: OutputStream

    def on_pair(self, left: Trade, right: Rate) -> None:
        self.rows.put(Row(left.symbol, left.at, [left.price, right.rate, right.at]))

    def on_alone(self, left: Trade) -> None:
        self.rows.put(Row(left.symbol, left.at, [left.price]))


class Streak(ProcessingElement):
    """The first and the last price of a window, and how many windows ended before each trade."""

    rows: OutputStream
    ended: OfKey[int] = 0
    first: float = 0.0
    last: float = 0.0

    def on_event(self, trade: Trade) -> None:
        self.first, self.last = self.first or trade.price, trade.price
        self.rows.put(Row(str(self.key), trade.at, [float(self.ended)]))

    def on_window(self) -> None:
        self.ended += 1
        figures = [self.window.start, self.first, self.last, float(self.ended)]
        self.rows.put(Row(str(self.key), self.window.last, figures))

    def merge(self, later: Streak) -> None:
        self.last = later.last


class Part(ProcessingElement):
    """The trades and the sum of a window of all that is in the partition."""

    parts: Stream
    n: int = 0
    total: float = 0.0

    def on_event(self, trade: Trade) -> None:
        self.n += 1
        self.total += trade.price

    def on_window(self) -> None:
        row = Row(str(self.window.start), self.window.last, [float(self.n), self.total])
        self.parts.put(row)

    def merge(self, later: Part) -> None:
        self.n += later.n
        self.total += later.total


class Whole(ProcessingElement):
    """The same of all partitions."""

    rows: OutputStream
    n: float = 0.0
    total: float = 0.0

    def on_event(self, part: Row) -> None:
        self.n += part.values[0]
        self.total += part.values[1]

    def on_window(self) -> None:
        self.rows.put(Row(str(self.key), self.window.last, [self.n, self.total]))


class WithoutKey(App):
    """Windows over a stream without a key: each partition has its own, which the next hop adds."""

    def on_init(self) -> None:
        rows = self.create_output_stream("rows", types=Row)
        parts = []
        for name, kind in (("tumbling", tumbling(10)), ("hopping", hopping(10, every=4))):
            part = self.create_pe(Part, name=f"{name} parts")
            whole = self.create_pe(Whole, name=f"{name} wholes")
            part.set_singleton()
            part.set_window(kind)
            whole.set_window(tumbling(1))  # the parts of one window have one time
            whole.rows = rows
            part.parts = self.create_stream(name, whole, key="key", types=Row, time="at")
            parts.append(part)
        self.create_input_stream("trades", *parts, types=Trade, time="at", lateness=2)


class InOrder(App):
    """Streams with one order that lead to PEs of which they have only some in common."""

    leading: Callable[[InOrder], dict[str, list[Any]]]

    def on_init(self) -> None:
        rows = self.create_output_stream("rows", types=Row)
        pes = self.leading()
        for name, kind in (("trades", Trade), ("rates", Rate)):
            if name in pes:
                for pe in pes[name]:
                    pe.rows = rows
                self.create_input_stream(
                    name, *pes[name], key="symbol", types=kind, time="at", lateness=2, order="time"
                )


class Deduplicated(InOrder):
    def leading(self) -> dict[str, list[Any]]:
        return {"trades": [self.create_pe(Once)]}


class AsOfApp(InOrder):
    def leading(self) -> dict[str, list[Any]]:
        as_of, streak = self.create_pe(AsOf), self.create_pe(Streak)
        streak.set_window(tumbling(5))
        return {"trades": [streak, as_of], "rates": [as_of]}


class NearApp(InOrder):
    def leading(self) -> dict[str, list[Any]]:
        near = self.create_pe(Near)
        return {"trades": [near], "rates": [near]}


class Streaks(InOrder):
    def leading(self) -> dict[str, list[Any]]:
        tens, sessions = self.create_pe(Streak, name="tens"), self.create_pe(Streak, name="gaps")
        tens.set_window(tumbling(10))
        sessions.set_window(session(gap=1.5))
        return {"trades": [tens, sessions]}


class Case(NamedTuple):
    """An app, the streams of its rows, and events of its inputs, each in order of time."""

    app: type[App]
    rows: tuple[str, ...]
    events: dict[str, list[Any]]


def _trades(chance: random.Random) -> list[Any]:
    times = (n / 2 + (60 if n > 70 else 0) for n in range(100))  # with a pause
    return [Trade(chance.choice("abc"), float(n), BEGIN + at) for n, at in enumerate(times)]


def _rates(chance: random.Random) -> list[Any]:
    return [Rate(chance.choice("abc"), float(n), BEGIN + n * 1.9 + 0.1) for n in range(50)]


def cases(seed: int) -> dict[str, Case]:
    """The apps with their events, by name."""
    chance = random.Random(seed)
    trades, rates = {"trades": _trades(chance)}, {"rates": _rates(chance)}
    start = int(BEGIN * 1000)
    mentions = [Mention(f"t{chance.randrange(9)}", start + n * 6000) for n in range(100)]
    persons: list[Any] = [
        Person(n, f"p{n}", "Eugene", chance.choice(["OR", "NY"]), BEGIN + n) for n in range(40)
    ]
    auctions: list[Any] = [
        Auction(n, "it", 9 + n % 3, chance.randrange(40), BEGIN + n + 9, BEGIN + n + 0.5)
        for n in range(40)
    ]
    bids: list[Any] = [
        Bid(min(n // 3, 39), n % 7, chance.randrange(99), BEGIN + n / 3) for n in range(120)
    ]
    inputs = {"persons": persons, "auctions": auctions, "bids": bids}
    queries = {
        nexmark.PassThrough: "bids", nexmark.Currency: "bids", nexmark.Selection: "bids",
        nexmark.LocalItems: "persons auctions", nexmark.Averages: "auctions bids",
        nexmark.HotItems: "bids", nexmark.HighestBids: "bids",
        nexmark.NewSellers: "persons auctions", nexmark.Sessions: "bids",
    }  # fmt: skip
    found = [
        Case(CandlesApp, ("bars", "busiest"), trades),
        Case(TrendingApp, ("trends",), {"mentions": mentions}),
        *(
            # an average so far depends on the order of what has ended
            Case(
                query,
                ("closed" if query is nexmark.Averages else "rows",),
                {name: inputs[name] for name in names.split()},
            )
            for query, names in queries.items()
        ),
        Case(WithoutKey, ("rows",), trades),
        Case(Deduplicated, ("rows",), trades),
        Case(AsOfApp, ("rows",), trades | rates),
        Case(NearApp, ("rows",), trades | rates),
        Case(Streaks, ("rows",), trades),
    ]
    return {each.app.__name__: each for each in found}
