"""The systems that an app under test reads from and writes to: all in memory.

Rules
- A stream exists as soon as it is used, with as many partitions as the app has.
- It outlives the app, as a log does.
"""

from __future__ import annotations

from s4node.offsets.startpoint import Specific, Startpoint
from s4node.offsets.system import SystemStreamPartition
from s4node.systems.memory import MemorySystem, _Partition


class Inputs:
    """The systems by name; ``partitions`` is the number of a stream that is not made explicitly."""

    def __init__(self) -> None:
        self.partitions = 1
        self._systems: dict[str, Memory] = {}

    def system(self, name: str) -> Memory:
        if name not in self._systems:
            self._systems[name] = Memory(name, self)
        return self._systems[name]


class Memory(MemorySystem):
    """A system that has every stream."""

    def __init__(self, name: str, inputs: Inputs) -> None:
        super().__init__(name)
        self._inputs = inputs

    def count(self, stream: str) -> int:
        return len(self._stream(stream))

    async def resolve(self, ssp: SystemStreamPartition, startpoint: Startpoint) -> int:
        """The offset that a startpoint means now; an offset of what is empty is where it begins."""
        home = self.partition_of(ssp)
        if isinstance(startpoint, Specific) and not home.events and not home.oldest:
            home.oldest = startpoint.offset
        return await super().resolve(ssp, startpoint)

    def _stream(self, stream: str) -> list[_Partition]:
        if stream not in self._streams:
            self.create(stream, self._inputs.partitions)
        return super()._stream(stream)
