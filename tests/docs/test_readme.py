"""The code of the README and of the first pages runs as it stands there, and so do the commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from harness import ROOT

from s4node.cli.main import main
from s4node.config.settings import MEMBERS


def test_hello_is_the_file_it_says_and_has_five_lines() -> None:
    (hello,) = python_blocks(README)

    assert hello == (ROOT / "apps/hello/app.py").read_text()
    assert len(hello.splitlines()) == 5


def test_the_keyed_count_is_the_file_it_says_and_has_eight_lines() -> None:
    counter = python_blocks(FIRST_APP)[0]

    assert counter == (ROOT / "apps/counter/app.py").read_text()
    assert len(counter.splitlines()) == 8


def test_hello_greets_what_is_sent_from_a_shell() -> None:
    with node("run", "apps/hello/app.py") as (address, process):
        sent = s4("send", "names", "--to", address, stdin='{"name": "joe"}\n')
        assert process.stdout is not None
        assert process.stdout.readline() == "Hello joe!\n"

    assert sent.stderr == "names: 1 admitted\n"
    assert sent.returncode == 0


def test_the_client_of_the_first_page_reaches_the_keyed_count(tmp_path: Path) -> None:
    with node("run", "apps/counter/app.py") as (address, process):
        program = python_blocks(FIRST_APP)[1].replace("tcp://127.0.0.1:12000", address)
        script = tmp_path / "client.py"
        script.write_text(program)
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["joe 1\n", "ann 1\n", "joe 2\n"]


def test_a_stream_that_is_kept_feeds_the_keyed_count_and_a_task(tmp_path: Path) -> None:
    section = INPUTS.partition("## A log, an app and a task")[2].partition("\n## ")[0]
    blocks = "".join(re.findall(r"```console\n(.*?)```", section, re.DOTALL))
    commands = [shlex.split(one) for one in blocks.replace("\\\n", " ").split("$ ") if one.strip()]
    (tmp_path / "tally.py").write_text(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0])
    place = ["-p", f"s4.state.folder={tmp_path}", "-p", f"s4.coordination.folder={tmp_path}"]
    serve, create, _, tail, run, tally = commands
    with node(*serve[1:3], "-p", f"s4.log.folder={tmp_path / 'log'}", *place) as (address, _):
        assert s4(*create[1:], "--to", address).returncode == 0
        appended = s4("log", "append", "clicks", "--to", address, stdin='{"user": "joe"}\n')
        assert appended.stderr.startswith("clicks: 1 admitted")
        with subprocess.Popen(
            [sys.executable, "-m", "s4node", *tail[1:], "--to", address],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        ) as reader:
            assert reader.stdout is not None
            assert json.loads(reader.stdout.readline()) == {"user": "joe"}
            reader.terminate()
        for words, app, shown in (
            (run, "apps/counter/app.py", "joe 1"),
            (tally, str(tmp_path / "tally.py"), "1 clicks"),
        ):
            options = [word.replace("tcp://127.0.0.1:12000", address) for word in words[5:]]
            with node("run", app, *options, *place) as (_, process):
                assert process.stdout is not None
                assert any(line == f"{shown}\n" for line in process.stdout)


def test_lines_from_a_plain_socket_are_greeted() -> None:
    """As ``nc`` does it: lines in, one of them broken, the last one without an end."""
    with node("node", "hello", "--app", "apps/hello/app.py") as (address, hello):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        settings = {
            "s4.adapter.output.stream": "names",
            "s4.stream.names.consumers": "hello",
            "s4.cluster.hello.address": address,
            "s4.app.port": str(port),
        }
        options = [text for k, v in settings.items() for text in ("-p", f"{k}={v}")]
        with (
            node("run", "apps.lines.adapter", *options),
            socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as peer,
        ):
            peer.sendall(b"joe\r\n\xff\xfe\nann\nbob")
            peer.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: peer.recv(1000), b""))
            assert hello.stdout is not None
            greeted = {hello.stdout.readline() for _ in range(3)}

    assert answer == b"error: a line is not UTF-8; it was dropped\n"
    assert greeted == {"Hello joe!\n", "Hello ann!\n", "Hello bob!\n"}


@pytest.mark.long
def test_several_nodes_as_the_page_starts_them(tmp_path: Path) -> None:
    blocks = "".join(re.findall(r"```console\n(.*?)```", CLUSTER, re.DOTALL))
    commands = [line.removeprefix("$ ").partition("  #")[0] for line in blocks.splitlines()]
    with ExitStack() as stack:
        nodes = []
        for command in commands:
            words = shlex.split(command.rstrip("& ").replace(" app.py ", " apps/counter/app.py "))
            if words[:2] == ["s4", "node"]:
                own = words[1 : words.index("-p")] if "-p" in words else words[1:]
                started = stack.enter_context(node(*own, "--folder", str(tmp_path)))
                nodes.append(started)
            elif words[0] == "kill":
                _, oldest = nodes.pop(0)
                oldest.send_signal(signal.SIGKILL if words[1] == "-9" else signal.SIGTERM)
                oldest.wait(timeout=SECONDS)
            elif "s4 send" in command:
                event = json.loads(shlex.split(command)[1])
                for address, _ in nodes:
                    done = s4("send", words[-1], "--to", address, stdin=json.dumps(event) + "\n")
                    assert (done.returncode, done.stderr) == (0, "clicks: 1 admitted\n")
            else:
                done = s4(*words[1:], "--folder", str(tmp_path))
                assert done.returncode == 0, done.stderr
        assert nodes == []


def test_every_setting_is_on_the_tuning_page() -> None:
    page = (ROOT / "docs" / "tuning.md").read_text()
    stages = {f"s4.{stage}" for stage in ("deserializer", "stream", "sender", "remoteSender")}
    for key in MEMBERS:
        stage, _, name = key.name.rpartition(".")
        where = f".{name}`" if stage.partition(".<")[0] in stages else f"`{key.name}`"
        assert where in page or f"`{key.name}" in page, key.name


def test_every_command_on_the_pages_exists_with_its_action_and_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told: dict[tuple[str, ...], str] = {}

    def help_of(*command: str) -> str:
        if command not in told:
            with pytest.raises(SystemExit):
                main([*command, "--help"])
            told[command] = capsys.readouterr().out
            assert told[command], command
        return told[command]

    for page in PAGES:
        for command in commands_on(page):
            name, *given = command.split()
            text = help_of(name)
            if " ACTION" in text:
                if not given or not re.fullmatch("[a-z-]+", given[0]):
                    continue
                text = help_of(name, given[0])
            for option in re.findall(r"(?<=\s)-{1,2}[a-z][a-z-]*", command.partition("|")[0]):
                assert re.search(rf"{option}\b", text), f"{page}: s4 {command}: {option}"
    assert len(told) > 30


def test_every_setting_on_the_pages_exists() -> None:
    known = "|".join(re.sub(r"<\w+>", "[^.]+", re.escape(key.name)) for key in MEMBERS)
    groups = {key.name[: end.start()] for key in MEMBERS for end in re.finditer(r"\.", key.name)}
    for page in PAGES - {"from-s4.md", "from-samza.md"}:
        named = re.findall(
            r"(?:`|-p |^)((?:s4|task|job|streams)\.[\w.<>-]+\w)",
            text_of(page),
            re.MULTILINE,
        )
        assert [
            name for name in named if not re.fullmatch(known, name) and name not in groups
        ] == [], page


def test_every_file_that_the_pages_link_to_exists() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


# -- set-up ---------------------------------------------------------------------------------------


README, FIRST_APP, CLUSTER, INPUTS = (
    (ROOT / page).read_text()
    for page in ("README.md", "docs/first-app.md", "docs/cluster.md", "docs/inputs.md")
)

PAGES = {path.name for path in (ROOT / "docs").glob("*.md")}
PAGES |= {"../README.md", "../CONTRIBUTING.md"}

SECONDS = 30


def text_of(page: str) -> str:
    return re.sub(r"\\\n *", " ", (ROOT / "docs" / page).read_text())


def commands_on(page: str) -> list[str]:
    """The text after ``s4`` in the code of a page, in a line or between two backticks."""
    text = text_of(page)
    lines = re.findall(r"^(?:\$ |.*\| )?s4 ([a-z][^\n`|#]*)", text, re.MULTILINE)
    return lines + [" ".join(each.split()) for each in re.findall(r"`s4\s([a-z][^`]*)`", text)]


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


@contextmanager
def node(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A running ``s4`` command and its address; asked to stop at the end."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "s4node",
            *arguments,
            "--json",
            "-p",
            "s4.listener.address=tcp://127.0.0.1:0",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["address"], process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS)


def s4(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "s4node", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=SECONDS,
        check=False,
    )
