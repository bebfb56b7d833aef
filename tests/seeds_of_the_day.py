"""The seeds with which `make test` runs clusters in memory, and other tests of chance."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

COUNT = 40


def seeds_of_the_day() -> range:
    """Seeds that no day before has."""
    first = int(datetime.now(UTC).strftime("%y%m%d")) * 100
    return range(first, first + COUNT)


def every_fourth(count: int) -> list[Any]:
    """Numbers below ``count``, for a parameter; `make test` runs every fourth."""
    return [n if n % 4 == 0 else pytest.param(n, marks=pytest.mark.long) for n in range(count)]
