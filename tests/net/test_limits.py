"""When a limit takes effect, the peer is told, and it is counted and logged once."""

from __future__ import annotations

import struct
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from harness import data_frame, limit_peers, until
from log_nodes import log_node
from shared_apps import Click
from structlog.testing import capture_logs

from s4node.events.schema import EventType
from s4node.events.type_declaration import TypeDecl, fingerprint_of
from s4node.net.ingress.peer_limits import Budget, PeerLimits, Rate
from s4node.net.transport.sp_messages import HANDSHAKE, framed
from s4node.net.wire import frame as wire

_FIELDS = tuple((f"{'x' * 40}{n}", "str", True) for n in range(30))
LONG = TypeDecl("Long", fingerprint_of("Long", _FIELDS), _FIELDS)
CLICK = EventType(Click).declaration
BAD, REFUSED, ENDED, LIMITS = (
    "bad frames",
    "connections refused",
    "connections ended",
    "limits reached",
)


def hellos(*peers: str, stream: str = "live", of: TypeDecl = CLICK) -> bytes:
    each = [wire.encode_frame(wire.Hello(p, "1", stream, (of,))) for p in peers]
    return framed(wire.envelope(each))


def clicks(count: int, text: str = "ann") -> bytes:
    """A message with a frame of clicks, after its hello."""
    header, body = data_frame("live", "raw", 0, [Click(text, n) for n in range(count)])
    return hellos("raw") + framed(wire.envelope([wire.encode_frame(header, body)]))


class Row(NamedTuple):
    """A setting or limit, what a connection sends after its handshake, what it is told, and the
    metric."""

    limit: str
    sends: bytes
    told: str
    metric: str
    line: str = "a peer has reached a limit"


_MANY = [str(n) for n in range(140)]
_ENDED = "a connection was ended"
_UNFINISHED = hellos("raw") + struct.pack(">Q", 200_000) + bytes(60_000)
ROWS = (
    Row(
        "maxEnvelopeBytes=1024",
        bytes(6) + b"\x08\0" + bytes(2048),
        "of 2048 bytes",
        BAD,
        "bad frame",
    ),
    Row("maxFrameBytes=1024", clicks(1, "x" * 2000), "over the limit of 1024", BAD, "bad frame"),
    Row("frame_events=3", clicks(4), "over the limit of 3", BAD, "bad frame"),
    Row("maxConnections=1", hellos("raw"), "has 1 connections", REFUSED, "too many connections"),
    Row("connections_per_host=1", hellos("raw"), "from 127.0.0.1", REFUSED, "too many"),
    Row("patience=100", b"", "it has sent nothing", ENDED, _ENDED),
    Row("patience=100", _UNFINISHED, "it does not finish a message", ENDED, _ENDED),
    Row("bytes=50000", _UNFINISHED, "has sent most of what waits here", ENDED, _ENDED),
    Row("unread_bytes=1024", hellos(*_MANY[:20], stream="none"), "1024 bytes of answers", LIMITS),
    Row("bytes=1024", hellos("raw", stream="x" * 2000), "not read its answers", ENDED, _ENDED),
    Row("own_lanes=1", hellos("a", "b"), "would have 2 lanes, more than 1", LIMITS),
    Row("producers=1", hellos("a", "b"), "for 1 producers", LIMITS),
    Row("type_bytes=1024", hellos("a", of=LONG), "types of more than 1024 bytes", LIMITS),
    Row("hellos_per_second=2", hellos(*_MANY[:9]), "beyond 2 a second wait", LIMITS),
    Row(
        "all_hellos_per_second=160",
        hellos(*_MANY),
        "of all connections beyond 160 a second",
        LIMITS,
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.limit}-{n}" for n, row in enumerate(ROWS)])
async def test_a_limit_that_takes_effect_is_told_counted_and_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Row
) -> None:
    name, _, value = row.limit.partition("=")
    settings = {}
    if name in PeerLimits._fields:
        limit_peers(monkeypatch, **{name: int(value)})
    else:
        settings[f"s4.listener.{name}"] = value
    async with log_node(tmp_path, settings=settings) as node:
        host, port = node.address.removeprefix("tcp://").rsplit(":", 1)

        def counted() -> int:
            return node.statistics().peers.get(row.metric, 0)

        async with AsyncExitStack() as peers:
            if row.metric == REFUSED:  # its place is taken, by one that goes on
                busy = await peers.enter_async_context(await trio.open_tcp_stream(host, int(port)))
                nursery = await peers.enter_async_context(trio.open_nursery())
                nursery.start_soon(_goes_on, busy)
                peers.callback(nursery.cancel_scope.cancel)
                await until(lambda: any(each.spoke for each in node.listener.connections))
            with capture_logs() as lines:
                for times in (1, 2):
                    peer = await trio.open_tcp_stream(host, int(port))
                    await peers.enter_async_context(peer)
                    await _send(peer, row.sends)
                    await _until_told(peer, row.told)
                    await until(lambda times=times: counted() >= times)
    assert len([line for line in lines if line["event"].startswith(row.line)]) == 1


async def test_a_connection_that_does_not_read_is_ended_counted_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_peers(monkeypatch, hellos_per_second=100_000, all_hellos_per_second=800_000)
    settings = {"s4.listener.patience": "300"}
    async with log_node(tmp_path, settings=settings) as node:
        host, port = node.address.removeprefix("tcp://").rsplit(":", 1)
        with capture_logs() as lines:
            peer = await trio.open_tcp_stream(host, int(port))
            async with peer, trio.open_nursery() as nursery:
                asks = hellos("raw", stream="x" * 2000) * 8000
                nursery.start_soon(_send, peer, asks)
                await until(lambda: node.listener.counts["connections ended"])
                nursery.cancel_scope.cancel()
    reasons = [line["reason"] for line in lines if line["event"] == _ENDED]
    assert reasons == ["it does not read"]


async def _send(peer: trio.SocketStream, what: bytes) -> None:
    """Send a handshake and more; the node may end the connection before it has all."""
    with suppress(trio.BrokenResourceError):
        await peer.send_all(HANDSHAKE + what)


async def _until_told(peer: trio.SocketStream, what: str) -> None:
    told = b""
    with trio.fail_after(30):
        while what.encode() not in told:
            part = await peer.receive_some()
            assert part, f"it was told {told!r}, not {what!r}"
            told += part


async def _goes_on(peer: trio.SocketStream) -> None:
    await peer.send_all(HANDSHAKE)
    while True:
        await peer.send_all(hellos("busy"))
        await trio.sleep(0.05)


def test_beyond_a_budget_the_owner_that_takes_most_is_the_one_to_end() -> None:
    budget: Budget[str] = Budget(100)
    budget.set("a", 60)
    budget.set("b", 40)
    assert budget.largest() is None
    budget.set("b", 50)
    assert budget.largest() == "a"
    budget.set("a", 0)
    assert budget.largest() is None


def test_what_is_beyond_a_rate_waits() -> None:
    rate = Rate(10)
    for _ in range(40):
        rate.count(100.0)
    assert rate.seconds_until_next(100.0) == 0
    rate.count(100.0)
    assert rate.seconds_until_next(100.0) == pytest.approx(0.1)
    assert rate.seconds_until_next(101.0) == 0


def test_what_has_happened_lately_is_known_as_of_the_last_count() -> None:
    rate = Rate(10, 0.5)
    for _ in range(3):
        rate.count(100.0)
    assert rate.spent == 3
    rate.count(200.0)
    assert rate.spent == 1
