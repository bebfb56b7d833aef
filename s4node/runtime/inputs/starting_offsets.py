"""Where tasks begin to read their inputs, and where they go on when retention was faster.

Rules
- First what the task's ``init`` said; then the startpoint that was asked for; then the checkpoint;
  then what the settings say. The log line says which it was.
- What ``init`` said, and a reset, hold once a start of the job: who takes a task over while the job
  runs goes on from the checkpoint. That the task has begun there is committed with the offset.
- A partition that an input has got since the job began is read from its oldest event.
- What lies outside of what an input has is no place: it ends the start, saying what to set. Only
  where retention has removed what comes next, a setting may have the rest read; that is counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import CheckpointError, InputLost, StartpointError
from s4node.logger import get_logger
from s4node.offsets.startpoint import Oldest, Startpoint, Upcoming, describe
from s4node.offsets.startpoint_fan_out import Request
from s4node.offsets.system import System, SystemStreamPartition
from s4node.runtime.inputs.startpoints import deleting, setting

log = get_logger("s4node.runtime")


class Known(NamedTuple):
    """What there is to say where a task goes on with an input: the wish of its ``init``, a pending
    startpoint, and the offset of its checkpoint with its ``epoch``, 0 without. ``start`` is the id
    of what this start of the job says; empty where the task has begun there already."""

    wish: Startpoint | None
    request: Request | None
    kept: int | None
    start: str
    epoch: int = 0


class StartingOffsets:
    """Those of the job that is kept under ``name``; ``lost`` counts events that retention took, by
    ``system.stream``. ``grown`` has how many partitions inputs had at first that have more."""

    def __init__(self, config: Config, name: str, grown: Mapping[str, int]) -> None:
        self._grown = grown
        self.lost: dict[str, int] = {}
        self._config = config
        self._name = name

    async def of(
        self, system: System, ssp: SystemStreamPartition, task: str, known: Known
    ) -> tuple[int, str]:
        """The offset at which a task goes on, and why there.

        Raises StartpointError, CheckpointError or InputLost where there is no such place.
        """
        if known.wish is not None and known.start:
            return await system.resolve(ssp, known.wish), "set by its task"
        if known.request is not None:
            return await self._requested(system, ssp, task, known.request), "startpoint"
        reset = self._resets(ssp) and known.start
        if known.kept is not None and not reset:
            return await self._checkpointed(system, ssp, known.kept, known.epoch), "checkpoint"
        if not reset and ssp.partition >= self._grown.get(f"{ssp.system}.{ssp.stream}", math.inf):
            return await system.resolve(ssp, Oldest()), "a new partition"
        word = default_offset(self._config, ssp.system, ssp.stream)
        if word == "newest":
            bounds = await system.bounds(ssp)
            return max(bounds.oldest, bounds.upcoming - 1), word
        return await system.resolve(ssp, Oldest() if word == "oldest" else Upcoming()), word

    def consumed(self, known: Known) -> frozenset[str]:
        """The ids of what must not hold again once the offset is committed."""
        return frozenset({known.start, "" if known.request is None else known.request.id} - {""})

    def _resets(self, ssp: SystemStreamPartition) -> bool:
        return self._config.matching(settings.RESET_OFFSET).get(ssp.stream, False)

    async def _requested(
        self, system: System, ssp: SystemStreamPartition, task: str, request: Request
    ) -> int:
        try:
            return await system.resolve(ssp, request.startpoint)
        except StartpointError as error:
            raise StartpointError(
                f"the startpoint {describe(request.startpoint)} that was set for {ssp} "
                f"(id {request.id}, task {task!r}) cannot be had: {error}. Set another one, or "
                f"take it back: {deleting(self._config, self._name, ssp)}"
            ) from error

    async def _checkpointed(
        self, system: System, ssp: SystemStreamPartition, kept: int, epoch: int
    ) -> int:
        bounds = await system.bounds(ssp)
        if epoch and kept > (end := bounds.end_of(epoch)):
            log.error(
                "the end of an input is lost, and stays counted; what has come since is read",
                input=str(ssp),
                events=kept - end,
                goes_on_at=end,
            )
            kept = end
        if kept > bounds.upcoming:
            raise CheckpointError(
                f"the checkpoint of {ssp} goes on at offset {kept}, and {ssp} ends at "
                f"{bounds.upcoming}: it is another stream now, or has lost its end, or the "
                f"checkpoint was imported and does not fit. Say where to go on: "
                f"{setting(self._config, self._name, ssp)} (or --offset N), or s4 checkpoint "
                f"import with one that fits; or set "
                f"streams.{ssp.stream}.samza.reset.offset = true to begin anew"
            )
        if kept < bounds.oldest:
            return self.skipped(
                ssp,
                kept,
                bounds.oldest,
                InputLost(
                    f"{ssp}: the checkpoint goes on at offset {kept}, and the oldest event that is "
                    f"there is {bounds.oldest}: retention has removed those between"
                ),
            )
        return kept

    def skipped(
        self, ssp: SystemStreamPartition, position: int, oldest: int, error: InputLost
    ) -> int:
        """Go on at the oldest event, if the settings say so; raises ``error`` otherwise."""
        if self._config.matching(settings.ON_LOST).get(ssp.stream, "fail") == "fail":
            raise InputLost(
                f"{error}. Set streams.{ssp.stream}.onLost = oldest to go on with what is left, "
                f"and let the stream be kept for longer"
            ) from error
        name = f"{ssp.system}.{ssp.stream}"
        self.lost[name] = self.lost.get(name, 0) + oldest - position
        log.warning(
            "events of an input are lost: retention was faster",
            input=str(ssp),
            events=oldest - position,
            goes_on_at=oldest,
        )
        return oldest


def default_offset(config: Config, system: str, stream: str) -> str:
    """Where an input without progress begins: oldest, newest or upcoming."""
    of_stream = config.matching(settings.OFFSET_DEFAULT).get(stream)
    of_system = config.matching(settings.SYSTEM_OFFSET_DEFAULT).get(system)
    return of_stream or of_system or "upcoming"
