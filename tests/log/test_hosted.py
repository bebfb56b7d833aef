"""A stream of the log between its producers and its files, where the files are the test's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from harness import data_frame

from s4node.errors import StoreError
from s4node.events.event import GenericEvent
from s4node.events.keys import Partitioner
from s4node.events.type_declaration import fingerprint_of
from s4node.log.hosted import HostedStream, Shared
from s4node.log.partition.ledger import Appended, Incoming
from s4node.log.writer import Answer, Done
from s4node.net.ingress.connection import Waker
from s4node.net.ingress.producer_lane import Effects
from s4node.net.wire import frame as wire
from s4node.stages.executors import DESERIALIZER, UNLIMITED, StageSettings
from s4node.stages.stage import Gauge


def test_a_lane_appends_its_own_part_of_a_frame_after_the_other_parts() -> None:
    stream, own, other = hosted()
    send(stream, 0)
    send(stream, 2)
    assert [len(each.asked) for each in (own, other)] == [0, 2]
    other.answer(Appended(0, 1, 2))
    assert [frame.first for frame, _ in own.asked] == [0]
    own.answer(Appended(0, 1, 2))
    assert stream.admission.lanes["a", OWN].safe == 2


def test_a_frame_after_one_that_a_closed_log_refused_is_not_appended() -> None:
    stream, own, other = hosted()
    send(stream, 0)
    send(stream, 2)
    other.answer(StoreError("the log is closed"))
    other.answer(Appended(0, 1, 4))
    send(stream, 4)
    other.answer(Appended(1, 1, 6))
    assert own.asked == []
    assert stream.admission.lanes["a", OWN].safe == 0


def test_an_answer_tells_the_newest_types_that_make_it_no_longer_than_one_connection_may() -> None:
    stream, _, _ = hosted()
    for number in range(5):
        fields = tuple((f"{'x' * 200}{number}_{n}", "str", True) for n in range(500))
        declared = wire.TypeDecl(f"Long{number}", fingerprint_of(f"Long{number}", fields), fields)
        assert not stream.declare([declared])
    assert [kind.name for kind in stream.declared_types] == ["Long3", "Long4"]


# -- set-up ---------------------------------------------------------------------------------------


OWN, OTHER = 0, 1

PLACES = Partitioner(2)

USERS = [
    next(f"u{n}" for n in range(99) if PLACES.partition_of(f"u{n}") == p) for p in (OWN, OTHER)
]


class Files:
    """A partition that keeps what is to be appended until the test answers."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.types: dict[int, Any] = {}
        self.producers: dict[str, Any] = {}
        self.asked: list[tuple[Incoming, Done]] = []

    def parts(self, _: str) -> dict[int, int]:
        return {}

    def append(self, frame: Incoming, done: Done) -> None:
        self.asked.append((frame, done))

    def answer(self, answer: Answer) -> None:
        self.asked.pop(0)[1](answer)


def hosted() -> tuple[HostedStream, Files, Files]:
    """A stream with a key to whom a producer ``a`` has said hello, and its partitions."""
    own, other = Files(OWN), Files(OTHER)
    stream: Any = SimpleNamespace(
        name="clicks", partitions=(own, other), hasher="crc32m", key="user"
    )
    queue = Gauge(StageSettings(DESERIALIZER, capacity=UNLIMITED, max_bytes=1 << 20))
    made = HostedStream(stream, Shared(queue, Effects(), Waker()), capacity=100)
    made.hello(wire.Hello("a", "1", "clicks", positions=(wire.Position(OWN, 0),)), "line", 0.0)
    return made, own, other


def send(stream: HostedStream, first: int) -> None:
    """An event for each partition, to the lane of one."""
    events = [GenericEvent(user=user) for user in USERS]
    header, body = data_frame("clicks", "a", first, events, partition=OWN)
    assert isinstance(header, wire.Data)
    assert stream.on_data(header, memoryview(body), "line", 0.0) == ""
