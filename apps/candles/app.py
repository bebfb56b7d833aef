"""Candles: open, high, low and close of each symbol and minute; and each minute's busiest symbol.

The first is Apache S4's sliding-window PE with its OHLC slots: here a slot is an instance. The
second hop has windows over the results of windows. Prices may come two seconds out of order.
"""

from __future__ import annotations

from s4node import App, Event, OutputStream, ProcessingElement, Stream, tumbling


class Trade(Event):
    """A trade, with its time in seconds since 1970."""

    symbol: str
    price: float
    at: float


class Bar(Event):
    """The candle of a symbol and a minute; ``at`` is the last millisecond of it."""

    symbol: str
    at: float
    open: float
    high: float
    low: float
    close: float
    trades: int


class Candle(ProcessingElement):
    """The trades of a symbol in a minute.

    The first and the last price are those of the earliest and the latest trade, in whatever order
    they come.
    """

    bars: Stream
    first: tuple[float, float] = (0.0, 0.0)
    last: tuple[float, float] = (0.0, 0.0)
    high: float = 0.0
    low: float = 0.0
    trades: int = 0

    def on_event(self, trade: Trade) -> None:
        here = trade.at, trade.price
        if not self.trades:
            self.first = self.last = here
            self.low = trade.price
        self.first, self.last = min(self.first, here), max(self.last, here)
        self.high, self.low = max(self.high, trade.price), min(self.low, trade.price)
        self.trades += 1

    def on_window(self) -> None:
        (_, opened), (_, closed) = self.first, self.last
        figures = opened, self.high, self.low, closed, self.trades
        self.bars.put(Bar(str(self.key), self.window.last, *figures))


class Busiest(ProcessingElement):
    """The symbol with the most trades of a minute."""

    busiest: OutputStream
    bar: Bar | None = None

    def on_event(self, bar: Bar) -> None:
        """Keep the bar with more trades; of two, the one whose symbol comes first."""
        if self.bar is None or (-bar.trades, bar.symbol) < (-self.bar.trades, self.bar.symbol):
            self.bar = bar

    def on_window(self) -> None:
        if self.bar is not None:
            self.busiest.put(self.bar)


class CandlesApp(App):
    """Trades to candles to the busiest symbol of each minute."""

    def on_init(self) -> None:
        candle, busiest = self.create_pe(Candle), self.create_pe(Busiest)
        candle.set_window(tumbling(60))
        busiest.set_window(tumbling(60))
        candle.bars = self.create_stream("bars", busiest, key=lambda _bar: "all", time="at")
        busiest.busiest = self.create_output_stream("busiest", types=Bar)
        self.create_input_stream("trades", candle, key="symbol", time="at", lateness=2)


app = CandlesApp("candles")
