"""``s4 log tail`` and ``describe`` with ``--system``: streams of a system, as an app reads them.

Rules
- The settings are those of the app: how the system is reached, and the formats of its streams.
- Events are GenericEvents. A value that does not decode is reported, and reading goes on.
- The time of a record is shown beside its place, and not in the field that gets it in the app: a
  stream that is written has its own time there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple

import trio

from s4node.cli.output import connecting, counted, report
from s4node.cli.tail import print_events
from s4node.config.config import Config
from s4node.errors import ConfigError, NodeUnreachable, StartpointError
from s4node.events.event import GenericEvent
from s4node.net.client.subscription import Place
from s4node.offsets.startpoint import Specific, Startpoint
from s4node.offsets.system import EndOfStream, PartitionReader, System, SystemStreamPartition
from s4node.systems.registry import Systems

_TIME = "(time)"
"""Stands for the field that gets the time of a record."""


class RecordPlace(NamedTuple):
    """The place of a record, with its time in seconds."""

    partition: int
    offset: int
    time: float


class Reading:
    """Reads the system ``name`` of ``config``, which has to answer within ``timeout`` seconds."""

    def __init__(
        self, config: Config, name: str, stream: str, timeout: float, *, as_json: bool
    ) -> None:
        timed = {f"streams.{stream}.record.time": _TIME} if stream else {}
        self._system = Systems(config.with_(timed))[name]
        self._timeout = timeout
        self._as_json = as_json

    async def print_tail(
        self,
        stream: str,
        start: Startpoint | Literal["newest"],
        partition: int | None,
        count: int,
    ) -> int:
        async with self._connected() as system:
            described = await self._described(stream)
            places = await start_of(system, described, start, partition)
            report(f"reading {stream} from {_address(system)}; Ctrl-C ends")
            sender, receiver = trio.open_memory_channel[tuple[Place, Any]](0)
            async with trio.open_nursery() as nursery:
                for number, offset in places.items():
                    ssp = SystemStreamPartition(system.name, stream, number)
                    reader = await system.open(ssp, offset, [GenericEvent])
                    nursery.start_soon(_read, reader, sender)
                await print_events(receiver, count, with_place=self._as_json)
                nursery.cancel_scope.cancel()
        return 0

    async def print_streams(self, stream: str) -> int:
        async with self._connected() as system:
            names = [stream] if stream else await _names(system)
            found = [await self._described(name) for name in names]
            if self._as_json:
                print(json.dumps(found[0] if stream else found))
            for each in () if self._as_json else found:
                parts = each["partitions"]
                print(f"{each['stream']}: {counted(len(parts), 'partition')}")
                for part in parts:
                    first, end = part["oldest"], part["upcoming"]
                    print(f"  {part['partition']}: offsets {first} to {end}")
        return 0

    async def _described(self, stream: str) -> dict[str, Any]:
        count = await self._system.partitions(stream)
        partitions = []
        for number in range(count):
            ssp = SystemStreamPartition(self._system.name, stream, number)
            bounds = await self._system.bounds(ssp)
            place = {"partition": number, "oldest": bounds.oldest, "upcoming": bounds.upcoming}
            partitions.append(place)
        return {"stream": stream, "partitions": partitions}

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[System]:
        system, where = self._system, _address(self._system)
        async with connecting([where], self._timeout) as connected, trio.open_nursery() as nursery:
            await nursery.start(system.run)
            with trio.move_on_after(self._timeout) as scope:
                await system.wait_reachable()
            if scope.cancelled_caught:
                raise NodeUnreachable(
                    f"system {system.name!r} at {where} does not answer within "
                    f"{self._timeout:g} s; start it, or give its address as -p "
                    f"systems.{system.name}.address=HOST:PORT"
                )
            connected()
            yield system
            nursery.cancel_scope.cancel()


async def _read(reader: PartitionReader, sender: trio.MemorySendChannel[Any]) -> None:
    while not isinstance(batch := await reader.read(), EndOfStream):
        batch.load()
        for offset, why, raw in batch.undecoded:
            report(f"{reader.ssp}: offset {offset} is left out: {why}: {raw[:80]!r}")
        for index, event in enumerate(batch.events):
            at: Place | RecordPlace = Place(reader.ssp.partition, batch.number(index))
            fields = event.attributes
            if (time := fields.pop(_TIME, None)) is not None:
                at = RecordPlace(at.partition, at.offset, time)
            await sender.send((at, GenericEvent.from_attributes(fields)))


async def _names(system: System) -> list[str]:
    names = getattr(system, "topics", None)
    if names is None:
        raise ConfigError(f"system {system.name!r} does not list its streams; name one of them")
    found: list[str] = await names()
    return found


def _address(system: System) -> str:
    return getattr(system, "address", "") or system.name


async def start_of(
    system: System,
    described: Mapping[str, Any],
    start: Startpoint | Literal["newest"],
    partition: int | None,
) -> dict[int, int]:
    stream, partitions = described["stream"], described["partitions"]
    if partition is not None and not 0 <= partition < len(partitions):
        raise StartpointError(
            f"stream {stream!r} has partitions 0 to {len(partitions) - 1}, not {partition}"
        )
    wanted = partitions if partition is None else [partitions[partition]]
    if start == "newest":
        return {each["partition"]: max(each["oldest"], each["upcoming"] - 1) for each in wanted}
    if isinstance(start, Specific) and len(wanted) > 1:
        raise StartpointError(
            f"stream {stream!r} has {len(partitions)} partitions, each with its own offsets; "
            f"choose one with --partition"
        )
    places = [SystemStreamPartition(system.name, stream, each["partition"]) for each in wanted]
    return {place.partition: await system.resolve(place, start) for place in places}
