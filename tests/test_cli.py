"""The ``s4`` command, always as a real process."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
from harness import (
    ANY_PORT,
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

from s4node import Client, Event, GenericEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.slow

HELLO = """\
from s4node import App, ProcessingElement
class Hello(ProcessingElement):
    def on_event(self, event): print(f"Hello {event.name}!")
app = App("hello")
app.create_input_stream("names", app.create_pe(Hello), key="name")
"""

COUNTER = """\
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
class Count(ProcessingElement):
    clicks: int = 0
    def on_event(self, click: Click): self.clicks += 1; print(self.key, self.clicks)
app = App("counter")
app.create_input_stream("clicks", app.create_pe(Count), key="user")
"""

DIVIDE = """\
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
    n: int
class Divide(ProcessingElement):
    def on_event(self, click: Click):
        print(100 // click.n)
app = App("divider")
app.create_input_stream("clicks", app.create_pe(Divide), key="user")
"""

SLOW = """\
import trio
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
    n: int
class Slow(ProcessingElement):
    async def on_event(self, click: Click):
        await trio.sleep(0.001)
        print(click.n)
class Slowly(App):
    def on_init(self):
        self.create_input_stream("clicks", self.create_pe(Slow), key="user")
    def on_close(self):
        print("closed")
"""

STUCK = """\
import time, trio
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
    n: int
class Stuck(ProcessingElement):
    {kind} on_event(self, click: Click):
        print("began")
        {wait}
app = App("stuck")
app.create_input_stream("clicks", app.create_pe(Stuck), key="user")
"""


class Click(Event):
    user: str
    n: int = 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with apps in it, which is not the repository's."""
    for name, text in (("hello", HELLO), ("counter", COUNTER), ("divide", DIVIDE), ("slow", SLOW)):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


async def send(
    folder: Path, node: NodeProcess, stream: str, lines: str | bytes, *arguments: str
) -> subprocess.CompletedProcess[str]:
    stdin = lines if isinstance(lines, bytes) else lines.encode()
    return await run_s4("send", stream, "--to", node.address, *arguments, cwd=folder, stdin=stdin)


def logs(node: NodeProcess) -> list[dict[str, object]]:
    """The lines of stderr that are JSON objects."""
    return [json.loads(line) for line in node.stderr if line.startswith("{")]


def only_process_of_its_group_is_gone(node: NodeProcess) -> None:
    with pytest.raises(ProcessLookupError):
        os.killpg(node.pid, 0)


# -- running and sending --------------------------------------------------------------------------


async def test_hello_in_five_lines(folder: Path) -> None:
    assert len(HELLO.splitlines()) == 5
    async with node_process("hello.py", cwd=folder) as node:
        await until(lambda: "send events" in node.stderr[-1])
        assert node.stderr[-2:] == [
            f"hello runs at {node.address} (Ctrl-C stops it)",
            f"  send events:  s4 send names --to {node.address}",
        ]
        done = await send(folder, node, "names", '{"name": "joe"}\n{"name": "ann"}\n')
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == "names: 2 admitted\n"
        await until(lambda: node.stdout == ["Hello joe!", "Hello ann!"])


async def test_a_keyed_count_in_eight_lines_on_several_partitions(folder: Path) -> None:
    assert len(COUNTER.splitlines()) == 8
    async with node_process("counter.py", "--partitions", "4", cwd=folder) as node:
        users = ["joe", "ann", "joe", "bob", "joe", "ann"]
        lines = "".join(f'{{"user": "{user}"}}\n' for user in users)
        done = await send(folder, node, "clicks", lines)
        assert done.returncode == 0, done.stderr
        await until(lambda: len(node.stdout) == 6)
        assert sorted(node.stdout) == ["ann 1", "ann 2", "bob 1", "joe 1", "joe 2", "joe 3"]


async def test_lines_that_are_no_events_are_told_and_the_others_go_on(folder: Path) -> None:
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
        b'{"n": 1, "user": ' + b"[" * 50_000 + b"\n"
        b'  {"n": 50, "user": "ann"}  \r\n'
        b'{"user": "ann", "n": 25}'
    )
    async with node_process("divide.py", cwd=folder) as node:
        done = await send(folder, node, "clicks", lines)
        assert done.returncode == 1
        assert done.stdout == ""
        for told in (
            "line 2 is no JSON object: ",
            "line 4 is no JSON object: ",
            "line 8 is no JSON object: ",
            "line 10 is no JSON object: ",
            "Click does not decode: Expected `int`, got `str` - at `$.n`",
            "Click does not decode: Object missing required field `n`",
            "Click does not decode: Object contains unknown field `unknown`",
        ):
            assert told in done.stderr
        assert "Traceback" not in done.stderr
        assert "clicks: 3 admitted" in done.stderr.splitlines()[-1]
        await until(lambda: node.stdout == ["100", "2", "4"])


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
    """``s4 send names``, with a pipe for its input and its outputs."""
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
        with trio.fail_after(10):
            yield process


async def everything(pipe: trio.abc.ReceiveStream | None) -> str:
    assert pipe is not None
    return b"".join([chunk async for chunk in pipe]).decode()


async def test_what_is_logged_meanwhile_stays_out_of_the_outcome(folder: Path) -> None:
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


async def test_nothing_to_send_is_no_failure(folder: Path) -> None:
    async with node_process("hello.py", cwd=folder) as node:
        done = await send(folder, node, "names", "")
        assert (done.returncode, done.stderr) == (0, "names: nothing sent\n")


async def test_sending_to_a_stream_that_is_none_names_those_that_are(folder: Path) -> None:
    async with node_process("hello.py", cwd=folder) as node:
        done = await send(folder, node, "nams", '{"name": "joe"}\n')
        assert done.returncode == 1
        assert "no input stream 'nams'; its input streams: names" in done.stderr
        assert "Traceback" not in done.stderr


async def test_sending_to_nobody_is_told_in_time(folder: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    command = ("send", "names", "--to", address, "--timeout", "0.3")
    done = await run_s4(*command, cwd=folder, stdin=b'{"name": "joe"}\n')
    assert done.returncode == 1
    assert f"{address}: no answer within 0.3 s; is the node running?" in done.stderr
    assert "Traceback" not in done.stderr


async def test_sending_to_what_is_no_address_is_a_wrong_command(folder: Path) -> None:
    done = await run_s4("send", "names", "--to", "nonsense", cwd=folder)
    assert done.returncode == 2
    assert done.stderr == "s4: 'nonsense' is no address; write tcp://host:port\n"


async def test_an_adapter_process_feeds_a_node_process(folder: Path) -> None:
    (folder / "lines.py").write_text("""\
from s4node import AdapterApp, Event
class Click(Event):
    user: str
class Lines(AdapterApp):
    remote_stream_key_finder = "user"
    def on_start(self): self.start_soon(self.feed)
    async def feed(self):
        for n in range(100):
            await self.remote_stream.send(Click(self.parameters["user"]))
""")
    command = (
        "node",
        "clicks-cluster",
        "--app",
        "counter.py",
        "-p",
        f"s4.listener.address={ANY_PORT}",
    )
    async with s4_process(*command, cwd=folder) as node:
        settings = {
            "s4.listener.address": ANY_PORT,
            "s4.adapter.output.stream": "clicks",
            "s4.stream.clicks.consumers": "clicks-cluster",
            "s4.cluster.clicks-cluster.address": node.address,
            "s4.app.user": "ann",
        }
        (folder / "lines.properties").write_text(
            "".join(f"{key} = {value}\n" for key, value in settings.items())
        )
        arguments = ("adapter", "lines", "--app", "lines.py", "--config", "lines.properties")
        async with s4_process(*arguments, cwd=folder) as adapter:
            await until(lambda: len(node.stdout) == 100)
            adapter.signal(signal.SIGTERM)
            assert await adapter.wait() == 0
        assert node.stdout == [f"ann {n}" for n in range(1, 101)]


async def test_an_adapter_that_stops_without_its_consumer_names_what_is_lost_and_fails(
    folder: Path,
) -> None:
    (folder / "thirty.py").write_text("""\
from s4node import AdapterApp, Event
class Click(Event):
    user: str
class Thirty(AdapterApp):
    remote_stream_key_finder = "user"
    async def on_start(self): await self.remote_stream.send_many([Click("ann")] * 30)
""")
    settings = {
        "s4.listener.address": ANY_PORT,
        "s4.adapter.output.stream": "clicks",
        "s4.stream.clicks.consumers": "counter",
        "s4.cluster.counter.address": f"tcp://127.0.0.1:{free_port()}",
        "task.shutdown.ms": "100",
    }
    pairs = [word for key, value in settings.items() for word in ("-p", f"{key}={value}")]
    command = ("adapter", "thirty", "--app", "thirty.py", *pairs)
    async with s4_process(*command, cwd=folder) as adapter:
        adapter.signal(signal.SIGINT)
        assert await adapter.wait() == 1
    assert adapter.stderr[-1].startswith(
        "s4: app 'Thirty' stopped with 30 events of stream 'clicks' without a verdict of consumer "
        "'counter'."
    )
    (error,) = [line for line in logs(adapter) if line["level"] == "error"]
    assert (error["stream"], error["consumer"], error["events"]) == ("clicks", "counter", 30)


# -- stopping -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_drains_and_ends_with_status_0_and_nothing_left(
    folder: Path, number: signal.Signals
) -> None:
    async with node_process("slow.py", cwd=folder) as node, Client(node.address) as client:
        clicks = await client.stream("clicks")
        await clicks.send_many([Click("ann", n) for n in range(500)])
        await until(lambda: len(node.stdout) > 10)
        node.signal(number)
        assert await node.wait() == 0
        assert node.stdout[-1] == "closed"
        done = len(node.stdout) - 1
        assert node.stdout[:-1] == [str(n) for n in range(done)]
        await until(lambda: clicks.counts["admitted"] == done)
        only_process_of_its_group_is_gone(node)
        client.abandon()
    assert not [line for line in node.stderr if "Traceback" in line]


@pytest.mark.parametrize(
    ("kind", "wait"),
    [
        ("async def", "await trio.sleep_forever()"),
        ("def", "time.sleep(1000)"),
        ("def", "exec('while True: pass')"),
    ],
    ids=["async", "blocked", "busy"],
)
async def test_a_second_interrupt_ends_a_node_at_once_whatever_it_does(
    folder: Path, kind: str, wait: str
) -> None:
    (folder / "stuck.py").write_text(STUCK.format(kind=kind, wait=wait))
    async with node_process("stuck.py", cwd=folder) as node, Client(node.address) as client:
        clicks = await client.stream("clicks")
        await clicks.send(Click("ann", 1))
        await until(lambda: node.stdout == ["began"])
        node.signal(signal.SIGINT)
        with trio.move_on_after(0.3):
            await node.wait()
        assert node.process.returncode is None
        assert "at once" not in node.errors
        node.signal(signal.SIGINT)
        with trio.fail_after(10):
            assert await node.wait() == 130
        assert node.errors.count("s4: stopped at once, before all was drained; what was not ") == 1
        only_process_of_its_group_is_gone(node)
        client.abandon()


async def test_a_node_that_is_idle_ends_within_a_second(folder: Path) -> None:
    async with node_process("hello.py", cwd=folder) as node:
        node.signal(signal.SIGTERM)
        began = trio.current_time()
        assert await node.wait() == 0
        assert trio.current_time() - began < 1


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


async def test_send_accounts_for_its_events_as_json_when_the_node_is_gone(folder: Path) -> None:
    (folder / "holding.py").write_text(HOLDING)
    options = ("--json", "--timeout", "0.3")
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
        assert last.endswith("2 events have no verdict. Send again what is pending when it runs")


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
        with trio.fail_after(10):
            assert await process.wait() == 130
        assert b"Traceback" not in await process.stderr.receive_some()
        await process.stdin.aclose()
        await process.stderr.aclose()


# -- failing --------------------------------------------------------------------------------------


async def test_a_pe_that_raises_ends_the_node_with_status_1_and_everything_named(
    folder: Path,
) -> None:
    async with (
        node_process("divide.py", cwd=folder) as node,
        Client(node.address, producer="web") as client,
    ):
        clicks = await client.stream("clicks")
        await clicks.send_many([Click("ann", 1), Click("bob", 2), Click("ann", 0)])
        assert await node.wait() == 1
        client.abandon()
    assert node.stdout == ["100", "50"]
    assert 'divide.py", line 7, in on_event' in node.errors
    last = node.stderr[-1]
    assert last.startswith("s4: Divide of app 'divider' raised ZeroDivisionError: ")
    assert "key 'ann', event at clicks[0]@web:2." in last
    assert "site-packages/trio" not in node.errors


async def test_a_port_in_use_is_told_and_ends_with_status_2(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        done = await run_s4("run", "hello.py", "--listen", address, cwd=folder)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"s4: cannot listen on {address}: Address already in use; is another node running there? "
        f"choose another s4.listener.address"
    )
    assert "Traceback" not in done.stderr


SYNTAX = "from s4node import App\napp = App('x'\nprint(1)\n"
TWO_STREAMS = HELLO + 'app.create_input_stream("names", key="name")\n'
NO_KEY = HELLO.replace(', key="name"', "")


@pytest.mark.parametrize(
    ("text", "target", "told"),
    [
        (None, "app.py", "no file app.py; give a Python file or package.module:App"),
        (None, "no.such.module", "no module 'no.such.module': "),
        (SYNTAX, "app.py", "app.py:2: '(' was never closed"),
        ("x = 1\n", "app.py", "app.py has no App object and no App class"),
        (HELLO + "other = App('other')\n", "app.py", "has several apps: name one as app.py:app"),
        (HELLO, "app.py:ap", "app.py has no 'ap'; it has: app"),
        (HELLO, "app.py:Hello", "app.py:Hello is not an App object or class"),
        (TWO_STREAMS, "app.py", "app 'hello' has a stream 'names' already"),
        (NO_KEY, "app.py", "stream 'names' has no key, so 'Hello' would never get an instance"),
        ("import helper\n", "app.py", "helper.py:1: invalid syntax"),
        ("import helper\n", "app", "helper.py:1: invalid syntax"),
    ],
    ids=[
        "no file",
        "no module",
        "syntax",
        "no app",
        "several apps",
        "no such name",
        "no app of that name",
        "a declaration",
        "the graph",
        "syntax of an import",
        "syntax of a module's import",
    ],
)
async def test_an_app_that_cannot_start_is_told_in_a_line_and_ends_with_status_2(
    tmp_path: Path, text: str | None, target: str, told: str
) -> None:
    if text is not None:
        (tmp_path / "app.py").write_text(text)
        (tmp_path / "helper.py").write_text("def (\n")
    done = await run_s4("run", target, "--listen", ANY_PORT, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert done.stderr.startswith("s4: ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("part", "lines"),
    [
        ("os:path", []),
        ("nowhere:Nothing", []),
        ("parts:Loud", ["    raise ValueError(int('x'))"]),
        ("parts:Missing", []),
    ],
)
async def test_a_part_of_one_s_own_that_raises_shows_its_own_lines_and_no_others(
    folder: Path, part: str, lines: list[str]
) -> None:
    (folder / "parts.py").write_text(
        "class Loud:\n  def __init__(self, parameters):\n    raise ValueError(int('x'))\n"
    )
    setting = f"container.lifecycle.listeners={part}"
    done = await run_s4("run", "hello.py", "--listen", ANY_PORT, "-p", setting, cwd=folder)
    told = done.stderr.splitlines()
    assert done.returncode == 2
    assert told[-1].startswith(f"s4: listener {part!r} of container.lifecycle.listeners cannot be ")
    assert ("Traceback (most recent call last):" in told) == bool(lines)
    places = [line for line in told if line.lstrip().startswith("File ")]
    assert len(places) == len(lines)
    assert all('parts.py", line 3, in __init__' in place for place in places)


async def test_what_is_no_adapter_cannot_be_run_as_one(folder: Path) -> None:
    done = await run_s4("adapter", "lines", "--app", "hello.py", cwd=folder)
    assert done.returncode == 2
    assert done.stderr == "s4: hello.py is no AdapterApp; run it with 's4 run' or 's4 node'\n"


# -- help, logs, configuration --------------------------------------------------------------------

COMMANDS = [
    "run", "node", "adapter", "deploy", "apps", "undeploy", "status", "top", "send", "tail",
    "log", "startpoint", "checkpoint", "state", "dead-letter", "new-app", "graph", "health",
    "bench", "config",
]  # fmt: skip


async def test_the_help_lists_every_command_and_each_has_an_example(tmp_path: Path) -> None:
    whole = await run_s4("--help", cwd=tmp_path)
    assert whole.returncode == 0
    assert "example: s4 run hello.py" in whole.stdout
    assert re.findall(r"^    ([a-z-]+)", whole.stdout, re.MULTILINE) == COMMANDS
    for command in COMMANDS:
        told = await run_s4(command, "--help", cwd=tmp_path)
        assert (told.returncode, told.stderr) == (0, "")
        assert "example: " in told.stdout
        assert f"s4 {command}" in told.stdout.partition("example: ")[2].replace("\n", " ")


async def test_a_command_that_is_none_and_no_command_at_all_end_with_status_2(
    tmp_path: Path,
) -> None:
    nothing = await run_s4(cwd=tmp_path)
    assert (nothing.returncode, nothing.stdout[:9]) == (2, "usage: s4")
    wrong = await run_s4("rum", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "invalid choice: 'rum'" in wrong.stderr


def test_the_help_is_there_within_three_tenths_of_a_second(tmp_path: Path) -> None:
    def once() -> float:
        began = time.perf_counter()
        subprocess.run(
            s4("--help"), check=True, capture_output=True, cwd=tmp_path, env=environment()
        )
        return time.perf_counter() - began

    assert min(once() for _ in range(5)) < 0.3


async def test_logs_are_json_lines_where_nobody_sits(folder: Path) -> None:
    async with node_process("hello.py", cwd=folder) as node:
        stranger = await trio.open_tcp_stream("127.0.0.1", int(node.address.rsplit(":", 1)[1]))
        await until(lambda: len(logs(node)) == 2)  # the stranger has had its second
        await stranger.aclose()
        node.signal(signal.SIGTERM)
        await node.wait()
    first, second = logs(node)
    assert (first["event"], first["level"], first["app"]) == ("running", "info", "hello")
    assert first["address"] == node.address
    assert (second["level"], second["event"]) == (
        "warning",
        "a peer does not speak the protocol; closed",
    )
    others = [line for line in node.stderr if not line.startswith("{")]
    assert others == [
        f"hello runs at {node.address} (Ctrl-C stops it)",
        f"  send events:  s4 send names --to {node.address}",
    ]


async def test_logs_are_for_people_at_a_terminal(folder: Path) -> None:
    ours, theirs = os.openpty()
    try:
        process = await trio.lowlevel.open_process(
            s4("run", "hello.py", "--listen", ANY_PORT),
            stderr=theirs,
            stdout=subprocess.DEVNULL,
            env=environment(NO_COLOR="1"),
            cwd=folder,
        )
        os.close(theirs)
        text = b""
        with trio.fail_after(20):
            while b"send events" not in text:
                text += await trio.to_thread.run_sync(os.read, ours, 4096)
        assert b"[info     ] running" in text
        process.send_signal(signal.SIGINT)
        with trio.fail_after(20):
            while b"draining; once more to stop at once" not in text:
                text += await trio.to_thread.run_sync(os.read, ours, 4096)
            assert await process.wait() == 0
    finally:
        os.close(ours)


async def test_config_check_tells_all_mistakes_together_with_their_places(tmp_path: Path) -> None:
    (tmp_path / "one.properties").write_text(
        "s4.cluster.partitions = many\ns4.sender.maxframebytes = 5000\nnonsense\n"
    )
    (tmp_path / "two.properties").write_text("s4.comm.timeout = -1\n")
    files = ("one.properties", "two.properties", "three.properties")
    given = ("-p", "bar", "-p", "s4.hasher=md5")
    done = await run_s4("config", "check", "--json", *files, *given, cwd=tmp_path)
    assert done.returncode == 2
    lines = done.stderr.removeprefix("s4: ").splitlines()
    assert len(lines) == 7
    assert lines[0].startswith("one.properties:1: s4.cluster.partitions = 'many' is not a whole")
    assert "one.properties:2: unknown key 's4.sender.maxframebytes'" in lines[1]
    assert "did you mean 's4.sender.maxFrameBytes'?" in lines[1]
    assert lines[2].startswith("one.properties:3: 'nonsense' has no '='")
    assert lines[3].startswith("two.properties:1: s4.comm.timeout = '-1' is out of bounds")
    assert lines[4].startswith("three.properties: cannot be read")
    assert lines[5] == "command line: 'bar' has no '='; write -p KEY=VALUE"
    assert lines[6].startswith("command line: s4.hasher = 'md5' is neither")
    told = json.loads(done.stdout)
    assert [(each["file"], each["line"]) for each in told] == [
        ("one.properties", 1), ("one.properties", 2), ("one.properties", 3), ("two.properties", 1),
        ("three.properties", None), ("command line", None), ("command line", None),
    ]  # fmt: skip
    assert (told[3]["key"], told[3]["text"]) == ("s4.comm.timeout", lines[3].partition(": ")[2])


async def test_config_check_is_quiet_about_what_is_right(tmp_path: Path) -> None:
    (tmp_path / "one.properties").write_text("s4.cluster.partitions = 4\n")
    done = await run_s4("config", "check", "one.properties", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    done = await run_s4("config", "check", "--json", "one.properties", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "[]\n")


async def test_config_show_tells_each_value_and_where_it_comes_from(tmp_path: Path) -> None:
    (tmp_path / "one.properties").write_text("s4.cluster.partitions = 4\n")
    command = ("config", "show", "one.properties", "-p", "s4.cluster.name=east")
    done = await run_s4(*command, cwd=tmp_path)
    assert done.returncode == 0
    lines = dict(line.split(" = ", 1) for line in done.stdout.splitlines())
    assert lines["s4.cluster.partitions"].split() == ["4", "#", "one.properties:1"]
    assert lines["s4.cluster.name"].split() == ["east", "#", "command", "line"]
    assert lines["s4.hasher"].strip() == "crc32"
    told = await run_s4(*command, "--json", cwd=tmp_path)
    entries = {entry["key"]: entry for entry in json.loads(told.stdout)}
    assert entries["s4.cluster.partitions"] == {
        "key": "s4.cluster.partitions",
        "value": "4",
        "origin": "one.properties:1",
    }


async def test_config_default_prints_the_file_of_the_repository(tmp_path: Path) -> None:
    from harness import ROOT

    done = await run_s4("config", "default", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == (ROOT / "default.s4.comm.properties").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--partitions", "0"], "command line: s4.cluster.partitions = '0' is out of bounds"),
        (["--listen", "here"], "command line: s4.listener.address = 'here'"),
        (["-p", "s4.comm.timeout"], "'s4.comm.timeout' has no '='; write -p KEY=VALUE"),
        (["--partitions", ""], "command line: s4.cluster.partitions = ''"),
        (["-p", "s4.com.timeout=1"], "did you mean 's4.comm.timeout'?"),
        (["--config", "no.properties"], "no.properties: cannot be read"),
    ],
)
async def test_wrong_settings_end_run_with_status_2(
    folder: Path, arguments: Sequence[str], told: str
) -> None:
    done = await run_s4("run", "hello.py", *arguments, cwd=folder)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


# -- folders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["file", "absolute", "module", "named"])
async def test_an_app_runs_from_any_folder_and_finds_its_neighbours(
    tmp_path: Path, target: str
) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (package / "__init__.py").touch()
    neighbour = (
        "from shop.words import GREETING" if target == "module" else "from words import GREETING"
    )
    (package / "words.py").write_text('GREETING = "Good day"\n')
    (package / "app.py").write_text(f"{neighbour}\n{HELLO}".replace("Hello {", "{GREETING} {"))
    found, cwd = {
        "file": ("shop/app.py", tmp_path),
        "absolute": (str(package / "app.py"), elsewhere),
        "module": ("shop.app", tmp_path),
        "named": ("../shop/app.py:app", elsewhere),
    }[target]
    async with node_process(found, cwd=cwd) as node:
        done = await send(elsewhere, node, "names", '{"name": "joe"}\n')
        assert done.returncode == 0
        await until(lambda: node.stdout == ["Good day joe!"])


def test_python_dash_m_is_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "s4node", "--version"],
        check=True,
        capture_output=True,
        cwd=tmp_path,
        env=environment(),
    )
    assert done.stdout.startswith(b"s4node 0.")


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


async def test_tail_prints_what_an_app_puts_on_a_stream(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(TOTALS)
    async with node_process("sums.py", cwd=tmp_path) as node:
        tail = s4_process(
            "tail", "totals", "--to", node.address, "--count", "3", cwd=tmp_path, ready=False
        )
        async with tail as tailing:
            sent = 0
            while tailing.process.returncode is None:  # it reads from when it has been heard on
                done = await send(tmp_path, node, "clicks", '{"user": "joe"}\n')
                assert done.returncode == 0
                sent += 1
            assert await tailing.wait() == 0
        found = [json.loads(line) for line in tailing.stdout]
        assert [event["user"] for event in found] == ["joe"] * 3
        numbers = [event["n"] for event in found]
        assert numbers == list(range(numbers[0], numbers[0] + 3))
        assert numbers[-1] <= sent


async def test_tail_tells_of_a_lost_connection_and_of_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(TOTALS)
    address = f"tcp://127.0.0.1:{free_port()}"

    async def click() -> None:
        async with Client(address) as client:
            await (await client.stream("clicks")).send(GenericEvent(user="joe"))

    command = ("tail", "totals", "--to", address)
    async with node_process("sums.py", cwd=tmp_path, listen=address) as node:
        async with s4_process(*command, cwd=tmp_path, ready=False) as tail:
            while not tail.stdout:  # it reads from when it has been heard on
                await click()
            await node.kill()
            lost = "totals: connection lost; what comes until it is back is missing"
            await until(lambda: tail.stderr == [lost])
            read = len(tail.stdout)
            async with node_process("sums.py", cwd=tmp_path, listen=address):
                back = "totals: connected again; reading from now on"
                await until(lambda: tail.stderr == [lost, back])
                await click()
                await until(lambda: len(tail.stdout) > read)
                tail.signal(signal.SIGINT)
                assert await tail.wait() == 130
        assert json.loads(tail.stdout[-1]) == {"user": "joe", "n": 1}
        assert tail.stderr == [lost, back]


async def test_tail_says_what_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(TOTALS)
    async with node_process("sums.py", cwd=tmp_path) as node:
        done = await run_s4("tail", "clicks", "--to", node.address, cwd=tmp_path)
        assert done.returncode == 1
        assert "it can be read from: totals" in done.stderr
        assert done.stdout == ""


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("", "'' is no app; give FILE.py or package.module"),
        ("lost.py", "needs a module that is not installed: No module named 'nowhere_at_all'"),
        ("gone.py", "on_init of app 'gone' raised SystemExit: 5; the app cannot run"),
    ],
)
async def test_an_app_that_cannot_be_loaded_is_told_in_a_sentence(
    tmp_path: Path, app: str, said: str
) -> None:
    (tmp_path / "lost.py").write_text("import nowhere_at_all\n")
    (tmp_path / "gone.py").write_text(
        "from s4node import App\nclass Gone(App):\n    def on_init(self): raise SystemExit(5)\n"
        "app = Gone('gone')\n"
    )
    done = await run_s4("run", app, "-p", f"s4.listener.address={ANY_PORT}", cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]


async def test_names_that_are_empty_are_refused(tmp_path: Path) -> None:
    for command in (["node", ""], ["apps", "--cluster", ""], ["apps", "--folder", ""]):
        done = await run_s4(*command, cwd=tmp_path)
        assert done.returncode == 2
        assert "s4.cluster.name = ''" in done.stderr or "--folder: it is empty" in done.stderr
        assert os.listdir(tmp_path) == []  # noqa: PTH208


@pytest.mark.parametrize("command", ["run", "deploy", "graph"])
@pytest.mark.parametrize(
    ("code", "raised"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("int('three')", "ValueError: invalid literal for int() with base 10: 'three'"),
        ("import json; json.loads('{')", "JSONDecodeError: Expecting property name"),
    ],
)
async def test_what_an_app_s_file_raises_is_told_with_its_line(
    tmp_path: Path, command: str, code: str, raised: str
) -> None:
    (tmp_path / "words.py").write_text(f"def load():\n    {code}\n")
    (tmp_path / "app.py").write_text("import words\nwords.load()\n")
    done = await run_s4(command, "app.py", cwd=tmp_path)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[0].startswith("Traceback")
    assert "s4node" not in lines[1]
    assert lines[-1].startswith(f"s4: app.py cannot be loaded: {raised}")
    assert lines[-1].endswith(f"({tmp_path / 'words.py'}:2)")


@pytest.mark.parametrize("command", ["run", "deploy"])
async def test_a_file_of_a_package_is_told_to_be_named_as_a_module(
    tmp_path: Path, command: str
) -> None:
    inner = tmp_path / "shop" / "front"
    inner.mkdir(parents=True)
    for package in (inner, inner.parent):
        (package / "__init__.py").write_text("")
    (inner / "app.py").write_text("from . import words\n")
    done = await run_s4(command, "shop/front/app.py", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"s4: shop/front/app.py is a module of a package, from which it imports: give "
        f"shop.front.app instead, in the folder {tmp_path}"
    )


async def test_asking_for_a_cluster_makes_no_folder(tmp_path: Path) -> None:
    for command in (["status"], ["apps"], ["undeploy", "shop"]):
        done = await run_s4(*command, "--folder", tmp_path / "nowhere", cwd=tmp_path)
        assert done.returncode == 2
        assert "there is no folder" in done.stderr
        assert os.listdir(tmp_path) == []  # noqa: PTH208


async def test_ctrl_c_while_a_deployment_waits_ends_it_quietly(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import trio\nfrom s4node import App\nclass Slow(App):\n"
        "    async def on_init(self): await trio.sleep(60)\napp = Slow('slow')\n"
    )
    where = ("--folder", tmp_path / "shared")
    node = s4_process("node", "shop", *where, "-p", f"s4.listener.address={ANY_PORT}", cwd=tmp_path)
    async with node:
        deploying = s4_process(
            "deploy", "slow.py", "--cluster", "shop", *where, cwd=tmp_path, ready=False
        )
        async with deploying as deploy:
            await until(lambda: deploy.stderr or deploy.stdout)
            deploy.signal(signal.SIGINT)
            assert await deploy.wait() == 130
        assert "Traceback" not in deploy.errors
