"""Keys that are chosen to share one hash are refused; all others come into a table."""

from __future__ import annotations

from contextlib import suppress

import pytest
from harness import colliding_pairs

from s4node.errors import KeyFinderError
from s4node.events.keys import KeyCrowding, Partitioner


def test_of_keys_that_share_one_hash_a_table_takes_a_few_hundred() -> None:
    crowding, table = KeyCrowding(), dict[tuple[int, int], int]()
    keys = colliding_pairs(1000)
    assert len(set(map(hash, keys))) == 1
    refused = 0
    for key in keys:
        try:
            crowding.check_new(key, table)
        except KeyFinderError:
            refused += 1
        else:
            table[key] = 1
    assert len(table) <= 300
    assert refused == 1000 - len(table)
    crowding.check_new((1, 1), table)  # others go on


def test_keys_that_nobody_has_chosen_all_come_in() -> None:
    crowding, table = KeyCrowding(), dict[tuple[int, int], int]()
    for key in ((a, b) for a in range(700) for b in range(700)):
        crowding.check_new(key, table)
        table[key] = 1
    assert len(table) == 490_000


def test_a_key_that_comes_and_goes_is_taken_each_time() -> None:
    crowding, table = KeyCrowding(), dict[tuple[int, int], int]()
    for _ in range(100_000):
        crowding.check_new((1, 2), table)
        table[1, 2] = 1
        del table[1, 2]


def test_the_memory_of_recent_partitions_refuses_them_too() -> None:
    memo = Partitioner(4).memo
    *others, last = colliding_pairs(1000)
    for key in others:
        with suppress(KeyFinderError):
            memo[key]
    with pytest.raises(KeyFinderError, match="has the same hash as many other keys"):
        memo[last]
    assert len(memo) <= 300
