"""The candles app: the same bars for every order within the lateness, and after a kill."""

from __future__ import annotations

import random

import pytest

from apps.candles.app import Bar, CandlesApp, Trade
from s4node.testing import AppTest

TRADES = [
    Trade(symbol, price=100 + n * 7 % 13 + len(symbol), at=60 + n / 4)
    for n in range(900)
    for symbol in ("S4", "SAMZA", "BEAM")
    if n % len(symbol)
]
LAST = Trade("S4", 1.0, 400.0)


def expected() -> list[Bar]:
    """Each minute's candles, computed from the whole list."""
    found = []
    for start in (60, 120, 180, 240):
        for symbol in ("BEAM", "S4", "SAMZA"):
            mine = [t for t in TRADES if t.symbol == symbol and start <= t.at < start + 60]
            prices = [trade.price for trade in sorted(mine, key=lambda trade: trade.at)]
            figures = prices[0], max(prices), min(prices), prices[-1], len(prices)
            found.append(Bar(symbol, start + 60 - 0.001, *figures))
    return found


@pytest.mark.parametrize(("seed", "partitions", "kill"), [(0, 1, 0), (1, 2, 700), (2, 3, 1500)])
def test_candles_are_those_of_the_sorted_trades(seed: int, partitions: int, kill: int) -> None:
    order = random.Random(seed)
    shuffled = sorted(TRADES, key=lambda trade: trade.at + order.uniform(0, 1.99))
    with AppTest(CandlesApp, partitions=partitions) as test:
        test.send("trades", *shuffled[:kill])
        if kill:
            test.advance(seconds=1.5)
            test.crash()
        test.send("trades", *shuffled[kill:], LAST)
        test.advance(seconds=8)
        bars = {(bar.at, bar.symbol): bar for bar in test.output("bars")}
        busiest = {bar.at: bar for bar in test.output("busiest")}

        assert test.late("Candle") == test.late("Busiest") == 0
    assert sorted(bars.values(), key=lambda bar: (bar.at, bar.symbol)) == expected()
    most = [max(expected()[at : at + 3], key=lambda bar: bar.trades) for at in (0, 3, 6, 9)]
    assert [bar.trades for _, bar in sorted(busiest.items())] == [bar.trades for bar in most]
