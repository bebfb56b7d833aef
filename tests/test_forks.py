"""A forked child keeps nothing of its parent's; processes are real."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from forkserver import ForkServer, Request
from harness import DEADLINE, environment

from s4node.forks import LockFile, closed_in_forks
from s4node.net.transport.sp_messages import HANDSHAKE


def test_a_lock_outlives_a_child_and_no_child_outlives_with_a_lock(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "lock")
    fcntl.flock(lock, fcntl.LOCK_EX)
    with child():
        with LockFile(tmp_path / "lock") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.close()
        with LockFile(tmp_path / "lock") as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_port_is_free_and_peers_hear_of_the_end_while_a_child_lives() -> None:
    listener = closed_in_forks(socket.create_server(("127.0.0.1", 0)))
    near = socket.create_connection(listener.getsockname())
    far = closed_in_forks(listener.accept()[0])
    with child(), near:
        port = listener.getsockname()[1]
        for each in (listener, far):
            each.close()
        assert near.recv(1) == b""
        socket.create_server(("127.0.0.1", port)).close()


async def test_a_fork_of_the_server_does_not_die_at_the_fault_of_the_first_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "passes.py").write_text(
        "from s4node.failpoints import passing; passing('disk.write')"
    )
    server, found = ForkServer(), []
    for fault in ("disk.write", ""):
        env = environment(S4_FAULT=fault)
        fork = await server.fork(Request("passes", [], str(tmp_path), env, own_session=False))
        assert fork is not None
        found.append(await fork.wait())
    server.close()
    assert found == [-signal.SIGKILL, 0]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_peer_that_was_dialled_hears_of_a_death_while_a_child_lives(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port, named = server.getsockname()[1], f"[{host}]" if ":" in host else host
        command = [sys.executable, "-c", DIALS_AND_FORKS, f"tcp://{named}:{port}"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
        ) as parent:
            assert parent.stdin is not None
            assert parent.stdout is not None
            far = server.accept()[0]
            with far, parent.stdin:
                far.send(HANDSHAKE)
                assert parent.stdout.readline() == b"forked\n"
                parent.kill()
                far.settimeout(DEADLINE)
                assert far.recv(100) == HANDSHAKE
                assert far.recv(100) == b""


def test_what_the_app_has_open_stays_open_in_a_child() -> None:
    with open(os.devnull) as file:  # noqa: PTH123
        closed_in_forks(file)
    ours, childs = os.pipe()  # one of them has the number of what was closed
    with child(lambda: os.write(childs, b"it is open")):
        assert os.read(ours, 10) == b"it is open"
    os.close(ours)
    os.close(childs)


# -- set-up ---------------------------------------------------------------------------------------

DIALS_AND_FORKS = """
import os, sys, trio
from types import SimpleNamespace
from s4node.net.transport.pair_socket import PairSocket

async def main():
    connected = trio.Event()
    owner = SimpleNamespace(set_connected=lambda _: connected.set())
    near = PairSocket.dialing(sys.argv[1], 1024, owner)
    await connected.wait()
    if os.fork() == 0:
        os.read(0, 1)
        os._exit(0)
    print("forked", flush=True)
    await trio.sleep_forever()

trio.run(main)
"""


@contextmanager
def child(then: object = None) -> Iterator[None]:
    """A forked child, which has called ``then`` and lives during the block."""
    ready, is_ready = os.pipe()
    end, at_end = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            if callable(then):
                then()
            os.close(at_end)
            os.write(is_ready, b".")
            os.read(end, 1)
        finally:
            os._exit(0)
    try:
        os.read(ready, 1)
        yield
    finally:
        for each in (at_end, end, ready, is_ready):
            os.close(each)
        os.waitpid(pid, 0)
