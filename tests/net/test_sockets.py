"""Bad input, lost peers and restarted nodes, with real sockets and real processes."""

from __future__ import annotations

import random
import resource
import signal
import socket
import struct
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio
from harness import RawPeer, data_frame, limit_peers, node_process, raw_peer, running, until
from shared_apps import Buy, Click, NotingApp, handling
from structlog.testing import capture_logs

from s4node import Client, Event
from s4node.errors import ConfigError, ConnectionRefused
from s4node.events.schema import EventType
from s4node.events.type_declaration import TypeDecl, fingerprint_of
from s4node.net.transport.sp_messages import HANDSHAKE, framed
from s4node.net.wire import frame as wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from s4node import Container


def hello_of(producer: str) -> bytes:
    clicks = (EventType(Click).declaration,)
    hello = wire.Hello(producer, "1", "clicks", clicks, "", 2, (wire.Position(0, 0),))
    return wire.encode_frame(hello)


GOOD = hello_of("raw")


def header_bytes(*fields: Any) -> bytes:
    """A frame with a header of any shape."""
    head = msgspec.msgpack.encode(fields)
    return struct.pack(">II", len(head), 0) + head


# -- bad envelopes and frames ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("envelope", "told"),
    [
        (b"", "an envelope starts with b'S4'"),
        (b"S4", "truncated: 2 bytes are not an envelope"),
        (b"hello, world", "is this an s4node peer?"),
        (b"S4\x02\x00" + GOOD, "protocol version 2 is unknown"),
        (b"S4\x00\x00" + GOOD, "protocol version 0 is unknown"),
        (wire.MAGIC + GOOD[:5], "truncated: 5 bytes at offset 4 are not a frame"),
        (wire.MAGIC + GOOD[:-3], "truncated: a frame of"),
        (wire.MAGIC + GOOD + b"\x00\x00", "truncated: 2 bytes"),
        (
            wire.MAGIC + struct.pack(">II", 0xFFFFFFFF, 0xFFFFFFFF),
            "truncated: a frame of 8589934598",
        ),
        (wire.MAGIC + struct.pack(">II", 0, 0), "does not decode"),
        (wire.MAGIC + struct.pack(">II", 3, 0) + b"\xff\xff\xff", "does not decode"),
        (wire.MAGIC + header_bytes(0, "raw", "1"), "does not decode"),
        (wire.MAGIC + header_bytes(99, "raw"), "does not decode"),
        (wire.MAGIC + header_bytes(4, "clicks", 5), "does not decode"),
        (
            wire.MAGIC + struct.pack(">II", 9, 0) + b"\x93\x04\xa4\xff\xfe\xfd\xfc\xa1p",
            "does not decode",
        ),
        (wire.MAGIC + struct.pack(">II", 5001, 0) + b"\x91" * 5001, "does not decode"),
        (
            wire.MAGIC + wire.encode_frame(wire.Verdict("clicks", "raw")),
            "a node takes no verdict frame",
        ),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
async def test_an_invalid_envelope_is_counted_and_answered_and_the_peer_stays(
    node: Node, envelope: bytes, told: str
) -> None:
    async with raw_peer(node.container.address) as peer:
        await peer.send(envelope)
        assert told in await error_of(peer)
        assert counts(node)["bad frames"] == 1
        await peer.open("clicks", "raw", Click)
        await peer.send_frames(data_frame("clicks", "raw", 0, [Click("ann", 1)]))
        await until(lambda: node.seen == [1])
        assert counts(node) == {"connections": 1, "bad frames": 1}


async def test_a_frame_over_the_limit_is_answered_to_its_producer_and_the_peer_stays(
    node: Node,
) -> None:
    async with raw_peer(node.container.address) as peer:
        await peer.open("clicks", "raw", Click)
        large = data_frame("clicks", "raw", 0, [Click("x" * 2_000_000, 1)])
        await peer.send_frames(large, data_frame("clicks", "raw", 0, [Click("ann", 2)]))
        verdict = await peer.receive_until(lambda frame: getattr(frame, "error", ""))
        assert "bytes is over the limit of 1048576" in verdict.error
        assert (verdict.stream, verdict.producer) == ("clicks", "raw")
        await until(lambda: node.seen == [2])
    assert counts(node)["bad frames"] == 1


async def test_an_envelope_over_the_limit_is_answered_and_the_peer_stays(node: Node) -> None:
    async with raw_peer(node.container.address) as peer:
        await peer.open("clicks", "raw", Click)
        await peer.send(wire.MAGIC + bytes(17_000_000))
        assert "a message of 17000004 bytes is over the limit of 16777216" in await error_of(peer)
        await peer.send_frames(data_frame("clicks", "raw", 0, [Click("ann", 1)]))
        await until(lambda: node.seen == [1])
    assert counts(node) == {"connections": 1, "bad frames": 1}


async def test_a_frame_of_too_many_events_is_answered_to_its_producer(node: Node) -> None:
    async with raw_peer(node.container.address) as peer:
        await peer.open("clicks", "raw", Click)
        many = data_frame("clicks", "raw", 0, [Click("a", 1)] * 4097)
        await peer.send_frames(many, data_frame("clicks", "raw", 0, [Click("ann", 2)]))
        verdict = await peer.receive_until(lambda frame: getattr(frame, "error", ""))
        assert "a frame of 4097 events is over the limit of 4096" in verdict.error
        assert (verdict.stream, verdict.producer) == ("clicks", "raw")
        await until(lambda: node.seen == [2])


async def test_a_frame_of_too_many_events_is_refused_and_the_next_one_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node()
    limit_peers(monkeypatch, frame_events=3)
    async with running(node.app) as node.container, raw_peer(node.container.address) as peer:
        await peer.open("clicks", "raw", Click)
        clicks = [Click("ann", n) for n in range(4)]
        await peer.send_frames(
            data_frame("clicks", "raw", 0, clicks), data_frame("clicks", "raw", 0, clicks[:3])
        )
        verdict = await peer.receive_until(lambda frame: getattr(frame, "error", ""))
        assert "of 4 events is over the limit of 3; send it in parts" in verdict.error
        await until(lambda: node.seen == [0, 1, 2])


async def test_a_peer_that_asks_too_often_is_told_once_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node()
    limit_peers(monkeypatch, hellos_per_second=2)
    async with running(node.app) as node.container, raw_peer(node.container.address) as peer:
        await peer.send(wire.envelope([GOOD] * 12))
        assert "beyond 2 a second wait" in await error_of(peer)
        await until(lambda: counts(node)["limits reached"] == 1)


async def test_a_long_hello_counts_as_many_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    limit_peers(monkeypatch, hellos_per_second=25, all_hellos_per_second=200)
    fields = tuple((f"{'x' * 40}{n}", "str", True) for n in range(60))
    long = TypeDecl("Long", fingerprint_of("Long", fields), fields)
    async with running(node.app) as node.container, raw_peer(node.container.address) as peer:
        hello = wire.encode_frame(wire.Hello("raw", "1", "unknown", (long,)))
        await peer.send(wire.envelope([hello] * 40))  # 100 short ones may come at once
        assert "of all connections beyond 200 a second wait" in await error_of_answer(peer)
        assert "bad frames beyond 25 a second wait" in await error_of_answer(peer)
        assert counts(node)["limits reached"] == 2


async def test_good_frames_beside_a_bad_one_are_taken(node: Node) -> None:
    async with raw_peer(node.container.address) as peer:
        await peer.open("clicks", "raw", Click)
        good = [
            wire.encode_frame(*data_frame("clicks", "raw", n, [Click("ann", n)])) for n in range(3)
        ]
        bad = header_bytes(1, "clicks")
        await peer.send(wire.envelope([good[0], bad, good[1], bad, good[2]]))
        assert "does not decode" in await error_of(peer)
        await until(lambda: node.seen == [0, 1, 2])
    assert counts(node)["bad frames"] == 2


@pytest.mark.parametrize(
    ("sections", "order", "count", "first", "partition", "told"),
    [
        ([(1, 1, 5)], b"", 1, 0, 0, "do not add up to the body's 4 bytes"),
        ([(1, 2, 4)], b"", 3, 0, 0, "do not add up to 3 events"),
        ([(1, 1, 4)], b"", 1, (1 << 62) - 1, 0, "numbers end at 4611686018427387903"),
        (
            [(1, 10**9, 4)],
            b"",
            10**9,
            0,
            0,
            "a frame of 1000000000 events is over the limit of 4096",
        ),
        ([(1, 1, 2), (2, 1, 2)], b"\x00", 2, 0, 0, "order has 1 bytes for 2 events"),
        ([(1, 1, 2), (2, 1, 2)], b"\x00\x00", 2, 0, 0, "order and section 0 disagree"),
        ([(1, 1, 2), (2, 1, 2)], b"\x00\x07", 2, 0, 0, "order and section 1 disagree"),
        ([(1, 1, 4)], b"", 1, 0, 2, "stream 'clicks' has no partition 2"),
        ([(1, 1, 4)], b"", 1, 0, 1 << 30, "stream 'clicks' has no partition 1073741824"),
    ],
)
async def test_a_data_frame_that_does_not_add_up_is_answered_to_its_producer(
    node: Node,
    sections: list[tuple[int, int, int]],
    order: bytes,
    count: int,
    first: int,
    partition: int,
    told: str,
) -> None:
    async with raw_peer(node.container.address) as peer:
        await peer.open("clicks", "raw", Click)
        parts = tuple(wire.Section(*section) for section in sections)
        header = wire.Data("clicks", partition, "raw", first, count, parts, order=order)
        await peer.send_frames((header, b"\x90\x90\x90\x90"))
        verdict = await peer.receive_until(lambda frame: getattr(frame, "error", ""))
        assert told in verdict.error
        assert (verdict.stream, verdict.producer) == ("clicks", "raw")
    assert counts(node)["bad frames"] == 1
    assert node.seen == []


def hello_at(*positions: wire.Position) -> wire.Hello:
    return wire.Hello("raw", "1", "clicks", positions=positions)


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (hello_at(wire.Position(0, -1)), "`int` >= 0"),
        (hello_at(wire.Position(0, 1 << 62)), "`int` <= 46116"),
        (hello_at(wire.Position(1 << 31, 0)), "`int` <= 21474"),
        (hello_at(wire.Position(0, 0, life=1 << 62)), "`int` <= 46116"),
        (wire.Hello("raw", "1", "clicks", headers={"fence": 1 << 63}), "`int` <= 92233720"),
        (wire.Hello("raw", "1", "clicks", headers={"x": [{"y": 1 << 63}]}), "`int` <= 92233720"),
        (wire.Hello("raw", "1", "x" * 4097), "`str` of length <= 4096 - at `$[3]`"),
        (wire.Hello("raw", "x" * 257, "clicks"), "`str` of length <= 256 - at `$[2]`"),
        (hello_at(*[wire.Position(0, 0)] * 4097), "`array` of length <= 4096 - at `$[7]`"),
        (wire.Data("clicks", 0, "raw", 0, 1, ()), "`array` of length >= 1 - at `$[6]`"),
        (wire.Data("clicks", 0, "raw", 0, 1, (wire.Section(1, -1, 4),)), "at `$[6][0][1]`"),
        (wire.Data("clicks", 0, "raw", 0, 1, (wire.Section(1, 1, 1),) * 257), "length <= 256"),
        (wire.Data("clicks", 0, "raw", 0, 0, (wire.Section(1, 1, 4),)), "`int` >= 1 - at `$[5]`"),
        (wire.Data("clicks", -1, "raw", 0, 1, (wire.Section(1, 1, 4),)), "`int` >= 0 - at `$[2]`"),
        (wire.Data("clicks", 0, "raw", -1, 1, (wire.Section(1, 1, 4),)), "`int` >= 0 - at `$[4]`"),
        (wire.Watermark("clicks", "raw", 1 << 62), "at `$[3]`"),
        (wire.Idle("clicks", "raw", 1 << 63), "at `$[3]`"),
        (wire.Query(1 << 63, "list"), "at `$[1]`"),
    ],
)
async def test_a_frame_with_a_number_text_or_list_out_of_bounds_is_a_bad_frame(
    node: Node, frame: wire.Header, told: str
) -> None:
    async with raw_peer(node.container.address) as peer:
        await peer.send_frames((frame, b""))
        error = await error_of(peer)
        assert "does not decode" in error
        assert told in error
    assert counts(node)["bad frames"] == 1


async def test_a_hello_cannot_take_the_fingerprint_of_another_type(node: Node) -> None:
    declaration = EventType(Click).declaration
    stolen = msgspec.structs.replace(declaration, fingerprint=EventType(Buy).fingerprint)
    async with raw_peer(node.container.address) as peer:
        await peer.send_frames(wire.Hello("raw", "1", "clicks", (stolen,)))
        assert "is not the fingerprint of Click" in await error_of(peer)


async def test_a_frame_for_an_unknown_stream_is_answered_with_the_known_ones(node: Node) -> None:
    async with raw_peer(node.container.address) as peer:
        answer = await peer.open("click", "raw", Click)
        assert "has no input stream 'click'; its input streams: clicks" in answer.error
        await peer.send_frames(data_frame("click", "raw", 0, [Click("ann", 1)]))
        assert "has no input stream 'click'" in await error_of(peer)


async def test_data_before_a_hello_is_not_taken_and_can_be_sent_again(node: Node) -> None:
    async with raw_peer(node.container.address) as peer:
        frame = data_frame("clicks", "raw", 0, [Click("ann", 1)])
        await peer.send_frames(frame)
        await peer.open("clicks", "raw", Click)
        assert node.seen == []
        await peer.send_frames(frame)
        await until(lambda: node.seen == [1])


async def test_repeated_and_overlapping_frames_are_trimmed_and_gaps_answered(node: Node) -> None:
    clicks = [Click("ann", n) for n in range(30)]

    def frame(first: int, end: int) -> tuple[wire.Header, bytes]:
        return data_frame("clicks", "raw", first, clicks[first:end])

    def expects(header: wire.Header) -> bool:
        return isinstance(header, wire.Verdict) and any(
            ruling.outcome == wire.EXPECTED for ruling in header.rulings
        )

    async with raw_peer(node.container.address) as peer:
        await peer.open("clicks", "raw", Click)
        await peer.send_frames(frame(0, 10), frame(0, 10), frame(5, 15), frame(20, 25))
        verdict = await peer.receive_until(expects)
        assert [ruling.expected for ruling in verdict.rulings] == [15]
        assert node.seen == list(range(15))
        await peer.send_frames(frame(15, 30), frame(20, 25))
        await until(lambda: len(node.seen) == 30)
        assert node.seen == list(range(30))
    admission = node.container.ports["clicks"].admission
    assert (admission.admitted, admission.duplicates, admission.gaps) == (30, 20, 1)


def packed(*fields: Any) -> bytes:
    return msgspec.msgpack.encode(fields)


def numbers_of(exceptions: Iterable[tuple[int, int, str]]) -> list[int]:
    """The events of a ruling's ranges, one by one."""
    return [first + n for first, count, _ in exceptions for n in range(count)]


@pytest.mark.parametrize(
    ("events", "refused", "processed", "told"),
    [
        (
            [packed("ann", 1), packed("ann", "two"), packed("ann", 3)],
            [1],
            [1, 3],
            "Click does not decode: Expected `int`, got `str` - at `$.n`",
        ),
        (
            [packed(), packed("ann", 2), packed("ann", 3, "more"), packed(b"ann", 4), b"\x05"],
            [0, 3, 4],
            [2, 3],
            "Click does not decode: Expected `array`, got `int`",
        ),
        (
            [packed("ann", 1), b"\x92\xa1\xff\x02", packed("ann", 3)],
            [1],
            [1, 3],
            "UTF-8",  # as some version of msgspec spells it
        ),
        (
            [packed("ann", 1), b"\xc1", packed("ann", 3)],  # a byte that begins nothing
            [0, 1, 2],
            [],
            "MessagePack data is malformed",
        ),
    ],
    ids=["wrong type", "wrong shape", "no UTF-8", "no msgpack"],
)
async def test_events_that_do_not_decode_are_refused_one_by_one(
    node: Node, events: list[bytes], refused: list[int], processed: list[int], told: str
) -> None:
    body = bytes([0x90 | len(events)]) + b"".join(events)
    sections = (wire.Section(EventType(Click).fingerprint, len(events), len(body)),)
    header = wire.Data("clicks", 0, "raw", 0, len(events), sections, flags=wire.ANSWER_NOW)
    async with raw_peer(node.container.address) as peer:
        await peer.open("clicks", "raw", Click)
        await peer.send_frames((header, body))
        verdict = await peer.receive_until(
            lambda frame: isinstance(frame, wire.Verdict) and frame.rulings[0].upto == len(events)
        )
    (ruling,) = verdict.rulings
    assert numbers_of(ruling.exceptions) == refused
    assert told.lower() in str(ruling.exceptions).lower()
    assert node.seen == processed


async def test_a_type_that_no_hello_declared_is_refused_with_its_fingerprint(node: Node) -> None:
    async with raw_peer(node.container.address) as peer:
        await peer.open("clicks", "raw", Click)

        class Other(Event):
            x: int

        await peer.send_frames(data_frame("clicks", "raw", 0, [Other(1), Other(2)]))
        verdict = await peer.receive_until(
            lambda frame: isinstance(frame, wire.Verdict) and frame.rulings[0].exceptions
        )
    assert numbers_of(verdict.rulings[0].exceptions) == [0, 1]
    assert str(EventType(Other).fingerprint) in str(verdict)


async def test_a_host_is_logged_once_a_minute_however_much_it_sends_and_often_it_comes(
    node: Node,
) -> None:
    with capture_logs() as logs:
        for n in range(1, 6):
            async with raw_peer(node.container.address) as peer:
                for _ in range(20):
                    await peer.send(b"rubbish")
                await until(lambda n=n: counts(node).get("bad frames") == 20 * n)
    assert len([log for log in logs if log["event"] == "bad frame"]) == 1


@pytest.mark.parametrize("seed", range(4))
async def test_frames_that_were_damaged_at_random_hurt_nobody_else(node: Node, seed: int) -> None:
    chance = random.Random(seed)
    kinds = [
        wire.encode_frame(*data_frame("clicks", "raw", 0, [Click("ann", 5), Click("bob", 6)])),
        wire.encode_frame(wire.Idle("clicks", "raw", wire.ANSWER_NOW)),
        wire.encode_frame(wire.Watermark("clicks", "raw", 5, ((0, 2),))),
        wire.encode_frame(wire.EndOfStream("clicks", "raw")),
        wire.encode_frame(wire.Drain("bye")),
        GOOD,
    ]
    async with raw_peer(node.container.address) as peer, trio.open_nursery() as nursery:

        async def read() -> None:
            while True:
                await peer.receive()

        nursery.start_soon(read)
        for round_ in range(300):
            damaged = bytearray(b"".join(chance.choices(kinds, k=3)))
            for _ in range(chance.randint(1, 4)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            end = chance.choice([len(damaged), chance.randrange(len(damaged))])
            await peer.send(wire.MAGIC + bytes(damaged[:end]))
            if round_ % 100 == 0:
                await node.works()
        nursery.cancel_scope.cancel()
    assert counts(node)["bad frames"] > 100


# -- the port -------------------------------------------------------------------------------------


def tcp(address: str) -> tuple[str, int]:
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    return host, int(port)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-A",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        random.Random(1).randbytes(5000),
        b"\x00SP\x00\x00\x99\x00\x00",
        b"\x00SP\x00\x00\x10\x00\x00" + b"\xff" * 8 + b"x" * 100,
        b"\x00SP\x00\x00\x10\x00\x00" + struct.pack(">Q", 100) + b"half",
    ],
    ids=["nothing", "HTTP", "TLS", "noise", "another nng protocol", "endless message", "half"],
)
@pytest.mark.parametrize("end", ["stays", "leaves"])
async def test_whatever_comes_to_the_port_the_node_goes_on(
    node: Node, sent: bytes, end: str
) -> None:
    stranger = await trio.open_tcp_stream(*tcp(node.container.address))
    await stranger.send_all(sent)
    await until(lambda: node.container.listener.connections)
    await node.works()
    if end == "leaves":
        await stranger.aclose()
    elif sent.startswith(b"\x00SP\x00\x00\x10"):  # it speaks nng: a slow peer, not a stranger
        await node.works()
        await stranger.aclose()
    await until(lambda: not node.container.listener.connections)
    await trio.aclose_forcefully(stranger)


async def test_connections_that_are_reset_at_once_are_no_trouble(node: Node) -> None:
    for _ in range(50):
        with socket.create_connection(tcp(node.container.address)) as scanner:
            scanner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await node.works()


async def test_a_crowd_of_strangers_is_let_go_and_leaves_no_file_descriptor(node: Node) -> None:
    await node.works()
    await until(lambda: not node.container.listener.connections)
    before = open_files()
    async with AsyncExitStack() as crowd:
        for _ in range(150):
            stranger = await trio.open_tcp_stream(*tcp(node.container.address))
            crowd.push_async_callback(trio.aclose_forcefully, stranger)
        await node.works()
        await until(lambda: not node.container.listener.connections)
    await until(lambda: open_files() <= before)
    assert counts(node)["strangers"] == 150


async def test_many_peers_of_a_busy_node_are_all_heard_within_a_few_turns() -> None:
    node, turns = Node(), 0
    async with running(node.app, {"s4.comm.timeout": "3000"}) as node.container:
        listener, address = node.container.listener, tcp(node.container.address)
        with ExitStack() as crowd:
            peers = [crowd.enter_context(socket.create_connection(address)) for _ in range(60)]
            await until(lambda: len(listener.connections) == len(peers))
            for number, peer in enumerate(peers):
                peer.sendall(HANDSHAKE + framed(wire.envelope([hello_of(f"peer-{number}")])))
            while not all(each.spoke for each in listener.connections):
                turns += 1
                time.sleep(0.1)  # noqa: ASYNC251 - what the tasks of a busy node take
                await trio.lowlevel.checkpoint()
            assert turns < len(peers) / 2
            assert counts(node) == {"connections": len(peers)}


@pytest.mark.parametrize(
    ("most", "per_host", "told"),
    [("2", 512, " (s4.listener.maxConnections)"), ("4", 2, " from 127.0.0.1")],
)
async def test_more_peers_than_allowed_are_turned_away_and_counted(
    monkeypatch: pytest.MonkeyPatch, most: str, per_host: int, told: str
) -> None:
    node = Node()
    settings = {"s4.listener.maxConnections": most}
    limit_peers(monkeypatch, connections_per_host=per_host)
    async with running(node.app, settings) as node.container:
        async with AsyncExitStack() as crowd, trio.open_nursery() as busy:
            for _ in range(2):
                peer = await crowd.enter_async_context(raw_peer(node.container.address))
                await peer.open("clicks", "raw", Click)
                busy.start_soon(go_on, peer)
            third = await trio.open_tcp_stream(*tcp(node.container.address))
            last = b"".join([part async for part in third])
            assert f"the node has 2 connections{told}".encode() in last
            await third.aclose()
            assert counts(node)["connections refused"] == 1
            with capture_logs() as logs:
                async with Client(node.container.address, timeout=0.3) as client:
                    with pytest.raises(
                        ConnectionRefused, match=r"turns peers away: the node has 2 connections"
                    ):
                        await client.stream("clicks")
            assert counts(node)["connections refused"] > 2
            warned = [each for each in logs if each["event"].startswith("too many")]
            assert warned == []  # the third has been told already
            busy.cancel_scope.cancel()
        await until(lambda: not node.container.listener.connections)
        await node.works()


async def test_a_peer_that_is_silent_for_longest_makes_room() -> None:
    node = Node()
    settings = {"s4.listener.maxConnections": "2"}
    async with (
        running(node.app, settings) as node.container,
        raw_peer(node.container.address) as silent,
        raw_peer(node.container.address) as other,
        trio.open_nursery() as busy,
    ):
        await silent.open("clicks", "silent", Click)
        await other.open("clicks", "other", Click)
        busy.start_soon(go_on, other)
        await node.works()  # as soon as the other one has been silent for a second
        assert counts(node)["connections ended"] >= 1
        busy.cancel_scope.cancel()
        last = await silent.receive_until(lambda frame: isinstance(frame, wire.Drain))
        assert "it is silent for longest, and others want to connect" in last.reason


async def test_the_longest_of_too_many_unfinished_messages_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node()
    limit_peers(monkeypatch, bytes=100_000)
    async with running(node.app) as node.container, AsyncExitStack() as both:
        short, longest = [
            await both.enter_async_context(await trio.open_tcp_stream(*tcp(node.container.address)))
            for _ in range(2)
        ]
        announced = HANDSHAKE + framed(wire.envelope([GOOD])) + struct.pack(">Q", 200_000)
        await short.send_all(announced + bytes(45_000))
        await longest.send_all(announced + bytes(60_000))
        told = b"".join([part async for part in longest])
        assert b"it has sent most of what waits here, and the node has too much" in told
        assert counts(node)["connections ended"] == 1
        await node.works()


async def test_messages_that_wait_to_be_handled_count_as_unfinished_ones_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node()
    limit_peers(monkeypatch, bytes=100_000, hellos_per_second=2)
    async with running(node.app) as node.container, raw_peer(node.container.address) as peer:
        await peer.send(wire.envelope([GOOD] * 4000))  # 8 are read at once
        reason = await why_ended(peer)
        assert reason == "it has sent most of what waits here, and the node has too much"


async def test_types_beyond_what_a_connection_may_declare_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node()
    limit_peers(monkeypatch, type_bytes=1024)
    async with running(node.app) as node.container, raw_peer(node.container.address) as peer:
        fields = tuple((f"{'x' * 40}{n}", "str", True) for n in range(30))
        declared = TypeDecl("Long", fingerprint_of("Long", fields), fields)
        await peer.send_frames(wire.Hello("raw", "1", "clicks", (declared,)))
        told = await error_of(peer)
        assert "'clicks': this connection has declared event types of more than 1024 bytes" in told
        assert not (await peer.open("clicks", "raw", Click)).error
        assert counts(node)["limits reached"] == 1


async def why_ended(peer: RawPeer) -> str:
    """The reason with which the node ends a peer's connection."""
    last = await peer.receive_until(lambda frame: isinstance(frame, wire.Drain))
    assert isinstance(last, wire.Drain)
    return last.reason


async def go_on(peer: RawPeer) -> None:
    while True:
        await peer.send_frames(wire.Idle("clicks", "raw"))
        await trio.sleep(0.05)


async def test_a_port_in_use_is_reported_with_the_setting_to_change() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        address = f"tcp://127.0.0.1:{port}"

        async def run() -> None:
            async with running(Node().app, address=address):
                raise AssertionError("it must not run")

        with pytest.raises(ConfigError, match=r"choose another s4\.listener\.address") as caught:
            await run()
    assert f"cannot listen on {address}" in str(caught.value)


# -- peers that vanish or do not listen -----------------------------------------------------------


async def test_a_client_that_vanishes_in_the_middle_of_a_frame_leaves_nothing_behind(
    node: Node,
) -> None:
    envelope = wire.envelope(
        [GOOD, wire.encode_frame(*data_frame("clicks", "raw", 0, [Click("ann", 1)]))]
    )
    whole = b"\x00SP\x00\x00\x10\x00\x00" + struct.pack(">Q", len(envelope)) + envelope
    for cut in (len(whole) - 1, len(whole) // 2, 20):
        gone = await trio.open_tcp_stream(*tcp(node.container.address))
        await gone.send_all(whole[:cut])
        linger = struct.pack("ii", 1, 0)
        gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await gone.aclose()
    await node.works()
    await until(lambda: not node.container.listener.connections)
    lanes = node.container.ports["clicks"].admission.lanes
    assert "raw" not in {producer for producer, _ in lanes}
    assert 1 not in node.seen


async def test_a_client_that_never_reads_its_verdicts_is_held_back_and_costs_nothing_more() -> None:
    node = Node()
    async with running(node.app, {"s4.stream.workQueueSize": "100"}) as node.container:
        admission = node.container.ports["clicks"].admission
        async with raw_peer(node.container.address) as peer, trio.open_nursery() as nursery:
            answer = await peer.open("clicks", "raw", Click)
            assert answer.positions[0].limit == 100
            bad = [Click("x" * 1000, n) for n in range(50)]

            async def flood() -> None:
                first = 0
                while True:  # it sends on, whatever it is told, and never reads
                    frames = [
                        data_frame("clicks", "raw", first + n, bad, flags=0)
                        for n in range(0, 200, 50)
                    ]
                    await peer.send_frames(*frames)  # at once, and beyond the credit
                    first += 200

            nursery.start_soon(flood)
            await until(lambda: admission.over_credit + admission.gaps > 500)
            await node.works()
            lane = admission.lanes["raw", 0]
            assert lane.expected <= lane.report.sent_limit + 50
            assert len(node.container.listener.connections) <= 2
            nursery.cancel_scope.cancel()


async def test_a_flood_beyond_the_credit_is_dropped_and_answered_and_others_go_on() -> None:
    node = Node()
    may_end = trio.Event()

    async def wait(_pe: Any, _buy: Buy) -> None:
        await may_end.wait()

    slow = node.app.create_pe(handling(wait, Buy))
    node.app.create_input_stream("slow", slow, key="user")
    async with running(node.app, {"s4.stream.workQueueSize": "100"}, partitions=2) as container:
        node.container = container
        home = container.partitioner.partition_of
        user = next(user for user in map(str, range(99)) if home(user) != home("well"))
        async with raw_peer(container.address) as peer:
            await peer.open("slow", "raw", Buy)
            for first in range(0, 20_000, 50):
                buys = [Buy(user, first + n) for n in range(50)]
                await peer.send_frames(data_frame("slow", "raw", first, buys))
            verdict = await peer.receive_until(
                lambda frame: (
                    isinstance(frame, wire.Verdict) and frame.rulings[0].outcome == wire.EXPECTED
                )
            )
            assert verdict.rulings[0].expected == 100
            admission = container.ports["slow"].admission
            await until(lambda: admission.over_credit + admission.gaps == 398)
            assert admission.admitted == 100
            await node.works()
            may_end.set()


async def test_clients_that_come_and_go_leave_no_file_descriptor(node: Node) -> None:
    await node.works()
    await until(lambda: not node.container.listener.connections)
    before = open_files()
    for _ in range(30):
        await node.works()
    await until(lambda: not node.container.listener.connections)
    await until(lambda: open_files() <= before)


# -- two containers -------------------------------------------------------------------------------


# -- processes ------------------------------------------------------------------------------------

COUNTER = """
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
    n: int = 0
class Note(ProcessingElement):
    def on_event(self, event: Click): print(event.n, flush=True)
app = App("counter")
app.create_input_stream("clicks", app.create_pe(Note), key="user")
"""


@pytest.mark.slow
async def test_a_node_opens_as_many_files_as_the_system_lets_it(tmp_path: Path) -> None:
    (tmp_path / "counter.py").write_text(COUNTER)
    hard = min(5000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])

    def careful() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))

    async with node_process("counter.py", cwd=tmp_path, limits=careful) as node:
        limits = await trio.Path(f"/proc/{node.pid}/limits").read_text()
        (told,) = (line for line in limits.splitlines() if line.startswith("Max open files"))
        assert told.split()[3:5] == [str(hard), str(hard)]


@pytest.mark.slow
async def test_a_node_out_of_file_descriptors_turns_peers_away_and_recovers(tmp_path: Path) -> None:
    (tmp_path / "counter.py").write_text(COUNTER)

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    settings = ("-p", "s4.comm.timeout=300")
    async with node_process("counter.py", *settings, cwd=tmp_path, limits=few) as node:
        async with AsyncExitStack() as crowd:
            for _ in range(100):
                stranger = await trio.open_tcp_stream(*tcp(node.address))
                crowd.push_async_callback(trio.aclose_forcefully, stranger)
            await until(lambda: "failed" in node.errors or "cannot be taken" in node.errors)
        async with Client(node.address) as client:
            stream = await client.stream("clicks")
            await stream.send(Click("ann", 7))
            assert await stream.flush() == []
        await until(lambda: node.stdout == ["7"])
        node.signal(signal.SIGTERM)
        assert await node.wait() == 0


# -- set-up ---------------------------------------------------------------------------------------


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Node:
    """A running app that notes clicks, and a check that it still works."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.checks = 0
        self.app = NotingApp(types=Click | Buy, seen=self.seen, note=lambda _, event: event.n)
        self.container: Container

    async def works(self) -> None:
        async with Client(self.container.address) as client:
            stream = await client.stream("clicks")
            self.checks += 1
            await stream.send(Click("well", 4711 + self.checks))
            assert await stream.flush() == []
        assert self.seen.count(4711 + self.checks) == 1


@pytest.fixture
async def node(nursery: trio.Nursery) -> AsyncIterator[Node]:
    """A node; it must still work when the test has done its worst."""
    node = Node()
    settings = {"s4.comm.timeout": "200"}
    async with running(node.app, settings, partitions=2) as node.container:
        yield node
        await node.works()


def counts(node: Node) -> dict[str, int]:
    return node.container.statistics().peers


async def error_of_answer(peer: RawPeer) -> str:
    frame = await peer.receive_until(lambda frame: isinstance(frame, wire.Answer))
    assert isinstance(frame, wire.Answer)
    return frame.error


async def error_of(peer: RawPeer) -> str:
    frame = await peer.receive_until(lambda frame: getattr(frame, "error", ""))
    return str(frame.error)
