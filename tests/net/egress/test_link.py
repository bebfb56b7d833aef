"""A link's promises about connections that end: what came before the end is taken before it."""

from __future__ import annotations

import sys
import time

import pynng
import pytest
import trio
from recording_app import Click, clicks

from s4node import Client
from s4node.errors import StageBroken
from s4node.events.schema import EventType
from s4node.net.wire import frame as wire

TYPES = (EventType(Click).declaration,)


def hello(**headers: bool) -> bytes:
    """A node's answer to a hello, or its report of owners."""
    positions = (wire.Position(0, 0, 100),)
    frame = wire.Hello("node", "1", "clicks", TYPES, "", 1, positions, headers=headers)
    return wire.envelope([wire.encode_frame(frame)])


def _headers(envelope: bytes) -> list[wire.Header]:
    read = wire.read_envelope(envelope, 1 << 30)
    return [frame.header for frame in read if isinstance(frame, wire.Frame)]


async def test_a_node_that_has_yet_to_answer_is_told_of_the_end_of_a_stream_too() -> None:
    peer = pynng.Pair0(listen="tcp://127.0.0.1:0")
    port = int.from_bytes(peer.listeners[0].local_address.port.to_bytes(2, sys.byteorder), "big")
    with trio.fail_after(60):
        async with (
            trio.open_nursery() as nursery,
            Client(f"tcp://127.0.0.1:{port}", producer="mine") as client,
        ):

            async def answers() -> None:
                await peer.arecv()
                peer.send(hello())

            nursery.start_soon(answers)
            stream = await client.stream("clicks", types=Click)
            peer.close()
            peer = pynng.Pair0(listen=f"tcp://127.0.0.1:{port}")
            headers = _headers(await peer.arecv())
            assert [type(each) for each in headers] == [wire.Hello]
            stream.end()
        headers = _headers(await peer.arecv())
        assert headers[:1] == [wire.EndOfStream("clicks", "mine")]
        peer.close()


async def test_a_client_closes_its_connection_after_the_node_has_taken_the_end_of_its_streams() -> (
    None
):
    last: list[str] = []
    with pynng.Pair0(listen="tcp://127.0.0.1:0") as peer, trio.fail_after(60):
        port = int.from_bytes(
            peer.listeners[0].local_address.port.to_bytes(2, sys.byteorder), "big"
        )

        async def answers() -> None:
            await peer.arecv()
            peer.send(hello())
            asked: list[wire.Header] = []
            while not (asked and isinstance(asked[-1], wire.Query)):
                asked += _headers(await peer.arecv())
            *_, end, question = asked
            assert end == wire.EndOfStream("clicks", client.producer)
            assert isinstance(question, wire.Query)
            last.append("taken")
            answer = wire.Answer(question.id, {}, "the question is unknown")
            peer.send(wire.envelope([wire.encode_frame(answer)]))

        async with trio.open_nursery() as nursery:
            client = Client(f"tcp://127.0.0.1:{port}")
            async with client:
                nursery.start_soon(answers)
                await client.stream("clicks", types=Click)
            last.append("left")
    assert last == ["taken", "left"]


async def test_a_report_that_comes_right_before_the_end_does_not_open_lanes_again() -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(6):  # trio runs what is ready in a random order
            nursery.start_soon(report_before_the_end)


async def report_before_the_end() -> None:
    peer = pynng.Pair0(listen="tcp://127.0.0.1:0")
    port = int.from_bytes(peer.listeners[0].local_address.port.to_bytes(2, sys.byteorder), "big")
    async with (
        trio.open_nursery() as nursery,
        Client(f"tcp://127.0.0.1:{port}", timeout=3) as client,
    ):

        async def answers() -> None:
            await peer.arecv()
            peer.send(hello())

        nursery.start_soon(answers)
        stream = await client.stream("clicks", types=Click)
        await stream.send_many(clicks(3))
        await peer.arecv()
        peer.send(hello(unasked=True))
        time.sleep(0.1)  # noqa: ASYNC251 - nothing of this may run until both have come
        peer.close()
        time.sleep(0.1)  # noqa: ASYNC251
        with trio.fail_after(20), pytest.raises(StageBroken, match="no answer from"):
            await stream.flush()
        client.abandon()
