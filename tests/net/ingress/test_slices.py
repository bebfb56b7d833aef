"""Which connections stand in line for their slices."""

from __future__ import annotations

from s4node.net.ingress.slices import Slices

SHORT = 0.0001
LONG = 0.0008


def slices_of(*connections: str) -> Slices:
    slices = Slices()
    for connection in connections:
        slices.add(connection, 0.0)
    return slices


def line(slices: Slices, began: float, waiting: int) -> None:
    """A slice of the line of a millisecond."""
    slices.ended("a", began, began + 0.001, 0)
    slices.line_ended(waiting)


def test_a_connection_alone_has_long_slices_and_waits_for_nobody() -> None:
    slices = slices_of("a")
    alone = slices.most

    slices.add("b", 0.0)

    assert slices_of("a").in_line("a") is False
    assert slices.most < alone


def test_new_connections_stand_in_line_until_their_slices_have_been_short_for_a_while() -> None:
    slices = slices_of("a", "b", "c")

    slices.ended("a", 0.01, 0.01 + SHORT, 0)
    assert slices.in_line("a")

    slices.ended("a", 0.1, 0.1 + SHORT, 0)
    assert not slices.in_line("a")
    assert slices.in_line("b")


def test_one_short_slice_between_long_ones_does_not_leave_the_line() -> None:
    slices = slices_of("a", "b")
    for number in range(100):
        began = number / 100
        slices.ended("a", began, began + (LONG if number % 2 else SHORT), 0)

        assert slices.in_line("a")


def test_a_connection_amid_a_long_message_stands_in_line_though_its_slices_are_short() -> None:
    slices = slices_of("a", "b")

    slices.ended("a", 1.0, 1.0 + SHORT, 1_000_000)

    assert slices.in_line("a")


def test_the_last_busy_connection_waits_for_nobody_when_the_others_have_gone() -> None:
    slices = slices_of("a", "b")

    slices.remove("b")

    assert not slices.in_line("a")


def test_the_line_has_a_quarter_of_the_time_if_the_rest_of_the_process_takes_long() -> None:
    slices, now, spent = slices_of("a", "b"), 1.0, 0.0
    began = now
    for _ in range(300):
        now += 0.03  # what is not of the line
        for _ in range(slices.at_once):
            line(slices, now, waiting=100)
            now, spent = now + 0.001, spent + 0.001

    assert 0.22 < spent / (now - began) < 0.26


def test_one_of_the_line_has_a_slice_at_a_time_if_the_rest_takes_little() -> None:
    slices, now = slices_of("a", "b"), 1.0
    for _ in range(300):
        line(slices, now, waiting=100)
        now += 0.003

        assert slices.at_once == 1


def test_a_pause_in_which_nobody_waits_does_not_count_as_the_lines_time() -> None:
    slices = slices_of("a", "b")

    line(slices, 1.0, waiting=0)
    line(slices, 9.0, waiting=1)

    assert slices.at_once == 1


def test_after_a_long_pause_the_line_is_owed_little() -> None:
    slices = slices_of("a", "b")

    line(slices, 1.0, waiting=1)
    line(slices, 9.0, waiting=1)

    assert slices.at_once == 21
