"""Ctrl-C while modules are loaded: it is not lost where Python drops exceptions."""

from __future__ import annotations

import signal
import subprocess
import sys
from threading import Thread

import pytest
from harness import environment

from s4node.process.loading import interruptible

DROPS = """\
import os, signal, weakref
from contextlib import nullcontext
from s4node.process.loading import interruptible
class Lock: pass
def interrupted(_):
    os.kill(os.getpid(), signal.SIGINT)
with {block}():
    lock = Lock()
    watched = weakref.ref(lock, interrupted)
    del lock
print("goes on")
"""


@pytest.mark.parametrize(
    ("block", "status", "printed"),
    [("nullcontext", 0, "goes on\n"), ("interruptible", -signal.SIGINT, "")],
)
def test_ctrl_c_in_a_callback_of_the_import_system_ends_the_process(
    block: str, status: int, printed: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DROPS.format(block=block)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (status, printed)


def test_a_handler_of_the_program_s_own_stays_and_other_threads_have_none() -> None:
    seen = []

    def look() -> None:
        with interruptible():
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        look()
        thread = Thread(target=look)
        thread.start()
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIG_IGN] * 2
