"""A store that denies access, or is full, while an app runs: a real S3 server with a small disk.

versitygw has to be in the path, and root to run the tests, which mount a disk.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import free_port, node_process, run_s4, until
from shared_apps import COUNTER, Click

from s4node import Client

USERS = [f"user{number}" for number in range(24)]
URL = "s3://bucket/state"
_READS, _WRITES = ["s3:GetObject"], ["s3:PutObject", "s3:DeleteObject"]


def deny(bucket: Bucket) -> None:
    bucket.allow(_READS)


def fill(bucket: Bucket) -> None:
    bucket.disk("dd if=/dev/zero of=bucket/ballast bs=4k")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("breaks", "fix"),
    [
        (deny, "give this node's user or credentials the right to list, read, write and remove"),
        (fill, "the place is full: free some space or raise its quota; then commits go on by "),
    ],
)
async def test_events_wait_for_rights_or_room_at_the_store_and_none_is_lost(
    bucket: Bucket, breaks: Callable[[Bucket], None], fix: str, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(COUNTER)
    place = ("-p", f"s4.state.url={URL}", "-p", f"s4.state.folder={tmp_path / 'state'}")
    settings = ("--partitions", "4", "-p", "s4.stream.clicks.grade=durable", *place)
    async with node_process("app.py", *settings, cwd=tmp_path) as node:
        async with Client(node.address, timeout=60) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many(Click(user) for user in USERS)
            assert await clicks.flush() == []
            breaks(bucket)
            await clicks.send_many(Click(user) for user in USERS)
            fails = "progress could not be written"
            await until(lambda: sum(fails in line for line in node.stderr) == 4, "all tasks say so")
            told = [json.loads(line) for line in node.stderr if fails in line]
            assert {line["task"] for line in told} == {f"Partition {n}" for n in range(4)}
            for line in told:
                assert line["error"].startswith(f"{URL}/default/counter cannot be read or written")
                assert fix in line["error"]
            with trio.move_on_after(2) as scope:
                await clicks.flush()
            assert scope.cancelled_caught
            assert sum(fails in line for line in node.stderr) == 4
            bucket.allow(_READS + _WRITES)
            bucket.disk("rm -f bucket/ballast")
            assert await clicks.flush() == []
        await node.kill()
    other = ("-p", f"s4.state.url={URL}", "-p", f"s4.state.folder={tmp_path / 'other'}")
    done = await run_s4("state", "scan", "counter", "--json", *other, cwd=tmp_path)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["key"]: row["value"]["clicks"] for row in rows} == dict.fromkeys(USERS, 2)


# -- set-up ---------------------------------------------------------------------------------------


class Bucket:
    """A bucket of an S3 server with a small disk. ``node`` is a user who does not own it."""

    def __init__(self, server: int, folder: Path, owner: Any) -> None:
        self._server = server
        self._folder = folder
        self._owner = owner

    def allow(self, actions: list[str]) -> None:
        """Let the user do this to objects, and list them."""
        every = {"Effect": "Allow", "Principal": "node"}
        rights = [
            {**every, "Action": actions, "Resource": "arn:aws:s3:::bucket/*"},
            {**every, "Action": ["s3:ListBucket"], "Resource": "arn:aws:s3:::bucket"},
        ]
        policy = json.dumps({"Version": "2012-10-17", "Statement": rights})
        self._owner.put_bucket_policy(Bucket="bucket", Policy=policy)

    def disk(self, command: str) -> None:
        """Run a command in the folder where the disk is mounted."""
        inside = ["nsenter", "-t", str(self._server), "-m", "sh", "-c"]
        subprocess.run(
            [*inside, f"cd {self._folder} && {command}"], capture_output=True, check=False
        )


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    program = shutil.which("versitygw")
    if program is None or importlib.util.find_spec("s3fs") is None:
        pytest.skip("versitygw is not in the path, or s3fs is not installed")
    if os.geteuid():
        pytest.skip("only root can mount a small disk")
    folder, users = tmp_path / "objects", tmp_path / "users"
    for each in (folder, users):
        each.mkdir()
    url = f"http://127.0.0.1:{(port := free_port())}"
    root = ("--access", "root", "--secret", "password")
    serve = (program, *root, "--port", f"127.0.0.1:{port}", "--iam-dir", users, "posix", folder)
    mount = f"mount -t tmpfs -o size=32m tmpfs {folder} && exec {shlex.join(map(str, serve))}"
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", mount],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            while not _listens(port):
                assert server.poll() is None
            import botocore.session

            owner = botocore.session.get_session().create_client(
                "s3",
                endpoint_url=url,
                region_name="us-east-1",
                aws_access_key_id="root",
                aws_secret_access_key="password",
            )
            owner.create_bucket(Bucket="bucket")
            new = ("--access", "node", "--secret", "word", "--role", "user")
            admin = (program, "admin", *root, "--endpoint-url", url)
            subprocess.run([*admin, "create-user", *new], check=True, capture_output=True)
            for name, value in (
                ("AWS_ACCESS_KEY_ID", "node"),
                ("AWS_SECRET_ACCESS_KEY", "word"),
                ("AWS_DEFAULT_REGION", "us-east-1"),
                ("AWS_ENDPOINT_URL", url),
            ):
                monkeypatch.setenv(name, value)
            found = Bucket(server.pid, folder, owner)
            found.allow(_READS + _WRITES)
            yield found
        finally:
            server.kill()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
