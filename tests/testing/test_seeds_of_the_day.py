"""Clusters in memory with the seeds of the day."""

from __future__ import annotations

import pytest
from seeds_of_the_day import COUNT, seeds_of_the_day
from simulate import scenario

from s4node.testing import check_seeds

AT_A_TIME = 10


@pytest.mark.parametrize("first", range(0, COUNT, AT_A_TIME))
def test_each_event_counts_once_with_the_seeds_of_the_day(first: int) -> None:
    seeds = seeds_of_the_day()[first : first + AT_A_TIME]
    print(f"to repeat it: make simulate FIRST={seeds.start} SEEDS={AT_A_TIME}")
    check_seeds(scenario, seeds)
