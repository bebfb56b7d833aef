"""The offsets at which tasks begin to read, and resume after retention deleted events.

Rules
- The order is: the task's ``init``, a requested startpoint, the checkpoint, the settings. The log
  line says which one it was.
- The offset of ``init``, and a reset, hold once for each start of the job. The commit of the offset
  records that they were applied, so a container that takes the task over while the job runs goes
  on from the checkpoint.
- A partition that was added since the job began is read from its oldest event.
- An offset outside the input ends the start, and the message says what to set. If retention has
  deleted the next events, a setting may allow to go on with the rest; the lost ones are counted.
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
    """The sources of the offset at which a task resumes an input.

    ``wish`` is the offset of ``init``, ``request`` a pending startpoint, and ``checkpoint`` the
    offset of the checkpoint, with its ``epoch`` (0 if there is none). ``start`` is the id of this
    start of the job, empty if the task has begun in it already.
    """

    wish: Startpoint | None
    request: Request | None
    checkpoint: int | None
    start: str
    epoch: int = 0


class StartingOffsets:
    """The starting offsets of the job ``name``.

    ``lost`` counts events that retention deleted, by ``system.stream``. ``grown`` has the first
    number of partitions of inputs that got more.
    """

    def __init__(self, config: Config, name: str, grown: Mapping[str, int]) -> None:
        self._grown = grown
        self.lost: dict[str, int] = {}
        self._config = config
        self._name = name

    async def find(
        self, system: System, ssp: SystemStreamPartition, task: str, known: Known
    ) -> tuple[int, str, int]:
        """The offset at which a task resumes, why there, and the epoch of the input then.

        Raises StartpointError, CheckpointError or InputLost if the input has no such offset.
        """
        reset = self._resets(ssp) and known.start
        wished = known.wish is not None and known.start
        if known.checkpoint is not None and not (wished or known.request is not None or reset):
            offset, epoch = await self._checkpointed(system, ssp, known.checkpoint, known.epoch)
            return offset, "checkpoint", epoch
        epoch = (await system.bounds(ssp)).epoch
        offset, why = await self._chosen(system, ssp, task, known)
        return offset, why, epoch

    async def _chosen(
        self, system: System, ssp: SystemStreamPartition, task: str, known: Known
    ) -> tuple[int, str]:
        if known.wish is not None and known.start:
            return await system.resolve(ssp, known.wish), "set by its task"
        if known.request is not None:
            return await self._requested(system, ssp, task, known.request), "startpoint"
        grown = ssp.partition >= self._grown.get(f"{ssp.system}.{ssp.stream}", math.inf)
        if grown and not (self._resets(ssp) and known.start):
            return await system.resolve(ssp, Oldest()), "a new partition"
        default = default_offset(self._config, ssp.system, ssp.stream)
        if default == "newest":
            bounds = await system.bounds(ssp)
            return max(bounds.oldest, bounds.upcoming - 1), default
        return await system.resolve(ssp, Oldest() if default == "oldest" else Upcoming()), default

    def consumed(self, known: Known) -> frozenset[str]:
        """The ids of the start and the startpoint that are used up once the offset is committed."""
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
                f"(id {request.id}, task {task!r}) does not exist: {error}. Set another one, or "
                f"delete it: {deleting(self._config, self._name, ssp)}"
            ) from error

    async def _checkpointed(
        self, system: System, ssp: SystemStreamPartition, checkpoint: int, epoch: int
    ) -> tuple[int, int]:
        bounds = await system.bounds(ssp)
        if epoch and bounds.epochs and checkpoint > (end := bounds.end_of(epoch)):
            log.error(
                "the end of an input is lost, and stays counted; reading goes on after it",
                input=str(ssp),
                events=checkpoint - end,
                goes_on_at=end,
            )
            checkpoint, epoch = end, bounds.epoch
        if checkpoint > bounds.upcoming:
            raise CheckpointError(
                f"the checkpoint of {ssp} resumes at offset {checkpoint}, but {ssp} ends at "
                f"{bounds.upcoming}: it is another stream now, or has lost its end. Say where to "
                f"resume: {setting(self._config, self._name, ssp)} (or --offset N); or set "
                f"streams.{ssp.stream}.samza.reset.offset = true to begin anew"
            )
        if checkpoint < bounds.oldest:
            error = InputLost(
                f"{ssp}: the checkpoint resumes at offset {checkpoint}, but the oldest event "
                f"is at {bounds.oldest}: retention has deleted the events between"
            )
            return self.skipped(ssp, checkpoint, bounds.oldest, error), bounds.epoch
        return checkpoint, epoch or bounds.epoch

    def skipped(
        self, ssp: SystemStreamPartition, position: int, oldest: int, error: InputLost
    ) -> int:
        """Go on at the oldest event if the settings allow it; raises ``error`` otherwise."""
        if self._config.matching(settings.ON_LOST).get(ssp.stream, "fail") == "fail":
            raise InputLost(
                f"{error}. Set streams.{ssp.stream}.onLost = oldest to go on with what is left, "
                f"and lengthen the retention of the stream"
            ) from error
        name = f"{ssp.system}.{ssp.stream}"
        self.lost[name] = self.lost.get(name, 0) + oldest - position
        log.warning(
            "events of an input are lost: retention deleted them before they were read",
            input=str(ssp),
            events=oldest - position,
            goes_on_at=oldest,
        )
        return oldest


def default_offset(config: Config, system: str, stream: str) -> str:
    """The place where an input without a checkpoint begins: oldest, newest or upcoming."""
    of_stream = config.matching(settings.OFFSET_DEFAULT).get(stream)
    of_system = config.matching(settings.SYSTEM_OFFSET_DEFAULT).get(system)
    return of_stream or of_system or "upcoming"
