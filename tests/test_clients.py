"""The trio client and the synchronous one, against running nodes with real sockets."""

from __future__ import annotations

import json
import socket
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pynng
import pytest
import trio
from harness import (
    DEADLINE,
    environment,
    free_port,
    in_thread,
    node_process,
    proxy,
    running,
    together,
    until,
)
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from s4node import App, Client, Event, GenericEvent, ProcessingElement, SyncClient
from s4node.comm.frame import WINDOW_BYTES
from s4node.errors import (
    ConfigError,
    ConnectionRefused,
    EventError,
    StageBroken,
    StageClosed,
    WouldBlock,
)

if TYPE_CHECKING:
    from pathlib import Path

    from s4node import Refusal


class Click(Event):
    user: str
    n: int = 0


class Buy(Event):
    user: str
    cents: int = 0


class Noted:
    """An app that notes what it gets; ``hold`` makes it wait in its next handler."""

    def __init__(self, **options: Any) -> None:
        self.seen: list[Any] = []
        self.held = False
        self.release = trio.Event()
        noted = self

        class Note(ProcessingElement):
            async def on_event(self, event: Any) -> None:
                if noted.held:
                    await noted.release.wait()
                noted.seen.append(event)

        self.app = App("notes")
        note = self.app.create_pe(Note)
        options = {"key": "user", "types": Click, **options}
        self.app.create_input_stream("clicks", note, **options)
        self.app.create_input_stream("others", note, **options)

    @property
    def numbers(self) -> list[int]:
        return [event.n for event in self.seen]

    def hold(self) -> None:
        self.held = True


SMALL = {"s4.stream.workQueueSize": "100"}


def clicks(count: int, start: int = 0) -> list[Click]:
    return [Click("ann", n) for n in range(start, start + count)]


# -- sending --------------------------------------------------------------------------------------


async def test_send_send_many_and_send_nowait_keep_their_order() -> None:
    noted = Noted()
    async with running(noted.app) as node, Client(node.address) as client:
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
    noted = Noted()
    async with running(noted.app) as node:
        async with Client(node.address) as client:
            await (await client.stream("clicks")).send_many(clicks(5000))
            await (await client.stream("others")).send_many(clicks(5000))
        assert len(noted.seen) == 10_000


async def test_one_quiet_event_is_processed_without_a_flush() -> None:
    noted = Noted()
    async with running(noted.app) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        for n in range(5):
            await stream.send(Click("ann", n))
            await until(lambda n=n: len(noted.seen) == n + 1)


async def test_a_client_tells_what_the_app_takes() -> None:
    noted = Noted(types=[Click, Buy])
    async with running(noted.app, partitions=3) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        assert stream.name == "clicks"
        assert stream.partitions == 3
        assert [kind.name for kind in stream.types] == ["Click", "Buy"]
        assert await client.stream("clicks") is stream


async def test_tasks_that_open_one_stream_at_the_same_time_share_it() -> None:
    noted = Noted()
    async with running(noted.app) as node, Client(node.address) as client:

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

    noted = Noted(key=find)
    async with running(noted.app) as node, Client(node.address) as client:
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


async def test_refusals_of_large_events_are_all_told() -> None:
    noted = Noted(key=lambda event: None)
    async with running(noted.app) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        await stream.send_many([Click("x" * 100_000, n) for n in range(300)])
        refused = await stream.flush()
    assert [r.number for r in refused] == list(range(300))
    assert max(len(r.reason) for r in refused) <= 500


async def test_refusals_that_nobody_asked_for_are_told_when_the_client_is_left() -> None:
    noted = Noted(key=lambda event: None)
    with capture_logs() as logs:
        async with running(noted.app) as node, Client(node.address) as client:
            await (await client.stream("clicks")).send_many(clicks(3))
    (warning,) = [log for log in logs if log["event"].startswith("events were not processed")]
    assert (warning["log_level"], warning["events"]) == ("warning", 3)
    assert "the KeyFinder returned nothing" in warning["reason"]


async def test_take_refusals_does_not_wait() -> None:
    noted = Noted(key=lambda event: None)
    async with running(noted.app) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        assert stream.take_refusals() == []
        await stream.send(Click("ann", 1))
        taken: list[Refusal] = []
        await until(lambda: taken.extend(stream.take_refusals()) or taken)
        assert [r.number for r in taken] == [0]


# -- back pressure --------------------------------------------------------------------------------


async def test_a_full_queue_makes_send_wait_and_send_nowait_raise() -> None:
    noted = Noted()
    noted.hold()
    async with (
        running(noted.app, SMALL) as node,
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
        with pytest.raises(WouldBlock, match="500 events wait already"):
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
            noted.release.set()
        assert await stream.flush() == []
        assert stream.pressure == 0
    assert sent > 1500
    assert noted.numbers == list(range(sent))


LARGE = "x" * 100_000
MOST = WINDOW_BYTES // len(LARGE) + 30  # of those; a node's first credit, and an envelope or two


async def test_send_waits_when_large_events_take_too_much_memory_and_loses_none() -> None:
    noted = Noted(key="n")
    noted.hold()
    async with running(noted.app) as node, Client(node.address) as client:
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
            with pytest.raises(WouldBlock, match=r"wait already, and take about [0-9]{8} bytes"):
                stream.send_nowait(Click("ann", 0))
            noted.release.set()
        assert await stream.flush() == []
    assert noted.numbers == list(range(1500))


async def test_a_send_that_is_cancelled_while_it_waits_has_taken_its_event() -> None:
    noted = Noted()
    noted.hold()
    async with (
        running(noted.app, SMALL) as node,
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
        noted.release.set()
        assert await stream.flush() == []
    assert noted.numbers == list(range(n + 300))


# -- leaving --------------------------------------------------------------------------------------


async def test_an_exception_leaves_the_block_as_it_is() -> None:
    noted = Noted()
    noted.hold()
    async with running(noted.app) as node:

        async def work() -> None:
            async with Client(node.address) as client:
                await (await client.stream("clicks")).send(Click("ann"))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as caught:
            await work()
        assert caught.type is ZeroDivisionError
        noted.release.set()


async def test_a_group_that_the_block_raises_stays_that_group() -> None:
    async with running(Noted().app) as node:
        group = ExceptionGroup("mine", [ValueError("one"), KeyError("two")])
        with pytest.raises(ExceptionGroup) as caught:
            async with Client(node.address):
                raise group
        assert caught.value is group


async def test_a_cancelled_block_is_left_at_once_and_nothing_waits_for_a_verdict() -> None:
    noted = Noted()
    noted.hold()
    async with running(noted.app) as node:
        with trio.CancelScope() as scope:
            async with Client(node.address) as client:
                await (await client.stream("clicks")).send_many(clicks(10))
                await until(lambda: node.statistics().admitted["clicks"] == 10)
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
        with trio.move_on_after(0.1) as scope:
            async with Client(node.address) as client:
                await (await client.stream("clicks")).send_many(clicks(10))
        assert scope.cancelled_caught
        noted.release.set()


async def test_an_abandoned_client_leaves_without_waiting() -> None:
    noted = Noted()
    noted.hold()
    async with running(noted.app) as node:
        with trio.fail_after(5):
            async with Client(node.address) as client:
                await (await client.stream("clicks")).send(Click("ann"))
                client.abandon()
        noted.release.set()


async def test_a_client_outside_of_its_block_says_so() -> None:
    async with running(Noted().app) as node:
        client = Client(node.address)
        with pytest.raises(StageClosed, match="use it in 'async with'"):
            await client.stream("clicks")
        async with client:
            stream = await client.stream("clicks")
        with pytest.raises(StageClosed, match="the client is closed"):
            await stream.send_many(clicks(1))
        with pytest.raises(StageClosed, match="use it in 'async with'"):
            await client.stream("others")


# -- what cannot be sent --------------------------------------------------------------------------


async def test_no_node_is_told_in_time_with_the_address() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    began = trio.current_time()
    async with Client(address, timeout=0.3) as client:
        with pytest.raises(ConnectionRefused, match=r"no answer within 0\.3 s") as caught:
            await client.stream("clicks")
    assert address in str(caught.value)
    assert trio.current_time() - began < 5


async def test_a_port_that_answers_nothing_is_told_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        async with Client(address, timeout=0.3) as client:
            with pytest.raises(ConnectionRefused, match="is the node running"):
                await client.stream("clicks")


async def test_a_node_that_starts_later_is_found() -> None:
    noted = Noted()
    address = f"tcp://127.0.0.1:{free_port()}"
    async with Client(address) as client, trio.open_nursery() as nursery:

        async def late() -> None:
            async with running(noted.app, address=address):
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
async def test_an_address_that_is_none_is_a_plain_error(address: str) -> None:
    with pytest.raises(ConfigError, match=r"is no address; write tcp://host:port"):
        async with Client(address):
            raise AssertionError("it must not open")


async def test_a_stream_that_the_app_does_not_have_is_told_with_those_it_has() -> None:
    noted = Noted()
    async with running(noted.app) as node, Client(node.address) as client:
        with pytest.raises(ConnectionRefused, match="its input streams: clicks, others"):
            await client.stream("click")
        stream = await client.stream("clicks")
        await stream.send_many(clicks(10))
        assert await stream.flush() == []
    assert len(noted.seen) == 10


async def test_an_event_over_the_frame_limit_is_refused_and_the_stream_lives() -> None:
    noted = Noted()
    async with running(noted.app) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        large = Click("x" * 300_000, 5)
        await stream.send_many([*clicks(5), large, *clicks(994, 6)])
        (refused,) = await stream.flush()
        assert stream.counts["unsent"] == 1
        assert stream.counts["admitted"] == 999
    assert noted.numbers == [n for n in range(1000) if n != 5]
    assert "over the frame limit of 262144 (s4.sender.maxFrameBytes)" in refused.reason


async def test_an_event_over_the_nodes_own_limit_is_refused_and_the_stream_lives() -> None:
    noted = Noted()
    settings = {"s4.listener.maxFrameBytes": "4096"}
    async with running(noted.app, settings) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        await stream.send_many([*clicks(500), Click("x" * 5000, 500), *clicks(499, 501)])
        (refused,) = await stream.flush()
    assert noted.numbers == [n for n in range(1000) if n != 500]
    assert "over the node's limit of 4096 (s4.listener.maxFrameBytes)" in refused.reason


async def test_an_event_that_cannot_be_encoded_is_refused_and_the_others_go_on() -> None:
    noted = Noted(types=GenericEvent)
    async with running(noted.app) as node, Client(node.address) as client:
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
async def test_what_is_no_event_is_an_error_at_once_and_the_stream_lives(thing: Any) -> None:
    noted = Noted()
    async with running(noted.app) as node, Client(node.address) as client:
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
    noted = Noted()
    async with running(noted.app) as node, Client(node.address) as client:
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

    noted = Noted()
    async with running(noted.app, partitions=3) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        await stream.send_many([Click("ann", 0), Stray("here"), Click("bob", 1)])
        (refused,) = await stream.flush()
        assert refused.reason.startswith("stream 'clicks' takes Click, not 'Stray'; send one of")
    assert sorted(noted.numbers) == [0, 1]


async def test_flush_says_in_time_that_the_node_has_gone_and_keeps_the_events() -> None:
    before, after = Noted(), Noted()
    address = f"tcp://127.0.0.1:{free_port()}"
    async with Client(address, timeout=0.3) as client:
        async with running(before.app, address=address):
            stream = await client.stream("clicks")
            await stream.send_many(clicks(10))
            assert await stream.flush() == []
        await stream.send_many(clicks(10, 10))
        with trio.fail_after(DEADLINE), pytest.raises(StageBroken) as caught:
            await stream.flush()
        assert f"nobody answers at {address} for 0.3 s; 10 events have no verdict" in str(
            caught.value
        )
        async with running(after.app, address=address):
            await until(lambda: len(after.seen) == 10)
            assert await stream.flush() == []
    assert before.numbers + after.numbers == list(range(20))


async def test_of_two_clients_with_one_producer_id_the_older_is_told() -> None:
    noted = Noted()
    async with running(noted.app) as node, Client(node.address, producer="web") as older:
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
    noted = Noted()
    async with running(noted.app) as node:
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
    noted = Noted()
    async with running(noted.app) as node:
        port = node.address.rsplit(":", 1)[1]
        async with Client(f"tcp://localhost:{port}") as client:
            await (await client.stream("clicks")).send(Click("ann", 1))
    assert noted.numbers == [1]


@pytest.mark.skipif(not socket.has_ipv6, reason="a machine without IPv6")
async def test_an_address_may_be_ipv6() -> None:
    noted = Noted()
    async with running(noted.app, address="tcp://[::1]:0") as node, Client(node.address) as client:
        await (await client.stream("clicks")).send(Click("ann", 1))
        assert node.address.startswith("tcp://[::1]:")
    assert noted.numbers == [1]


# -- the synchronous client -----------------------------------------------------------------------


async def test_the_sync_client_sends_from_a_plain_thread_in_order() -> None:
    noted = Noted()
    async with running(noted.app) as node:

        def work() -> None:
            with SyncClient(node.address) as client:
                stream = client.stream("clicks")
                assert stream.partitions == 1
                for n in range(3000):
                    stream.send(Click("ann", n))
                stream.send_many(clicks(2000, 3000))
                for n in range(5000, 5003):
                    stream.send(Click("ann", n))
                assert stream.flush() == []
                assert stream.counts["admitted"] == 5003
                stream.send(Click("ann", 5003))

        await in_thread(work)
    assert noted.numbers == list(range(5004))


async def test_two_threads_with_clients_of_their_own_do_not_disturb_each_other() -> None:
    noted = Noted()
    async with running(noted.app, partitions=2) as node:

        def work(user: str) -> None:
            with SyncClient(node.address) as client:
                stream = client.stream("clicks")
                for n in range(4000):
                    stream.send(Click(user, n))

        await together(
            lambda: in_thread(lambda: work("ann")), lambda: in_thread(lambda: work("bob"))
        )
    for user in ("ann", "bob"):
        assert [event.n for event in noted.seen if event.user == user] == list(range(4000))


async def test_the_sync_client_returns_refusals() -> None:
    noted = Noted(key=lambda event: event.user if event.n % 2 else None)
    async with running(noted.app) as node:

        def work() -> None:
            with SyncClient(node.address) as client:
                stream = client.stream("clicks")
                stream.send_many(clicks(10))
                refused = client.flush()
                assert [r.number for r in refused] == [0, 2, 4, 6, 8]
                assert "the KeyFinder returned nothing" in refused[0].reason

        await in_thread(work)


async def test_an_exception_leaves_the_sync_clients_block_as_it_is_and_nothing_waits() -> None:
    noted = Noted()
    noted.hold()
    async with running(noted.app) as node:

        def work() -> None:
            with SyncClient(node.address) as client:
                client.stream("clicks").send_many(clicks(10))
                raise ZeroDivisionError

        before = threading.active_count()
        with pytest.raises(ZeroDivisionError):
            await in_thread(work)
        await until(lambda: threading.active_count() <= before)
        noted.release.set()


async def test_what_is_no_event_is_an_error_in_the_line_that_sends_it() -> None:
    noted = Noted()
    async with running(noted.app) as node:

        def work() -> None:
            with SyncClient(node.address) as client:
                stream = client.stream("clicks")
                stream.send(Click("ann", 1))
                with pytest.raises(EventError, match="is not an event type"):
                    stream.send("text")
                with pytest.raises(EventError, match="is not an event type"):
                    stream.send_many([Click("ann", 99), "text"])
                stream.send(Click("ann", 2))

        await in_thread(work)
    assert noted.numbers == [1, 2]


async def test_the_sync_client_is_told_of_a_type_that_the_app_does_not_take() -> None:
    noted = Noted()
    async with running(noted.app) as node:

        def work() -> None:
            with SyncClient(node.address) as client:
                stream = client.stream("clicks")
                stream.send(Click("ann", 1))
                stream.send(Buy("ann", 5))
                (refused,) = stream.flush()
                assert refused.reason.startswith("stream 'clicks' takes Click, not 'Buy'")
                stream.send(Buy("ann", 6))
                stream.send(Click("ann", 2))
                (refused,) = stream.flush()
                assert refused.reason.startswith("stream 'clicks' takes Click, not 'Buy'")

        await in_thread(work)
    assert noted.numbers == [1, 2]


async def test_envelopes_stay_within_what_the_node_reads() -> None:
    noted = Noted()
    small = {"s4.listener.maxEnvelopeBytes": "2048"}
    async with running(noted.app, small) as node, Client(node.address) as client:
        stream = await client.stream("clicks")
        await stream.send_many(clicks(20_000))
        await stream.send(Click("x" * 3000, 20_000))
        (refused,) = await stream.flush()
        assert "over the node's limit of 1024" in refused.reason
        assert node.statistics().peers["connections"] == 1
    assert noted.numbers == list(range(20_000))


async def test_the_sync_client_freezes_a_generic_event_in_the_line_that_sends_it() -> None:
    noted = Noted(types=GenericEvent)
    async with running(noted.app) as node:

        def work() -> None:
            with SyncClient(node.address) as client:
                stream = client.stream("clicks")
                for n in range(200):
                    event = GenericEvent(user="ann", n=n)
                    stream.send(event)
                    with pytest.raises(EventError, match="already sent"):
                        event.put("n", -1)

        await in_thread(work)
    assert noted.numbers == list(range(200))


@pytest.mark.parametrize("way", ["send", "send_many"])
async def test_a_full_queue_makes_the_sync_client_wait(way: str) -> None:
    noted = Noted()
    noted.hold()
    sent = 0
    async with running(noted.app, SMALL) as node, trio.open_nursery() as nursery:

        def work() -> None:
            nonlocal sent
            with SyncClient(node.address, queue_size=500) as client:
                stream = client.stream("clicks")
                for n in range(0, 10_000, 10):
                    if way == "send":
                        for more in range(10):
                            stream.send(Click("ann", n + more))
                    else:
                        stream.send_many(clicks(10, n))
                    sent = n + 10
                    threading.Event().wait(0.0001)  # slow enough for the client's thread

        nursery.start_soon(in_thread, work)
        await until(lambda: sent >= 500)
        last, since = -1, trio.current_time()
        while trio.current_time() - since < 0.5:  # until it has stood still for a while
            if sent != last:
                last, since = sent, trio.current_time()
            await trio.sleep(0.01)
        assert sent < 2000
        noted.release.set()
    assert noted.numbers == list(range(10_000))


async def test_the_sync_client_waits_when_large_events_take_too_much_memory() -> None:
    noted = Noted(key="n")
    noted.hold()
    sent = 0
    async with running(noted.app) as node:

        def work() -> None:
            nonlocal sent
            with SyncClient(node.address) as client:
                stream = client.stream("clicks")
                for _ in range(1000):
                    stream.send(Click(LARGE, sent))
                    sent += 1
                assert stream.flush() == []

        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, work)
            before = -1
            while sent != before:  # until it waits
                before = sent
                await trio.sleep(0.2)
            assert MOST - 100 < sent < MOST
            noted.release.set()
    assert noted.numbers == list(range(1000))


async def test_the_sync_client_is_told_in_time_that_there_is_no_node() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"

    def work() -> None:
        with SyncClient(address, timeout=0.3) as client:
            client.stream("clicks")

    with trio.fail_after(DEADLINE), pytest.raises(ConnectionRefused, match=r"within 0\.3 s"):
        await in_thread(work)


async def test_the_sync_client_says_plainly_that_an_address_is_none() -> None:
    def work() -> None:
        with SyncClient("nonsense"):
            raise AssertionError("it must not open")

    with pytest.raises(ConfigError, match="'nonsense' is no address"):
        await in_thread(work)


async def test_a_sync_client_outside_of_its_block_says_so() -> None:
    async with running(Noted().app) as node:

        def work() -> None:
            client = SyncClient(node.address)
            with pytest.raises(StageClosed, match="use it in 'with'"):
                client.stream("clicks")
            with client:
                stream = client.stream("clicks")
            with pytest.raises(StageClosed, match="use it in 'with'"):
                stream.send(Click("ann"))

        await in_thread(work)


HELLO = """
from s4node import App, ProcessingElement
class Hello(ProcessingElement):
    def on_event(self, event): print(f"Hello {event['name']}!", flush=True)
app = App("hello")
app.create_input_stream("names", app.create_pe(Hello), key="name")
"""

SCRIPT = """
import sys
from s4node import GenericEvent, SyncClient
with SyncClient(sys.argv[1]) as client:
    names = client.stream("names")
    for name in ("ann", "bob"):
        names.send(GenericEvent(name=name))
    print(names.flush(), names.counts["admitted"])
"""


@pytest.mark.slow
async def test_a_plain_script_sends_to_a_node_process(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(HELLO)
    async with node_process("hello.py", cwd=tmp_path) as node:
        done = await trio.run_process(
            [sys.executable, "-c", SCRIPT, node.address],
            capture_stdout=True,
            capture_stderr=True,
            env=environment(),
            cwd=tmp_path,
        )
        assert (done.stdout, done.stderr) == (b"[] 2\n", b"")
        await until(lambda: node.stdout == ["Hello ann!", "Hello bob!"])


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 400 Bad\r\n\r\n", b"S4\x01\x00" + b"\xff" * 40, b"S4\x09\x00", b"S4\x01\x00"],
    ids=["nothing", "http", "rubbish", "another version", "an empty envelope"],
)  # fmt: skip
async def test_a_peer_that_answers_garbage_is_told_of_and_not_waited_for(
    answer: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with pynng.Pair0(listen="tcp://127.0.0.1:0") as peer:
        port = int.from_bytes(
            peer.listeners[0].local_address.port.to_bytes(2, sys.byteorder), "big"
        )
        address = f"tcp://127.0.0.1:{port}"

        async def answers() -> None:
            while True:
                await peer.arecv()
                await peer.asend(answer)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answers)
            async with Client(address, timeout=0.5) as client:
                with pytest.raises(
                    ConnectionRefused, match=f"at {address}: no answer within 0.5 s; "
                ) as refused:
                    await client.stream("clicks")
                with pytest.raises(ConnectionRefused):
                    async with client.subscribe("clicks"):
                        raise AssertionError
            nursery.cancel_scope.cancel()
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    bad = [line["address"] for line in told if line["event"].startswith("bad frame")]
    if answer == b"S4\x01\x00":
        assert bad == []
        assert "what listens there is no node" in str(refused.value)
    else:
        assert bad == [address, address]  # the client's link, and the subscription's
        assert "with no frame of s4node" in str(refused.value)


SP = bytes.fromhex("00 53 50 00 00 10 00 00")
GARBAGE = SP + (4).to_bytes(8, "big") + b"zzzz"


class Stranger:
    """Another program's port: answers the same to all that connect, and hangs up."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.address = ""
        self.connections = 0

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.address = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
        await trio.serve_listeners(self._meet, [listener], task_status=task_status)

    async def _meet(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        with suppress(trio.BrokenResourceError):
            await stream.send_all(self.answer)
            await stream.receive_some()
        await stream.aclose()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (GARBAGE, "with no frame of s4node"),
        (b"HTTP/1.0 400 Bad\r\n\r\n", "is no node: it answered b'HTTP/1.0'; its port may be "),
        (b"", "as many connections as s4.listener.maxConnections"),
    ],
    ids=["garbage", "http", "nothing"],
)
async def test_what_hangs_up_after_a_wrong_answer_is_dialled_seldom_and_named(
    answer: bytes, told: str
) -> None:
    stranger = Stranger(answer)
    async with trio.open_nursery() as nursery:
        await nursery.start(stranger.serve)
        with capture_logs() as logs:
            async with Client(stranger.address, timeout=1) as client:
                with pytest.raises(ConnectionRefused) as refused:
                    await client.stream("clicks")
        nursery.cancel_scope.cancel()
    assert f"stream 'clicks' at {stranger.address}: no answer within 1 s; " in str(refused.value)
    assert told in str(refused.value)
    assert (
        2 <= stranger.connections <= 20
    )  # at a random time within 50 ms each it would be about 40
    assert len(logs) == (2 if answer == GARBAGE else 0)


async def test_flush_says_that_another_program_has_taken_the_node_s_port() -> None:
    noted, stranger = Noted(), Stranger(GARBAGE)
    async with (
        running(noted.app) as node,
        proxy(node.address) as between,
        trio.open_nursery() as nursery,
        Client(between.address, timeout=0.3) as client,
    ):
        await nursery.start(stranger.serve)
        stream = await client.stream("clicks")
        between.redirect(stranger.address)
        between.cut()
        await until(lambda: stranger.connections)
        await stream.send_many(clicks(10))
        with pytest.raises(StageBroken) as caught:
            await stream.flush()
        assert "with no frame of s4node" in str(caught.value)
        assert "10 events have no verdict" in str(caught.value)
        between.redirect(node.address)
        between.cut()
        await until(lambda: len(noted.numbers) == 10)
        assert await stream.flush() == []
        nursery.cancel_scope.cancel()
    assert noted.numbers == list(range(10))
