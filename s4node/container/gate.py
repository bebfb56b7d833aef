"""The gate of a task: what it may do next. Pure.

Rules, highest first
1. A timer runs alone: not while events are in flight, and nothing else beside it.
2. A due timer stops new processing of its task, drains what is in flight, then runs.
3. Events are processed while fewer than ``max_concurrency`` are outstanding. What waits may be
   held: by a full stage that it leads to, or by its rate.
4. A draining task that has nothing left is done.
Other tasks are never affected.
"""

from __future__ import annotations

from enum import Enum


class Op(Enum):
    """What a task does in its next step."""

    NOTHING = "nothing"
    TIMER = "timer"
    PROCESS = "process"
    DONE = "done"


class Gate:
    """Counts what is under way in one task and says what may begin."""

    __slots__ = (
        "draining",
        "in_flight",
        "max_concurrency",
        "timer_due",
        "timer_running",
    )

    def __init__(self, max_concurrency: int = 1) -> None:
        self.max_concurrency = max_concurrency
        self.in_flight = 0
        self.timer_due = False
        self.timer_running = False
        self.draining = False

    def next_op(self, waiting: bool, held: bool = False) -> Op:
        """What may begin now.

        ``waiting`` tells whether a batch is at hand, ``held`` whether others wait that must not be
        processed yet.
        """
        if self.timer_running:
            return Op.NOTHING
        if self.timer_due:
            return Op.NOTHING if self.in_flight else Op.TIMER
        if waiting:
            return Op.PROCESS if self.in_flight < self.max_concurrency else Op.NOTHING
        return Op.DONE if self.draining and not self.in_flight and not held else Op.NOTHING

    def begin(self, op: Op) -> None:
        """``op``, as given by next_op, has begun."""
        if op is Op.TIMER:
            self.timer_due, self.timer_running = False, True
        elif op is Op.PROCESS:
            self.in_flight += 1
        self.validate()

    def end(self, op: Op) -> None:
        """``op`` has ended."""
        if op is Op.TIMER:
            self.timer_running = False
        elif op is Op.PROCESS:
            self.in_flight -= 1
        self.validate()

    def validate(self) -> None:
        """Assert the rules."""
        assert 0 <= self.in_flight <= self.max_concurrency
        assert not (self.timer_running and self.in_flight)
