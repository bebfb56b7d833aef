"""The Nexmark apps: over events in any order their rows are those of a database's queries."""

from __future__ import annotations

import random
import re
from itertools import groupby
from typing import Any

import pytest

from apps.nexmark import app as nexmark
from apps.nexmark.app import LATENESS, Auction, Bid, Nexmark, Person
from s4node.testing import AppTest

duckdb = pytest.importorskip("duckdb")

SQL = {
    "PassThrough": "select auction, bidder, price, at from bids",
    "Currency": "select auction, bidder, round(price * 0.908::double, 3), at from bids",
    "Selection": "select auction, price from bids where auction % 7 = 0",
    "LocalItems": """
        select p.name, p.city, p.state, a.id from auctions a join persons p on a.seller = p.id
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')""",
    "Averages": """
        with ended as (
            select a.id, a.category, max(b.price) as final from auctions a
            join bids b on b.auction = a.id and b.at >= a.at and b.at < a.expires
            group by a.id, a.category)
        select category, count(*), avg(final) from ended group by category""",
    "HotItems": """
        with ends as (select unnest(generate_series(0, 600, 2))::double as ends),
        counts as (
            select auction, count(*) as n, ends from bids, ends
            where at < ends and at >= ends - 10 group by auction, ends)
        select auction, n, ends from counts c
        where n = (select max(n) from counts d where d.ends = c.ends)""",
    "HighestBids": """
        select auction, price, bidder, at from bids b
        where price = (select max(price) from bids c where floor(c.at / 10) = floor(b.at / 10))""",
    "NewSellers": """
        select distinct p.id, p.name, floor(p.at / 10) * 10 from persons p
        join auctions a on a.seller = p.id and floor(a.at / 10) = floor(p.at / 10)""",
    "Sessions": """
        with marked as (
            select bidder, at, case when at - lag(at) over w < 10 then 0 else 1 end as begins
            from bids window w as (partition by bidder order by at)),
        numbered as (
            select bidder, at, sum(begins) over (partition by bidder order by at, begins desc
                rows unbounded preceding) as number from marked)
        select bidder, count(*), min(at), max(at) + 10 from numbered group by bidder, number""",
}


def events(count: int, seed: int) -> dict[str, list[Any]]:
    """The events of a while, in the order of their times."""
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
            bidder = chance.randrange(40)
            found["bids"].append(Bid(auction.id, bidder, chance.randrange(1, 9999), at))
    return found


def in_database(query: str, found: dict[str, list[Any]]) -> list[list[Any]]:
    """The rows of a query over the same events."""
    kinds = {int: "bigint", float: "double", str: "varchar"}
    with duckdb.connect() as database:
        for table, rows in found.items():
            fields = rows[0].__struct_fields__
            named = {name: kinds[type(getattr(rows[0], name))] for name in fields}
            columns = ", ".join(f'"{name}" {kind}' for name, kind in named.items())
            database.execute(f"create table {table} ({columns})")
            values = [[getattr(row, name) for name in fields] for row in rows]
            database.executemany(
                f"insert into {table} values ({', '.join('?' * len(fields))})", values
            )
        text = re.sub(r"\bat\b", '"at"', SQL[query])  # a word of the language
        return [list(row) for row in database.execute(text).fetchall()]


def in_app(query: str, found: dict[str, list[Any]], seed: int, partitions: int) -> list[list[Any]]:
    """The rows of the app, over the events in another order within the lateness."""
    chance = random.Random(seed)
    app: type[Nexmark] = getattr(nexmark, query)
    inputs = [name for name in found if re.search(rf"\b{name}\b", SQL[query])]
    durable = {f"s4.stream.{name}.grade": "durable" for name in inputs}
    with AppTest(app, partitions=partitions, settings=durable) as test:
        mine = [(name, event) for name in inputs for event in found[name]]
        mine.sort(key=lambda each: each[1].at + chance.uniform(0, LATENESS * 0.99))
        kill = chance.randrange(len(mine)) if seed % 2 else -1
        for at in range(0, len(mine), 150):
            for name, run in groupby(mine[at : at + 150], key=lambda each: each[0]):
                test.send(name, *(event for _, event in run))
            if at <= kill < at + 150:
                test.advance(seconds=chance.uniform(0, 2))
                test.crash()
        for name in inputs:
            test.advance_watermark(name, 1000.0)
        test.advance(seconds=10)
        return [list(row.values) for row in test.output("rows")]


@pytest.mark.parametrize("query", SQL)
def test_the_rows_of_a_query_are_those_of_a_database_over_the_same_events(query: str) -> None:
    found = events(1200, seed=7)
    expected = sorted(map(repr, in_database(query, found)))
    assert expected
    for seed in range(2):
        rows = in_app(query, found, seed, partitions=1 + seed)
        if query == "Averages":  # of each category the last row
            rows = list({row[0]: row for row in sorted(rows, key=lambda row: row[1])}.values())
            rows = [[row[0], row[1], pytest.approx(row[2])] for row in rows]
            assert sorted(in_database(query, found)) == sorted(rows, key=lambda row: row[0])
            continue
        found_rows = {repr(row) for row in rows}  # what was not committed is put again after a kill
        assert sorted(found_rows) == expected
