"""Clients whose address leads to what is not a node, or no longer one."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import suppress

import pynng
import pytest
import trio
from harness import proxy, running, until
from recording_app import RecordingApp, clicks
from structlog.testing import capture_logs

from s4node import Client
from s4node.errors import ConnectionRefused, StageBroken

EMPTY = b"S4\x01\x00"
ANSWERS = {
    "nothing": b"",
    "http": b"HTTP/1.1 400 Bad\r\n\r\n",
    "rubbish": b"S4\x01\x00" + b"\xff" * 40,
    "another version": b"S4\x09\x00",
    "an empty envelope": EMPTY,
}


async def test_a_peer_that_answers_garbage_is_reported_and_not_waited_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reasons: dict[str, tuple[bytes, str]] = {}  # by address

    async def meets(answer: bytes) -> None:
        with pynng.Pair0(listen="tcp://127.0.0.1:0") as peer:
            port = int.from_bytes(
                peer.listeners[0].local_address.port.to_bytes(2, sys.byteorder), "big"
            )
            address = f"tcp://127.0.0.1:{port}"

            async def answers() -> None:
                while True:
                    await peer.arecv()
                    await peer.asend(answer)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(answers)
                async with Client(address, timeout=2) as client:
                    with pytest.raises(
                        ConnectionRefused, match=f"at {address}: no answer within 2 s; "
                    ) as refused:
                        await client.stream("clicks")
                    with pytest.raises(ConnectionRefused):
                        async with client.subscribe("clicks"):
                            raise AssertionError
                nursery.cancel_scope.cancel()
        reasons[address] = answer, str(refused.value)

    async with trio.open_nursery() as peers:
        for answer in ANSWERS.values():
            peers.start_soon(meets, answer)
    logged = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    bad = Counter(line["address"] for line in logged if line["event"].startswith("bad frame"))
    assert len(reasons) == len(ANSWERS)
    for address, (answer, reason) in reasons.items():
        if answer == EMPTY:
            assert bad[address] == 0
            assert "the program there is not a node" in reason
        else:
            assert bad[address] == 2  # of the client's link, and of the subscription's
            assert "not with an s4node frame" in reason


SP = bytes.fromhex("00 53 50 00 00 10 00 00")
GARBAGE = SP + (4).to_bytes(8, "big") + b"zzzz"


class Stranger:
    """Another program's port: answers the same to all that connect, and hangs up."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.address = ""
        self.connections = 0

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.address = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
        await trio.serve_listeners(self._meet, [listener], task_status=task_status)

    async def _meet(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        with suppress(trio.BrokenResourceError):
            await stream.send_all(self.answer)
            await stream.receive_some()
        await stream.aclose()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (GARBAGE, "not with an s4node frame"),
        (b"HTTP/1.0 400 Bad\r\n\r\n", "is not a node: it answered b'HTTP/1.0'; the port may be "),
        (b"", "it closes the connection without an answer"),
    ],
    ids=["garbage", "http", "nothing"],
)
async def test_a_peer_that_hangs_up_after_a_wrong_answer_is_named_and_dialled_rarely(
    answer: bytes, told: str
) -> None:
    stranger = Stranger(answer)
    async with trio.open_nursery() as nursery:
        await nursery.start(stranger.serve)
        with capture_logs() as logs:
            async with Client(stranger.address, timeout=1) as client:
                with pytest.raises(ConnectionRefused) as refused:
                    await client.stream("clicks")
        nursery.cancel_scope.cancel()
    assert f"stream 'clicks' at {stranger.address}: no answer within 1 s; " in str(refused.value)
    assert told in str(refused.value)
    hint = f"without an answer; if it wants certificates, its address is tls+{stranger.address}"
    assert (hint in str(refused.value)) == (answer == b"")
    assert (
        2 <= stranger.connections <= 20
    )  # at a random time within 50 ms each it would be about 40
    assert len(logs) == (2 if answer == GARBAGE else 0)


async def test_flush_says_that_another_program_has_taken_the_node_s_port() -> None:
    noted, stranger = RecordingApp(), Stranger(GARBAGE)
    async with (
        running(noted) as node,
        proxy(node.address) as between,
        trio.open_nursery() as nursery,
        Client(between.address, timeout=0.3) as client,
    ):
        await nursery.start(stranger.serve)
        stream = await client.stream("clicks")
        between.redirect(stranger.address)
        between.cut()
        await until(lambda: stranger.connections)
        await stream.send_many(clicks(10))
        with pytest.raises(StageBroken) as caught:
            await stream.flush()
        assert "not with an s4node frame" in str(caught.value)
        assert "10 events have no verdict" in str(caught.value)
        between.redirect(node.address)
        between.cut()
        await until(lambda: len(noted.numbers) == 10)
        assert await stream.flush() == []
        nursery.cancel_scope.cancel()
    assert noted.numbers == list(range(10))
