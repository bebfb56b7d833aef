"""What tasks ask of their container: commits and shutdowns; and the end of all inputs. Pure.

Rules
- A request takes effect when the event at which it was made is released.
- A shutdown of one task is its word that it is done, and cannot be taken back; the task goes on
  meanwhile. When all tasks have given it, or one asks for all, the container stops, once. A task
  that nothing feeds has nothing to say to that.
- That a task is done is part of its next commit. Another container that takes such a task over
  keeps it at rest: nothing of it is called again.
- A commit that was requested is made before the container stops: a task that drains commits.
- A task is told of the end of its inputs by itself; where tasks send to each other, all are told
  together, when nothing is left anywhere, nor on its way.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from s4node.runtime.task.actions import Asked
from s4node.runtime.task.backlog import Backlog
from s4node.runtime.task.gate import Gate, Inputs


class Asking(Protocol):
    """What is known here of a task."""

    name: str
    gate: Gate
    backlog: Backlog
    done: bool

    @property
    def at_end(self) -> bool:
        """Whether nothing more can come from outside, and nothing is left to do."""
        ...

    def want_commit(self) -> None:
        """Commit as soon as it may be; the caller wakes the loop."""
        ...


T = TypeVar("T", bound=Asking)


class CoordinatorRequests(Generic[T]):
    """The requests of a container's tasks. ``stopping`` says that they have asked for its end,
    ``ending`` that inputs have ended of tasks that are to be told together."""

    def __init__(self) -> None:
        self.stopping = False
        self.ending = False
        self._tasks: list[T] = []
        self._finished: set[str] = set()

    def add(self, task: T) -> None:
        """Here is one more task."""
        self._tasks.append(task)

    def remove(self, task: T) -> None:
        """Another takes its place; what it has said stays said."""
        self._tasks.remove(task)

    def take(self, task: T, asked: Asked) -> list[T]:
        """A task's requests take effect; returns the tasks that have something to do by that."""
        committing: list[T] = []
        if asked.commit_this:
            committing = list(self._tasks) if asked.commit_all else [task]
            for each in committing:
                each.want_commit()
        if asked.shutdown_this:
            for each in self._tasks if asked.shutdown_all else [task]:
                self.finished(each)
        if asked.shutdown_all:  # of tasks that nothing feeds, too
            self.stopping = True
        return committing

    def finished(self, task: T) -> None:
        """A task has said that it is done, or its inputs have ended."""
        task.done = True
        self._finished.add(task.name)
        if all(each.name in self._finished for each in self._tasks if each.backlog.fed):
            self.stopping = True

    @property
    def at_end(self) -> bool:
        """Whether the inputs have ended of all tasks that are to be told together, and no task has
        anything to do now."""
        if not self.ending:
            return False
        fed = self._fed
        return bool(fed) and all(task.at_end for task in fed)

    def end_inputs(self) -> list[T]:
        """Have all be told; returns the tasks that were not yet to be."""
        untold = [task for task in self._fed if task.gate.inputs is Inputs.OPEN]
        for task in untold:
            task.gate.end_inputs()
        return untold

    @property
    def _fed(self) -> list[T]:
        return [task for task in self._tasks if task.backlog.fed]
