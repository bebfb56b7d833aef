"""The promises of the message chooser: every batch once, inputs in turns."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from s4node.container.chooser import RoundRobin
from s4node.event import EventBatch


def batch(stream: str) -> EventBatch:
    return EventBatch(stream, 0, ["event"])


def test_nothing_offered_is_nothing_chosen() -> None:
    assert RoundRobin[str]().choose() is None


def test_first_offered_is_first_chosen() -> None:
    chooser = RoundRobin[str]()
    one, two = batch("a"), batch("b")
    chooser.update("a", one)
    chooser.update("b", two)
    assert chooser.choose() == ("a", one)
    assert chooser.choose() == ("b", two)
    assert chooser.choose() is None


@given(st.integers(1, 5), st.integers(1, 40))
def test_inputs_that_always_have_a_batch_take_turns(inputs: int, rounds: int) -> None:
    chooser = RoundRobin[int]()
    for source in range(inputs):
        chooser.update(source, batch(str(source)))
    turns = []
    for _ in range(rounds):
        chosen = chooser.choose()
        assert chosen is not None
        turns.append(chosen[0])
        chooser.update(chosen[0], batch(str(chosen[0])))
    assert turns == [turn % inputs for turn in range(rounds)]


@given(st.lists(st.integers(0, 4) | st.none(), max_size=50))
def test_every_batch_is_chosen_exactly_once_with_its_input(moves: list[int | None]) -> None:
    """A number: that input offers a batch if it has none here; None: one is chosen."""
    chooser = RoundRobin[int]()
    offered: dict[int, EventBatch] = {}
    counts: Counter[int] = Counter()
    for move in moves:
        if move is not None and move not in offered:
            offered[move] = batch(str(move))
            chooser.update(move, offered[move])
            counts[move] += 1
        elif move is None:
            chosen = chooser.choose()
            if chosen is None:
                assert not offered
            else:
                assert offered.pop(chosen[0]) is chosen[1]
                counts[chosen[0]] -= 1
    while (chosen := chooser.choose()) is not None:
        assert offered.pop(chosen[0]) is chosen[1]
        counts[chosen[0]] -= 1
    assert not offered
    assert set(counts.values()) <= {0}
