"""The requests of tasks to their container, commits and shutdowns, and the end of inputs. Pure.

Rules
- A request takes effect when the event at which it was made is released.
- A task that asks for its own shutdown declares itself done, and cannot take that back; it goes on
  meanwhile. When all tasks with inputs are done, or one asks for the shutdown of all, the container
  stops, once.
- That a task is done is part of its next commit. Another container that takes such a task over lets
  it rest: none of its handlers is called again.
- A requested commit is made before the container stops: a task that drains commits.
- A task gets the end of its inputs on its own. Tasks that send to each other get it
  together, when nothing is left in any task or on its way.
"""

from __future__ import annotations

from s4node.runtime.task.actions import Asked
from s4node.runtime.task.gate import Inputs
from s4node.runtime.task.task import Task


class CoordinatorRequests:
    """The requests of a container's tasks.

    ``stopping`` is True once they have asked for its end, ``ending`` once inputs have ended of
    tasks that get it together.
    """

    def __init__(self) -> None:
        self.stopping = False
        self.ending = False
        self._tasks: list[Task] = []
        self._finished: set[str] = set()

    def add(self, task: Task) -> None:
        self._tasks.append(task)

    def remove(self, task: Task) -> None:
        self._tasks.remove(task)

    def apply(self, task: Task, asked: Asked) -> list[Task]:
        """Carry out a task's requests; return the tasks that have to commit."""
        committing: list[Task] = []
        if asked.commit_this:
            committing = list(self._tasks) if asked.commit_all else [task]
            for each in committing:
                each.want_commit()
        if asked.shutdown_this:
            for each in self._tasks if asked.shutdown_all else [task]:
                self.finished(each)
        if asked.shutdown_all:  # tasks without inputs, too
            self.stopping = True
        return committing

    def finished(self, task: Task) -> None:
        """Note that a task is done, by its own request or because its inputs have ended."""
        task.done = True
        self._finished.add(task.name)
        if all(each.name in self._finished for each in self._tasks if each.backlog.fed):
            self.stopping = True

    @property
    def at_end(self) -> bool:
        """True if all tasks that get it together are at the end of their inputs."""
        fed = self._fed
        return bool(fed) and all(task.at_end for task in fed)

    def end_inputs(self) -> list[Task]:
        """Give all tasks the end of their inputs; return those that did not have it."""
        reading = [task for task in self._fed if task.gate.inputs is Inputs.OPEN]
        for task in reading:
            task.gate.end_inputs()
        return reading

    @property
    def _fed(self) -> list[Task]:
        return [task for task in self._tasks if task.backlog.fed]
