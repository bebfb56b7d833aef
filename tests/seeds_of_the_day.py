"""The seeds of a day, with which `make test` runs clusters in memory."""

from __future__ import annotations

from datetime import UTC, datetime

COUNT = 40


def seeds_of_the_day() -> range:
    """Seeds that no day before has."""
    first = int(datetime.now(UTC).strftime("%y%m%d")) * 100
    return range(first, first + COUNT)
