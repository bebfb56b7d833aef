"""Live sockets as a source: streams of producers, which cannot be read again.

Rules
- Every live stream has as many partitions as the app has tasks; producers choose the right one.
- Only the upcoming startpoint is possible. Producers send again what they still keep.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from s4node.errors import StartpointError, UnknownStream
from s4node.events.event import LIVE
from s4node.offsets.startpoint import Startpoint, Upcoming
from s4node.offsets.system import SystemStreamPartition


@dataclass(eq=False, repr=False)
class LiveSource:
    """The live input ``streams`` of an app with ``partitions`` tasks."""

    name = LIVE

    _streams: Collection[str]
    _partitions: int

    async def partitions(self, stream: str) -> int:
        if stream not in self._streams:
            known = ", ".join(self._streams) or "none"
            raise UnknownStream(f"no live input stream {stream!r}; the app has: {known}")
        return self._partitions

    async def resolve(self, ssp: SystemStreamPartition, startpoint: Startpoint) -> int:
        """Return 0 for the upcoming event; raises StartpointError for any other startpoint."""
        await self.partitions(ssp.stream)
        if isinstance(startpoint, Upcoming):
            return 0
        raise StartpointError(
            f"{ssp}: {startpoint} cannot be found on live sockets, which keep no events; begin "
            f"with the upcoming event, or read the stream from a log"
        )
