"""The promises of the order of processing: what is full is worked off, and nothing deadlocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.runtime.loop.backpressure import Edges, Order


@pytest.mark.parametrize(
    ("edges", "full", "held"),
    [
        ([], "ab", ""),
        (["in>a"], "", ""),
        (["in>a"], "a", "in"),
        (["in>a", "a>b"], "b", "a"),  # one hop: the input goes on until a is full, too
        (["in>a", "a>b"], "ab", "a in"),
        (["in>a", "other>b"], "a", "in"),
        (["in>out", "in>a"], "out", "in"),
        (["in>a", "a>a"], "a", "in"),  # what feeds itself goes on
        (["a>b", "b>a", "in>a"], "b", ""),
        (["a>b", "b>a", "in>a"], "a", "in"),
        (["a>b", "b>a", "b>out"], "out", "b"),
        (["a>b", "b>c", "c>a", "c>d", "d>d"], "abcd", "c"),
    ],
)
def test_a_stream_is_held_while_one_that_it_puts_on_is_full(
    edges: list[str], full: str, held: str
) -> None:
    found = order(*edges)
    for stream in [full] if full == "out" else full:
        found.filled(stream, 0)
    assert found.held == set(held.split())
    found.validate()


def test_a_stream_is_full_while_any_of_its_stages_is() -> None:
    found = order("in>a")
    found.filled("a", 0)
    found.filled("a", 1)
    found.filled("a", 1)
    assert not found.emptied("a", 0)
    assert found.held == {"in"}
    assert found.emptied("a", 1)
    assert found.held == set()
    assert not found.emptied("a", 1)


def test_an_edge_that_is_learned_counts_at_once() -> None:
    found = order()
    found.filled("a", 0)
    assert found.learn("in", "a")
    assert not found.learn("in", "a")
    assert found.held == {"in"}
    assert found.feeding == set()
    assert found.learn("a", "in")  # now they feed themselves
    assert found.held == set()
    assert found.feeding == {"in"}
    assert not found.emptied("a", 0)
    assert found.feeding == set()


@pytest.mark.parametrize(
    ("edges", "stream", "path"),
    [
        (["a>a"], "a", ["a", "a"]),
        (["a>b", "b>a"], "b", ["b", "a", "b"]),
        (["a>b", "b>c", "c>a", "c>b"], "a", ["a", "b", "c", "a"]),
        (["in>a", "a>b"], "in", []),
        (["in>a", "a>a"], "in", []),
        ([], "a", []),
    ],
)
def test_the_path_from_a_stream_back_to_itself_is_reported(
    edges: list[str], stream: str, path: list[str]
) -> None:
    assert order(*edges).edges.cycle(stream) == path


STREAMS = "abcdef"
PAIRS = st.tuples(st.sampled_from(STREAMS), st.sampled_from(STREAMS))


@given(st.lists(PAIRS, max_size=14), st.sets(st.sampled_from(STREAMS), min_size=1))
def test_whatever_is_full_some_stream_may_be_processed(
    edges: list[tuple[str, str]], full: set[str]
) -> None:
    """No deadlock: of the full streams that only full streams hold, one at least is not held."""
    found = Order(Edges())
    for source, target in edges:
        found.learn(source, target)
    for stream in full:
        found.filled(stream, 0)
    found.validate()
    assert full - found.held


@given(st.lists(PAIRS, max_size=14), st.lists(st.sampled_from(STREAMS), max_size=20))
def test_learning_step_by_step_ends_where_knowing_from_the_start_ends(
    edges: list[tuple[str, str]], toggled: list[str]
) -> None:
    step = Order(Edges())
    full: set[str] = set()
    for index, stream in enumerate(toggled):
        if index < len(edges):
            step.learn(*edges[index])
        if stream in full:
            full.remove(stream)
            step.emptied(stream, 0)
        else:
            full.add(stream)
            step.filled(stream, 0)
        step.validate()
    for edge in edges:
        step.learn(*edge)
    found: dict[str, set[str]] = {}
    for source, target in edges:
        found.setdefault(source, set()).add(target)
    whole = Order(Edges(found))
    for stream in full:
        whole.filled(stream, 0)
    assert step.held == whole.held
    assert step.edges.groups == whole.edges.groups


# -- set-up ---------------------------------------------------------------------------------------


def order(*edges: str) -> Order:
    found: dict[str, set[str]] = {}
    for edge in edges:
        source, target = edge.split(">")
        found.setdefault(source, set()).add(target)
    return Order(Edges(found))
