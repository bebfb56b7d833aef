"""Savepoints of apps that run in real processes: taken amid events, gone back to, and damaged."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import ANY_PORT, NodeProcess, node_process, s4_process, until, until_told
from lost_sessions import end_sessions
from saved_state import waiting_in_savepoint

from s4node import Client, Event
from s4node.events.keys import crc32m
from s4node.state import epochs
from s4node.state.browse import StateReader
from s4node.state.remote_job import RemoteJob
from s4node.state.task_state import TaskState

pytestmark = [pytest.mark.slow, pytest.mark.long]


async def test_a_savepoint_taken_amid_events_is_gone_back_to_and_its_outputs_come_again(
    it: Shop,
) -> None:
    async with it.totals() as totals:
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            sent = 0
            async with trio.open_nursery() as nursery:

                async def keep_sending() -> None:
                    nonlocal sent
                    while True:
                        with trio.CancelScope(shield=True):
                            await it.send(client, sent, sent + 100)
                        sent += 100
                        await trio.lowlevel.checkpoint()

                nursery.start_soon(keep_sending)
                await it.s4("savepoint", "take", "counter", "--name", "amid")
                nursery.cancel_scope.cancel()
            await it.send(client, sent, sent + 1000)
            sent += 1000
            await it.until_total(sent)
        before = it.counts("counter")
        assert before == counts(range(sent))

        refused = await it.s4("run", "counter.py", "--from", "amid", *it.to(totals), ends=1)
        assert "add --outputs again --accept-loss" in refused.errors
        again = int(_number_before(" events come again", refused.errors))
        lost = int(_number_before(" events that were acknowledged since", refused.errors))
        assert again >= 1000
        assert lost >= 1000

        more = ("--from", "amid", "--outputs", "again", "--accept-loss")
        async with it.counter(totals, *more) as counter:
            async with Client(counter.address, producer="p") as client:
                await it.send(client, 0, sent, again=True)  # which fills the gap
            await it.until_total(sent + again)
        assert it.counts("counter") == before


async def test_a_producer_goes_on_after_a_loss_that_was_accepted(it: Shop) -> None:
    async with it.totals() as totals:
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            await it.send(client, 0, 1000)
            await it.until_total(1000)
            await it.s4("savepoint", "take", "counter", "--name", "early")
            await it.send(client, 1000, 1500)
            await it.until_total(1500)
            await counter.kill()
            more = ("--from", "early", "--outputs", "again", "--accept-loss")
            async with it.counter(totals, *more, listen=counter.address):
                await it.send(client, 1500, 2000)  # the same program, which has not noticed
                await it.until_total(2000)
        assert it.counts("counter") == counts([*range(1000), *range(1500, 2000)])


async def test_an_app_goes_back_again_and_again_and_all_that_was_sent_since_is_counted(
    it: Shop,
) -> None:
    async with it.totals() as totals:
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            await it.send(client, 0, 500)
            await it.until_total(500)
            await it.take_settled("first")
            await it.send(client, 500, 900)
            await it.until_total(900)
        for name, again, end, total in (
            ("first", 400, 700, 1100),
            ("first", 400 + 200, 600, 1200),
            ("at-1100", 100, 800, 1300),  # of a time that was given up
        ):
            refused = await it.s4("run", "counter.py", "--from", name, *it.to(totals), ends=1)
            assert int(_number_before(" events come again", refused.errors)) == again
            more = ("--from", name, "--outputs", "again", "--accept-loss")
            async with it.counter(totals, *more) as counter:
                async with Client(counter.address, producer="p") as client:
                    await it.send(client, 0, end, again=True)
                await it.until_total(total)
                await it.take_settled(f"at-{total}")
            assert it.counts("counter") == counts(range(end))


@pytest.mark.parametrize("step", ["restore.claimed:1", "restore.done"])
async def test_a_restore_that_dies_forgets_nothing_that_was_sent(it: Shop, step: str) -> None:
    async with it.totals() as totals:
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            await it.send(client, 0, 500)
            await it.s4("savepoint", "take", "counter", "--name", "one")
            await it.send(client, 500, 800)
            await it.until_total(800)
        back = ("run", "counter.py", "--from", "one", *it.to(totals))
        again = int(_number_before(" events come again", (await it.s4(*back, ends=1)).errors))
        assert again >= 300  # and what waited in the savepoint
        more = ("--outputs", "again", "--accept-loss")
        await it.s4(*back, *more, ends=-9, fault=step)
        refused = await it.s4(*back, ends=1)
        assert int(_number_before(" events come again", refused.errors)) == again
        async with it.counter(totals, "--from", "one", *more):
            await it.until_total(500 + again)


async def test_a_stopped_app_has_savepoints_too_and_one_file_takes_them_elsewhere(it: Shop) -> None:
    async with it.totals() as totals:
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            await it.send(client, 0, 600)
            await it.until_total(600)
        await it.s4("savepoint", "take", "counter", "--name", "stopped")
        await it.s4("savepoint", "export", "counter", "stopped", "stopped.tar")
        shown = json.loads((await it.s4("savepoint", "list", "counter", "--json")).stdout[-1])
        assert [each["name"] for each in shown] == ["stopped"]
        await it.s4("savepoint", "remove", "counter", "stopped")

        (it.folder / "elsewhere").mkdir()
        it.state = "elsewhere/state"
        more = ("--from", "stopped", "--outputs", "again", "--accept-loss")
        await it.s4("savepoint", "import", "counter.py", "stopped.tar")
        async with it.counter(totals, *more) as counter:
            assert it.counts("counter") == counts(range(600))
            async with Client(counter.address, producer="other") as client:
                await it.send(client, 600, 900)
                await it.until_total(900)
        assert it.counts("counter") == counts(range(900))


async def test_a_savepoint_of_state_at_a_url_is_gone_back_to_on_another_machine(it: Shop) -> None:
    it.url = f"file://{it.folder}/shipped"
    async with it.totals() as totals:
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            await it.send(client, 0, 600)
            await it.until_total(600)
            await it.s4("savepoint", "take", "counter", "--name", "one")
            await it.send(client, 600, 1000)
            await it.until_total(1000)
        assert not (it.job / "savepoints" / "one").exists()
        it.state = "elsewhere"  # nothing is there but what comes from the URL
        shown = json.loads((await it.s4("savepoint", "list", "counter", "--json")).stdout[-1])
        assert [each["name"] for each in shown] == ["one"]
        refused = await it.s4("run", "counter.py", "--from", "one", *it.to(totals), ends=1)
        again = int(_number_before(" events come again", refused.errors))
        assert again >= 400
        assert "clicks from 'p': 400 events that were acknowledged since are lost" in refused.errors
        more = ("--from", "one", "--outputs", "again", "--accept-loss")
        async with (
            it.counter(totals, *more) as counter,
            Client(counter.address, producer="p") as client,
        ):
            await it.send(client, 0, 1200, again=True)
            await it.until_total(1000 + again + 200)
        assert it.counts("counter") == counts(range(1200))
        it.state = (
            "state"  # here is what the first machine had, which is older than what is shipped
        )
        async with (
            it.counter(totals) as counter,
            Client(counter.address, producer="p") as client,
        ):
            await it.send(client, 0, 1300, again=True)
            await it.until_total(1000 + again + 300)
        assert it.counts("counter") == counts(range(1300))


async def test_a_savepoint_at_a_url_is_taken_of_a_stopped_app_exported_and_removed(
    it: Shop,
) -> None:
    it.url = f"file://{it.folder}/shipped"
    async with it.totals() as totals:
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            await it.send(client, 0, 300)
            await it.until_total(300)
        await it.s4("savepoint", "take", "counter", "--name", "one")
        await it.s4("savepoint", "export", "counter", "one", "one.tar")
        await it.s4("savepoint", "import", "counter", "one.tar", "--name", "two")
        await it.s4("savepoint", "remove", "counter", "one")
        assert "all files are whole" in "".join(
            (await it.s4("savepoint", "show", "counter", "two")).stdout
        )
        file = next(it.folder.glob("shipped/default/counter/savepoints/files/*/*/CURRENT"))
        file.write_bytes(b"?")
        damaged = await it.s4("savepoint", "show", "counter", "two", ends=1)
        assert "savepoint 'two' is damaged: file CURRENT of task" in damaged.errors
        await it.s4("savepoint", "remove", "counter", "two")
        assert list(it.folder.glob("shipped/default/counter/savepoints/files/*")) == []


async def test_a_savepoint_of_tasks_that_cannot_commit_says_why(it: Shop) -> None:
    it.url = (it.folder / "shipped").as_uri()
    async with it.totals() as totals, it.counter(totals) as counter:
        async with Client(counter.address, producer="p") as client:
            await it.send(client, 0, 100)
        tasks = it.folder / "shipped" / "default" / "counter" / "tasks"
        tasks.rename(tasks.with_name("away"))
        tasks.touch()
        failed = await it.s4("savepoint", "take", "counter", "--name", "one", ends=1)
        assert f"its commit could not be written: {it.url}/default/counter cannot be read or " in (
            failed.errors
        )
        tasks.unlink()
        tasks.with_name("away").rename(tasks)
        await it.s4("savepoint", "take", "counter", "--name", "two")


async def test_a_job_that_is_half_restored_does_not_start_until_it_is_restored(it: Shop) -> None:
    async with it.totals() as totals:
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            await it.send(client, 0, 500)
            await it.until_total(500)
            await it.s4("savepoint", "take", "counter", "--name", "one")
            await it.send(client, 500, 800)
            await it.until_total(800)
        more = ("--from", "one", "--outputs", "again", "--accept-loss")
        dead = ("run", "counter.py", *more, *it.to(totals))
        await it.s4(*dead, ends=-9, fault="restore.task:2")
        refused = await it.s4("run", "counter.py", *it.to(totals), ends=1)
        assert "start again with --from one" in refused.errors
        needed = await it.s4("savepoint", "remove", "counter", "one", ends=1)
        assert "start again with --from one" in needed.errors
        async with it.counter(totals, *more) as counter:
            async with Client(counter.address, producer="other") as client:
                await it.send(client, 500, 800)
            await it.until_total(800 + 300)
        assert it.counts("counter") == counts(range(800))


@pytest.mark.short
async def test_an_app_that_is_reset_begins_from_empty_state_and_the_same_programs_go_on(
    it: Shop,
) -> None:
    async with it.totals() as totals:
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            await it.send(client, 0, 500)
            running = await it.s4("state", "reset", "counter", "--accept-loss", ends=1)
            assert "is running" in running.errors
            await it.until_total(500)
            await counter.kill()
            refused = await it.s4("state", "reset", "counter", ends=1)
            assert "done to end: 500 events come again" in refused.errors
            assert "clicks from 'p': 500 events that were acknowledged since" in refused.errors
            assert "add --outputs again --accept-loss" in refused.errors
            assert it.counts("counter") == counts(range(500))
            more = ("state", "reset", "counter", "--outputs", "again", "--accept-loss")
            await it.s4(*more, ends=-9, fault="restore.task:2")
            half = await it.s4("run", "counter.py", *it.to(totals), ends=1)
            assert "s4 state reset was cut short; run it again" in half.errors
            counted = await it.s4(*more)
            assert "done to end: 500 events come again" in counted.errors
            assert it.counts("counter") == {}
            async with it.counter(totals, listen=counter.address):
                await it.send(client, 500, 700)  # the same program, which has not noticed
                await it.until_total(700)
        assert it.counts("counter") == counts(range(500, 700))


async def test_a_producer_that_began_after_the_savepoint_goes_on_too(it: Shop) -> None:
    async with it.totals() as totals:
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            await it.s4("savepoint", "take", "counter", "--name", "early")
            await it.send(client, 0, 300)
            await it.until_total(300)
            await counter.kill()
            more = ("--from", "early", "--outputs", "again", "--accept-loss")
            async with it.counter(totals, *more, listen=counter.address):
                await it.send(client, 300, 500)
                await it.until_total(500)
        assert it.counts("counter") == counts(range(300, 500))


async def test_a_restore_after_one_that_was_cut_short_counts_all_tasks(it: Shop) -> None:
    async with it.totals() as totals:
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            await it.send(client, 0, 100)
            await it.s4("savepoint", "take", "counter", "--name", "one")
            await it.send(client, 100, 500)
            await it.until_total(500)
        to = ("run", "counter.py", *it.to(totals), "--from", "one")
        first = await it.s4(*to, ends=1)
        both = ("--outputs", "again", "--accept-loss")
        await it.s4(*to, *both, ends=-9, fault="restore.task:4")
        second = await it.s4(*to, ends=1)
        assert int(_number_before(" events come again", first.errors)) >= 400
        assert second.errors == first.errors


async def test_what_waited_in_a_savepoint_comes_in_the_new_life_or_under_its_numbers(
    it: Shop,
) -> None:
    async with it.totals() as totals:
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            await it.send(client, 0, 200)
            await it.until_total(200)
        await totals.kill()
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            await it.send(client, 200, 300)  # which wait for their consumer
            await it.s4("savepoint", "take", "counter", "--name", "one")
            await it.send(client, 300, 400)
        async with it.counter(
            totals, "--from", "one", "--outputs", "again", "--accept-loss"
        ) as counter:
            assert "done to end: 200 events come again" in counter.errors
            await it.s4("savepoint", "take", "counter", "--name", "two")
            async with it.totals(listen=totals.address):
                await it.until_total(300)
        refused = await it.s4("run", "counter.py", "--from", "two", *it.to(totals), ends=1)
        assert "done to end: 100 events come again" in refused.errors
        assert "to go back all the same add --outputs again" in refused.errors
        assert "--accept-loss" not in refused.errors
        async with it.counter(totals):
            await it.s4("savepoint", "take", "counter", "--name", "three")
        async with (
            it.totals(listen=totals.address),
            it.counter(totals, "--from", "three") as counter,
            Client(counter.address, producer="p") as client,
        ):
            await it.send(client, 0, 500, again=True)
            await it.until_total(500)
        assert it.counts("counter") == counts(range(500))


async def test_bad_savepoints_are_named_and_refused_and_the_job_stays_as_it_was(it: Shop) -> None:
    async with it.totals() as totals:
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            await it.send(client, 0, 300)
            await it.s4("savepoint", "take", "counter", "--name", "one")
            taken = await it.s4("savepoint", "take", "counter", "--name", "one", ends=1)
            assert "has a savepoint 'one' already" in taken.errors
            odd = await it.s4("savepoint", "take", "counter", "--name", "../one", ends=2)
            assert "cannot be the name of a savepoint" in odd.errors
            running = await it.s4("run", "counter.py", "--from", "one", *it.to(totals), ends=1)
            assert "is running" in running.errors
            await it.until_total(300)
        unknown = await it.s4("run", "counter.py", "--from", "nix", *it.to(totals), ends=1)
        assert "there is no savepoint 'nix'" in unknown.errors
        empty = await it.s4("run", "counter.py", "--from", "", *it.to(totals), ends=2)
        assert "'' cannot be the name of a savepoint" in empty.errors
        table = next((it.job / "savepoints" / "one").glob("*/*.sst"))
        data = table.read_bytes()
        table.unlink()  # it has two names, and the job goes on with the other
        missing = await it.s4("run", "counter.py", "--from", "one", *it.to(totals), ends=1)
        assert "is damaged" in missing.errors
        assert "it is missing" in missing.errors
        table.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        damaged = await it.s4("savepoint", "show", "counter", "one", ends=1)
        assert "its content is not what was saved" in damaged.errors
        manifest = it.job / "savepoints" / "one" / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"format":1', '"format":99'))
        newer = await it.s4("run", "counter.py", "--from", "one", *it.to(totals), ends=1)
        assert "has the format 99" in newer.errors
        async with it.counter(totals):
            assert it.counts("counter") == counts(range(300))


async def test_a_savepoint_that_does_not_fit_what_is_to_run_is_refused_before_anything_changes(
    it: Shop,
) -> None:
    async with it.totals() as totals:
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            await it.send(client, 0, 100)
            await it.s4("savepoint", "take", "counter", "--name", "one")
            await it.send(client, 100, 300)
            await it.until_total(300)
        back = ("--from", "one", "--outputs", "again", "--accept-loss")
        run = ("run", "counter.py", *back, *it.to(totals))
        hasher = await it.s4(*run, "-p", "s4.hasher=s4", ends=1)
        assert "the savepoint 'one' does not fit this job" in hasher.errors
        fewer = await it.s4(*run, "--partitions", "3", ends=1)
        assert "it had 4 tasks and would have 3" in fewer.errors
        source = it.folder / "counter.py"
        source.write_text(COUNTER.replace("Spread", "Scatter"))
        gone = await it.s4(*run, ends=1)
        assert "state that this version of app 'counter' has no place for: pe Spread" in gone.errors
        source.write_text(COUNTER)
        await it.s4("savepoint", "export", "counter", "one", "one.tar")
        other = await it.s4("savepoint", "import", "totals.py", "one.tar", ends=1)
        assert (
            "savepoint 'one' is of app 'counter', and cannot be used for 'totals'" in other.errors
        )
        cut = it.folder / "cut.tar"
        cut.write_bytes((it.folder / "one.tar").read_bytes()[:-40_000])
        half = await it.s4("savepoint", "import", "counter", "cut.tar", "--name", "two", ends=1)
        assert "cut.tar is not what s4 savepoint export has written, or is cut" in half.errors
        copied = it.job / "savepoints" / "copied"
        shutil.copytree(it.job / "savepoints" / "one", copied)
        shown = await it.s4("savepoint", "show", "counter", "copied")
        assert shown.stdout[0].startswith("copied of counter: ")
        (copied / "manifest.json").unlink()
        half = await it.s4("run", "counter.py", "--from", "copied", *it.to(totals), ends=1)
        assert "savepoint 'copied' in" in half.errors
        assert "its manifest is missing, as if it was copied in part" in half.errors
        listed = await it.s4("savepoint", "list", "counter", ends=1)
        assert listed.stdout[0].startswith("one: ")
        assert "its manifest is missing" in listed.errors
        await it.s4("savepoint", "remove", "counter", "copied")
        assert [path.name for path in it.job.glob("savepoints/*")] == ["one"]
        async with it.counter(totals):
            assert it.counts("counter") == counts(range(300))


async def test_a_savepoint_that_finds_no_room_leaves_nothing_and_the_job_goes_on(
    it: Shop, small_disk: Path
) -> None:
    it.state = str(small_disk / "state")
    async with it.totals() as totals:
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            await it.send(client, 0, 300)
            await it.until_total(300)
            await it.s4("savepoint", "take", "counter", "--name", "one")
            ballast = small_disk / "ballast"
            fill(ballast)
            full = await it.s4(
                "savepoint", "take", "counter", "--name", "two", "--timeout", "5", ends=1
            )
            assert "No space left on device" in full.errors
            ballast.unlink()
            await it.send(client, 300, 400)
            await it.until_total(400)
        for left in (0, 50_000, 100_000):
            fill(ballast, left)
            stopped = await it.s4("savepoint", "take", "counter", "--name", "two", ends=1)
            assert re.search("[Nn]o space left|is full|free some space", stopped.errors)
        back = ("--from", "one", "--outputs", "again", "--accept-loss")
        fill(ballast)  # with a little room a first task might be restored
        restored = await it.s4("run", "counter.py", *back, *it.to(totals), ends=1)
        assert re.search("make room there|free some space", restored.errors)
        ballast.unlink()
        found = [path.name for path in it.job.glob("savepoints/*")]
        assert [name for name in found if name != ".restore"] == ["one"]
        assert it.counts("counter") == counts(range(400))
        async with it.counter(totals, *back):
            assert it.counts("counter") == counts(range(300))


async def test_a_timer_takes_savepoints_and_removes_those_that_are_too_many_or_too_old(
    it: Shop,
) -> None:
    async with it.totals() as totals, it.counter(totals):
        pass
    for name in ("one", "two", "three"):
        taken = await it.s4("savepoint", "take", "counter", "--name", name, "--json")
        row = json.loads(taken.stdout[0])
        assert (row["name"], len(row["tasks"])) == (name, 4)
        assert 0 < row["own_bytes"] <= row["bytes"]
    removed = await it.s4("savepoint", "remove", "counter", "--keep", "2", "--json")
    assert json.loads(removed.stdout[0]) == {"removed": ["one"]}
    removed = await it.s4("savepoint", "remove", "counter", "--older-than", "0.001", "--json")
    assert json.loads(removed.stdout[0]) == {"removed": ["two"]}  # the newest stays


async def test_a_command_that_is_interrupted_leaves_no_savepoint_and_the_next_is_taken(
    it: Shop,
) -> None:
    async with it.totals() as totals:
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            await it.send(client, 0, 300)
            counter.process.send_signal(signal.SIGSTOP)  # so that no cut is made
            words = ("savepoint", "take", "counter", "--name", "one", *it.place)
            async with s4_process(*words, cwd=it.folder, ready=False) as command:
                await until(lambda: any((it.job / "coordination").rglob("*")))
                command.process.send_signal(signal.SIGINT)
                assert await command.wait() == 130
            counter.process.send_signal(signal.SIGCONT)
            await it.s4("savepoint", "take", "counter", "--name", "one")
            await it.send(client, 300, 400)
            await it.until_total(400)
        assert [path.name for path in it.job.glob("savepoints/*")] == ["one"]


async def test_a_savepoint_whose_session_is_lost_is_taken_in_another_one(it: Shop) -> None:
    async with it.totals() as totals:
        async with it.counter(totals) as counter, Client(counter.address, producer="p") as client:
            await it.send(client, 0, 300)
            counter.process.send_signal(signal.SIGSTOP)  # so that no cut is made
            words = ("savepoint", "take", "counter", "--name", "one", *it.place)
            async with s4_process(*words, cwd=it.folder, ready=False) as command:
                name = "s4 savepoint take counter"
                await until(lambda: end_sessions(it.job / "coordination", name) == 1)
                counter.process.send_signal(signal.SIGCONT)
                assert await command.wait() == 0, command.errors
            assert "the savepoint of 'counter' goes on in another one" in command.errors
        await it.s4("savepoint", "show", "counter", "one")  # which checks its files
        assert [path.name for path in it.job.glob("savepoints/*")] == ["one"]


# -- set-up ---------------------------------------------------------------------------------------

COUNTER = """
from s4node import App, Event, ProcessingElement

class Click(Event):
    user: str
    number: int

class Digit(Event):
    digit: str
    number: int

class Spread(ProcessingElement):
    n: int = 0

    def on_event(self, event: Click) -> None:
        self.n += 1
        self.app.streams["digits"].put(Digit(str(event.number % 10), event.number))

class Count(ProcessingElement):
    n: int = 0

    def on_event(self, event: Digit) -> None:
        self.n += 1
        self.app.streams["done"].put(event)

app = App("counter")
app.create_output_stream("done", key="digit", types=Digit)
app.create_stream("digits", app.create_pe(Count), key="digit")
app.create_input_stream("clicks", app.create_pe(Spread), key="user")
"""

TOTALS = """
from s4node import App, Event, ProcessingElement

class Digit(Event):
    digit: str
    number: int

class Total(ProcessingElement):
    n: int = 0

    def on_event(self, event: Digit) -> None:
        self.n += 1

app = App("totals")
app.create_input_stream("done", app.create_pe(Total), key="digit")
"""


class Click(Event):
    user: str
    number: int


def fill(ballast: Path, left: int = 0) -> None:
    """Leave so many bytes on the disk of this file."""
    with ballast.open("wb", buffering=0) as file:
        with suppress(OSError):
            while True:
                file.write(bytes(4096))
        file.truncate(file.tell() - left)


def counts(numbers: Any) -> Counter[str]:
    """How often each digit was counted."""
    return Counter(str(number % 10) for number in numbers)


def _number_before(words: str, text: str) -> str:
    return text[: text.index(words)].split()[-1]


class Shop:
    """An app of four tasks that counts digits, and another that counts what it puts out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = "state"
        self.url = ""
        (folder / "counter.py").write_text(COUNTER)
        (folder / "totals.py").write_text(TOTALS)

    @property
    def job(self) -> Path:
        return self.folder / self.state / "default" / "counter"

    @asynccontextmanager
    async def totals(self, listen: str = ANY_PORT) -> AsyncIterator[NodeProcess]:
        settings = ("--partitions", "2", "-p", "s4.stream.done.grade=durable")
        place = ("-p", "s4.state.folder=totals", "-p", "s4.cluster.name=end")
        app = ("totals.py", *settings, *place)
        async with node_process(*app, cwd=self.folder, listen=listen) as node:
            yield node

    def to(self, totals: NodeProcess) -> tuple[str, ...]:
        return (
            *("--partitions", "4", "-p", "s4.stream.clicks.grade=durable"),
            *("-p", f"s4.cluster.end.address={totals.address}"),
            *("-p", "s4.stream.done.consumers=end"),
            *self.place,
        )

    @property
    def place(self) -> tuple[str, ...]:
        url = ("-p", f"s4.state.url={self.url}") if self.url else ()
        return ("-p", f"s4.state.folder={self.state}", *url)

    @asynccontextmanager
    async def counter(
        self,
        totals: NodeProcess,
        *more: str,
        listen: str = "tcp://127.0.0.1:0",
        fault: str = "",
    ) -> AsyncIterator[NodeProcess]:
        command = ("run", "counter.py", "--listen", listen, *more, *self.to(totals))
        async with s4_process(*command, cwd=self.folder, fault=fault) as node:
            yield node
            if node.process.returncode is None:
                node.process.terminate()
                await node.wait()

    async def s4(self, *words: str, ends: int | None = 0, fault: str = "") -> NodeProcess:
        """A command, whose exit status has to be this one."""
        place = () if words[0] == "run" else self.place
        async with s4_process(*words, *place, cwd=self.folder, ready=False, fault=fault) as command:
            with trio.fail_after(60):
                status = await command.wait()
            assert ends is None or status == ends, command.errors
        return command

    async def send(self, client: Client, first: int, end: int, *, again: bool = False) -> None:
        clicks = await client.stream("clicks", again=again)
        await clicks.send_many(Click(f"user-{n % 23}", n) for n in range(first, end))
        assert await clicks.flush() == []

    async def take_settled(self, name: str) -> None:
        """Take a savepoint, again until nothing in it waits for the verdict of the other app."""

        async def waiting() -> int:
            await self.s4("savepoint", "take", "counter", "--name", name)
            if found := waiting_in_savepoint(self.folder / self.state, name, "counter"):
                await self.s4("savepoint", "remove", "counter", name)
            return found

        await until_told(waiting, lambda found: not found, seconds=60)

    def counts(self, app: str) -> Counter[str]:
        pe, folder = ("Count", self.state) if app == "counter" else ("Total", "totals")
        cluster = "default" if app == "counter" else "end"
        found: Counter[str] = Counter()
        for task in sorted((self.folder / folder / cluster / app).glob("tasks/*")):
            shipped = None
            if self.url and app == "counter":
                remote_job = RemoteJob(self.url, Path(cluster) / app)
                shipped = remote_job.task(task.name)
            with epochs.copied(task, shipped) as database:
                reader = StateReader(TaskState(database, crc32m))
                for key, state in reader.instances(pe) if pe in reader.elements else ():
                    found[str(key)] += state["n"]
        return found

    async def until_total(self, events: int) -> None:
        """Wait until the other app has counted so many events, and no more."""

        async def total() -> int:
            return sum(self.counts("totals").values())

        assert await until_told(total, lambda found: found >= events, seconds=60) == events


@pytest.fixture
def it(tmp_path: Path) -> Shop:
    return Shop(tmp_path)
