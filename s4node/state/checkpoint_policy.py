"""Checkpoint retention: when a task's owner keeps a checkpoint, and which ones it removes.

Rules
- A checkpoint is kept after a commit, once the last one is old enough. A checkpoint that is too
  old, or one too many, is removed; the newest never is.
- A checkpoint that cannot be made is logged and retried when the next one is due. Commits continue.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from s4node import clocks
from s4node.errors import StateError, StoreCorrupt
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.state import epochs
from s4node.state.remote_task import RemoteTask
from s4node.state.task_state import TaskState

log = get_logger("s4node.state")


class Policy(NamedTuple):
    """Seconds between checkpoints (0: none), how many, and their age in seconds (0: any age)."""

    interval: float
    most: int = 3
    age: float = 86_400.0


class CheckpointRetention:
    """The checkpoints that the owner of the task in ``folder`` keeps under ``epoch``."""

    def __init__(
        self,
        folder: Path,
        epoch: int,
        policy: Policy,
        remote_task: RemoteTask | None,
        clock: Callable[[], float] | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._folder = folder
        self._epoch = epoch
        self._policy = policy
        self._clock = clock or clocks.steady
        self._now = now or clocks.wall
        self._last = self._clock()
        self._remote_task = remote_task

    @property
    def due(self) -> bool:
        """Return True if the next commit is to be followed by a checkpoint."""
        if self._remote_task is not None and self._remote_task.due:
            return True
        return 0 < self._policy.interval <= self._clock() - self._last

    def make_checkpoint(self, state: TaskState) -> Callable[[], None] | None:
        """Keep a checkpoint of the last commit. Blocks; nobody may commit meanwhile.

        Returns a function that ships the checkpoint, if it has to be shipped; commits may continue
        while it runs.
        """
        self._last = self._clock()
        try:
            folder = self._kept(state)
            passing("checkpoint.kept")
            self.sweep()
        except (OSError, StateError, StoreCorrupt) as error:
            log.warning(
                "a checkpoint could not be kept; it is retried when the next one is due",
                folder=str(self._folder),
                reason=str(error),
            )
            return None
        if self._remote_task is None or self._remote_task.uploading:
            return None
        return self._remote_task.upload_of(folder, state.last)

    def take_over(self, state: TaskState) -> None:
        """Ship, before the first commit, the state that this owner starts from."""
        if self._remote_task is not None:
            self._remote_task.take_over(state.last, state.owners, lambda: self._kept(state))

    def _kept(self, state: TaskState) -> Path:
        one = epochs.keep(self._folder, self._epoch, state.database, state.last[1], self._now())
        return self._folder / one.name

    def sweep(self) -> None:
        """Remove the checkpoints that are too old or too many."""
        age = self._policy.age or float("inf")
        epochs.remove_old_checkpoints(
            self._folder, self._epoch, self._policy.most, age, self._now()
        )
