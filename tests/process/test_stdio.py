"""Commands and the standard streams they are started with, always as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from cli_apps import HELLO, logs, send
from harness import ANY_PORT, environment, node_process, run_s4, s4, s4_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


# -- closed streams -------------------------------------------------------------------------------


@pytest.mark.parametrize("messages", [pytest.param("2>&-", marks=pytest.mark.long), "2>/dev/full"])
async def test_messages_that_cannot_be_written_change_nothing_else(
    folder: Path, messages: str
) -> None:
    mistaken = ("config", "check", "-p", "s4.hasher=crc32m", "--json")
    assert await run(messages, *mistaken, cwd=folder) == (0, "[]\n", "")
    assert await run(messages, "rubbish", cwd=folder) == (2, "", "")
    async with log_node(folder) as to:
        for command in (("send", "names"), ("log", "append", "evs")):
            status, said, _ = await run(messages, *command, *to, "--json", cwd=folder, events=EVENT)
            assert (status, json.loads(said)["admitted"]) == (0, 1)
        tail = ("log", "tail", "evs", "--from", "oldest", "--count", "2")
        assert await run(messages, *tail, *to, cwd=folder) == (0, EVENT.decode() * 2, "")


@pytest.mark.parametrize(
    ("command", "messages"),
    [
        (("run", "hello.py"), ""),
        pytest.param(("run", "hello.py", "--nodes", "2"), "2>/dev/full", marks=pytest.mark.long),
        pytest.param(("node", "shop"), "2>&-", marks=pytest.mark.long),
    ],
)
async def test_a_server_whose_output_is_closed_goes_on_and_stops_in_order(
    folder: Path, command: tuple[str, ...], messages: str
) -> None:
    where = ("-p", "s4.coordination.folder=shared", "-p", "s4.logger_level=debug")
    with gone_reader() as pipe:
        process = await trio.lowlevel.open_process(
            redirected(messages, *command, "--json", *LISTEN, *where),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=pipe,
            cwd=folder,
            env=environment(),
        )
    try:
        assert process.stdout is not None
        with trio.fail_after(30):
            assert "address" in json.loads(await process.stdout.receive_some())
            process.terminate()
            assert await process.wait() == 0
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize(
    "command",
    [
        ("--help",),
        pytest.param(("graph", "hello.py"), marks=pytest.mark.long),
        pytest.param(("config", "default"), marks=pytest.mark.long),
    ],
)
async def test_closed_and_unwritable_output_counts_as_no_output(
    folder: Path, command: tuple[str, ...]
) -> None:
    assert await run(">&-", *command, cwd=folder) == (1, "", "")
    assert await run(">&- 2>&-", *command, cwd=folder) == (1, "", "")
    for unbuffered in ("", "1"):
        with gone_reader() as pipe:
            gone = await run("", *command, cwd=folder, stdout=pipe, PYTHONUNBUFFERED=unbuffered)
        assert gone == (1, "", "")
        status, _, told = await run(">/dev/full", *command, cwd=folder, PYTHONUNBUFFERED=unbuffered)
        assert told.startswith("s4: the output cannot be written: [Errno 28] No space left")
        assert (status, told.count("\n")) == (1, 1)
    status, _, told = await run("1</dev/null", *command, cwd=folder)
    assert told.startswith("s4: the output cannot be written: [Errno 9] Bad file descriptor")
    with gone_terminal() as terminal:
        status, _, told = await run("", *command, cwd=folder, stdout=terminal)
    assert told.startswith("s4: the output cannot be written: [Errno 5] Input/output error")
    assert (status, told.count("\n")) == (1, 1)


@pytest.mark.long
async def test_looking_with_the_output_closed_ends_at_once(folder: Path) -> None:
    where = ("--folder", "shared")
    async with s4_process("node", "shop", *where, *LISTEN, cwd=folder), log_node(folder) as to:
        for command in (
            ("status", "--cluster", "shop", *where),
            ("status", "--cluster", "shop", *where, "--json"),
            ("top", "--cluster", "shop", *where),
            ("log", "describe", *to),
            ("log", "tail", "evs", "--from", "oldest", *to),
        ):
            assert await run(">&-", *command, cwd=folder) == (1, "", ""), command
        begun = f"reading evs from {to[1]}; Ctrl-C ends\n"
        assert await run(">&-", "log", "tail", "evs", *to, cwd=folder) == (1, "", begun)


async def test_input_that_is_closed_is_empty(folder: Path) -> None:
    async with log_node(folder) as to:
        for stream, command in (("names", ("send", "names")), ("evs", ("log", "append", "evs"))):
            done = await run("<&-", *command, *to, cwd=folder)
            assert done == (0, "", f"{stream}: nothing sent\n")


@pytest.mark.parametrize("nodes", [(), pytest.param(("--nodes", "2"), marks=pytest.mark.long)])
async def test_a_server_needs_no_output(folder: Path, nodes: tuple[str, ...]) -> None:
    command = ("run", "hello.py", *nodes, *LISTEN)
    async with s4_process(*command, cwd=folder, limits=partial(os.close, 1)) as node:
        done = await send(folder, node, "names", EVENT)
        assert done.stderr == "names: 1 admitted\n"
        node.signal(signal.SIGTERM)
        assert await node.wait() == 0
    assert "Traceback" not in node.errors
    assert "a container ended" not in node.errors


@pytest.mark.long
async def test_a_node_without_output_has_containers_that_need_none(folder: Path) -> None:
    where = ("--cluster", "shop", "--folder", "shared")
    command = ("node", "shop", *where[2:], *LISTEN)
    async with s4_process(*command, cwd=folder, limits=partial(os.close, 1)) as node:
        assert (await run_s4("deploy", "hello.py", *where, cwd=folder)).returncode == 0
        assert (await run_s4("undeploy", "hello", *where, cwd=folder)).returncode == 0
        node.signal(signal.SIGTERM)
        assert await node.wait() == 0
    assert "Traceback" not in node.errors
    assert "a container ended" not in node.errors


# -- streams that fail ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ("run", "hello.py"),
        pytest.param(("run", "hello.py", "--nodes", "2"), marks=pytest.mark.long),
        pytest.param(("node", "shop"), marks=pytest.mark.long),
    ],
)
async def test_a_server_says_in_a_line_that_its_output_cannot_be_written(
    folder: Path, command: tuple[str, ...]
) -> None:
    where = ("-p", "s4.coordination.folder=shared", "-p", "s4.logger_level=error")
    status, _, told = await run(">/dev/full", *command, "--json", *LISTEN, *where, cwd=folder)
    last = told.splitlines()[-1]
    assert last.startswith("s4: the output cannot be written: [Errno 28] No space left")
    assert (status, told.count("s4: ")) == (1, 1)


async def test_output_that_a_container_cannot_write_at_its_end_is_reported_as_such(
    folder: Path,
) -> None:
    (folder / "half.py").write_text(HELLO.replace('!")', '!", end="")'))

    def fill() -> None:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)

    command = ("run", "half.py", "--nodes", "1", *LISTEN)
    async with s4_process(*command, cwd=folder, limits=fill) as node:
        await send(folder, node, "names", EVENT)
        node.signal(signal.SIGTERM)
        await node.wait()
    (ended,) = [line for line in logs(node) if line["event"] == "a container ended"]
    assert str(ended["reason"]).startswith("the output cannot be written: [Errno 28] No space left")
    assert "Traceback" not in node.errors


@pytest.mark.parametrize(
    "command", [("send", "names"), pytest.param(("log", "append", "evs"), marks=pytest.mark.long)]
)
async def test_unreadable_input_is_not_reported_as_output(
    folder: Path, command: tuple[str, ...]
) -> None:
    async with log_node(folder) as to:
        with gone_terminal(reads=True) as terminal:
            status, _, told = await run("", *command, *to, cwd=folder, stdin=terminal)
    *_, nothing, why = told.splitlines()
    assert nothing.endswith(": nothing sent")
    assert why.startswith("s4: standard input cannot be read: Input/output error")
    assert status == 1


# -- characters -----------------------------------------------------------------------------------


async def test_characters_that_the_output_does_not_have_are_escaped_as_in_json(
    folder: Path,
) -> None:
    show = ("config", "show", "-p", "s4.app.x=ä")
    _, said, told = await run("", *show, cwd=folder, PYTHONIOENCODING="ascii")
    assert r"s4.app.x = \u00e4" in said
    assert told == ""
    async with log_node(folder) as to:
        tail = ("log", "tail", "evs", "--from", "oldest", "--count", "1")
        done = await run("", *tail, *to, cwd=folder, PYTHONIOENCODING="ascii")
    event = EVENT.decode().replace("\N{SNOWMAN}", r"\u2603")
    event = event.replace("ö", r"\u00f6").replace("\N{PILE OF POO}", r"\ud83d\udca9")
    assert done == (0, event, "")
    assert json.loads(done[1]) == json.loads(EVENT)


# -- set-up ---------------------------------------------------------------------------------------


LISTEN = ("-p", f"s4.listener.address={ANY_PORT}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hello.py").write_text(HELLO)
    return tmp_path


def redirected(redirection: str, *arguments: str) -> list[str]:
    """The command line of ``s4`` with its streams as a shell would redirect them."""
    return ["sh", "-c", f'exec "$@" {redirection}', "sh", *s4(*arguments)]


async def run(
    redirection: str,
    *arguments: str,
    cwd: Path,
    events: bytes = b"",
    stdin: int | None = None,
    stdout: int = subprocess.PIPE,
    **env: str,
) -> tuple[int, str, str]:
    """The exit status, the output and the messages of an ``s4`` command; ``events`` are its input,
    unless it is ``stdin``."""
    done = await trio.to_thread.run_sync(
        partial(
            subprocess.run,
            redirected(redirection, *arguments),
            input=events if stdin is None else None,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            timeout=30,
            cwd=cwd,
            env=environment(**env),
        )
    )
    return done.returncode, (done.stdout or b"").decode(), done.stderr.decode()


@contextmanager
def gone_reader() -> Iterator[int]:
    """The writing end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@contextmanager
def gone_terminal(*, reads: bool = False) -> Iterator[int]:
    """A terminal whose other end is gone: the side that fails where it is read, or written."""
    ours, other = os.openpty() if reads else reversed(os.openpty())
    os.close(other)
    yield ours
    os.close(ours)


@asynccontextmanager
async def log_node(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """A node with the app hello, and the stream evs in its log; gives ``--to`` and its address."""
    async with node_process("hello.py", "-p", "s4.log.folder=log", cwd=folder) as node:
        to = ("--to", node.address)
        assert (await run_s4("log", "create", "evs", *to, cwd=folder)).returncode == 0
        assert (await run_s4("log", "append", "evs", *to, cwd=folder, stdin=EVENT)).returncode == 0
        yield to


EVENT = '{"name":"jörg \N{SNOWMAN}\N{PILE OF POO}"}\n'.encode()
