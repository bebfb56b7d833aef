"""The ``s4`` command, always as a real process."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from cli_apps import COUNTER, DIVIDE, HELLO, SLOW, STUCK, Click, logs, send
from harness import (
    ANY_PORT,
    ROOT,
    NodeProcess,
    environment,
    free_port,
    node_process,
    run_s4,
    s4,
    s4_process,
    until,
)

from s4node import Client
from s4node.cli.main import COMMANDS, main
from s4node.deploy import load_app

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.slow


# -- running and sending --------------------------------------------------------------------------


async def test_hello_in_five_lines(folder: Path) -> None:
    assert len(HELLO.splitlines()) == 5
    async with node_process("hello.py", cwd=folder) as node:
        await until(lambda: "send events" in node.stderr[-1])
        assert node.stderr[-3:] == [
            f"hello runs at {node.address} (Ctrl-C stops it)",
            f"  watch it:     {node.url}",
            f"  send events:  s4 send names --to {node.address}",
        ]
        done = await send(folder, node, "names", '{"name": "joe"}\n{"name": "ann"}\n')
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == "names: 2 admitted\n"
        await until(lambda: node.stdout == ["Hello joe!", "Hello ann!"])


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
        arguments = ("run", "lines.py", "--cluster", "lines", "--config", "lines.properties")
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
    command = ("run", "thirty.py", *pairs)
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
        assert node.errors.count("s4: stopped at once, before everything was drained; ") == 1
        only_process_of_its_group_is_gone(node)
        client.abandon()


async def test_a_further_sigterm_lets_what_drains_come_to_its_end(folder: Path) -> None:
    """Some tools send it to the process and to its group."""
    wait = "while not __import__('os').path.exists('end'): await trio.sleep(0.01)"
    (folder / "slow.py").write_text(STUCK.format(kind="async def", wait=wait))
    async with node_process("slow.py", cwd=folder) as node, Client(node.address) as client:
        clicks = await client.stream("clicks")
        await clicks.send(Click("ann", 1))
        await until(lambda: node.stdout == ["began"])
        for _ in range(3):
            node.signal(signal.SIGTERM)
            await until(lambda: not has_waiting_signals(node.pid))
        (folder / "end").touch()
        assert await node.wait() == 0
        assert "at once" not in node.errors
        assert clicks.counts["admitted"] == 1
        client.abandon()


def has_waiting_signals(pid: int) -> bool:
    """Return True if a process has yet to take a signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return any(int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd")))


async def test_a_handler_that_never_gives_way_is_ended_when_the_time_for_draining_is_over(
    folder: Path,
) -> None:
    (folder / "stuck.py").write_text(STUCK.format(kind="def", wait="time.sleep(1000)"))
    soon = ("-p", "task.shutdown.ms=300")
    async with node_process("stuck.py", *soon, cwd=folder) as node, Client(node.address) as client:
        clicks = await client.stream("clicks")
        await clicks.send(Click("ann", 1))
        await until(lambda: node.stdout == ["began"])
        node.signal(signal.SIGTERM)
        with trio.fail_after(20):
            assert await node.wait() == 130
        assert "s4: a handler blocks the loop, and the time for draining is over: stopped at" in (
            node.errors
        )
        client.abandon()


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


async def test_a_port_in_use_is_reported_and_ends_with_status_2(folder: Path) -> None:
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
        (
            HELLO + "other = App('other')\n",
            "app.py",
            "has several apps; name one of them, as in app.py:app",
        ),
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
async def test_an_app_that_cannot_start_is_reported_in_a_line_and_ends_with_status_2(
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
async def test_a_custom_part_that_raises_shows_its_own_lines_only(
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


async def test_a_node_with_an_app_has_the_name_that_it_is_given(folder: Path) -> None:
    words = ("node", "shop", "--app", "hello.py", "--name")
    settings = ("-p", f"s4.listener.address={ANY_PORT}")
    async with s4_process(*words, "east", *settings, cwd=folder) as node:
        await until(lambda: any(line["event"] == "running" for line in logs(node)))
        assert [line["node"] for line in logs(node) if line["event"] == "running"] == ["east"]
    done = await run_s4(*words, "two words", *settings, cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith("s4: 'two words' is not a node name; ")


async def test_a_node_with_an_app_is_alone_and_takes_no_folder(folder: Path) -> None:
    done = await run_s4("node", "shop", "--app", "hello.py", "--folder", "common", cwd=folder)
    assert done.returncode == 2
    assert done.stderr == (
        "s4: --folder is for nodes of a cluster, and a node with --app is alone; run "
        "'s4 node shop --folder common' instead, and then 's4 deploy hello.py --cluster shop "
        "--folder common'\n"
    )
    assert not (folder / "common").exists()


# -- help, logs, configuration --------------------------------------------------------------------


async def test_the_help_lists_every_command_and_each_has_an_example(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = await run_s4("--help", cwd=tmp_path)
    assert whole.returncode == 0
    assert "example: s4 run hello.py" in whole.stdout
    assert re.findall(r"^    ([a-z-]+)", whole.stdout, re.MULTILINE) == list(COMMANDS)
    for command in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        told = capsys.readouterr()
        assert (ended.value.code, told.err) == (0, "")
        assert "example: " in told.out
        assert f"s4 {command}" in told.out.partition("example: ")[2].replace("\n", " ")


async def test_an_unknown_command_and_a_missing_one_end_with_status_2(
    tmp_path: Path,
) -> None:
    nothing = await run_s4(cwd=tmp_path)
    assert (nothing.returncode, nothing.stdout[:9]) == (2, "usage: s4")
    wrong = await run_s4("rum", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "invalid choice: 'rum'" in wrong.stderr


async def test_logs_are_json_lines_without_a_terminal(folder: Path) -> None:
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
        f"  watch it:     {node.url}",
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
    files = [word for n in ("one", "two", "three") for word in ("--config", f"{n}.properties")]
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
        ("one.properties", 1),
        ("one.properties", 2),
        ("one.properties", 3),
        ("two.properties", 1),
        ("three.properties", None),
        ("command line", None),
        ("command line", None),
    ]
    assert (told[3]["key"], told[3]["text"]) == ("s4.comm.timeout", lines[3].partition(": ")[2])


async def test_config_check_is_quiet_about_what_is_right(tmp_path: Path) -> None:
    (tmp_path / "one.properties").write_text("s4.cluster.partitions = 4\n")
    done = await run_s4("config", "check", "--config", "one.properties", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    done = await run_s4("config", "check", "--json", "--config", "one.properties", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "[]\n")


async def test_config_show_tells_each_value_and_where_it_comes_from(tmp_path: Path) -> None:
    (tmp_path / "one.properties").write_text("s4.cluster.partitions = 4\n")
    command = ("config", "show", "--config", "one.properties", "-p", "s4.cluster.name=east")
    done = await run_s4(*command, cwd=tmp_path)
    assert done.returncode == 0
    lines = dict(line.split(" = ", 1) for line in done.stdout.splitlines())
    assert lines["s4.cluster.partitions"].split() == ["4", "#", "one.properties:1"]
    assert lines["s4.cluster.name"].split() == ["east", "#", "command", "line"]
    assert lines["s4.hasher"].strip() == "crc32m"
    told = await run_s4(*command, "--json", cwd=tmp_path)
    entries = {entry["key"]: entry for entry in json.loads(told.stdout)}
    assert entries["s4.cluster.partitions"] == {
        "key": "s4.cluster.partitions",
        "value": "4",
        "origin": "one.properties:1",
    }


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


def test_little_is_loaded_before_ctrl_c_ends_a_command_quietly() -> None:
    code = "import sys; import s4node.cli.main; print(sys.modules.keys() & {'msgspec', 'trio'})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("", "'' is not an app; give FILE.py or package.module"),
        ("lost.py", "needs a module that is not installed: No module named 'nowhere_at_all'"),
        ("gone.py", "on_init of app 'gone' raised SystemExit: 5; the app cannot run"),
    ],
)
async def test_an_app_that_cannot_be_loaded_is_reported_in_a_sentence(
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
    for command in (["node", ""], ["status", "--cluster", ""], ["status", "--folder", ""]):
        done = await run_s4(*command, cwd=tmp_path)
        assert done.returncode == 2
        assert "s4.cluster.name = ''" in done.stderr or "--folder: the text is empty" in done.stderr
        assert os.listdir(tmp_path) == []  # noqa: PTH208


async def test_a_number_of_times_is_1_or_more(tmp_path: Path) -> None:
    for number in ("0", "-5", "1.5"):
        done = await run_s4("top", f"--count={number}", "--folder", "nowhere", cwd=tmp_path)
        assert done.returncode == 2
        assert f"--count: '{number}' is not a whole number, 1 or more" in done.stderr


@pytest.mark.parametrize(
    ("command", "code", "raised"),
    [
        ("run", "raise SystemExit(3)", "SystemExit: 3"),
        ("deploy", "int('three')", "ValueError: invalid literal for int() with base 10: 'three'"),
        ("graph", "import json; json.loads('{')", "JSONDecodeError: Expecting property name"),
    ],
)
async def test_an_error_in_an_apps_file_is_reported_with_its_line(
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
        f"s4: shop/front/app.py is a module of a package and imports from it; give "
        f"shop.front.app instead, in the folder {tmp_path}"
    )


def test_an_app_s_file_cannot_have_the_name_of_a_package_that_is_required() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^\w-]", each)[0] for each in project["dependencies"]}
    assert {"s4node", *names} == load_app.NEEDED


@pytest.mark.parametrize(
    ("command", "name"),
    [("run", "rich"), ("run", "trio"), ("deploy", "difflib"), ("graph", "time"), ("run", "s4node")],
)
async def test_a_file_that_would_be_taken_for_a_module_in_use_is_refused(
    tmp_path: Path, command: str, name: str
) -> None:
    file = tmp_path / "apps" / f"{name}.py"
    file.parent.mkdir()
    file.write_text("from s4node import App\napp = App('words')\n")
    done = await run_s4(command, file, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"s4: {file} would be mistaken for the module {name!r} of Python, of s4node or of a "
        f"package that s4node needs; rename the file"
    )


async def test_asking_for_a_cluster_makes_no_folder(tmp_path: Path) -> None:
    for command in (["status"], ["undeploy", "shop"]):
        done = await run_s4(*command, "--folder", tmp_path / "nowhere", cwd=tmp_path)
        assert done.returncode == 2
        assert "nowhere does not exist" in done.stderr
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


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("top", "--interval", "0.05"),
        ("log", "describe"),
        ("log", "tail", "evs", "--from", "oldest"),
    ],
)
async def test_closed_output_is_not_a_fault_and_a_full_disk_is_reported_in_a_line(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    log = ("-p", f"s4.log.folder={tmp_path / 'log'}")
    where = ("--cluster", "shop", "--folder", "shared")
    (tmp_path / "hello.py").write_text(HELLO)
    async with (
        s4_process(
            "node", "shop", *where[2:], "-p", f"s4.listener.address={ANY_PORT}", cwd=tmp_path
        ),
        node_process("hello.py", *log, cwd=tmp_path) as node,
    ):
        to = ("--to", node.address)
        assert (await run_s4("log", "create", "evs", *to, cwd=tmp_path)).returncode == 0
        event = b'{"user": "joe"}\n'
        await run_s4("log", "append", "evs", *to, cwd=tmp_path, stdin=event)
        whole = s4(*command, *(to if command[0] == "log" else where))

        async def told(output: int) -> tuple[int, bytes]:
            with trio.fail_after(30):
                done = await trio.run_process(
                    whole,
                    stdout=output,
                    capture_stderr=True,
                    check=False,
                    cwd=tmp_path,
                    env=environment(),
                )
            return done.returncode, done.stderr

        reader, writer = os.pipe()
        os.close(reader)
        try:
            assert await told(writer) == (1, b"")
        finally:
            os.close(writer)
        full = os.open("/dev/full", os.O_WRONLY)
        try:
            status, errors = await told(full)
        finally:
            os.close(full)
        assert status == 1
        assert errors.startswith(b"s4: the output cannot be written: [Errno 28] No space left")
        assert errors.count(b"\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        ("status", "--cluster", "\udcff"),
        ("undeploy", "\udcff", "--folder", "."),
        ("node", "\udcff", "--folder", "."),
        ("node", "shop", "--name", "\udcff", "--folder", "."),
        ("log", "describe", "\udcff"),
        ("tail", "\udcff"),
        ("run", "hello.py", "-p", "s4.cluster.name=\udcff"),
    ],
)
async def test_a_name_that_is_no_utf_8_is_refused(folder: Path, command: tuple[str, ...]) -> None:
    done = await run_s4(*command, cwd=folder)
    assert "'\\udcff' is not UTF-8" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        ("status", "--folder"),
        ("deploy", "hello.py", "--folder"),
        ("node", "shop", "--folder"),
        ("run", "hello.py", "-p", "s4.state.folder="),
        ("run", "hello.py", "-p", "s4.log.folder="),
    ],
)
async def test_a_folder_that_no_file_system_can_have_is_refused(
    folder: Path, command: tuple[str, ...]
) -> None:
    *words, last = command
    for path, what in (
        (f"up/{'x' * 300}/below", "has a part of 300 bytes, but a file system allows"),
        ("/".join("x" * 200 for _ in range(20)), "has 4019 bytes, but at most 3072 are allowed"),
    ):
        given = (*words, last + path) if last.endswith("=") else (*command, path)
        done = await run_s4(*given, cwd=folder)
        assert what in done.stderr
        assert "Traceback" not in done.stderr
        assert done.returncode == 2


LONG = "x" * 300
LOOPS = "cannot be read (Too many levels of symbolic links); "
NOWHERE = "= '~nobody-at-all/x' has no full path (there is no such home); write its full path"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"run {LONG}.py", f"s4: {LONG}.py cannot be read (File name too long); give a"),
        ("run loop/hello.py", f"s4: loop/hello.py {LOOPS}give a readable Python file, or"),
        ("graph loop/hello.py", f"s4: loop/hello.py {LOOPS}give a readable Python file"),
        ("deploy loop/hello.py", f"s4: loop/hello.py {LOOPS}give a readable Python file"),
        ("status --folder loop/x", f"/loop/x {LOOPS}fix its permissions, or name the nodes"),
        ("status --json --folder loop/x", f"/loop/x {LOOPS}fix its permissions, or name the nodes"),
        ("startpoint show hello -p s4.state.folder=loop", f"/loop/default {LOOPS}fix its permi"),
        ("startpoint show hello -p s4.state.folder=state", f"/hello/progress.sqlite {LOOPS}fix"),
        ("state scan hello -p s4.state.folder=state", "or name another folder with -p s4.state.fo"),
        (f"startpoint show {LONG} -p s4.state.folder=state", f"s4: no app '{LONG}' of cluster"),
        (
            f"state tasks hello --cluster {LONG} -p s4.state.folder=state",
            f"s4: '{LONG}' is too long for a folder name in",
        ),
        ("startpoint show hello -p s4.state.folder=~nobody-at-all/x", f"s4.state.folder {NOWHERE}"),
        ("status --folder ~nobody-at-all/x", f"s4: s4.coordination.folder {NOWHERE}"),
        ("node shop --folder ~nobody-at-all/x", f"s4: s4.coordination.folder {NOWHERE}"),
        ("run hello.py -p s4.log.folder=~nobody-at-all/x", f"s4: s4.log.folder {NOWHERE}"),
        (
            f"run hello.py -p s4.stream.names.grade=durable -p s4.cluster.name={LONG}",
            "300 bytes, at most 255 are allowed; choose a shorter name",
        ),
        (
            "run long.py -p s4.stream.names.grade=durable -p s4.state.folder=state",
            "300 bytes, at most 255 are allowed; choose a shorter name",
        ),
    ],
)
async def test_a_path_that_cannot_be_read_is_reported_in_a_line_with_the_fix(
    folder: Path, command: str, said: str
) -> None:
    (folder / "loop").symlink_to("loop")  # for root, too, nobody can look behind it
    (folder / "state" / "default").mkdir(parents=True)
    (folder / "state" / "default" / "hello").symlink_to("hello")
    (folder / "long.py").write_text(HELLO.replace('"hello"', f'"{LONG}"'))
    done = await run_s4(*command.split(), cwd=folder)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("node shop --folder x", "s4: s4.coordination.folder = 'x' has no full path (No such"),
        ("status --folder x", "s4: s4.coordination.folder = 'x' has no full path (No such"),
        (
            "state scan x -p s4.state.folder=x",
            "s4: s4.state.folder = 'x' has no full path (No",
        ),
        (
            "run {folder}/hello.py -p s4.log.folder=x",
            "s4: s4.log.folder = 'x' has no full path",
        ),
        ("run ../hello.py", "s4: ../hello.py cannot be read (No such file or directory)"),
    ],
)
async def test_from_a_folder_that_has_gone_a_path_leads_nowhere(
    folder: Path, command: str, said: str
) -> None:
    (folder / "gone").mkdir()
    whole = shlex.join(s4(*command.format(folder=folder).split()))
    with trio.fail_after(30):
        done = await trio.run_process(
            ["bash", "-c", f"cd gone && rmdir ../gone && exec {whole}"],
            capture_stderr=True,
            check=False,
            cwd=folder,
            env=environment(),
        )
    assert done.stderr.decode().startswith(said)
    assert done.stderr.count(b"\n") == 1
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("node shop", "s4.coordination.folder = '~/.s4node' is '{home}/.s4node', which is not"),
        ("status --folder x", "s4.coordination.folder = 'x' is '{home}/x', which is not UTF-8"),
        ("state scan x", "s4.state.folder = '~/.s4node/state' is '{home}/.s4node/state', which"),
        ("run hello.py -p s4.log.folder=x", "s4.log.folder = 'x' is '{home}/x', which is not"),
        ("deploy hello.py", "'{home}/hello.py' is not UTF-8, so it cannot be passed to other"),
        ("deploy ../utf/other.py", "'sources/beside/\\udce9.txt' is not UTF-8, so it"),
        ("run ../la\udce9/hello.py --nodes 2", "'../la\\udce9/hello.py' is not UTF-8, so"),
    ],
)
async def test_what_is_shared_with_other_processes_has_a_path_in_utf_8(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, said: str
) -> None:
    home, beside = folder / "la\udce9", folder / "utf" / "beside"
    home.mkdir()
    (home / "hello.py").write_text(HELLO)
    beside.mkdir(parents=True)
    (beside / "__init__.py").write_text("")
    (beside / "\udce9.txt").write_text("")
    (folder / "utf" / "other.py").write_text(f"import beside\n{HELLO}")
    monkeypatch.setenv("HOME", str(home))
    done = await run_s4(*command.split(), cwd=home)
    assert done.stderr.startswith("s4: " + said.format(home=rf"{folder}/la\udce9"))
    assert done.stderr.count("\n") == 1
    assert (done.returncode, done.stdout) == (2, "")


async def test_an_app_that_shares_nothing_runs_in_a_folder_that_is_no_utf_8(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = folder / "la\udce9"
    home.mkdir()
    (home / "hello.py").write_text(HELLO)
    monkeypatch.setenv("HOME", str(home))
    drawn = await run_s4("graph", home / "hello.py", cwd=home)
    assert (drawn.returncode, drawn.stderr) == (0, "")
    async with node_process("hello.py", cwd=home) as node:
        event = b'{"name": "joe"}'
        done = await run_s4("send", "names", "--to", node.address, cwd=home, stdin=event)
        assert "names: 1 admitted" in done.stderr


# -- set-up ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with apps in it, which is not the repository's."""
    for name, text in (("hello", HELLO), ("counter", COUNTER), ("divide", DIVIDE), ("slow", SLOW)):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def only_process_of_its_group_is_gone(node: NodeProcess) -> None:
    with pytest.raises(ProcessLookupError):
        os.killpg(node.pid, 0)
