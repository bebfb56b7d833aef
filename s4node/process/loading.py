"""Ctrl-C and the garbage collector while a command or a process loads its modules.

Rules
- What is loaded stays, so it is no work of the collector. A program disables it when it begins, and
  calls ``loaded`` as soon as it has its modules. That is a tenth of the CPU until an app runs.
- Python drops a KeyboardInterrupt that it raises in a callback of its import system, and a command
  that loads hundreds of modules would then run on. So Ctrl-C ends the process at once meanwhile.
"""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end the process at once during the block, in which modules are loaded."""
    before = signal.getsignal(signal.SIGINT)
    in_charge = threading.current_thread() is threading.main_thread()
    if not in_charge or before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def loaded() -> None:
    """If the garbage collector is disabled, enable it, and have it skip what is there now."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
