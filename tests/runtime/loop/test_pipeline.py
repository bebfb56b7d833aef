"""Stages that block, shed or throttle, in running containers: overload, rates, and feedback."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.lowlevel
from harness import ANY_PORT, data_frame, raw_peer, running, until, until_still
from several_containers import nodes
from shared_apps import Click, ForwardingApp, HoldingApp, Ignore, NotingApp, OnePE, handling
from structlog.testing import capture_logs

from benchmarks.runner import resident_mb
from s4node import App, Client, Event, GenericEvent, ProcessingElement, Stream
from s4node.config.config import Config
from s4node.errors import GraphError, ProcessingError, SpillError
from s4node.events.event import EventBatch
from s4node.metrics.statistics import InputStatistics
from s4node.net.egress.spill import Spill
from s4node.net.egress.stream_types import StreamTypes
from s4node.net.wire import frame as wire
from s4node.runtime.container.container import Container
from s4node.runtime.loop.pipeline import Pipeline
from s4node.runtime.loop.spill_file import SpillFile
from s4node.stages.stage import StageStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


# --- shedding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["stream", "deserializer"])
async def test_a_shedding_input_drops_the_newest_counts_them_and_tells_their_sender(
    stage: str,
) -> None:
    app = HoldingApp()
    settings = {f"s4.{stage}.clicks.executor": "shed", f"s4.{stage}.workQueueSize": "100"}
    async with running(app, settings) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        with trio.fail_after(10):  # nobody waits for the handler
            for n in range(5000):
                await stream.send(Click("joe", n))
            client._emitter.hurry()
            await until(lambda: input_of(node, "clicks").shed + len(app.seen) >= 4000)
        app.may_go_on.set()
        refusals = await stream.flush()
        counts = stream.counts
        dropped = [n for r in refusals for n in range(r.number, r.number + r.count)]
        assert {(r.reason, r.shed) for r in refusals} == {("shed: the stage is full", True)}
        assert len(refusals) < 200  # ranges, not single events
        assert len(dropped) == len(set(dropped)) == counts["shed"] >= 4000
        assert counts["admitted"] + counts["shed"] == 5000
        assert [click.n for click in app.seen] == sorted(set(range(5000)) - set(dropped))
        told = stage_of(node, stage, "clicks")
        assert told.shed == {"shed: the stage is full": counts["shed"]}
        assert told.highest <= 100 + 1
        assert input_of(node, "clicks").shed == counts["shed"]


async def test_a_shedding_stream_makes_no_producer_wait_even_if_its_deserializer_blocks() -> None:
    app = HoldingApp()
    settings = {"s4.stream.executor": "shed", "s4.deserializer.workQueueSize": "50"}
    async with running(app, settings) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        with trio.fail_after(10):
            for n in range(5000):
                await stream.send(Click("joe", n))
            client._emitter.hurry()
            await until(lambda: input_of(node, "clicks").shed > 1000)
        assert input_of(node, "clicks").left == 0
        app.may_go_on.set()
        await stream.flush()
        assert stream.counts["admitted"] + stream.counts["shed"] == 5000


async def test_a_shedding_stage_inside_the_app_counts_what_it_drops() -> None:
    def fan_out(_pe: Any, click: Click) -> None:
        for n in range(50):
            copies.put(Click(click.user, n))

    app = HoldingApp("others")
    copies = app.create_stream("copies", app.pe, key="user")
    app.create_input_stream("clicks", app.create_pe(handling(fan_out)), key="user")
    settings = {"s4.stream.copies.executor": "shed", "s4.stream.copies.workQueueSize": "20"}
    # the slow handler keeps its own task; another one puts
    async with running(app, settings, partitions=4) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        users = [f"user-{n}" for n in range(40)]
        for user in users:
            await stream.send(Click(user))
        app.may_go_on.set()
        assert await stream.flush() == []
        stages = [one for one in node.statistics().stages if one.stream == "copies"]
        shed = sum(one.shed.get("shed: the stage is full", 0) for one in stages)
        await until(lambda: len(app.seen) + shed == 40 * 50)
        assert shed > 0
        assert sum(one.admitted for one in stages) == len(app.seen)


async def test_a_custom_executor_is_named_in_the_configuration() -> None:
    from apps.sampling.executor import Sample

    app = HoldingApp()
    settings = {
        "s4.stream.clicks.executor": "apps.sampling.executor:Sample",
        "s4.stream.workQueueSize": "1000",
    }
    async with running(app, settings) as node, Client(node.address) as client:
        assert isinstance(node.tasks[0].backlog.stages["clicks"].executor, Sample)
        stream = await client.stream("clicks")
        for n in range(20_000):
            await stream.send(Click("joe", n))
        client._emitter.hurry()
        await until(lambda: input_of(node, "clicks").shed > 10_000)
        app.may_go_on.set()
        refusals = await stream.flush()
        counts = stream.counts
        assert {r.reason for r in refusals} == {Sample.reason}
        assert counts["admitted"] + counts["shed"] == 20_000
        assert len(app.seen) == counts["admitted"]
        told = stage_of(node, "stream", "clicks")
        assert told.executor == "apps.sampling.executor:Sample"
        assert told.shed == {Sample.reason: counts["shed"]}
        assert told.highest <= 1000


# --- throttling ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["stream", "deserializer"])
async def test_a_throttled_input_is_processed_at_its_rate_and_no_faster(stage: str) -> None:
    app = HoldingApp(held=False)
    settings = {f"s4.{stage}.clicks.executor": "throttle", f"s4.{stage}.clicks.maxRate": "1000"}
    async with running(app, settings) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        began = trio.current_time()
        for n in range(600):
            await stream.send(Click("joe", n))
        assert await stream.flush() == []
        taken = trio.current_time() - began
        assert 0.45 <= taken <= 5  # 100 at once, 500 at 1,000 a second
        assert len(app.seen) == 600
        waiting = stage_of(node, "stream", "clicks")
        assert waiting.waited_last > 0


async def test_a_throttled_input_whose_queue_is_full_drops_the_newest() -> None:
    app = HoldingApp(held=False)
    settings = {
        "s4.stream.executor": "throttle",
        "s4.stream.maxRate": "500",
        "s4.stream.workQueueSize": "50",
    }
    async with running(app, settings) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        for n in range(3000):
            await stream.send(Click("joe", n))
        refusals = await stream.flush()
        counts = stream.counts
        assert {r.reason for r in refusals} == {"throttled: the stage is full"}
        assert counts["shed"] > 0
        assert counts["admitted"] + counts["shed"] == 3000
        assert len(app.seen) == counts["admitted"]
        assert stage_of(node, "stream", "clicks").highest <= 50


async def test_a_throttled_remote_sender_makes_its_source_wait_and_drops_nothing() -> None:
    app = HoldingApp("onward", held=False)

    async with running(app) as end:
        settings = {
            "s4.stream.onward.consumers": "end",
            "s4.cluster.end.address": end.address,
            "s4.remoteSender.executor": "throttle",
            "s4.remoteSender.maxRate": "1000",
            "s4.remoteSender.workQueueSize": "400",
            "s4.step.maxEvents": "100",
        }
        async with running(ForwardingApp(), settings) as node, Client(node.address) as client:
            stream = await client.stream("clicks")
            for n in range(1000):
                await stream.send(Click("joe", n))
            assert await stream.flush() == []
            await until(lambda: len(app.seen) == 1000)
            told = stage_of(node, "remoteSender", "onward")
            assert (told.shed, told.admitted) == ({}, 1000)
            assert 0 < told.highest <= 400
    assert [click.n for click in app.seen] == list(range(1000))


@pytest.mark.parametrize("whole", [True, False])
async def test_events_dropped_by_a_remote_sender_are_reported_logged_once_and_not_sent(
    whole: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The consumer takes no more than two events at a time, and processes none."""
    app, source = HoldingApp("onward"), App("source")
    out = source.create_output_stream("onward", types=Click)
    async with running(app, {"s4.stream.workQueueSize": "2"}) as end:
        settings = {
            "s4.stream.onward.consumers": "end",
            "s4.cluster.end.address": end.address,
            "s4.remoteSender.executor": "shed",
            "s4.remoteSender.workQueueSize": "10",
        }
        async with running(source, settings) as node:
            clicks = [Click("joe", n) for n in range(100)]
            if whole:
                dropped = await out.send_many(clicks)
                dropped += await out.send_many(clicks)
            else:
                dropped = sum([await out.send(click) for click in clicks])
                dropped += sum(out.send_nowait(click) for click in clicks)
            assert dropped > 100
            told = stage_of(node, "remoteSender", "onward")
            assert told.shed == {"shed: the stage is full": dropped}
            app.may_go_on.set()
            await until(lambda: len(app.seen) == 200 - dropped)
            statistics = node.statistics()
            assert (statistics.sent, statistics.dropped) == (
                {"onward": 200 - dropped},
                {"onward": dropped},
            )
    said = capsys.readouterr().err
    assert said.count("events that the app has put were dropped") == 1
    assert '"stage": "remoteSender"' in said


# --- blocking ------------------------------------------------------------------------------------


QUEUES = {
    "s4.deserializer.workQueueSize": ("50", 0),
    "s4.deserializer.clicks.workQueueSize": ("50", 0),
    "s4.stream.workQueueSize": ("50", 0),
    "s4.stream.clicks.workQueueSize": ("50", 0),
    "s4.deserializer.workQueueBytes": ("100000", 2000),  # 50 events
    "s4.stream.clicks.workQueueBytes": ("100000", 2000),
}


@pytest.mark.parametrize("key", QUEUES)
async def test_a_stage_holds_no_more_than_its_queue_and_a_frame(key: str) -> None:
    size, weight = QUEUES[key]
    stage = key.split(".")[1]
    app = HoldingApp(types=Blob, held=False)
    async with running(app, {key: size}, partitions=4) as node, trio.open_nursery() as nursery:

        async def produce(first: int) -> None:
            async with Client(node.address) as client:
                stream = await client.stream("clicks", types=Blob)
                data = bytes(weight)
                await stream.send_many([Blob(f"user-{n}", data) for n in range(first, first + 500)])
                assert await stream.flush() == []

        for number in range(3):
            nursery.start_soon(produce, number * 500)
        await until(lambda: len(app.seen) == 1500)
        for partition in range(1 if stage == "deserializer" else 4):
            assert 0 < stage_of(node, stage, "clicks", partition).highest <= 2 * 50


async def test_a_sender_holds_no_more_than_its_queue_and_what_a_step_puts() -> None:
    app = HoldingApp("onward")
    async with running(app, {"s4.stream.workQueueSize": "20"}) as end:
        settings = {
            "s4.stream.onward.consumers": "end",
            "s4.cluster.end.address": end.address,
            "s4.remoteSender.onward.workQueueSize": "50",
            "s4.step.maxEvents": "100",
        }
        async with running(ForwardingApp(), settings) as node, Client(node.address) as client:
            stream = await client.stream("clicks")
            await stream.send_many([Click("joe", n) for n in range(1000)])
            await until(lambda: stage_of(node, "remoteSender", "onward").depth >= 50)
            app.may_go_on.set()
            assert await stream.flush() == []
            assert stage_of(node, "remoteSender", "onward").highest <= 50 + 100


async def test_a_full_stream_does_not_delay_another_of_the_same_connection() -> None:
    app = HoldingApp("slow")
    seen: list[Click] = []
    note = app.create_pe(handling(lambda _, click: seen.append(click)))
    app.create_input_stream("fast", note, key="user")
    settings = {"s4.stream.workQueueSize": "20"}
    # 2 partitions: a task whose handler waits does nothing else meanwhile
    async with running(app, settings, partitions=2) as node:
        slow_user, fast_user = "joe", "eve"
        assert node.partitioner.partition_of(slow_user) != node.partitioner.partition_of(fast_user)
        async with Client(node.address, queue_size=2000) as client:
            slow, fast = await client.stream("slow"), await client.stream("fast")
            await slow.send_many([Click(slow_user, n) for n in range(1000)])
            await until(
                lambda: sum(stage_of(node, "stream", "slow", n).depth for n in (0, 1)) >= 20
            )
            for n in range(1000):
                await fast.send(Click(fast_user, n))
            assert await fast.flush() == []
            assert len(seen) == 1000
            assert not app.seen
            app.may_go_on.set()
            assert await slow.flush() == []
            assert len(app.seen) == 1000


async def test_bytes_bound_what_waits_and_nothing_is_lost() -> None:
    app = HoldingApp("blobs", types=Blob)
    limit = 200_000
    settings = {"s4.stream.workQueueBytes": str(limit)}
    async with running(app, settings) as node, Client(node.address, queue_size=1000) as client:
        stream = await client.stream("blobs")
        await stream.send(Blob("joe", b"x"))  # it learns a size that is far too small
        await stream.send_many([Blob("joe", b"x" * 10_000) for _ in range(300)])
        await until(lambda: stage_of(node, "stream", "blobs").bytes)
        highest = await until_still(lambda: stage_of(node, "stream", "blobs").bytes)
        assert 0 < highest <= limit + 262_144  # one frame passes alone where nothing else waits
        app.may_go_on.set()
        assert await stream.flush() == []
        assert len(app.seen) == 301


@pytest.mark.long
async def test_handlers_that_put_much_go_few_beyond_the_capacity_however_quick_the_others_are() -> (
    None
):
    class Fan(ProcessingElement):
        def on_event(self, click: Click) -> None:
            for n in range(1000):
                self.app.parts.put(Click(f"user-{n % 7}", n))

    class Count(ProcessingElement):
        def on_event(self, click: Click) -> None:
            self.app.counted += 1

    class Fans(App):
        def on_init(self) -> None:
            self.counted = 0
            self.parts = self.create_stream("parts", self.create_pe(Count), key="user")
            self.create_input_stream("clicks", self.create_pe(Fan), key="user")

    app = Fans("fans")
    async with running(app, {"s4.stream.workQueueSize": "100"}) as node:
        async with Client(node.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many([Click("first")] * 3)  # then quick ones
            await clicks.flush()
            await clicks.send_many([Click(f"user-{n}") for n in range(1000)])
            await clicks.flush()
        await until(lambda: app.counted == 1_003_000)
        assert stage_of(node, "stream", "parts").highest < 60_000  # what some steps put


async def test_bytes_of_frames_that_hold_a_single_event_are_bounded_as_well() -> None:
    app = HoldingApp("blobs", types=Blob)
    limit = 100_000
    settings = {"s4.stream.workQueueBytes": str(limit), "s4.deserializer.workQueueBytes": "50000"}
    async with (
        running(app, settings) as node,
        raw_peer(node.address) as peer,
    ):
        await peer.open("blobs", "flood", Blob)
        for n in range(300):
            await peer.send_frames(data_frame("blobs", "flood", n, [Blob("joe", b"x" * 2000)]))
        await until(lambda: input_of(node, "blobs").left)
        assert stage_of(node, "deserializer", "blobs").bytes <= 50_000
        assert stage_of(node, "stream", "blobs").bytes <= limit
        admitted = input_of(node, "blobs").admitted
        app.may_go_on.set()
        ruling = await peer.receive_until(
            lambda header: (
                isinstance(header, wire.Verdict)
                and any(one.outcome == wire.EXPECTED for one in header.rulings)
            )
        )
        assert isinstance(ruling, wire.Verdict)
        assert ruling.rulings[0].expected == admitted  # told once there was room, and not before
        await until(lambda: len(app.seen) == admitted)


# --- floods --------------------------------------------------------------------------------------


async def test_idle_producers_do_not_cut_the_share_of_one_that_sends() -> None:
    app = HoldingApp(held=False)
    async with running(app) as node, raw_peer(node.address) as idle:
        for n in range(60):
            answer = await idle.open("clicks", f"idle-{n}", Click)
            assert not answer.error
        admission = node.ports["clicks"].admission
        async with Client(node.address, producer="honest") as client:
            stream = await client.stream("clicks")
            lane = admission.lanes["honest", 0]
            assert lane.share == 10_000 // 61
            # the others fall asleep; time passes for the admission only
            for period in range(1, 4):
                admission.tick(trio.current_time() + 2 * period, 3600)
                await stream.send(Click("joe"))
                await stream.flush()
            assert lane.share == 10_000


async def test_one_connection_opens_so_many_producers_and_no_more() -> None:
    async with (
        running(HoldingApp(held=False)) as node,
        raw_peer(node.address) as peer,
        raw_peer(node.address) as other,
    ):
        for n in range(1024):
            assert not (await peer.open("clicks", f"p{n}", Click)).error
        assert "1024 producers" in (await peer.open("clicks", "one-more", Click)).error
        assert not (await peer.open("clicks", "p7", Click)).error
        assert not (await other.open("clicks", "one-more", Click)).error


# --- feedback ------------------------------------------------------------------------------------


class Node(Event):
    key: int
    depth: int


def tree_app(depth: int) -> App:
    """Every event puts two more on its own stream, down to ``depth``."""

    class Tree(ProcessingElement):
        loop: Stream
        count: int = 0

        def on_event(self, node: Node) -> None:
            self.count += 1
            if node.depth < depth:
                self.loop.put(Node(2 * node.key % 1024, node.depth + 1))
                self.loop.put(Node((2 * node.key + 1) % 1024, node.depth + 1))

    app = App("tree")
    tree = app.create_pe(Tree)
    app.create_input_stream("seed", tree, key="key", types=Node)
    tree.loop = app.create_stream("loop", tree, key="key", types=Node)
    return app


def counted(node: Container) -> int:
    return sum(
        pe.count
        for task in node.tasks.values()
        for pe in task.instances["Tree"].values()  # type: ignore[attr-defined]
    )


@pytest.mark.parametrize("partitions", [pytest.param(1, marks=pytest.mark.long), 4])
async def test_a_stream_that_feeds_itself_ends_with_the_exact_count_in_bounded_memory(
    partitions: int, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"s4.stream.workQueueSize": "10"}
    async with running(tree_app(20), settings, partitions=partitions, deadline=90) as node:
        before = resident_mb()
        async with Client(node.address) as client:
            stream = await client.stream("seed")
            await stream.send(Node(1, 0))
            await stream.flush()
            await until(lambda: node.processed == 2**21 - 1, seconds=60)
        assert counted(node) == 2**21 - 1
        assert resident_mb() - before < 60
        highest = sum(one.highest for one in node.statistics().stages if one.stream == "loop")
        assert highest > 100_000  # memory did not hold them
    said = capsys.readouterr().err
    assert said.count("streams feed themselves") == 1
    assert "loop -> loop" in said


async def test_a_stream_that_feeds_itself_across_two_nodes_ends_with_the_exact_count(
    tmp_path: Path,
) -> None:
    settings = {"s4.stream.workQueueSize": "10", "s4.sender.workQueueSize": "10"}
    settings["s4.sender.maxRate"] = "2000000"
    async with nodes(tmp_path, lambda: tree_app(18), 2, partitions=4, **settings) as (both, _):
        one, other = both.containers.values()
        async with Client(one.address) as client:
            stream = await client.stream("seed")
            await stream.send(Node(1, 0))
            await stream.flush()
            await until(lambda: one.processed + other.processed >= 2**19 - 1, seconds=240)
        assert counted(one) + counted(other) == 2**19 - 1
        assert min(counted(one), counted(other)) > 2**17
        for node in (one, other):
            sender = stage_of(node, "sender", "loop")
            assert sender.shed == {}
            assert sender.admitted > 2**16


async def test_the_inputs_of_a_cycle_wait_until_it_is_below_its_capacity() -> None:
    depths: list[int] = []
    nodes: list[Container] = []

    class Tree(ProcessingElement):
        loop: Stream

        def on_event(self, event: Node) -> None:
            if event.depth == 0:
                depths.append(nodes[0].tasks[0].backlog.stages["loop"].depth)
            if event.depth < 8:
                self.loop.put(Node(event.key, event.depth + 1))
                self.loop.put(Node(event.key, event.depth + 1))

    app = App("tree")
    tree = app.create_pe(Tree)
    app.create_input_stream("seed", tree, key="key", types=Node)
    tree.loop = app.create_stream("loop", tree, key="key", types=Node)
    settings = {"s4.stream.workQueueSize": "10", "s4.step.maxEvents": "1"}
    async with running(app, settings) as node, Client(node.address) as client:
        nodes.append(node)
        stream = await client.stream("seed")
        for key in range(50):
            await stream.send(Node(key, 0))
        await stream.flush()
        await until(lambda: node.processed == 50 * (2**9 - 1))
    assert len(depths) == 50
    assert max(depths) < 10


async def test_a_blocked_output_holds_only_the_streams_that_lead_to_it() -> None:
    forwarded: list[int] = []

    def forward(_pe: Any, click: Click) -> None:
        forwarded.append(click.n)
        onward.put(click)

    app, two = HoldingApp("onward"), NotingApp("noted")
    two.create_input_stream("forwarded", two.create_pe(handling(forward)), key="user")
    onward = two.create_output_stream("onward", types=Click)
    async with running(app, {"s4.stream.workQueueSize": "50"}) as end:
        settings = {
            "s4.stream.onward.consumers": "end",
            "s4.cluster.end.address": end.address,
            "s4.remoteSender.workQueueSize": "50",
            "s4.step.maxEvents": "10",
        }
        async with running(two, settings) as node, Client(node.address, queue_size=5000) as client:
            one, other = await client.stream("forwarded"), await client.stream("noted")
            await one.send_many([Click("joe", n) for n in range(2000)])
            await until(lambda: node.parts.pipeline.order.held == {"forwarded"})
            for n in range(2000):
                await other.send(Click("joe", n))
            assert await other.flush() == []
            assert len(two.seen) == 2000
            assert len(forwarded) < 300
            app.may_go_on.set()
            assert await one.flush() == []
            await until(lambda: len(app.seen) == 2000)
    assert [click.n for click in app.seen] == forwarded == list(range(2000))


# --- parallelism ---------------------------------------------------------------------------------


class Handlers:
    """Notes which handlers run beside each other, and the order of each key's events."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.most = 0
        self.seen = defaultdict[str, list[int]](list)
        self.lock = threading.Lock()

    def begin(self, click: Click) -> None:
        with self.lock:
            assert click.user not in self.running
            self.running.add(click.user)
            self.most = max(self.most, len(self.running))

    def end(self, click: Click) -> None:
        with self.lock:
            self.running.remove(click.user)
            self.seen[click.user].append(click.n)


def slow_handler(handlers: Handlers, *, plain: bool, seconds: float) -> Callable[[Any, Any], Any]:
    """A handler that takes so long, in a thread if it is plain."""

    async def slow(_pe: Any, click: Click) -> None:
        handlers.begin(click)
        await trio.sleep(seconds)
        handlers.end(click)

    def slow_in_threads(_pe: Any, click: Click) -> None:
        handlers.begin(click)
        time.sleep(seconds)
        handlers.end(click)

    return slow_in_threads if plain else slow


def parallel_app(handlers: Handlers, count: int, *, plain: bool, seconds: float) -> OnePE:
    app = OnePE(slow_handler(handlers, plain=plain, seconds=seconds))
    app.input.set_parallelism(count)
    return app


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("one_by_one", [False, True])
async def test_handlers_of_a_parallel_stream_overlap_with_each_key_in_order(
    plain: bool, one_by_one: bool
) -> None:
    handlers = Handlers()
    app = parallel_app(handlers, 8, plain=plain, seconds=0.01)
    clicks = [Click(f"user-{n % 20}", n) for n in range(400)]
    async with running(app) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        if one_by_one:
            for click in clicks:
                await stream.send(click)
                await trio.lowlevel.checkpoint()  # each leaves in a frame of its own, or nearly so
        else:
            await stream.send_many(clicks)
        assert await stream.flush() == []
        assert node.processed == 400
        assert stage_of(node, "stream", "clicks").depth == 0
    assert handlers.most == 8
    for user in range(20):
        assert handlers.seen[f"user-{user}"] == list(range(user, 400, 20))


async def test_the_setting_wins_over_the_app_and_one_is_one_by_one() -> None:
    handlers = Handlers()
    app = parallel_app(handlers, 8, plain=False, seconds=0.001)
    settings = {"s4.stream.clicks.parallelism": "1"}
    async with running(app, settings) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        await stream.send_many([Click(f"user-{n}", n) for n in range(50)])
        assert await stream.flush() == []
    assert handlers.most == 1


async def test_a_frame_is_acknowledged_when_all_of_its_events_are_processed() -> None:
    may_go_on = trio.Event()
    order: list[int] = []

    async def wait(_pe: Any, click: Click) -> None:
        if click.n == 0:
            await may_go_on.wait()
        order.append(click.n)

    app = OnePE(wait)
    app.input.set_parallelism(4)
    async with running(app) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        await stream.send_many([Click(f"user-{n}", n) for n in range(10)])
        await until(lambda: len(order) == 9)
        assert node.ports["clicks"].admission.lanes[client.producer, 0].safe == 0
        may_go_on.set()
        assert await stream.flush() == []
    assert order[-1] == 0


async def test_another_stream_of_the_task_gets_its_turn_beside_a_busy_parallel_one() -> None:
    handlers = Handlers()
    app = parallel_app(handlers, 4, plain=False, seconds=0.002)
    seen: list[set[str]] = []
    note = app.create_pe(handling(lambda *_: seen.append(set(handlers.running))))
    app.create_input_stream("others", note, key="user")
    async with running(app) as node, Client(node.address, queue_size=10_000) as client:
        busy, others = await client.stream("clicks"), await client.stream("others")
        for n in range(0, 3000, 10):
            await busy.send_many([Click(f"user-{i % 7}", i) for i in range(n, n + 10)])
        for n in range(20):
            await others.send(Click("ann", n))
            await others.flush()
        assert len(seen) == 20
        assert seen == [set()] * 20  # nothing else is outstanding while it is handled
        assert await busy.flush() == []
    assert sum(map(len, handlers.seen.values())) == 3000


async def test_on_remove_is_called_while_a_parallel_stream_is_busy() -> None:
    left: list[str] = []
    most = 0

    class Leaves(ProcessingElement):
        async def on_event(self, click: Click) -> None:
            await trio.lowlevel.checkpoint()
            if click.n % 2:
                self.remove()

        async def on_remove(self) -> None:
            await trio.lowlevel.checkpoint()
            left.append(self.key)

    app = OnePE(Leaves)
    app.pe.set_pe_cache(max_size=10)
    app.input.set_parallelism(4)
    async with running(app) as node, Client(node.address, queue_size=10_000) as client:
        stream = await client.stream("clicks")
        (task,) = node.tasks.values()
        await stream.send_many([Click(f"user-{n}", n) for n in range(3000)])
        while node.processed < 3000:
            instances = task.instances["Leaves"]
            most = max(most, len(instances) + len(instances.leaving))
            await trio.lowlevel.checkpoint()
        assert await stream.flush() == []
        assert len(instances) <= 10
        assert len(left) == len(set(left)) == 3000 - len(instances)
    assert most < 100


async def test_keys_with_more_to_come_stay_beyond_the_bound_of_a_cache() -> None:
    handled: Counter[str] = Counter()

    class Busy(ProcessingElement):
        async def on_event(self, click: Click) -> None:
            await trio.sleep(0.001 * (click.n % 40))  # they land one by one
            handled[self.key] += 1

        async def on_time(self) -> None:
            await trio.lowlevel.checkpoint()

    app = OnePE(Busy)
    app.pe.set_pe_cache(max_size=50)
    app.pe.set_timer_interval(0.01)
    app.input.set_parallelism(200)
    async with running(app) as node, Client(node.address, queue_size=10_000) as client:
        stream = await client.stream("clicks")
        await stream.send_many([Click(f"user-{n % 200}", n) for n in range(4000)])
        assert await stream.flush() == []
    assert handled == {f"user-{n}": 20 for n in range(200)}


@pytest.mark.parametrize("plain_first", [False, True])
async def test_parallel_streams_with_plain_and_async_handlers_follow_each_other(
    plain_first: bool,
) -> None:
    plain, later = Handlers(), Handlers()
    app = App("parallel")
    for name, handlers in (("plain", plain), ("later", later)):
        slow = slow_handler(handlers, plain=name == "plain", seconds=0.001)
        stream = app.create_input_stream(name, app.create_pe(handling(slow)), key="user")
        stream.set_parallelism(2)
    async with running(app) as node, Client(node.address) as client:
        streams = [await client.stream(name) for name in ("plain", "later")]
        for n in range(0, 100, 10):
            for stream in streams if plain_first else reversed(streams):
                await stream.send_many([Click(f"user-{i % 5}", i) for i in range(n, n + 10)])
        assert [await stream.flush() for stream in streams] == [[], []]
    for handlers in (plain, later):
        assert sum(map(len, handlers.seen.values())) == 100


@pytest.mark.parametrize("plain", [False, True])
async def test_a_parallel_handler_that_raises_names_its_key_and_event(plain: bool) -> None:
    def fails(_pe: Any, click: Click) -> None:
        if click.n == 7:
            raise RuntimeError("seven")

    async def fails_later(pe: Any, click: Click) -> None:
        await trio.lowlevel.checkpoint()
        fails(pe, click)

    app = OnePE(fails if plain else fails_later)
    app.input.set_parallelism(4)
    with pytest.raises(ProcessingError, match="seven") as caught:  # noqa: PT012
        async with running(app) as node, Client(node.address, producer="p") as client:
            client.abandon()
            stream = await client.stream("clicks")
            await stream.send_many([Click(f"user-{n}", n) for n in range(20)])
            await trio.sleep_forever()
    assert caught.value.key == "user-7"
    assert caught.value.position == "clicks[0]@p:7"


async def test_what_parallel_handlers_put_and_refuse_is_accounted_for() -> None:
    async def forward(_pe: Any, event: GenericEvent) -> None:
        await trio.sleep(0.001)
        out.put(Click(event.user, event.n))

    app = NotingApp("others")
    out = app.create_stream("out", app.pe, key="user")
    pe = app.create_pe(handling(forward, GenericEvent))
    app.create_input_stream("clicks", pe, key=lambda e: e.user).set_parallelism(5)
    async with running(app) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        for n in range(100):
            event = GenericEvent(n=n) if n % 10 == 3 else GenericEvent(user=f"user-{n}", n=n)
            await stream.send(event)
        refusals = await stream.flush()
        assert [refusal.number for refusal in refusals] == list(range(3, 100, 10))
        await until(lambda: len(app.seen) == 90)
        assert sorted(app.numbers) == [n for n in range(100) if n % 10 != 3]


# --- the spill -----------------------------------------------------------------------------------


def spill_of(types: Sequence[type] = (Click,)) -> tuple[Spill, SpillFile]:
    file = SpillFile("clicks")
    return Spill("app", StreamTypes("clicks", types), file), file


def drained(spill: Spill) -> dict[int, list[Any]]:
    found = defaultdict[int, list[Any]](list)
    while (batch := spill.pop()) is not None:
        assert batch.size == len(batch.events)
        found[batch.partition] += batch.events
    return found


def test_spilled_events_come_back_in_order_for_each_partition() -> None:
    spill, file = spill_of(types=(Click, Blob))
    put = defaultdict[int, list[Any]](list)
    for n in range(3000):
        events: Sequence[Any] = [Click("joe", n), Blob("ann", b"x"), Click("joe", -n)][: n % 4]
        put[n % 3] += events
        spill.append(EventBatch("clicks", n % 3, list(events)))
    assert file.size > 0
    assert drained(spill) == put
    assert file.size == 0
    spill.append(EventBatch("clicks", 0, [Click("late")]))
    assert drained(spill) == {0: [Click("late")]}
    file.close()


def test_space_of_events_that_were_read_is_given_back_to_the_disk() -> None:
    spill, file = spill_of(types=(Blob,))
    block = [Blob("joe", bytes(2000))] * 512
    for _ in range(12):
        spill.append(EventBatch("clicks", 0, list(block)))
    whole = file.size
    for _ in range(9):
        assert spill.pop() is not None
    assert file._file is not None
    assert os.fstat(file._file).st_size < whole / 2
    assert drained(spill) == {0: block * 3}
    file.close()


def test_a_missing_folder_is_named_with_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    spill, _ = spill_of()
    with pytest.raises(SpillError, match="TMPDIR") as caught:
        spill.append(EventBatch("clicks", 0, [Click("joe")] * 1000))
    assert str(tmp_path / "missing") in str(caught.value)


def test_an_event_that_cannot_be_kept_on_disk_is_named_with_its_stream_and_app() -> None:
    spill, file = spill_of(types=(Click, Blob))
    events = [Blob("joe", b""), Click("joe", 7), Click("ann", 2**64), Click("joe", 2**65)] * 200
    with pytest.raises(SpillError) as caught:
        spill.append(EventBatch("clicks", 0, events))
    assert str(caught.value) == (
        "an event of stream 'clicks' of app 'app' has to wait on disk, because the stream "
        "feeds itself and its stage is full, but it cannot be written: a Click cannot be "
        "encoded: can't serialize ints < -2**63 or > 2**64 - 1. Check events before you put them"
    )
    file.close()


async def test_a_disk_that_is_full_stops_the_app_with_a_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    settings = {"s4.stream.workQueueSize": "10"}
    with pytest.raises(SpillError, match="'loop' cannot be written in /proc"):  # noqa: PT012
        async with running(tree_app(20), settings) as node, Client(node.address) as client:
            stream = await client.stream("seed")
            await stream.send(Node(1, 0))
            client.abandon()
            await trio.sleep_forever()


# --- settings ------------------------------------------------------------------------------------


def test_a_parallelism_is_a_whole_number_from_one_on() -> None:
    stream = App("app").create_input_stream("clicks", key="user", types=Click)
    stream.set_parallelism(4)
    assert stream.parallelism == 4
    with pytest.raises(GraphError, match="parallelism 0"):
        stream.set_parallelism(0)


def test_a_setting_of_one_stream_wins_over_the_stage_s() -> None:
    app = App("app")
    for name in ("clicks", "orders"):
        app.create_input_stream(name, key="user", types=Click).set_parallelism(3)
    config = Config.from_values(
        {
            "s4.stream.executor": "shed",
            "s4.stream.clicks.executor": "throttle",
            "s4.stream.clicks.maxRate": "7",
            "s4.stream.clicks.workQueueBytes": "5000",
            "s4.stream.clicks.parallelism": "5",
        }
    )
    pipeline = Pipeline(app, config)
    one, other = (pipeline.configs.settings("stream", name) for name in ("clicks", "orders"))
    assert (one.executor, one.max_rate, one.max_bytes, one.capacity) == (
        "throttle",
        7,
        5000,
        10_000,
    )
    assert (other.executor, other.max_rate) == ("shed", 200_000)
    assert [pipeline.configs.parallelism(name) for name in ("clicks", "orders")] == [5, 3]


def test_settings_of_streams_that_the_app_does_not_have_are_told_with_the_nearest_name(
    tmp_path: Path,
) -> None:
    app = OnePE(Ignore, "names")
    (tmp_path / "shared.properties").write_text(
        "s4.stream.names.workQueueSize = 100\ns4.deserializer.orders.executor = shed\n"
    )
    overrides = {"s4.stream.name.executor": "shed", "s4.listener.address": ANY_PORT}
    config = Config.load([tmp_path / "shared.properties"], overrides)
    with capture_logs() as logs:
        Pipeline(app, config)
        Pipeline(app, Config.from_values({"s4.stream.names.executor": "shed"}))
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert len(warnings) == 1
    assert warnings[0]["streams"] == "names"
    assert warnings[0]["settings"].split(", ") == [
        f"s4.deserializer.orders.executor ({tmp_path / 'shared.properties'}:2)",
        "s4.stream.name.executor (command line: did you mean names?)",
    ]


# -- set-up ---------------------------------------------------------------------------------------


class Blob(Event):
    user: str
    data: bytes = b""


def stage_of(container: Container, stage: str, stream: str, partition: int = 0) -> StageStatistics:
    found = [
        one
        for one in container.statistics().stages
        if (one.stage, one.stream) == (stage, stream) and one.partition in (partition, None)
    ]
    assert len(found) == 1
    return found[0]


def input_of(container: Container, stream: str) -> InputStatistics:
    return container.statistics().inputs[stream]
