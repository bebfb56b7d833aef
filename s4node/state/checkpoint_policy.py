"""When a task's owner keeps a checkpoint, and which it still has.

Rules
- A checkpoint is kept behind a commit, once the last one is so old. What is older than it may be,
  or one too many, goes; the newest never does.
- One that cannot be made is told, and tried again when the next is due: commits go on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
    """How often, in seconds (0 is never), how many, and how old in seconds (0 is any)."""

    interval: float
    most: int
    age: float


class CheckpointRetention:
    """The checkpoints of the task in ``folder`` that its owner under ``epoch`` keeps."""

    def __init__(
        self,
        folder: Path,
        epoch: int,
        policy: Policy,
        shipment: RemoteTask | None,
        clock: Callable[[], float] | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._folder = folder
        self._epoch = epoch
        self._policy = policy
        self._clock = clock or clocks.steady
        self._now = now or clocks.wall
        self._last = self._clock()
        self._shipment = shipment

    @property
    def due(self) -> bool:
        """Whether one is to be kept behind the next commit."""
        if self._shipment is not None and self._shipment.due:
            return True
        return 0 < self._policy.interval <= self._clock() - self._last

    def keep(self, state: TaskState) -> Callable[[], None] | None:
        """Keep one as of the last commit; blocks, and nobody commits meanwhile.

        Returns what is to be called to have it shipped; commits may go on by then.
        """
        self._last = self._clock()
        try:
            folder = self._kept(state)
            passing("checkpoint.kept")
            self.sweep()
        except (OSError, StateError, StoreCorrupt) as error:
            log.warning(
                "a checkpoint could not be kept; it is tried again when the next is due",
                folder=str(self._folder),
                reason=str(error),
            )
            return None
        if self._shipment is None or self._shipment.uploading:
            return None
        self._shipment.uploading = True
        return partial(self._shipment.upload, folder, state.last)

    def begin(self, state: TaskState) -> None:
        """Have it known, before the first commit, what is gone on from."""
        if self._shipment is not None:
            self._shipment.begin(state.last, state.owners, lambda: self._kept(state))

    def _kept(self, state: TaskState) -> Path:
        one = epochs.keep(self._folder, self._epoch, state.database, state.last[1], self._now())
        return self._folder / one.name

    def sweep(self) -> None:
        """Remove what is too old, and what is too much."""
        age = self._policy.age or float("inf")
        epochs.sweep_kept(self._folder, self._epoch, self._policy.most, age, self._now())
