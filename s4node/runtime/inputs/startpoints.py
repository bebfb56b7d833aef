"""The startpoints that were asked for, as a container takes them over.

Rules
- At a start of the job all its tasks get theirs, before any task is claimed. What is asked for
  later waits for the next start.
- What no task takes is told, with the command that takes it back: it waits on until it expires.
- A pending startpoint holds for a task that has not begun in this start of the job, on whichever
  node that was: one that is pending here alone has no part in a take-over.
- A startpoint that a task has consumed is removed, or ignored for as long as it cannot be.
- What holds for a start of the job is known as consumed until the job starts again.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from s4node import threads
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import StartpointError
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.offsets.startpoint import describe
from s4node.offsets.startpoint_fan_out import EXPIRY_MS, Request, ids_of_start
from s4node.offsets.startpoint_store import StartpointStore, existing
from s4node.offsets.system import SystemStreamPartition
from s4node.offsets.task_claims import now_ms
from s4node.runtime.inputs.job_model import TaskModel

log = get_logger("s4node.runtime")

R = TypeVar("R")
E = TypeVar("E")


class Startpoints:
    """Those of the job in ``folder``, which has these ``tasks``; progress is kept under
    ``name``."""

    def __init__(
        self, folder: Path, tasks: Collection[TaskModel], config: Config, name: str
    ) -> None:
        self._folder = folder
        self._config = config
        self._name = name
        self._tasks = tasks
        self._thread = trio.CapacityLimiter(1)

    def fan_out(self) -> None:
        """Give each task of the job what was asked for it; blocks."""
        store = existing(self._folder)
        if store is None:
            return
        try:
            now = now_ms()
            asked = store.requests()
            passing("startpoint.fan")
            fanned = store.fan_out({task.name: task.ssps for task in self._tasks}, now)
            passing("startpoint.fanned")
        finally:
            store.close()
        for request in asked:
            if request.id in fanned.spent:
                continue
            ssp = SystemStreamPartition(*request.place)
            back = deleting(self._config, self._name, ssp, request.task)
            log.warning(
                "a startpoint is not taken",
                input=str(ssp),
                id=request.id,
                startpoint=describe(request.startpoint),
                reason=self._why(request, now),
                fix=f"set another one, or take it back: {back}",
            )

    def _why(self, request: Request, now: int) -> str:
        """Why no task takes what is asked for."""
        if now - request.created_ms >= EXPIRY_MS:
            return "it has expired"
        if not request.task:
            return "no task reads it"
        if request.task in (task.name for task in self._tasks):
            return f"task {request.task!r} does not read it"
        return f"there is no task {request.task!r}"

    async def of(
        self, task: str, consumed: Collection[str]
    ) -> Mapping[SystemStreamPartition, Request]:
        """What is pending for a task, but for what it has ``consumed``, which is removed."""

        def taken(store: StartpointStore) -> Mapping[SystemStreamPartition, Request]:
            found = store.take(task, consumed)
            return {SystemStreamPartition(*request.place): request for request in found}

        pending: Mapping[SystemStreamPartition, Request] = await self._with_store(taken, {})
        passing("startpoint.taken")
        return pending

    async def consumed(self, task: str, ids: Collection[str]) -> Collection[str]:
        """A task has written that it has consumed these; returns those that are removed."""
        requests = frozenset(ids) - ids_of_start(ids)
        if not requests:
            return ()
        passing("startpoint.consumed")
        try:
            await self._with_store(partial(StartpointStore.take, task=task, consumed=ids), None)
        except StartpointError as error:
            log.warning(
                "a startpoint that is over could not be removed; it is ignored from now on",
                task=task,
                error=str(error),
            )
            return ()
        passing("startpoint.removed")
        return requests

    async def _with_store(self, work: Callable[[StartpointStore], R], without: E) -> R | E:
        """What ``work`` makes of the store, in a thread; ``without`` where there is none."""

        def run() -> R | E:
            store = existing(self._folder)
            if store is None:
                return without
            try:
                return work(store)
            finally:
                store.close()

        return await threads.run_sync(run, limiter=self._thread)


def deleting(config: Config, app: str, ssp: SystemStreamPartition, task: str = "") -> str:
    """The command that takes startpoints of a partition back, all or those of a task."""
    return _command(config, "delete", app, str(ssp), *(("--task", task) if task else ()))


def setting(config: Config, app: str, ssp: SystemStreamPartition) -> str:
    """The command that has a partition read from its oldest event."""
    return _command(config, "set", app, str(ssp), "--oldest")


def _command(config: Config, *does: str) -> str:
    words = ["s4", "startpoint", *does]
    if config.origin(settings.CLUSTER_NAME) != "default":
        words += ["--cluster", config[settings.CLUSTER_NAME]]
    if config.origin(settings.STATE_FOLDER) != "default":
        words += ["-p", f"{settings.STATE_FOLDER.name}={config[settings.STATE_FOLDER]}"]
    return shlex.join(words)
