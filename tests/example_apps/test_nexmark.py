"""The Nexmark apps: over events in any order their rows are those of a database's queries."""

from __future__ import annotations

import random
from itertools import groupby
from typing import Any

import pytest
from nexmark_database import INPUTS, SQL, events, in_database, results

from apps.nexmark import app as nexmark
from apps.nexmark.app import LATENESS, Nexmark
from s4node.testing import AppTest


def in_app(
    query: str, found: dict[str, list[Any]], seed: int, partitions: int
) -> set[tuple[Any, ...]]:
    """The rows of the app, over the events in another order within the lateness."""
    chance = random.Random(seed)
    app: type[Nexmark] = getattr(nexmark, query)
    inputs = INPUTS[query]
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
        return {tuple(row.values) for row in test.output("rows")}


@pytest.mark.parametrize("query", SQL)
def test_the_rows_of_a_query_are_those_of_a_database_over_the_same_events(query: str) -> None:
    found = events(1200, seed=7, bidders=40)
    expected = in_database(query, found)
    assert expected
    for seed in range(2):
        assert results(query, in_app(query, found, seed, partitions=1 + seed)) == expected
