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

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from s4node.runtime.task.backlog import Backlog
from s4node.runtime.task.gate import Gate


class Asked:
    """What was asked for at one event, or in one slice; given to the task as its coordinator."""

    __slots__ = ("any", "commit_all", "commit_this", "shutdown_all", "shutdown_this")

    def __init__(self) -> None:
        self.any = False
        self.commit_this = self.commit_all = False
        self.shutdown_this = self.shutdown_all = False

    def commit(self, *, all_tasks: bool = False) -> None:
        """Have this task's progress saved, or that of all tasks of the container."""
        if all_tasks:
            self.commit_all = True
        self.commit_this = True
        self.any = True  # last, for the loop may look from another thread

    def shutdown(self, *, all_tasks: bool = False) -> None:
        """Say that this task is done, or stop the container."""
        if all_tasks:
            self.shutdown_all = True
        self.shutdown_this = True
        self.any = True

    def taken(self) -> Asked:
        """What was asked for since the last time."""
        found = Asked()
        found.commit_this, found.commit_all = self.commit_this, self.commit_all
        found.shutdown_this, found.shutdown_all = self.shutdown_this, self.shutdown_all
        self.any = self.commit_this = self.commit_all = False
        self.shutdown_this = self.shutdown_all = False
        return found


class Asking(Protocol):
    """What is known here of a task."""

    name: str
    gate: Gate
    backlog: Backlog
    requests: CoordinatorRequests[Any]
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
    """The requests of a container's tasks. ``on_shutdown`` is called once, if ever.

    ``wake(task)`` is called when a request gives a task something to do. ``arrived`` says whether
    all that tasks have sent each other is where it belongs, and sees to it that it will be.
    """

    def __init__(
        self,
        on_shutdown: Callable[[], None],
        wake: Callable[[T], None],
        arrived: Callable[[], bool] = lambda: True,
    ) -> None:
        self.stopping = False
        self.ending = False  # inputs have ended of tasks that are to be told together
        self._tasks: list[T] = []
        self._wake = wake
        self._on_shutdown = on_shutdown
        self._arrived = arrived
        self._finished: set[str] = set()

    def add(self, task: T) -> None:
        """Here is one more task."""
        self._tasks.append(task)
        task.requests = self

    def remove(self, task: T) -> None:
        """Another takes its place; what it has said stays said."""
        self._tasks.remove(task)

    def take(self, task: T, asked: Asked) -> None:
        """A task's requests take effect."""
        if asked.commit_this:
            for each in self._tasks if asked.commit_all else [task]:
                each.want_commit()
                self._wake(each)
        if asked.shutdown_this:
            for each in self._tasks if asked.shutdown_all else [task]:
                self.finished(each)
        if asked.shutdown_all:  # of tasks that nothing feeds, too
            self._stop()

    def finished(self, task: T) -> None:
        """A task has said that it is done, or its inputs have ended."""
        task.done = True
        self._finished.add(task.name)
        if all(each.name in self._finished for each in self._tasks if each.backlog.fed):
            self._stop()

    def settle(self) -> None:
        """No task has anything to do now: where inputs have ended, have all be told together."""
        if not self.ending:
            return
        fed = [task for task in self._tasks if task.backlog.fed]
        if fed and all(task.at_end for task in fed) and self._arrived():
            for task in fed:
                if not task.gate.inputs_ended:
                    task.gate.inputs_ended = True
                    self._wake(task)

    def _stop(self) -> None:
        if not self.stopping:
            self.stopping = True
            self._on_shutdown()
