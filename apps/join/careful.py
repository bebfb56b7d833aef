"""Careful: one ``try`` and ``except`` for all tasks of an app, by wrapping them.

Anything with a task's methods is a task, so a task can wrap another.
"""

from typing import Any

from s4node import Collector, Coordinator, Envelope, Event


class Refused(Event):
    stream: str
    offset: int
    reason: str


class Careful:
    """Puts what its task refuses with a ValueError on the stream "refused", and continues."""

    def __init__(self, task: Any) -> None:
        self.task = task

    def process(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> None:
        try:
            self.task.process(envelope, collector, coordinator)
        except ValueError as error:
            refused = Refused(envelope.stream, envelope.offset, str(error))
            collector.send("refused", refused)
