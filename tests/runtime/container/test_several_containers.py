"""Several containers share an app: who owns what, and what goes from one to another."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from harness import ANY_PORT, free_port, metric, plain_errors, proxy, until
from msgspec import structs
from several_containers import USERS, CountWords, Nodes, Split, Word, nodes, words
from shared_apps import Click, Count, ForwardingApp, Ignore, OnePE, handling

from s4node import (
    AdapterApp,
    App,
    Client,
    Config,
    Container,
    Event,
    OutputStream,
    ProcessingElement,
    Stream,
)
from s4node.cluster.coordination.stream_directory import Consumer
from s4node.cluster.node.redirector import Redirector
from s4node.errors import ConnectionRefused, StageBroken
from s4node.events.schema import JsonText
from s4node.net.ingress import connection
from s4node.stages.stage import Stage


async def test_partitions_are_shared_out_evenly_and_each_event_goes_to_its_owner(
    tmp_path: Path,
) -> None:
    async with nodes(tmp_path, clicks, 3) as (all_nodes, _):
        owned = [len(container.tasks) for container in all_nodes.containers.values()]
        assert sorted(owned) == [2, 3, 3]
        async with Client(all_nodes.containers["n1"].address) as client:
            stream = await client.stream("clicks")
            await stream.send_many([Click(user) for user in USERS * 50])
            assert await stream.flush() == []
        assert all_nodes.state("Count") == dict.fromkeys(USERS, 50)
        assert all(container.processed for container in all_nodes.containers.values())


async def test_more_nodes_than_partitions_leave_spares_which_know_the_owners(
    tmp_path: Path,
) -> None:
    async with nodes(tmp_path, clicks, 3, partitions=2) as (all_nodes, _):
        owned = {name: len(c.tasks) for name, c in all_nodes.containers.items()}
        assert sorted(owned.values()) == [0, 1, 1]
        (spare,) = [name for name, count in owned.items() if not count]
        async with Client(all_nodes.containers[spare].address) as client:
            stream = await client.stream("clicks")
            await stream.send_many([Click(user) for user in USERS])
            assert await stream.flush() == []
        assert all_nodes.state("Count") == dict.fromkeys(USERS, 1)


async def test_events_that_a_producer_cannot_route_are_forwarded_and_acknowledged(
    tmp_path: Path,
) -> None:
    async with nodes(tmp_path, clicks, 2) as (all_nodes, _):
        async with Client(all_nodes.containers["n0"].address) as client:
            stream = await client.stream("clicks")
            stream.read_as()
            texts = [JsonText(msgspec.json.encode({"user": user})) for user in USERS * 25]
            await stream.send_many(texts)
            await stream.send(JsonText(b'{"user": 7}'))
            (refused,) = await stream.flush()
        assert "user" in refused.reason
        assert all_nodes.state("Count") == dict.fromkeys(USERS, 25)


def live_metrics(container: Container, stream: str) -> tuple[float, float]:
    """How many events of a stream are reported as admitted, and as refused."""
    return (
        metric(container, "s4_input_admitted_total", stream=stream),
        metric(container, "s4_input_refused_total", stream=stream),
    )


async def test_an_event_that_is_passed_on_counts_as_admitted_where_its_partition_is(
    tmp_path: Path,
) -> None:
    async with nodes(tmp_path, clicks, 2) as (all_nodes, _):
        both = list(all_nodes.containers.values())
        async with Client(both[0].address) as client:
            stream = await client.stream("clicks")
            stream.read_as()
            texts = [JsonText(msgspec.json.encode({"user": user})) for user in USERS * 25]
            await stream.send_many(texts)
            assert await stream.flush() == []
        assert any(one.statistics().inputs["clicks"].forwarded for one in both)
        assert [live_metrics(one, "clicks") for one in both] == [(one.processed, 0) for one in both]
        assert [one.statistics().inputs["clicks"].admitted for one in both] == [
            one.processed for one in both
        ]
        assert sum(one.processed for one in both) == 1000


async def test_an_event_that_is_refused_where_it_was_passed_on_to_is_refused_once(
    tmp_path: Path,
) -> None:
    looks: Counter[str] = Counter()

    def key(click: Click) -> str:
        """Found by who passes an event on or takes it, and not by who is to process it."""
        looks[click.user] += 1
        if looks[click.user] > 1:
            raise ValueError("it has no key")
        return click.user

    async with nodes(tmp_path, lambda: OnePE(Count, key=key), 2) as (all_nodes, _):
        both = list(all_nodes.containers.values())
        async with Client(both[0].address) as client:
            stream = await client.stream("clicks")
            stream.read_as()
            await stream.send_many(
                [JsonText(msgspec.json.encode({"user": user})) for user in USERS]
            )
            assert len(await stream.flush()) == len(USERS)
        assert any(one.statistics().inputs["clicks"].forwarded for one in both)
        owned = [
            sum(one.partitioner.partition_of(user) in one.tasks for user in USERS) for one in both
        ]
        assert [live_metrics(one, "clicks") for one in both] == [(n, n) for n in owned]


async def test_an_event_that_is_too_large_to_be_passed_on_counts_where_it_came_to(
    tmp_path: Path,
) -> None:
    async with nodes(tmp_path, clicks, 2, **{"s4.sender.maxFrameBytes": "1024"}) as (all_nodes, _):
        both = list(all_nodes.containers.values())
        async with Client(both[0].address) as client:
            stream = await client.stream("clicks")
            stream.read_as()
            home = stream._outbox._only.partition  # type: ignore[union-attr]
            here, there = both if home in both[0].tasks else reversed(both)
            user = next(u for u in USERS if there.partitioner.partition_of(u) in there.tasks)
            for words in ("few", "many " * 1000):
                await stream.send(JsonText(msgspec.json.encode({"user": user, "text": words})))
            (refused,) = await stream.flush()
            assert "1024" in refused.reason
        assert live_metrics(here, "clicks") == (1, 1)
        assert live_metrics(there, "clicks") == (1, 0)
        assert all(len(container.tasks) == 4 for container in all_nodes.containers.values())


async def test_a_forwarded_event_is_done_by_itself_and_not_with_an_event_of_the_app(
    tmp_path: Path,
) -> None:
    begun: list[str] = []
    gates = {words: trio.Event() for words in ("own", "sent")}

    async def held(_pe: Any, click: Click) -> None:
        begun.append(click.text)
        await gates[click.text].wait()

    def echoing() -> App:
        app = OnePE(held)
        echo = handling(lambda _, click: app.input.put(Click(click.text, text="own")))
        app.create_input_stream("echoes", app.create_pe(echo), key="user")
        return app

    async with nodes(tmp_path, echoing, 2) as (all_nodes, _):
        both = list(all_nodes.containers.values())
        async with Client(both[0].address) as client:
            echoes, stream = await client.stream("echoes"), await client.stream("clicks")
            stream.read_as()
            home = stream._outbox._only.partition  # type: ignore[union-attr]
            here, there = both if home in both[0].tasks else reversed(both)
            near, far = (
                next(u for u in USERS if one.partitioner.partition_of(u) in one.tasks)
                for one in (here, there)
            )
            await echoes.send(Click(near, text=far))
            await until(lambda: begun == ["own"])
            await stream.send(JsonText(msgspec.json.encode({"user": far, "text": "sent"})))
            await until(lambda: there.statistics().inputs["clicks"].forwarded == 2)
            gates["own"].set()
            await until(lambda: begun == ["own", "sent"])
            with trio.move_on_after(0.5) as early:
                await stream.flush()
            assert early.cancelled_caught
            gates["sent"].set()
            assert await stream.flush() == []


async def test_forwarded_events_do_not_wait_for_the_delay_of_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "VERDICT_SECONDS", 60.0)
    settings = {"s4.stream.workQueueSize": "100"}
    async with nodes(tmp_path, clicks, 2, **settings) as (all_nodes, _):
        both = list(all_nodes.containers.values())
        async with Client(both[0].address) as client:
            stream = await client.stream("clicks")
            stream.read_as()
            texts = [JsonText(msgspec.json.encode({"user": user})) for user in USERS * 50]
            with trio.fail_after(30):
                await stream.send_many(texts)
                assert await stream.flush() == []
        assert sum(one.statistics().inputs["clicks"].forwarded for one in both) > 0
        assert all_nodes.state("Count") == dict.fromkeys(USERS, 50)


async def test_an_internal_stream_leads_to_the_owner_of_each_key(tmp_path: Path) -> None:
    async with nodes(tmp_path, words, 2) as (all_nodes, _):
        async with Client(all_nodes.containers["n0"].address) as client:
            stream = await client.stream("clicks")
            text = " ".join(f"word-{n}" for n in range(30))
            await stream.send_many([Click(user, text=text) for user in USERS * 10])
            await stream.flush()
        await until(lambda: sum(all_nodes.state("CountWords").values()) == 400 * 30)
        assert all_nodes.state("CountWords") == {f"word-{n}": 400 for n in range(30)}
        assert all(container.processed > 400 for container in all_nodes.containers.values())


NOBODY_TAKES = (
    "a node answers, but no node takes partition .* events have no verdict. "
    "Nothing answers at tcp://127.0.0.1:[0-9]+, where they are to go: if that node has ended, .* "
    "if it runs, set its s4.listener.advertise to a host, and a port, at which this machine reaches"
)


async def test_a_flush_says_which_partitions_nobody_takes_while_others_answer(
    tmp_path: Path,
) -> None:
    async with nodes(tmp_path, clicks, 2) as (all_nodes, _):
        session, all_nodes.scopes["n1"] = all_nodes.scopes["n1"], trio.CancelScope()
        async with Client(all_nodes.containers["n0"].address, timeout=1) as client:
            stream = await client.stream("clicks")
            await stream.send_many([Click(user) for user in USERS])
            assert await stream.flush() == []
            all_nodes.kill("n1")  # its session goes on, as that of a machine that is cut off
            await stream.send_many([Click(user) for user in USERS])
            with pytest.raises(StageBroken, match=NOBODY_TAKES):
                await stream.flush()
            session.cancel()
            await until(lambda: len(all_nodes.containers["n0"].tasks) == 8)
            assert await stream.flush() == []


class Patient(ProcessingElement):
    may_go: trio.Event
    n: int = 0

    async def on_event(self, event: Event) -> None:
        await self.may_go.wait()
        self.n += 1


@pytest.mark.parametrize("on_its_way", ["inside", "forwarded"])
async def test_a_container_that_takes_a_partition_over_processes_what_it_had_sent_to_the_dead_one(
    tmp_path: Path, on_its_way: str
) -> None:
    may_go = trio.Event()

    def patient() -> App:
        app = App("patient")
        last = app.create_pe(Patient)
        last.may_go = may_go
        if on_its_way == "forwarded":
            app.create_input_stream("clicks", last, key="user", types=Click)
            return app
        split = app.create_pe(Split)
        app.create_input_stream("clicks", split, key="user")
        split.words = app.create_stream("words", last, key="word", types=Word)
        return app

    async with nodes(tmp_path, patient, 2) as (all_nodes, _):
        async with Client(all_nodes.containers["n0"].address, timeout=20) as client:
            stream = await client.stream("clicks")
            if on_its_way == "forwarded":  # from where all texts of the producer go
                stream.read_as()
                home = stream._outbox._only.partition  # type: ignore[union-attr]
            else:
                home = 0
            (staying,) = [one for one in all_nodes.containers.values() if home in one.tasks]
            (dying,) = [one for one in all_nodes.containers.values() if home not in one.tasks]
            there = [user for user in USERS if dying.partitioner.partition_of(user) in dying.tasks]
            outputs, name = staying.parts.outputs, "words" if on_its_way == "inside" else "clicks"
            channels = outputs.to_members if on_its_way == "inside" else outputs._forwarding
            way = channels[name].outbox  # type: ignore[attr-defined]
            if on_its_way == "forwarded":
                texts = [JsonText(msgspec.json.encode({"user": user})) for user in USERS * 20]
                await stream.send_many(texts)
            else:
                here = next(user for user in USERS if user not in there)
                # words of its own would go before the next click, and wait
                await stream.send_many([Click(here, text=" ".join(there))] * 20)
                assert await stream.flush() == []
            await until(lambda: way.in_flight == 20 * len(there))
            all_nodes.kill(dying.node)
            await until(lambda: len(staying.tasks) == 8)
            may_go.set()
            assert await stream.flush() == []
            await until(lambda: not outputs.unsettled(name))
        counted = there if on_its_way == "inside" else USERS
        assert all_nodes.state("Patient") == dict.fromkeys(counted, 20)


async def test_a_member_takes_events_once_the_singletons_of_its_partitions_are_made(
    tmp_path: Path,
) -> None:
    story: list[str] = []
    begun, may_go = trio.Event(), trio.Event()

    class Only(ProcessingElement):
        async def on_create(self) -> None:
            begun.set()
            await may_go.wait()
            story.append("made")

        def on_event(self, click: Click) -> None:
            story.append(click.user)

    def slow() -> App:
        app = OnePE(Only, key=None)
        app.pe.set_singleton()
        return app

    starting = Nodes(tmp_path, slow, "slow", {"s4.cluster.partitions": "1"})
    with plain_errors(), trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            node = await starting.start("n0", nursery, ready=False)
            await begun.wait()
            async with Client(node.address) as client:
                stream = await client.stream("clicks")
                await stream.send(Click("ann"))
                assert node.tasks.keys() == {0}
                assert not node.ports["clicks"].admission.lanes
                may_go.set()
                assert await stream.flush() == []
            node.stop()
    assert story == ["made", "ann"]


@pytest.mark.parametrize("partitions", [1, 8])
async def test_a_stream_inside_the_app_is_closed_to_the_outside(
    tmp_path: Path, partitions: int
) -> None:
    async with (
        nodes(tmp_path, words, 2, partitions=partitions) as (all_nodes, _),
        Client(all_nodes.containers["n0"].address) as client,
    ):
        with pytest.raises(ConnectionRefused, match="has no input stream 'words'"):
            await client.stream("words")


def first() -> App:
    return ForwardingApp("raw", "clicks", key="user")


class Feed(AdapterApp):
    output_stream = "clicks"
    remote_stream_key_finder = "user"
    remote_stream_types = (Click,)
    sent = 0

    def on_start(self) -> None:
        self.start_soon(self.feed)

    async def feed(self) -> None:
        for user in USERS * 20:
            await self.remote_stream.send(Click(user))
            Feed.sent += 1


@pytest.mark.long
async def test_no_stage_of_a_consumer_that_has_gone_is_left(tmp_path: Path) -> None:
    def stages() -> list[Stage]:
        """Those of the senders in this process, whoever has them."""
        gc.collect()
        found = [each for each in gc.get_objects() if isinstance(each, Stage)]
        return [each for each in found if each.settings.stage == "remoteSender"]

    others = stages()  # of other tests, held so that they stay as many
    async with nodes(tmp_path, first, 1, app="first") as (relay, _):
        outputs = relay.containers["n0"].parts.outputs
        for _ in range(5):
            outputs.consumed("clicks", {"east.last": Consumer("east", "last", 0, (), (), ())})
            assert len(stages()) == len(others) + 1
            outputs.consumed("clicks", {})
            assert len(stages()) == len(others)


async def test_an_adapter_waits_for_the_first_app_that_consumes_its_stream(tmp_path: Path) -> None:
    Feed.sent = 0
    async with nodes(tmp_path, Feed, 1, partitions=1, app="feed") as (feed, _):
        waiting = feed.containers["n0"].carriers["clicks"]._lot
        await until(lambda: waiting.statistics().tasks_waiting == 1)
        assert Feed.sent == 0
        async with nodes(tmp_path, clicks, 2, app="late") as (late, _):
            await until(lambda: late.state("Count") == dict.fromkeys(USERS, 20))


async def test_an_app_that_is_away_gets_what_was_sent_meanwhile_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with nodes(tmp_path, first, 1, app="first") as (relay, _):
        async with nodes(tmp_path, clicks, 1, app="away"):
            await until(lambda: relay.containers["n0"].carriers["clicks"].channels)
        async with Client(relay.containers["n0"].address) as client:
            stream = await client.stream("raw")
            await stream.send_many([Click(user) for user in USERS])
            assert await stream.flush() == []
            async with nodes(tmp_path, clicks, 2, app="away") as (back, _):
                await until(lambda: back.state("Count") == dict.fromkeys(USERS, 1))


async def test_a_node_s_redirector_leads_to_the_containers_that_take_the_stream(
    tmp_path: Path,
) -> None:
    async with nodes(tmp_path, clicks, 2) as (all_nodes, nursery):
        addresses = [container.address for container in all_nodes.containers.values()]
        redirector = Redirector(
            Config.from_values({"s4.listener.address": ANY_PORT}),
            "redirector",
            lambda stream, reads: addresses if stream == "clicks" else f"no app takes {stream!r}",
        )
        await nursery.start(redirector.run)
        async with Client(redirector.address) as client:
            with pytest.raises(ConnectionRefused, match="no app takes 'taps'"):
                await client.stream("taps")
            stream = await client.stream("clicks")
            await stream.send_many([Click(user) for user in USERS])
            assert await stream.flush() == []
        assert all_nodes.state("Count") == dict.fromkeys(USERS, 1)
        nursery.cancel_scope.cancel()


class SlowSplit(ProcessingElement):
    words: Stream

    async def on_event(self, click: Click) -> None:
        await trio.sleep(0.001)
        for word in click.text.split():
            self.words.put(Word(word))


@pytest.mark.long
@pytest.mark.parametrize("texts", [False, True])
async def test_nodes_that_stop_together_process_what_they_send_each_other(
    tmp_path: Path, texts: bool
) -> None:
    def slow() -> App:
        app = App("slow")
        split = app.create_pe(SlowSplit)
        app.create_input_stream("clicks", split, key="user", types=Click)
        split.words = app.create_stream("words", app.create_pe(CountWords), key="word", types=Word)
        return app

    async with nodes(tmp_path, slow, 3, **{"task.shutdown.ms": "600000"}) as (all_nodes, _):
        containers = list(all_nodes.containers.values())
        async with Client(containers[0].address) as client:
            stream = await client.stream("clicks")
            clicks: list[Any] = [Click(user, text="a b c d e f g h") for user in USERS * 10]
            if texts:
                stream.read_as()
                clicks = [JsonText(msgspec.json.encode(structs.asdict(one))) for one in clicks]
            await stream.send_many(clicks)
            await until(lambda: all(container.processed for container in containers))
            for container in containers:
                container.stop()
            scopes = [all_nodes.scopes[name] for name in all_nodes.containers]
            await until(lambda: all(scope.cancel_called for scope in scopes))
            client.abandon()
        admitted = stream.counts["admitted"]
        assert admitted
        assert sum(all_nodes.state("CountWords").values()) == 8 * admitted


class Greet(Ignore):
    out: OutputStream

    def on_create(self) -> None:
        self.out.put(Click("hello"))


async def test_the_first_events_of_a_container_go_to_existing_consumers(
    tmp_path: Path,
) -> None:
    def greeter() -> App:
        app = OnePE(Greet, "raw", key=None)
        app.pe.set_singleton()
        app.pe.out = app.create_output_stream("clicks", key="user", types=Click)
        return app

    async with (
        nodes(tmp_path, clicks, 1, app="last") as (lasts, _),
        nodes(tmp_path, greeter, 1, partitions=4, app="greeter"),
    ):
        await until(lambda: lasts.state("Count") == {"hello": 4})


async def test_a_node_is_found_by_its_own_name_when_the_one_it_was_dialled_by_leads_nowhere(
    tmp_path: Path,
) -> None:
    async with (
        nodes(tmp_path, clicks, 1) as (all_nodes, _),
        proxy(all_nodes.containers["n0"].address) as between,
        Client(between.address, timeout=20) as client,
    ):
        stream = await client.stream("clicks")
        await stream.send_many([Click(user) for user in USERS])
        assert await stream.flush() == []
        between.redirect(f"tcp://127.0.0.1:{free_port()}")
        between.cut()
        await stream.send_many([Click(user) for user in USERS])
        assert await stream.flush() == []
        assert all_nodes.state("Count") == dict.fromkeys(USERS, 2)


# -- set-up ---------------------------------------------------------------------------------------


def clicks() -> App:
    return OnePE(Count)
