"""Waits that once had no end: each must end by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
import trio.testing
from harness import running, until
from shared_apps import Ignore, NotingApp

from s4node import Client, Event
from s4node.runtime.loop.run_loop import RunLoop


async def test_senders_go_on_when_all_that_waited_before_them_had_no_key() -> None:
    async with (
        running(notes_app(), partitions=4) as node,
        Client(node.address, queue_size=8) as client,
    ):
        notes = await client.stream("notes")
        with trio.fail_after(10):
            for round_ in range(6):
                await notes.send_many([Note(None, n) for n in range(300)])
                await notes.send(Note("joe", round_))
            refused = await notes.flush()
    assert sum(each.count for each in refused) == 1800
    assert notes.counts["admitted"] == 6


async def test_what_a_singleton_puts_when_it_is_made_is_delivered_at_once() -> None:
    class Greet(Ignore):
        async def on_create(self) -> None:
            await trio.lowlevel.checkpoint()
            self.app.streams["inner"].put(Note("ann"))

    app = notes_app()
    app.create_stream("inner", app.pe, key="user")
    greet = app.create_pe(Greet)
    greet.set_singleton()
    app.create_input_stream("clicks", greet)
    async with running(app):
        await until(lambda: app.seen == [Note("ann")], seconds=5)


async def test_what_is_reported_after_the_turn_of_a_sleeping_loop_gets_another_turn() -> None:
    turns: list[int] = []
    told = False

    def after_turn() -> None:
        nonlocal told
        turns.append(loop.turns)
        if told:
            told = False
            loop.nudge()

    shell: Any = SimpleNamespace(after_turn=after_turn, commit=None)  # there are no tasks
    loop = RunLoop(max_events=1, max_seconds=1, shell=shell)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        await trio.testing.wait_all_tasks_blocked()
        told = True
        loop.take_turn()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert turns[-2:] == [turns[0] + 1, turns[0] + 2]


# -- set-up ---------------------------------------------------------------------------------------


class Note(Event):
    user: str | None
    n: int = 0


def notes_app() -> NotingApp:
    return NotingApp("notes", types=Note)
