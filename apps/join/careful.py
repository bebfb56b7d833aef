"""Careful: one ``try`` and ``except`` for all tasks of an app, by wrapping them.

A task is what has a task's methods, so what several tasks have in common is a task around each.
"""

from typing import Any

from s4node import Collector, Coordinator, Envelope, Event


class Refused(Event):
    stream: str
    offset: int
    reason: str


class Careful:
    """Puts what its task refuses with a ValueError on the stream "refused", and goes on."""

    def __init__(self, task: Any) -> None:
        self.task = task

    def process(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> None:
        try:
            self.task.process(envelope, collector, coordinator)
        except ValueError as error:
            refused = Refused(envelope.stream, envelope.offset, str(error))
            collector.send("refused", refused)
