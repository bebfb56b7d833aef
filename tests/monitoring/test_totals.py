"""Totals: a counter is the sum of sources that come and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from s4node.monitoring.exposition import Series, Totals

SERIES: Series = ("s4_task_processed_total", (("app", "counter"),))


def collect(totals: Totals, **counts: float) -> float:
    for source, count in counts.items():
        totals.add(SERIES, source, count)
    return totals.collected()[SERIES]


def test_what_a_source_has_counted_stays_when_it_has_gone() -> None:
    totals = Totals()
    assert collect(totals, one=5, two=7) == 12
    assert collect(totals, two=8) == 13  # one has moved away
    assert collect(totals, one=2, two=8) == 15  # it is back, and began again


def test_a_source_that_begins_again_under_its_name_counts_from_zero() -> None:
    totals = Totals()
    assert collect(totals, one=5) == 5
    assert collect(totals, one=1) == 6


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 50)), max_size=20))
def test_a_total_never_falls_and_has_each_gain_once(steps: list[dict[str, int]]) -> None:
    totals, counted, before, last = Totals(), dict.fromkeys("abc", 0), 0.0, {}
    for step in steps:
        for source, more in step.items():
            counted[source] = counted[source] + more if source in last else more
        last = {source: counted[source] for source in step}
        now = collect(totals, **last) if last else totals.collected().get(SERIES, 0)
        assert now == before + sum(step.values())
        before = now
