"""The requested startpoints of a job, as its containers take them over.

Rules
- At a start of the job, all its tasks get their startpoints before any task is claimed. A later
  request waits for the next start.
- A startpoint that no task takes is logged, with the command that deletes it. It waits until it
  expires.
- A pending startpoint holds for a task that has not begun in this start of the job, on any node. So
  if none is pending when a container enters, none will be.
- A consumed startpoint is removed, or ignored while it cannot be removed.
- An offset that holds for one start of the job stays consumed until the job starts again.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from pathlib import Path

from s4node import threads
from s4node.cluster.coordination.startpoint_store import StartpointStore
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import StartpointError
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.offsets.startpoint import describe
from s4node.offsets.startpoint_fan_out import EXPIRY_MS, Request, Requests, ids_of_start
from s4node.offsets.system import SystemStreamPartition
from s4node.offsets.task_claims import now_ms
from s4node.runtime.inputs.job_model import TaskModel
from s4node.state.job import identity_of
from s4node.state.remote_job import RemoteJob

log = get_logger("s4node.runtime")


class Startpoints:
    """The startpoints of the job ``name`` in ``folder``, which has these ``tasks``; its state is
    that of ``remote_job``, if there is one."""

    def __init__(
        self,
        folder: Path,
        remote_job: RemoteJob | None,
        tasks: Collection[TaskModel],
        config: Config,
        name: str,
    ) -> None:
        self._folder = folder
        self._remote_job = remote_job
        self._config = config
        self._name = name
        self._tasks = tasks
        self._store = StartpointStore(folder, config)
        self._state = ""  # the identity of the job's state
        self._pending = False  # true if any was when this container entered

    async def fan_out(self) -> None:
        """Give each task of the job its startpoints; one container does so at a time."""
        if not await self._found():
            return
        now = now_ms()
        tasks = {task.name: task.ssps for task in self._tasks}
        passing("startpoint.fan")

        def give(them: Requests) -> tuple[Requests, tuple[Request, ...]]:
            after = them.fan_out(tasks, now)
            passing("startpoint.fanning")
            return after, after.asked

        left = await self._store.change(self._state, give)
        passing("startpoint.fanned")
        for request in left:
            ssp = SystemStreamPartition(*request.place)
            back = deleting(self._config, self._name, ssp, request.task)
            log.warning(
                "no task takes a startpoint",
                input=str(ssp),
                id=request.id,
                startpoint=describe(request.startpoint),
                reason=self._why(request, now),
                fix=f"set another one, or delete it: {back}",
            )

    def _why(self, request: Request, now: int) -> str:
        if now - request.created_ms >= EXPIRY_MS:
            return "it has expired"
        if not request.task:
            return "no task reads it"
        if request.task in (task.name for task in self._tasks):
            return f"task {request.task!r} does not read it"
        return f"there is no task {request.task!r}"

    async def pending_of(
        self, task: str, consumed: Collection[str]
    ) -> Mapping[SystemStreamPartition, Request]:
        """The pending startpoints of a task; those that it has ``consumed`` are removed."""
        found = await self._take(task, consumed) if self._pending else ()
        passing("startpoint.taken")
        return {SystemStreamPartition(*request.place): request for request in found}

    async def consumed(self, task: str, ids: Collection[str]) -> Collection[str]:
        """Remove startpoints that a task has committed as consumed; return the removed ones."""
        requests = frozenset(ids) - ids_of_start(ids)
        if not requests:
            return ()
        passing("startpoint.consumed")
        try:
            await self._take(task, ids)
        except StartpointError as error:
            log.warning(
                "a consumed startpoint could not be removed; it is ignored from now on",
                task=task,
                error=str(error),
            )
            return ()
        passing("startpoint.removed")
        return requests

    async def enter(self) -> None:
        """Note what is pending when the container has entered the job."""
        self._pending = await self._found() and bool(
            (await self._store.requests(self._state)).pending
        )

    async def _found(self) -> bool:
        """Return True if there may be startpoints; then the job's state has an identity."""
        if not await threads.run_sync(lambda: self._store.exists):
            return False
        if not self._state:
            self._state = await threads.run_sync(identity_of, self._folder, self._remote_job)
        return True

    async def _take(self, task: str, consumed: Collection[str]) -> tuple[Request, ...]:
        return await self._store.change(self._state, lambda them: them.pending_of(task, consumed))


def deleting(config: Config, app: str, ssp: SystemStreamPartition, task: str = "") -> str:
    return _command(config, "delete", app, str(ssp), *(("--task", task) if task else ()))


def setting(config: Config, app: str, ssp: SystemStreamPartition) -> str:
    """The command that has a partition read from its oldest event."""
    return _command(config, "set", app, str(ssp), "--oldest")


def _command(config: Config, *does: str) -> str:
    arguments = ["s4", "startpoint", *does]
    if config.origin(settings.CLUSTER_NAME) != "default":
        arguments += ["--cluster", config[settings.CLUSTER_NAME]]
    if config.origin(settings.STATE_FOLDER) != "default":
        arguments += ["-p", f"{settings.STATE_FOLDER.name}={config[settings.STATE_FOLDER]}"]
    if config[settings.STATE_URL]:
        for each in (settings.STATE_URL, settings.COORDINATION_FOLDER):
            if config.origin(each) != "default":
                arguments += ["-p", f"{each.name}={config[each]}"]
    return shlex.join(arguments)
