"""What an event is blamed for: deaths of its process that can be due to it, no kills by others."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from harness import s4_process, until
from test_error_crashes import Bench, Click, bench

pytestmark = pytest.mark.long


async def test_kills_from_outside_during_a_slow_event_blame_no_event(it: Kills) -> None:
    await it.append([Click("joe", number, "waits" if number == 3 else "") for number in range(9)])
    for _ in range(4):
        await it.killed(*it.run())
    (it.folder / "hold").unlink()
    await it.all_counted(*it.run())
    assert await it.letters() == []


async def test_an_event_at_which_the_process_is_only_ever_killed_stops_the_job_and_is_named(
    it: Kills,
) -> None:
    await it.append([Click("joe", number, "waits" if number == 3 else "") for number in range(9)])
    kills = 0
    while not (errors := await stopped(it)):
        kills += 1
    assert kills in (8, 9)  # it may be none of those that were processed at the first
    (it.folder / "hold").unlink()
    errors = await stopped(it)
    assert KILLED in errors
    assert re.search(r"\(log\.clicks\[.\]:3\)", errors)
    for file in it.folder.glob("state/default/counts/tasks/*/suspects-*"):
        assert str(file.with_name("suspects-*")) in errors
        file.unlink()
    await it.all_counted(*it.run())
    assert await it.letters() == []


async def stopped(it: Kills) -> str:
    """Run it until it waits at the click, and kill it; returns what it says if it stops before."""
    async with (
        s4_process(*it.run(), cwd=it.folder, ready=False) as process,
        trio.open_nursery() as nursery,
    ):

        async def kill() -> None:
            await it.held()
            await process.kill()

        nursery.start_soon(kill)
        status = await process.wait()
        nursery.cancel_scope.cancel()
    assert status in (1, -signal.SIGKILL)
    return process.errors if status == 1 else ""


async def test_an_event_that_ends_its_process_by_itself_is_blamed(it: Kills) -> None:
    await it.append([Click("joe", number, "exits" if number == 3 else "") for number in range(9)])
    for _ in range(3):  # it may end before it says that it is ready
        async with s4_process(*it.run(), cwd=it.folder, ready=False) as process:
            assert await process.wait() == 3
    async with s4_process(*it.run(), cwd=it.folder):
        await it.until_counted(without=1)
    assert [letter.reason for letter in await it.letters()] == [DIED]


async def test_kills_of_a_supervised_process_from_outside_blame_no_event(it: Kills) -> None:
    await it.append([Click("joe", number, "waits" if number == 3 else "") for number in range(9)])
    async with s4_process(*it.run("2"), cwd=it.folder):
        for _ in range(4):
            os.kill(await it.held(), signal.SIGKILL)
        (it.folder / "hold").unlink()
        await it.until_counted()
    assert await it.letters() == []


async def test_an_event_that_stops_the_pulse_of_its_process_is_blamed(it: Kills) -> None:
    await it.append([Click("joe", number, "waits" if number == 3 else "") for number in range(9)])
    quick = {"s4.container.pulseTimeout": "1000", "s4.container.restartDelay": "10"}
    async with s4_process(*it.run("1", **quick), cwd=it.folder):
        await it.until_counted(without=1)
    assert [letter.reason for letter in await it.letters()] == [DIED]


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
            folder.rmdir()
    pytest.skip("no memory cgroup can be made here")


async def test_an_event_for_which_the_kernel_kills_its_process_is_blamed(it: Kills) -> None:
    await it.append([Click("joe", number, "grows" if number == 3 else "") for number in range(9)])
    with small_cgroup() as cgroup:

        def enter() -> None:
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))

        for _ in range(3):
            async with s4_process(*it.run(), cwd=it.folder, limits=enter) as process:
                assert await process.wait() == -signal.SIGKILL
        async with s4_process(*it.run(), cwd=it.folder, limits=enter):
            await it.until_counted(without=1)
    assert [letter.reason for letter in await it.letters()] == [DIED]


# -- set-up ---------------------------------------------------------------------------------------


APP = """
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
        if event.what == "exits":
            os._exit(3)
        if event.what == "grows":
            bytearray(1 << 30).replace(bytes(1), bytes([1]))
        if event.what == "waits" and os.path.exists("hold"):
            with open("at", "w") as file:
                file.write(str(os.getpid()))
            while os.path.exists("hold"):
                time.sleep(0.01)

app = App("counts")
app.create_input_stream("clicks", app.create_pe(Count), key="user", system="log")
"""

KILLED = "the process was killed 8 times while this event was processed"

DIED = "the process has died 3 times while this event was processed"


class Kills(Bench):
    """The app whose clicks wait while there is a file ``hold``."""

    def run(self, app: str = "", **more: str) -> list[str]:
        path = self.folder / "app.py"
        path.write_text(APP)
        nodes = ["--nodes", app] if app else []
        return ["run", str(path), *nodes, *self.settings(**more)]

    async def held(self) -> int:
        """The process that has come to the click that waits."""
        at = self.folder / "at"
        await until(lambda: at.exists() and at.read_text(), "a process waits at the click")
        pid = int(at.read_text())
        at.unlink()
        return pid

    async def killed(self, *arguments: str) -> None:
        """Run it until it waits at the click, and kill it there."""
        async with s4_process(*arguments, cwd=self.folder) as process:
            await self.held()
            await process.kill()

    async def all_counted(self, *arguments: str) -> None:
        """Run it until all is counted."""
        async with s4_process(*arguments, cwd=self.folder) as process:
            await self.until_counted()
            process.signal(signal.SIGTERM)
            assert await process.wait() == 0

    async def until_counted(self, *, without: int = 0) -> None:
        total = len(self.clicks) - without
        await until(lambda: sum(self.counted().values()) == total, "all clicks are counted")


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Kills]:
    async with bench(tmp_path) as made:
        (tmp_path / "hold").touch()
        yield Kills(tmp_path, made.log)
