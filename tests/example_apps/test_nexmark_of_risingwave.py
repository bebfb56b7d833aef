"""The Nexmark apps over the rows of RisingWave's tests have the rows that those expect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import ROOT

from apps.nexmark import app as nexmark
from apps.nexmark.app import Auction, Bid, EachOfSome, Nexmark, Person
from s4node.testing import AppTest

DATA: dict[str, list[list[Any]]] = json.loads(
    (ROOT / "tests" / "fixtures" / "nexmark_of_risingwave.json").read_text()
)


class EachOfFive(EachOfSome):
    """RisingWave's query 2 asks for five auctions."""

    def row(self, bid: Bid) -> list[Any] | None:
        wanted = 1007, 1020, 2001, 2019, 2087
        return [bid.auction, bid.price] if bid.auction in wanted else None


class SelectionOfFive(nexmark.Selection):
    each = EachOfFive


QUERIES: dict[str, type[Nexmark]] = {
    "q0": nexmark.PassThrough,
    "q1": nexmark.Currency,
    "q2": SelectionOfFive,
    "q3": nexmark.LocalItems,
    "q4": nexmark.Averages,
    "q5": nexmark.HotItems,
    "q7": nexmark.HighestBids,
    "q8": nexmark.NewSellers,
}


def sent() -> dict[str, list[Any]]:
    """The rows of the tables as events; our query 3 writes states in capitals."""
    return {
        "persons": [Person(*row[:3], row[3].upper(), row[4]) for row in DATA["persons"]],
        "auctions": [Auction(*row) for row in DATA["auctions"]],
        "bids": [Bid(*row) for row in DATA["bids"]],
    }


def as_expected(query: str, rows: list[list[Any]]) -> list[list[Any]]:
    """Our rows with the columns, and of the kind, that RisingWave's query has."""
    if query == "q3":
        return [[name, city, state.lower(), auction] for name, city, state, auction in rows]
    if query == "q4":  # ours are the averages so far, with the number of auctions
        last = {row[0]: row for row in sorted(rows, key=lambda row: row[1])}
        return [[category, average] for category, _, average in last.values()]
    if query == "q5":
        return [[auction, number] for auction, number, _end in rows]
    return rows


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("query", QUERIES)
def test_the_rows_of_a_query_are_those_that_risingwave_expects(query: str, partitions: int) -> None:
    with AppTest(QUERIES[query], partitions=partitions) as test:
        inputs = [name for name in sent() if name in test.app.streams]
        for name in inputs:
            test.send(name, *sent()[name])
        for name in inputs:
            test.advance_watermark(name, DATA["bids"][-1][-1] + 60)
        test.advance(seconds=10)
        rows = as_expected(query, [row.values for row in test.output("rows")])
        assert not test.refused

    assert sorted(rows) == sorted(DATA[query])
