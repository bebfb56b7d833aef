"""A bad peer costs a node bounded memory and log, and honest peers go on.

The nodes are processes with the default settings. Attackers write to sockets as they like.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import cycle
from pathlib import Path

import pytest
import trio
from harness import DEADLINE, NodeProcess, colliding_pairs, colliding_query, node_process, raw_peer
from shared_apps import VICTIM, Click

from s4node import Client, Event
from s4node.events.type_declaration import fingerprint_of
from s4node.net.transport.sp_messages import HANDSHAKE, framed
from s4node.net.wire import frame as wire

pytestmark = pytest.mark.slow

MB = 1 << 20


class Pair(Event):
    a: int
    b: int


async def test_most_of_many_long_messages_costs_a_bounded_amount_of_memory(tmp_path: Path) -> None:
    async with victim(tmp_path) as node:
        before = memory(node)
        with attackers(node, 64) as peers:
            await flooded(peers, struct.pack(">Q", 16 * MB) + bytes(15 * MB))
            assert await peak(node) - before < 160 * MB
            await serves(node)


async def test_peers_that_ask_and_never_read_cost_bounded_memory_and_log(tmp_path: Path) -> None:
    async with victim(tmp_path) as node:
        before = memory(node)
        hello = wire.encode_frame(wire.Hello("x", "1", "unknown"))
        with attackers(node, 40) as peers:
            await flooded(peers, framed(wire.envelope([hello] * 1000)) * 20)
            assert await peak(node) - before < 160 * MB
            await serves(node)
    assert len(node.errors) < MB


async def test_producers_of_many_lanes_cost_a_bounded_amount_of_memory(tmp_path: Path) -> None:
    async with victim(tmp_path, partitions=64) as node:
        before = memory(node)
        with attackers(node, 20) as peers:
            for number, peer in enumerate(peers):
                hellos = [
                    wire.encode_frame(wire.Hello(f"{number}-{n}", "1", "clicks"))
                    for n in range(1024)
                ]
                peer.settimeout(1)
                await sent(peer, framed(wire.envelope(hellos)), reads=True)
            assert await peak(node) - before < 200 * MB
            await serves(node)


async def test_connections_that_only_shake_hands_keep_nobody_out(tmp_path: Path) -> None:
    async with victim(tmp_path) as node:
        with attackers(node, 1024):
            await serves(node)
            await serves(node)


async def test_many_addresses_that_each_say_one_hello_keep_nobody_out(tmp_path: Path) -> None:
    said = framed(wire.envelope([wire.encode_frame(wire.Hello("x", "1", "clicks"))]))
    async with victim(tmp_path) as node:
        with attackers(node, 1024, hosts=500) as peers:
            for peer in peers:
                peer.sendall(said)
            await serves(node)
            await serves(node)


async def test_messages_of_nothing_do_not_keep_a_node_from_others(tmp_path: Path) -> None:
    async with victim(tmp_path) as node:
        with attackers(node, 2) as peers:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(flooded, peers, framed(wire.envelope([])) * 5_000_000)
                for _ in range(3):
                    await serves(node)
                nursery.cancel_scope.cancel()


async def test_maps_whose_keys_share_one_hash_do_not_stall_the_node(tmp_path: Path) -> None:
    query = colliding_query(30_000)
    async with victim(tmp_path) as node:
        with attackers(node, 1) as [peer]:
            before = cpu(node)
            await sent(peer, framed(wire.envelope([query])), reads=True)
            await serves(node)
            assert cpu(node) - before < 3


async def test_hellos_to_unknown_streams_cost_a_bounded_log(tmp_path: Path) -> None:
    async with victim(tmp_path) as node:
        with attackers(node, 4) as peers:
            hellos = [
                wire.encode_frame(wire.Hello("x", "1", f"unknown-{n}")) for n in range(20_000)
            ]
            await flooded(peers, framed(wire.envelope(hellos)), reads=True)
            await serves(node)
    assert len(node.errors) < MB


async def test_declared_types_do_not_make_answers_too_long_for_others(tmp_path: Path) -> None:
    log = ("-p", f"s4.log.folder={tmp_path / 'log'}")
    async with victim(tmp_path, *log) as node:
        await asked(node, "create", {"stream": "pages", "partitions": 1})
        with attackers(node, 8, hosts=8) as peers:  # each may send only so much in a second
            for n, peer in zip(range(64), cycle(peers), strict=False):
                fields = tuple((f"{'x' * 200}{n}_{i}", "str", True) for i in range(4000))
                declared = wire.TypeDecl(f"Long{n}", fingerprint_of(f"Long{n}", fields), fields)
                hello = wire.Hello(f"p{n}", "1", "pages", (declared,))
                await sent(peer, framed(wire.envelope([wire.encode_frame(hello)])), reads=True)
            async with Client(node.address) as client:
                pages = await client.stream("pages")
                await pages.send(Click("ann", 1))
                assert await pages.flush() == []


async def test_keys_that_share_one_hash_do_not_stall_the_node(tmp_path: Path) -> None:
    async with victim(tmp_path) as node, Client(node.address) as client:
        pairs = await client.stream("pairs")
        before = cpu(node)
        for a, b in colliding_pairs(20_000):
            await pairs.send(Pair(a, b))
        refused = await pairs.flush()
        assert cpu(node) - before < 4
        assert sum(each.count for each in refused) > 19_000
        assert "has the same hash as many other keys" in refused[0].reason
        await serves(node)


# -- the node, its attackers, and an honest peer --------------------------------------------------


@asynccontextmanager
async def victim(folder: Path, *options: str, partitions: int = 2) -> AsyncIterator[NodeProcess]:
    (folder / "app.py").write_text(VICTIM)
    options = ("-p", f"s4.cluster.partitions={partitions}", *options)
    async with node_process("app.py", *options, cwd=folder) as node:
        await serves(node)
        yield node


@contextmanager
def attackers(node: NodeProcess, count: int, hosts: int = 1) -> Iterator[list[socket.socket]]:
    """Connections that have shaken hands, from as many addresses."""
    host, port = node.address.removeprefix("tcp://").rsplit(":", 1)
    froms = [f"127.0.{1 + n % hosts // 250}.{1 + n % hosts % 250}" for n in range(count)]
    peers = [
        socket.create_connection((host, int(port)), 10, (each if hosts > 1 else "", 0))
        for each in froms
    ]
    try:
        for peer in peers:
            peer.sendall(HANDSHAKE)
        yield peers
    finally:
        for peer in peers:
            peer.close()


async def flooded(peers: list[socket.socket], data: bytes, *, reads: bool = False) -> None:
    """Have all peers send at once, as much as is taken from them."""
    async with trio.open_nursery() as nursery:
        for peer in peers:
            nursery.start_soon(lambda peer=peer: sent(peer, data, reads=reads))


async def sent(peer: socket.socket, data: bytes, *, reads: bool = False) -> None:
    """Send for three seconds at most, or until the connection ends."""
    peer.setblocking(False)
    at = 0
    with trio.move_on_after(3):
        while at < len(data):
            try:
                if reads:
                    read_all(peer)
                at += peer.send(memoryview(data)[at : at + MB])
                await trio.lowlevel.checkpoint()
            except BlockingIOError:
                await trio.sleep(0.005)
            except OSError:
                return
    if reads:
        await trio.sleep(0.05)
        read_all(peer)


def read_all(peer: socket.socket) -> None:
    try:
        while peer.recv(MB):
            pass
    except OSError:
        pass


async def serves(node: NodeProcess) -> None:
    """An honest peer is served."""
    with trio.fail_after(DEADLINE):
        async with Client(node.address, timeout=DEADLINE) as client:
            clicks = await client.stream("clicks")
            for n in range(100):
                await clicks.send(Click("ann", n))
            assert await clicks.flush() == []


def memory(node: NodeProcess) -> int:
    for line in Path(f"/proc/{node.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


async def peak(node: NodeProcess) -> int:
    most = 0
    for _ in range(10):
        most = max(most, memory(node))
        await trio.sleep(0.05)
    return most


def cpu(node: NodeProcess) -> float:
    words = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def asked(node: NodeProcess, question: str, arguments: dict[str, object]) -> None:
    async with raw_peer(node.address) as peer:
        await peer.send_frames(wire.Query(1, question, arguments))
        answer = await peer.receive_until(lambda header: isinstance(header, wire.Answer))
    assert isinstance(answer, wire.Answer)
    assert not answer.error
