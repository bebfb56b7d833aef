"""The queries of Nexmark as a database has them, and events for them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from apps.nexmark.app import Auction, Bid, Person

duckdb = pytest.importorskip("duckdb")
pyarrow = pytest.importorskip("pyarrow")

SQL = {
    "PassThrough": 'select auction, bidder, price, "at" from bids',
    "Currency": 'select auction, bidder, round(price * 0.908::double, 3), "at" from bids',
    "Selection": "select auction, price from bids where auction % 7 = 0",
    "LocalItems": """
        select p.name, p.city, p.state, a.id from auctions a join persons p on a.seller = p.id
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')""",
    "Averages": """
        with ended as (
            select a.id, a.category, max(b.price) as final from auctions a
            join bids b on b.auction = a.id and b."at" >= a."at" and b."at" < a.expires
            group by a.id, a.category)
        select category, count(*), round(sum(final)::double / count(*), 6) from ended
        group by category""",
    "HotItems": """
        with ends as (
            select auction, unnest(generate_series(0, 8, 2)) + floor("at" / 2) * 2 + 2 as ends
            from bids),
        counts as (select auction, count(*) as n, ends from ends group by auction, ends),
        most as (select ends, max(n) as n from counts group by ends)
        select auction, n, ends from counts join most using (ends, n)""",
    "HighestBids": """
        with most as (
            select floor("at" / 10) as number, max(price) as price from bids group by number)
        select auction, b.price, bidder, "at" from bids b
        join most m on m.number = floor("at" / 10) and m.price = b.price""",
    "NewSellers": """
        select distinct p.id, p.name, floor(p."at" / 10) * 10 from persons p
        join auctions a on a.seller = p.id and floor(a."at" / 10) = floor(p."at" / 10)""",
    "Sessions": """
        with marked as (
            select bidder, "at", case when "at" - lag("at") over w < 10 then 0 else 1 end as begins
            from bids window w as (partition by bidder order by "at")),
        numbered as (
            select bidder, "at", sum(begins) over (partition by bidder order by "at", begins desc
                rows unbounded preceding) as number from marked)
        select bidder, count(*), min("at"), max("at") + 10 from numbered
        group by bidder, number""",
}

INPUTS = {
    query: [name for name in ("persons", "auctions", "bids") if f"{name}" in text]
    for query, text in SQL.items()
}


def events(count: int, seed: int, bidders: int) -> dict[str, list[Any]]:
    """The events of a while, sixteen a second, in the order of their times."""
    chance = random.Random(seed)
    found: dict[str, list[Any]] = {"persons": [], "auctions": [], "bids": []}
    for number in range(count):
        at = 100 + number / 16
        kind = number % 16
        if kind == 0:
            state = chance.choice(["OR", "ID", "CA", "NY"])
            found["persons"].append(Person(number // 16, f"p{number}", "Ada", state, at))
        elif kind < 3:
            seller = chance.randrange(number // 16 + 1)
            if kind == 1:
                seller = number // 16
            category, life = chance.randrange(9, 12), chance.uniform(5, 40)
            auction = Auction(number, "item", category, seller, round(at + life, 3), at)
            found["auctions"].append(auction)
        else:
            auction = chance.choice(found["auctions"][-12:])
            bidder = chance.randrange(bidders)
            found["bids"].append(Bid(auction.id, bidder, chance.randrange(1, 9999), at))
    return found


def in_database(query: str, found: dict[str, list[Any]]) -> set[tuple[Any, ...]]:
    """The rows of a query over the same events."""
    with duckdb.connect() as database:
        for name in INPUTS[query]:
            fields = found[name][0].__struct_fields__
            columns = {field: [getattr(event, field) for event in found[name]] for field in fields}
            database.register(name, pyarrow.table(columns))
        return set(database.execute(SQL[query]).fetchall())


def results(query: str, rows: set[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    """The results of an app whose rows may come again after a kill.

    The averages of a category are followed by those with more auctions: its last row counts.
    """
    if query != "Averages":
        return rows
    last = {row[0]: row for row in sorted(rows)}
    return {(category, count, round(mean, 6)) for category, count, mean in last.values()}
