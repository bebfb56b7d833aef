"""The events of the benchmarks, and their expected counts.

Rules
- The same seed gives the same events in every process, so each side can compute what the other
  must have seen.
- Keys are 10,000 words of 4 to 12 letters, drawn by Zipf's law; the sequence repeats after
  ``LENGTH`` events.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Any

import msgspec
import trio

from s4node.app.processing_element import ProcessingElement
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import StartpointError
from s4node.events.event import Event
from s4node.offsets.startpoint import Oldest, Specific, Startpoint
from s4node.offsets.system import (
    END_OF_STREAM,
    Bounds,
    EndOfStream,
    InputBatch,
    SystemStreamPartition,
)
from s4node.runtime.container.container import Container

WORDS = 10_000
LENGTH = 1 << 18
FIRST_TS = 1_700_000_000_000
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Reading(Event):
    """The event to count: a word, a number, and a time in ms (13 digits)."""

    key: str
    value: int
    ts: int


class ByKey:
    """A KeyFinder that returns the attribute ``key``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def get(self, event: Reading) -> str:
        return event.key


class Tally(ProcessingElement):
    count: int = 0
    total: int = 0

    def on_event(self, event: Reading) -> None:
        self.count += 1
        self.total += event.value


def words() -> list[str]:
    """The 10,000 distinct words, most frequent first."""
    dice = random.Random(7)
    found: dict[str, None] = {}
    while len(found) < WORDS:
        found["".join(dice.choices(_LETTERS, k=dice.randint(4, 12)))] = None
    return list(found)


def key_sequence() -> list[str]:
    """``LENGTH`` keys drawn from the words by Zipf's law."""
    weights = list(accumulate(1 / rank for rank in range(1, WORDS + 1)))
    return random.Random(11).choices(words(), cum_weights=weights, k=LENGTH)


def batches(keys: list[str], size: int) -> Iterator[list[Reading]]:
    """The events in order, for ever, ``size`` at a time (a divisor of the sequence's length)."""
    assert len(keys) % size == 0
    chunks = [keys[at : at + size] for at in range(0, len(keys), size)]
    values = [[(at + i) % 1000 for i in range(size)] for at in range(0, len(keys), size)]
    ts = FIRST_TS
    while True:
        for chunk, numbers in zip(chunks, values, strict=True):
            yield list(map(Reading, chunk, numbers, range(ts, ts + size)))
            ts += size


def lines(size: int) -> list[bytes]:
    """One pass over the events as texts of ``size`` lines of JSON."""
    encode = msgspec.json.Encoder().encode_lines
    keys = key_sequence()
    source = batches(keys, size)
    return [
        encode([{"key": e.key, "value": e.value, "ts": e.ts} for e in next(source)])
        for _ in range(len(keys) // size)
    ]


def uniform_keys(count: int) -> Iterator[str]:
    """``count`` distinct keys of 11 characters, in an order without pattern."""
    step = 7_368_787  # a prime, so every number below ``count`` comes once
    return (f"key-{number * step % count:07d}" for number in range(count))


def once(keys: Iterable[str], size: int) -> Iterator[list[Reading]]:
    """One event for each key, ``size`` at a time."""
    remaining = iter(keys)
    while chunk := list(islice(remaining, size)):
        yield [Reading(key, 1, FIRST_TS) for key in chunk]


def drawn(keys: Iterable[str], law: str) -> list[str]:
    """A sequence of keys, drawn by Zipf's law ("zipf") or evenly ("uniform").

    Its length is a multiple of ``LENGTH``.
    """
    known = list(keys)
    weights = [1 / rank for rank in range(1, len(known) + 1)] if law == "zipf" else None
    cumulated = list(accumulate(weights)) if weights else None
    length = LENGTH * (4 if len(known) > LENGTH else 1)
    return random.Random(13).choices(known, cum_weights=cumulated, k=length)


def truth(keys: list[str], events: int) -> dict[str, tuple[int, int]]:
    """Count and total of each key after the first ``events`` events."""
    passes, rest = divmod(events, len(keys))
    found: dict[str, list[int]] = {}
    for times, part in ((passes, keys), (1, list(islice(keys, rest)))):
        if times:
            for index, key in enumerate(part):
                tally = found.setdefault(key, [0, 0])
                tally[0] += times
                tally[1] += times * (index % 1000)
    return {key: (count, total) for key, (count, total) in found.items()}


def tallies(container: Container) -> list[tuple[str, int, int]]:
    """Key, count and total of each Tally of a container."""
    return [
        (str(pe.key), pe.count, pe.total)  # type: ignore[attr-defined]
        for one in container.tasks.values()
        for pe in one.instances["Tally"].values()
    ]


def digest_of(events: int) -> str:
    """The fingerprint of the counts of the first ``events`` events of the sequence."""
    expected = truth(key_sequence(), events)
    return digest((key, count, total) for key, (count, total) in expected.items())


def digest(tallies: Iterable[tuple[str, int, int]]) -> str:
    """A fingerprint of keys, counts and totals, whatever their order."""
    lines = sorted(f"{key} {count} {total}" for key, count, total in tallies)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


# -- a system whose events are generated -----------------------------------------------------------

GENERATED_BATCH = 2048
_PRIME = 7_368_787  # so every number below a count of keys comes once
_MIX = 0x9E3779B97F4A7C15


def key_of(offset: int, keys: int) -> str:
    """The key of the event at an offset."""
    if offset < keys:
        return f"key-{offset * _PRIME % keys:08d}"
    mixed = offset * _MIX & 0xFFFF_FFFF_FFFF_FFFF
    return f"key-{(mixed ^ mixed >> 29) % keys:08d}"


class _Batch(InputBatch):
    __slots__ = ("_keys",)

    def __init__(self, ssp: SystemStreamPartition, first: int, size: int, keys: int) -> None:
        super().__init__(ssp, first, size, size * 32, FIRST_TS)
        self._keys = keys
        self.routing = "crc32m:key"

    def load(self) -> None:
        keys = self._keys
        self.events = [
            Reading(key_of(offset, keys), 1, offset)
            for offset in range(self.first, self.first + self.size)
        ]


class _Reader:
    def __init__(self, ssp: SystemStreamPartition, at: int, keys: int, events: int) -> None:
        self.ssp = ssp
        self.position = at
        self._keys = keys
        self._end = keys + events
        self._going = trio.Event()
        self._going.set()

    @property
    def lag(self) -> int | None:
        return self._end - self.position

    async def read(self) -> InputBatch | EndOfStream:
        await trio.lowlevel.checkpoint()
        if self.position >= self._end:
            return END_OF_STREAM
        await self._going.wait()
        batch = _Batch(
            self.ssp, self.position, min(GENERATED_BATCH, self._end - self.position), self._keys
        )
        self.position += batch.size
        return batch

    def pause(self) -> None:
        self._going = trio.Event()

    def resume(self) -> None:
        self._going.set()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Generated:
    """A system whose events are generated when they are read, the same at each reading.

    Its address is ``KEYS/EVENTS``: it has an event for each key, so that all exist, then events
    with keys without a pattern. Every stream has one partition.
    """

    def __init__(self, name: str, config: Config) -> None:
        self.name = name
        address = config.matching(settings.SYSTEM_ADDRESS)[name]
        self._keys, self._events = map(int, address.split("/"))

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def wait_reachable(self, wanted: bool = True) -> None:
        await trio.lowlevel.checkpoint()
        if not wanted:
            await trio.sleep_forever()

    async def partitions(self, _: str) -> int:
        await trio.lowlevel.checkpoint()
        return 1

    async def identity(self, _: str) -> str:
        await trio.lowlevel.checkpoint()
        return f"{self._keys}/{self._events}"

    async def bounds(self, _: SystemStreamPartition) -> Bounds:
        await trio.lowlevel.checkpoint()
        end = self._keys + self._events
        return Bounds(0, end, end)

    async def resolve(self, ssp: SystemStreamPartition, startpoint: Startpoint) -> int:
        await trio.lowlevel.checkpoint()
        match startpoint:
            case Oldest():
                return 0
            case Specific(offset):
                return offset
        raise StartpointError(f"{ssp} has no {startpoint}; begin at the oldest or at an offset")

    async def open(self, ssp: SystemStreamPartition, offset: int, _: Sequence[type]) -> _Reader:
        await trio.lowlevel.checkpoint()
        return _Reader(ssp, offset, self._keys, self._events)

    async def append(self, stream: str, *_: object) -> int:
        await trio.lowlevel.checkpoint()
        raise StartpointError(f"nothing can be appended to {self.name}.{stream}; it is generated")
