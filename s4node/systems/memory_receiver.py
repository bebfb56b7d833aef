"""Receivers of a system in memory, with transactions and fences, for tests. Pure but for trio.

Rules
- A transaction counts when it is committed, all of it. Opening a receiver aborts that of the former
  one, and fences it: what that does later raises ReceiverLost.
- While the system is away, everything waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import trio

from s4node.errors import ReceiverLost
from s4node.offsets.system import Marker, OutputRecord


@dataclass(eq=False, repr=False)
class Published:
    """The committed records of a system, and the last marker of each task."""

    records: list[OutputRecord] = field(default_factory=list)
    markers: dict[str, Marker] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)

    def of(self, stream: str) -> list[OutputRecord]:
        return [record for record in self.records if record.stream == stream]


class MemoryReceiver:
    """Takes the records of the task ``name``; ``reachable`` waits until the system is there."""

    def __init__(
        self, name: str, published: Published, reachable: Callable[[], Awaitable[None]]
    ) -> None:
        self._name = name
        self._published = published
        self._reachable = reachable
        self._fence = 0

    async def open(self) -> Marker | None:
        await self._reachable()
        fences = self._published.fences
        self._fence = fences[self._name] = fences.get(self._name, 0) + 1
        await trio.lowlevel.checkpoint()
        await self._reachable()
        return self._published.markers.get(self._name)

    async def transact(self, records: Iterable[OutputRecord], marker: Marker) -> None:
        await self._reachable()
        await trio.lowlevel.checkpoint()  # the transaction is open
        if self._fence != self._published.fences.get(self._name):
            raise ReceiverLost(f"another receiver of {self._name} was opened")
        self._published.records += records
        self._published.markers[self._name] = marker
        await self._reachable()

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
