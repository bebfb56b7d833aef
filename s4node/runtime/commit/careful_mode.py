"""Careful mode: a container processes one event at a time, after three deaths in a row.

Rules
- The first task that is taken over after so many deaths makes the whole container careful, so that
  exactly one event of all tasks is processed at a death. This ends when the last such task is well
  past the position where it began, or has left.
- A task that is taken over after any death commits after 1, 2, 4 ... events, so that the next death
  is nearer to its last commit.
- The place of an event is written before it, and removed after it. An operator decides what a death
  at it means: nothing is skipped by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from s4node.events.event import EventBatch
from s4node.logger import get_logger
from s4node.offsets.death_files import DeathFiles
from s4node.offsets.deaths import EventPlace
from s4node.runtime.task.poison.poison_events import place_of

if TYPE_CHECKING:
    from s4node.runtime.loop.run_loop import RunLoop
    from s4node.runtime.task.task import Task

log = get_logger("s4node.runtime")


class CarefulMode:
    """Whether the tasks of ``loop`` process one event at a time.

    ``files`` are those of the tasks, by partition. ``died`` says at which event the process before
    has died, and when (Unix time, ms).
    """

    def __init__(self, app: str, loop: RunLoop) -> None:
        self.died: tuple[str, int] = "", 0
        self._app = app
        self._loop = loop
        self.files: dict[int, DeathFiles] = {}
        self._behind: set[int] = set()  # careful tasks that are not well past
        self._waiting: set[int] = set()  # for the event of another task to end

    def add(self, task: Task, files: DeathFiles) -> None:
        self.files[task.partition] = files
        deaths = files.deaths
        if deaths.careful:
            died_at = "" if deaths.at is None else deaths.at.advice(self._app)
            if files.died_ms:
                self.died = f"the process before died while {died_at}", files.died_ms
            log.warning(
                "processes one event at a time, for the process has died several times in a row",
                task=task.name,
                deaths=deaths.count,
                **({"died_while": died_at} if died_at else {}),
            )
            self._behind.add(task.partition)
            for each in self._loop.tasks:
                self._watch(each)
        self.replaced(task)

    def replaced(self, task: Task) -> None:
        files, isolation = self.files[task.partition], task.failures.isolation
        if files.deaths.count:
            isolation.after_deaths(lambda: self.well_past(task.partition, files))
        if self._behind:
            self._watch(task)

    def well_past(self, partition: int, files: DeathFiles) -> None:
        if self.files.get(partition) is files:
            files.well_past()
            self._behind_no_more(partition)

    def remove(self, partition: int) -> None:
        """Note that a task has left this container in order, or ends with it."""
        files = self.files.pop(partition, None)
        if files is not None:
            self._behind_no_more(partition)
            files.close()

    def close(self) -> None:
        """Note that the container ends in order."""
        for partition in list(self.files):
            self.remove(partition)

    def _behind_no_more(self, partition: int) -> None:
        if self._behind == {partition}:
            for task in self._loop.tasks:
                if task.partition in self.files:
                    task.be_careful(None)
                    self.files[task.partition].close_event()
                self._loop.wake(task)
        self._behind.discard(partition)

    def _watch(self, task: Task) -> None:
        files = self.files.get(task.partition)
        if files is not None:  # else it is being taken over
            files.open_event()
            task.be_careful(_CarefulTask(self, task, files))

    # -- events ------------------------------------------------------------------------------

    def may(self, task: Task) -> bool:
        """Return True if no other task processes an event; otherwise wake ``task`` later."""
        if any(other.gate.in_flight for other in self._loop.tasks if other is not task):
            self._waiting.add(task.partition)
            return False
        return True

    def ended(self) -> None:
        """Wake the tasks that wait for the end of an event."""
        waiting, self._waiting = self._waiting, set()
        for partition in waiting:
            self._loop.wake_partition(partition)


class _CarefulTask:
    __slots__ = ("_files", "_mode", "_task")

    def __init__(self, mode: CarefulMode, task: Task, files: DeathFiles) -> None:
        self._mode = mode
        self._task = task
        self._files = files

    @property
    def may(self) -> bool:
        return self._mode.may(self._task)

    def event_begins(self, batch: EventBatch, index: int) -> None:
        origin, number = place_of(batch, index)
        where = batch.partition if batch.receipt is None else batch.receipt.ssp[2]
        self._files.event_begins(EventPlace(self._task.name, batch.stream, where, origin, number))

    def event_ended(self) -> None:
        self._files.event_ended()
        self._mode.ended()
