"""Clusters in memory with the seeds of the day, so that each day tests what no day before has."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from simulate import scenario

from s4node.testing import check_seeds

OF_A_DAY, AT_A_TIME = 40, 10


@pytest.mark.parametrize("part", range(OF_A_DAY // AT_A_TIME))
def test_each_event_counts_once_with_the_seeds_of_the_day(part: int) -> None:
    first = int(datetime.now(UTC).strftime("%y%m%d")) * 100 + part * AT_A_TIME
    print(f"to repeat it: make simulate FIRST={first} SEEDS={AT_A_TIME}")
    check_seeds(scenario, range(first, first + AT_A_TIME))
