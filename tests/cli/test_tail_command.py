"""``s4 tail``, always as a real process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import trio
from cli_apps import send
from harness import environment, free_port, node_process, run_s4, s4, s4_process, until

from s4node import Client, GenericEvent

pytestmark = pytest.mark.slow


async def test_tail_prints_what_an_app_puts_on_a_stream_from_when_it_says_so(
    tmp_path: Path,
) -> None:
    (tmp_path / "sums.py").write_text(TOTALS)
    async with node_process("sums.py", cwd=tmp_path) as node:
        tail = s4_process(
            "tail", "totals", "--to", node.address, "--count", "3", cwd=tmp_path, ready=False
        )
        async with tail as tailing:
            await until(lambda: tailing.stderr == [begun("totals", node.address)])
            for _ in range(3):
                done = await send(tmp_path, node, "clicks", '{"user": "joe"}\n')
                assert done.returncode == 0
            assert await tailing.wait() == 0
        found = [json.loads(line) for line in tailing.stdout]
        assert [event["user"] for event in found] == ["joe"] * 3
        assert [event["n"] for event in found] == [1, 2, 3]  # nothing is missing


@pytest.mark.long
@pytest.mark.parametrize("command", [("tail", "totals"), ("log", "tail", "kept")])
async def test_tail_ends_when_its_reader_goes_though_nothing_comes(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "sums.py").write_text(TOTALS)
    async with node_process("sums.py", "-p", "s4.log.folder=log", cwd=tmp_path) as node:
        to = ("--to", node.address)
        assert (await run_s4("log", "create", "kept", *to, cwd=tmp_path)).returncode == 0
        reader, writer = os.pipe()
        tailing = await trio.lowlevel.open_process(
            s4(*command, *to),
            stdout=writer,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=environment(),
        )
        os.close(writer)
        try:
            assert tailing.stderr is not None
            assert (
                await tailing.stderr.receive_some()
                == f"{begun(command[-1], node.address)}\n".encode()
            )
            with trio.move_on_after(2):
                await tailing.wait()
            assert tailing.returncode is None  # as long as there is a reader
            os.close(reader)
            with trio.fail_after(30):
                assert await tailing.wait() == 1
            assert await tailing.stderr.receive_some() == b""
        finally:
            tailing.kill()
            await tailing.wait()


@pytest.mark.long
async def test_tail_tells_of_a_lost_connection_and_of_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(TOTALS)
    address = f"tcp://127.0.0.1:{free_port()}"

    async def click() -> None:
        async with Client(address) as client:
            await (await client.stream("clicks")).send(GenericEvent(user="joe"))

    command = ("tail", "totals", "--to", address)
    async with node_process("sums.py", cwd=tmp_path, listen=address) as node:
        async with s4_process(*command, cwd=tmp_path, ready=False) as tail:
            first = begun("totals", address)
            await until(lambda: tail.stderr == [first])
            await click()
            await until(lambda: tail.stdout)
            await node.kill()
            lost = "totals: connection lost; events are missed until it is back"
            await until(lambda: tail.stderr == [first, lost])
            read = len(tail.stdout)
            async with node_process("sums.py", cwd=tmp_path, listen=address):
                back = "totals: connected again; reading from now on"
                await until(lambda: tail.stderr == [first, lost, back])
                await click()
                await until(lambda: len(tail.stdout) > read)
                tail.signal(signal.SIGINT)
                assert await tail.wait() == 130
        assert json.loads(tail.stdout[-1]) == {"user": "joe", "n": 1}
        assert tail.stderr == [first, lost, back]


async def test_tail_tells_of_an_event_that_cannot_be_sent(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(TOTALS.replace("self.n += 1", "self.n += event.n"))
    async with (
        node_process("sums.py", cwd=tmp_path) as node,
        s4_process("tail", "totals", "--to", node.address, cwd=tmp_path, ready=False) as tail,
        Client(node.address) as client,
    ):
        clicks = await client.stream("clicks")
        await until(lambda: tail.stderr)
        await clicks.send_many([GenericEvent(user="ann", n=2**63)] * 2)  # the sum is too large
        await clicks.flush()
        await until(lambda: len(tail.stderr) == 2)
        tail.signal(signal.SIGINT)
        assert await tail.wait() == 130
    told = tail.stderr
    assert len(told) == 2, told
    line = told[1]
    assert line.startswith("totals: 1 event missed: reading is too slow, or the app's node could ")


async def test_tail_says_what_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(TOTALS)
    async with node_process("sums.py", cwd=tmp_path) as node:
        done = await run_s4("tail", "clicks", "--to", node.address, cwd=tmp_path)
        assert done.returncode == 1
        assert "its streams are: totals" in done.stderr
        assert done.stdout == ""


# -- set-up ---------------------------------------------------------------------------------------


TOTALS = """
from s4node import App, Event, GenericEvent, ProcessingElement

class Total(Event):
    user: str
    n: int

class Sum(ProcessingElement):
    n: int = 0

    def on_event(self, event: GenericEvent) -> None:
        self.n += 1
        totals.put(Total(event.user, self.n))

app = App("sums")
app.create_input_stream("clicks", app.create_pe(Sum), key="user")
totals = app.create_output_stream("totals", types=Total)
"""


def begun(stream: str, address: str) -> str:
    return f"reading {stream} from {address}; Ctrl-C ends"
