"""Events at which the process dies: named after four deaths, and skipped by a command only."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
import trio
from harness import DEADLINE, NodeProcess, run_s4, s4_process, until
from test_error_crashes import Bench, Click, bench

from s4node import App, Client, Event, ProcessingElement
from s4node.events.keys import Partitioner
from s4node.offsets.deaths import Deaths
from s4node.state.job import task_folder
from s4node.testing import AppTest

# -- in processes ---------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.short
async def test_an_event_of_a_log_that_kills_is_named_at_the_fourth_death_and_skipped_by_a_command(
    it: Kills,
) -> None:
    await it.append(clicks("segfault"))
    async with s4_process(*it.supervised("log"), cwd=it.folder) as process:
        place = await it.named(process)
        assert place == f"Partition {HOME}/log.clicks[{HOME}]:3"
        assert sum("a container ended" in line for line in process.stderr) == 4
        assert (await it.failure(process)).endswith(f"s4 dead-letter skip counts '{place}'")
        assert await it.named(process, 2) == place  # nothing is skipped by itself
        await it.skip(place)
        await it.until_counted(without=1)
        assert [letter.reason for letter in await it.letters()] == [DIED]
        assert [letter.offset for letter in await it.letters()] == [3]


@pytest.mark.long
async def test_an_event_that_hangs_is_named_when_the_pulse_of_its_process_is_missed(
    it: Kills,
) -> None:
    await it.append(clicks("hangs"))
    run = it.supervised("log", **{"s4.container.pulseTimeout": "2000"})
    async with s4_process(*run, cwd=it.folder) as process:
        place = await it.named(process)
        assert place == f"Partition {HOME}/log.clicks[{HOME}]:3"
        assert "sent no sign of life for 2 s" in await it.failure(process)
        await it.skip(place)
        await it.until_counted(without=1)


@pytest.mark.long
async def test_an_event_for_which_the_kernel_kills_its_process_is_named(it: Kills) -> None:
    await it.append(clicks("grows"))
    with small_cgroup() as cgroup:

        def enter() -> None:
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))

        run = it.supervised("log")
        async with s4_process(*run, cwd=it.folder, limits=enter, ready=False) as process:
            place = await it.named(process)
            assert place == f"Partition {HOME}/log.clicks[{HOME}]:3"
            await it.skip(place)
            await it.until_counted(without=1)


@pytest.mark.long
async def test_an_event_of_a_durable_socket_that_kills_is_named_and_skipped_by_a_command(
    it: Kills,
) -> None:
    run = it.supervised("socket", **{"s4.stream.clicks.grade": "durable"})
    async with s4_process(*run, cwd=it.folder) as process:
        async with Client(process.address, producer="web") as client:
            it.clicks = clicks("segfault")
            stream = await client.stream("clicks")
            await stream.send_many(it.clicks)
            place = await it.named(process)
            assert place == f"Partition {HOME}/clicks[{HOME}]@web:3"
            await it.skip(place)
            refusals = await stream.flush()
        assert [refusal.reason for refusal in refusals] == [DIED]
        await it.until_counted(without=1)


@pytest.mark.long
@pytest.mark.parametrize("own", [False, True])
async def test_an_event_that_a_task_has_put_and_that_kills_is_named_and_skipped_by_a_command(
    it: Kills, own: bool
) -> None:
    home = Partitioner(2).partition_of
    user = next(f"user-{n}" for n in range(99) if (home(f"user-{n}") == home("page")) is own)
    await it.append([Click(user, number, "segfault" if number == 3 else "") for number in range(9)])
    async with s4_process(*it.supervised("inner"), cwd=it.folder) as process:
        place = await it.named(process)
        origin = r"hops \(put by the task itself\)" if own else rf"hops\[{home('page')}\]@~.*"
        assert re.fullmatch(rf"Partition {home('page')}/{origin}:[0-9]+", place)
        await it.skip(place)
        await it.until_counted(without=1)


@pytest.mark.long
async def test_without_a_supervisor_the_next_start_names_the_event_and_fail_skips_it_on_request(
    it: Kills,
) -> None:
    await it.append(clicks("segfault"))
    run = it.run("log", **{"s4.stream.clicks.onError": "fail"})
    for _ in range(4):
        async with s4_process(*run, cwd=it.folder, ready=False) as process:
            assert await process.wait() == -signal.SIGSEGV
    place = f"Partition {HOME}/log.clicks[{HOME}]:3"
    done = await run_s4(
        "dead-letter", "skip", "counts", "log.clicks:3", *it.settings(), cwd=it.folder
    )
    assert done.returncode == 2
    assert "no process of counts has died at event 'log.clicks:3'" in done.stderr
    assert f"events at which one has died: {place!r}" in done.stderr
    await it.skip(place)
    async with s4_process(*run, cwd=it.folder) as process:
        await it.until_counted(without=1)
        shown = await run_s4("status", "--json", cwd=it.folder)
        [container] = [
            each
            for cluster in json.loads(shown.stdout)
            for node in cluster["nodes"]
            for each in node["containers"]
            if each["pid"] == process.pid
        ]
        assert f"s4 dead-letter skip counts '{place}'" in container["failure"]
        (happening,) = next(
            cluster["history"]
            for cluster in json.loads(shown.stdout)
            if process.pid in (node["pid"] for node in cluster["nodes"])
        )
        assert happening["kind"] == "restart"
        assert happening["cause"] == container["failure"]
        assert f"s4 dead-letter skip counts '{place}'" in process.errors
        process.signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert await it.letters() == []
    async with s4_process(*run, cwd=it.folder) as process:
        assert "one event at a time" not in process.errors


@pytest.mark.long
async def test_kills_from_outside_skip_nothing_and_all_events_are_counted_once(it: Kills) -> None:
    (it.folder / "hold").touch()
    await it.append(clicks("waits"))
    async with s4_process(*it.supervised("log"), cwd=it.folder) as process:
        for _ in range(5):
            os.kill(await it.held(), signal.SIGKILL)
        assert await it.named(process) == f"Partition {HOME}/log.clicks[{HOME}]:3"
        (it.folder / "hold").unlink()
        await it.until_counted()
    assert await it.letters() == []


# -- in memory ------------------------------------------------------------------------------------


class Visit(Event):
    user: str


class Looks(ProcessingElement):
    async def on_event(self, _: Visit) -> None:
        self.app.now += 1
        self.app.most = max(self.app.most, self.app.now)
        await trio.sleep(1)
        self.app.now -= 1


class Visits(App):
    def on_init(self) -> None:
        self.now = self.most = 0
        visits = self.create_input_stream("visits", self.create_pe(Looks), key="user")
        visits.set_parallelism(4)


@pytest.mark.parametrize(("deaths", "most"), [(1, 6), (2, 1)])
def test_a_container_is_careful_after_three_deaths_in_a_row_and_for_ten_minutes_if_it_is_quiet(
    tmp_path: Path, deaths: int, most: int
) -> None:
    folder = task_folder(tmp_path / "default" / "visits", "Partition 0")
    folder.mkdir(parents=True)
    (folder / "deaths-0").write_bytes(msgspec.json.encode(Deaths(1, deaths)))
    settings = {"s4.state.folder": str(tmp_path), "s4.stream.visits.grade": "durable"}
    visits = [Visit(f"user-{n}") for n in range(8)]
    with AppTest(Visits("visits"), partitions=2, settings=settings) as test:
        test.send("visits", *visits)
        test.advance(seconds=8)
        assert (test.app.now, test.app.most) == (0, most)
        test.advance(seconds=600)
        test.send("visits", *visits)
        test.advance(seconds=8)
        assert (test.app.now, test.app.most) == (0, 6)
    assert list(folder.glob("deaths-*")) == []


# -- set-up ---------------------------------------------------------------------------------------


HOME = Partitioner(2).partition_of("joe")

DIED = "the process has died while this event was processed"

COMMON = """
import ctypes
import os
import time
from s4node import App, Event, ProcessingElement

class Click(Event):
    user: str
    number: int
    what: str = ""

class Count(ProcessingElement):
    clicks: int = 0

    def on_event(self, event: Click) -> None:
        self.clicks += 1
        if event.what == "segfault":
            ctypes.string_at(0)
        if event.what == "grows":
            bytearray(1 << 30).replace(bytes(1), bytes([1]))
        while event.what == "hangs":
            time.sleep(1)
        if event.what == "waits" and os.path.exists("hold"):
            with open("at", "w") as file:
                file.write(str(os.getpid()))
            while os.path.exists("hold"):
                time.sleep(0.01)

app = App("counts")
count = app.create_pe(Count)
"""

APPS = {
    "log": COMMON + 'app.create_input_stream("clicks", count, key="user", system="log")\n',
    "socket": COMMON + 'app.create_input_stream("clicks", count, key="user")\n',
    "inner": COMMON
    + """
class Pass(ProcessingElement):
    clicks: int = 0

    def on_event(self, event: Click) -> None:
        hops.put(Click("page", event.number, event.what))

hops = app.create_stream("hops", count, key="user")
app.create_input_stream("clicks", app.create_pe(Pass), key="user", system="log")
""",
}


def clicks(what: str) -> list[Click]:
    """Nine clicks of one user; the fourth is that."""
    return [Click("joe", number, what if number == 3 else "") for number in range(9)]


class Kills(Bench):
    """An app with events at which its process dies."""

    def run(self, app: str, *arguments: str, **more: str) -> list[str]:
        path = self.folder / "app.py"
        path.write_text(APPS[app])
        return ["run", str(path), *arguments, *self.settings(**more)]

    def supervised(self, app: str, **more: str) -> list[str]:
        return self.run(app, "--nodes", "1", **{"s4.container.restartDelay": "10"}, **more)

    async def named(self, process: NodeProcess, times: int = 1) -> str:
        """The place that the supervisor names, once it has done so some times."""
        places: list[str] = []

        def look() -> bool:
            ends = [line for line in process.stderr if "a container ended" in line]
            places[:] = re.findall("s4 dead-letter skip counts '(.+?)'", "\n".join(ends))
            return len(places) >= times

        await until(look, "the event is named", seconds=60)
        return places[-1]

    async def failure(self, process: NodeProcess) -> str:
        """The reason for which its container has ended, as ``s4 status`` shows it."""
        folder = process.errors.partition("--folder ")[2].split()[0]
        shown = await run_s4("status", "--json", "--folder", folder, cwd=self.folder)
        [cluster] = json.loads(shown.stdout)
        [container] = cluster["nodes"][0]["containers"]
        return str(container["failure"])

    async def skip(self, place: str) -> None:
        done = await run_s4(
            "dead-letter", "skip", "counts", place, *self.settings(), cwd=self.folder
        )
        assert done.returncode == 0, done.stderr

    async def held(self) -> int:
        """The process that has come to the click that waits."""
        at = self.folder / "at"
        await until(lambda: at.exists() and at.read_text(), "a process waits at the click")
        pid = int(at.read_text())
        at.unlink()
        return pid

    async def until_counted(self, *, without: int = 0) -> None:
        total = len(self.clicks) - without
        await until(lambda: sum(self.counted().values()) == total, "the rest is counted once")


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Kills]:
    async with bench(tmp_path) as made:
        yield Kills(tmp_path, made.log)


@contextmanager
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup of 400 MB; skips where this user can make none."""
    for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")):
        folder = root / f"s4-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            for file in ("memory.max", "memory.limit_in_bytes"):
                if (folder / file).exists():
                    (folder / file).write_text(str(400 << 20))
                    yield folder
                    return
        finally:
            remove_soon(folder)
    pytest.skip("no memory cgroup can be made here")


def remove_soon(cgroup: Path) -> None:
    """Remove a cgroup as soon as its last process has ended."""
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until:
        with suppress(OSError):
            cgroup.rmdir()
            return
