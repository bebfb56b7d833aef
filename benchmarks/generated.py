"""A system whose events are generated when they are read, the same at each reading.

Its address is ``KEYS/EVENTS``: it has an event for each key, so that all exist, then events with
keys without a pattern. Every stream has one partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from benchmarks.workload import FIRST_TS, Reading
from s4node.errors import StartpointError
from s4node.offsets.startpoint import Oldest, Specific, Startpoint
from s4node.offsets.system import (
    END_OF_STREAM,
    Bounds,
    EndOfStream,
    InputBatch,
    SystemStreamPartition,
)

BATCH = 2048
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
        batch = _Batch(self.ssp, self.position, min(BATCH, self._end - self.position), self._keys)
        self.position += batch.size
        return batch

    def pause(self) -> None:
        self._going = trio.Event()

    def resume(self) -> None:
        self._going.set()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Generated:
    def __init__(self, name: str, address: str) -> None:
        self.name = name
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
