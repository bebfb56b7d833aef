"""The repetition of what the place for state does not answer while a container starts.

Rules
- Only StateUnreachable is repeated. An error that somebody has to correct ends the start.
- It is repeated for as long as commits are. A stop ends it while no task has started.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from s4node.errors import StateUnreachable
from s4node.logger import get_logger

log = get_logger("s4node.runtime")

R = TypeVar("R")

RETRY_SECONDS = 1.0


class Retries:
    """The reads and writes that fail now, and are tried again for ``timeout`` seconds.

    ``failing`` has the reasons by task; "" stands for the start of the container. ``has_begun`` is
    set once the first tasks are restored. ``stopping`` is set when the container has to end.
    """

    def __init__(self, timeout: float, stopping: trio.Event) -> None:
        self.timeout = timeout
        self.failing: dict[str, str] = {}
        self.has_begun = False
        self._stopping = stopping

    async def answer(self, task: str, ask: Callable[[], Awaitable[R]]) -> R:
        """Call ``ask`` until the place for state answers; returns the result."""
        began = trio.current_time()
        while True:
            try:
                found = await ask()
            except StateUnreachable as error:
                is_over = self._stopping.is_set() and not self.has_begun
                if is_over or trio.current_time() - began >= self.timeout:
                    raise
                if task not in self.failing:
                    log.warning("state cannot be read; retrying", task=task, error=str(error))
                self.failing[task] = str(error)
                await trio.sleep(RETRY_SECONDS)
            else:
                self.failing.pop(task, None)
                return found
