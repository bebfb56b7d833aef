"""The trending app: its lists are those of all mentions, in whatever order they come."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from apps.trending.app import LATENESS, PLACES, Mention, Trend, TrendingApp
from s4node.testing import AppTest

BEGIN = 1_599_999_960_000  # a whole minute
MINUTES = 12
CLOSING = Mention("closing", BEGIN + (MINUTES * 60 + LATENESS) * 1000)


def mentions(seed: int) -> list[Mention]:
    chance = random.Random(seed)
    topics = [f"topic{n}" for n in range(30)]
    return [
        Mention(chance.choice(topics[: 3 + n % 28]), BEGIN + chance.randrange(MINUTES * 60_000))
        for n in range(2000)
    ]


def expected(sent: list[Mention]) -> list[Trend]:
    """The lists of all windows that have ended, by counting."""
    found = []
    for minute in range(1, MINUTES + 1):
        end = BEGIN + minute * 60_000
        counts = Counter(each.topic for each in sent if end - 300_000 <= each.at < end)
        most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:PLACES]
        found += [Trend(end - 1, place, *item) for place, item in enumerate(most, 1)]
    return found


@pytest.mark.parametrize(("seed", "partitions", "kill"), [(0, 1, 0), (1, 3, 1200)])
def test_each_minute_s_list_has_the_topics_that_were_mentioned_most(
    seed: int, partitions: int, kill: int
) -> None:
    sent = mentions(seed)
    order = random.Random(seed)
    shuffled = sorted(sent, key=lambda each: each.at + order.uniform(0, (LATENESS - 1) * 1000))
    with AppTest(TrendingApp, partitions=partitions) as test:
        test.send("mentions", *shuffled[:kill])
        if kill:
            test.advance(seconds=1.5)
            test.crash()
        test.send("mentions", *shuffled[kill:], CLOSING)
        test.advance(seconds=8)
        lists = {(trend.at, trend.place): trend for trend in test.output("trends")}
        assert test.late("Topic") == test.late("Trending") == 0
    assert [lists[place] for place in sorted(lists)] == expected(sent)
