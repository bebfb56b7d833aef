"""``s4 log`` where something is wrong: what it says, and its exit status."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
import trio
from harness import DEADLINE, free_port, run_s4, running, s4_process, until
from log_nodes import log_at, log_node
from shared_apps import Click, Ignore, OnePE

from s4node.cli.main import main

MISTAKES = [
        ("describe taps", 1, ("has no stream 'taps'; its streams: clicks. Create it with: s4 log "
         "create taps")),
        ("append taps", 1, "has no stream 'taps'; its streams: clicks."),
        ("append clicks --type Tap", 1, "stream 'clicks' takes Click, not 'Tap'"),
        ("tail clicks --from 1", 1, ("has 2 partitions, each with its own offsets; choose "
         "one with --partition")),
        ("tail clicks --from 1 --partition 2", 1, "has partitions 0 to 1, not 2"),
        ("tail clicks --from 9 --partition 0", 1, "clicks[0] has no offset 9: it has 0 to 1"),
        (f"tail clicks --from {'0' * 5000}9 --partition 0", 1, "clicks[0] has no offset 9: it has"),
        ("tail clicks --from yesterday", 2, ("'yesterday' is not a start; write newest, oldest, "
         "upcoming, an offset, timestamp 2026-01-31T08:00:00Z, or ms:MILLISECONDS since 1970")),
        ("tail clicks --from ms:now", 2, "'ms:now' is not a start; write newest, oldest, "),
        ("tail clicks --from \u0661", 2, "'\u0661' is not a start; write newest, oldest, "),
        ("tail clicks --count \u0661", 2, "'\u0661' is not a whole number, 1 or more"),
        ("tail clicks --partition x", 2, "'x' is not a whole number, 0 or more"),
        ("tail clicks --system kafka", 1, "systems.kafka.address to host:port of a broker"),
        ("describe --system mine -p systems.mine.type=s4node.systems.memory:MemorySystem", 2,
         "system 'mine' does not list its streams; name one of them"),
        ("trim clicks", 2, "one of the arguments --to-offset --older-than-ms --everything"),
        ("trim clicks --to-offset 1", 1, "choose one with --partition"),
        ("trim clicks --to-offset 5 --partition 0", 1, "has offsets 0 to 1, not 5"),
        ("create live", 1, "app 'some' already has a stream 'live'; choose another name"),
        ("create a/b", 1, "'a/b' is not a valid stream name for the log"),
        ("create clicks --partitions 3 --key user --retention-ms 5000", 1, ("stream 'clicks' "
         "exists with other settings: partitions 2, not 3; key none, not user; retention as the "
         "node says, not 5000 ms; ask for those settings, or choose another name")),
        ("create keyed --key 'a b'", 2, "'a b' is not an attribute's name"),
    ]  # fmt: skip


async def test_mistakes_are_reported_with_the_choices_and_the_fix(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 2)
        await log.append("clicks", 0, [Click("joe", 1)])
        for command, status, words in MISTAKES:
            done = await run_s4("log", *shlex.split(command), "--to", node.address, cwd=tmp_path)
            assert words in done.stderr.replace("\n", " "), command
            assert (done.returncode, done.stdout) == (status, ""), command


@pytest.mark.parametrize(
    "command",
    [
        "tail clicks --from",
        "tail clicks --partition",
        "tail clicks --count",
        "create kept --retention-ms",
        "create kept --retention-bytes",
        "trim clicks --partition 0 --to-offset",
        "trim clicks --older-than-ms",
    ],
)
def test_a_number_that_no_frame_can_hold_is_refused_with_the_largest(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    for number in (2**62, 10**30):
        zeros = "0" * 5000
        times = ["ms:{}", f"ms:{zeros}{{}}"] if "--from" in command else []
        for form in ("{}", f"{zeros}{{}}", *times):
            with pytest.raises(SystemExit) as ended:
                main(["log", *command.split(), form.format(number)])
            assert ended.value.code == 2
            said = capsys.readouterr().err.replace("\n", " ")
            assert f"{number} is too large; the largest is {2**62 - 1}" in said


async def test_the_largest_numbers_are_taken(tmp_path: Path) -> None:
    most = str(2**62 - 1)
    async with log_node(tmp_path) as node:
        for command, status in (
            (f"create clicks --retention-ms {most} --retention-bytes {most}", 0),
            (f"trim clicks --older-than-ms {most}", 0),
            (f"trim clicks --to-offset {most} --partition 0", 1),
            (f"tail clicks --from {most} --partition 0", 1),
            ("describe clicks", 0),
        ):
            done = await run_s4("log", *command.split(), "--to", node.address, cwd=tmp_path)
            assert done.returncode == status, done.stderr
            assert "Traceback" not in done.stderr
            assert "cannot be encoded" not in done.stderr


async def test_programs_read_json(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node:

        async def told(command: str, stdin: bytes = b"") -> object:
            to = ("--json", "--to", node.address)
            done = await run_s4("log", *command.split(), *to, cwd=tmp_path, stdin=stdin)
            assert (done.returncode, done.stderr) == (0, "")
            return json.loads(done.stdout)

        made = await told("create clicks --retention-ms 0")
        assert isinstance(made, dict)
        assert (made["stream"], made["retention_ms"], len(made["partitions"])) == ("clicks", 0, 1)
        sent = await told("append clicks", b'{"user": "joe"}\n{"user": "ann"}\n')
        assert sent == {
            "stream": "clicks",
            "admitted": 2,
            "shed": 0,
            "refused": 0,
            "unsent": 0,
            "pending": 0,
            "bad lines": 0,
        }
        event = {"partition": 0, "offset": 1, "event": {"user": "ann"}}
        assert await told("tail clicks --from newest --count 1") == event
        assert await told("tail clicks --from 1 --count 1") == event
        (described,) = await told("describe")  # type: ignore[misc]
        assert described["partitions"][0]["upcoming"] == 2
        assert described["types"] == ["GenericEvent"]
        assert await told("trim clicks --everything") == {"stream": "clicks", "oldest": {"0": 2}}


async def test_a_node_without_a_log_and_no_node_at_all_are_told_apart(tmp_path: Path) -> None:
    async with running(OnePE(Ignore)) as node:
        done = await run_s4("log", "describe", "--to", node.address, cwd=tmp_path)
        assert "this node has no log; start it with the setting s4.log.folder" in done.stderr
        assert done.returncode == 1
    nowhere = f"tcp://127.0.0.1:{free_port()}"
    done = await run_s4("log", "describe", "--to", nowhere, "--timeout", "0.3", cwd=tmp_path)
    assert f"no answer to 'list' from {nowhere} within 0.3 s" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("command", ["log append clicks", "log tail clicks", "send clicks"])
async def test_a_command_waits_for_a_log_that_is_starting_and_says_so(
    tmp_path: Path, command: str
) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 1)
    given = ("--to", address, "--timeout", str(DEADLINE))
    async with s4_process(*command.split(), *given, cwd=tmp_path, ready=False) as waiting:
        await until(lambda: waiting.stderr)
        async with log_node(tmp_path, address=address):
            await until(lambda: len(waiting.stderr) == 2)
    assert waiting.stderr == [
        f"{address} does not answer yet; waiting {DEADLINE:g} s for it",
        f"reading clicks from {address}; Ctrl-C ends"
        if "tail" in command
        else "clicks: nothing sent",
    ]


_TOPICS = '''
from s4node.systems.memory import MemorySystem

class Topics(MemorySystem):
    """A topic whose records have a time of their own; the app's class has ``at``, renamed."""

    def __init__(self, name, config):
        super().__init__(name, config)
        self.create("orders", 1, records=True)
        for user in (b"ann", b"bob"):
            value = b'{"user": "%b", "atMs": 5}' % user
            self.put_record("orders", 0, value, key=b"no. 7", created_ms=1500)
'''

_FORMATS = """
from s4node import Event

class Order(Event, rename="camel"):
    user: str
    at_ms: int = 0

class Orders:
    def decode(self, value):
        return Order("joe", 7)
"""

_SETTINGS = """
systems.topics.type = s4_test_topics:Topics
streams.orders.record.time = at
streams.orders.record.key = number
"""


async def test_a_record_is_shown_as_it_is_and_its_time_beside_its_place(tmp_path: Path) -> None:
    tailed = await tail(tmp_path)
    assert tailed == '{"user":"ann","atMs":5,"number":"no. 7"}\n'
    assert await tail(tmp_path, "--json") == (
        '{"partition":0,"offset":0,"time":1.5,"event":{"user":"ann","atMs":5,"number":"no. 7"}}\n'
    )


async def test_formats_are_found_in_the_working_folder_and_beside_the_settings(
    tmp_path: Path,
) -> None:
    tailed = await tail(tmp_path, "-p", "streams.orders.samza.msg.serde=s4_test_formats:Orders")
    assert tailed == '{"user":"joe","at_ms":7,"number":"no. 7"}\n'


# -- set-up ---------------------------------------------------------------------------------------


async def tail(folder: Path, *words: str) -> str:
    """The first record as the installed ``s4`` shows it; its settings are in another folder."""
    beside, here = folder / "settings", folder / "here"
    for each in (beside, here):
        each.mkdir(exist_ok=True)
    (beside / "app.properties").write_text(_SETTINGS)
    (beside / "s4_test_topics.py").write_text(_TOPICS)
    (here / "s4_test_formats.py").write_text(_FORMATS)
    s4 = Path(sys.executable).parent / "s4"
    given = ("log", "tail", "orders", "--system", "topics", "--from", "oldest", "--count", "1")
    command = [str(s4), *given, "--config", "../settings/app.properties", *words]
    done = await trio.run_process(command, cwd=here, capture_stdout=True, capture_stderr=True)
    return done.stdout.decode()
