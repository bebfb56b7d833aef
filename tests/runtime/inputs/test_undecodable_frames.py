"""Large frames of events that do not decode, or have no key: they take linear time, and hold nobody
up."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from harness import limit_peers, raw_peer, running
from recording_app import RecordingApp
from shared_apps import Click

from s4node import Client
from s4node.events.schema import EventType
from s4node.net.wire import frame as wire

KEYED = "crc32m:user"


@pytest.mark.long
@pytest.mark.parametrize(
    ("alike", "routing", "partitions"),
    [(True, KEYED, 1), (False, KEYED, 1), (True, "", 4)],
    ids=["alike", "every second", "sent on by key"],
)
async def test_a_frame_of_undecodable_events_takes_linear_time_and_holds_up_nobody(
    *, alike: bool, routing: str, partitions: int
) -> None:
    part = 1 if alike else 2
    why = "Expected `int`, got `str`"
    small, large = [
        await course_of(bad_frame(n, alike=alike, routing=routing), why, partitions=partitions)
        for n in (50_000, 200_000)
    ]
    assert (small.refused, large.refused) == (50_000 // part, 200_000 // part)
    assert large.cpu_seconds < 12 * small.cpu_seconds  # of four times the events; squared it is 16
    assert large.answered >= MANY


@pytest.mark.long
@pytest.mark.parametrize("grade", ["fast", "durable"])
@pytest.mark.parametrize("encoding", [wire.MSGPACK, wire.JSON], ids=["msgpack", "json"])
async def test_a_frame_of_events_without_a_key_holds_up_nobody(
    encoding: int, grade: str, tmp_path: Path
) -> None:
    settings = {
        "s4.stream.clicks.grade": grade,
        "s4.state.folder": str(tmp_path),
        "task.commit.ms": "50",
    }
    course = await course_of(
        keyless_frame(200_000, encoding),
        "the KeyFinder returned nothing",
        partitions=4,
        beside="others",
        settings=settings,
        key=NoAnn(),
    )
    assert course.refused == 200_000
    assert course.answered >= MANY


# -- set-up ---------------------------------------------------------------------------------------


KIND = EventType(Click)
MANY = 10
"""The verdicts that an honest producer gets at least while a frame is processed."""


@pytest.fixture(autouse=True)
def _frames_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_peers(monkeypatch, frame_events=1_000_000)


ROOM = {
    "s4.listener.maxFrameBytes": "16777216",
    "s4.stream.workQueueSize": "1000000",  # or others wait, as for any stage that is full
    "s4.deserializer.workQueueSize": "1000000",
}


def frame_of(body: bytes, count: int, **options: Any) -> tuple[wire.Header, bytes]:
    section = wire.Section(KIND.fingerprint, count, len(body))
    flags = wire.ANSWER_NOW
    return wire.Data("clicks", 0, "bad", 0, count, (section,), flags=flags, **options), body


def bad_frame(count: int, *, alike: bool, routing: str) -> tuple[wire.Header, bytes]:
    """Events whose ``n`` is a text; only every second one where they are not alike."""
    body = msgspec.msgpack.encode([["ann", "x" if alike or not n % 2 else n] for n in range(count)])
    return frame_of(body, count, routing=routing)


def keyless_frame(count: int, encoding: int) -> tuple[wire.Header, bytes]:
    """Good events whose key is not found."""
    if encoding == wire.JSON:
        body = b"[" + b",".join([b'{"user": "ann"}'] * count) + b"]"
    else:
        body = msgspec.msgpack.encode([["ann", 0]] * count)
    return frame_of(body, count, encoding=encoding)


class NoAnn:
    """Finds no key in what is ann's."""

    name = "no-ann"

    def get(self, event: Click) -> str | None:
        return None if event.user == "ann" else event.user


class Course:
    """The course of a frame, and of an honest producer beside it."""

    def __init__(self) -> None:
        self.refused = 0
        self.cpu_seconds = 0.0
        self.answered = 0  # events of the honest producer


async def course_of(
    frame: tuple[wire.Header, bytes],
    why: str,
    *,
    partitions: int = 1,
    beside: str = "clicks",
    settings: Mapping[str, str] | None = None,
    **options: Any,
) -> Course:
    """Send a frame, and what is honest on the stream ``beside`` it."""
    course, noted, over = Course(), RecordingApp(**options), False
    assert isinstance(frame[0], wire.Data)
    count = frame[0].count

    async def honest(address: str, task_status: trio.TaskStatus[None]) -> None:
        async with Client(address) as client:
            stream = await client.stream(beside, types=[Click])
            await stream.send(Click("bob"))
            await client.flush()
            task_status.started()
            while not over:
                await stream.send(Click("bob"))
                await client.flush()
                course.answered += not over

    async with (
        running(noted, ROOM | (settings or {}), partitions=partitions) as node,
        raw_peer(node.address) as peer,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(honest, node.address)
        await peer.open("clicks", "bad", Click)
        course.answered, used, upto, next_number = 0, time.process_time(), 0, 0
        await peer.send_frames(frame)
        while upto < count:
            for header in await peer.receive():
                assert isinstance(header, wire.Verdict)
                assert not header.error
                for ruling in header.rulings:
                    for number, told, reason in ruling.exceptions:
                        assert number >= next_number
                        assert why in reason
                        course.refused += told
                        next_number = number + told
                    upto = max(upto, ruling.upto)
        course.cpu_seconds = time.process_time() - used
        over = True
    assert node.statistics().inputs["clicks"].refused == course.refused
    return course
