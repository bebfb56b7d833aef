"""Two apps to take savepoints of: tokens run in a cycle over three tasks, then to the other app.

Rules
- What a token does depends on its name only, and all counts and sums are of any order. So the
  tokens that came in decide what every key has once nothing is under way.
- ``drops`` is an input that can be read again. It has tokens without end, up to the offsets in a
  file, so a run can be held where it is.
"""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from s4node import App, Event, OutputStream, ProcessingElement, Stream
from s4node.offsets.startpoint import Oldest, Specific, Startpoint
from s4node.offsets.system import Bounds, InputBatch, SystemStreamPartition

PARTITIONS = 3
USERS = [f"user-{number}" for number in range(30)]
MOST_HOPS = 5
_BATCH = 64
_LOOK_SECONDS = 0.02


class Token(Event):
    """A token at ``user``, and the users to whom it goes next."""

    name: str
    user: str
    path: list[str]


class Arrival(Event):
    """The end of a token's path."""

    name: str


def token(source: str, number: int) -> Token:
    """A token of a source, the same at each time."""
    name = f"{source}:{number}"
    chance = random.Random(name)
    users = chance.choices(USERS, k=chance.randrange(1, MOST_HOPS + 2))
    return Token(name, users[0], users[1:])


def mark(one: Token) -> int:
    """What a token adds to the sum of a user."""
    return zlib.crc32(f"{one.name} {len(one.path)}".encode())


class Hop(ProcessingElement):
    """Passes tokens on: ``n`` of them came, ``ended`` of them had no further to go."""

    n: int = 0
    sum: int = 0
    ended: int = 0
    onward: Stream
    out: OutputStream

    def on_event(self, event: Token) -> None:
        """Count a token, and pass it on."""
        self.n += 1
        self.sum += mark(event)
        if event.path:
            self.onward.put(Token(event.name, event.path[0], event.path[1:]))
        else:
            self.ended += 1
            self.out.put(Arrival(event.name))


class Arrived(ProcessingElement):
    """Counts how often a token has arrived."""

    n: int = 0

    def on_event(self, event: Arrival) -> None:
        """Count it."""
        self.n += 1


circle = App("circle")
_hop = circle.create_pe(Hop)
_hop.onward = circle.create_stream("hops", _hop, key="user", types=Token)
_hop.out = circle.create_output_stream("done", key="name", types=Arrival)
circle.create_input_stream("clicks", _hop, key="user", types=Token)
circle.create_input_stream("drops", _hop, key="user", types=Token, system="drops")

ends = App("ends")
ends.create_input_stream("done", ends.create_pe(Arrived), key="name", types=Arrival)


@dataclass
class Truth:
    """What a run has, with nothing under way: ``(n, sum, ended)`` by user, and what arrived."""

    users: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    names: Counter[str] = field(default_factory=Counter)


def truth_of(tokens: Iterable[Token]) -> Truth:
    """That of a run that these tokens came into."""
    truth = Truth()
    for one in tokens:
        while True:
            n, total, ended = truth.users.get(one.user, (0, 0, 0))
            truth.users[one.user] = n + 1, total + mark(one), ended + (not one.path)
            if not one.path:
                break
            one = Token(one.name, one.path[0], one.path[1:])
        truth.names[one.name] += 1
    return truth


class _Batch(InputBatch):
    __slots__ = ()

    def load(self) -> None:
        source = f"drops {self.partition}"
        self.events = [token(source, n) for n in range(self.first, self.first + self.size)]


class _Reader:
    def __init__(self, ssp: SystemStreamPartition, at: int, system: Drops) -> None:
        self.ssp = ssp
        self.position = at
        self._system = system

    @property
    def lag(self) -> int | None:
        return self._system.end_of(self.ssp.partition) - self.position

    async def read(self) -> InputBatch:
        while (left := self.lag or 0) <= 0:
            await trio.sleep(_LOOK_SECONDS)
        batch = _Batch(self.ssp, self.position, min(_BATCH, left), 32 * _BATCH, 0)
        self.position += batch.size
        return batch

    def pause(self) -> None:
        """There is nothing that would be fetched ahead."""

    def resume(self) -> None:
        """Nothing was paused."""

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Drops:
    """The system of the input ``drops``; its address is the file with the end of each partition."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self._file = Path(address)

    def end_of(self, partition: int) -> int:
        """Where the partition ends for now."""
        ends: list[int] = json.loads(self._file.read_text())
        return ends[partition]

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def wait_reachable(self, wanted: bool = True) -> None:
        await trio.lowlevel.checkpoint()
        if not wanted:
            await trio.sleep_forever()

    async def partitions(self, _: str) -> int:
        await trio.lowlevel.checkpoint()
        return PARTITIONS

    async def bounds(self, ssp: SystemStreamPartition) -> Bounds:
        await trio.lowlevel.checkpoint()
        return Bounds(0, self.end_of(ssp.partition))

    async def resolve(self, _: SystemStreamPartition, startpoint: Startpoint) -> int:
        await trio.lowlevel.checkpoint()
        match startpoint:
            case Oldest():
                return 0
            case Specific(offset):
                return offset
        raise NotImplementedError(startpoint)

    async def open(self, ssp: SystemStreamPartition, offset: int, _: Sequence[type]) -> _Reader:
        await trio.lowlevel.checkpoint()
        return _Reader(ssp, offset, self)

    async def append(self, stream: str, *_: object) -> int:
        raise NotImplementedError(stream)
