"""The end of a process: orderly after a signal, and at once if that does not work.

Rules
- The first SIGTERM or Ctrl-C stops in order (drain within ``task.shutdown.ms``). A later Ctrl-C
  stops at once, and says so. A further SIGTERM changes nothing, as tools send it twice.
- A handler that blocks the loop also blocks a stop. So threads end the process, also when the time
  for draining is over.
"""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import trio

_AT_ONCE_SECONDS = 1.0
SWITCH_SECONDS = 0.0005
"""Seconds for which a thread that computes, such as one that writes a commit, keeps Python's lock
while others wait. The loop waits that long after each call to the kernel; Python's own 5 ms, at
several calls a turn, were 20 ms for an event."""
_GC_THRESHOLD = 100_000
"""The net allocations after which Python collects its youngest generation: more than Python's own
number, so that there are fewer pauses."""
_STUCK_SECONDS = 5.0
_UNDRAINED = (
    b"stopped at once, before everything was drained; uncommitted events are processed again if "
    b"their input can be read again, and are lost otherwise\n"
)
_CUT_SHORT = b"s4: " + _UNDRAINED
_STUCK = b"s4: a handler blocks the loop, and the time for draining is over: " + _UNDRAINED


class Running(Protocol):
    """The work of a process, which runs until it is stopped."""

    ready: trio.Event

    def stop(self) -> None:
        """Begin an orderly stop, at the end of which ``run`` returns."""
        ...

    async def run(self) -> None: ...


async def run_until_signal(
    what: Running, on_ready: Callable[[], None], seconds: float = math.inf
) -> int:
    """Run ``what`` until it ends or a signal stops it; returns the exit status. An orderly stop may
    take ``seconds``."""
    status = 130
    async with trio.open_nursery() as nursery:
        with stop_on_signals(what.stop, nursery.cancel_scope, seconds):
            nursery.start_soon(_announce, what.ready, on_ready)
            await what.run()
            status = 0
            nursery.cancel_scope.cancel()
    return status


async def _announce(ready: trio.Event, on_ready: Callable[[], None]) -> None:
    await ready.wait()
    on_ready()


def tune_python() -> None:
    """Make the garbage collector skip objects from before this call, and threads take turns."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 50, 20)


@contextmanager
def stop_on_signals(
    stop: Callable[[], None], scope: trio.CancelScope, seconds: float = math.inf
) -> Iterator[None]:
    """Have the first signal call ``stop``, and a later Ctrl-C cancel ``scope``.

    If a handler blocks the loop, trio does not see signals. So threads end the process if it does
    not end by itself: after a Ctrl-C that follows the first signal, and if the loop is blocked when
    ``seconds`` are over.
    """
    token = trio.lowlevel.current_trio_token()
    stopping = cut = False

    def on_signal(number: int, _frame: object) -> None:
        nonlocal stopping, cut
        if not stopping:
            stopping = True
            token.run_sync_soon(_stop, stop, number)
            _after(seconds, _end_if_stuck, token)
        elif number == signal.SIGINT and not cut:
            cut = True
            token.run_sync_soon(scope.cancel)
            _after(_AT_ONCE_SECONDS, os._exit, 130)
            _write(_CUT_SHORT)

    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _stop(stop: Callable[[], None], number: int) -> None:
    if sys.stderr.isatty():
        again = "once more" if number == signal.SIGINT else "Ctrl-C"
        name = signal.Signals(number).name
        print(f"\n{name}: draining; {again} to stop at once", file=sys.stderr)
    stop()


def _after(seconds: float, function: Callable[..., object], *arguments: object) -> None:
    """Call ``function`` after ``seconds`` in a thread that does not keep the process alive."""
    if seconds < threading.TIMEOUT_MAX:
        timer = threading.Timer(seconds, function, arguments)
        timer.daemon = True
        timer.start()


def _end_if_stuck(token: trio.lowlevel.TrioToken) -> None:
    """End the process if trio does not answer."""
    while True:
        alive = threading.Event()
        try:
            token.run_sync_soon(alive.set)
        except trio.RunFinishedError:
            return
        if not alive.wait(_STUCK_SECONDS):
            _write(_STUCK)
            os._exit(130)
        time.sleep(_AT_ONCE_SECONDS)


def _write(text: bytes) -> None:
    with suppress(OSError):
        os.write(2, text)  # not print: the signal may have interrupted one
