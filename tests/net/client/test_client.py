"""The trio client, against running nodes with real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
import trio
from harness import DEADLINE, free_port, in_thread, running, together, until
from recording_app import LARGE, MOST, SMALL, RecordingApp, clicks
from shared_apps import Buy, Click, HoldingApp, NotingApp
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from s4node import Client, Event, GenericEvent, SyncClient
from s4node.errors import (
    ConfigError,
    ConnectionRefused,
    EventError,
    S4Error,
    StageBroken,
    StageClosed,
    WouldBlock,
)

if TYPE_CHECKING:
    from pathlib import Path

    from s4node import Refusal


# -- sending --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1025, 100_000, 1_048_400])
@pytest.mark.parametrize("grade", ["fast", "durable"])
async def test_an_id_of_more_than_1024_bytes_opens_no_stream(
    tmp_path: Path, grade: str, size: int
) -> None:
    long = "x" * size
    told = rf"the producer id 'x{{40}}'\.\.\. has {size} bytes, more than 1024; give"
    with pytest.raises(ConfigError, match=f"^{told}"):
        Client("tcp://127.0.0.1:1", producer=long)
    noted = RecordingApp()
    settings = {"s4.stream.clicks.grade": grade, "s4.state.folder": str(tmp_path)}
    async with running(noted, settings) as node:
        async with Client(node.address) as client:
            client.producer = long
            with pytest.raises(ConnectionRefused, match=f"stream 'clicks': {told}"):
                await client.stream("clicks")
        async with Client(node.address, producer="é" * 512) as client:
            await (await client.stream("clicks")).send(Click("ann", 1))
        assert noted.numbers == [1]


async def test_send_send_many_and_send_nowait_keep_their_order() -> None:
    noted = RecordingApp()
    async with running(noted) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        for n in range(0, 3000, 3):
            await stream.send(Click("ann", n))
            await stream.send_many(Click("ann", n + 1) for _ in range(1))
            stream.send_nowait(Click("ann", n + 2))
        assert await stream.flush() == []
        assert noted.numbers == list(range(3000))
        admitted = {"admitted": 3000, "shed": 0, "refused": 0, "unsent": 0, "pending": 0}
        assert stream.counts == admitted


async def test_leaving_the_block_waits_until_everything_has_been_processed() -> None:
    noted = RecordingApp()
    async with running(noted) as node:
        async with Client(node.address) as client:
            await (await client.stream("clicks")).send_many(clicks(5000))
            await (await client.stream("others")).send_many(clicks(5000))
        assert len(noted.seen) == 10_000


async def test_one_quiet_event_is_processed_without_a_flush() -> None:
    noted = RecordingApp()
    async with running(noted) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        for n in range(5):
            await stream.send(Click("ann", n))
            await until(lambda n=n: len(noted.seen) == n + 1)


async def test_a_client_tells_what_the_app_takes() -> None:
    noted = RecordingApp(types=Click | Buy)
    async with running(noted, partitions=3) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        assert stream.name == "clicks"
        assert stream.partitions == 3
        assert [kind.name for kind in stream.types] == ["Click", "Buy"]
        assert await client.stream("clicks") is stream


async def test_tasks_that_open_one_stream_at_the_same_time_share_it() -> None:
    noted = RecordingApp()
    async with running(noted) as node, Client(node.address) as client:

        async def one(n: int) -> None:
            stream = await client.stream("clicks")
            await stream.send(Click("ann", n))
            await stream.flush()

        await together(*(lambda n=n: one(n) for n in range(5)))
    assert sorted(noted.numbers) == [0, 1, 2, 3, 4]


async def test_flush_returns_what_was_refused_with_number_and_reason() -> None:
    def find(event: Click) -> str:
        if event.n % 100 == 50:
            raise ValueError(f"no key in {event.n}")
        return event.user

    noted = RecordingApp(key=find)
    async with running(noted) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        await stream.send_many(clicks(1000))
        refused: list[Refusal] = await stream.flush()
        assert [r.number for r in refused] == list(range(50, 1000, 100))
        assert all(r.stream == "clicks" and r.partition == 0 and not r.shed for r in refused)
        assert refused[0].reason.startswith("the KeyFinder raised ValueError: no key in 50")
        assert stream.counts["refused"] == 10
        assert stream.counts["admitted"] == 990
        assert await stream.flush() == []
    assert noted.numbers == [n for n in range(1000) if n % 100 != 50]


async def test_flush_returns_one_refusal_of_all_events_with_the_same_cause() -> None:
    noted = RecordingApp()
    async with running(noted) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        for n in range(200):
            await stream.send_many([Buy("ann", n), Click("ann", n)])
        (refused,) = await stream.flush()
        assert (refused.number, refused.count, refused.unsent) == (-1, 200, True)
        assert refused.reason.startswith("stream 'clicks' takes Click, not 'Buy'")
        assert stream.counts["unsent"] == 200
    assert noted.numbers == list(range(200))


async def test_refusals_of_large_events_are_all_reported() -> None:
    noted = RecordingApp(key=lambda event: None)
    async with running(noted) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        await stream.send_many([Click("x" * 100_000, n) for n in range(300)])
        refused = await stream.flush()
    assert [r.number for r in refused] == list(range(300))
    assert max(len(r.reason) for r in refused) <= 500


async def test_refusals_that_nobody_took_are_raised_when_the_client_is_left() -> None:
    noted = RecordingApp(key=lambda event: None)
    with capture_logs() as logs:
        async with running(noted) as node, Client(node.address) as client:
            await (await client.stream("clicks")).send_many(clicks(3))
    (warning,) = [log for log in logs if log["event"].startswith("events were not processed")]
    assert (warning["log_level"], warning["events"]) == ("warning", 3)
    assert "the KeyFinder returned nothing" in warning["reason"]


async def test_take_refusals_does_not_wait() -> None:
    noted = RecordingApp(key=lambda event: None)
    async with running(noted) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        assert stream.take_refusals() == []
        await stream.send(Click("ann", 1))
        taken: list[Refusal] = []
        await until(lambda: taken.extend(stream.take_refusals()) or taken)
        assert [r.number for r in taken] == [0]


# -- back pressure --------------------------------------------------------------------------------


async def test_a_full_queue_makes_send_wait_and_send_nowait_raise() -> None:
    noted = RecordingApp()
    noted.hold()
    async with (
        running(noted, SMALL) as node,
        Client(node.address, queue_size=500) as client,
    ):
        stream = await client.stream("clicks")
        assert stream.pressure == 0
        sent = 0
        while stream.pressure < 1:
            stream.send_nowait(Click("ann", sent))
            sent += 1
            if sent % 50 == 0:
                await trio.lowlevel.checkpoint()
        assert 500 <= sent <= 600  # what waits, and the node's credit
        with pytest.raises(WouldBlock, match="full: 500 events wait"):
            stream.send_nowait(Click("ann", 0))

        async def go_on() -> None:
            nonlocal sent
            for _ in range(1000):
                await stream.send(Click("ann", sent))
                sent += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go_on)
            await wait_all_tasks_blocked(0.05)
            assert sent < 1000
            noted.may_go_on.set()
        assert await stream.flush() == []
        assert stream.pressure == 0
    assert sent > 1500
    assert noted.numbers == list(range(sent))


async def test_send_waits_when_large_events_take_too_much_memory_and_loses_none() -> None:
    noted = RecordingApp(key="n")
    noted.hold()
    async with running(noted) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        sent = 0

        async def go_on() -> None:
            nonlocal sent
            for _ in range(1500):
                await stream.send(Click(LARGE, sent))
                sent += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go_on)
            await until(lambda: stream.pressure >= 1)
            await wait_all_tasks_blocked(0.05)
            assert MOST - 100 < sent < MOST
            with pytest.raises(WouldBlock, match=r"take about [0-9]{8} bytes"):
                stream.send_nowait(Click("ann", 0))
            noted.may_go_on.set()
        assert await stream.flush() == []
    assert noted.numbers == list(range(1500))


async def test_a_send_that_is_cancelled_while_it_waits_has_taken_its_event() -> None:
    noted = RecordingApp()
    noted.hold()
    async with (
        running(noted, SMALL) as node,
        Client(node.address, queue_size=300) as client,
    ):
        stream = await client.stream("clicks")
        n = 0
        with trio.move_on_after(5) as patience:
            while True:
                n += 1
                with trio.move_on_after(0.05) as blocked:
                    await stream.send(Click("ann", n - 1))
                if blocked.cancelled_caught:
                    break
        assert not patience.cancelled_caught
        with trio.move_on_after(0.05) as blocked:
            await stream.send_many(clicks(300, n))
        assert blocked.cancelled_caught
        noted.may_go_on.set()
        assert await stream.flush() == []
    assert noted.numbers == list(range(n + 300))


# -- leaving --------------------------------------------------------------------------------------


async def test_an_exception_leaves_the_block_as_it_is() -> None:
    noted = RecordingApp()
    noted.hold()
    async with running(noted) as node:

        async def work() -> None:
            async with Client(node.address) as client:
                await (await client.stream("clicks")).send(Click("ann"))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as caught:
            await work()
        assert caught.type is ZeroDivisionError
        noted.may_go_on.set()


async def test_a_group_that_the_block_raises_stays_that_group() -> None:
    async with running(RecordingApp()) as node:
        group = ExceptionGroup("mine", [ValueError("one"), KeyError("two")])
        with pytest.raises(ExceptionGroup) as caught:
            async with Client(node.address):
                raise group
        assert caught.value is group


async def test_a_cancelled_block_is_left_at_once_and_nothing_waits_for_a_verdict() -> None:
    noted = RecordingApp()
    noted.hold()
    async with running(noted) as node:
        with trio.CancelScope() as scope:
            async with Client(node.address) as client:
                await (await client.stream("clicks")).send_many(clicks(10))
                await until(lambda: node.statistics().inputs["clicks"].admitted == 10)
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
        with trio.move_on_after(0.1) as scope:
            async with Client(node.address) as client:
                await (await client.stream("clicks")).send_many(clicks(10))
        assert scope.cancelled_caught
        noted.may_go_on.set()


async def test_an_abandoned_client_leaves_without_waiting() -> None:
    noted = RecordingApp()
    noted.hold()
    async with running(noted) as node:
        with trio.fail_after(5):
            async with Client(node.address) as client:
                await (await client.stream("clicks")).send(Click("ann"))
                client.abandon()
        noted.may_go_on.set()


async def test_a_client_outside_of_its_block_says_so() -> None:
    async with running(RecordingApp()) as node:
        client = Client(node.address)
        with pytest.raises(StageClosed, match="use it in 'async with'"):
            await client.stream("clicks")
        async with client:
            stream = await client.stream("clicks")
        with pytest.raises(StageClosed, match="the client is closed"):
            await stream.send_many(clicks(1))
        with pytest.raises(StageClosed, match="use it in 'async with'"):
            await client.stream("others")


def test_a_client_in_asyncio_says_what_to_use_there() -> None:
    async def enters(what: Any) -> None:
        async with what:
            pass

    client = Client("tcp://127.0.0.1:1")
    for what in (client, client.subscribe("results")):
        with pytest.raises(S4Error, match=r"Client needs trio.*SyncClient.*asyncio\.to_thread"):
            asyncio.run(enters(what))


# -- what cannot be sent --------------------------------------------------------------------------


@pytest.mark.long
async def test_an_absent_node_is_reported_in_time_with_its_address() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    async with Client(address, timeout=0.3) as client:
        with pytest.raises(ConnectionRefused, match=r"no answer within 0\.3 s") as caught:
            await client.stream("clicks")
    assert address in str(caught.value)


async def test_a_silent_port_is_reported_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        async with Client(address, timeout=0.3) as client:
            with pytest.raises(ConnectionRefused, match="is the node running"):
                await client.stream("clicks")


async def test_a_node_that_starts_later_is_found() -> None:
    noted = RecordingApp()
    address = f"tcp://127.0.0.1:{free_port()}"
    async with Client(address) as client, trio.open_nursery() as nursery:

        async def late() -> None:
            async with running(noted, address=address):
                await until(lambda: noted.seen)

        with trio.move_on_after(0.2):
            await client.stream("clicks")
        nursery.start_soon(late)
        stream = await client.stream("clicks")
        await stream.send(Click("ann", 7))
        assert await stream.flush() == []
    assert noted.numbers == [7]


@pytest.mark.parametrize(
    "address", ["nonsense", "tcp://127.0.0.1", "http://127.0.0.1:80", "tcp://h:x"]
)
async def test_an_invalid_address_is_a_plain_error(address: str) -> None:
    with pytest.raises(ConfigError, match=r"is not an address; write tcp://host:port"):
        async with Client(address):
            raise AssertionError("it must not open")


async def test_a_stream_that_the_app_does_not_have_is_told_with_those_it_has() -> None:
    noted = RecordingApp()
    async with running(noted) as node, Client(node.address) as client:
        with pytest.raises(ConnectionRefused, match="its input streams: clicks, others"):
            await client.stream("click")
        stream = await client.stream("clicks")
        await stream.send_many(clicks(10))
        assert await stream.flush() == []
    assert len(noted.seen) == 10


async def test_an_event_over_the_frame_limit_is_refused_and_the_stream_lives() -> None:
    noted = RecordingApp()
    async with running(noted) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        large = Click("x" * 300_000, 5)
        await stream.send_many([*clicks(5), large, *clicks(994, 6)])
        (refused,) = await stream.flush()
        assert stream.counts["unsent"] == 1
        assert stream.counts["admitted"] == 999
    assert noted.numbers == [n for n in range(1000) if n != 5]
    assert "over the frame limit of 262144 (s4.sender.maxFrameBytes)" in refused.reason


async def test_an_event_over_the_nodes_own_limit_is_refused_and_the_stream_lives() -> None:
    noted = RecordingApp()
    settings = {"s4.listener.maxFrameBytes": "4096"}
    async with running(noted, settings) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        await stream.send_many([*clicks(500), Click("x" * 5000, 500), *clicks(499, 501)])
        (refused,) = await stream.flush()
    assert noted.numbers == [n for n in range(1000) if n != 500]
    assert "over the node's limit of 4096 (s4.listener.maxFrameBytes)" in refused.reason


async def test_an_event_that_cannot_be_encoded_is_refused_and_the_others_go_on() -> None:
    noted = RecordingApp(types=GenericEvent)
    async with running(noted) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        events = [GenericEvent(user="ann", n=n) for n in range(100)]
        events[40].put("n", object())
        events[41].put("n", 1 << 70)
        await stream.send_many(events)
        refused = await stream.flush()
        assert stream.counts == {
            "admitted": 98,
            "shed": 0,
            "refused": 0,
            "unsent": 2,
            "pending": 0,
        }
    assert noted.numbers == [n for n in range(100) if n not in (40, 41)]
    assert all("a GenericEvent cannot be encoded" in r.reason for r in refused)


@pytest.mark.parametrize("thing", ["text", 5, None, {"user": "ann"}, object()])
async def test_an_object_that_is_not_an_event_raises_at_once_and_the_stream_goes_on(
    thing: Any,
) -> None:
    noted = RecordingApp()
    async with running(noted) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        with pytest.raises(EventError, match="is not an event type"):
            await stream.send(thing)
        with pytest.raises(EventError, match="is not an event type"):
            await stream.send_many([Click("ann", 1), thing])
        with pytest.raises(EventError, match="is not an event type"):
            stream.send_nowait(thing)
        await stream.send(Click("ann", 2))
        assert await stream.flush() == []
    assert noted.numbers == [2]


async def test_an_event_of_a_type_that_the_app_does_not_take_is_refused_by_itself() -> None:
    noted = RecordingApp()
    async with running(noted) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        await stream.send_many(clicks(3))
        await stream.send(Buy("ann", 5))
        await stream.send_many(clicks(3, start=3))
        (refused,) = await stream.flush()
        assert refused.reason.startswith("stream 'clicks' takes Click, not 'Buy'")
        await stream.send_many([Buy("ann", 6), Click("ann", 6)])
        (refused,) = await stream.flush()
        assert refused.reason.startswith("stream 'clicks' takes Click, not 'Buy'")
        assert stream.counts["admitted"] == 7
    assert noted.numbers == list(range(7))


async def test_an_event_of_another_type_is_refused_for_that_and_not_for_lack_of_a_key() -> None:
    class Stray(Event):
        place: str

    noted = RecordingApp()
    async with running(noted, partitions=3) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        await stream.send_many([Click("ann", 0), Stray("here"), Click("bob", 1)])
        (refused,) = await stream.flush()
        assert refused.reason.startswith("stream 'clicks' takes Click, not 'Stray'; send one of")
    assert sorted(noted.numbers) == [0, 1]


async def test_flush_says_in_time_that_the_node_has_gone_and_keeps_the_events() -> None:
    before, after = RecordingApp(), RecordingApp()
    address = f"tcp://127.0.0.1:{free_port()}"
    async with Client(address, timeout=0.3) as client:
        async with running(before, address=address) as node:
            name = node.node
            stream = await client.stream("clicks")
            await stream.send_many(clicks(10))
            assert await stream.flush() == []
        await stream.send_many(clicks(10, 10))
        with trio.fail_after(DEADLINE), pytest.raises(StageBroken) as caught:
            await stream.flush()
        drain = f"{address} takes no more: {name} is stopping"
        told = f"no answer from {address} for 0.3 s; {drain}; 10 events have no verdict"
        assert told in str(caught.value)
        async with running(after, address=address):
            await until(lambda: len(after.seen) == 10)
            assert await stream.flush() == []
    assert before.numbers + after.numbers == list(range(20))


async def test_a_final_error_that_was_raised_is_not_raised_again_by_leaving() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    async with Client(address) as client:
        async with running(RecordingApp(), partitions=3, address=address):
            stream = await client.stream("clicks")
            await stream.send_many(clicks(10))
            assert await stream.flush() == []
        async with running(RecordingApp(), partitions=5, address=address):
            await until(lambda: stream._outbox.error)
            with pytest.raises(EventError, match="had 3 partitions and now has 5") as caught:
                await client.flush()
            assert str(caught.value).endswith("(in a program, open a new Client or SyncClient)")
            async with Client(address) as new:
                await (await new.stream("clicks")).send(Click("ann"))


async def test_a_final_error_that_was_not_raised_is_raised_by_leaving() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    client = await Client(address).__aenter__()
    async with running(RecordingApp(), partitions=3, address=address):
        first, second = [await client.stream(name) for name in ("clicks", "others")]
    async with running(RecordingApp(), partitions=5, address=address):
        await until(lambda: first._outbox.error and second._outbox.error)
        with pytest.raises(EventError, match="'clicks' had 3 partitions and now has 5"):
            await client.flush()
    with pytest.raises(EventError, match="'others' had 3 partitions and now has 5"):
        await client.__aexit__(None, None, None)


async def test_events_left_by_a_final_error_are_reported_when_the_client_is_left() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with capture_logs() as logs:
        async with Client(address) as client:
            async with running(RecordingApp(), partitions=3, address=address):
                stream = await client.stream("clicks")
            await stream.send_many(clicks(10))
            async with running(RecordingApp(), partitions=5, address=address):
                await until(lambda: stream._outbox.error)
                with pytest.raises(EventError, match="had 3 partitions and now has 5"):
                    await stream.flush()
    (told,) = [log for log in logs if log["event"] == "events stay unacknowledged"]
    assert (told["stream"], told["events"]) == ("clicks", 10)


async def left_by(error: BaseException, address: str, events: list[Click]) -> None:
    async with Client(address) as client:
        stream = await client.stream("clicks")
        await stream.send_many(events)
        raise error


@pytest.mark.parametrize("status", [0, None])
async def test_a_block_that_sys_exit_leaves_without_an_error_waits_for_all_verdicts(
    status: int | None,
) -> None:
    noted = RecordingApp()
    async with running(noted) as node:
        with pytest.raises(SystemExit) as ended:
            await left_by(SystemExit(status), node.address, clicks(2000))
        assert ended.value.code is status
        assert noted.numbers == list(range(2000))


async def test_a_block_in_a_generator_that_is_closed_waits_for_all_verdicts() -> None:
    noted = RecordingApp()

    async def sending(address: str) -> AsyncGenerator[int, None]:
        async with Client(address) as client:
            stream = await client.stream("clicks")
            for click in clicks(3000):
                await stream.send(click)
                yield click.n

    async with running(noted) as node:
        async with aclosing(sending(node.address)) as numbers:
            async for number in numbers:
                if number == 1999:
                    break
        assert noted.numbers == list(range(2000))


async def test_a_block_that_an_error_leaves_says_how_many_events_are_given_up() -> None:
    app = HoldingApp()
    async with running(app) as node:
        with capture_logs() as logs, pytest.raises(ValueError, match="by the user"):
            await left_by(ValueError("by the user"), node.address, [Click("joe")] * 3)
        app.may_go_on.set()
    (told,) = [log for log in logs if log["event"] == "events stay unacknowledged"]
    assert (told["stream"], told["events"]) == ("clicks", 3)
    assert told["reason"] == "the block was left by ValueError"


async def test_the_older_of_two_clients_with_one_producer_id_is_told() -> None:
    noted = RecordingApp()
    async with running(noted) as node, Client(node.address, producer="web") as older:
        first = await older.stream("clicks")
        async with Client(node.address, producer="web") as newer:
            second = await newer.stream("clicks")
            await until(lambda: first._outbox.error)
            with pytest.raises(EventError, match="give each client a producer id of its own"):
                await first.flush()
            older.abandon()
            await second.send(Click("ann", 2))
            assert await second.flush() == []
    assert noted.numbers == [2]


@pytest.mark.parametrize("leave", ["in order", "abandoned"])
async def test_a_producer_that_comes_back_under_its_id_goes_on(leave: str) -> None:
    noted = RecordingApp()
    async with running(noted) as node:
        for life in range(3):
            async with Client(node.address, producer="web") as client:
                stream = await client.stream("clicks")
                await stream.send_many(clicks(100, life * 100))
                assert await stream.flush() == []
                assert stream.counts["admitted"] == 100
                if leave == "abandoned":
                    client.abandon()
            await until(lambda: not node.listener.connections)
    assert noted.numbers == list(range(300))


async def test_an_address_may_be_a_name() -> None:
    noted = RecordingApp()
    async with running(noted) as node:
        port = node.address.rsplit(":", 1)[1]
        async with Client(f"tcp://localhost:{port}") as client:
            await (await client.stream("clicks")).send(Click("ann", 1))
    assert noted.numbers == [1]


@pytest.mark.skipif(not socket.has_ipv6, reason="a machine without IPv6")
async def test_an_address_may_be_ipv6() -> None:
    noted = RecordingApp()
    async with running(noted, address="tcp://[::1]:0") as node, Client(node.address) as client:
        await (await client.stream("clicks")).send(Click("ann", 1))
        assert node.address.startswith("tcp://[::1]:")
    assert noted.numbers == [1]


class Cart(Event):
    user: str
    items: list[int]


def typed(items: list[int]) -> Any:
    return Cart("joe", items)


def generic(items: list[int]) -> Any:
    return GenericEvent(user="joe", items=items)


SENT = [[0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize(("make", "types"), [(typed, Cart), (generic, GenericEvent)])
async def test_a_program_may_go_on_to_change_what_it_has_sent(make: Any, types: Any) -> None:
    app = NotingApp("carts", types=types, note=lambda _, event: list(event.items))
    async with running(app) as node, Client(node.address) as client:
        stream = await client.stream("carts")
        items: list[int] = []
        for n in range(3):
            items.append(n)
            await stream.send(make(items))
        for n in range(3, 5):
            items.append(n)
            await stream.send_many([make(items)])
        items.append(5)
        stream.send_nowait(make(items))
        items.append(6)
        assert await stream.flush() == []
    assert app.seen == [*SENT, [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize(("make", "types"), [(typed, Cart), (generic, GenericEvent)])
async def test_so_may_a_program_with_a_sync_client(make: Any, types: Any) -> None:
    app = NotingApp("carts", types=types, note=lambda _, event: list(event.items))

    def work(address: str) -> None:
        with SyncClient(address) as client:
            stream = client.stream("carts")
            items: list[int] = []
            for n in range(3):
                items.append(n)
                stream.send(make(items))
            items.append(3)
            stream.send_many([make(items)])
            items.append(4)
            assert stream.flush() == []

    async with running(app) as node:
        await in_thread(lambda: work(node.address))
    assert app.seen == [*SENT, [0, 1, 2, 3]]
