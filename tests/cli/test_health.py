"""``s4 health`` says whether a node answers: its event loop, and not only its machine's kernel."""

from __future__ import annotations

import signal
import socket
from contextlib import closing

import pytest
import trio
from harness import ROOT, free_port, in_thread, node_process, run_s4

from s4node.cli.health import check
from s4node.errors import ConfigError, ConnectionRefused


@pytest.mark.slow
async def test_a_running_node_is_healthy_and_logs_nothing_about_being_asked() -> None:
    async with node_process(HELLO, "-p", "s4.logger_level=debug", cwd=ROOT) as node:
        for _ in range(3):
            asked = await run_s4("health", node.address, cwd=ROOT)
            assert (asked.returncode, asked.stdout) == (0, "")
            assert asked.stderr == f"{node.address} answers\n"
        node.signal(signal.SIGTERM)
        assert await node.wait() == 0

    assert "peer" not in node.errors
    assert "warning" not in node.errors


@pytest.mark.slow
async def test_a_node_that_hangs_is_not_healthy_until_it_goes_on() -> None:
    async with node_process(HELLO, cwd=ROOT) as node:
        node.signal(signal.SIGSTOP)
        hanging = await run_s4("health", node.address, "--timeout", "0.3", cwd=ROOT)
        node.signal(signal.SIGCONT)
        going_on = await run_s4("health", node.address, cwd=ROOT)

    assert hanging.returncode == 1
    assert f"nothing answers at {node.address} within 0.3 s" in hanging.stderr
    assert going_on.returncode == 0


async def test_the_reason_is_reported_if_nobody_listens() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionRefused, match=f"no node can be reached at {address}: "):
        check(address, 1)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"220 ", b""])
async def test_something_else_that_listens_is_no_node(answer: bytes) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"

        def stranger() -> None:
            peer, _ = server.accept()
            with closing(peer):
                peer.recv(8)
                peer.sendall(answer)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, stranger)
            with pytest.raises(ConnectionRefused, match=f"what listens at {address} is not a node"):
                await in_thread(lambda: check(address, 5))


HANDSHAKE = bytes.fromhex("00 53 50 00 00 10 00 00")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (None, "nothing answers at {} within 0.3 s"),
        (b"z" * 50, "not a node: its answer is not an s4node frame (an envelope starts with b'S4'"),
        (b"S4\x01\x00", "not a node: its answer is not an s4node frame (an empty message)"),
    ],
    ids=["nothing", "garbage", "an envelope of nothing"],
)
async def test_a_peer_that_only_takes_part_in_the_handshake_is_no_node(
    message: bytes | None, told: str
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"

        def stranger() -> None:
            peer, _ = server.accept()
            with closing(peer):
                peer.sendall(HANDSHAKE)
                if message is not None:
                    peer.sendall(len(message).to_bytes(8, "big") + message)
                while peer.recv(1024):
                    pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, stranger)
            with pytest.raises(ConnectionRefused) as refused:
                await in_thread(lambda: check(address, 0.3))
    assert told.format(address) in str(refused.value)


@pytest.mark.parametrize("text", ["localhost:12000", "tcp://:1", "tcp://host", "tcp://host:0", ""])
def test_a_text_that_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write tcp://host:port"):
        check(text, 1)


# -- set-up ---------------------------------------------------------------------------------------


HELLO = "apps/hello/app.py"
