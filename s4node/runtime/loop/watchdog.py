"""The watchdog: a thread that reports steps which hold up their process.

Rules
- It only reports: a step that takes too long, with its stack at that moment. On a busy machine many
  do; the first in a minute is reported, with the number of those since the last report.
"""

from __future__ import annotations

import sys
import threading
import traceback

from s4node import clocks
from s4node.log_throttle import LogThrottle
from s4node.logger import get_logger
from s4node.runtime.loop.run_loop import RunLoop

log = get_logger("s4node.runtime")

_SECONDS = 60.0  # of which one step is reported


class Watchdog:
    """Watches the loop of the thread that makes this object.

    A step may take ``limit`` seconds; 0 for no limit.
    """

    def __init__(self, loop: RunLoop, limit: float) -> None:
        self._loop = loop
        self._limit = limit
        self._throttle = LogThrottle(_SECONDS)
        self._thread_id = threading.get_ident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="s4-watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        if self._limit > 0:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def _watch(self) -> None:
        reported = 0.0
        while not self._stop.wait(self._limit / 2):
            began = self._loop.step_began
            if not began or began == reported:
                continue
            taken = clocks.steady() - began
            if taken >= self._limit:
                reported = began
                others = self._throttle.left_out("", clocks.steady())
                if others is None:
                    continue
                frame = sys._current_frames().get(self._thread_id)
                stack = "".join(traceback.format_stack(frame)[-6:]) if frame else ""
                _report(taken, stack, others)


def _report(seconds: float, stack: str, others: int) -> None:
    log.warning(
        "a step holds up its process; make the handler async or faster",
        seconds=round(seconds, 3),
        stack=stack,
        **({"others": others} if others else {}),
    )
