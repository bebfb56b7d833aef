"""The file of a session, which shows that its process is alive.

Rules
- The owner holds an exclusive flock for as long as it lives; the kernel releases it when the
  process dies. The next process that tries the lock notices.
- The owner's heartbeat advances the file's modification time, because a stopped process keeps its
  lock. Others only compare that time with the one they saw before, and measure with their own
  clock, so setting the clock does no harm.
- A file is created and locked, under the folder's lock, before its session is known. So an unlocked
  file always means a dead session.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from s4node import clocks
from s4node.forks import LockFile


class SessionFile:
    """The owner's side: creates and locks the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = LockFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._file.fileno(), f"{os.getpid()}\n".encode())

    def beat(self) -> None:
        """Send a heartbeat; raises OSError if the disk fails."""
        now = int(clocks.wall() * 1e9)
        os.utime(self._file.fileno(), ns=(now, now))

    def removed(self) -> bool:
        """Return True if the file was deleted; works through the open file, whatever its folder."""
        return os.fstat(self._file.fileno()).st_nlink == 0

    def close(self) -> None:
        """Release the lock: the session is dead to the others. May be called twice."""
        self._file.close()


class SeenFile:
    """The others' side: an open file that shows whether its owner lives.

    ``now`` is a monotonic time and ``timeout`` the owner's own, both in seconds. A missing file is
    a dead session. Silence counts only while it is observed, so that processes that were all
    stopped together do not find each other dead. ``process`` is a pidfd, readable once the owner's
    process has ended; -1 if there is no such process here, as in a container of its own.
    """

    def __init__(self, path: Path, timeout: float, now: float) -> None:
        self._timeout = timeout
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._fd = -1
        self.process = self._process()
        self._beat = 0
        self._since = now
        self._looked = now

    def _process(self) -> int:
        try:
            return os.pidfd_open(int(os.pread(self._fd, 20, 0)))
        except (OSError, ValueError):
            return -1

    def over(self, now: float) -> bool:
        """Return True if the owner is dead, or silent for longer than its timeout."""
        return self.dead() or self._silence(now) > self._timeout

    @property
    def lapse(self) -> float:
        """The owner's silence at the last ``over``, as a share of its timeout."""
        return (self._looked - self._since) / self._timeout

    def dead_unheard(self) -> bool:
        """Return True if the owner is dead; its silence until now will not count."""
        self._looked = float("-inf")
        return self.dead()

    def dead(self) -> bool:
        """Return True if the owner has released its lock."""
        if self._fd < 0:
            return True
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

    def _silence(self, now: float) -> float:
        """The observed seconds without a heartbeat."""
        beat = os.fstat(self._fd).st_mtime_ns
        if beat != self._beat or now - self._looked > self._timeout / 2:
            self._beat = beat
            self._since = now
        self._looked = now
        return now - self._since

    def close(self) -> None:
        for fd in (self._fd, self.process):
            if fd >= 0:
                os.close(fd)
        self._fd = self.process = -1
