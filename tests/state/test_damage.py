"""Real processes whose folder is damaged, full, shared with another, or taken while they sleep.

Whatever happens, every event counts once in the end, or it is said what is not so.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
import trio
from counting_flow import USERS, Flow, append_by_key, counting, flowing
from durable_lives import COUNTING, Lives
from durable_lives import USERS as LIVES_USERS
from harness import NodeProcess, filled, s4_process, until
from log_bench import Bench, bench
from saved_state import saved_instances

from s4node import Client, Event
from s4node.state import epochs

pytestmark = pytest.mark.slow


@pytest.mark.long
async def test_a_file_system_without_room_ends_no_process_and_is_waited_for(
    tmp_path: Path, small_disk: Path
) -> None:
    """It is full before the first event, so that nothing of any file is there by having been
    written."""
    state = ["-p", f"s4.state.folder={small_disk / 'state'}"]
    async with (
        bench(tmp_path, key="user") as it,
        s4_process(*counting(it), *state, cwd=tmp_path) as process,
    ):
        ballast = filled(small_disk)
        await append_by_key(it.log, 0, 1000)
        await until(lambda: "progress could not be written" in process.errors)
        ballast.unlink()
        await until(lambda: "progress is written again" in process.errors)
        app = small_disk / "state" / "default" / "counting"
        await until(lambda: len(saved_instances(app)) == USERS)
        process.signal(signal.SIGTERM)
        assert await process.wait() == 0
        kept = saved_instances(app)
        assert sum(each["clicks"] for each in kept.values()) == 1000
        assert sum(each["wrong"] for each in kept.values()) == 0


class Click(Event):
    user: str
    number: int
    what: bytes = b""


WINDOW = 64 << 20
"""Bytes of a producer that may be admitted beyond what is committed."""


async def test_a_full_disk_under_a_durable_stream_holds_its_producers_up_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    """From one moment on no file may become larger than it is, and later that is over."""
    reports = {"metrics.reporters": "jsonl", "metrics.reporter.interval": "50"}  # to stderr
    lives = Lives(tmp_path, reports)
    (tmp_path / "counting.py").write_text(
        COUNTING.replace("    number: int\n", '    number: int\n    what: bytes = b""\n')
    )
    first, count, size = 130, 2400, 64 << 10
    what = bytes(size)

    def admitted(process: NodeProcess) -> list[int]:
        name = "s4_input_admitted_total"
        reports = (json.loads(line)["metrics"] for line in process.stderr if name in line)
        return [sum(each["value"] for each in one if each["name"] == name) for one in reports]

    async with (
        lives.node() as process,
        Client(lives.address, producer="one", queue_size=16) as client,
    ):
        clicks = await client.stream("clicks")

        async def send(numbers: range) -> None:
            for n in numbers:
                await clicks.send(Click(f"one {n % LIVES_USERS}", n // LIVES_USERS, what))

        await send(range(first))
        assert await clicks.flush() == []
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, -1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, range(first, count))
            await until(lambda: "progress could not be written" in process.errors)
            least = WINDOW // size // 4 - 2  # of 4 partitions one is full, and the others wait
            await until(lambda: admitted(process)[-1:] > [first + least])
            await until(lambda: len(set(admitted(process)[-20:])) == 1, "no more is admitted")
            beyond = admitted(process)[-1] - first
            assert least < beyond <= WINDOW // size
            assert clicks.counts["admitted"] == first  # and nothing was said to be safe
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (-1, -1))
            await until(lambda: "progress is written again" in process.errors)
        assert await clicks.flush() == []
        assert clicks.counts["admitted"] == count
        process.signal(signal.SIGTERM)
        assert await process.wait() == 0
        assert "Traceback" not in process.errors
    lives.check({"one": count})


@pytest.mark.long
async def test_of_two_processes_on_one_folder_the_second_has_it(tmp_path: Path) -> None:
    async with (
        flowing(tmp_path) as (it, flow),
        s4_process(*counting(it), cwd=tmp_path) as first,
    ):
        await committing(it)
        async with s4_process(*counting(it), cwd=tmp_path) as second:
            assert await first.wait() == 1
            assert "another container has taken over task" in first.errors
            await committing(it)
            await all_is_counted(it, flow, second)


# what is counted by user is counted again by digit, in another task for most
HOPS = """
from s4node import App, Event, ProcessingElement

class Click(Event):
    user: str
    number: int

class Digit(Event):
    digit: str

class Spread(ProcessingElement):
    clicks: int = 0

    def on_event(self, event: Click) -> None:
        self.clicks += 1
        self.app.streams["digits"].put(Digit(str(event.number % 10)))

class Count(ProcessingElement):
    clicks: int = 0

    def on_event(self, event: Digit) -> None:
        self.clicks += 1

class Clicks(App):
    def on_init(self) -> None:
        self.create_stream("digits", self.create_pe(Count), key="digit")
        self.create_input_stream("clicks", self.create_pe(Spread), key="user", system="log")

app = Clicks("counting")
"""


@pytest.mark.long
@pytest.mark.parametrize("damage", ["the newest", "its folder is gone"])
async def test_a_task_whose_events_others_have_is_not_set_back_alone(
    tmp_path: Path, damage: str
) -> None:
    async with bench(tmp_path, key="user") as it:
        arguments = counting(it)
        (tmp_path / "elements_app.py").write_text(HOPS)
        for total in (2000, 4000):
            async with s4_process(*arguments, cwd=tmp_path) as process:
                await append_by_key(it.log, total - 2000, total)
                await until(lambda: done(it) == total)  # noqa: B023 - it is this turn's
                process.signal(signal.SIGTERM)
                assert await process.wait() == 0
        lost = folders(it)[1]
        if damage == "the newest":
            (lost / str(epochs.epochs_of(lost)[0]) / "CURRENT").unlink()
        else:
            shutil.rmtree(lost)
        for _ in range(2):  # and not at the next start either
            async with s4_process(*arguments, cwd=tmp_path, ready=False) as process:
                assert await process.wait() == 1
            assert "task 'Partition 1' has lost commits" in process.errors
            assert "or remove it to begin anew" in process.errors
            assert "Traceback" not in process.errors
        shutil.rmtree(tmp_path / "state" / "default" / "counting")
        async with s4_process(*arguments, cwd=tmp_path) as process:
            await until(lambda: done(it) == 4000)
            process.signal(signal.SIGTERM)
            assert await process.wait() == 0
        found = saved_instances(tmp_path / "state" / "default" / "counting")
        assert sum(found[str(digit)]["clicks"] for digit in range(10)) == 4000
        assert sum(found[f"user-{n}"]["clicks"] for n in range(USERS)) == 4000


# -- set-up ---------------------------------------------------------------------------------------


def folders(it: Bench) -> list[Path]:
    """Those of the tasks."""
    return sorted((it.folder / "state" / "default" / "counting" / "tasks").iterdir())


def done(it: Bench) -> int:
    return sum(it.offsets("counting").values())


async def all_is_counted(it: Bench, flow: Flow, process: NodeProcess) -> None:
    """Let it end, and look what was counted."""
    await flow.end()
    await until(lambda: done(it) == flow.total, "all is committed")
    process.signal(signal.SIGTERM)
    assert await process.wait() == 0
    expected = Counter(f"user-{n % USERS}" for n in range(flow.total))
    found = saved_instances(it.folder / "state" / "default" / "counting")
    assert {key: each["clicks"] for key, each in found.items()} == expected
    assert sum(each["wrong"] for each in found.values()) == 0


async def committing(it: Bench, more: int = 400) -> None:
    before = done(it)
    await until(lambda: done(it) >= before + more, "it commits")
