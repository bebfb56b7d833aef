"""The embedded log over real sockets: what was acknowledged is there once, whatever dies."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import (
    RawPeer,
    data_frame,
    free_port,
    limit_peers,
    raw_peer,
    running,
    s4_process,
    until,
    until_told,
)
from log_files import database, locked
from log_nodes import Tap, log_at, log_node, read_all
from shared_apps import Click, Count, Ignore, OnePE
from trio.testing import wait_all_tasks_blocked

from s4node import Client, Event, GenericEvent
from s4node.errors import (
    ConnectionRefused,
    StartpointError,
    StoreCorrupt,
    StoreError,
    UnknownStream,
)
from s4node.events.keys import Partitioner
from s4node.events.schema import EventType, JsonText
from s4node.events.type_declaration import TypeDecl, fingerprint_of
from s4node.net.client.client_stream import ClientStream
from s4node.net.wire import frame as wire
from s4node.offsets.startpoint import Oldest
from s4node.offsets.system import InputBatch, SystemStreamPartition


async def test_the_partitions_of_a_log_are_at_most_those_of_the_setting(tmp_path: Path) -> None:
    settings = {"s4.log.maxPartitions": "3"}
    async with log_node(tmp_path, settings=settings) as node, log_at(node.address) as log:
        await log.create("clicks", 2)
        with pytest.raises(StoreError, match=r"s4\.log\.maxPartitions \(3\), of which 2 are used"):
            await log.create("taps", 2)
        await log.create("taps", 1)
        assert node.statistics().peers["limits reached"] == 1


async def test_readers_of_a_log_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_peers(monkeypatch, own_lanes=100)
    reads = {wire.SUBSCRIBE: True}
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("pages", 1)
        async with raw_peer(node.address) as peer:
            for n in range(101):
                await peer.send_frames(wire.Hello(f"r{n}", "1", "pages", headers=reads))
            last = await peer.receive_until(lambda frame: getattr(frame, "error", ""))
            assert "this connection would have 101 lanes, more than 100" in last.error
            await peer.send_frames(wire.EndOfStream("pages", "r1"))
            await peer.send_frames(wire.Hello("later", "1", "pages", headers=reads))
            answer = await peer.receive_until(
                lambda frame: frame.headers.get(wire.READER) == "later"
            )
            assert not answer.error


async def test_the_event_types_of_a_log_have_a_limit_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_peers(monkeypatch, log_type_bytes=1024)
    fields = tuple((f"{'x' * 40}{n}", "str", True) for n in range(30))
    long = TypeDecl("Long", fingerprint_of("Long", fields), fields)
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 1)
        async with raw_peer(node.address) as peer:
            await peer.send_frames(wire.Hello("raw", "1", "clicks", (long,)))
            answer = await peer.receive_until(lambda header: isinstance(header, wire.Hello))
            assert isinstance(answer, wire.Hello)
            assert "at most 1024 are allowed; delete a stream" in answer.error
        assert node.statistics().peers["limits reached"] == 1
        async with Client(node.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send(Click("ann"))
            assert await clicks.flush() == []


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
        assert "was replaced" in told[1]


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
            assert "was replaced" in await told(newer, "b", 2)


# -- the system -----------------------------------------------------------------------------------


async def test_a_batch_decodes_when_it_is_loaded_and_names_its_poison_events(
    tmp_path: Path,
) -> None:
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
        assert batch.events == [GenericEvent(name="x"), GenericEvent(user="b", n=2, text="")]
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
            told = r"clicks\[0\] can no longer be read at tcp.*, from offset 5: .*'clicks'"
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
            told = r"clicks\[0\] from offset 0 to 5 are lost, .* continues at 0 with other events"
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
                assert batch.routing == "crc32m:user"
                for event in batch.events:
                    of_user.setdefault(event.user, []).append(event.n)
            mine = [user for user in users if partitioner.partition_of(user) == partition]
            assert of_user == {key: [1, 2, 3, 4, 5] for key in mine}


async def test_only_the_events_of_a_damaged_partition_are_refused(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 2, key="user")
    (tmp_path / "log" / "clicks" / "0001.sqlite").write_bytes(b"no database" * 100)
    partitioner = Partitioner(2)
    users = [f"user-{n}" for n in range(20)]
    mine = [user for user in users if partitioner.partition_of(user) == 0]
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        async with Client(node.address) as client:
            clicks = await client.stream("clicks")
            clicks.read_as()
            await clicks.send_many([JsonText(b'{"user": "%b"}' % user.encode()) for user in users])
            refusals = await clicks.flush()
            assert sum(refused.count for refused in refusals) == len(users) - len(mine)
            assert {"clicks[1]: " in refused.reason for refused in refusals} == {True}
            assert clicks.counts["admitted"] == len(mine)
        found = await read_all(node.address, "clicks", len(mine), start={0: 0})
        assert [event.user for event in found] == mine
        described = (await log.describe("clicks"))["partitions"]
        assert described[0]["upcoming"] == len(mine)
        assert "0001.sqlite is damaged" in described[1]["damage"]
        with pytest.raises(StoreCorrupt, match="stop the node and put back a copy of the file"):
            await log.open(SystemStreamPartition("log", "clicks", 1), 0, [GenericEvent])
        with pytest.raises(StoreCorrupt, match=r"0001\.sqlite is damaged"):
            await read_all(node.address, "clicks", 1, start=Oldest())


@pytest.mark.parametrize("routed", [True, False], ids=["by its producer", "by the node"])
async def test_events_for_a_file_that_is_locked_for_a_while_arrive_once_and_in_order(
    tmp_path: Path, routed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    users = [f"user-{n}" for n in range(20)]

    async def send(clicks: ClientStream, n: int) -> None:
        if routed:
            await clicks.send_many([Click(user, n) for user in users])
        else:
            texts = [b'{"user": "%b", "n": %d}' % (user.encode(), n) for user in users]
            await clicks.send_many([JsonText(text) for text in texts])
        await wait_all_tasks_blocked()  # a frame of its own

    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 2, key="user")
        async with Client(node.address, producer="a") as client:
            clicks = await client.stream("clicks")
            if not routed:
                clicks.read_as()
            with locked(database(tmp_path / "log")):
                for n in range(6):
                    await send(clicks, n)
                await until_told(
                    log.streams, lambda told: "database is locked" in (told["trouble"] or "")
                )
            await send(clicks, 6)
            with trio.fail_after(10):
                assert await clicks.flush() == []
        told = capsys.readouterr().err
        assert told.count("appending to the log is waiting") == 1
        assert "database is locked" in told
    async with log_node(tmp_path) as node:
        found = await read_all(node.address, "clicks", 7 * len(users), start=Oldest())
        for user in users:
            assert [event.n for event in found if event.user == user] == list(range(7))


async def test_an_id_of_more_than_1024_bytes_is_refused_by_the_log(tmp_path: Path) -> None:
    long, longest = "x" * 1025, "é" * 512
    told = r"the producer id 'x{40}'\.\.\. has 1025 bytes, more than 1024"
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 2, key="user")
        async with Client(node.address) as client:
            client.producer = long
            with pytest.raises(ConnectionRefused, match=f"stream 'clicks': {told}"):
                await client.stream("clicks")
        async with Client(node.address, producer=longest) as client:
            clicks = await client.stream("clicks")
            await clicks.send(Click("joe", 1))
            assert await clicks.flush() == []


async def test_an_id_that_would_be_taken_for_a_part_of_another_producer_s_frames_is_refused(
    tmp_path: Path,
) -> None:
    """Its events would be taken for those that are there already."""
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks", 2, key="user")
        async with Client(node.address, producer="a\t0") as client:
            with pytest.raises(ConnectionRefused, match=r"'a\\t0' ends in a tab and a number"):
                await client.stream("clicks")
        with pytest.raises(StoreError, match=r"'a\\t0' ends in a tab and a number"):
            await log.append_once("clicks", 0, Click("joe"), "a\t0")
        for n, producer in enumerate(("a", "a\t4096x", "a\t" + "9" * 1000)):
            async with Client(node.address, producer=producer) as client:
                clicks = await client.stream("clicks")
                await clicks.send(Click("joe", n))
                assert await clicks.flush() == []
    async with log_node(tmp_path) as node:
        found = await read_all(node.address, "clicks", 3, types=Click, start=Oldest())
        assert [click.n for click in found] == [0, 1, 2]


@pytest.mark.parametrize(("lost", "own"), [(0, 13), (1, 7)])
async def test_events_of_a_new_process_are_not_repetitions_if_a_file_was_lost(
    tmp_path: Path, lost: int, own: int
) -> None:
    """Its frames are taken apart, and the other partition knows what came of the earlier ones."""
    texts = [JsonText(b'{"user": "user-%d"}' % n) for n in range(20)]
    there = []
    for _ in range(2):
        async with log_node(tmp_path) as node, log_at(node.address) as log:
            await log.create("clicks", 2, key="user")
            async with Client(node.address, producer="sensor") as client:
                clicks = await client.stream("clicks")
                clicks.read_as()
                await clicks.send_many(texts)
                assert await clicks.flush() == []
            there.append((await log.describe("clicks"))["partitions"][1 - lost]["upcoming"])
        file = database(tmp_path / "log", lost)
        file.rename(file.with_suffix(".lost"))
    assert there == [own, 2 * own]


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
            assert refused.reason == (
                "the event has no attribute 'user', which is the key of the stream"
            )
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
            "Click(user='ann', n=7, text='')",
            "Click(user='zoe', n=1, text='')",
            "GenericEvent(user='joe', at=[1])",
        ]


# -- questions and garbage ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "arguments", "fault", "words"),
    [
        ("dance", {}, "StoreError", "no query 'dance'; it answers: list, describe,"),
        ("describe", {}, "StoreError", "the arguments of the query 'describe' are"),
        ("describe", {"stream": ["x"]}, "StoreError", "the arguments of the query 'describe' are"),
        ("describe", {"stream": "taps"}, "UnknownStream", "Create it with: s4 log create taps"),
        ("create", {"stream": "a/b"}, "StoreError", "'a/b' is not a valid stream name"),
        ("create", {"stream": "x", "partitions": 0}, "StoreError", "1 to 4096 partitions, not 0"),
        ("create", {"stream": "x", "partitions": "2"}, "StoreError", "'2' is not a whole number"),
        ("create", {"stream": "x", "key": "a b"}, "GraphError", "'a b' is not an attribute's name"),
        ("create", {"stream": "live"}, "StoreError", "app 'some' already has a stream 'live'"),
        ("create", {"stream": "clicks", "partitions": 9}, "StoreError", "with other settings"),
        ("trim", {"stream": "clicks", "partition": 7, "offset": 0}, "UnknownStream", "not 7"),
        ("trim", {"stream": "clicks", "offset": 5}, "StartpointError", "has offsets 0 to 0"),
        ("trim", {"stream": "clicks"}, "StoreError", "the arguments of the query 'trim' are"),
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
         "is not a whole number"),
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
    async with running(OnePE(Ignore)) as node, log_at(node.address) as log:
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
                for first, count, reason in verdict.rulings[0].exceptions:
                    refused |= dict.fromkeys(range(first, first + count), reason)
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
            assert "[1] is not a start" in answer.error
        assert await log.append("clicks", 0, [Click("joe")]) == 0


async def test_a_stream_of_the_app_s_own_name_stops_the_start(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        await log.create("clicks")
    app = OnePE(Ignore, name="other")
    with pytest.raises(StoreError, match=r"has a stream 'clicks', and so has app 'other'"):
        async with running(app, {"s4.log.folder": str(tmp_path / "log")}):
            pass


# -- an app beside the log ------------------------------------------------------------------------


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
    async with (
        running(OnePE(Count, system="log"), settings) as node,
        Client(node.address) as client,
    ):
        await until(lambda: node.processed == 1000, "all that was there is read")
        clicks = await client.stream("clicks")
        await clicks.send_many([Click(f"u{n % 10}", 1) for n in range(500)])
        await clicks.flush()
        await until(lambda: node.processed == 1500, "all that comes is read")
    async with (
        running(OnePE(Count, system="log"), settings) as node,
        Client(node.address) as client,
    ):
        clicks = await client.stream("clicks")
        await clicks.send(Click("u1", 7))
        await clicks.flush()
        await until(lambda: node.processed == 1, "what came after the stop is read, and no more")


async def test_an_app_creates_the_streams_that_its_own_process_s_log_lacks(tmp_path: Path) -> None:
    settings = {
        "s4.log.folder": str(tmp_path / "log"),
        "s4.state.folder": str(tmp_path / "state"),
        "streams.clicks.samza.offset.default": "oldest",
        "task.dead.letter.stream": "log.dead",
    }
    async with (
        running(OnePE(Count, system="log"), settings, partitions=3) as node,
        log_at(node.address) as log,
        Client(node.address) as client,
    ):
        described = await log.describe("clicks")
        assert (described["key"], len(described["partitions"])) == ("user", 3)
        assert len((await log.describe("dead"))["partitions"]) == 3
        clicks = await client.stream("clicks")
        await clicks.send_many([Click(f"u{n % 10}", 1) for n in range(1000)])
        await clicks.flush()
        await until(lambda: node.processed == 1000)


async def test_a_stream_that_another_node_s_log_lacks_is_not_created(tmp_path: Path) -> None:
    async with log_node(tmp_path) as node, log_at(node.address) as log:
        settings = {
            "s4.log.folder": str(tmp_path / "own"),
            "s4.state.folder": str(tmp_path / "state"),
            "systems.log.address": node.address,
        }
        with pytest.raises(UnknownStream, match="Create it with: s4 log create clicks"):
            async with running(OnePE(Count, system="log"), settings):
                pass
        assert (await log.streams())["streams"] == []


SUMS = """
import os
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
    n: int = 0
class Show(ProcessingElement):
    def on_event(self, click: Click):
        print(click.user, click.n)
app = App("sums")
app.create_input_stream("clicks", app.create_pe(Show), types=Click, key="user", system="log")
"""


@pytest.mark.slow
@pytest.mark.parametrize("there", [pytest.param(0, marks=pytest.mark.long), 3])
async def test_containers_that_start_together_have_one_stream_in_the_log_of_their_launcher(
    tmp_path: Path, there: int
) -> None:
    """Created as the app declares it, or found as it is."""
    if there:
        async with log_node(tmp_path) as node, log_at(node.address) as log:
            await log.create("clicks", there, key="user")
            async with Client(node.address) as client:  # events of an earlier life
                before = await client.stream("clicks")
                await before.send_many([Click(f"u{n % 40}", n) for n in range(200)])
                await before.flush()
    (tmp_path / "sums.py").write_text(SUMS)
    command = (
        "run",
        "sums.py",
        "--listen",
        "tcp://127.0.0.1:0",
        "--nodes",
        "4",
        "--partitions",
        "8",
        "-p",
        f"s4.log.folder={tmp_path / 'log'}",
        "-p",
        f"s4.state.folder={tmp_path / 'state'}",
        "-p",
        "streams.clicks.samza.offset.default=oldest",
        "-p",
        "task.dead.letter.stream=log.dead",
    )
    async with s4_process(*command, cwd=tmp_path) as process:
        async with log_at(process.address) as log, Client(process.address) as client:
            described = await log.describe("clicks")
            assert (described["key"], len(described["partitions"])) == ("user", there or 8)
            assert len((await log.describe("dead"))["partitions"]) == 8
            clicks = await client.stream("clicks")
            new = range(200 if there else 0, 400)
            await clicks.send_many([Click(f"u{n % 40}", n) for n in new])
            await clicks.flush()
        await until(lambda: len(process.stdout) == 400, "all is read")
        process.signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert sorted(line.split()[1] for line in process.stdout) == sorted(map(str, range(400)))
    assert "send events" not in process.errors  # nothing comes over the containers' sockets
    assert ("has another number of partitions than the app declares" in process.errors) == (
        there > 0
    )


class Row(Event):
    k: str | float
    n: int = 0


class Text(Event):
    k: str


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize(
    ("types", "event", "why"),
    [
        (Text, Text("k" * 10_000), "a key of 10000 characters"),
        (Row, Row(1.5), "returned 1.5"),
        (GenericEvent, GenericEvent(k=True), "returned True"),
        (GenericEvent, GenericEvent(n=1), "no attribute 'k'"),
    ],
)
async def test_what_is_no_key_is_refused_for_any_number_of_partitions(
    tmp_path: Path, partitions: int, types: Any, event: Any, why: str
) -> None:
    async with log_node(tmp_path) as node:
        async with log_at(node.address) as log:
            await log.create("rows", partitions, key="k")
        async with Client(node.address) as client:
            rows = await client.stream("rows", types=types)
            await rows.send(event)
            (refused,) = await rows.flush()
            assert why in refused.reason


@pytest.mark.parametrize("partitions", [1, 4])
async def test_so_are_the_keys_of_json_objects(tmp_path: Path, partitions: int) -> None:
    async with log_node(tmp_path) as node:
        async with log_at(node.address) as log:
            await log.create("rows", partitions, key="k")
        async with Client(node.address) as client:
            rows = await client.stream("rows")
            rows.read_as()
            await rows.send_many([b'{"k": 1.5}', b'{"k": "good"}'])
            (refused,) = await rows.flush()
            assert "returned 1.5" in refused.reason
