"""A new version of an app takes the place of one that is busy, or that has kept state."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import trio
from harness import until, until_told
from test_deploy import click, containers, deploy, node, printed, s4_of, status_of, write_app

from s4node import Client, Event

pytestmark = [pytest.mark.slow, pytest.mark.long]


RENAMED = """\
clicks: int = 0
    more: int = 0
    @staticmethod
    def migrate(saved):
        return {"click": saved["clicks"]}"""


@pytest.mark.parametrize("grade", ["fast", "durable"])
async def test_an_upgrade_does_not_wait_for_full_queues(folder: Path, grade: str) -> None:
    for version, seconds in (("v1", "0.01"), ("v2", "0")):
        text = BUSY.replace("SECONDS", seconds).replace("VERSION", version)
        (folder / f"{version}.py").write_text(text)
    settings = ("-p", f"s4.stream.clicks.grade={grade}")
    events = 8000  # which the first version would take 80 s for
    state = {"s4_state_folder": str(folder / "state"), "task_shutdown_ms": "100000"}
    async with node(folder, "one", **state) as one:
        await deploy(folder, "v1.py", *settings)
        async with Client(one.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many([Numbered(f"u{n % 50}", n) for n in range(events)])
            await until_told(
                lambda: status_of(folder),
                lambda told: any(stage["depth"] > events // 2 for stage in told["stages"]),
            )
            await deploy(folder, "v2.py", *settings)
            with trio.fail_after(30):
                assert await clicks.flush() == []
        await until(lambda: len(printed(one)) == events)
    by = Counter(line.split()[0] for line in printed(one))
    assert by["v2"] > events // 2
    assert len({line.split()[1] for line in printed(one)}) == events


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            ("clicks: int = 0", "clicks: str = ''"),
            "attribute clicks is str, but was saved as int; keep it, or give the class a static",
        ),
        (
            ("clicks: int = 0", RENAMED),
            "migrate of Count 'ann' returned an attribute 'click', which it does not have; fix mi",
        ),
    ],
    ids=["another type", "migrate"],
)
async def test_a_version_that_cannot_read_the_state_is_refused_while_the_old_one_runs_on(
    folder: Path, change: tuple[str, str], told: str
) -> None:
    async with node(folder, "one", s4_state_folder=str(folder / "state")) as one:
        await deploy(folder, write_app(folder, "counter", "v1"), *DURABLE)
        await click(one.address, "ann", "ann")
        before = await containers(folder)
        bad = folder / write_app(folder, "counter", "v2")
        bad.write_text(bad.read_text().replace(*change))
        done = await s4_of(folder, "deploy", bad.name, *DURABLE, ok=False)
        assert told in done.stderr
        assert "drains" not in done.stderr
        assert "Traceback" not in done.stderr
        assert await containers(folder) == before
        await click(one.address, "ann")
        good = folder / write_app(folder, "counter", "v3")
        good.write_text(
            good.read_text().replace("clicks: int = 0", "clicks: int = 0\n    n: int = 7")
        )
        await deploy(folder, good.name, *DURABLE)
        await click(one.address, "ann")
        await until(lambda: printed(one) == ["v1 ann 1", "v1 ann 2", "v1 ann 3", "v3 ann 4"])


async def test_a_version_that_cannot_read_a_store_is_refused_while_the_old_one_runs_on(
    folder: Path,
) -> None:
    for version, kind, value in (("v1", "int", "1"), ("v2", "str", "'1'")):
        text = WORDS.replace("TYPE", kind).replace("VALUE", value)
        (folder / f"{version}.py").write_text(text)
    async with node(folder, "one", s4_state_folder=str(folder / "state")) as one:
        await deploy(folder, "v1.py", *DURABLE)
        await click(one.address, "ann")
        before = await containers(folder)
        done = await s4_of(folder, "deploy", "v2.py", *DURABLE, ok=False)
        assert "store 'seen' holds a value for 'ann' that is not of type str: " in done.stderr
        assert "fields may only be appended, with defaults" in done.stderr
        assert await containers(folder) == before


async def test_a_version_with_windows_of_another_size_is_refused_while_the_old_one_runs_on(
    folder: Path,
) -> None:
    for version, days in (("v1", "2"), ("v2", "1")):
        (folder / f"{version}.py").write_text(WINDOWED.replace("DAYS", days))
    async with node(folder, "one", s4_state_folder=str(folder / "state")) as one:
        await deploy(folder, "v1.py", *DURABLE)
        await click(one.address, "ann")
        before = await containers(folder)
        done = await s4_of(folder, "deploy", "v2.py", *DURABLE, ok=False)
        assert "PE 'Count' has saved tumbling(172800) windows, which cannot go on" in done.stderr
        assert await containers(folder) == before


async def test_a_version_under_which_keys_would_move_is_refused_while_the_old_one_runs_on(
    folder: Path,
) -> None:
    file = write_app(folder, "counter", "v1")
    async with node(folder, "one", s4_state_folder=str(folder / "state")) as one:
        await deploy(folder, file, *DURABLE)
        await click(one.address, "ann")
        before = await containers(folder)
        hasher = ("-p", "s4.hasher=s4")
        done = await s4_of(folder, "deploy", file, *DURABLE, *hasher, ok=False)
        assert "it was written with s4.hasher = " in done.stderr
        assert await containers(folder) == before


# -- set-up ---------------------------------------------------------------------------------------


# Takes SECONDS for a click, and says which version has had it.
BUSY = """\
import time
from s4node import App, Event, ProcessingElement
class Numbered(Event):
    user: str
    n: int
class Busy(ProcessingElement):
    def on_event(self, click: Numbered):
        time.sleep(SECONDS)
        print("VERSION", click.n)
app = App("busy")
app.create_input_stream("clicks", app.create_pe(Busy), key="user")
"""

# Notes users in a store.
WINDOWED = """\
from s4node import App, Event, ProcessingElement, tumbling


class Click(Event):
    user: str


class Count(ProcessingElement):
    clicks: int = 0

    def on_event(self, click: Click):
        self.clicks += 1

    def on_window(self):
        print(self.clicks)


app = App("counter")
count = app.create_pe(Count)
count.set_window(tumbling(DAYS * 86400), clock="wall")
app.create_input_stream("clicks", count, key="user", types=Click)
"""

WORDS = """\
from s4node import Event, TaskApp
class Click(Event):
    user: str
class Note:
    def init(self, config, context):
        self.seen = context.store("seen")
    def process(self, envelope, collector, coordinator):
        self.seen.put(envelope.message.user, VALUE)
class Words(TaskApp):
    def __init__(self):
        super().__init__("words", Note)
    def on_init(self):
        self.create_input_stream("clicks", types=Click, key="user")
        self.create_store("seen", key=str, value=TYPE)
"""

DURABLE = ("-p", "s4.stream.clicks.grade=durable")


class Numbered(Event):
    user: str
    n: int


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
