"""The lock of a job: whether any of its containers runs on this machine.

Rules
- Each container of a job holds a shared lock on the job's file ``.running`` for as long as it
  lives; the kernel releases it when the process ends.
- A process that enters or looks holds ``.gate`` meanwhile, so that it is not taken for a container.
- A job starts with the first of its containers, which alone does the work of a start, while others
  wait at the gate. They also wait while another process needs the job to be stopped.
- Each start has a name, which the first container writes to ``.running``; facts that hold for one
  start only are saved with that name.
- A container that may have to do the work of a start holds the gate, does it, and enters. On
  several nodes the coordination says which container starts the job, so there a container enters at
  once, and nobody holds this gate while waiting for the coordination's.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from s4node import disk, tokens
from s4node.errors import JobRuns, ProgressUnwritten
from s4node.forks import LockFile

_RUNNING = ".running"
_GATE = ".gate"
_NAME_BYTES = 6


class JobLock:
    """One container's part in the lock of the job in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gate = ExitStack()
        self._file: LockFile | None = None
        self._first = False

    def hold(self) -> bool:
        """Wait for the gate, and hold it until :meth:`enter`. Blocks. Returns True if no other
        container is there, so that this is a start of the job."""
        self._gate.enter_context(_locked(self._folder / _GATE))
        self._file = _opened(self._folder / _RUNNING)
        self._first = _alone(self._file)
        return self._first

    def enter(self) -> str:
        """Enter the job and release the gate; waits for the gate if it is not held. Blocks. Returns
        the name of the job's start."""
        if self._file is None:
            self.hold()
        assert self._file is not None
        number = self._file.fileno()
        if self._first:
            os.pwrite(number, tokens.fresh(_NAME_BYTES).encode(), 0)
        fcntl.flock(number, fcntl.LOCK_SH)
        self._gate.close()
        return os.pread(number, 2 * _NAME_BYTES, 0).decode()

    def leave(self) -> None:
        """Leave the job; a second time does nothing."""
        self._gate.close()
        if self._file is not None:
            self._file.close()
            self._file = None


def runs(folder: Path) -> bool:
    try:
        with stopped(folder):
            return False
    except JobRuns:
        return True


@contextmanager
def stopped(folder: Path) -> Iterator[None]:
    """Keep the job from starting; raises JobRuns if it runs."""
    if not (folder / _GATE).exists():  # the job never ran: create no file
        yield
        return
    with _locked(folder / _GATE), _opened(folder / _RUNNING) as file:
        if not _alone(file):
            raise JobRuns(f"the job in {folder} is running; stop all of its containers first")
        yield


def gate(folder: Path) -> AbstractContextManager[None]:
    """Keep containers from entering meanwhile."""
    return _locked(folder / _GATE)


def _alone(file: LockFile) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with _opened(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _opened(path: Path) -> LockFile:
    try:
        disk.make_folder(path.parent)
        return LockFile(path)
    except OSError as error:
        raise ProgressUnwritten(
            f"progress cannot be saved in {path.parent} ({error}); fix its permissions, or set "
            f"s4.state.folder to another folder"
        ) from error
