"""A property of apps with windows: the same rows for every order, number of partitions and kill.

Rules
- Orders are random within the lateness of the stream. Partitions are one to three. In every other
  run the app is killed at a random event, and started again.
- Rows are compared as a set, because events that were put before a kill and not committed are put
  again. So leave out a grace, whose later results depend on the order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from s4node.app.app import App
from s4node.app.plan.window_dispatch import time_rule
from s4node.errors import S4Error
from s4node.testing.app_test import AppTest


def rows_in_any_order(
    app: type[App],
    stream: str,
    events: Sequence[Any],
    *,
    output: str,
    until: float,
    runs: int = 6,
    seed: int = 0,
    settings: Mapping[str, str] | None = None,
) -> list[str]:
    """Send the events in ``runs`` orders; return the rows of ``output``, as text and sorted.

    At the end the watermark of the stream goes to ``until``. Raises AssertionError for the first
    run with other rows than the first one, or with late events.
    """
    expected: list[str] = []
    for run in range(runs):
        chance = Random(seed + run)  # noqa: S311 - to be repeated
        partitions = 1 + run % 3
        kill = chance.randrange(len(events)) if run % 2 else -1
        with AppTest(app, partitions=partitions, settings=settings) as test:
            declared = test.app.streams[stream]
            rule = time_rule(declared)
            if rule is None or declared.time is None or rule.by_batch:
                raise S4Error(f"stream {stream!r} has no time=, so its events have no order")
            slack = declared.time.lateness * 0.99
            times = [rule.find(event) + chance.uniform(0, slack) for event in events]
            order = sorted(range(len(events)), key=times.__getitem__)
            _send(test, stream, [events[at] for at in order], kill, chance)
            test.advance_watermark(stream, until + declared.time.lateness)
            test.advance(seconds=10)
            windowed = [name for name, (pe, _) in test.app.prototypes.items() if pe.windows]
            late = sum(map(test.late, windowed))
            rows = sorted(set(map(repr, test.output(output))))
        killed = f", killed at event {kill}" if kill >= 0 else ""
        where = f"run {run} ({partitions} partitions{killed})"
        if late:
            raise AssertionError(f"{where}: {late} events were late")
        if run and rows != expected:
            missing = sorted({*expected} - {*rows})[:3]
            more = sorted({*rows} - {*expected})[:3]
            raise AssertionError(f"{where}: rows are missing {missing}, or too many {more}")
        expected = rows
    return expected


def _send(test: AppTest[Any], stream: str, events: list[Any], kill: int, chance: Random) -> None:
    at = 0
    while at < len(events):
        end = at + chance.randint(1, 200)
        if at <= kill < end:
            end = kill + 1
        test.send(stream, *events[at:end])
        if end == kill + 1:
            test.advance(seconds=chance.uniform(0, 2))
            test.crash()
        at = end
