"""S3 servers as processes of this machine, for tests; one that is not installed skips its tests."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def s3_server(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """An S3 server that this process finds, with an empty bucket called ``bucket``; gives its port.

    ``name`` is *moto* or *versitygw*, which keeps the objects in ``folder``.
    """
    if importlib.util.find_spec("s3fs") is None:
        pytest.skip("s3fs is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    if name == "moto":
        if importlib.util.find_spec("moto") is None:
            pytest.skip("moto is not installed")
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    else:
        program = shutil.which("versitygw")
        if program is None:
            pytest.skip("versitygw is not in the path")
        (folder / "objects").mkdir()
        command = [program, "--access", "user", "--secret", "password", "--port"]
        command += [f"127.0.0.1:{port}", "posix", str(folder / "objects")]
    find_servers_at(port, monkeypatch)
    import s3fs

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except ConnectionRefusedError:
                    assert server.poll() is None
                    assert time.monotonic() < deadline
            s3fs.S3FileSystem().mkdir("bucket")
            yield port
        finally:
            server.kill()


def find_servers_at(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process, and those that it starts, find the S3 server at this port."""
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "user"),
        ("AWS_SECRET_ACCESS_KEY", "password"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}"),
    ):
        monkeypatch.setenv(name, value)
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
