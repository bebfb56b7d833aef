"""Tasks that copy a stream of a log to another, and note what they process.

Rules
- An event is noted when it ends: a copy that was not noted may be missing, a noted one is with the
  task's progress.
- While a window is processed no event of its task is under way; a task that finds one raises.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Mapping
from typing import Any

import trio

from s4node import Callback, Collector, Coordinator, Envelope, TaskApp
from torture.apps import Notes, Tap

COMMIT_EACH = 100


class Copy:
    """Copies, one event after the other."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.under_way = 0
        self.partition = -1

    def init(self, config: Mapping[str, str], context: Any) -> None:
        self.partition = context.partition

    def copy(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> None:
        """What all of them do with an event."""
        tap: Tap = envelope.message
        collector.send("copies", tap)
        if tap.number % COMMIT_EACH == 0:
            coordinator.commit()
        self.notes.note("copy", tap.user, tap, self.partition)

    def process(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> Any:
        """Copy an event."""
        self.copy(envelope, collector, coordinator)

    def window(self, collector: Collector, coordinator: Coordinator) -> None:
        """Look whether anything is under way."""
        if self.under_way:
            raise RuntimeError(f"a window with {self.under_way} events under way")


class CopyAsync(Copy):
    """Copies after some waiting, several keys at a time."""

    async def process(
        self, envelope: Envelope, collector: Collector, coordinator: Coordinator
    ) -> None:
        """Wait, then copy."""
        self.under_way += 1
        await trio.sleep(random.choice([0, 0, 0.001, 0.005]))
        self.copy(envelope, collector, coordinator)
        self.under_way -= 1


class CopyInThread(Copy):
    """Copies from a thread of its own, which calls back."""

    process = None  # type: ignore[assignment]

    def init(self, config: Mapping[str, str], context: Any) -> None:
        super().init(config, context)
        self.asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self.answer, daemon=True).start()

    def process_async(
        self,
        envelope: Envelope,
        collector: Collector,
        coordinator: Coordinator,
        callback: Callback,
    ) -> None:
        """Ask the thread."""
        self.under_way += 1
        self.asked.put((envelope, collector, coordinator, callback))

    def answer(self) -> None:
        """What the thread does."""
        while asked := self.asked.get():
            *what, callback = asked
            if random.random() < 0.1:
                time.sleep(0.002)
            self.copy(*what)
            self.under_way -= 1
            callback.complete()

    def close(self) -> None:
        """End the thread."""
        self.asked.put(None)


class Copying(TaskApp):
    """Input "taps" of the log, output "copies" in the log; ``key`` is that of the input."""

    def __init__(self, task: type[Copy], notes: Notes, key: str | None) -> None:
        super().__init__("copying", lambda: task(notes))
        self.key = key

    def on_init(self) -> None:
        self.create_input_stream("taps", key=self.key, types=Tap, system="log")
        self.create_output_stream("copies", key="user", types=Tap)


WAYS: dict[str, tuple[type[Copy], dict[str, str]]] = {
    "plain": (Copy, {}),
    "pool": (Copy, {"job.container.thread.pool.size": "3"}),
    "async": (CopyAsync, {"task.max.concurrency": "8", "task.order": "key"}),
    "async-commit": (
        CopyAsync,
        {"task.max.concurrency": "8", "task.order": "key", "task.async.commit": "true"},
    ),
    "threads": (CopyInThread, {"task.max.concurrency": "4", "task.order": "key"}),
}
"""The kinds of tasks, and what is set for them."""


def copying(name: str, notes: Notes) -> Copying:
    """The app of a name such as ``async`` (a task for each partition) or ``async-keyed``."""
    way = name.removesuffix("-keyed")
    return Copying(WAYS[way][0], notes, "user" if way != name else None)
