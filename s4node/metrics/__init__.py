"""Metrics: what tasks and containers measure, and the reporters that get it.

``registry`` has the counters, gauges and timers of an app's author. ``reporting`` takes all values
at an interval; ``reporter`` writes them to the console or a file, or is a class of the user's.

It may touch ``config``, ``logger``, ``version`` and ``errors``, and the world: files, clocks,
threads and trio. All but ``process``, ``reporter`` and ``reporting`` are pure, except the lock and
the clock of ``registry``.

Begin with ``statistics``, what a container counts, and ``table``, what a report consists of.
"""
