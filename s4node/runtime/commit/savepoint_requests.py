"""The savepoints that are asked for, as a container's tasks take part in them.

Rules
- A request is an entry of the coordination that all who can reach the job's state see. The tasks
  of a container are asked for their cuts when it appears, and so is a task that comes later.
- A cut is reported when it is kept, and its owner still has the right to write the task. So is one
  that could not be kept: the savepoint fails, and the job goes on.
- A task whose last cut of this number was made by an earlier owner makes no other: that is
  reported, so that the savepoint is taken again under another number.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import trio

from s4node import threads
from s4node.cluster.coordination.follow import follow
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.coordination.state_coordination import StateCoordination
from s4node.config.config import Config
from s4node.errors import CoordinationError
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.offsets.cuts import CutReport, Cuts
from s4node.state.job import identity_of
from s4node.state.remote_job import RemoteJob

log = get_logger("s4node.runtime")

_LOOK_SECONDS = 1.0
"""How often it is looked whether anybody has ever asked anything of the job, and for new tasks."""


class SavepointRequests:
    """Those of the job in ``folder``; ``names`` are its tasks', ``cuts`` the container's."""

    def __init__(
        self,
        folder: Path,
        depot: RemoteJob | None,
        config: Config,
        names: Mapping[int, str],
        cuts: Cuts,
    ) -> None:
        self._folder = folder
        self._depot = depot
        self._coordination = StateCoordination(folder, config)
        self._names = names
        self._cuts = cuts
        self._state = ""
        self._registry: Registry | None = None

    async def run(self) -> None:
        """Ask the tasks for their cuts until cancelled."""
        while not await threads.run_sync(lambda: self._coordination.exists):  # noqa: ASYNC110 - files
            await trio.sleep(_LOOK_SECONDS)
        self._state = await threads.run_sync(identity_of, self._folder, self._depot)
        while True:
            try:
                async with self._coordination.registry("container") as self._registry:
                    await follow(self._step, _tell_trouble)
            except CoordinationError as error:  # the session has ended, or there is none
                _tell_trouble(str(error))
                await trio.sleep(_LOOK_SECONDS)
            finally:
                self._registry = None

    async def _step(self) -> None:
        assert self._registry is not None
        path = self._registry.job.path_of_savepoint(self._state)
        seen = await self._registry.session.change(path)
        number = await self._registry.job.requested_savepoint(self._state)
        self._cuts.request_all(number)
        if number:
            passing("savepoint.due")
            for partition in self._cuts.take_inherited(number):
                gone = CutReport(self._names[partition], 0, 0, "taken over after its cut")
                await self.report_cut(number, gone)
        with trio.move_on_after(_LOOK_SECONDS):  # a task may come to us meanwhile
            await self._registry.session.wait_change(path, seen)

    async def report_cut(self, number: int, report: CutReport) -> None:
        """Say what has become of a cut."""
        if self._registry is None:
            return  # the command asks again
        try:
            await self._registry.job.report_cut(self._state, number, report)
        except CoordinationError as error:
            _tell_trouble(str(error))


def _tell_trouble(reason: str) -> None:
    log.warning("savepoints cannot be asked for at the moment", reason=reason)
