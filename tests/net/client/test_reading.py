"""The promises of a reading: each event of a log once and in order, and no more than its window."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.errors import ConnectionRefused, InputLost, StartpointError, UnknownStream
from s4node.events.event import Event
from s4node.events.schema import EventType
from s4node.net.client.reading import Arrived, Lost, Reading
from s4node.net.wire import frame as wire
from s4node.offsets.startpoint import Oldest, Specific, Upcoming


@given(
    total=st.integers(1, 200),
    row=st.integers(1, 30),
    window=st.integers(1, 60),
    acts=st.lists(st.sampled_from(["send", "send", "read", "cut", "pause", "resume"]), max_size=80),
)
def test_each_event_comes_once_in_order_whatever_is_cut_paused_or_slow(
    total: int, row: int, window: int, acts: list[str]
) -> None:
    reading, arrived = a_reading(window=window)
    node = Node(total, row)
    read: list[int] = []

    def connect() -> None:
        node.hear(hello(reading))
        reading.on_hello(welcome(wire.Position(0, node.at, node.limit, total)))
        for header in said(reading):
            node.hear(header)

    def take() -> None:
        if arrived:
            one = arrived.pop(0)
            assert isinstance(one, Arrived)
            read.extend(numbers([one]))
            reading.acknowledge(one.place, one.end)

    connect()
    for act in acts:
        match act:
            case "send":
                node.send(reading)
            case "read":
                take()
            case "cut":
                reading.disconnected()
                connect()
            case "pause":
                reading.pause()
            case "resume":
                reading.resume()
        for header in said(reading):
            node.hear(header)
        waiting = sum(one.end - one.first for one in arrived if isinstance(one, Arrived))
        assert waiting < window + row  # a row that begins below the limit comes whole
    reading.resume()
    while len(read) < total:
        for header in said(reading):
            node.hear(header)
        if not node.send(reading):
            assert arrived, "the reader waits for the node, and the node for credit"
            take()
    assert read == list(range(total))


def test_a_first_hello_names_the_start_and_a_later_one_the_positions() -> None:
    reading, _ = a_reading(Oldest(), window=10)
    assert hello(reading).headers[wire.START] == wire.OLDEST
    reading.on_hello(welcome(wire.Position(0, 3, 3, 9), wire.Position(1, 7, 7, 7)))
    assert [v.rulings[0].limit for v in said(reading) if isinstance(v, wire.Verdict)] == [13, 17]
    reading.on_data(*data(3, 2))
    reading.disconnected()
    again = hello(reading)
    assert again.headers[wire.START] == wire.POSITIONS
    assert [(p.partition, p.number) for p in again.positions] == [(0, 5), (1, 7)]


def test_a_gap_is_not_taken_and_a_repetition_is_trimmed() -> None:
    reading, arrived = a_reading({0: 5})
    reading.on_hello(welcome(wire.Position(0, 5, 105, 20)))
    assert "continues at 7, but 5 is missing" in reading.on_data(*data(7, 3))
    assert reading.on_data(*data(3, 4)) == ""
    assert reading.on_data(*data(3, 4)) == ""
    assert reading.on_data(*data(0, 10)) == ""
    assert numbers(arrived) == [5, 6, 7, 8, 9]


def test_a_loss_is_reported_once_after_what_came_before_it() -> None:
    reading, arrived = a_reading({0: 0})
    reading.on_hello(welcome(wire.Position(0, 0, 100, 50)))
    reading.on_data(*data(0, 4))
    for _ in range(2):
        reading.on_idle(wire.Idle("clicks", "r", headers={wire.LOST: [0, 4, 40]}))
    assert len(arrived) == 2
    lost = arrived[1]
    assert isinstance(lost, Lost)
    assert isinstance(lost.error, InputLost)
    assert "was 4, but the oldest event is 40" in str(lost.error)
    reading.disconnected()
    assert hello(reading).positions == ()


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({wire.FAULT: "UnknownStream"}, UnknownStream),
        ({wire.FAULT: "StartpointError"}, StartpointError),
        ({wire.FAULT: "SystemExit"}, ConnectionRefused),
        ({wire.FAULT: "ProcessingError"}, ConnectionRefused),
        ({}, ConnectionRefused),
    ],
)
def test_a_node_s_error_is_one_of_ours(headers: Any, error: type[Exception]) -> None:
    reading, _ = a_reading()
    reading.on_hello(wire.Hello("node", "", "clicks", error="no", headers=headers))
    assert type(reading.error) is error


def test_a_live_stream_is_read_from_now_on_only() -> None:
    reading, _ = a_reading(Oldest())
    reading.on_hello(welcome(headers={}))
    assert isinstance(reading.error, StartpointError)
    assert not reading.opened
    live, arrived = a_reading(Upcoming())
    live.on_hello(welcome(headers={}))
    live.on_data(*data(0, 3))
    live.disconnected()
    live.on_hello(welcome(headers={}))
    live.on_data(*data(0, 2))
    assert (numbers(arrived), live.interruptions) == ([0, 1, 2, 0, 1], 1)


def test_one_offset_for_several_partitions_is_refused() -> None:
    reading, _ = a_reading(Specific(3))
    reading.on_hello(welcome(wire.Position(0, 3, 103, 9), partitions=4))
    assert "has 4 partitions, each with its own offsets" in str(reading.error)


# -- set-up ---------------------------------------------------------------------------------------


class Click(Event):
    n: int


CLICK = EventType(Click)

LOG = {wire.LOG: True}

OLDEST = Oldest()


def a_reading(start: Any = OLDEST, window: int = 100) -> tuple[Reading, list[Arrived | Lost]]:
    arrived: list[Arrived | Lost] = []
    reading = Reading(
        "clicks",
        "r",
        [Click],
        start,
        window=window,
        window_bytes=1 << 20,
        others=False,
        deliver=arrived.append,
    )
    return reading, arrived


def welcome(*positions: wire.Position, headers: Any = LOG, partitions: int = 0) -> wire.Hello:
    return wire.Hello(
        "node",
        "",
        "clicks",
        (CLICK.declaration,),
        "crc32m:",
        partitions or len(positions) or 1,
        positions,
        headers=headers,
    )


def data(
    first: int, count: int, partition: int = 0, **headers: Any
) -> tuple[wire.Data, memoryview]:
    body = CLICK.encode([Click(n) for n in range(first, first + count)])
    sections = (wire.Section(CLICK.fingerprint, count, len(body)),)
    header = wire.Data("clicks", partition, "r", first, count, sections, headers=headers)
    return header, memoryview(body)


def said(reading: Reading) -> list[wire.Header]:
    frames = wire.read_envelope(wire.envelope(reading.take_said()), 1 << 20)
    return [frame.header for frame in frames if isinstance(frame, wire.Frame)]


def hello(reading: Reading) -> wire.Hello:
    (frame,) = wire.read_envelope(wire.envelope([reading.hello_frame()]), 1 << 20)
    assert isinstance(frame.header, wire.Hello)
    return frame.header


def numbers(arrived: list[Arrived | Lost]) -> list[int]:
    found = []
    for one in arrived:
        assert isinstance(one, Arrived)
        events, refusals = one.reading.decoder.decode(one.data, one.body)
        assert refusals == []
        found += [event.n for event in events[one.first - one.data.first :]]
    return found


class Node:
    """A log with one partition, as its node sends it: any row size, never beyond the credit."""

    def __init__(self, total: int, row: int) -> None:
        self.total, self.row = total, row
        self.at = self.limit = 0

    def hear(self, header: wire.Header) -> None:
        if isinstance(header, wire.Hello):
            self.at, self.limit = 0, 0
            if header.headers[wire.START] == wire.POSITIONS:
                (position,) = header.positions
                self.at, self.limit = position.number, position.limit
        elif isinstance(header, wire.Verdict):
            self.limit = max(self.limit, header.rulings[0].limit)

    def send(self, reading: Reading) -> bool:
        if self.at >= min(self.limit, self.total):
            return False
        first = self.at // self.row * self.row  # whole rows, from before the position on
        count = min(self.row, self.total - first)
        assert reading.on_data(*data(first, count)) == ""
        self.at = first + count
        return True
