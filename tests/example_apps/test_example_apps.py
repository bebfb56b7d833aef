"""The example apps, tested with the kit: this is how an app's own tests look."""

from __future__ import annotations

import importlib
import socket
import time
from pathlib import Path

import msgspec
import pytest

from apps.flights.adapter import FlightsAdapter
from apps.flights.app import FlightsApp, RouteStatistics
from apps.flights.board import Board, Collect
from apps.flights.events import Figures, Flight, Report, Row
from apps.lines.adapter import LineAdapter
from apps.orders.app import Order, Orders
from apps.running import Failed, running, running_log
from apps.words.app import Total, Words
from s4node import GenericEvent
from s4node.errors import ProcessingError
from s4node.testing import AppTest

# --- hello ---------------------------------------------------------------------------------------


def test_hello_greets_every_name(capsys: pytest.CaptureFixture[str]) -> None:
    with AppTest(hello.app) as test:
        test.send("names", GenericEvent(name="joe"), GenericEvent(name="ann"))

    assert capsys.readouterr().out == "Hello joe!\nHello ann!\n"


def test_hello_refuses_an_event_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    with AppTest(hello.app) as test:
        test.send("names", GenericEvent(nickname="joe"), GenericEvent(name="ann"))

        [refused] = test.refused
        assert refused.event == GenericEvent(nickname="joe")

    assert capsys.readouterr().out == "Hello ann!\n"


# --- counter -------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 4])
def test_the_counter_counts_each_user_s_clicks(
    partitions: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with AppTest(counter.app, partitions=partitions) as test:
        test.send("clicks", *map(counter.Click, ("joe", "ann", "joe")))

        assert test.state("Count", "joe").clicks == 2
        assert test.state("Count", "ann").clicks == 1

    assert sorted(capsys.readouterr().out.splitlines()) == ["ann 1", "joe 1", "joe 2"]


# --- lines: an adapter whose source listens on a socket ------------------------------------------


def test_lines_become_events_with_the_attribute_that_the_parameter_names() -> None:
    with AppTest(
        LineAdapter,
        parameters={"port": 0, "attribute": "word"},
        settings={"s4.adapter.output.stream": "words"},
    ) as test:
        with socket.create_connection(("127.0.0.1", test.app.port)) as peer:
            peer.sendall(b"joe\r\n\nann\n")
            test.wait(lambda: len(test.output("words")) == 2)

        assert test.output("words") == [GenericEvent(word="joe"), GenericEvent(word="ann")]


def test_a_line_that_is_no_utf_8_is_answered_and_the_others_go_on() -> None:
    with AppTest(
        LineAdapter, parameters={"port": 0}, settings={"s4.adapter.output.stream": "names"}
    ) as test:
        with socket.create_connection(("127.0.0.1", test.app.port)) as peer:
            peer.sendall(b"\xff\xfe\nann\n")
            peer.shutdown(socket.SHUT_WR)
            test.wait(lambda: test.output("names"))
            peer.settimeout(10)
            assert peer.recv(1000) == b"error: a line is not UTF-8; it was dropped\n"

        assert test.output("names") == [GenericEvent(name="ann")]


LONG = b"error: a line is too long; it was dropped\n"


@pytest.mark.parametrize(
    "pieces",
    [
        [b"x" * 21 + b"\nann\n" + b"y" * 20 + b"\nbob"],
        [b"x" * 15, b"x" * 6 + b"\nann\n" + b"y" * 20 + b"\nbob"],
        [b"x" * 30, b"x" * 30, b"x\nan", b"n\n" + b"y" * 20 + b"\nbob"],
        [b"x" * 15, b"x" * 15, b"\n", b"ann\n" + b"y" * 20, b"\nbob"],
        [b"x" * 21 + b"\r\nann\r\n" + b"y" * 20 + b"\r\nbob\r\n"],
        [b"x" * 20, b"x\r", b"\nann\r\n" + b"y" * 20 + b"\r", b"\nbob\r\n"],
    ],
)
def test_a_line_that_is_too_long_is_answered_however_it_comes_and_the_others_go_on(
    pieces: list[bytes],
) -> None:
    with AppTest(
        LineAdapter,
        parameters={"port": 0, "longest": 20},
        settings={"s4.adapter.output.stream": "names"},
    ) as test:
        with socket.create_connection(("127.0.0.1", test.app.port)) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in pieces:
                peer.sendall(piece)
                time.sleep(0.02)  # so that it is read as it was sent, mostly
            peer.shutdown(socket.SHUT_WR)
            test.wait(lambda: len(test.output("names")) == 3)
            peer.settimeout(10)
            assert peer.recv(1000) == LONG
        names = ["ann", "y" * 20, "bob"]
        assert test.output("names") == [GenericEvent(name=name) for name in names]


def test_lines_wait_while_nobody_takes_their_events() -> None:
    with AppTest(
        LineAdapter, parameters={"port": 0}, settings={"s4.adapter.output.stream": "names"}
    ) as test:
        test.overflow("names")
        with socket.create_connection(("127.0.0.1", test.app.port)) as peer:
            peer.sendall(b"joe\n\xff\n")
            peer.shutdown(socket.SHUT_WR)
            peer.settimeout(10)
            test.wait(lambda: is_readable(peer))
            assert test.output("names") == []

            test.relieve("names")
            test.wait(lambda: test.output("names"))

        assert test.output("names") == [GenericEvent(name="joe")]


def is_readable(peer: socket.socket) -> bool:
    """Whether the adapter has answered, and so has read what was sent."""
    peer.setblocking(False)
    try:
        return bool(peer.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


# --- flights -------------------------------------------------------------------------------------


def flight(route: str, carrier: str = "AA", tail: str = "N1", delay: int | None = 0) -> Flight:
    return Flight(carrier, route, tail, delay, delay, 0)


@pytest.mark.parametrize("partitions", [1, 8])
def test_flights_are_counted_for_their_route_their_carrier_and_their_aircraft(
    partitions: int,
) -> None:
    with AppTest(FlightsApp, partitions=partitions) as test:
        test.send(
            "flights",
            flight("JFK-LAX", "AA", "N1", delay=20),
            flight("JFK-LAX", "UA", "N2", delay=-5),
            flight("EWR-SFO", "UA", "N2", delay=None),
        )

        route = test.state(RouteStatistics, "JFK-LAX")
        assert (route.flights, route.delay_sum, route.delay_max, route.late) == (2, 15, 20, 1)
        assert test.state("carrier", "UA").flights == 2
        assert test.state("carrier", "UA").cancelled == 1
        assert sorted(test.keys("aircraft")) == ["N1", "N2"]


def test_figures_are_reported_after_half_a_second_and_only_when_they_have_changed() -> None:
    with AppTest(FlightsApp) as test:
        test.send("flights", flight("JFK-LAX", delay=20))
        test.advance(seconds=0.4)
        assert test.output("reports") == []

        test.advance(seconds=0.1)
        assert {(r.kind, r.key, r.flights) for r in test.take_output("reports")} == {
            ("route", "JFK-LAX", 1),
            ("carrier", "AA", 1),
            ("aircraft", "N1", 1),
        }

        test.advance(seconds=60)
        assert test.take_output("reports") == []


def test_the_adapter_makes_a_flight_of_a_row() -> None:
    with AppTest(FlightsAdapter, settings={"s4.adapter.output.stream": "flights"}) as test:
        test.send("rows", Row("AA", "N1", "JFK", "LAX", 3, 20, 1_000))

        assert test.output("flights") == [Flight("AA", "JFK-LAX", "N1", 3, 20, 1_000)]


def test_the_board_keeps_the_latest_report_of_each_key() -> None:
    with AppTest(Board) as test:
        for flights in (1, 2):
            test.send("reports", Report("route", "JFK-LAX", flights, 0, 1, 20, 20, 20, 1))

        assert test.app.figures["route"] == {"JFK-LAX": Figures(2, 0, 1, 20, 20, 20, 1)}
        assert test.state(Collect).key is None


def test_a_statistics_pe_that_fails_stops_the_app_and_says_where() -> None:
    with AppTest(FlightsApp) as test:
        test.fail("carrier", "AA", ValueError("no such carrier"))

        with pytest.raises(
            ProcessingError, match=r"DelayStatistics of app 'FlightsApp' raised Value"
        ):
            test.send("flights", flight("JFK-LAX", "AA"))
        assert test.state("route", "JFK-LAX").flights == 1


# --- words: an internal stream, and totals that are told by a timer -------------------------------


@pytest.mark.parametrize("partitions", [1, 4])
def test_words_are_counted_whatever_line_they_come_in(partitions: int) -> None:
    with AppTest(Words, partitions=partitions) as test:
        test.send("lines", GenericEvent(line="To be or"), GenericEvent(line="not to be"))
        assert test.output("totals") == []
        test.advance(seconds=1)

        told = sorted((total.word, total.count) for total in test.output("totals"))
        assert told == [("be", 2), ("not", 1), ("or", 1), ("to", 2)]


def test_only_totals_that_have_changed_are_told_again() -> None:
    with AppTest(Words) as test:
        test.send("lines", GenericEvent(line="to be"))
        test.advance(seconds=1)
        test.send("lines", GenericEvent(line="be"))
        test.advance(seconds=5)

        assert test.output("totals")[2:] == [Total("be", 2)]


# --- orders: sums of a topic, which the app writes to another one -------------------------------


@pytest.mark.parametrize("partitions", [1, 3])
def test_the_sums_of_each_minute_are_published_once_whatever_is_killed(partitions: int) -> None:
    with AppTest(Orders, partitions=partitions) as test:
        test.send("orders", Order("ann", 60, 3), Order("bob", 90, 1))
        test.advance(seconds=2)
        test.crash()
        test.send("orders", Order("ann", 119, 4), Order("ann", 120, 5), Order("eve", 300, 1))
        test.advance(seconds=60)

        found = [(each.key, msgspec.json.decode(each.value or b"")) for each in
                 test.records("totals")]  # fmt: skip
        assert sorted((key, total["at"], total["amount"]) for key, total in found) == [
            (b"ann", 60, 7),
            (b"ann", 120, 5),
            (b"bob", 60, 1),
        ]


# -- set-up ---------------------------------------------------------------------------------------


hello = importlib.import_module("apps.hello.app")
counter = importlib.import_module("apps.counter.app")


def test_a_node_of_a_demo_that_dies_is_named_and_not_what_failed_because_of_it(
    tmp_path: Path,
) -> None:
    def demo() -> None:
        with running_log(tmp_path) as node:
            node.check()
            node.process.kill()
            node.process.wait()
            raise OSError("connection refused")

    with pytest.raises(Failed, match=r"s4 node archive was killed by SIGKILL; if it said") as told:
        demo()
    assert isinstance(told.value.__cause__, OSError)


def test_a_node_of_a_demo_that_does_not_start_is_named() -> None:
    with (
        pytest.raises(Failed, match=r"s4 run absent ended with status 2; if it said why"),
        running("run", "absent"),
    ):
        pass
