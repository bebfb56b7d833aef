"""Events at which a handler fails, in real processes over a log."""

from __future__ import annotations

import json
import random
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness import run_s4, s4_process, until, until_told
from log_bench import separate_log

from s4node import Event, GenericEvent
from s4node.cli.dead_letter import DeadLetter
from s4node.events.event import LIVE
from s4node.events.keys import Partitioner, crc32m
from s4node.offsets.system import InputBatch, SystemStreamPartition
from s4node.runtime.task.poison.dead_letter import dead_letter
from s4node.state import epochs
from s4node.state.browse import StateReader
from s4node.state.task_state import TaskState
from s4node.systems.embedded_log import EmbeddedLog

pytestmark = pytest.mark.long


def page_beside(user: str) -> str:
    """A page whose hops are the own events of the task that has the user's clicks."""
    home = Partitioner(2).partition_of
    return next(f"page-{n}" for n in range(99) if home(f"page-{n}") == home(user))


async def test_output_streams_have_each_event_once_and_nothing_of_skipped_events(
    tmp_path: Path,
) -> None:
    dice = random.Random(5)
    async with bench(tmp_path) as it:
        for stream in ("seen", "letters"):
            await it.log.create(stream, 2)
        bad = {300, 301, 302, 700, 1500}
        await it.append(
            [
                Click(click.user, click.number, "bad" if click.number in bad else "")
                for click in clicks_of(2000)
            ]
        )
        settings = {
            "s4.stream.seen.consumers": "keeper",
            "s4.stream.letters.consumers": "keeper",
            "s4.cluster.keeper.address": it.log.address,
            "task.dead.letter.stream": "letters",
        }
        run = it.run("outputs", **settings)
        for life in range(3):
            async with s4_process(*run, "-p", "s4.app.slow=0.0003", cwd=tmp_path) as process:
                least = 500 * life + dice.randrange(500)
                await until_told(
                    lambda: it.letters("seen"),
                    lambda found, least=least: len(found) >= least,
                )
                await process.kill()
        async with s4_process(*run, cwd=tmp_path) as process:
            await until_told(
                lambda: it.letters("seen"), lambda found: len(found) >= 2000 - len(bad)
            )
            await until_told(lambda: it.letters("letters"), lambda found: len(found) >= len(bad))
            process.signal(signal.SIGTERM)
            assert await process.wait() == 0
        seen = sorted(event.number for event in await it.letters("seen"))
        assert seen == [number for number in range(2000) if number not in bad]
        letters = sorted(int(letter.reason.split()[2]) for letter in await it.letters("letters"))
        assert letters == sorted(bad)


# -- s4 dead-letter -------------------------------------------------------------------------------


async def test_thousands_of_events_without_a_key_are_dead_letters_in_the_log_once(
    tmp_path: Path,
) -> None:
    count = 5000
    async with bench(tmp_path) as it:
        lost = [GenericEvent(number=number) for number in range(count)]
        await it.log.append("clicks", 0, lost)

        async def kept() -> int:
            return int((await it.log.describe("dead"))["partitions"][0]["upcoming"])

        async with s4_process(*it.run("generic"), cwd=tmp_path) as process:
            await until_told(kept, lambda letters: letters >= count // 4)
            await process.kill()
        async with s4_process(*it.run("generic"), cwd=tmp_path) as process:
            await it.append(clicks_of(100))
            await until(lambda: it.counted() == it.truth(), "what comes behind them is counted")
            process.signal(signal.SIGTERM)
            assert await process.wait() == 0
        assert sorted(letter.offset for letter in await it.letters()) == list(range(count))


async def test_dead_letters_are_listed_shown_and_sent_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(tmp_path) as it:

        async def s4(*words: str) -> str:
            done = await run_s4("dead-letter", *words, *it.settings(), cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            return done.stdout + done.stderr

        clicks = clicks_of(200)
        for number in (3, 50, 51):
            clicks[number] = Click(clicks[number].user, number, "bad\nénough")
        await it.append(clicks)
        async with s4_process(*it.run("elements"), cwd=tmp_path):
            await until(lambda: it.counted() == it.truth())

        [group] = json.loads(await s4("list", "counts", "--json"))
        what = (group["stream"], group["reason"], group["pe"], group["letters"])
        assert what == ("log.clicks", "ValueError", "Count", 3)
        assert "3  log.clicks: ValueError in Count, the first is " in await s4("list", "counts")
        lines = (await s4("list", "counts", "--all")).splitlines()
        assert sorted(line.split("  ")[2] for line in lines) == [
            rf"ValueError: click {number} is bad\nénough" for number in (3, 50, 51)
        ]
        told = await s4("show", "counts", group["first"])
        assert re.search(r"^reason: ValueError: click \d+ is bad\\nénough$", told, re.MULTILINE)
        assert 'event: Click {"user": "user-' in told
        assert "in look_at" in told
        shown = json.loads(await s4("show", "counts", group["first"], "--json"))
        assert shown["event"]["what"] == "bad\nénough"

        assert "3 letters: 3 sent" in await s4("replay", "counts")
        assert "1 letter: 1 sent before" in await s4("replay", "counts", group["first"])
        assert "3 letters: 3 sent before" in await s4("replay", "counts", "--stream", "log.clicks")
        monkeypatch.setenv("MENDED", "1")
        truth = Counter(click.user for click in clicks)
        async with s4_process(*it.run("elements"), cwd=tmp_path):
            await until(lambda: it.counted() == truth)


async def test_dead_letters_of_events_between_tasks_of_the_app_are_not_sent_again(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as it:
        settings = {"s4.stream.hops.onError": "dead-letter"}
        home = Partitioner(2).partition_of
        other = next(f"page-{n}" for n in range(99) if home(f"page-{n}") != home("user-0"))
        pages = [page_beside("user-0"), other]
        await it.append([Click("user-0", n, page) for n, page in enumerate(pages)])
        async with s4_process(*it.run("bad hops", **settings), cwd=tmp_path):
            found = await until_told(it.letters, lambda found: len(found) >= len(pages))
        assert {letter.offset < 0 for letter in found} == {False, True}  # from both tasks
        done = await run_s4("dead-letter", "replay", "counts", *it.settings(), cwd=tmp_path)
        told = {line.partition(": ")[2] for line in done.stderr.splitlines()[:-1]}
        assert told == {"the app itself has put its event; replay the event that led to it"}
        assert done.returncode == 1


@pytest.mark.parametrize(
    ("system", "origin", "offset", "own"),
    [
        (LIVE, "hops[1]@~default/counts/Partition 0#5c.1", 3, True),
        (LIVE, "hops (own)", -1, True),
        (LIVE, "hops[1]@spark-1", 3, False),
        (LIVE, "hops[1]@~default/other/Partition 0#5c.1", 3, False),
        (LIVE, "hops[1]@~lines/counts/Partition 0#5c.1", 3, False),
        ("log", "log.hops[1]", 3, False),
    ],
)
def test_events_of_programs_and_other_apps_can_be_sent_again(
    system: str, origin: str, offset: int, own: bool
) -> None:
    sent = dead_letter((system, "hops", 1), origin, offset, "ValueError", Click("joe", 1))
    sent.put("app", "counts")
    assert DeadLetter("0:1", sent).is_own("default") is own


async def test_an_event_that_is_not_a_dead_letter_is_reported(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        await it.append(clicks_of(10))
        async with s4_process(*it.run("elements"), cwd=tmp_path):
            await until(lambda: it.counted() == it.truth())
        for words, told in {
            ("show", "counts", "0:99"): "counts has no dead letter 0:99",
            ("show", "counts", "first"): "'first' is not the id of a dead letter",
            ("list", "none"): "no app 'none' of cluster 'default'",
            ("list", "counts", "-p", "task.dead.letter.stream="): "is not set",
        }.items():
            done = await run_s4("dead-letter", *words[:2], *it.settings(), *words[2:], cwd=tmp_path)
            assert done.returncode in (1, 2)
            assert told in done.stderr
        done = await run_s4("dead-letter", "list", "counts", *it.settings(), cwd=tmp_path)
        assert done.stderr == "no dead letters\n"


# -- set-up ---------------------------------------------------------------------------------------


COMMON = """
import os
import signal
import time
import trio
from s4node import App, Event, ProcessingElement, TaskApp

class Click(Event):
    user: str
    number: int
    what: str = ""

class Sum(Event):
    clicks: int = 0

def look_at(click, slow):
    time.sleep(slow)
    if click.what.startswith("bad") and "MENDED" not in os.environ:
        raise ValueError(f"click {click.number} is {click.what}")
"""

ELEMENTS = (
    COMMON
    + """
class Count(ProcessingElement):
    clicks: int = 0

    def on_event(self, event: Click) -> None:
        self.clicks += 1
        look_at(event, self.app.slow)

class Counts(App):
    def on_init(self) -> None:
        self.slow = float(self.parameters.get("slow", "0"))
        self.create_input_stream("clicks", self.create_pe(Count), key="user", system="log")

app = Counts("counts")
"""
)

ASYNC_ELEMENTS = (
    COMMON
    + """
class Count(ProcessingElement):
    clicks: int = 0

    async def on_event(self, event: Click) -> None:
        self.clicks += 1
        await trio.lowlevel.checkpoint()
        look_at(event, self.app.slow)

class Counts(App):
    def on_init(self) -> None:
        self.slow = float(self.parameters.get("slow", "0"))
        stream = self.create_input_stream(
            "clicks", self.create_pe(Count), key="user", system="log"
        )
        stream.set_parallelism(4)

app = Counts("counts")
"""
)

TASKS = (
    COMMON
    + """
class Count:
    def init(self, config, context):
        self.store = context.store("counts")
        self.slow = float(config.get("slow", "0"))

    def process(self, envelope, collector, coordinator):
        user = envelope.message.user
        sum = self.store.get(user) or Sum()
        self.store.put(user, Sum(sum.clicks + 1))
        look_at(envelope.message, self.slow)

class Counts(TaskApp):
    def on_init(self):
        self.create_input_stream("clicks", key="user", types=Click, system="log")
        self.create_store("counts", key=str, value=Sum)

app = Counts("counts", Count)
"""
)


APPS = {"elements": ELEMENTS, "async elements": ASYNC_ELEMENTS, "tasks": TASKS}


OUTPUTS = (
    COMMON
    + """
class Tell:
    def init(self, config, context):
        self.slow = float(config.get("slow", "0"))

    def process(self, envelope, collector, coordinator):
        collector.send("seen", envelope.message)
        look_at(envelope.message, self.slow)

class Outputs(TaskApp):
    def on_init(self):
        self.create_input_stream("clicks", key="user", types=Click, system="log")
        self.create_output_stream("seen", types=Click)
        self.create_output_stream("letters")

app = Outputs("outputs", Tell)
"""
)

BAD_HOPS = (
    COMMON
    + """
    pass

class Hop(Event):
    page: str

class Clicks(ProcessingElement):
    clicks: int = 0

    def on_event(self, event: Click) -> None:
        self.clicks += 1
        self.app.hops.put(Hop(event.what))

class Pages(ProcessingElement):
    clicks: int = 0

    async def on_event(self, event: Hop) -> None:
        self.clicks += 1
        raise ValueError

class Counts(App):
    def on_init(self) -> None:
        self.create_input_stream("clicks", self.create_pe(Clicks), key="user", system="log")
        self.hops = self.create_stream("hops", self.create_pe(Pages), key="page")

app = Counts("counts")
"""
)

GENERIC = """
from s4node import App, GenericEvent, ProcessingElement

class Count(ProcessingElement):
    clicks: int = 0

    def on_event(self, event: GenericEvent) -> None:
        self.clicks += 1

app = App("counts")
app.create_input_stream("clicks", app.create_pe(Count), key="user", system="log")
"""


class Click(Event):
    user: str
    number: int
    what: str = ""


class Bench:
    """A log in a process of its own, and the app that reads it."""

    def __init__(self, folder: Path, log: EmbeddedLog) -> None:
        self.folder = folder
        self.log = log
        self.clicks: list[Click] = []

    def settings(self, **more: str) -> list[str]:
        settings = {
            "systems.log.type": "log",
            "systems.log.address": self.log.address,
            "systems.log.samza.offset.default": "oldest",
            "s4.state.folder": str(self.folder / "state"),
            "s4.listener.address": "tcp://127.0.0.1:0",
            "s4.cluster.partitions": "2",
            "task.commit.ms": "50",
            "s4.stream.clicks.onError": "dead-letter",
            "task.dead.letter.stream": "log.dead",
            **more,
        }
        return [word for name, value in settings.items() for word in ("-p", f"{name}={value}")]

    def run(self, app: str, **more: str) -> list[str]:
        path = self.folder / "app.py"
        path.write_text({"outputs": OUTPUTS, "bad hops": BAD_HOPS, "generic": GENERIC, **APPS}[app])
        return ["run", str(path), *self.settings(**more)]

    async def append(self, clicks: list[Click]) -> None:
        self.clicks += clicks
        home = Partitioner(2)
        for partition in range(2):
            mine = [click for click in clicks if home.partition_of(click.user) == partition]
            if mine:
                await self.log.append("clicks", partition, mine)

    def truth(self) -> Counter[str]:
        return Counter(click.user for click in self.clicks if not click.what)

    def counted(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for folder in (self.folder / "state" / "default" / "counts").glob("tasks/*"):
            if epochs.epochs_of(folder):
                with epochs.copied(folder) as database:
                    look = StateReader(TaskState(database, crc32m))
                    tables = [look.instances(name) for name in look.elements]
                    tables += [look.store(name) for name in look.stores]
                    for key, value in (row for table in tables for row in table):
                        found[key] = value["clicks"] if isinstance(value, dict) else value[0]
        return found

    async def letters(self, stream: str = "dead") -> list[GenericEvent]:
        """All that is in a stream of the log."""
        found: list[GenericEvent] = []
        for partition in range(2):
            at = SystemStreamPartition("log", stream, partition)
            upcoming = (await self.log.bounds(at)).upcoming
            reader = await self.log.open(at, 0, [GenericEvent])
            while reader.position < upcoming:
                batch = await reader.read()
                assert isinstance(batch, InputBatch)
                batch.load()
                found += batch.events
            await reader.aclose()
        return found


@asynccontextmanager
async def bench(folder: Path) -> AsyncIterator[Bench]:
    async with separate_log(folder) as log:
        await log.create("clicks", 2)
        await log.create("dead", 2)
        yield Bench(folder, log)


def clicks_of(count: int, **what: int) -> list[Click]:
    """Clicks of 13 users; those whose number is named ``what`` it says are that."""
    named = {number: word for word, number in what.items()}
    return [Click(f"user-{n % 13}", n, named.get(n, "")) for n in range(count)]
