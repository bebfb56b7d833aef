"""The contract of every system that inputs are read from and outputs are written to.

A test module derives a class from :class:`SystemConformance`, which says how a system is made and
what can be done to it from outside. Nothing is tested that the contract does not promise.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing
from harness import plain_errors

from s4node import Event, GenericEvent
from s4node.errors import InputLost, StartpointError, UnknownStream
from s4node.offsets.startpoint import Oldest, Specific, Timestamp, Upcoming
from s4node.offsets.system import (
    Bounds,
    EndOfStream,
    InputBatch,
    PartitionReader,
    System,
    SystemStreamPartition,
)

SOON = 10.0
"""Seconds after which what should happen soon has not."""


class Click(Event):
    user: str
    number: int = 0


class Tap(Event):
    title: str


class Note(Event):
    """A record as the kit reads it; ``title``, ``at`` and ``notes`` are not in its value."""

    title: str
    at: float
    notes: dict[str, bytes | None]
    text: str = "none"


class Record(NamedTuple):
    key: bytes
    value: bytes | None
    time_ms: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()


RECORD_SETTINGS = {
    "streams.taps.record.key": "title",
    "streams.taps.record.time": "at",
    "streams.taps.record.headers": "notes",
}
"""The settings of a system for whose streams ``put_records`` returns True."""


class Lab(ABC):
    """A system that runs, and what a test may do to it from outside."""

    system: System
    ends: bool = False
    """Whether streams of the system can end for good."""

    @abstractmethod
    async def create(self, stream: str, partitions: int) -> None:
        """Make a stream."""

    @abstractmethod
    async def trim(self, stream: str, partition: int, below: int) -> None:
        """Have retention remove what is below an offset that begins an append."""

    async def remove(self, stream: str, partition: int, *offsets: int) -> bool:
        return False

    async def lose_end(self, stream: str, partition: int, first: int) -> bool:
        """Lose the events from an offset on that begins an append, as in a power cut; returns False
        if a test cannot have that happen."""
        return False

    async def grow(self, stream: str, partitions: int) -> bool:
        """Give a stream more partitions; returns False if its number never changes."""
        return False

    async def drop(self, stream: str) -> None:
        """Delete a stream."""
        raise NotImplementedError

    async def put_records(self, stream: str, *records: Record) -> bool:
        """Append records to partition 0 of a new stream, whose system has these settings:
        ``streams.taps.record.key = title``, ``record.time = at`` and ``record.headers = notes``.

        Returns False if streams of the system have events, not records.
        """
        return False

    @abstractmethod
    async def go_away(self) -> None:
        """Be out of reach until come_back."""

    @abstractmethod
    async def come_back(self) -> None:
        """Be there again, with everything."""

    async def end(self, stream: str, partition: int) -> None:
        """Let a partition end for good, where that can be."""
        raise NotImplementedError

    def ssp(self, partition: int = 0, stream: str = "clicks") -> SystemStreamPartition:
        return SystemStreamPartition(self.system.name, stream, partition)

    async def clicks(self, count: int, partition: int = 0, first: int = 0) -> int:
        events = [Click(f"user-{n % 3}", n) for n in range(first, first + count)]
        return await self.system.append("clicks", partition, events)


class Read:
    """The events that were read: offsets, events, and those that did not decode."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.events: list[Any] = []
        self.undecoded: list[tuple[int, str, bytes]] = []
        self.batches: list[InputBatch] = []

    def take(self, batch: InputBatch) -> None:
        batch.load()
        self.batches.append(batch)
        self.offsets += [batch.number(index) for index in range(len(batch.events))]
        self.events += batch.events
        self.undecoded += batch.undecoded

    @property
    def numbers(self) -> list[int]:
        return [event.number for event in self.events]


async def read(reader: PartitionReader, events: int) -> Read:
    """Read until there are so many events, decoded or not."""
    found = Read()
    with trio.fail_after(SOON):
        while len(found.events) + len(found.undecoded) < events:
            batch = await reader.read()
            assert isinstance(batch, InputBatch), "the partition has ended"
            found.take(batch)
    return found


class SystemConformance:
    @asynccontextmanager
    async def lab(self) -> AsyncIterator[Lab]:
        raise NotImplementedError
        yield

    @pytest.fixture
    def open_lab(self) -> Callable[[], AbstractAsyncContextManager[Lab]]:
        return self.lab

    # -- streams -----------------------------------------------------------------------------

    async def test_a_stream_has_the_partitions_it_was_made_with(self, open_lab: Any) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 3)
            assert await lab.system.partitions("clicks") == 3

    async def test_an_unknown_stream_is_an_error_that_names_those_there_are(
        self, open_lab: Any
    ) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            with pytest.raises(UnknownStream, match="views") as caught:
                await lab.system.partitions("views")
            assert "clicks" in str(caught.value)

    async def test_an_unknown_partition_is_an_error(self, open_lab: Any) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 2)
            with pytest.raises(UnknownStream, match="2"):
                await lab.system.bounds(lab.ssp(2))

    async def test_a_stream_that_is_made_anew_has_another_identity(self, open_lab: Any) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            await lab.create("taps", 1)
            first = await lab.system.identity("clicks")
            assert first
            assert first != await lab.system.identity("taps")
            assert first == await lab.system.identity("clicks")
            await lab.drop("clicks")
            with pytest.raises(UnknownStream):
                await lab.system.identity("clicks")
            await lab.create("clicks", 1)
            assert await lab.system.identity("clicks") not in ("", first)

    async def test_a_stream_gets_more_partitions_and_keeps_its_identity_and_its_events(
        self, open_lab: Any
    ) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            await lab.clicks(3)
            identity = await lab.system.identity("clicks")
            if not await lab.grow("clicks", 3):
                pytest.skip("the number of partitions of a stream never changes")
            assert await lab.system.partitions("clicks") == 3
            assert await lab.system.identity("clicks") == identity
            await lab.clicks(2, partition=2, first=3)
            for partition, numbers in ((0, [0, 1, 2]), (2, [3, 4])):
                reader = await lab.system.open(lab.ssp(partition), 0, [Click])
                assert (await read(reader, len(numbers))).numbers == numbers

    async def test_the_lost_end_of_an_epoch_is_not_taken_for_what_came_later(
        self, open_lab: Any
    ) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            await lab.clicks(5)
            await lab.clicks(5, first=5)
            reader = await lab.system.open(lab.ssp(), 0, [Click])
            await read(reader, 10)
            epoch = getattr(reader, "epoch", 0)
            await reader.aclose()
            if not await lab.lose_end("clicks", 0, 5):
                pytest.skip("a test of the log loses its end elsewhere")
            await lab.clicks(10, first=10)

            async def go_on() -> None:
                reader = await lab.system.open(lab.ssp(), 10, [Click], epoch)
                await reader.read()

            with trio.fail_after(SOON), pytest.raises(StartpointError, match="are lost"):
                await go_on()

    # -- records -----------------------------------------------------------------------------

    async def test_records_become_events_with_their_keys_times_and_headers(
        self, open_lab: Any
    ) -> None:
        async with open_lab() as lab:
            records = [
                Record(b"one", b'{"text": "first", "other": [1]}', 1_500, (("by", b"joe"),)),
                Record(b"two", b"{}", 2_000),
                Record(b"three", None, 3_000),
                Record(b"four", b'{"text": 4}', 4_000),
                Record(b"five", b'{"text": "last"}, {}', 5_000),
                Record(b"six", b'{"text": "six"}', 6_000),
            ]
            if not await lab.put_records("taps", *records):
                pytest.skip("streams of the system have events, which say what they are")
            reader = await lab.system.open(lab.ssp(stream="taps"), 0, [Note])
            found = await read(reader, 5)
            assert found.events == [
                Note("one", 1.5, {"by": b"joe"}, "first"),
                Note("two", 2.0, {}),
                Note("six", 6.0, {}, "six"),
            ]
            assert found.offsets == [0, 1, 5]
            assert [(n, raw) for n, _, raw in found.undecoded] == [
                (3, records[3].value),
                (4, records[4].value),
            ]
            assert "Expected `str`, got `int`" in found.undecoded[0][1]
            assert reader.position == 6

    # -- appending and reading ---------------------------------------------------------------

    async def test_what_was_appended_is_read_in_order_each_event_once(self, open_lab: Any) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            assert await lab.clicks(300) == 0
            assert await lab.clicks(5, first=300) == 300
            reader = await lab.system.open(lab.ssp(), 0, [Click])
            found = await read(reader, 305)
            assert found.numbers == found.offsets == list(range(305))
            assert found.events[7] == Click("user-1", 7)

    async def test_an_append_under_a_name_is_there_once(self, open_lab: Any) -> None:
        async with open_lab() as lab:
            if not hasattr(lab.system, "append_once"):
                pytest.skip("the system remembers no names of appended events")
            await lab.create("clicks", 2)
            assert await lab.system.append_once("clicks", 0, Click("ann", 1), "first")
            assert not await lab.system.append_once("clicks", 0, Click("ann", 1), "first")
            assert await lab.system.append_once("clicks", 0, Click("ann", 2), "second")
            assert await lab.system.append_once("clicks", 1, Click("ann", 3), "first")
            assert (await lab.system.bounds(lab.ssp())).upcoming == 2
            assert (await lab.system.bounds(lab.ssp(1))).upcoming == 1

    async def test_a_reader_waits_for_what_comes_later(self, open_lab: Any) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            reader = await lab.system.open(lab.ssp(), 0, [Click])
            got: list[Read] = []
            async with trio.open_nursery() as nursery:

                async def consume() -> None:
                    got.append(await read(reader, 2))

                nursery.start_soon(consume)
                await lab.clicks(1)
                await lab.clicks(1, first=1)
            assert got[0].numbers == [0, 1]

    async def test_a_reader_begins_in_the_middle_of_what_was_appended_at_once(
        self, open_lab: Any
    ) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            await lab.clicks(50)
            reader = await lab.system.open(lab.ssp(), 17, [Click])
            assert reader.position == 17
            found = await read(reader, 33)
            assert found.offsets == list(range(17, 50))
            assert reader.position == 50

    async def test_partitions_have_offsets_of_their_own(self, open_lab: Any) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 2)
            await lab.clicks(3, partition=1)
            assert await lab.clicks(2, partition=0, first=10) == 0
            assert await lab.system.bounds(lab.ssp(0)) == Bounds(0, 2)
            assert await lab.system.bounds(lab.ssp(1)) == Bounds(0, 3)
            reader = await lab.system.open(lab.ssp(0), 0, [Click])
            assert (await read(reader, 2)).numbers == [10, 11]

    async def test_two_readers_of_a_partition_do_not_disturb_each_other(
        self, open_lab: Any
    ) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            await lab.clicks(40)
            one = await lab.system.open(lab.ssp(), 0, [Click])
            other = await lab.system.open(lab.ssp(), 20, [Click])
            assert (await read(other, 20)).offsets == list(range(20, 40))
            await other.aclose()
            assert (await read(one, 40)).offsets == list(range(40))

    async def test_a_read_that_is_cancelled_loses_nothing(self, open_lab: Any) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            reader = await lab.system.open(lab.ssp(), 0, [Click])
            for _ in range(3):
                with trio.move_on_after(0.01):
                    await reader.read()
            await lab.clicks(4)
            assert (await read(reader, 4)).offsets == [0, 1, 2, 3]

    async def test_batches_say_where_they_are_from_and_when_they_were_appended(
        self, open_lab: Any
    ) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            before = int(time.time() * 1000)
            await lab.clicks(2)
            reader = await lab.system.open(lab.ssp(), 0, [Click])
            (batch, *_) = (await read(reader, 2)).batches
            assert batch.source == lab.ssp()
            assert (batch.stream, batch.partition, batch.first) == ("clicks", 0, 0)
            assert before <= batch.created_ms <= int(time.time() * 1000)

    async def test_batches_cover_all_offsets_also_those_without_an_event(
        self, open_lab: Any
    ) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            await lab.clicks(9)
            without = {0, 3, 4, 7}
            left = [n for n in range(9) if n not in without]
            if not await lab.remove("clicks", 0, *without):
                left = list(range(9))
            reader = await lab.system.open(lab.ssp(), 0, [Click])
            found = await read(reader, len(left))
            assert found.numbers == found.offsets == left
            begins = [batch.first for batch in found.batches]
            ends = [batch.end for batch in found.batches]
            assert begins == [0, *ends[:-1]]
            assert ends[-1] == reader.position == 9

    async def test_the_lag_is_what_is_there_and_not_read(self, open_lab: Any) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            await lab.clicks(10)
            reader = await lab.system.open(lab.ssp(), 4, [Click])
            await read(reader, 6)
            assert reader.lag == 0

    async def test_a_paused_reader_goes_on_where_it_was(self, open_lab: Any) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            reader = await lab.system.open(lab.ssp(), 0, [Click])
            await lab.clicks(3)
            first = await read(reader, 3)
            reader.pause()
            await lab.clicks(200, first=3)
            reader.resume()
            rest = await read(reader, 200)
            assert first.numbers + rest.numbers == list(range(203))

    # -- types -------------------------------------------------------------------------------

    async def test_what_does_not_decode_is_left_out_with_its_offset_and_bytes(
        self, open_lab: Any
    ) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            await lab.clicks(1)
            await lab.system.append("clicks", 0, [Tap("no click")])
            await lab.clicks(1, first=2)
            reader = await lab.system.open(lab.ssp(), 0, [Click])
            found = await read(reader, 3)
            assert (found.offsets, found.numbers) == ([0, 2], [0, 2])
            [(offset, reason, raw)] = found.undecoded
            assert offset == 1
            assert reason != ""
            assert b"no click" in raw

    async def test_a_reader_of_generic_events_reads_any_type(self, open_lab: Any) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            await lab.system.append("clicks", 0, [Click("ada", 1)])
            await lab.system.append("clicks", 0, [Tap("menu")])
            await lab.system.append("clicks", 0, [GenericEvent(free=True)])
            reader = await lab.system.open(lab.ssp(), 0, [GenericEvent])
            found = await read(reader, 3)
            assert found.events == [
                GenericEvent(user="ada", number=1),
                GenericEvent(title="menu"),
                GenericEvent(free=True),
            ]

    # -- where to begin ----------------------------------------------------------------------

    async def test_startpoints_mean_offsets(self, open_lab: Any) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            await lab.clicks(5)
            await lab.clicks(5, first=5)
            await lab.trim("clicks", 0, 5)
            resolve = lab.system.resolve
            assert await resolve(lab.ssp(), Oldest()) == 5
            assert await resolve(lab.ssp(), Upcoming()) == 10
            assert await resolve(lab.ssp(), Specific(7)) == 7
            assert await resolve(lab.ssp(), Specific(10)) == 10

    async def test_a_startpoint_that_means_no_offset_is_refused(self, open_lab: Any) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            await lab.clicks(5)
            await lab.clicks(5, first=5)
            await lab.trim("clicks", 0, 5)
            for offset in (0, 4, 11):
                with pytest.raises(StartpointError, match=str(offset)):
                    await lab.system.resolve(lab.ssp(), Specific(offset))

    async def test_a_time_before_all_events_is_the_oldest_and_one_after_them_the_upcoming(
        self, open_lab: Any
    ) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            await lab.clicks(4)
            assert await lab.system.resolve(lab.ssp(), Timestamp(0)) == 0
            assert await lab.system.resolve(lab.ssp(), Timestamp(1 << 50)) == 4

    async def test_reading_cannot_begin_after_the_next_offset(self, open_lab: Any) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            await lab.clicks(3)
            with pytest.raises(StartpointError, match="4"):
                await lab.system.open(lab.ssp(), 4, [Click])

    async def test_events_removed_by_retention_are_reported_as_lost_to_their_reader(
        self, open_lab: Any
    ) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            await lab.clicks(5)
            await lab.clicks(5, first=5)
            await lab.trim("clicks", 0, 5)
            assert await lab.system.bounds(lab.ssp()) == Bounds(5, 10)
            reader = await lab.system.open(lab.ssp(), 2, [Click])
            with trio.fail_after(SOON):
                with pytest.raises(InputLost):
                    await reader.read()
            assert reader.position == 2

    # -- away and back -----------------------------------------------------------------------

    async def test_a_reader_waits_for_a_system_that_goes_away_and_goes_on_where_it_was(
        self, open_lab: Any
    ) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            await lab.clicks(3)
            reader = await lab.system.open(lab.ssp(), 0, [Click])
            before = await read(reader, 3)
            await lab.go_away()
            with trio.fail_after(SOON):
                await lab.system.wait_reachable(False)
            await lab.come_back()
            with trio.fail_after(SOON):
                await lab.system.wait_reachable()
            await lab.clicks(3, first=3)
            after = await read(reader, 3)
            assert before.numbers + after.numbers == list(range(6))

    async def test_questions_wait_for_a_system_that_is_away(self, open_lab: Any) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 2)
            await lab.go_away()
            with trio.fail_after(SOON):
                await lab.system.wait_reachable(False)
            answers: list[int] = []
            with plain_errors():
                async with trio.open_nursery() as nursery:

                    async def ask() -> None:
                        answers.append(await lab.system.partitions("clicks"))

                    nursery.start_soon(ask)
                    await trio.testing.wait_all_tasks_blocked()
                    assert answers == []
                    await lab.come_back()
            assert answers == [2]

    async def test_a_partition_that_has_ended_says_so_after_its_last_event(
        self, open_lab: Any
    ) -> None:
        async with open_lab() as lab:
            await lab.create("clicks", 1)
            await lab.clicks(2)
            assert (await lab.system.bounds(lab.ssp())).end is None
            if not lab.ends:
                return
            await lab.end("clicks", 0)
            assert (await lab.system.bounds(lab.ssp())).end == 2
            reader = await lab.system.open(lab.ssp(), 0, [Click])
            await read(reader, 2)
            assert isinstance(await reader.read(), EndOfStream)
