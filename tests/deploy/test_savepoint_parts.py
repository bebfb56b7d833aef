"""Parts of a savepoint: stores, positions, dead letters, startpoints; of one process or more."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness import ANY_PORT, NodeProcess, run_s4, s4_process, until
from shared_apps import Click
from test_deploy import click, deploy, node, printed

from s4node import Client
from s4node.savepoints.folders import FolderSavepoints
from s4node.savepoints.place import opened_task
from s4node.state.browse import StateReader

pytestmark = [pytest.mark.slow, pytest.mark.long]

BACK = ("--outputs", "again", "--accept-loss")


async def test_stores_positions_and_dead_letters_of_tasks_go_back_with_it(it: Words) -> None:
    async with it.running() as app:
        await it.append(app, "a", "b", "bad", "a")
        await until(lambda: last(app) == {"a": 2, "b": 1})
        await it.until_dead(1)
        await it.s4("savepoint", "take", "words", "--name", "one")
        await it.append(app, "bad", "b", "c")
        await until(lambda: last(app) == {"a": 2, "b": 2, "c": 1})
        await it.until_dead(2)
    async with it.running("--from", "one", *BACK) as app:
        await until(lambda: last(app) == {"b": 2, "c": 1})  # what came after it is read again
        await it.append(app, "a")
        await until(lambda: last(app) == {"a": 3, "b": 2, "c": 1})
        await it.until_dead(2)


@pytest.mark.short
async def test_startpoints_that_waited_wait_again_and_later_ones_are_gone(it: Words) -> None:
    async with it.running() as app:
        await it.append(app, "a", "a")
        await until(lambda: last(app) == {"a": 2})
        await it.s4("startpoint", "set", "words", "log.words[0]", "--oldest")
        await it.s4("savepoint", "take", "words", "--name", "waits")
        shown = await it.s4("savepoint", "show", "words", "waits")
        assert "1 startpoints wait for the next start" in shown
    async with it.running() as app:
        await until(lambda: last(app) == {"a": 4})
    await it.s4("savepoint", "take", "words", "--name", "consumed")
    await it.s4("startpoint", "set", "words", "log.words[0]", "--oldest")
    async with it.running("--from", "consumed", *BACK) as app:
        await it.append(app, "b")
        await until(lambda: last(app) == {"b": 1})
        assert app.stdout == ["b 1"]
    async with it.running("--from", "waits", *BACK) as app:
        await until(lambda: last(app) == {"a": 4, "b": 1})


async def test_several_containers_make_one_savepoint_and_go_on_from_it(tmp_path: Path) -> None:
    it = Counts(tmp_path, ("-p", "s4.state.folder=state"))
    async with it.running("--nodes", "3", "--partitions", "6") as app:
        await it.count(app, 2)
        await it.s4("savepoint", "take", "clicks", "--name", "two")
        await it.count(app, 1)
        await until(lambda: last(app) == dict.fromkeys(USERS, 3))
    async with it.running("--nodes", "2", "--partitions", "6", "--from", "two", *BACK) as app:
        await it.count(app, 1)
        await until(lambda: last(app) == dict.fromkeys(USERS, 3))


@pytest.mark.parametrize("several", [(), ("--nodes", "2", "--partitions", "4")])
async def test_a_savepoint_has_all_that_has_come_on_fast_streams(
    tmp_path: Path, several: tuple[str, ...]
) -> None:
    it = with_visits(tmp_path)
    async with it.running(*several) as app:
        await it.count(app, 1)
        async with Client(app.address) as client:
            visits = await client.stream("visits")
            await visits.send_many(Click(guest) for guest in GUESTS * 100)
            await until(lambda: visited(app))
            done = await run_s4(
                "savepoint", "take", "clicks", "--name", "amid", *it.place, cwd=tmp_path
            )
            assert "; fast streams were held for " in done.stdout, done.stderr
            assert visited(app) == 100 * len(GUESTS)
            await visits.send_many(Click(guest) for guest in GUESTS)
            assert await visits.flush() == []
    async with it.running(*several, "--from", "amid", *BACK) as app, Client(app.address) as client:
        visits = await client.stream("visits")
        await visits.send_many(Click(guest) for guest in GUESTS)
        assert await visits.flush() == []
        assert {guest: last(app)[guest] for guest in GUESTS} == dict.fromkeys(GUESTS, 101)


async def test_a_savepoint_gives_up_in_time_if_fast_streams_do_not_drain(tmp_path: Path) -> None:
    it = with_visits(tmp_path)
    async with it.running() as app:
        await it.count(app, 1)
        await it.s4(
            "savepoint", "take", "clicks", "--name", "before"
        )  # so that it is heard at once
        async with Client(app.address) as client:
            visits = await client.stream("visits")
            await visits.send_many(Click(guest) for guest in GUESTS * 300)
            await until(lambda: visited(app))
            words = ("savepoint", "take", "clicks", "--name", "amid", "--timeout", "1")
            done = await run_s4(*words, *it.place, cwd=tmp_path)
            assert done.returncode == 1
            assert "its fast streams were held for 1 s, and the events that waited" in done.stderr
            assert "processed: visits (" in done.stderr
            assert await visits.flush() == []
        assert visited(app) == 300 * len(GUESTS)
        await it.s4("savepoint", "take", "clicks", "--name", "after")


async def test_a_savepoint_lacks_only_the_last_events_of_the_app_s_own_sources(
    tmp_path: Path,
) -> None:
    it = Counts(tmp_path, ("-p", "s4.state.folder=state"))
    (tmp_path / "clicks.py").write_text(TICKS)
    async with it.running("--nodes", "2", "--partitions", "4") as app:
        await until(lambda: len(last(app)) == 2 * 6)
        await it.s4("savepoint", "take", "clicks", "--name", "amid")
        (tmp_path / "enough").touch()
        await until(lambda: app.errors.count("sent") == 2)
        sent = {line.split()[1]: int(line.split()[2]) for line in app.stderr if "sent" in line}
        await until(
            lambda: last(app) == {f"{pid}-{n}": sent[pid] for pid in sent for n in range(6)}
        )
        counted = last(app)
    savepoints = FolderSavepoints(tmp_path / "state" / "default" / "clicks")
    manifest = savepoints.manifest_of("amid")
    kept: dict[str, int] = {}
    with savepoints.opened(manifest) as place:
        for task in manifest.tasks:
            with opened_task(place, task) as state:
                assert state is not None
                kept.update((str(k), row["n"]) for k, row in StateReader(state).instances("Count"))
    assert kept
    assert all(0 < number <= counted[user] for user, number in kept.items())
    async with it.running("--partitions", "4", "--from", "amid", *BACK) as app:
        await until(lambda: len(last(app)) == 6)
        assert not kept.keys() & last(app).keys()  # what its sources have sent does not come again


async def test_a_savepoint_of_an_app_on_two_nodes_is_gone_back_to_by_a_deployment(
    tmp_path: Path,
) -> None:
    (tmp_path / "clicks.py").write_text(CLICKS)
    durable = ("-p", "s4.stream.clicks.grade=durable", "--partitions", "4", "--version")
    state = {"s4_state_folder": str(tmp_path / "state")}
    async with node(tmp_path, "one", **state) as one, node(tmp_path, "two", **state) as two:
        await deploy(tmp_path, "clicks.py", *durable, "v1")
        await click(one.address, *USERS)
        place = ("--cluster", "shop", "-p", f"s4.state.folder={tmp_path / 'state'}")
        done = await run_s4("savepoint", "take", "clicks", "--name", "one", *place, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        await click(two.address, *USERS)
        await deploy(tmp_path, "clicks.py", *durable, "v2", "--from", "one", *BACK)
        await click(two.address, *USERS)
        await until(lambda: len(printed(one, two)) == 3 * len(USERS))
        times = Counter(line.split()[1] for line in printed(one, two))
        assert times == {"1": len(USERS), "2": 2 * len(USERS)}


# -- set-up ---------------------------------------------------------------------------------------

WORDS = """
from s4node import Event, TaskApp

class Word(Event):
    word: str

class Count:
    def init(self, config, context):
        self.seen = context.store("seen")

    def process(self, envelope, collector, coordinator):
        word = envelope.message.word
        if word == "bad":
            raise ValueError(word)
        count = (self.seen.get(word) or 0) + 1
        self.seen.put(word, count)
        print(word, count, flush=True)

class Words(TaskApp):
    def __init__(self):
        super().__init__("words", Count)

    def on_init(self):
        self.create_store("seen", key=str, value=int)
        self.create_input_stream("words", key="word", types=Word, system="log")
"""

CLICKS = """
from s4node import App, Event, ProcessingElement

class Click(Event):
    user: str

class Count(ProcessingElement):
    n: int = 0

    def on_event(self, click: Click) -> None:
        self.n += 1
        print(self.key, self.n, flush=True)

app = App("clicks")
app.create_input_stream("clicks", app.create_pe(Count), key="user")
"""

TICKS = """
import os, sys
from pathlib import Path
import trio
from s4node import App, Event, ProcessingElement

class Click(Event):
    user: str

class Tick(Event):
    user: str
    n: int

class Clicked(ProcessingElement):
    def on_event(self, click: Click) -> None:
        pass

class Count(ProcessingElement):
    n: int = 0

    def on_event(self, tick: Tick) -> None:
        assert tick.n == self.n, "none is missing between two"
        self.n += 1
        print(self.key, self.n, flush=True)

class Clicks(App):
    def on_init(self) -> None:
        self.ticks = self.create_stream("ticks", self.create_pe(Count), key="user", types=Tick)
        self.create_input_stream("clicks", self.create_pe(Clicked), key="user", types=Click)

    async def on_start(self) -> None:
        self.start_soon(self.feed)

    async def feed(self) -> None:
        n = 0
        while not n or not Path("enough").exists():
            for user in range(6):
                await self.ticks.send(Tick(f"{os.getpid()}-{user}", n))
            n += 1
            await trio.sleep(0.05)
        print("sent", os.getpid(), n, file=sys.stderr, flush=True)

app = Clicks("clicks")
"""

USERS = [f"user-{n}" for n in range(20)]


def last(app: NodeProcess) -> dict[str, int]:
    """The last count of each word that was printed."""
    return {word: int(count) for word, count in (line.split() for line in app.stdout)}


class Words:
    """An app of one task that counts words of a log that it has itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        (folder / "words.py").write_text(WORDS)

    @asynccontextmanager
    async def running(self, *more: str) -> AsyncIterator[NodeProcess]:
        settings = {
            "s4.log.folder": "log",
            "s4.state.folder": "state",
            "s4.stream.words.onError": "dead-letter",
            "task.dead.letter.stream": "log.dead",
            "systems.log.samza.offset.default": "oldest",
            "task.commit.ms": "100",
        }
        given = [word for key, value in settings.items() for word in ("-p", f"{key}={value}")]
        command = ("run", "words.py", "--listen", ANY_PORT, *given, *more)
        async with s4_process(*command, cwd=self.folder) as app:
            self.address = app.address
            yield app
            app.process.terminate()
            assert await app.wait() == 0, app.errors

    async def s4(self, *words: str) -> str:
        done = await run_s4(*words, "-p", "s4.state.folder=state", cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def append(self, app: NodeProcess, *words: str) -> None:
        lines = "".join(f'{{"word": "{word}"}}\n' for word in words)
        where = ("log", "append", "words", "--to", app.address)
        done = await run_s4(*where, cwd=self.folder, stdin=lines.encode())
        assert done.returncode == 0, done.stderr

    async def until_dead(self, count: int) -> None:
        """Wait until the log has so many dead letters, and no more."""
        where = ("log", "tail", "dead", "--to", self.address, "--from", "oldest")
        done = await run_s4(*where, "--count", str(count), cwd=self.folder)
        assert done.stdout.count("\n") == count


class Counts:
    """An app that counts the clicks of users, in one container or several."""

    def __init__(self, folder: Path, place: tuple[str, ...]) -> None:
        self.folder = folder
        self.place = place
        (folder / "clicks.py").write_text(CLICKS)

    @asynccontextmanager
    async def running(self, *more: str, fault: str = "") -> AsyncIterator[NodeProcess]:
        durable = ("-p", "s4.stream.clicks.grade=durable")
        command = ("run", "clicks.py", "--listen", ANY_PORT, *durable, *self.place, *more)
        async with s4_process(*command, cwd=self.folder, fault=fault) as app:
            yield app
            app.process.terminate()
            assert await app.wait() == 0, app.errors

    async def s4(self, *words: str) -> None:
        done = await run_s4(*words, *self.place, cwd=self.folder)
        assert done.returncode == 0, done.stderr

    async def count(self, app: NodeProcess, times: int) -> None:
        async with Client(app.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many(Click(user) for user in USERS * times)
            assert await clicks.flush() == []


GUESTS = [f"guest-{n}" for n in range(10)]


def with_visits(folder: Path) -> Counts:
    """An app with a fast stream, too, whose events take 2 ms each."""
    fast = ("-p", "s4.stream.visits.grade=fast")
    it = Counts(folder, (*fast, "-p", "s4.state.folder=state"))
    slow = CLICKS.replace("self.n += 1", "time.sleep(0.002); self.n += 1")
    both = slow.replace("app.create_pe(Count)", "(count := app.create_pe(Count))")
    visits = 'app.create_input_stream("visits", count, key="user")'
    (folder / "clicks.py").write_text(f"import time\n{both}{visits}\n")
    return it


def visited(app: NodeProcess) -> int:
    """How many visits of guests are counted."""
    return sum(count for user, count in last(app).items() if user in GUESTS)


@pytest.fixture
def it(tmp_path: Path) -> Words:
    return Words(tmp_path)
