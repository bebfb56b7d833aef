"""Stopping in order: stop accepting, leave to producers what waits, drain the rest, close.

Every event is processed once: by the node that stops, or by the one that its producer goes on with.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from harness import ANY_PORT, RawPeer, data_frame, free_port, plain_errors, raw_peer, running, until
from shared_apps import Click, Forward, ForwardingApp, HoldingApp, NotingApp, OnePE, handling
from structlog.testing import capture_logs

from s4node import AdapterApp, App, Client, Config, Container
from s4node.errors import EventsLost, ProcessingError
from s4node.net.ingress import connection
from s4node.net.wire import frame as wire
from s4node.runtime.container import drain

if TYPE_CHECKING:
    from s4node import ClientStream


async def test_a_stopping_node_ends_although_a_client_goes_on_sending() -> None:
    seen: list[int] = []
    sent: list[int] = []
    async with trio.open_nursery() as nursery:
        async with running(noting(seen)) as node:
            client = await nursery.start(run_client, node.address)
            nursery.start_soon(feed, await client.stream("clicks"), sent)
            await until(lambda: len(seen) > 10_000)
        assert node.statistics().inputs["clicks"].admitted == len(seen)
        assert seen == list(range(len(seen)))
        nursery.cancel_scope.cancel()


async def run_client(
    address: str, task_status: trio.TaskStatus[Client] = trio.TASK_STATUS_IGNORED
) -> None:
    """An open client, until cancelled."""
    async with Client(address) as client:
        task_status.started(client)
        await trio.sleep_forever()


@pytest.mark.parametrize("partitions", [1, 4])
async def test_a_client_that_goes_on_over_an_orderly_restart_loses_and_doubles_nothing(
    partitions: int,
) -> None:
    seen: list[int] = []
    sent: list[int] = []
    address = f"tcp://127.0.0.1:{free_port()}"
    async with Client(address) as client:
        async with trio.open_nursery() as nursery:
            for round_ in range(5):
                async with running(noting(seen), address=address, partitions=partitions) as node:
                    if not round_:
                        stream = await client.stream("clicks")
                        nursery.start_soon(feed, stream, sent)
                    enough = len(seen) + 5000
                    await until(lambda enough=enough: len(seen) > enough)
                assert node.statistics().inputs["clicks"].admitted == node.statistics().processed
            nursery.cancel_scope.cancel()
        async with running(noting(seen), address=address, partitions=partitions):
            assert await stream.flush() == []
    assert seen == list(range(len(seen)))
    assert len(seen) - len(sent) in (0, 1)  # the send that was cancelled may have been taken


async def test_admitted_events_are_processed_before_on_close_along_any_chain() -> None:
    story: list[Any] = []

    async def note(_pe: Any, click: Click) -> None:
        await trio.lowlevel.checkpoint()
        story.append(click.n)

    class Chain(App):
        def on_init(self) -> None:
            one, two = self.create_pe(Forward), self.create_pe(Forward)
            last = self.create_pe(handling(note))
            self.create_input_stream("clicks", one, key="user")
            one.out = self.create_stream("two", two, key="n")
            two.out = self.create_stream("last", last, key="user")

        def on_close(self) -> None:
            story.append("on_close")

    async with running(Chain(), partitions=3) as node, raw_peer(node.address) as peer:
        await peer.open("clicks", "raw", Click)
        await peer.send_frames(data_frame("clicks", "raw", 0, [Click("a", n) for n in range(2000)]))
        await until(lambda: node.statistics().inputs["clicks"].admitted == 2000)
        assert len(story) < 2000
    assert sorted(story[:-1]) == list(range(2000))
    assert story[-1] == "on_close"


# -- what producers have sent and keep -----------------------------------------------------------


def slow(seen: list[int], key: Any, seconds: float, *, parallel: int = 1) -> App:
    """An app that notes the numbers that it gets and takes so long for each."""

    def note(_pe: Any, click: Click) -> None:
        seen.append(click.n)
        time.sleep(seconds)

    app = OnePE(note, key=key)
    app.input.set_parallelism(parallel)
    return app


@pytest.mark.parametrize(
    ("grade", "partitions", "key", "parallel", "seconds", "most"),
    [
        ("fast", 1, "user", 1, 0.02, 1000),
        ("durable", 3, "user", 1, 0.02, 1000),
        # a frame that has begun is ended
        ("durable", 3, lambda event: event.user, 1, 0.002, 6000),
        ("fast", 1, "user", 4, 0.02, 1000),
    ],
    ids=["one partition", "partitions", "frames that the node takes apart", "parallel handlers"],
)
async def test_events_that_wait_when_a_node_stops_go_back_to_their_producer(
    grade: str,
    partitions: int,
    key: Any,
    parallel: int,
    seconds: float,
    most: int,
    tmp_path: Path,
) -> None:
    first: list[int] = []
    second: list[int] = []
    address = f"tcp://127.0.0.1:{free_port()}"
    settings = {"s4.stream.clicks.grade": grade, "s4.state.folder": str(tmp_path)}
    async with Client(address) as client:
        app = slow(first, key, seconds, parallel=parallel)
        async with running(app, settings, address=address, partitions=partitions) as node:
            clicks = await client.stream("clicks")
            await clicks.send_many([Click(f"u{n % 50}", n) for n in range(8000)])
            await until(lambda: len(first) > 10)
        told = node.statistics()
        assert told.inputs["clicks"].admitted == told.processed == len(first) < most
        app = slow(second, key, 0.0, parallel=parallel)
        async with running(app, settings, address=address, partitions=partitions):
            assert await clicks.flush() == []
    assert sorted(first + second) == list(range(8000))


async def test_events_of_a_producer_that_has_left_are_processed() -> None:
    seen: list[int] = []
    async with running(slow(seen, "user", 0.002)) as node:
        async with raw_peer(node.address) as peer:
            await peer.open("clicks", "raw", Click)
            clicks = [Click("a", n) for n in range(200)]
            await peer.send_frames(data_frame("clicks", "raw", 0, clicks))
            await until(lambda: node.statistics().inputs["clicks"].admitted == 200)
        await until(lambda: not node.listener.connections)
    assert seen == list(range(200))


async def test_events_before_the_end_of_a_stream_are_processed() -> None:
    seen: list[int] = []
    app = slow(seen, "user", 0.002)
    async with running(app) as node, raw_peer(node.address) as peer:
        await peer.open("clicks", "raw", Click)
        clicks = [Click("a", n) for n in range(200)]
        end = wire.EndOfStream("clicks", "raw")
        await peer.send_frames(data_frame("clicks", "raw", 0, clicks), end)
        await until(lambda: node.statistics().inputs["clicks"].admitted == 200)
        assert len(seen) < 200
        node.stop()

        def is_last(frame: wire.Header) -> bool:
            return isinstance(frame, wire.Verdict) and frame.rulings[0].upto == 200

        await peer.receive_until(is_last)
    assert seen == list(range(200))


async def test_running_handlers_are_completed_before_the_stop() -> None:
    story: list[Any] = []
    may_end = trio.Event()

    async def slowly(_pe: Any, click: Click) -> None:
        story.append(("began", click.n))
        await may_end.wait()
        story.append(("ended", click.n))

    app = OnePE(slowly)
    app.on_close = lambda: story.append("on_close")
    async with running(app) as node, raw_peer(node.address) as peer:
        await peer.open("clicks", "raw", Click)
        await peer.send_frames(data_frame("clicks", "raw", 0, [Click("a", 1), Click("a", 2)]))
        await until(lambda: story)
        node.stop()
        await peer.receive_until(lambda frame: isinstance(frame, wire.Drain))
        assert story == [("began", 1)]
        may_end.set()
    assert story == [("began", 1), ("ended", 1), ("began", 2), ("ended", 2), "on_close"]


async def test_the_last_verdicts_reach_the_producer_before_the_node_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(connection, "VERDICT_SECONDS", 60.0)
    async with running(noting(seen)) as node, raw_peer(node.address) as peer:
        await peer.open("clicks", "raw", Click)
        clicks = [Click("a", n) for n in range(10)]
        await peer.send_frames(data_frame("clicks", "raw", 0, clicks, flags=0))
        await until(lambda: len(seen) == 10)
        node.stop()
        verdict = await peer.receive_until(lambda frame: isinstance(frame, wire.Verdict))
    assert verdict.rulings[0].upto == 10


async def test_a_draining_node_says_so_and_admits_nothing_more() -> None:
    app = HoldingApp()
    async with running(app) as node, raw_peer(node.address) as peer:
        await peer.open("clicks", "raw", Click)
        await peer.send_frames(data_frame("clicks", "raw", 0, [Click("a", 1)]))
        await until(lambda: node.statistics().inputs["clicks"].admitted == 1)
        node.stop()
        drain = await peer.receive_until(lambda frame: isinstance(frame, wire.Drain))
        assert "is stopping" in drain.reason
        await peer.send_frames(data_frame("clicks", "raw", 1, [Click("a", 2)]))
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream("127.0.0.1", int(node.address.rsplit(":", 1)[1]))
        await peer.open("clicks", "raw", Click)  # an answer shows that the frame has been read
        app.may_go_on.set()
    assert node.statistics().inputs["clicks"].admitted == 1
    assert app.seen == [Click("a", 1)]


async def test_a_stopping_node_waits_for_the_consumer_of_its_output() -> None:
    seen: list[int] = []
    consumer = f"tcp://127.0.0.1:{free_port()}"
    settings = {
        "s4.stream.onward.consumers": "next",
        "s4.cluster.next.address": consumer,
        "s4.remoteSender.workQueueSize": "10",
    }
    stopped = trio.Event()
    async with trio.open_nursery() as nursery:
        async with running(ForwardingApp(key="user"), settings) as node:

            async def consume() -> None:
                async with running(noting(seen, "onward"), address=consumer):
                    await stopped.wait()

            async with raw_peer(node.address) as peer:
                await peer.open("clicks", "raw", Click)
                clicks = [Click("a", n) for n in range(1000)]
                await peer.send_frames(data_frame("clicks", "raw", 0, clicks))
                await until(lambda: node.statistics().sent["onward"] > 10)
                node.stop()
                await peer.receive_until(lambda frame: isinstance(frame, wire.Drain))
            assert node.statistics().processed < 1000
            nursery.start_soon(consume)
        stopped.set()
    assert seen == list(range(1000))


async def test_a_source_has_ended_before_the_app_is_drained() -> None:
    story: list[Any] = []

    class Source(AdapterApp):
        output_stream = "clicks"
        remote_stream_key_finder = "user"

        def on_start(self) -> None:
            self.start_soon(self.feed)

        async def feed(self) -> None:
            n = 0
            try:
                while True:
                    await self.remote_stream.send(Click("ann", n))
                    n += 1
            finally:
                story.append(n)

        def on_close(self) -> None:
            story.append("on_close")

    seen: list[int] = []
    async with running(noting(seen)) as consumer:
        settings = {
            "s4.stream.clicks.consumers": "next",
            "s4.cluster.next.address": consumer.address,
        }
        async with running(Source(), settings):
            await until(lambda: len(seen) > 1000)
        count, last = story
        assert last == "on_close"
        assert seen == list(range(len(seen)))
        assert len(seen) - count in (0, 1)


async def test_events_that_do_not_end_in_time_are_given_up_with_a_warning() -> None:
    story: list[Any] = []

    async def never_end(_pe: Any, _click: Click) -> None:
        story.append("began")
        await trio.sleep_forever()

    app = OnePE(never_end)
    app.on_close = lambda: story.append("on_close")
    settings = {"task.shutdown.ms": "50"}
    with capture_logs() as logs:
        async with running(app, settings) as node, Client(node.address) as client:
            await (await client.stream("clicks")).send(Click("ann"))
            await until(lambda: story)
            client.abandon()
    assert story == ["began", "on_close"]
    (warning,) = [log for log in logs if log["event"] == "not drained in time"]
    assert (warning["log_level"], warning["setting"]) == ("warning", "task.shutdown.ms")
    assert warning["waits_for"] == ["task 'Partition 0' with 1 events"]


async def test_a_stop_whose_time_runs_out_commits_the_events_that_have_ended(
    tmp_path: Path,
) -> None:
    seen: list[int] = []

    async def take_long(_pe: Any, click: Click) -> None:
        await trio.sleep(0.02)
        seen.append(click.n)

    async def burst(pe: Any, click: Click) -> None:
        for n in range(click.n):
            pe.app.streams["inner"].put(Click(click.user, n))

    def app() -> App:
        made = OnePE(burst)
        made.create_stream("inner", made.create_pe(handling(take_long)), key="user")
        return made

    settings = {
        "s4.stream.clicks.grade": "durable",
        "s4.state.folder": str(tmp_path),
        "task.shutdown.ms": "100",
        "task.commit.ms": "0",
    }
    async with running(app(), settings) as node:
        async with Client(node.address) as client:
            await (await client.stream("clicks")).send(Click("ann", 60))
        await until(lambda: len(seen) > 2)
    assert len(seen) < 60
    async with running(app(), settings):
        await until(lambda: len(seen) >= 60)
    assert seen == list(range(60))


async def test_events_for_an_absent_consumer_are_reported_at_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drain, "_LOG_AFTER_SECONDS", 0.02)
    settings = {
        "s4.stream.clicks.consumers": "away",
        "s4.cluster.away.address": f"tcp://127.0.0.1:{free_port()}",
        "task.shutdown.ms": "1000",
    }

    async def run() -> None:
        async with (
            running(ForwardingApp("raw", "clicks", key="user"), settings) as node,
            Client(node.address) as client,
        ):
            await (await client.stream("raw")).send_many([Click("ann", n) for n in range(5)])
            await until(lambda: node.statistics().processed == 5)

    lost_five = r"5 events of stream 'clicks' .* consumer 'away'"
    with capture_logs() as logs, pytest.raises(EventsLost, match=lost_five):
        await run()
    waited = ["a verdict of 'away' on 5 events of stream 'clicks'"]
    (told,) = [log for log in logs if log["event"] == "still draining"]
    assert (told["waits_for"], told["at_most_seconds"]) == (waited, 1.0)
    (late,) = [log for log in logs if log["event"] == "not drained in time"]
    assert late["waits_for"] == waited
    (lost,) = [log for log in logs if log["log_level"] == "error"]
    assert (lost["stream"], lost["consumer"], lost["events"]) == ("clicks", "away", 5)


async def test_unprocessed_events_of_an_apps_own_stream_are_reported_at_the_stop() -> None:
    app = HoldingApp("others")
    forward = app.create_pe(Forward)
    app.create_input_stream("clicks", forward, key="user")
    forward.out = app.create_stream("inner", app.pe, key="user")

    async def run() -> None:
        settings = {"task.shutdown.ms": "200"}
        async with running(app, settings) as node, Client(node.address) as client:
            await (await client.stream("clicks")).send_many([Click("ann", n) for n in range(5)])
            await until(
                lambda: [s.depth for s in node.statistics().stages if s.stream == "inner"] == [5]
            )

    with capture_logs() as logs, pytest.raises(EventsLost, match="5 events that it has put on"):
        await run()
    (lost,) = [log for log in logs if log["log_level"] == "error"]
    assert (lost["stream"], lost["events"]) == ("inner", 5)


async def test_a_consumer_that_comes_back_while_an_app_drains_gets_what_was_put_for_it() -> None:
    seen: list[int] = []
    address = f"tcp://127.0.0.1:{free_port()}"
    settings = {"s4.stream.clicks.consumers": "away", "s4.cluster.away.address": address}
    async with running(ForwardingApp("raw", "clicks", key="user"), settings) as node:
        async with Client(node.address) as client:
            await (await client.stream("raw")).send_many([Click("ann", n) for n in range(5)])
        node.stop()
        async with running(noting(seen), address=address):
            await until(lambda: len(seen) == 5)


@pytest.mark.long
async def test_peers_that_say_nothing_do_not_keep_a_stopping_node_for_the_time_of_a_drain() -> None:
    seen: list[int] = []
    async with running(noting(seen), {"task.shutdown.ms": "600000"}) as node:
        port = int(node.address.rsplit(":", 1)[1])
        stranger = await trio.open_tcp_stream("127.0.0.1", port)
        deaf = await trio.to_thread.run_sync(RawPeer, node.address)
        await deaf.open("clicks", "raw", Click)
        await until(lambda: len(node.listener.connections) == 2)
    await stranger.aclose()
    await deaf.close()


async def test_stopping_at_once_after_the_start_is_in_order_too() -> None:
    story: list[str] = []

    class Quick(App):
        def on_start(self) -> None:
            story.append("on_start")

        def on_close(self) -> None:
            story.append("on_close")

    container = Container(Quick(), Config.from_values({"s4.listener.address": ANY_PORT}))
    container.stop()
    with trio.fail_after(10):
        await container.run()
    assert story == ["on_start", "on_close"]


async def test_the_port_is_free_again_when_run_has_returned() -> None:
    seen: list[int] = []
    async with running(noting(seen)) as node:
        address = node.address
    async with running(noting(seen), address=address) as again, Client(again.address) as client:
        await (await client.stream("clicks")).send(Click("ann", 1))
    assert seen == [1]


async def test_cancelling_run_closes_everything_at_once() -> None:
    seen: list[int] = []
    container = Container(noting(seen), Config.from_values({"s4.listener.address": ANY_PORT}))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(container.run)
        await container.ready.wait()
        client = await nursery.start(run_client, container.address)
        await client.stream("clicks")
        nursery.cancel_scope.cancel()
    async with running(noting(seen), address=container.address):
        pass


async def test_an_app_that_failed_leaves_the_port_free_and_the_client_waiting() -> None:
    seen: list[int] = []

    app = OnePE(lambda *_: 1 / 0)
    address = f"tcp://127.0.0.1:{free_port()}"

    async def run_broken() -> None:
        with plain_errors():
            async with running(app, address=address):
                stream = await client.stream("clicks")
                await stream.send_many([Click("ann", n) for n in range(10)])
                await trio.sleep_forever()

    async with Client(address) as client:
        with pytest.raises(ProcessingError) as caught:
            await run_broken()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert seen == []
        async with running(noting(seen), address=address):
            stream = await client.stream("clicks")
            assert await stream.flush() == []
    assert seen == list(range(10))


# -- set-up ---------------------------------------------------------------------------------------


def noting(seen: list[int], stream: str = "clicks") -> App:
    return NotingApp(stream, seen=seen, note=lambda _, click: click.n)


async def feed(stream: ClientStream, sent: list[int]) -> None:
    """Send click after click until cancelled; ``sent`` counts them."""
    while True:
        await stream.send(Click("ann", len(sent)))
        sent.append(len(sent))
