"""Dead letters of a live stream that are sent again: once for good, many at a time, in order."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import trio
from harness import run_s4, s4_process
from log_bench import separate_log

from s4node import Client, Event
from s4node.events.keys import crc32m
from s4node.state import epochs
from s4node.state.browse import StateReader
from s4node.state.task_state import TaskState

pytestmark = pytest.mark.long


@pytest.mark.short
async def test_an_event_is_sent_again_once_even_when_its_producer_is_long_forgotten(
    tmp_path: Path,
) -> None:
    (tmp_path / "app.py").write_text(APP)
    async with separate_log(tmp_path) as log:
        await log.create("dead", 2)
        words = settings(
            tmp_path, log.address, **{"task.commit.ms": "20", "s4.producer.expiry": "100"}
        )
        async with s4_process("run", "app.py", *words, cwd=tmp_path) as process:

            async def s4(*command: str, status: int = 0) -> str:
                to = ("--to", process.address) if command[1] == "replay" else ()
                done = await run_s4(*command, *to, *words, cwd=tmp_path)
                assert done.returncode == status, done.stderr
                return done.stdout + done.stderr

            await send(process.address, [Click("joe", 0), Click("joe", 1)])
            told = await s4("dead-letter", "replay", "counts", status=1)
            assert "0:0: its event is refused again: ValueError: the service is away" in told
            assert "1 letter: 1 refused again" in told
            (tmp_path / "mended").touch()
            told = await s4("dead-letter", "replay", "counts")
            assert "2 letters: 1 sent, 1 sent before" in told  # the new letter
            while "replay of" in await s4("state", "tasks", "counts"):
                await trio.lowlevel.checkpoint()
            assert "2 letters: 2 sent before" in await s4("dead-letter", "replay", "counts")
            told = await s4("dead-letter", "list", "counts")
            assert "2  live.clicks: ValueError in Count, the first is 0:0; 2 sent again" in told
            [group] = json.loads(await s4("dead-letter", "list", "counts", "--json"))
            assert (group["letters"], group["sent"]) == (2, 2)
            assert "is away  (sent again)" in await s4("dead-letter", "list", "counts", "--all")
        assert counted(tmp_path) == {"joe": [0, 1]}


async def test_a_replay_that_was_killed_is_known_as_long_as_its_dead_letter_is_there(
    tmp_path: Path,
) -> None:
    (tmp_path / "app.py").write_text(APP)
    async with separate_log(tmp_path) as log:
        await log.create("dead", 2)
        words = settings(
            tmp_path, log.address, **{"task.commit.ms": "20", "s4.producer.expiry": "100"}
        )
        async with s4_process("run", "app.py", *words, cwd=tmp_path) as process:
            await send(process.address, [Click("joe", 0), Click("joe", 1)])
            (tmp_path / "mended").touch()
            replay = ("dead-letter", "replay", "counts", "--to", process.address, *words)
            done = await run_s4(*replay, cwd=tmp_path, fault="replay.sent")
            assert done.returncode == -signal.SIGKILL, done.stderr
            async with Client(process.address) as client:  # who has no id is forgotten by now
                await (await client.stream("clicks")).send(Click("ann", 2))
                await client.flush()
                client.abandon()
            while (
                "from 'client-"
                in (await run_s4("state", "tasks", "counts", *words, cwd=tmp_path)).stdout
            ):
                await trio.lowlevel.checkpoint()
            done = await run_s4(*replay, cwd=tmp_path)
            assert "1 letter: 1 sent before" in done.stderr
        assert counted(tmp_path) == {"joe": [0, 1], "ann": [2]}


async def test_many_events_are_sent_again_in_a_few_commits_and_those_of_a_key_in_order(
    tmp_path: Path,
) -> None:
    (tmp_path / "app.py").write_text(APP)
    async with separate_log(tmp_path) as log:
        await log.create("dead", 2)
        words = settings(tmp_path, log.address, **{"task.commit.ms": "1000"})
        async with s4_process("run", "app.py", *words, cwd=tmp_path) as process:
            users = [f"user-{n}" for n in range(40)]
            await send(process.address, [Click(user, n) for n in (1, 2) for user in users])
            (tmp_path / "mended").touch()
            with trio.fail_after(30):  # a commit for each would take more than twice as long
                done = await run_s4(
                    "dead-letter", "replay", "counts", "--to", process.address, *words, cwd=tmp_path
                )
            assert "80 letters: 80 sent" in done.stderr
            assert counted(tmp_path) == {user: [1, 2] for user in users}


# -- set-up ---------------------------------------------------------------------------------------


APP = """
import os
from s4node import App, Event, ProcessingElement

class Click(Event):
    user: str
    number: int

class Count(ProcessingElement):
    numbers: list[int] = []

    def on_event(self, event: Click) -> None:
        if event.number and not os.path.exists("mended"):
            raise ValueError("the service is away")
        self.numbers.append(event.number)

app = App("counts")
app.create_input_stream("clicks", app.create_pe(Count), key="user")
"""


class Click(Event):
    user: str
    number: int


def settings(folder: Path, log: str, **more: str) -> list[str]:
    found = {
        "systems.log.address": log,
        "s4.state.folder": str(folder / "state"),
        "s4.listener.address": "tcp://127.0.0.1:0",
        "s4.stream.clicks.grade": "durable",
        "s4.stream.clicks.onError": "dead-letter",
        "task.dead.letter.stream": "log.dead",
        **more,
    }
    return [word for name, value in found.items() for word in ("-p", f"{name}={value}")]


async def send(address: str, clicks: list[Click]) -> None:
    async with Client(address) as client:
        stream = await client.stream("clicks")
        await stream.send_many(clicks)
        await stream.flush()


def counted(folder: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for task in (folder / "state" / "default" / "counts").glob("tasks/*"):
        with epochs.copied(task) as database:
            rows = StateReader(TaskState(database, crc32m)).instances("Count")
            found |= {key: value["numbers"] for key, value in rows}
    return found
