"""Candles of trades: windows by the time of events, over two hops."""
