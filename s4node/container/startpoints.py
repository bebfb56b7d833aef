"""The startpoints that were asked for, as a container takes them over.

Rules
- At a start of the job all its tasks get theirs, before any task is claimed. What is asked for
  later waits for the next start.
- A startpoint that a task has consumed is removed, or ignored for as long as it cannot be.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from s4node import config as settings
from s4node.config import Config
from s4node.container.model import TaskModel
from s4node.errors import StartpointError
from s4node.faults import passing
from s4node.logger import get_logger
from s4node.progress.fan_out import EXPIRY_MS, Request
from s4node.progress.startpoint import describe
from s4node.progress.startpoints import StartpointStore, existing
from s4node.progress.store import now_ms
from s4node.systems.system import SystemStreamPartition

log = get_logger("s4node.inputs")

R = TypeVar("R")
E = TypeVar("E")


class Startpoints:
    """Those of the job in ``folder``, which has these ``tasks``."""

    def __init__(self, folder: Path, tasks: Collection[TaskModel]) -> None:
        self._folder = folder
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
            reason = "it has expired"
            if now - request.created_ms < EXPIRY_MS:
                who = f"task {request.task!r}" if request.task else "no task"
                reason = f"{who} does not read it" if request.task else f"{who} reads it"
            log.warning("a startpoint is not taken", input=str(ssp), id=request.id,
                        startpoint=describe(request.startpoint), reason=reason)  # fmt: skip

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

    async def consumed(self, task: str, ids: Collection[str]) -> bool:
        """A task has written that it has consumed these; returns whether they are removed."""
        passing("startpoint.consumed")
        try:
            await self._with_store(partial(StartpointStore.take, task=task, consumed=ids), None)
        except StartpointError as error:
            log.warning("a startpoint that is over could not be removed; it is ignored from now on",
                        task=task, error=str(error))  # fmt: skip
            return False
        passing("startpoint.removed")
        return True

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

        return await trio.to_thread.run_sync(run, limiter=self._thread)


def deleting(config: Config, app: str, ssp: SystemStreamPartition) -> str:
    """The command that takes startpoints of a partition back."""
    return _command(config, "delete", app, str(ssp))


def setting(config: Config, app: str, ssp: SystemStreamPartition) -> str:
    """The command that has a partition read from its oldest event."""
    return _command(config, "set", app, str(ssp), "--oldest")


def _command(config: Config, *words_: str) -> str:
    words = ["s4", "startpoint", *words_]
    if config.origin(settings.CLUSTER_NAME) != "default":
        words += ["--cluster", config[settings.CLUSTER_NAME]]
    if config.origin(settings.STATE_FOLDER) != "default":
        words += ["-p", f"{settings.STATE_FOLDER.name}={config[settings.STATE_FOLDER]}"]
    return shlex.join(words)
