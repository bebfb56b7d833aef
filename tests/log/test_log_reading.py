"""Reading the embedded log over real sockets: from where one likes, each event once."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import raw_peer, running, until
from log_nodes import log_at, log_node, read_all
from shared_apps import Click, ForwardingApp
from structlog.testing import capture_logs

from s4node import Client
from s4node.errors import InputLost, StartpointError, UnknownStream
from s4node.net.wire import frame as wire
from s4node.offsets.startpoint import Oldest, Specific, Timestamp, Upcoming
from s4node.offsets.system import SystemStreamPartition


async def test_a_later_reader_goes_on_where_an_earlier_one_stopped(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 3, key="user")
        async with Client(node.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many([Click(f"u{n % 7}", n) for n in range(1000)])
            assert await clicks.flush() == []
            seen: list[int] = []
            positions: dict[int, int] = {}
            for stop in (100, 350, 1000):
                start: Any = positions or Oldest()
                async with client.subscribe("clicks", types=Click, start=start) as events:
                    with trio.fail_after(10):
                        while len(seen) < stop:
                            seen.append((await anext(events)).n)
                    positions = events.positions
        assert sorted(seen) == list(range(1000))
        assert [n for n in seen if n % 7 == 3] == list(range(3, 1000, 7))


async def test_each_event_has_its_partition_and_offset(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks")
        first = await log.append("clicks", 0, [Click("a"), Click("b"), Click("c")])
        assert first == 0
        async with (
            Client(node.address) as client,
            client.subscribe("clicks", types=Click, start=Specific(1)) as events,
        ):
            assert await anext(events) == Click("b")
            assert events.place == (0, 1)
            assert await anext(events) == Click("c")
            assert events.place == (0, 2)
            assert events.positions == {0: 3}


async def test_a_live_stream_is_read_from_now_on_only(tmp_path: Path) -> None:
    async with running(ForwardingApp("live", "shown")) as node, Client(node.address) as client:
        for start in (Oldest(), Timestamp(0), Specific(3), {0: 3}):
            with pytest.raises(StartpointError, match=r"'shown' of app 'forward' is live"):
                async with client.subscribe("shown", start=start):
                    pass
        async with client.subscribe("shown", types=Click, start=Upcoming()) as shown:
            live = await client.stream("live")
            await live.send(Click("joe"))
            with trio.fail_after(5):
                assert await anext(shown) == Click("joe")


async def test_impossible_startpoints_are_refused_with_the_possible_offsets(
    tmp_path: Path,
) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 2)
        await log.append("clicks", 1, [Click("a")])
        async with Client(node.address) as client:
            for start, words in (
                ({1: 2}, r"clicks\[1\] has no offset 2: it has 0 to 1"),
                ({2: 0}, r"has no partition 2, its partitions are 0 to 1"),
                (Specific(0), r"has 2 partitions, each with its own offsets"),
            ):
                with pytest.raises(StartpointError, match=words):
                    async with client.subscribe("clicks", start=start):
                        pass
        with pytest.raises(
            StartpointError, match=r"log.clicks\[0\] has no offset 1: it has 0 to 0"
        ):
            await log.resolve(SystemStreamPartition("log", "clicks", 0), Specific(1))
        with pytest.raises(UnknownStream, match=r"no stream 'taps'; its streams: clicks"):
            await log.partitions("taps")


async def test_events_for_a_closed_reader_go_to_no_other_reader(
    tmp_path: Path,
) -> None:
    """Readers of one connection come and go while hellos and events are under way to them."""
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 2)
        for partition in (0, 1):
            await log.append("clicks", partition, [Click("a", n) for n in range(100)])
        one, other = (SystemStreamPartition("log", "clicks", number) for number in (0, 1))
        with capture_logs() as logs:
            for _ in range(20):
                stays = await log.open(one, 0, [Click])
                goes = await log.open(other, 0, [Click])
                await goes.aclose()  # before the node has heard of it
                with trio.fail_after(5):
                    assert (await stays.read()).first == 0
                goes = await log.open(other, 0, [Click])
                await stays.aclose()
                with trio.fail_after(5):
                    assert (await goes.read()).first == 0
                await goes.aclose()
    assert [line for line in logs if line["log_level"] != "info"] == []


async def test_a_reader_that_ends_before_it_was_begun_is_sent_nothing(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks")
        await log.append("clicks", 0, [Click("a")])

        def hello(reader: str) -> wire.Hello:
            headers = {wire.SUBSCRIBE: True, wire.START: wire.POSITIONS}
            return wire.Hello(
                reader, "", "clicks", positions=(wire.Position(0, 0, 10),), headers=headers
            )

        async with raw_peer(node.address) as peer:
            await peer.send_frames(hello("early"), wire.EndOfStream("clicks", "early"))
            await peer.send_frames(hello("late"))
            await peer.receive_until(lambda header: header.headers.get(wire.READER) == "late")
            seen: list[str] = []  # who gets what is appended once the first reader has ended

            def is_last(header: wire.Header) -> bool:
                if not isinstance(header, wire.Data) or header.first + header.count < 2:
                    return False
                seen.append(header.producer)
                return header.producer == "late" and header.first + header.count == 3

            for user in "bc":
                await log.append("clicks", 0, [Click(user)])
            await peer.receive_until(is_last)
            assert set(seen) == {"late"}


async def test_a_time_is_found_in_every_partition(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 2)
        for partition in (0, 1):
            await log.append("clicks", partition, [Click("before", partition)])
        between = int(time.time() * 1000) + 1
        await until(lambda: time.time() * 1000 >= between)
        for partition in (0, 1):
            await log.append("clicks", partition, [Click("after", partition)])
        found = await read_all(node.address, "clicks", 2, types=Click, start=Timestamp(between))
        assert sorted(click.n for click in found) == [0, 1]
        assert {click.user for click in found} == {"after"}


async def test_a_slow_reader_costs_its_window_and_holds_nobody_up(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks")
        async with (
            Client(node.address) as client,
            client.subscribe("clicks", types=Click, start=Oldest(), queue_size=100) as slow,
        ):
            clicks = await client.stream("clicks")
            await clicks.send_many([Click("joe", n) for n in range(20_000)])
            assert await clicks.flush() == []
            fast = await read_all(node.address, "clicks", 20_000, types=Click, start=Oldest())
            assert [click.n for click in fast] == list(range(20_000))
            for n in range(20_000):
                assert (await anext(slow)).n == n
            assert slow.missed == 0


async def test_a_reader_slower_than_retention_is_told_and_skips_nothing_silently(
    tmp_path: Path,
) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks")
        for n in range(50):
            await log.append("clicks", 0, [Click("joe", n)])
        async with Client(node.address) as client:
            async with client.subscribe(
                "clicks", types=Click, start=Oldest(), queue_size=10
            ) as slow:
                assert (await anext(slow)).n == 0
                assert await log.trim("clicks", partition=0, offset=40) == {0: 40}
                read = 1
                with suppress(InputLost):
                    while True:
                        assert (await anext(slow)).n == read
                        read += 1
                assert 1 <= read <= 20
                assert slow.positions == {0: read}
            async with client.subscribe("clicks", types=Click, start={0: 40}) as again:
                assert (await anext(again)).n == 40
        reader = await log.open(SystemStreamPartition("log", "clicks", 0), 3, [Click])
        with pytest.raises(InputLost, match="the next event to read was 3"):
            await reader.read()
        await reader.aclose()
