"""A forked child keeps nothing of its parent's; processes are real."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from s4node.forks import LockFile, closed_in_forks


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


def test_what_the_app_has_open_stays_open_in_a_child() -> None:
    with open(os.devnull) as file:  # noqa: PTH123
        closed_in_forks(file)
    ours, childs = os.pipe()  # one of them has the number of what was closed
    with child(lambda: os.write(childs, b"it is open")):
        assert os.read(ours, 10) == b"it is open"
    os.close(ours)
    os.close(childs)


# -- set-up ---------------------------------------------------------------------------------------


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
