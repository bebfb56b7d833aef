"""docs/spark.md is true: its way from a DataFrame to PEs and back, walked in order."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from harness import ROOT, environment, free_port, run_s4, s4_process, until_told
from pages import matches

pytest.importorskip("pyspark")

from s4node.net.certificates.credentials import OPTIONS as TLS
from s4node.spark.connection import ask
from s4node.spark.read_options import _KNOWN as READ
from s4node.spark.sink import _OPTIONS as WRITTEN

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

PAGE = (ROOT / "docs" / "spark.md").read_text()
SINK = (ROOT / "docs" / "spark-sink.md").read_text()
ROWS = 20_000
SECONDS = 300


async def test_the_way_from_a_dataframe_to_pes_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HOME", "XDG_RUNTIME_DIR"):  # the page's node is this user's only one
        place = tmp_path / variable
        place.mkdir(mode=0o700)
        monkeypatch.setenv(variable, str(place))
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("clicks.py", "clicks.properties", "fill.py", "back.py"):
        (folder / name).write_text(block(f"# {name}"))
    (folder / "more.py").write_text(MORE)
    (archive, *creating), (fill,), (boot,), (run,), (back,) = list(commands())[:5]
    async with s4_process(*words(archive), "-p", LISTEN, cwd=folder):
        for command in creating:
            await done(command, folder)
        await printed(fill, folder)
        await done(boot, folder)
        async with s4_process(*words(run), cwd=folder):
            await printed(fill, folder)
            await until_told(
                partial(appended, "visitors"), lambda count: count == ROWS, seconds=SECONDS
            )
        told = await printed(back, folder)
        assert "\n".join(back[1]) in told
        told = await printed(("python more.py", []), folder)
        assert told.splitlines()[-3:] == [
            f"history {2 * ROWS}",
            f"state 100 users of {ROWS // 100} clicks",
            "results True user clicks seconds _partition _offset _time",
        ]


@pytest.mark.parametrize("sockets", [False, True], ids=["from log to log", "over sockets"])
async def test_the_adapter_of_the_page_starts_as_written_and_makes_clicks_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sockets: bool
) -> None:
    for variable in ("HOME", "XDG_RUNTIME_DIR"):
        place = tmp_path / variable
        place.mkdir(mode=0o700)
        monkeypatch.setenv(variable, str(place))
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("clicks.py", "visits.py", "visits.properties", "send.py"):
        (folder / name).write_text(block(f"# {name}"))
    settings = folder / "visits.properties"
    if sockets:
        lines = settings.read_text().splitlines()
        kept = [each for each in lines if not each.startswith(("task.inputs", "systems.log"))]
        settings.write_text("\n".join(kept))
    else:  # the same rows, each once, to the stream of the log
        text = (folder / "send.py").read_text().replace(PORTS["12002"], PORTS["12000"])
        (folder / "send.py").write_text(text.replace('.option("delivery", "at-least-once")', ""))
    (archive, clicks, _), (making, adapter) = next(commands()), list(commands())[-1]
    async with s4_process(*words(archive), "-p", LISTEN, cwd=folder):
        await done(clicks, folder)
        if not sockets:
            await done(making, folder)
        async with s4_process(*words(adapter), cwd=folder):
            await printed(("python send.py", []), folder)
            await until_told(
                partial(appended, "clicks"), lambda count: count == 1000, seconds=SECONDS
            )


def test_every_option_that_the_pages_name_exists() -> None:
    elsewhere = {*TLS, "path", "checkpointlocation"}
    assert options_in(SINK) == {*WRITTEN} - elsewhere
    assert options_in(PAGE) == {*READ, "maxeventspertrigger"} - elsewhere


def options_in(page: str) -> set[str]:
    (table,) = re.findall(r"^\| option \| meaning \|\n(.*?)\n\n", page, re.DOTALL | re.MULTILINE)
    cells = [row.split(" | ")[0] for row in table.splitlines()[1:]]
    found = {name.lower() for cell in cells for name in re.findall(r"\w+", cell)}
    return found | {"coordination"}  # named beside cluster


# -- set-up ---------------------------------------------------------------------------------------


PORTS = {port: str(free_port()) for port in ("12000", "12001", "12002")}
ADDRESS = f"tcp://127.0.0.1:{PORTS['12000']}"
LISTEN = f"s4.listener.address={ADDRESS}"


def block(begin: str) -> str:
    """The only block of the page that begins so, with ports that are free."""
    blocks = re.findall(r"```\w+\n(.*?)```", PAGE, re.DOTALL)
    (one,) = [each.rstrip() for each in blocks if each.startswith(begin)]
    for port, own in PORTS.items():
        one = one.replace(f":{port}", f":{own}")
    return one


MORE = f"""
from s4node.spark.java import spark_session

spark = spark_session("more")
lines = open("clicks.properties").read().splitlines()
settings = dict(line.split(" = ", 1) for line in lines[1:])
{block("from s4node.spark.history.bootstrap").replace('"history")', '"again")')}
print("history", spark.read.parquet("visitors-of-the-past").count())
found.close()
state = {block('(spark.read.format("s4")')}
((clicks, users),) = state.groupBy("clicks").count().collect()
print("state", users, "users of", clicks, "clicks")
results = {block('(spark.readStream.format("s4")')}
print("results", results.isStreaming, *results.columns)
"""
"""The code behind the walk, in one program."""


def commands() -> Iterator[list[tuple[str, list[str]]]]:
    """The commands of each block, each with the lines that it prints."""
    for text in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        listed = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
        lines = [each.rstrip("\n").split("\n") for each in listed]
        yield [(command, told) for command, *told in lines]


def words(command: tuple[str, list[str]]) -> list[str]:
    name, *arguments = command[0].split()
    assert name == "s4"
    return arguments


async def done(command: tuple[str, list[str]], folder: Path) -> None:
    ended = await run_s4(*words(command), cwd=folder, deadline=SECONDS)
    assert ended.returncode == 0, ended.stderr
    own = ("s4: ", "savepoint ")  # Spark warns between these
    lines = (ended.stderr + ended.stdout).splitlines()
    assert not command[1] or matches(command[1], [e for e in lines if e.startswith(own)]), lines


async def printed(command: tuple[str, list[str]], folder: Path) -> str:
    name, *arguments = command[0].split()
    assert name == "python"
    with trio.fail_after(SECONDS):
        ended = await trio.run_process(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment(),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert ended.returncode == 0, (ended.stdout + ended.stderr).decode()
    return ended.stdout.decode()


async def appended(stream: str) -> int:
    def asked() -> int:
        found = ask([ADDRESS], 30, "describe", stream=stream)
        return sum(each["upcoming"] for each in found["partitions"])

    return await trio.to_thread.run_sync(asked)
