"""Programs outside know several nodes, of which any may be down when they start."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import DEADLINE, free_port, in_thread, run_s4, running, s4_process, until
from recording_app import RecordingApp
from several_containers import nodes
from shared_apps import Click, Total
from test_subscription import sums

from s4node import Client, Oldest, SyncClient
from s4node.errors import ConfigError, ConnectionRefused, EventError, StageClosed


@pytest.mark.parametrize("first", [True, False])
async def test_a_client_sends_and_reads_though_one_of_its_nodes_is_down(first: bool) -> None:
    async with running(sums()) as node:
        places = [dead(), node.address] if first else [node.address, dead()]
        with trio.fail_after(DEADLINE):
            async with Client(places) as client, client.subscribe("totals", types=Total) as totals:
                clicks = await client.stream("clicks")
                await clicks.send(Click("joe"))
                assert await clicks.flush() == []
                assert await anext(totals) == Total("joe", 1)


async def test_a_node_that_a_client_knows_by_two_addresses_is_read_once() -> None:
    async with running(sums()) as node:
        places = [node.address, node.address.replace("127.0.0.1", "localhost")]
        async with Client(places) as client, client.subscribe("totals", types=Total) as totals:
            clicks = await client.stream("clicks")
            for _ in range(3):
                await clicks.send(Click("joe"))
            await clicks.flush()
            assert [await anext(totals) for _ in range(3)] == [Total("joe", n) for n in (1, 2, 3)]
            assert (await anext(totals)).user == "joe"  # the alarm of the third click
            await clicks.send(Click("ann"))
            assert await anext(totals) == Total("ann", 1)


async def test_a_client_finds_all_nodes_of_a_cluster_from_one_that_is_up(tmp_path: Path) -> None:
    async with nodes(tmp_path, sums, 2, partitions=4) as (cluster, _):
        one, two = cluster.containers.values()
        async with Client([dead(), two.address]) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many([Click(f"user-{n}") for n in range(100)])
            assert await clicks.flush() == []
            assert clicks.counts["admitted"] == 100
        assert one.processed > 0
        assert two.processed > 0


async def test_where_no_node_is_up_all_addresses_are_named() -> None:
    places = [dead(), dead()]
    told = rf"at {places[0]}, {places[1]}: no answer within 0\.3 s; is the node running"
    async with Client(places, timeout=0.3) as client:
        with pytest.raises(ConnectionRefused, match=told):
            await client.stream("clicks")
        with pytest.raises(ConnectionRefused, match=told):
            async with client.subscribe("totals"):
                pass
    with pytest.raises(ConfigError, match="needs the address of a node"):
        Client([])


async def test_a_stream_that_the_node_which_is_up_does_not_have_is_told() -> None:
    async with running(sums()) as node, Client([dead(), node.address]) as client:
        with pytest.raises(ConnectionRefused, match="puts nothing on a stream 'nothing'"):
            async with client.subscribe("nothing"):
                pass


async def test_send_and_tail_take_several_addresses(tmp_path: Path) -> None:
    async with running(sums()) as node:
        to = ("--to", node.address, "--to", dead())
        tail = s4_process("tail", "totals", "--count", "1", *to, cwd=tmp_path, ready=False)
        async with tail as reader:
            with trio.fail_after(DEADLINE):
                while not reader.stdout:  # it reads from when it has connected
                    event = b'{"user": "joe"}\n'
                    sent = await run_s4("send", "clicks", *to, cwd=tmp_path, stdin=event)
                    assert sent.returncode == 0
            assert '"user":"joe"' in reader.stdout[0]


# -- the plain synchronous client ------------------------------------------------------------------


async def test_the_sync_client_reads_what_comes_from_its_hello_on() -> None:
    async with running(sums()) as node:

        def work() -> None:
            with SyncClient([dead(), node.address]) as client:
                clicks = client.stream("clicks")
                with client.subscribe("totals", types=Total) as totals:
                    clicks.send_many([Click("joe"), Click("ann"), Click("joe")])
                    assert clicks.flush() == []
                    found = [next(totals) for _ in range(3)]
                    assert found == [Total("joe", 1), Total("ann", 1), Total("joe", 2)]
                    assert (totals.missed, totals.interruptions, totals.positions) == (0, 0, {})
                with pytest.raises(StageClosed, match="the subscription to 'totals' is closed"):
                    next(totals)
                with client.subscribe("totals", types=Total) as totals:
                    clicks.send(Click("eve"))
                    for total in totals:
                        assert total == Total("eve", 1)
                        break

        await in_thread(work)


async def test_the_sync_client_reads_a_log_from_any_start(tmp_path: Path) -> None:
    async with s4_process(
        "node",
        "shop",
        "--folder",
        "nodes",
        "-p",
        "s4.log.folder=log",
        "-p",
        "s4.listener.address=tcp://127.0.0.1:0",
        cwd=tmp_path,
    ) as node:
        await run_s4("log", "create", "words", "--to", node.address, cwd=tmp_path)

        def work() -> None:
            with SyncClient(node.address) as client:
                words = client.stream("words")
                words.send_many([Click("joe", n) for n in range(5)])
                assert words.flush() == []
                with client.subscribe("words", types=Click, start=Oldest()) as events:
                    assert [next(events).n for _ in range(3)] == [0, 1, 2]
                    assert events.place == (0, 2)
                    positions = events.positions
                with client.subscribe("words", types=Click, start=positions) as events:
                    assert [next(events).n for _ in range(2)] == [3, 4]

        await in_thread(work)


async def test_errors_of_the_sync_client_show_nothing_of_what_is_inside() -> None:
    address = dead()

    def told(call: object) -> str:
        try:
            call()  # type: ignore[operator]
        except Exception as error:
            return "".join(traceback.format_exception(error))
        raise AssertionError("it is an error")

    async with running(sums()) as node:

        def work() -> None:
            with SyncClient(address, timeout=0.3) as client:
                refused = told(lambda: client.stream("clicks"))
                unread = told(lambda: client.subscribe("totals").__enter__())
            with SyncClient(node.address) as client:
                unknown = told(lambda: client.stream("nothing"))
                clicks = client.stream("clicks")
                no_event = told(lambda: clicks.send_many([Click("joe"), 3]))
            closed = told(lambda: clicks.flush())
            nonsense = told(lambda: SyncClient("nonsense").__enter__())
            for text in (refused, unread, unknown, no_event, closed, nonsense):
                assert "site-packages/trio" not in text
                assert "During handling" not in text
                assert text.count("Traceback") == 1
                assert len(text.splitlines()) < 20

        await in_thread(work)


async def test_send_many_takes_all_events_or_none() -> None:
    noted = RecordingApp()
    async with running(noted) as node, Client(node.address) as client:
        clicks = await client.stream("clicks")

        def breaks_off() -> object:
            yield Click("ann", 1)
            raise ValueError("no more")

        with pytest.raises(EventError):
            await clicks.send_many([Click("ann", 1), 3, Click("ann", 2)])
        with pytest.raises(ValueError, match="no more"):
            await clicks.send_many(breaks_off())  # type: ignore[arg-type]

        def work() -> None:
            with SyncClient(node.address) as plain:
                stream = plain.stream("clicks")
                with pytest.raises(EventError):
                    stream.send_many([Click("ann", 1), 3, Click("ann", 2)])
                with pytest.raises(ValueError, match="no more"):
                    stream.send_many(breaks_off())  # type: ignore[arg-type]
                assert stream.flush() == []

        await in_thread(work)
        await clicks.send(Click("ann", 7))
        assert await clicks.flush() == []
        await until(lambda: noted.numbers)
    assert noted.numbers == [7]


@pytest.mark.parametrize(
    "addresses",
    ["tcp://a:1,tcp://b:2", ["tcp://a:1", "b"], [5], None, 7, "tcp://a b:1", "tcp://a/b:1"],
)
def test_an_invalid_address_is_refused_when_the_client_is_made(addresses: Any) -> None:
    told = "is not an address; write tcp://host:port"
    with pytest.raises(ConfigError, match=told):
        Client(addresses)
    with pytest.raises(ConfigError, match=told), SyncClient(addresses):
        pass


async def test_a_subscription_that_is_read_outside_of_its_block_says_so() -> None:
    noted = RecordingApp()
    told = "the subscription to 'clicks' is closed; read it inside of its block"
    async with running(noted) as node:
        async with Client(node.address) as client:
            with pytest.raises(StageClosed, match=told):
                await anext(aiter(client.subscribe("clicks")))

        def read() -> None:
            with SyncClient(node.address) as client:
                events = client.subscribe("clicks")
                for look in (lambda: next(iter(events)), lambda: events.missed):
                    with pytest.raises(StageClosed, match=told):
                        look()

        await trio.to_thread.run_sync(read)


# -- set-up ---------------------------------------------------------------------------------------


def dead() -> str:
    """An address at which nobody listens."""
    return f"tcp://127.0.0.1:{free_port()}"
