"""Large frames of events that do not decode: they take linear time, and hold nobody up."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
import trio
from harness import raw_peer, running
from noted import Click, Noted

from s4node import Client
from s4node.events.schema import EventType
from s4node.net.wire import frame as wire

KIND = EventType(Click)
KEYED = "crc32:user"
ROOM = {
    "s4.listener.maxFrameBytes": "16777216",
    "s4.stream.workQueueSize": "1000000",  # or others wait, as for any stage that is full
    "s4.deserializer.workQueueSize": "1000000",
}


def bad_frame(count: int, *, alike: bool, routing: str) -> tuple[wire.Header, bytes]:
    """Events whose ``n`` is a text; only every second one where they are not alike."""
    body = msgspec.msgpack.encode([["ann", "x" if alike or not n % 2 else n] for n in range(count)])
    section = wire.Section(KIND.fingerprint, count, len(body))
    flags = wire.ANSWER_NOW
    return wire.Data("clicks", 0, "bad", 0, count, (section,), routing=routing, flags=flags), body


class Course:
    """What became of a frame, and of an honest producer beside it."""

    def __init__(self) -> None:
        self.refused = 0
        self.seconds = 0.0
        self.slowest = 0.0  # verdict of the honest producer


async def course_of(
    count: int, *, alike: bool, routing: str = KEYED, partitions: int = 1
) -> Course:
    course, noted, over = Course(), Noted(), False

    async def honest(address: str, task_status: trio.TaskStatus[None]) -> None:
        async with Client(address) as client:
            stream = await client.stream("clicks", types=[Click])
            await stream.send(Click("bob"))
            await client.flush()
            task_status.started()
            while not over:
                began = time.perf_counter()
                await stream.send(Click("bob"))
                await client.flush()
                course.slowest = max(course.slowest, time.perf_counter() - began)

    async with (
        running(noted.app, ROOM, partitions=partitions) as node,
        raw_peer(node.address) as peer,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(honest, node.address)
        await peer.open("clicks", "bad", Click)
        frame = bad_frame(count, alike=alike, routing=routing)
        began, upto, next_number = time.perf_counter(), 0, 0
        await peer.send_frames(frame)
        while upto < count:
            for header in await peer.receive():
                assert isinstance(header, wire.Verdict)
                assert not header.error
                for ruling in header.rulings:
                    for number, told, reason in ruling.exceptions:
                        assert number >= next_number
                        assert "Expected `int`, got `str`" in reason
                        course.refused += told
                        next_number = number + told
                    upto = max(upto, ruling.upto)
        course.seconds = time.perf_counter() - began
        over = True
    assert node.statistics().inputs["clicks"].refused == course.refused
    return course


@pytest.mark.parametrize(
    ("alike", "routing", "partitions"),
    [(True, KEYED, 1), (False, KEYED, 1), (True, "", 4)],
    ids=["alike", "every second", "sent on by key"],
)
async def test_a_frame_of_undecodable_events_takes_linear_time_and_holds_up_nobody(
    *, alike: bool, routing: str, partitions: int
) -> None:
    options: Any = {"alike": alike, "routing": routing, "partitions": partitions}
    part = 1 if alike else 2
    small = await course_of(50_000, **options)
    large = await course_of(200_000, **options)
    assert (small.refused, large.refused) == (50_000 // part, 200_000 // part)
    assert large.seconds < 12 * small.seconds  # of four times the events; squared it is 16
    assert large.slowest < large.seconds / 2
