"""Which streams of a graph feed themselves, and a shortest cycle of each group."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.app.plan.cycles import components, cycles, describe


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({}, []),
        ({"a": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"a"}}, [["a"]]),
        ({"a": {"b"}, "b": {"a"}}, [["a", "b"]]),
        ({"b": {"a"}, "a": {"b"}}, [["a", "b"]]),
        ({"in": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"b", "out"}, "out": set()}, [["b", "c", "d"]]),
        ({"x": {"x"}, "a": {"b"}, "b": {"a", "x"}}, [["a", "b"], ["x"]]),
        ({"a": {"b", "c"}, "b": {"d"}, "c": {"a"}, "d": {"a"}}, [["a", "c"]]),  # the shortest
        ({"a": {"gone"}}, []),  # a target that is not a key of its own
        ({"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"c", "a"}}, [["a", "b"], ["c", "d"]]),
    ],
)
def test_each_group_that_feeds_itself_is_reported_with_a_shortest_cycle(
    graph: dict[str, set[str]], found: list[list[str]]
) -> None:
    assert cycles(graph) == found


@pytest.mark.parametrize(
    ("cycle", "words"), [(["a"], "a -> a"), (["a", "b"], "a -> b -> a"), ([], "")]
)
def test_a_cycle_is_described_as_a_path_that_ends_where_it_began(
    cycle: list[str], words: str
) -> None:
    assert describe(cycle) == words


def test_a_chain_of_ten_thousand_streams_is_no_deep_recursion() -> None:
    graph = {str(n): {str(n + 1)} for n in range(10_000)}
    assert cycles(graph) == []

    graph["10000"] = {"0"}
    assert len(cycles(graph)[0]) == 10_001


NAMES = st.sampled_from("abcdefgh")


@given(st.dictionaries(NAMES, st.sets(NAMES)), st.randoms())
def test_groups_are_those_of_mutual_reach_in_whatever_order_the_edges_come(
    graph: dict[str, set[str]], order: random.Random
) -> None:
    reach = {name: set(targets) for name, targets in graph.items()}
    for _ in "abcdefgh":
        for targets in reach.values():
            targets |= {far for near in targets for far in reach.get(near, ())}
    groups = {
        tuple(sorted(b for b in reach if b in reach[a] and a in reach[b]))
        for a in reach
        if a in reach[a]
    }
    assert components(graph) == sorted(map(list, groups))

    shuffled = list(graph.items())
    order.shuffle(shuffled)
    assert cycles(dict(shuffled)) == cycles(graph)
    for cycle in cycles(graph):
        assert all(b in graph[a] for a, b in zip(cycle, [*cycle[1:], cycle[0]], strict=True))
