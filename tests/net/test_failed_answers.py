"""An error while a node answers one peer ends that peer's connection, and nothing else."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
from harness import data_frame, raw_peer, running
from log_nodes import log_at, log_node
from shared_apps import Click, Count, OnePE

from s4node import Client, clocks
from s4node.config.config import Config
from s4node.errors import StoreError
from s4node.net.ingress.connection import Connection
from s4node.net.ingress.listener import Listener
from s4node.net.wire import frame as wire

LAST = wire.MAX_NUMBER

_FAILED = r"the log's writer has failed \(OverflowError.*\); restart the node"


async def test_the_last_number_of_a_life_serves_for_all_further_ones(tmp_path: Path) -> None:
    settings = {"s4.stream.clicks.grade": "durable", "s4.state.folder": str(tmp_path)}
    async with running(OnePE(Count, "clicks", key="user"), settings) as node:
        async with raw_peer(node.address) as first, raw_peer(node.address) as second:
            lives = (wire.Position(0, 0, life=LAST),)
            await first.send_frames(wire.Hello("p", "1", "clicks", positions=lives))
            hello = await first.receive_until(lambda frame: isinstance(frame, wire.Hello))
            assert hello.positions[0].life == LAST
            await first.send_frames(data_frame("clicks", "p", 0, [Click("joe", 1)]))
            await first.receive_until(settled)
            await second.send_frames(wire.Hello("p", "2", "clicks"))
            hello = await second.receive_until(lambda frame: isinstance(frame, wire.Hello))
            assert (hello.positions[0].number, hello.positions[0].life) == (1, LAST)
            await second.send_frames(data_frame("clicks", "p", 1, [Click("joe", 2)]))
            await second.receive_until(settled)
        async with raw_peer(node.address) as again:
            await again.send_frames(wire.Hello("p", "1", "clicks", positions=lives))
            hello = await again.receive_until(lambda frame: isinstance(frame, wire.Hello))
            assert "a program that was started later" in hello.error


@pytest.mark.parametrize(
    ("peer", "position", "headers"),
    [
        ("p", wire.Position(0, 0, life=2**63), {}),
        ("p", wire.Position(0, 0, life=2**64 - 1), {}),
        ("p", wire.Position(0, 0, life=LAST), {}),
        ("~a/b/Partition 0#0", wire.Position(0, 0), {wire.FENCE: 2**63}),
        ("~a/b/Partition 0#0", wire.Position(0, 0), {wire.FENCE: 2**63 - 1}),
    ],
)
async def test_no_number_in_a_hello_stops_the_log(
    tmp_path: Path, peer: str, position: wire.Position, headers: wire.Headers
) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 1)
        async with raw_peer(node.address) as attacker:
            for incarnation in "12":
                hello = wire.Hello(
                    peer, incarnation, "clicks", positions=(position,), headers=headers
                )
                await attacker.send_frames(hello, data_frame("clicks", peer, 0, [Click("joe", 1)]))
                await attacker.receive()
        async with Client(node.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send(Click("ann", 2))
            assert await clicks.flush() == []


async def test_an_error_while_one_peer_is_answered_ends_only_its_connection() -> None:
    class Clumsy:
        """Stumbles over one stream, now and when it tells the peer."""

        held = False

        def __init__(self) -> None:
            self.heard: list[str] = []

        def on_frame(self, frame: wire.Frame, connection: Connection) -> None:
            assert isinstance(frame.header, wire.Idle)
            self.heard.append(frame.header.stream)
            if frame.header.stream == "stumble":
                raise ValueError("it was not to be expected")
            connection.answer(wire.encode_frame(frame.header))
            listener.send_due(trio.current_time())

        def on_drained(self) -> None:
            pass

        def on_gone(self, connection: Connection) -> bool:
            return False

    config = Config.from_values({"s4.listener.address": "tcp://127.0.0.1:0"})
    listener = Listener(config, Clumsy())
    async with trio.open_nursery() as nursery:
        await nursery.start(listener.serve)
        async with raw_peer(listener.address) as peer, raw_peer(listener.address) as other:
            await other.send_frames(wire.Idle("well", "other"))
            await other.receive()
            await peer.send_frames(wire.Idle("stumble", "peer"), wire.Idle("well", "peer"))
            last = await peer.receive_until(lambda frame: isinstance(frame, wire.Drain))
            assert last.reason == "the node has failed to answer: ValueError; see its log"
            await other.send_frames(wire.Idle("well", "other"))
            await other.receive()
        assert listener.counts["connections ended"] == 1
        nursery.cancel_scope.cancel()


async def test_a_log_writer_that_has_failed_ends_its_node_with_a_message(tmp_path: Path) -> None:
    broken = threading.Event()
    wall = clocks.wall

    def failing() -> float:
        if broken.is_set() and threading.current_thread().name == "log writer":
            raise OverflowError("the clock has stopped")
        return wall()

    async def run() -> None:
        async with log_node(tmp_path) as node, log_at(node.address) as log:
            await log.create("clicks", 1)
            broken.set()
            await trio.sleep_forever()

    with clocks.replaced(clocks.steady, failing), pytest.raises(StoreError, match=_FAILED):
        await run()


def settled(frame: wire.Header) -> bool:
    return isinstance(frame, wire.Verdict) and any(each.upto for each in frame.rulings)
