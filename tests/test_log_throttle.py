"""Warnings that peers can bring about are written seldom, and nothing grows with their number."""

from __future__ import annotations

from s4node.log_throttle import LogThrottle


def test_the_first_warning_is_written_and_a_later_one_counts_those_left_out() -> None:
    seldom = LogThrottle(60)
    assert [seldom.left_out("a", now) for now in (0, 1, 59.9)] == [0, None, None]
    assert seldom.left_out("b", 30) == 0
    assert seldom.left_out("a", 60) == 2
    assert seldom.left_out("a", 119) is None
    assert seldom.left_out("a", 500) == 1


def test_several_lines_of_a_kind_may_be_written_in_the_time() -> None:
    often = LogThrottle(1, 3)
    assert [often.left_out("a", now / 10) for now in range(5)] == [0, 0, 0, None, None]
    assert [often.left_out("a", 1 + now / 10) for now in range(4)] == [2, 0, 0, None]


def test_beyond_a_thousand_kinds_the_oldest_is_forgotten() -> None:
    seldom = LogThrottle(60)
    for n in range(1001):
        assert seldom.left_out(n, n / 1000) == 0
    assert seldom.left_out(1, 2) is None
    assert seldom.left_out(0, 2) == 0
