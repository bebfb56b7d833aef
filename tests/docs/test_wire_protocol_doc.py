"""docs/wire-protocol.md is true: its tables, numbers and bytes, and the client at its end."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import signal
import socket
import subprocess
import sys
import types
import zlib
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest
import trio
from harness import DEADLINE, ROOT, node_process, proxy, until

from s4node import Event, GenericEvent
from s4node.config import settings
from s4node.config.key import Setting
from s4node.events.keys import Partitioner, crc32m, key_bytes
from s4node.events.schema import EventType
from s4node.events.type_declaration import TypeDecl
from s4node.net.ingress import connection, report
from s4node.net.ingress.peer_limits import LIMITS
from s4node.net.wire import frame as wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

GOLDEN = ROOT / "tests" / "golden" / "frames"


# --- reading the document ------------------------------------------------------------------------


# --- tables, numbers, bytes ----------------------------------------------------------------------

HEADERS = {header.kind: header for header in get_args(wire.Header)}
STRUCTS: dict[str, Any] = {
    **HEADERS,
    **{cls.__name__: cls for cls in (TypeDecl, wire.Position, wire.Section, wire.Ruling)},
}


@pytest.mark.parametrize("name", STRUCTS)
def test_the_table_of_a_frame_names_its_fields_in_order_and_their_defaults(name: str) -> None:
    first = 1 if name in HEADERS else 0
    told = [(int(at), field, default) for at, field, _, default, _, _ in rows(section(name))]
    fields = msgspec.structs.fields(STRUCTS[name])
    assert [(at, field) for at, field, _ in told] == [
        (at, field.name) for at, field in enumerate(fields, first)
    ]
    for field, (_, _, word) in zip(fields, told, strict=True):
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        assert default == DEFAULTS[word] or (word == "empty" and not default), field.name


@pytest.mark.parametrize("name", STRUCTS)
def test_every_field_says_since_which_version_it_exists(name: str) -> None:
    assert {row[4] for row in rows(section(name))} == {"1"}


def test_the_table_of_kinds_gives_each_kind_its_number() -> None:
    told = {row[1]: row[0] for row in rows(section("2. Frames"))}
    assert told == {kind: str(cls.__struct_config__.tag) for kind, cls in HEADERS.items()}


def test_the_outcomes_have_these_numbers_and_names() -> None:
    outcomes = [row[0] for row in rows(section("What a producer does"))]
    assert outcomes == [f"{number} {word}" for number, word in enumerate(wire.OUTCOMES)]
    assert ", ".join(outcomes) in section("Ruling")


def test_every_worked_fingerprint_is_that_of_the_code() -> None:
    told = {
        text: (bytes.fromhex(first), int(number))
        for text, first, number in rows(section("3. Event types").partition("Types in words")[0])
    }
    for cls in (Click, GenericEvent):
        declared = EventType(cls).declaration
        text = f"{declared.name}({','.join(f'{n}:{t}' for n, t, _ in declared.fields)})"
        first, number = told.pop(text)
        assert first == hashlib.sha256(text.encode()).digest()[:8]
        assert number == int.from_bytes(first, "big") == declared.fingerprint
    assert not told


def test_the_worked_body_is_that_of_the_code() -> None:
    body = bytes.fromhex("92 92 a3 6a 6f 65 01 91 a1 61")
    assert "is `92 92 a3 6a 6f 65 01 91 a1 61`" in section("3. Event types").replace("\n", " ")
    assert EventType(Click).decode(body) == [Click("joe", 1), Click("a")]


def test_every_worked_key_has_these_bytes_hash_group_and_partitions() -> None:
    table = [row for row in rows(section("4. Keys")) if len(row) == 6]
    assert len(table) == 8
    for key_text, data, crc, group, of_4, of_16 in table:
        key = ast.literal_eval(key_text)
        assert bytes.fromhex(data) == key_bytes(key)
        assert int(crc) == zlib.crc32(bytes.fromhex(data))
        assert int(group) == int(crc) * 2654435761 % 2**32 // 2**20 == crc32m(key)
        assert int(group) == (int(crc) * -1640531535 & 4294967295) >> 20
        assert int(of_4) == int(group) * 4 // 4096 == Partitioner(4).partition_of(key)
        assert int(of_16) == int(group) * 16 // 4096 == Partitioner(16).partition_of(key)


def test_the_idle_frame_of_the_first_section_is_these_bytes() -> None:
    envelope = wire.envelope([wire.encode_frame(wire.Idle("clicks", "p", wire.ANSWER_NOW))])
    (block,) = blocks(section("1. Layers"))
    assert annotated(block) == (
        client_module().HANDSHAKE + len(envelope).to_bytes(8, "big") + envelope
    )


def test_the_annotated_hex_is_the_golden_data_frame() -> None:
    (block,) = blocks(section("10. Golden vectors"))
    golden = bytes.fromhex((GOLDEN / "data.hex").read_text())
    assert annotated(block) == golden
    (frame,) = wire.read_envelope(golden, LIMIT)
    assert isinstance(frame, wire.Frame)
    assert isinstance(frame.header, wire.Data)
    for value in (frame.header.sections[0].fingerprint, frame.header.created_ms):
        assert str(value) in block
    for text in (frame.header.stream, frame.header.producer, frame.header.routing):
        assert f'"{text}"' in block


@pytest.mark.parametrize(
    "setting",
    [
        settings.LISTENER_MAX_ENVELOPE_BYTES,
        settings.LISTENER_MAX_FRAME_BYTES,
        settings.LISTENER_MAX_CONNECTIONS,
        settings.LISTENER_PATIENCE,
    ],
    ids=lambda setting: setting.name,
)
def test_the_limits_are_the_defaults_of_the_settings(setting: Setting[int]) -> None:
    assert f"`{setting.name}` ({setting.text})" in section("6. Errors and limits")


def test_the_limits_that_no_setting_changes_are_those_of_the_table() -> None:
    page = section("6. Errors and limits")
    limits = LIMITS
    for told in (
        f"or {limits.connections_per_host} from one address",
        f"that has {limits.half_open_per_host} whose handshake is not over",
        f"more than {limits.bytes >> 20} MiB of messages",
        f"more than {limits.lanes} lanes",
        f"beyond {limits.hellos_per_second} a second",
        f"beyond {limits.all_hellos_per_second} a second of all connections",
        f"at most {limits.few_hellos} lately",
        f"{limits.unread_bytes >> 20} MiB of unread answers",
        f"more than {limits.type_bytes >> 10} KiB of types",
        f"more than {limits.own_lanes} lanes",
        f"its types have more than {limits.log_type_bytes >> 20} MiB",
        f"beyond {limits.producers} of a stream",
    ):
        assert told in page


def test_the_times_and_other_bounds_are_those_of_the_code() -> None:
    assert settings.COMM_TIMEOUT.default == 1
    assert "`s4.comm.timeout` (1 s)" in section("6. Errors and limits")
    delay = connection.VERDICT_SECONDS
    assert f"within {delay * 1000:g} ms" in " ".join(section("What a node does").split())
    assert settings.PRODUCER_EXPIRY.default == 3600
    assert "`s4.producer.expiry` (an hour)" in section("What a node does")
    assert (report.MAX_EXCEPTIONS, report._REASON) == (256, 500)
    rules = " ".join(section("What a node does").split())
    assert "256 exceptions and a reason has at most 500" in rules
    assert (connection._MAX_ANSWER_BYTES, connection._VERDICT_BYTES) == (4 << 20, 1 << 20)
    assert "At most 4 MiB of answers" in section("6. Errors and limits")
    assert "1 to 256, one for each" in section("data")
    assert wire.MAX_SECTIONS == 256
    assert wire.MAX_PRODUCER_BYTES == 1024
    assert "producer's id, at most 1024 bytes" in section("hello")
    assert "a producer's id of more than 1024 bytes" in section("6. Errors and limits")
    assert wire.MAX_NUMBER == 2**62 - 1
    assert f"`{wire.MAX_FRAME_BYTES}`" in section("2. Frames")


# --- the client's codec --------------------------------------------------------------------------


def test_the_client_uses_only_these_modules_of_the_standard_library() -> None:
    imports = [node for node in ast.walk(ast.parse(CLIENT)) if isinstance(node, ast.Import)]
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(ast.parse(CLIENT)))
    assert {alias.name for node in imports for alias in node.names} == {
        "json",
        "secrets",
        "socket",
        "struct",
        "sys",
        "time",
        "zlib",
    }


@pytest.mark.parametrize("path", sorted(GOLDEN.iterdir()), ids=lambda path: path.stem)
def test_the_client_reads_the_header_of_every_golden_frame(path: Path) -> None:
    data = bytes.fromhex(path.read_text())
    size = int.from_bytes(data[4:8], "big")
    header, end = client_module().unpack(data, 12)
    assert header == msgspec.msgpack.decode(data[12 : 12 + size])
    assert end == 12 + size


@pytest.mark.parametrize(
    "value",
    [None, True, False, 0, 127, 128, 255, 65_536, 2**64 - 1, -1, -32, -33, -129, -(2**63), 1.5,
     "", "é" * 20, "x" * 300, "x" * 70_000, b"", b"x" * 300, b"x" * 70_000, [], [1] * 20,
     [1] * 70_000, {}, {"a": [1, {"b": None}]}, {str(n): n for n in range(20)},
     {str(n): n for n in range(70_000)}],
    ids=lambda value: repr(value)[:12],
)  # fmt: skip
def test_the_client_reads_all_that_headers_may_hold(value: Any) -> None:
    data = msgspec.msgpack.encode(value)
    assert client_module().unpack(b"?" + data, 1) == (value, 1 + len(data))


@pytest.mark.parametrize("value", [0, 127, 128, 2**64 - 1, "", "é" * 300, [], [1, ["a", 2**40]]])
def test_what_the_client_writes_is_msgpack(value: Any) -> None:
    assert msgspec.msgpack.decode(client_module().pack(value)) == value


# --- the client as a process, and a node ---------------------------------------------------------


@asynccontextmanager
async def clicks_node(
    folder: Path, *arguments: str, pause: float = 0
) -> AsyncIterator[tuple[str, Any]]:
    """A node in a process of its own: its address, and the process."""
    file = folder / "clicks_app.py"
    file.write_text(APP.replace("PAUSE", str(pause)))
    async with node_process(
        file, "--json", "--partitions", "4", *arguments, cwd=folder, ready=False
    ) as node:
        await until(
            lambda: node.stdout or node.process.returncode is not None, node.errors, DEADLINE
        )
        assert node.stdout, node.errors
        yield json.loads(node.stdout[0])["address"], node


def shown(*nodes: Any) -> list[str]:
    """The events that the apps printed, one a line."""
    return [line for node in nodes for line in node.stdout[1:]]


async def run_client(
    folder: Path, address: str, *lines: str, stream: str = "clicks"
) -> subprocess.CompletedProcess[bytes]:
    """The document's client, run by a plain Python to its end."""
    file = folder / "client.py"
    file.write_text(CLIENT)
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    done: subprocess.CompletedProcess[bytes] = await trio.run_process(
        [sys.executable, "-I", str(file), host, port, stream],
        stdin="".join(f"{line}\n" for line in lines).encode(),
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    return done


def outcome(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    assert (done.returncode, done.stderr) == (0, b"")
    return [json.loads(line) for line in done.stdout.splitlines()]


def clicks(count: int) -> list[tuple[str, str]]:
    """Events as JSON, and as the app prints them."""
    return [
        (json.dumps({"user": f"user-{n % 13}", "millis": n}), f"user-{n % 13} {n}")
        for n in range(count)
    ]


async def test_the_client_shows_what_was_refused_and_why(tmp_path: Path) -> None:
    with trio.fail_after(DEADLINE):
        async with clicks_node(tmp_path) as (address, node):
            lines = (
                '{"user": "joe"}',
                '{"user": 5}',
                '{"nobody": 1}',
                '{"user": "a", "millis": 2}',
            )
            told = outcome(await run_client(tmp_path, address, *lines))
            await until(lambda: len(shown(node)) == 2)
            assert sorted(shown(node)) == ["a 2", "joe 0"]
    reasons = {line["refused"]: line["reason"] for line in told if "reason" in line}
    assert reasons.keys() == {1, 2}
    assert "Expected `str`, got `int`" in reasons[1]
    assert "nobody" in reasons[2]
    assert wire.REFUSED in [line.get("outcome") for line in told]
    assert told[-2]["upto"] == 4
    assert told[-1] == {"processed": 2, "refused": 2}


async def test_the_client_says_why_a_stream_is_not_opened(tmp_path: Path) -> None:
    with trio.fail_after(DEADLINE):
        async with clicks_node(tmp_path) as (address, _):
            done = await run_client(tmp_path, address, "{}", stream="klicks")
    assert done.returncode == 1
    assert b"no input stream 'klicks'" in done.stderr


@pytest.mark.slow
async def test_the_client_delivers_each_event_once_over_connections_that_break(
    tmp_path: Path,
) -> None:
    sent = clicks(3_000)
    with trio.fail_after(DEADLINE):
        async with (
            clicks_node(tmp_path, "-p", "s4.stream.workQueueSize=900") as (address, node),
            proxy(address, seed=3, least=10_000, most=50_000, cuts=3) as between,
        ):
            told = outcome(await run_client(tmp_path, between.address, *[line for line, _ in sent]))
            await until(lambda: len(shown(node)) >= len(sent))
            assert sorted(shown(node)) == sorted(text for _, text in sent)
            for user in range(13):  # one lane keeps each key's events in order
                mine = [text for _, text in sent if text.startswith(f"user-{user} ")]
                assert [line for line in shown(node) if line in set(mine)] == mine
            assert between.cuts == len([line for line in told if "lost" in line]) > 1
    assert told[-1] == {"processed": len(sent), "refused": 0}


@pytest.mark.slow
async def test_the_client_goes_on_at_the_next_node_when_one_stops_in_order(tmp_path: Path) -> None:
    sent = clicks(1_500)
    few = ("-p", "s4.stream.workQueueSize=200")
    ended: list[Any] = []
    with trio.fail_after(DEADLINE):
        async with (
            clicks_node(tmp_path, *few, pause=0.002) as (address, first),
            clicks_node(tmp_path, *few) as (other, second),
            proxy(address) as between,
            trio.open_nursery() as nursery,
        ):

            async def send() -> None:
                ended.append(
                    await run_client(tmp_path, between.address, *[line for line, _ in sent])
                )

            nursery.start_soon(send)
            await until(lambda: len(shown(first)) > 50, "events")
            first.signal(signal.SIGTERM)
            assert await first.wait() == 0
            assert 50 < len(shown(first)) < len(sent)
            between.redirect(other)
            await until(lambda: ended, "the client ends")
            await until(lambda: len(shown(first, second)) >= len(sent))
            assert sorted(shown(first, second)) == sorted(text for _, text in sent)
    assert outcome(ended[0])[-1] == {"processed": len(sent), "refused": 0}


async def test_the_client_goes_back_when_the_node_expects_an_earlier_event(tmp_path: Path) -> None:
    sent = clicks(2_000)
    module = client_module()
    told: list[int] = []

    class Forgetful(module.Connection):  # type: ignore[misc,name-defined]
        """Drops the second data frame."""

        frames = 0

        def send(self, header: list[Any], body: bytes = b"") -> None:
            self.frames += header[0] == module.DATA
            if header[0] != module.DATA or self.frames != 2:
                super().send(header, body)

    class Listening(module.Producer):  # type: ignore[misc,name-defined]
        def take_verdict(self, rulings: list[list[Any]], error: str) -> None:
            told.extend(ruling[1] for ruling in rulings)
            super().take_verdict(rulings, error)

    def send(host: str, port: str) -> None:
        producer = Listening("clicks", [line.encode() for line, _ in sent])
        with socket.create_connection((host, int(port)), timeout=DEADLINE) as stranger:
            assert stranger.recv(8) == module.HANDSHAKE  # without having been sent any
        connection = Forgetful(host, int(port))
        with connection.socket, connection.file:
            producer.run(connection)

    with trio.fail_after(DEADLINE):
        async with clicks_node(tmp_path) as (address, node):
            host, port = address.removeprefix("tcp://").rsplit(":", 1)
            await trio.to_thread.run_sync(partial(send, host, port), abandon_on_cancel=True)
            await until(lambda: len(shown(node)) >= len(sent))
            assert sorted(shown(node)) == sorted(text for _, text in sent)
    assert wire.EXPECTED in told


# -- set-up ---------------------------------------------------------------------------------------


DOCUMENT = (ROOT / "docs" / "wire-protocol.md").read_text("utf-8")

LIMIT = 1 << 20

APP = """
import trio

from s4node import App, Event, ProcessingElement


class Click(Event):
    user: str
    millis: int = 0


class Show(ProcessingElement):
    async def on_event(self, click: Click) -> None:
        print(click.user, click.millis)
        if PAUSE:
            await trio.sleep(PAUSE)


app = App("clicks")
app.create_input_stream("clicks", app.create_pe(Show), key="user")
"""


class Click(Event):
    user: str
    millis: int = 0


def section(heading: str) -> str:
    found = re.search(
        rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL
    )
    assert found, f"no heading {heading!r}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    """The cells of the tables' lines, without their backticks, and without the tables' heads."""
    cells = [
        [cell.strip().strip("`") for cell in line.strip()[1:-1].split("|")]
        for line in text.splitlines()
        if line.strip().startswith("|")
    ]
    rules = [index for index, row in enumerate(cells) if set(row[0]) == {"-"}]
    return [row for index, row in enumerate(cells) if index not in rules and index + 1 not in rules]


def blocks(text: str, language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def annotated(block: str) -> bytes:
    """The bytes at the beginnings of the lines."""
    pairs = [re.match(r"(?:[0-9a-f]{2} ?)+(?=  |$)", line) for line in block.splitlines()]
    assert all(pairs), block
    return bytes.fromhex("".join(pair[0] for pair in pairs if pair))


CLIENT = (ROOT / "docs" / "client.py").read_text("utf-8")


def client_module() -> Any:
    module = types.ModuleType("client")
    exec(compile(CLIENT, "docs/client.py", "exec"), vars(module))
    return module


DEFAULTS = {"req": msgspec.NODEFAULT, "empty": "", "0": 0}
