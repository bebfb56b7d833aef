"""The savepoints that are asked for, as a container's tasks take part in them.

Rules
- A request is an entry of the coordination that all who can reach the job's state see. The tasks
  of a container are asked for their cuts when it appears, and so is a task that comes later.
- If the job has fast inputs, all containers hold and drain theirs first. They go on when the cuts
  have begun, when nobody asks for the savepoint any more, and at each trouble with the
  coordination. A container holds its inputs only after it could announce them to the others.
- A cut is reported when it is kept, and its owner still has the right to write the task. So is one
  that could not be kept: the savepoint fails, and the job goes on. A report that cannot be given
  yet is given later.
- A task whose last cut of this number was made by an earlier owner makes no other: that is
  reported, so that the savepoint is taken again under another number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import trio

from s4node import threads
from s4node.cluster.coordination.follow import follow
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.coordination.state_coordination import StateCoordination
from s4node.config.config import Config
from s4node.errors import CoordinationError
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.net.ingress.connection import Waker
from s4node.offsets.cuts import CutReport, Cuts, DrainReport
from s4node.runtime.commit.retries import Retries
from s4node.state.job import identity_of
from s4node.state.remote_job import RemoteJob

log = get_logger("s4node.runtime")

_LOOK_SECONDS = 1.0
"""How often it is looked whether anybody has ever asked anything of the job, and for new tasks."""

_DRAIN_SECONDS = 0.02
"""How often it is looked whether fast inputs are drained."""


class Inputs(Protocol):
    """The fast inputs of a container; false if there are none."""

    def __bool__(self) -> bool: ...

    @property
    def undrained(self) -> dict[str, int]:
        """How many events are not processed, by stream; all streams while they are not held."""
        ...

    def hold(self, now: float) -> None: ...

    def held_seconds(self, now: float) -> float:
        """How long the inputs have been held, or were held the last time."""
        ...

    def let_go(self, now: float) -> bool: ...


class SavepointRequests:
    """Those of the job in ``folder``, whose state is that of ``remote_job``, if there is one;
    ``names`` are its tasks', and what comes after them the container's."""

    def __init__(
        self,
        folder: Path,
        remote_job: RemoteJob | None,
        config: Config,
        names: Mapping[int, str],
        retries: Retries,
        cuts: Cuts,
        inputs: Inputs,
        waker: Waker,
    ) -> None:
        self._folder = folder
        self._remote_job = remote_job
        self._retries = retries
        self._coordination = StateCoordination(folder, config)
        self._names = names
        self._cuts = cuts
        self._inputs = inputs
        self._waker = waker
        self._unreported: dict[str, tuple[int, CutReport]] = {}  # by task
        self._reported: object = None  # what the others know of the drain
        self._state = ""
        self._registry: Registry | None = None

    async def run(self) -> None:
        """Ask the tasks for their cuts until cancelled."""
        while not await threads.run_sync(lambda: self._coordination.exists):  # noqa: ASYNC110 - files
            await trio.sleep(_LOOK_SECONDS)
        ask = partial(threads.run_sync, identity_of, self._folder, self._remote_job)
        self._state = await self._retries.answer("", ask)
        while True:
            try:
                async with self._coordination.registry("container") as self._registry:
                    await follow(self._step, self._on_trouble)
            except CoordinationError as error:  # the session has ended, or there is none
                self._on_trouble(str(error))
                await trio.sleep(_LOOK_SECONDS)
            finally:
                self._registry = None
                self._let_go()

    async def _step(self) -> None:
        try:
            await self._take_part()
        except CoordinationError:
            self._let_go()
            raise

    async def _take_part(self) -> None:
        assert self._registry is not None
        path = self._registry.job.path_of_savepoint(self._state)
        seen = await self._registry.session.change(path)
        number = await self._registry.job.requested_savepoint(self._state)
        unreported, self._unreported = self._unreported, {}
        for made, report in unreported.values():
            if made == number:
                await self.report_cut(made, report)
        drained = self._cuts.all_made(number) or await self._drained(number)
        if drained:
            self._cuts.request_all(number)
            self._waker.nudge()
        if number and drained:
            passing("savepoint.due")
            for partition in self._cuts.take_inherited(number):
                gone = CutReport(self._names[partition], 0, 0, "taken over after its cut")
                await self.report_cut(number, gone)
        if self._cuts.all_made(number):
            self._let_go()
        with trio.move_on_after(_LOOK_SECONDS if drained else _DRAIN_SECONDS):
            await self._registry.session.wait_change(path, seen)  # a task may come to us meanwhile

    async def _drained(self, number: int) -> bool:
        """Hold the fast inputs; return True if those of all containers are drained."""
        assert self._registry is not None
        if not self._inputs:
            return True
        tasks = [self._names[partition] for partition in self._cuts.partitions]
        waiting = self._inputs.undrained
        drain = number, tasks, waiting.keys(), any(waiting.values())
        if drain != self._reported:
            report = DrainReport(tasks, waiting)
            await self._registry.job.report_drain(self._state, number, report)
            self._reported = drain
        self._inputs.hold(trio.current_time())
        drains = await self._registry.job.drains(self._state, number)
        drained = {task for each in drains if not each.waiting for task in each.tasks}
        return drained >= set(self._names.values())

    async def report_cut(self, number: int, report: CutReport) -> None:
        if (
            self._registry is None
        ):  # a message of another task has asked for the cut before we could
            self._unreported[report.task] = number, report
            return
        held = math.ceil(self._inputs.held_seconds(trio.current_time()) * 1000)
        report = msgspec.structs.replace(report, held_ms=held)
        try:
            await self._registry.job.report_cut(self._state, number, report)
        except CoordinationError as error:
            self._unreported[report.task] = number, report
            self._on_trouble(str(error))

    def _let_go(self) -> None:
        if self._inputs.let_go(trio.current_time()):
            self._waker.nudge()
        self._reported = None

    def _on_trouble(self, reason: str) -> None:
        log.warning("savepoints cannot be asked for at the moment", reason=reason)
