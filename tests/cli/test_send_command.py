"""``s4 send``, nearly always as a real process."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from cli_apps import COUNTER, DIVIDE, HELLO, send
from harness import (
    DEADLINE,
    NodeProcess,
    environment,
    free_port,
    node_process,
    proxy,
    run_s4,
    s4,
    s4_process,
    until,
)

from s4node.cli.running_apps import Reach
from s4node.cli.send import Sending

pytestmark = pytest.mark.slow


async def test_lines_that_are_not_events_are_reported_and_the_others_sent(folder: Path) -> None:
    lines = (
        b'{"user": "ann", "n": 1}\n'
        b"rubbish\n"
        b"\n"
        b"[1]\r\n"
        b'{"user": "ann", "n": "two"}\n'
        b'{"user": "ann"}\n'
        b'{"user": "\xff\xfe", "n": 3}\n'
        b'{"user": "ann", "n": 4} trailing\n'
        b'{"user": "ann", "n": 5, "unknown": 1}\n'
        b'{"us\xffer": "ann", "n": 6}\n'
        b'{"n": 1, "user": ' + b"[" * 50_000 + b"\n"
        b'  {"n": 50, "user": "ann"}  \r\n'
        b'{"user": "ann", "n": 25}'
    )
    async with node_process("divide.py", cwd=folder) as node:
        done = await send(folder, node, "clicks", lines)
        assert done.returncode == 1
        assert done.stdout == ""
        for told in (
            "line 2 is not a JSON object: ",
            "line 4 is not a JSON object: ",
            "line 8 is not a JSON object: ",
            "line 10 is not a JSON object: ",
            "line 11 is not a JSON object: ",
            "Click does not decode: Expected `int`, got `str` - at `$.n`",
            "Click does not decode: Object missing required field `n`",
            "Click does not decode: Object contains unknown field `unknown`",
            ', in {"user": "ann", "n": 5, "unknown": 1}\n',
        ):
            assert told in done.stderr
        assert "Traceback" not in done.stderr
        assert "clicks: 3 admitted" in done.stderr.splitlines()[-1]
        await until(lambda: node.stdout == ["100", "2", "4"])


async def test_a_command_that_comes_before_its_app_waits_for_it(folder: Path) -> None:
    async with s4_process("send", "clicks", cwd=folder, ready=False) as sending:
        await until(lambda: sending.stderr)
        async with node_process("divide.py", cwd=folder):
            assert await sending.wait() == 0
    assert sending.stderr == [
        "none of your processes take a stream 'clicks' yet; waiting 5 s for one that starts",
        "clicks: nothing sent",
    ]


async def test_lines_are_counted_however_long_they_are(folder: Path) -> None:
    long = b'{"user": "ann", "n": 50, "more": "%b"}\n' % (b"x" * 1_000_000)
    lines = b'{"user": "ann", "n": 1}\n' * 20_000
    async with node_process("divide.py", cwd=folder) as node:
        done = await send(folder, node, "clicks", lines + long + b"rubbish\n" + lines)
    assert "line 20002 is not a JSON object: " in done.stderr
    assert "a Click takes 1000038 bytes, over the frame limit" in done.stderr
    assert done.stderr.endswith("\nclicks: 40000 admitted, 1 unsent, 1 bad lines\n")


async def test_an_object_over_two_lines_is_refused_even_if_another_line_has_two(
    folder: Path,
) -> None:
    one = b'{"user": "ann", "n": 1}'
    lines = one + b"\n" + one + one + b'\n{"user": "ann",\n"n": 1}\n' + one
    async with node_process("divide.py", cwd=folder) as node:
        done = await send(folder, node, "clicks", lines)
    for number in (2, 3, 4):
        assert f"line {number} is not a JSON object: " in done.stderr
    assert done.stderr.endswith("\nclicks: 2 admitted, 3 bad lines\n")


async def test_a_refusal_is_reported_in_one_line_whatever_its_reason_quotes(folder: Path) -> None:
    async with node_process("divide.py", cwd=folder) as node:
        event = r'{"user": "ann", "n": 1, "a\nb\u001b[31m": 2}'
        done = await send(folder, node, "clicks", event)
        assert done.returncode == 1
        told, outcome = done.stderr.splitlines()
        assert told.startswith("refused: ")
        assert r"unknown field `a\nb\x1b[31m`" in told
        assert outcome == "clicks: 1 refused"


async def test_the_outcome_can_be_had_as_json(folder: Path) -> None:
    async with node_process("divide.py", cwd=folder) as node:
        lines = '{"user": "ann", "n": 1}\nrubbish\n{"user": "ann"}\n'
        done = await send(folder, node, "clicks", lines, "--json")
        assert done.returncode == 1
        assert json.loads(done.stdout) == {
            "stream": "clicks",
            "admitted": 1,
            "shed": 0,
            "refused": 1,
            "unsent": 0,
            "pending": 0,
            "bad lines": 1,
        }


@asynccontextmanager
async def piped_send(folder: Path, address: str, *options: str) -> AsyncIterator[trio.Process]:
    """``s4 send names``, with a pipe for its input and its outputs, and time for slow machines."""
    process = await trio.lowlevel.open_process(
        s4("send", "names", "--to", address, *options),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=folder,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    async with process.stdin, process.stdout, process.stderr:
        with trio.fail_after(2 * DEADLINE):
            yield process


async def everything(pipe: trio.abc.ReceiveStream | None) -> str:
    assert pipe is not None
    return b"".join([chunk async for chunk in pipe]).decode()


async def test_log_lines_stay_out_of_the_outcome(folder: Path) -> None:
    async with (
        node_process("hello.py", cwd=folder) as node,
        proxy(node.address) as between,
        piped_send(folder, between.address, "--json") as process,
    ):
        assert process.stdin is not None
        assert process.stderr is not None
        await process.stdin.send_all(b'{"name": "joe"}\n')
        await until(lambda: node.stdout == ["Hello joe!"])
        between.cut()
        said = b""
        while b"\n" not in said:
            said += await process.stderr.receive_some()
        await process.stdin.send_all(b'{"name": "ann"}\n')
        await process.stdin.aclose()
        outcome = await everything(process.stdout)
        assert await process.wait() == 0
    assert json.loads(said)["event"] == "connection lost; dialling again"
    assert json.loads(outcome)["admitted"] == 2


async def test_a_byte_order_mark_is_skipped_at_the_beginning_and_nowhere_else(
    folder: Path,
) -> None:
    async with node_process("divide.py", cwd=folder) as node:
        lines = b'\xef\xbb\xbf{"user": "ann", "n": 50}\n\xef\xbb\xbf{"user": "ann", "n": 25}\n'
        done = await send(folder, node, "clicks", lines)
        assert done.stderr.startswith("line 2 is not a JSON object: ")
        assert done.stderr.endswith("\nclicks: 1 admitted, 1 bad lines\n")
        await until(lambda: node.stdout == ["2"])
        only_a_mark = await send(folder, node, "clicks", b"\xef\xbb\xbf")
        assert (only_a_mark.returncode, only_a_mark.stderr) == (0, "clicks: nothing sent\n")


async def test_nothing_to_send_is_no_failure(folder: Path) -> None:
    async with node_process("hello.py", cwd=folder) as node:
        done = await send(folder, node, "names", "")
        assert (done.returncode, done.stderr) == (0, "names: nothing sent\n")


async def test_sending_to_an_unknown_stream_names_the_known_ones(folder: Path) -> None:
    async with node_process("hello.py", cwd=folder) as node:
        done = await send(folder, node, "nams", '{"name": "joe"}\n')
        assert done.returncode == 1
        assert "no input stream 'nams'; its input streams: names" in done.stderr
        assert "Traceback" not in done.stderr


async def test_sending_to_an_absent_node_fails_in_time(folder: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    command = ("send", "names", "--to", address, "--timeout", "0.3")
    done = await run_s4(*command, cwd=folder, stdin=b'{"name": "joe"}\n')
    assert done.returncode == 1
    assert f"{address}: no answer within 0.3 s; is the node running?" in done.stderr
    assert "Traceback" not in done.stderr


async def test_sending_to_an_invalid_address_is_a_wrong_command(folder: Path) -> None:
    done = await run_s4("send", "names", "--to", "nonsense", cwd=folder)
    assert done.returncode == 2
    assert (
        done.stderr
        == "s4: 'nonsense' is not an address; write tcp://host:port, or tls+tcp:// with TLS\n"
    )


HOLDING = """\
import trio
from s4node import App, ProcessingElement
class Hold(ProcessingElement):
    async def on_event(self, event):
        print(event.name)
        await trio.sleep_forever()
app = App("holding")
app.create_input_stream("names", app.create_pe(Hold), key="name")
"""


@asynccontextmanager
async def sending(folder: Path, node: NodeProcess, *options: str) -> AsyncIterator[trio.Process]:
    """``s4 send`` with two events under way, and input that goes on."""
    async with piped_send(folder, node.address, *options) as process:
        assert process.stdin is not None
        await process.stdin.send_all(b'{"name": "joe"}\n{"name": "joe"}\n')
        await until(lambda: node.stdout == ["joe"])
        yield process


async def test_send_accounts_for_its_events_when_it_is_interrupted(folder: Path) -> None:
    (folder / "holding.py").write_text(HOLDING)
    async with node_process("holding.py", cwd=folder) as node, sending(folder, node) as process:
        process.send_signal(signal.SIGINT)
        assert await everything(process.stdout) == ""
        assert await everything(process.stderr) == "names: 2 pending\n"
        assert await process.wait() == 130


async def test_send_says_where_to_look_if_the_last_verdicts_take_long(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("s4node.cli.send._PATIENCE_SECONDS", 0.1)
    (folder / "holding.py").write_text(HOLDING)
    (folder / "lines").write_text('{"name": "joe"}\n' * 2)
    told: list[str] = []

    def said() -> bool:
        told.append(capsys.readouterr().err)
        return "names: still waiting for verdicts of 2 events; s4 why says what is slow\n" in told

    with (folder / "lines").open() as lines:
        monkeypatch.setattr("sys.stdin", lines)
        async with node_process("holding.py", cwd=folder) as node, trio.open_nursery() as nursery:
            command = Sending("names", Reach([node.address], None), "", 30.0, as_json=False)
            nursery.start_soon(command.run)
            await until(said)
            nursery.cancel_scope.cancel()


@pytest.mark.long
async def test_send_accounts_for_its_events_as_json_when_the_node_is_gone(folder: Path) -> None:
    (folder / "holding.py").write_text(HOLDING)
    options = ("--json", "--timeout", "2")  # it bounds connecting, too
    async with (
        node_process("holding.py", cwd=folder) as node,
        sending(folder, node, *options) as process,
    ):
        await node.kill()
        assert process.stdin is not None
        await process.stdin.aclose()
        assert await process.wait() == 1
        outcome = json.loads((await everything(process.stdout)).splitlines()[-1])
        assert (outcome["stream"], outcome["admitted"], outcome["pending"]) == ("names", 0, 2)
        last = (await everything(process.stderr)).splitlines()[-1]
        assert last.endswith("2 events have no verdict. Send pending events again when it runs")


async def test_send_ends_in_time_when_the_node_is_gone_amid_its_input(folder: Path) -> None:
    (folder / "holding.py").write_text(HOLDING)
    options = ("--json", "--timeout", "2")  # it bounds connecting, too
    async with (
        node_process("holding.py", cwd=folder) as node,
        sending(folder, node, *options) as process,
        trio.open_nursery() as nursery,
    ):

        async def feed() -> None:  # the pipe is never closed, and there is always more
            assert process.stdin is not None
            with suppress(trio.BrokenResourceError):
                while True:
                    await process.stdin.send_all(b'{"name": "joe"}\n' * 1000)

        nursery.start_soon(feed)
        await node.kill()
        assert await process.wait() == 1
        outcome = json.loads((await everything(process.stdout)).splitlines()[-1])
        assert outcome["admitted"] == 0
        assert outcome["pending"] > 32_768
        last = (await everything(process.stderr)).splitlines()[-1]
        assert last.startswith(f"s4: stream 'names': no answer from {node.address} for 2 s")
        assert last.endswith("events have no verdict. Send pending events again when it runs")


async def test_send_goes_on_with_a_node_that_comes_back_in_time(folder: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    async with piped_send(folder, address, "--timeout", "30") as process:
        assert process.stdin is not None
        async with node_process("hello.py", cwd=folder, listen=address) as node:
            await process.stdin.send_all(b'{"name": "joe"}\n')
            await until(lambda: node.stdout == ["Hello joe!"])
            await node.kill()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.stdin.send_all, b'{"name": "ann"}\n' * 50_000)
            async with node_process("hello.py", cwd=folder, listen=address):
                await until(lambda: not nursery.child_tasks)
                await process.stdin.aclose()
                assert await process.wait() == 0


async def test_an_interrupt_ends_send_with_130(folder: Path) -> None:
    async with node_process("hello.py", cwd=folder) as node:
        process = await trio.lowlevel.open_process(
            s4("send", "names", "--to", node.address),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            cwd=folder,
        )
        assert process.stdin is not None
        assert process.stderr is not None
        await process.stdin.send_all(b'{"name": "joe"}\n')
        await until(lambda: node.stdout == ["Hello joe!"])
        process.send_signal(signal.SIGINT)
        with trio.fail_after(DEADLINE):
            assert await process.wait() == 130
        assert b"Traceback" not in await process.stderr.receive_some()
        await process.stdin.aclose()
        await process.stderr.aclose()


# -- set-up ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with apps in it, which is not the repository's."""
    for name, text in (("hello", HELLO), ("counter", COUNTER), ("divide", DIVIDE)):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path
