"""The promises of a parallel stream: so many at a time, each key in order, nobody forgotten."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from s4node.stages.key_order import KeyOrder


@given(
    st.integers(1, 5),
    st.lists(st.one_of(st.sampled_from("abcd"), st.just("begin"), st.just("end")), max_size=80),
    st.randoms(use_true_random=False),
)
def test_each_key_is_in_order_and_nothing_that_could_run_waits(
    limit: int, moves: list[str], random: object
) -> None:
    found: KeyOrder[int] = KeyOrder(limit)
    added = defaultdict[str, list[int]](list)
    ended = defaultdict[str, list[int]](list)
    running: dict[str, int] = {}

    def begin() -> bool:
        one = found.begin_event()
        found.validate()
        if one is None:
            waiting = {key for key in added if len(added[key]) > len(ended[key]) + (key in running)}
            assert len(running) == limit or not waiting - running.keys()
            return False
        key = str(one[0])
        assert key not in running
        running[key] = one[1]
        return True

    def end() -> None:
        key = random.choice(sorted(running))  # type: ignore[attr-defined]
        ended[key].append(running.pop(key))
        found.end_event(key)
        found.validate()

    for number, move in enumerate(moves):
        if move == "begin":
            begin()
        elif move == "end":
            if running:
                end()
        else:
            added[move].append(number)
            found.add(move, number)
        assert found.outstanding == len(running)
    while begin() or running:
        if running:
            end()
    assert added == {key: numbers for key, numbers in ended.items() if numbers} or ended == added
