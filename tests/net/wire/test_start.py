from __future__ import annotations

from typing import get_args

import pytest

from s4node.errors import StartpointError
from s4node.net.wire import frame as wire
from s4node.net.wire.start import Positions, Start, read_start, write_start
from s4node.offsets.startpoint import Oldest, Timestamp, Upcoming


def test_every_start_is_read_as_it_was_written() -> None:
    starts = [Oldest(), Upcoming(), Timestamp(5), Positions()]
    assert {type(start) for start in starts} == set(get_args(Start))
    for start in starts:
        assert read_start({wire.START: write_start(start)}) == start


def test_a_reader_that_says_no_start_begins_with_the_upcoming_event() -> None:
    assert read_start({}) == Upcoming()


@pytest.mark.parametrize("value", [[1], True, None, "newest", 1 << 63])
def test_another_value_is_not_a_start(value: object) -> None:
    with pytest.raises(StartpointError):
        read_start({wire.START: value})
