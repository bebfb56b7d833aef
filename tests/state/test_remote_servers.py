"""State at real servers: the histories of :mod:`conformance.append`.

A server that is not installed is skipped. moto needs ``pip install 'moto[server]' s3fs``, and
versitygw its program in the path, from ``go install github.com/versity/versitygw/cmd/versitygw``,
and s3fs.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conformance.append import History, RealStore
from s3_servers import find_servers_at, s3_server

from s4node.errors import StateError
from s4node.state.remote_job import RemoteJob

pytestmark = pytest.mark.slow

HISTORIES = 12


def test_what_counted_is_in_the_log_of_every_later_owner(url: str) -> None:
    job = RemoteJob(url, Path("here/app"))
    mode = job.append_mode()  # moto lets two writers at the same time both succeed now and then
    for seed in range(HISTORIES):
        History(mode, seed, RealStore(job.task(f"task-{seed}"))).play()


def test_a_put_does_not_wait_before_it_sends_the_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that lets a client wait with ``Expect: 100-continue`` costs a second round trip."""
    pytest.importorskip("s3fs")
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        find_servers_at(server.getsockname()[1], monkeypatch)
        header = thread.submit(header_of_one_request, server)
        files = RemoteJob("s3://bucket/state", Path("here/app")).files
        files.put(f"{files.root}/tasks/t/log/1", b"rows")
        assert header.result().startswith(b"PUT /bucket/state/here/app/tasks/t/log/1 ")
        assert b"100-continue" not in header.result().lower()


def test_a_large_object_that_a_server_refuses_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends while a server refuses and closes may see a broken connection only."""
    pytest.importorskip("s3fs")
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        find_servers_at(server.getsockname()[1], monkeypatch)
        sent = thread.submit(bytes_of_a_refused_request, server)
        files = RemoteJob("s3://bucket/state", Path("here/app")).files
        with (
            pytest.raises(StateError, match="Access Denied; give this node's user"),
            files.translate_errors(),
        ):
            files.put(f"{files.root}/tasks/t/log/1", bytes(20_000_000))
        assert sent.result() < 10_000


# -- set-up ---------------------------------------------------------------------------------------


def header_of_one_request(server: socket.socket) -> bytes:
    """The header of a client's first request, which succeeds."""
    end, _ = server.accept()
    with end:
        header = end.recv(1 << 16)
        end.sendall(b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: 0\r\n\r\n')
        return header


def bytes_of_a_refused_request(server: socket.socket) -> int:
    """How much a client sends that is refused once its header is there."""
    body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    end, _ = server.accept()
    with end:
        sent = len(end.recv(1 << 12))
        end.sendall(b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\n")
        end.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        while data := end.recv(1 << 16):
            sent += len(data)
    return sent


@pytest.fixture(params=["moto", "versitygw"])
def url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    with s3_server(request.param, tmp_path, monkeypatch):
        yield "s3://bucket/state"
