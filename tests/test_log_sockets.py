"""The embedded log over real sockets: what was acknowledged is there once, whatever dies."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import (
    NodeProcess,
    RawPeer,
    data_frame,
    environment,
    free_port,
    plain_errors,
    proxy,
    raw_peer,
    run_s4,
    running,
    s4_process,
    until,
)

from s4node import App, Client, Container, Event, GenericEvent, OutputStream, ProcessingElement
from s4node.comm import frame as wire
from s4node.errors import InputLost, StartpointError, StoreError, UnknownStream
from s4node.keys import Partitioner
from s4node.progress.startpoint import Oldest, Specific, Timestamp, Upcoming
from s4node.schema import EventType, JsonText
from s4node.systems.embedded_log import EmbeddedLog
from s4node.systems.system import InputBatch, PartitionReader, SystemStreamPartition


class Click(Event):
    user: str
    n: int = 0


class Tap(Event):
    name: str


class Show(ProcessingElement):
    shown: OutputStream

    def on_event(self, click: Click) -> None:
        self.shown.put(click)


class Ignore(ProcessingElement):
    def on_event(self, event: Event) -> None:
        pass


def some_app() -> App:
    app = App("some")
    app.create_input_stream("live", app.create_pe(Ignore), types=Click, key="user")
    return app


@asynccontextmanager
async def log_node(folder: Path, **more: Any) -> AsyncIterator[Container]:
    settings = {"s4.log.folder": str(folder / "log"), **more.pop("settings", {})}
    async with running(some_app(), settings, **more) as node:
        yield node


@asynccontextmanager
async def log_at(address: str) -> AsyncIterator[EmbeddedLog]:
    log = EmbeddedLog("log", address, timeout=10)
    with plain_errors():
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: log.run(task_status=task_status))
            yield log
            nursery.cancel_scope.cancel()


async def read_all(address: str, stream: str, count: int, **more: Any) -> list[Any]:
    async with Client(address) as client, client.subscribe(stream, **more) as events:
        found: list[Any] = []
        with trio.fail_after(10):
            while len(found) < count:
                found.append(await anext(events))
        return found


async def test_what_is_appended_is_read_from_the_oldest_on(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 1)
        async with Client(node.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many([Click("joe", n) for n in range(5000)])
            assert await clicks.flush() == []
        found = await read_all(node.address, "clicks", 5000, types=Click, start=Oldest())
        assert found == [Click("joe", n) for n in range(5000)]
        described = await log.describe("clicks")
        assert described["partitions"][0]["upcoming"] == 5000


async def test_a_program_that_dies_appends_all_of_it_again_and_it_is_there_once(
    tmp_path: Path,
) -> None:
    settings: dict[str, str] = {}
    for end in (700, 2000):  # and the node dies between, too
        async with log_node(tmp_path, settings=settings) as node, log_at(node.address) as log:
            await log.create("clicks", 3, key="user")
            for part in (end - 200, end):
                async with Client(node.address, producer="appender") as client:
                    clicks = await client.stream("clicks", again=True)
                    await clicks.send_many([Click(f"user-{n % 7}", n) for n in range(part)])
                    if part < end:
                        client.abandon()
            found = await read_all(node.address, "clicks", end, types=Click, start=Oldest())
    assert sorted(click.n for click in found) == list(range(2000))


async def test_a_task_that_was_taken_over_appends_nothing_more(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 1)
        async with raw_peer(node.address) as peer:
            told = []
            for fence in (2, 1):
                hello = wire.Hello("~here/job/Partition 0", "i", "clicks", headers={"fence": fence})
                await peer.send_frames(hello)
                answer = await peer.receive_until(lambda header: isinstance(header, wire.Hello))
                assert isinstance(answer, wire.Hello)
                told.append(answer.error)
        assert told[0] == ""
        assert "it has been taken over" in told[1]


@pytest.mark.parametrize("stream", ["clicks", "live"])
async def test_a_task_may_come_back_to_an_older_connection_and_is_told_apart_by_its_fence(
    tmp_path: Path, stream: str
) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 1)
        async with raw_peer(node.address) as older, raw_peer(node.address) as newer:

            async def told(peer: RawPeer, incarnation: str, fence: int) -> str:
                hello = wire.Hello(
                    "~here/job/Partition 0", incarnation, stream, headers={"fence": fence}
                )
                await peer.send_frames(hello)
                answer = await peer.receive_until(lambda header: isinstance(header, wire.Hello))
                assert isinstance(answer, wire.Hello)
                return answer.error

            # whoever says its first hello first has the older connection
            assert await told(older, "a", 1) == ""
            assert await told(newer, "b", 2) == ""
            assert await told(older, "a", 3) == ""
            assert "it has been taken over" in await told(newer, "b", 2)


# -- reading --------------------------------------------------------------------------------------


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


async def test_each_event_tells_its_place(tmp_path: Path) -> None:
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
    app = App("shows")
    pe = app.create_pe(Show)
    app.create_input_stream("live", pe, types=Click, key="user")
    pe.shown = app.create_output_stream("shown", types=[Click])
    async with running(app) as node, Client(node.address) as client:
        for start in (Oldest(), Timestamp(0), Specific(3), {0: 3}):
            with pytest.raises(StartpointError, match=r"'shown' of app 'shows' is a live one"):
                async with client.subscribe("shown", start=start):
                    pass
        async with client.subscribe("shown", types=Click, start=Upcoming()) as shown:
            live = await client.stream("live")
            await live.send(Click("joe"))
            with trio.fail_after(5):
                assert await anext(shown) == Click("joe")


async def test_startpoints_that_mean_nothing_are_refused_with_what_there_is(
    tmp_path: Path,
) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 2)
        await log.append("clicks", 1, [Click("a")])
        async with Client(node.address) as client:
            for start, words in (
                ({1: 2}, r"clicks\[1\] has no offset 2: it has 0 to 1"),
                ({2: 0}, r"has no partition 2, its partitions are 0 to 1"),
                (Specific(0), r"has 2 partitions, each with offsets of its own"),
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


async def test_a_time_is_found_in_every_partition(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 2)
        for partition in (0, 1):
            await log.append("clicks", partition, [Click("before", partition)])
        await trio.sleep(0.02)
        between = int(time.time() * 1000)
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


# -- the system -----------------------------------------------------------------------------------


async def test_a_batch_decodes_when_it_is_loaded_and_tells_its_culprits(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks")
        await log.append("clicks", 0, [Click("a", 1), Tap("x"), Click("b", 2)])
        ssp = SystemStreamPartition("log", "clicks", 0)
        reader = await log.open(ssp, 0, [Click])
        batch = await reader.read()
        assert isinstance(batch, InputBatch)
        assert (batch.size, batch.events, batch.first) == (3, [], 0)
        batch.load()
        assert batch.events == [Click("a", 1), Click("b", 2)]
        assert [batch.number(index) for index in (0, 1)] == [0, 2]
        ((number, reason, raw),) = batch.undecoded
        assert (number, raw) == (1, b"\x91\xa1x")
        assert "'Tap' is not among the event types asked for: Click" in reason
        assert (reader.position, reader.lag) == (3, 0)
        await reader.aclose()
        generic = await log.open(ssp, 1, [GenericEvent])
        batch = await generic.read()
        assert isinstance(batch, InputBatch)
        batch.load()
        assert batch.events == [GenericEvent(name="x"), GenericEvent(user="b", n=2)]
        assert batch.first == 1
        await generic.aclose()


async def test_a_paused_reader_fetches_nothing_more_than_its_window(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks")
        ssp = SystemStreamPartition("log", "clicks", 0)
        reader = await log.open(ssp, 0, [Click])
        await log.append("clicks", 0, [Click("a")])
        assert isinstance(await reader.read(), InputBatch)
        reader.pause()
        for _ in range(40):
            await log.append("clicks", 0, [Click("x" * 1000, n) for n in range(1000)])
        read = 1
        with trio.move_on_after(0.3):
            while True:
                batch = await reader.read()
                assert isinstance(batch, InputBatch)
                read += batch.size
        assert read < 25_000
        reader.resume()
        with trio.fail_after(10):
            while read < 40_001:
                batch = await reader.read()
                assert isinstance(batch, InputBatch)
                assert batch.first == read
                read += batch.size
        await reader.aclose()


async def test_one_connection_carries_all_readers_of_an_address(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 8)
        readers = [
            await log.open(SystemStreamPartition("log", "clicks", partition), 0, [Click])
            for partition in [*range(8), 3]
        ]
        assert node.listener.counts["connections"] == 1
        for partition in range(8):
            await log.append("clicks", partition, [Click("u", partition)])
        for reader in readers:
            batch = await reader.read()
            assert isinstance(batch, InputBatch)
            batch.load()
            assert batch.events == [Click("u", reader.ssp.partition)]


async def test_readers_go_on_over_a_connection_that_is_cut_again_and_again(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node:
        async with log_at(node.address) as log:
            await log.create("clicks", 2, key="user")
        async with proxy(node.address, seed=7, least=20_000, most=90_000) as between:
            async with log_at(between.address) as log, Client(node.address) as client:
                clicks = await client.stream("clicks")
                readers = [
                    await log.open(SystemStreamPartition("log", "clicks", p), 0, [Click])
                    for p in (0, 1)
                ]
                await clicks.send_many([Click(f"u{n % 50}", n) for n in range(60_000)])
                assert await clicks.flush() == []
                seen: list[int] = []

                async def read(reader: PartitionReader, upcoming: int) -> None:
                    while reader.position < upcoming:
                        batch = await reader.read()
                        assert isinstance(batch, InputBatch)
                        batch.load()
                        seen.extend(click.n for click in batch.events)

                with trio.fail_after(20):
                    for reader in readers:
                        await read(reader, (await log.bounds(reader.ssp)).upcoming)
            assert between.cuts > 3
        assert sorted(seen) == list(range(60_000))


async def test_a_stream_that_is_gone_when_its_node_comes_back_is_told_with_its_place(
    tmp_path: Path,
) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    async with log_at(address) as log:
        async with log_node(tmp_path, address=address):
            await log.create("clicks", 1)
            await log.append("clicks", 0, [Click(f"u{n}", n) for n in range(5)])
            reader = await log.open(SystemStreamPartition("log", "clicks", 0), 0, [Click])
            await reader.read()
        async with log_node(tmp_path / "another", address=address):
            told = r"clicks\[0\] cannot be read at tcp.* any more, from offset 5 on: .*'clicks'"
            with trio.fail_after(10), pytest.raises(UnknownStream, match=told):
                await reader.read()


async def test_a_stream_that_has_lost_its_end_when_its_node_comes_back_is_told(
    tmp_path: Path,
) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    async with log_node(tmp_path / "another", address=address), log_at(address) as log:
        await log.create("clicks", 1)
    async with log_at(address) as log:
        async with log_node(tmp_path, address=address):
            await log.create("clicks", 1)
            await log.append("clicks", 0, [Click(f"u{n}", n) for n in range(5)])
            reader = await log.open(SystemStreamPartition("log", "clicks", 0), 0, [Click])
            await reader.read()
        async with log_node(tmp_path / "another", address=address):
            told = r"clicks\[0\] has no offset 5: it has 0 to 0"
            with trio.fail_after(10), pytest.raises(StartpointError, match=told):
                await reader.read()


# -- appending ------------------------------------------------------------------------------------


async def test_producers_route_by_the_stream_s_key_and_others_are_taken_apart(
    tmp_path: Path,
) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 4, key="user")
        users = [f"u{n}" for n in range(40)]
        async with Client(node.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many([Click(user, 1) for user in users])
            assert await clicks.flush() == []
            texts = [GenericEvent(user=user, n=2) for user in users]
            await clicks.send_many(texts)
            assert await clicks.flush() == []
        async with raw_peer(node.address) as peer:  # knows no key: one lane, order kept
            await peer.open("clicks", "raw", Click)
            events = [Click(user, n) for n in (3, 4, 5) for user in users]
            await peer.send_frames(data_frame("clicks", "raw", 0, events, partition=2))
            await peer.receive_until(
                lambda h: isinstance(h, wire.Verdict) and h.rulings[0].upto == len(events)
            )
        partitioner = Partitioner(4)
        for partition in range(4):
            reader = await log.open(
                SystemStreamPartition("log", "clicks", partition), 0, [GenericEvent]
            )
            upcoming = (await log.bounds(reader.ssp)).upcoming
            of_user: dict[str, list[int]] = {}
            while reader.position < upcoming:
                batch = await reader.read()
                assert isinstance(batch, InputBatch)
                batch.load()
                assert batch.routing == "crc32:user"
                for event in batch.events:
                    of_user.setdefault(event.user, []).append(event.n)
            mine = [user for user in users if partitioner.partition_of(user) == partition]
            assert of_user == {key: [1, 2, 3, 4, 5] for key in mine}


async def test_json_becomes_generic_events_or_the_type_that_the_stream_has(
    tmp_path: Path,
) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 2, key="user")
        async with Client(node.address) as client:
            clicks = await client.stream("clicks")
            clicks.read_as()
            await clicks.send_many([JsonText(b'{"user": "joe", "at": [1]}'), JsonText(b'{"n": 5}')])
            (refused,) = await clicks.flush()
            assert refused.reason == "the event has no attribute 'user', which is the stream's key"
        async with Client(node.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send(Click("zoe", 1))
            await clicks.flush()
        async with Client(node.address) as client:
            clicks = await client.stream("clicks")
            clicks.read_as()
            await clicks.send_many(
                [JsonText(b'{"user": "ann", "n": 7}'), JsonText(b'{"user": "ann", "m": 7}')]
            )
            (refused,) = await clicks.flush()
            assert "it has no field 'm', its fields are user, n" in refused.reason
        found = await read_all(node.address, "clicks", 3, types=Click, start=Oldest())
        assert sorted(map(repr, found)) == [
            "Click(user='ann', n=7)",
            "Click(user='zoe', n=1)",
            "GenericEvent(user='joe', at=[1])",
        ]


async def test_a_new_process_under_an_old_id_goes_on_behind_what_is_there(tmp_path: Path) -> None:
    for life in range(3):
        async with log_node(tmp_path) as node, log_at(node.address) as log:
            await log.create("clicks")
            async with Client(node.address, producer="sensor") as client:
                clicks = await client.stream("clicks")
                await clicks.send_many([Click("joe", life * 10 + n) for n in range(10)])
                assert await clicks.flush() == []
    async with log_node(tmp_path) as node:
        found = await read_all(node.address, "clicks", 30, types=Click, start=Oldest())
        assert [click.n for click in found] == list(range(30))


async def test_what_is_sent_again_after_a_restart_is_appended_once(tmp_path: Path) -> None:
    events = [Click(f"u{n}", n) for n in range(100)]
    frame = data_frame("clicks", "raw", 0, events, partition=1)
    for life in range(2):
        async with log_node(tmp_path) as node, log_at(node.address) as log:
            await log.create("clicks", 3, key="user")
            async with raw_peer(node.address) as peer:
                await peer.send_frames(
                    wire.Hello("raw", str(life), "clicks", (EventType(Click).declaration,),
                               positions=(wire.Position(1, 0),)),
                    frame,
                )  # fmt: skip
                verdict = await peer.receive_until(lambda h: isinstance(h, wire.Verdict))
                assert isinstance(verdict, wire.Verdict)
                assert verdict.rulings[0].upto == 100
            described = await log.describe("clicks")
            assert sum(each["upcoming"] for each in described["partitions"]) == 100


# -- questions and garbage ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "arguments", "fault", "words"),
    [
        ("dance", {}, "StoreError", "no question 'dance'; the log answers: list, describe,"),
        ("describe", {}, "StoreError", "the arguments of 'describe' are no good"),
        ("describe", {"stream": ["x"]}, "StoreError", "the arguments of 'describe' are no good"),
        ("describe", {"stream": "taps"}, "UnknownStream", "Create it with: s4 log create taps"),
        ("create", {"stream": "a/b"}, "StoreError", "'a/b' is no name"),
        ("create", {"stream": "x", "partitions": 0}, "StoreError", "1 to 4096 partitions, not 0"),
        ("create", {"stream": "x", "partitions": "2"}, "StoreError", "'2' is no whole number"),
        ("create", {"stream": "x", "key": "a b"}, "GraphError", "'a b' is not an attribute's name"),
        ("create", {"stream": "live"}, "StoreError", "app 'some' has a stream 'live' already"),
        ("create", {"stream": "clicks", "partitions": 9}, "StoreError", "with other settings"),
        ("trim", {"stream": "clicks", "partition": 7, "offset": 0}, "UnknownStream", "not 7"),
        ("trim", {"stream": "clicks", "offset": 5}, "StartpointError", "has offsets 0 to 0"),
        ("trim", {"stream": "clicks"}, "StoreError", "the arguments of 'trim' are no good"),
        ("offset", {"stream": "clicks", "partition": 0}, "StoreError", "'millis'"),
        ("append", {"stream": "clicks", "partition": 0, "producer": "p", "first": 0, "count": 2,
                    "sections": [[1, 2, 1]], "body": b"\x90", "types": []}, "StoreError",
         "a section of 1 bytes announces 2 events"),
        ("append", {"stream": "clicks", "partition": 0, "producer": "p", "first": 0, "count": 1,
                    "sections": [[1, 1, 1]], "body": 10**12, "types": []}, "StoreError",
         "Expected `bytes`, got `int`"),
        ("append", {"stream": "clicks", "partition": 0, "producer": "p", "first": 0, "count": 1,
                    "sections": [[1, 1, 1]], "body": b"\x90", "types": [["Click", 5.0, []]]},
         "StoreError", "Expected `int`, got `float`"),
        ("offset", {"stream": "clicks", "partition": 0, "millis": 2**64 - 1}, "StoreError",
         "is no whole number"),
    ],
)  # fmt: skip
async def test_bad_questions_are_answered_with_what_is_wrong(
    tmp_path: Path, question: str, arguments: dict[str, Any], fault: str, words: str
) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks")
        async with raw_peer(node.address) as peer:
            await peer.send_frames(wire.Query(7, question, arguments))
            answer = await peer.receive_until(lambda h: isinstance(h, wire.Answer))
            assert isinstance(answer, wire.Answer)
            assert (answer.id, answer.values) == (7, {})
            assert answer.headers == {wire.FAULT: fault}
            assert words in answer.error
        assert await log.partitions("clicks") == 1


async def test_a_node_without_a_log_says_so() -> None:
    async with running(some_app()) as node, log_at(node.address) as log:
        with pytest.raises(UnknownStream, match=r"this node has no log; start it with"):
            await log.streams()


async def test_garbage_from_producers_and_readers_harms_nobody(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 2, key="user")
        async with raw_peer(node.address) as peer:
            await peer.open("clicks", "raw", Click)
            section = (wire.Section(EventType(Click).fingerprint, 3, 3),)
            unknown = (wire.Section(99, 1, 1),)
            await peer.send_frames(
                (wire.Data("clicks", 0, "raw", 0, 3, section), b"\xc1\xc1\xc1"),
                (wire.Data("clicks", 0, "raw", 3, 1, unknown, flags=wire.ANSWER_NOW), b"\x90"),
            )
            refused: dict[int, str] = {}
            while len(refused) < 4:
                verdict = await peer.receive_until(lambda h: isinstance(h, wire.Verdict))
                assert isinstance(verdict, wire.Verdict)
                for number, _, reason in verdict.rulings[0].exceptions:
                    refused[number] = reason
            assert "does not decode" in refused[0]
            assert "no event type of fingerprint 99 was declared" in refused[3]
            for bad in (
                (wire.Data("clicks", 5, "raw", 4, 1, unknown), b"\x90"),
                wire.Verdict("clicks", "nobody", (wire.Ruling(0, 0, 0, 10, 0),)),
            ):
                await peer.send_frames(bad)
                await peer.receive_until(lambda h: isinstance(h, wire.Verdict) and h.error)
            await peer.send_frames(
                wire.Hello("r", "", "clicks", headers={wire.SUBSCRIBE: True, wire.START: [1]})
            )
            answer = await peer.receive_until(lambda h: isinstance(h, wire.Hello))
            assert isinstance(answer, wire.Hello)
            assert "[1] is no start" in answer.error
        assert await log.append("clicks", 0, [Click("joe")]) == 0


async def test_a_stream_of_the_app_s_own_name_stops_the_start(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks")
    app = App("other")
    app.create_input_stream("clicks", app.create_pe(Ignore), types=Click, key="user")
    with pytest.raises(StoreError, match=r"has a stream 'clicks', and so has app 'other'"):
        async with running(app, {"s4.log.folder": str(tmp_path / "log")}):
            pass


# -- an app beside the log ------------------------------------------------------------------------


class Sum(ProcessingElement):
    total: int = 0

    def on_event(self, click: Click) -> None:
        self.total += click.n


def sums_from_the_log() -> App:
    app = App("sums")
    app.create_input_stream("clicks", app.create_pe(Sum), types=Click, key="user", system="log")
    return app


async def test_an_app_reads_from_the_log_of_its_own_process(tmp_path: Path) -> None:
    settings = {
        "s4.log.folder": str(tmp_path / "log"),
        "s4.state.folder": str(tmp_path / "state"),
        "streams.clicks.samza.offset.default": "oldest",
    }
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 3, key="user")
        async with Client(node.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many([Click(f"u{n % 10}", 1) for n in range(1000)])
            await clicks.flush()
    async with running(sums_from_the_log(), settings) as node, Client(node.address) as client:
        await until(lambda: node.processed == 1000, "all that was there is read")
        clicks = await client.stream("clicks")
        await clicks.send_many([Click(f"u{n % 10}", 1) for n in range(500)])
        await clicks.flush()
        await until(lambda: node.processed == 1500, "all that comes is read")
    async with running(sums_from_the_log(), settings) as node, Client(node.address) as client:
        clicks = await client.stream("clicks")
        await clicks.send(Click("u1", 7))
        await clicks.flush()
        await until(lambda: node.processed == 1, "what came after the stop is read, and no more")


SUMS = """
import os
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
    n: int = 0
class Show(ProcessingElement):
    def on_event(self, click: Click):
        os.write(1, f"{click.user} {click.n}\\n".encode())
app = App("sums")
app.create_input_stream("clicks", app.create_pe(Show), types=Click, key="user", system="log")
"""


@pytest.mark.slow
async def test_several_containers_read_from_the_log_of_their_launcher(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 4, key="user")
        async with Client(node.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many([Click(f"u{n % 40}", n) for n in range(400)])
            await clicks.flush()
    (tmp_path / "sums.py").write_text(SUMS)
    command = (
        "run", "sums.py", "--listen", "tcp://127.0.0.1:0", "--nodes", "2", "--partitions", "4",
        "-p", f"s4.log.folder={tmp_path / 'log'}", "-p", f"s4.state.folder={tmp_path / 'state'}",
        "-p", "streams.clicks.samza.offset.default=oldest",
    )  # fmt: skip
    async with s4_process(*command, cwd=tmp_path) as process:
        await until(lambda: len(process.stdout) == 400, "all is read")
        assert sorted(line.split()[1] for line in process.stdout) == sorted(map(str, range(400)))
        async with Client(process.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send(Click("last", 400))
            await clicks.flush()
        await until(lambda: process.stdout[-1:] == ["last 400"])
        process.signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert "send events" not in process.errors  # nothing comes over the containers' sockets


# -- processes ------------------------------------------------------------------------------------


@asynccontextmanager
async def node_at(
    folder: Path, port: int, *more: str, limits: Callable[[], None] | None = None
) -> AsyncIterator[NodeProcess]:
    command = (
        "node", "demo", "--folder", folder / "cluster", "-p", f"s4.log.folder={folder / 'log'}",
        "-p", f"s4.listener.address=tcp://127.0.0.1:{port}", *more,
    )  # fmt: skip
    async with s4_process(*command, cwd=folder, limits=limits) as node:
        yield node


@pytest.mark.parametrize("routed", [True, False])
async def test_acknowledged_events_are_there_once_after_the_log_s_node_is_killed(
    tmp_path: Path, routed: bool
) -> None:
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    total, producers = 6000, 3
    done = 0

    async def produce(which: int) -> None:
        nonlocal done
        async with Client(address, producer=f"p{which}", timeout=30) as client:
            # by a function, the log does not know that it is its own key: it takes frames apart
            clicks = await client.stream("clicks", key=None if routed else lambda c: c.user)
            for n in range(0, total, 50):
                await clicks.send_many([Click(f"{which}-{k % 20}", k) for k in range(n, n + 50)])
                await trio.sleep(0.002)
            assert await clicks.flush() == []
            done += 1

    async def appended() -> int:
        async with log_at(address) as log:
            parts = (await log.describe("clicks"))["partitions"]
        return sum(each["upcoming"] for each in parts)

    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + 60
        for life in range(4):
            async with node_at(tmp_path, port) as node:
                if life == 0:
                    async with log_at(address) as log:
                        await log.create("clicks", 3, key="user")
                    for which in range(producers):
                        nursery.start_soon(produce, which)
                if life < 3:
                    wanted = total * producers * (life + 1) // 5
                    while await appended() < wanted:
                        await trio.sleep(0.01)
                    assert done < producers
                    await node.kill()
                    continue
                await until(lambda: done == producers, "all producers have their verdicts")
                found = await read_all(
                    address, "clicks", total * producers, types=Click, start=Oldest()
                )
                assert await appended() == total * producers
    assert len(found) == total * producers
    for which in range(producers):
        mine = [click for click in found if click.user.startswith(f"{which}-")]
        assert sorted(click.n for click in mine) == list(range(total))
        for key in range(20):
            one = [click.n for click in mine if click.user == f"{which}-{key}"]
            assert one == sorted(one)


PRODUCER = """
import sys, trio
from s4node import Client, Event
class Click(Event):
    user: str
    n: int = 0
async def main(address):
    async with Client(address, producer="mortal") as client:
        clicks = await client.stream("clicks")
        for n in range(1_000_000):
            await clicks.send(Click("joe", n))
            if n % 100 == 99:
                await clicks.flush()
                print(n + 1, flush=True)
trio.run(main, sys.argv[1])
"""

READER = """
import sys, trio
from s4node import Client
from s4node.progress.startpoint import Oldest
async def main(address):
    async with Client(address) as client, client.subscribe("clicks", start=Oldest()) as events:
        async for event in events:
            print(event.n, flush=True)
trio.run(main, sys.argv[1])
"""


async def test_producers_and_readers_may_be_killed_at_any_time(tmp_path: Path) -> None:
    async with log_node(tmp_path, deadline=60) as node, log_at(node.address) as log:
        await log.create("clicks")
        acknowledged = 0
        for _ in range(2):
            producer = await trio.lowlevel.open_process(
                [sys.executable, "-c", PRODUCER, node.address],
                stdout=subprocess.PIPE, env=environment(),
            )  # fmt: skip
            reader = await trio.lowlevel.open_process(
                [sys.executable, "-c", READER, node.address],
                stdout=subprocess.PIPE, env=environment(),
            )  # fmt: skip
            assert producer.stdout is not None
            assert reader.stdout is not None
            with trio.fail_after(20):
                told = b""
                while told.count(b"\n") < 5:
                    told += await producer.stdout.receive_some()
                assert await reader.stdout.receive_some()
            for process in (reader, producer):
                process.kill()
                await process.wait()
            acknowledged += int(told.rsplit(b"\n", 2)[-2])
        count = (await log.bounds(SystemStreamPartition("log", "clicks", 0))).upcoming
        assert count >= acknowledged
        found = await read_all(node.address, "clicks", count, types=Click, start=Oldest())
        lives = [index for index, click in enumerate(found) if click.n == 0] + [count]
        assert len(lives) == 3
        for first, end in pairwise(lives):
            assert [click.n for click in found[first:end]] == list(range(end - first))


async def test_an_orderly_stop_has_on_disk_what_was_acknowledged(tmp_path: Path) -> None:
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    async with node_at(tmp_path, port) as node, Client(address, timeout=30) as client:
        async with log_at(address) as log:
            await log.create("clicks", 2)
        clicks = await client.stream("clicks")
        await clicks.send_many([Click("joe", n) for n in range(30_000)])
        node.signal(signal.SIGTERM)
        assert await node.wait() == 0
        kept = clicks.counts["admitted"]
        async with node_at(tmp_path, port):
            async with log_at(address) as log:
                parts = (await log.describe("clicks"))["partitions"]
            assert sum(each["upcoming"] for each in parts) >= kept
            assert await clicks.flush() == []
            found = await read_all(address, "clicks", 30_000, types=Click, start=Oldest())
            assert sorted(click.n for click in found) == list(range(30_000))


async def test_two_nodes_on_one_folder_and_the_second_says_who_has_it(tmp_path: Path) -> None:
    async with node_at(tmp_path, free_port()):
        done = await run_s4(
            "node", "other", "--folder", tmp_path / "cluster2", "-p",
            f"s4.log.folder={tmp_path / 'log'}", "-p", "s4.listener.address=tcp://127.0.0.1:0",
            cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode == 1
    assert "is held by process" in done.stderr
    assert "set s4.log.folder to another folder" in done.stderr


def little_room() -> None:
    """As on a full disk: no file grows beyond a megabyte."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))


async def test_producers_wait_for_a_full_disk_and_then_go_on(tmp_path: Path) -> None:
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    async with node_at(tmp_path, port, limits=little_room) as node, log_at(address) as log:
        await log.create("clicks", 2)
        async with Client(address, timeout=60) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many([Click("x" * 500, n) for n in range(8000)])
            with trio.fail_after(20):
                while not (await log.streams())["trouble"]:
                    await trio.sleep(0.01)
            acknowledged = clicks.counts["admitted"]
            assert acknowledged < 8000
            told = await run_s4("log", "describe", "--to", address, cwd=tmp_path)
            assert "the log waits: " in told.stderr
            resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (-1, -1))
            with trio.fail_after(20):
                assert await clicks.flush() == []
        assert (await log.streams())["trouble"] == ""
        found = await read_all(address, "clicks", 8000, types=Click, start=Oldest())
        assert sorted(click.n for click in found) == list(range(8000))


async def test_events_older_than_the_stream_s_retention_go_by_themselves(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 1, retention_ms=50)
        ssp = SystemStreamPartition("log", "clicks", 0)
        for n in range(3):
            await log.append("clicks", 0, [Click("joe", n)])
        with trio.fail_after(20):
            while (await log.bounds(ssp)).oldest < 2:
                await trio.sleep(0.02)
        with pytest.raises(StartpointError, match=r"has no offset 0: it has [23] to 3"):
            await log.resolve(ssp, Specific(0))
