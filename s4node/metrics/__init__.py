"""Metrics: what tasks and containers measure, and the reporters that it is given to.

``registry`` has the counters, gauges and timers of an app's author. ``reporting`` takes all values
every so often; ``reporter`` writes them to the console or a file, or is a class of the user's.

It may touch ``config``, ``logger``, ``version`` and ``errors``, and the world: files, clocks,
threads and trio. ``registry`` and ``snapshot`` are pure, but for the lock and the clock that
counting needs.

Begin with ``snapshot``: it is what a report consists of.
"""
