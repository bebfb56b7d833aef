"""The promises of an input port: it admits by the header, and only poison events are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.app.app import App
from s4node.app.stream import InputStream
from s4node.events.event import Event, GenericEvent
from s4node.events.keys import Partitioner
from s4node.events.schema import EventType
from s4node.events.type_declaration import TypeDecl, fingerprint_of
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.ingress.producer_lane import Effects
from s4node.net.wire import frame as wire
from s4node.runtime.inputs.frame_batches import PIECE
from s4node.runtime.inputs.port import InputPort
from s4node.stages.stage import Stage


class Click(Event):
    user: str
    percent: int = 0

    def __post_init__(self) -> None:
        if self.percent < 0:
            raise KeyError("below zero")


class Order(Event):
    user: str


CLICK, ORDER = EventType(Click), EventType(Order)


def body_of(*events: Any) -> bytes:
    return msgspec.msgpack.encode(list(events))


# --- senders -------------------------------------------------------------------------------------


def test_who_has_sent_forwarded_events_is_believed_of_a_node_of_the_cluster_only() -> None:
    for member, told in ((True, [("bank", 2), ("till", 3)]), (False, [("p", 3)])):
        node = Node()
        node.hello(CLICK.declaration)
        if member:
            node.port.members.add(PEER)
        clicks = [Click("a"), Click("b"), Click("c")]
        headers = {wire.SENDERS: [("bank", 2), ("till", 1)]}
        assert not node.data(body_of(*clicks), 3, headers=headers)
        [batch] = node.batches
        assert batch.receipt is not None
        assert batch.receipt.senders(0, 3) == told
        assert batch.position(1).endswith("p:1 from bank" if member else "p:1")


@pytest.mark.parametrize(
    "header",
    [7, [7], [("a",)], [("a", 1)], [("a", 4)], [("a", -1), ("b", 4)], [(1, 3)], [("a", "3")]],
)
def test_senders_that_do_not_add_up_are_ignored(header: Any) -> None:
    node = Node()
    node.hello(CLICK.declaration)
    node.port.members.add(PEER)
    body = body_of(Click("a"), Click("b"), Click("c"))
    assert not node.data(body, 3, headers={wire.SENDERS: header})
    assert node.batches[0].position(0).endswith("p:0")


def test_senders_are_known_until_their_events_are_done_and_are_noted_once() -> None:
    node = Node()
    node.hello(CLICK.declaration)
    node.port.members.add(PEER)
    lane = node.port.admission.lanes["p", 0]
    lane.note_senders(0, [("a", 2), ("b", 2)])
    lane.note_senders(2, [("b", 2), ("", 1)])  # the frame comes again, with one event more
    lane.note_senders(7, [("c", 1)])  # a frame before it had none
    assert lane.senders(1, 9) == [("a", 2), ("b", 4), ("p", 5), ("p", 7), ("c", 8), ("p", 9)]
    assert lane.senders(5, 6) == [("p", 6)]


# --- opening -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "routing"),
    [("user", "crc32m:user"), (["user", "percent"], "crc32m:user+percent"), (None, "crc32m:")],
)
def test_the_answer_tells_types_routing_partitions_and_the_largest_frame(
    key: Any, routing: str
) -> None:
    answer = Node(2, key).hello(CLICK.declaration)
    assert answer == wire.Hello(
        "node",
        "n1",
        "clicks",
        (CLICK.declaration,),
        routing,
        2,
        (wire.Position(0, 0, 1000, 0, 1), wire.Position(1, 0, 1000, 0, 1)),
        headers={wire.MAX_FRAME_BYTES: 4096, wire.PRODUCER: "p"},
    )


def test_an_unnamed_key_is_announced_as_unlike_any_other() -> None:
    answer = Node(2, lambda event: event.user).hello()
    assert answer.routing == f"crc32m:{wire.UNNAMED_KEY}"


def declared(name: str, *fields: tuple[str, str, bool]) -> TypeDecl:
    return TypeDecl(name, fingerprint_of(name, fields), fields)


USER = ("user", "str", True)


@pytest.mark.parametrize(
    ("types", "error"),
    [
        ((ORDER.declaration,), "takes Click, not 'Order'; send one of those"),
        ((declared("Click", ("name", "str", True)),), "fields may only be appended"),
        ((TypeDecl("Click", 5, (USER,)),), "5 is not the fingerprint of Click"),
    ],
)
def test_a_hello_that_does_not_fit_is_answered_with_why(types: Any, error: str) -> None:
    node = Node()
    answer = node.hello(*types)
    assert error in answer.error
    assert answer.positions == ()
    assert node.port.admission.lanes == {}


# --- frames --------------------------------------------------------------------------------------


def test_a_frame_is_one_batch_decoded_when_it_is_processed() -> None:
    node = Node()
    node.hello(CLICK.declaration)
    assert node.data(CLICK.encode([Click("a"), Click("b")]), 2) == ""
    (batch,) = node.batches
    assert (batch.size, batch.events) == (2, [])
    assert node.process() == [(0, [Click("a"), Click("b")], [0, 1])]
    assert node.safe() == 2


def test_an_older_version_of_a_type_is_read_with_defaults() -> None:
    older = declared("Click", USER)
    node = Node()
    assert node.hello(older).error == ""
    node.data(body_of(["joe"]), 1, fingerprint=older.fingerprint)
    assert node.process() == [(0, [Click("joe", 0)], [0])]


def test_only_the_poison_events_of_a_frame_are_refused() -> None:
    node = Node()
    node.hello(CLICK.declaration)
    node.data(body_of(["a"], [5], ["b"], ["c", -1], ["d", 1]), 5, first=0)
    assert node.process() == [(0, [Click("a"), Click("b"), Click("d", 1)], [0, 2, 4])]
    (one, why), (other, because) = node.refused()
    assert (one, other) == (1, 3)
    assert why == "Click does not decode: Expected `str`, got `int` - at `$.user`"
    assert because == "Click does not decode: 'below zero'"
    assert node.safe() == 5


@pytest.mark.parametrize(
    ("body", "count", "more", "reason"),
    [
        (b"\xc1\xc1\xc1", 3, {}, "a section does not decode: "),
        (body_of(["a"]), 2, {}, "a section announces 2 events and holds 1"),
        (body_of(["a"], ["b"]), 1, {}, "a section announces 1 events and holds 2"),
        (body_of(["a"]), 1, {"fingerprint": 7}, "no event type of fingerprint 7 was declared"),
        (b"[{]", 1, {"encoding": wire.JSON}, "a section does not decode: "),
        (b'[{"user":"a"}]', 2, {"encoding": wire.JSON}, "a section announces 2 events and holds 1"),
    ],
)
def test_a_frame_that_does_not_decode_at_all_is_refused_event_by_event(
    body: bytes, count: int, more: Any, reason: str
) -> None:
    node = Node()
    node.hello(CLICK.declaration)
    assert node.data(body, count, **more) == ""
    assert node.process() == [(0, [], [])]
    refused = node.refused()
    assert [number for number, _ in refused] == list(range(count))
    assert all(why.startswith(reason) for _, why in refused)
    assert node.safe() == count


def test_json_events_are_read_as_the_node_s_type() -> None:
    node = Node()
    node.hello()
    node.data(b'[{"user":"a"},{"usr":"b"},{"user":"c","percent":3}]', 3, encoding=wire.JSON)
    assert node.process() == [(0, [Click("a"), Click("c", 3)], [0, 2])]
    assert [number for number, _ in node.refused()] == [1]


def test_sections_are_put_back_in_their_order_without_poison_events() -> None:
    node = Node(types=(Click, Order))
    node.hello(CLICK.declaration, ORDER.declaration)
    clicks, orders = body_of(["a"], [1], ["c"]), body_of(["x"], ["y"])
    sections = (
        wire.Section(CLICK.fingerprint, 3, len(clicks)),
        wire.Section(ORDER.fingerprint, 2, len(orders)),
    )
    node.data(clicks + orders, 5, sections=sections, order=bytes([0, 1, 0, 0, 1]))
    assert node.process() == [(0, [Click("a"), Order("x"), Click("c"), Order("y")], [0, 1, 3, 4])]
    assert [number for number, _ in node.refused()] == [2]


def test_an_overlap_is_left_out_even_if_it_would_not_decode() -> None:
    node = Node()
    node.hello(CLICK.declaration)
    node.data(body_of(["a"], ["b"]), 2)
    node.data(body_of([5], [6], ["c"], [7], ["d"]), 5)
    assert node.process() == [
        (0, [Click("a"), Click("b")], [0, 1]),
        (0, [Click("c"), Click("d")], [2, 4]),
    ]
    assert [number for number, _ in node.refused()] == [3]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"partition": 1}, "stream 'clicks' has no partition 1"),
        (
            {"sections": (wire.Section(1, 1, 5),)},
            "clicks[0]@p:0: the sections do not add up to the body's 4 bytes",
        ),
        (
            {"first": 2**62 - 1},
            "clicks[0]@p:4611686018427387903: it has 1 events from 4611686018427387903 on, numbers",
        ),
    ],
)
def test_a_frame_that_is_no_good_changes_nothing(more: Any, problem: str) -> None:
    node = Node()
    node.hello(CLICK.declaration)
    assert node.data(body_of(["a"]), 1, **more).startswith(problem)
    assert node.batches == []
    assert node.port.admission.lanes["p", 0].expected == 0


def test_a_closed_port_ignores_frames() -> None:
    node = Node()
    node.hello(CLICK.declaration)
    node.port.closed = True
    assert node.data(body_of(["a"]), 1) == ""
    assert node.batches == []
    assert node.port.admission.lanes["p", 0].expected == 0


# --- keys ----------------------------------------------------------------------------------------


def test_events_in_the_wrong_partition_are_sent_on_and_the_frame_is_done_when_all_are() -> None:
    node = Node(4)
    node.hello(CLICK.declaration)
    clicks = [Click(f"user-{n}") for n in range(20)]
    node.data(CLICK.encode(clicks), 20, partition=2)
    homes = [node.partitioner.partition_of(click.user) for click in clicks]
    parts = {batch.partition: batch for batch in node.batches}
    assert set(parts) == set(homes)
    assert len(parts) > 1
    for partition, batch in parts.items():
        expected = [number for number, home in enumerate(homes) if home == partition]
        assert [batch.number(index) for index in range(batch.size)] == expected
        assert batch.events == [clicks[number] for number in expected]
        assert node.safe(2) == 0
        assert batch.receipt is not None
        batch.receipt.done()
    assert node.safe(2) == 20
    assert node.port.deserializer.redispatched == sum(home != 2 for home in homes)


def test_a_frame_routed_by_the_same_hasher_and_key_is_trusted() -> None:
    node = Node(4)
    node.hello(CLICK.declaration)
    node.data(CLICK.encode([Click("a"), Click("b")]), 2, partition=3, routing="crc32m:user")
    assert node.process() == [(3, [Click("a"), Click("b")], [0, 1])]
    assert node.port.deserializer.redispatched == 0


@pytest.mark.parametrize("routing", ["", "s4:user", "crc32m:percent", "crc32m:"])
def test_a_frame_with_another_routing_is_sorted_by_key(routing: str) -> None:
    node = Node(64)
    node.hello(CLICK.declaration)
    clicks = [Click(f"user-{n}") for n in range(64)]
    node.data(CLICK.encode(clicks), 64, routing=routing)
    assert len(node.batches) > 10


def test_an_event_without_a_key_is_refused_and_the_others_are_sent_on() -> None:
    node = Node(4, "user", GenericEvent)
    generic = EventType(GenericEvent)
    node.hello(generic.declaration)
    events = [GenericEvent(user="a"), GenericEvent(name="b"), GenericEvent(user=True)]
    node.data(generic.encode(events), 3, fingerprint=generic.fingerprint)
    (only,) = node.process()
    assert only[1:] == ([GenericEvent(user="a")], [0])
    (one, why), (other, because) = node.refused()
    assert (one, other) == (1, 2)
    assert why == (
        "the event has no attribute 'user', which is the key of the stream "
        "(event GenericEvent(name='b'))"
    )
    assert because.startswith("the KeyFinder returned True (bool)")
    assert node.safe() == 3


def test_the_parts_of_a_json_frame_keep_the_numbers_and_the_order_of_their_events() -> None:
    node = Node(partitions=4)
    node.hello()
    users = [f"u{n % 50}" for n in range(600)]
    texts = [b'{"user":"%b","percent":%d}' % (u.encode(), n) for n, u in enumerate(users)]
    texts[7] = b'{"usr":"b"}'
    body = b"[" + b",".join(texts) + b"]"
    assert node.data(body, 600, encoding=wire.JSON, created_ms=7) == ""
    while node.port.sort_out(0.0):
        pass
    assert {batch.created_ms for batch in node.batches} == {7}
    found = node.process()
    for partition, events, numbers in found:
        assert numbers == sorted(numbers)
        assert events == [Click(users[number], number) for number in numbers]
        assert {node.partitioner.partition_of(event.user) for event in events} == {partition}
    assert sorted(n for _, _, part in found for n in part) == [n for n in range(600) if n != 7]
    assert [number for number, _ in node.refused()] == [7]
    assert node.safe() == 600


@pytest.mark.parametrize("bad", [None, 0, 1, 2, 3])
def test_frames_that_come_while_tasks_are_busy_are_sorted_together(bad: int | None) -> None:
    node = Node(partitions=2)
    node.hello(CLICK.declaration)
    for frame in range(4):
        clicks: list[Any] = [Click(f"u{n % 7}", n) for n in range(frame * 200, frame * 200 + 200)]
        if frame == bad:
            clicks[150] = [1]
        assert node.data(body_of(*clicks), 200, first=frame * 200) == ""
    first = {batch.first for batch in node.batches}
    assert first == {0}
    while node.port.tick(0.01, busy=True):
        pass
    assert len(node.batches) == 4 if bad is None else len(node.batches) > 4
    found = node.process()
    refused = [number for number, _ in node.refused()]
    assert refused == ([] if bad is None else [bad * 200 + 150])
    for partition in range(2):
        numbers = [n for place, _, part in found if place == partition for n in part]
        assert numbers == sorted(numbers)
        events = [each for place, part, _ in found if place == partition for each in part]
        assert events == [Click(f"u{n % 7}", n) for n in numbers]
    assert sum(len(events) for _, events, _ in found) == 800 - len(refused)
    assert node.safe() == 800


def test_a_frame_that_is_to_be_sorted_waits_for_busy_tasks_but_not_for_long() -> None:
    node = Node(partitions=2)
    node.hello(CLICK.declaration)
    for number in range(3):
        node.data(body_of(Click("a")), 1, first=number)
    assert node.port.tick(0.004, busy=True)
    assert len(node.batches) == 1
    assert not node.port.tick(0.004, busy=False)
    assert [batch.size for batch in node.batches] == [1, 2]
    node.data(body_of(Click("a")), 1, first=3)
    assert not node.port.tick(0.006, busy=True)
    assert [batch.size for batch in node.batches] == [1, 2, 1]
    assert not node.port.tick(0.006, busy=False)
    node.data(body_of(Click("a")), 1, first=4)
    assert len(node.batches) == 4


def test_frames_of_several_producers_that_were_gathered_are_sorted_in_one_turn() -> None:
    node = Node(partitions=2)
    node.hello(CLICK.declaration)
    node.hello(CLICK.declaration, producer="q")
    for number in range(20):
        for producer in ("p", "q"):
            node.data(body_of(Click("a", number)), 1, first=number, producer=producer)
    assert [batch.size for batch in node.batches] == [1]
    assert not node.port.tick(0.006, busy=True)
    assert [batch.size for batch in node.batches] == [1] * 40


def test_a_frame_of_events_without_a_key_is_refused_a_piece_in_each_turn() -> None:
    node = Node(2, "user", GenericEvent)
    generic = EventType(GenericEvent)
    node.hello(generic.declaration)
    body = generic.encode([GenericEvent(name="ann")] * 1000)
    assert not node.data(body, 1000, fingerprint=generic.fingerprint)
    for turn in range(1000 // PIECE):
        assert node.safe() == (turn + 1) * PIECE
        assert node.port.tick(0.006, busy=True) == (turn < 6)
    assert node.safe() == 1000


def test_a_frame_without_remaining_events_is_done_at_once() -> None:
    node = Node(4)
    node.hello(CLICK.declaration)
    node.data(body_of([1], [2]), 2)
    assert node.batches == []
    assert node.safe() == 2
    assert len(node.refused()) == 2


ROWS = st.lists(
    st.lists(st.text(max_size=3) | st.integers(-3, 3), max_size=3), min_size=1, max_size=12
)


@given(ROWS, st.sampled_from([1, 3]), st.booleans(), st.binary(max_size=20))
def test_every_event_of_any_frame_is_processed_or_refused_exactly_once(
    rows: list[Any], partitions: int, garbage: bool, noise: bytes
) -> None:
    node = Node(partitions)
    node.hello(CLICK.declaration)
    body = noise if garbage else body_of(*rows)
    count = min(len(rows), len(body))
    if not count:
        return
    assert node.data(body, count) == ""
    processed = [number for _, _, numbers in node.process() for number in numbers]
    refused = [number for number, _ in node.refused()]
    assert sorted(processed + refused) == list(range(count))
    assert node.safe() == count
    node.port.admission.validate()


# -- set-up ---------------------------------------------------------------------------------------


PEER = object()


class Node:
    """A port, and what comes out of it."""

    def __init__(self, partitions: int = 1, key: Any = "user", types: Any = Click) -> None:
        stream = App("shop").create_input_stream("clicks", key=key, types=types)
        assert isinstance(stream, InputStream)
        effects = Effects()
        self.batches = effects.batches
        self.stages = {partition: Stage(1000) for partition in range(partitions)}
        self.partitioner = Partitioner(partitions)
        self.port = InputPort(
            stream,
            self.stages,
            StreamAdmission("clicks", self.stages, effects),
            self.stages[0].deserializer,
            self.partitioner,
            "crc32m",
            {wire.MAX_FRAME_BYTES: 4096},
            {},
        )

    def hello(self, *types: TypeDecl, positions: Any = (), producer: str = "p") -> wire.Hello:
        hello = wire.Hello(producer, "i1", "clicks", types, positions=positions)
        return self.port.on_hello(hello, PEER, "node", "n1", 0.0)

    def data(
        self, body: bytes, count: int, *, first: int = 0, partition: int = 0, **more: Any
    ) -> str:
        sections = more.pop("sections", None) or (
            wire.Section(more.pop("fingerprint", CLICK.fingerprint), count, len(body)),
        )
        producer = more.pop("producer", "p")
        header = wire.Data("clicks", partition, producer, first, count, sections, **more)
        return self.port.on_data(header, memoryview(body), PEER, 0.0)

    def process(self) -> list[tuple[int, list[Any], list[int]]]:
        """Partition, events and numbers of each batch, each of which is then done."""
        found = []
        for batch in self.batches:
            rest = batch.load()
            if rest is not None:
                self.batches.insert(self.batches.index(batch) + 1, rest)
            numbers = [batch.number(index) for index in range(len(batch.events))]
            found.append((batch.partition, batch.events, numbers))
            assert batch.receipt is not None
            batch.receipt.done()
        self.batches.clear()
        return found

    def refused(self, partition: int = 0) -> list[tuple[int, str]]:
        lane = self.port.admission.lanes["p", partition]
        return [
            (each, reason)
            for number, count, reason in lane.ruling().exceptions
            for each in range(number, number + count)
        ]

    def safe(self, partition: int = 0) -> int:
        return self.port.admission.lanes["p", partition].safe
