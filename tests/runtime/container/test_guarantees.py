"""Promises of docs/semantics.md that no other test proves: real containers, real sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from harness import running, until
from several_containers import USERS, CountWords, Word, nodes, words
from shared_apps import Click, Ignore, NotingApp, OnePE, handling

from s4node import AdapterApp, App, Client, Stream

# -- event dispatch -------------------------------------------------------------------------------


async def test_events_within_the_process_are_handed_on_as_the_same_objects() -> None:
    put: dict[int, Click] = {}
    taken: dict[int, tuple[Click, int]] = {}

    def pass_on(_pe: Any, click: Click) -> None:
        put[click.n] = changed = Click(f"{click.user}-{click.n}", click.n)
        out.put(changed)

    def take(pe: Any, click: Click) -> None:
        taken[click.n] = click, pe.partition

    app = OnePE(pass_on, key=lambda click: "one")
    out = app.create_stream("next", app.create_pe(handling(take)), key="user")
    async with running(app, partitions=4) as node, Client(node.address) as client:
        clicks = await client.stream("clicks")
        await clicks.send_many([Click("ann", n) for n in range(100)])
        await until(lambda: len(taken) == 100)
    assert all(taken[n][0] is put[n] for n in range(100))
    assert {partition for _, partition in taken.values()} == {0, 1, 2, 3}


async def test_an_adapter_sets_its_key_finder_in_on_init_before_it_calls_super() -> None:
    class ByUser:
        def get(self, event: Click) -> list[str]:
            return [event.user]

    class Adapter(AdapterApp):
        output_stream = "clicks"

        def on_init(self) -> None:
            self.remote_stream_key_finder = ByUser()
            super().on_init()

        def on_start(self) -> None:
            self.start_soon(self.feed)

        async def feed(self) -> None:
            for n in range(400):
                await self.remote_stream.send(Click(USERS[n % 40], n))

    # no key here: it is the adapter's that counts
    app = NotingApp(key=None, note=lambda pe, click: (click.user, pe.partition))
    app.pe.set_singleton()
    async with running(app, partitions=4) as consumer:
        wiring = {"s4.stream.clicks.consumers": "c", "s4.cluster.c.address": consumer.address}
        async with running(Adapter(), wiring):
            await until(lambda: len(app.seen) == 400)
    homes = set(app.seen)  # each user has one
    assert sorted(user for user, _ in homes) == sorted(USERS)
    assert {partition for _, partition in homes} == {0, 1, 2, 3}


async def test_the_sender_to_other_nodes_throttles_at_its_rate_and_what_can_wait_waits(
    tmp_path: Path,
) -> None:
    settings = {"s4.sender.maxRate": "2000", "s4.sender.workQueueSize": "400"}
    async with nodes(tmp_path, words, 2, **settings) as (both, _):
        began = trio.current_time()
        async with Client(both.containers["n0"].address) as client:
            stream = await client.stream("clicks")
            text = " ".join(f"word-{n}" for n in range(100))
            await stream.send_many([Click(user, text=text) for user in USERS])
            assert await stream.flush() == []
        await until(lambda: sum(both.state("CountWords").values()) == 4000)
        taken = trio.current_time() - began
        senders = [
            stage
            for node in both.containers.values()
            for stage in node.statistics().stages
            if (stage.stage, stage.stream) == ("sender", "words")
        ]
    sent = [sender.admitted for sender in senders]
    assert [sender.shed for sender in senders] == [{}, {}]
    assert min(sent) > 500
    assert taken >= (max(sent) - 200) / 2000 * 0.9  # a tenth of a second's worth leaves at once


class Burst(Ignore):
    """Puts all of its words at once, by a timer."""

    app: Bursts
    copies: Stream
    done: bool = False

    def on_time(self) -> None:
        if not self.done:
            self.done = True
            for n in range(self.app.words):
                self.copies.put(Word(f"word-{n % 1000}"))


class Bursts(App):
    def __init__(self, words: int) -> None:
        super().__init__("bursts")
        self.words = words

    def on_init(self) -> None:
        burst = self.create_pe(Burst)
        burst.set_timer_interval(0.05)
        self.create_input_stream("clicks", burst, key="user")
        counting = self.create_pe(CountWords)
        burst.copies = self.create_stream("words", counting, key="word", types=Word)


@pytest.mark.parametrize(
    "settings", [{}, {"s4.sender.workQueueSize": "100"}, {"s4.sender.executor": "block"}]
)
async def test_events_that_a_timer_puts_for_other_nodes_wait_and_none_is_lost(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    async with nodes(tmp_path, lambda: Bursts(50_000), 2, **settings) as (both, _):
        async with Client(both.containers["n0"].address) as client:
            stream = await client.stream("clicks")
            await stream.send(Click("one"))
            assert await stream.flush() == []
        await until(lambda: sum(both.state("CountWords").values()) == 50_000)
        senders = [
            stage
            for node in both.containers.values()
            for stage in node.statistics().stages
            if (stage.stage, stage.stream) == ("sender", "words")
        ]
    assert both.state("CountWords") == {f"word-{n}": 50 for n in range(1000)}
    assert [sender.shed for sender in senders] == [{}, {}]
    assert max(sender.admitted for sender in senders) > 15_000


async def test_events_that_a_timer_puts_are_dropped_if_the_executor_drops(
    tmp_path: Path,
) -> None:
    settings = {"s4.sender.executor": "shed"}
    async with nodes(tmp_path, lambda: Bursts(50_000), 2, **settings) as (both, _):
        async with Client(both.containers["n0"].address) as client:
            stream = await client.stream("clicks")
            await stream.send(Click("one"))
            assert await stream.flush() == []

        def dropped() -> int:
            return sum(
                sum(stage.shed.values())
                for node in both.containers.values()
                for stage in node.statistics().stages
                if stage.stage == "sender"
            )

        await until(lambda: sum(both.state("CountWords").values()) + dropped() == 50_000)
        assert dropped() > 0


async def test_each_stage_has_the_executor_that_s4_gave_it(tmp_path: Path) -> None:
    def app() -> App:
        made = OnePE(Ignore)
        made.create_stream("inside", made.create_pe(Ignore), key="user")
        made.create_output_stream("onward", types=Click)
        return made

    async with running(OnePE(Ignore, "onward")) as last:
        wiring = {"s4.stream.onward.consumers": "e", "s4.cluster.e.address": last.address}
        async with nodes(tmp_path, app, 2, **wiring) as (both, _):
            stages = both.containers["n0"].statistics().stages
            executors = {stage.stage: stage.executor for stage in stages}
    assert executors == {
        "deserializer": "block",
        "stream": "block",
        "sender": "throttle",
        "remoteSender": "block",
    }
