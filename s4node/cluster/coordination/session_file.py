"""The file by which a session shows that its process lives.

Rules
- The owner holds an exclusive flock for as long as it lives: the kernel lets go of it when the
  process dies, however it dies. The next process that tries the lock notices.
- The owner moves the file's modification time on: a heartbeat, for a process that is stopped keeps
  its lock. Others compare that time with what they saw before, and count by their own clock: it is
  a sign and not a time, so a clock that is set does no harm.
- A file is made and locked before anybody is told of its session, under the folder's lock; so an
  unlocked file is a dead session, always.
- ``os.fork`` without ``exec`` hands the lock on to the child: such a child keeps a dead session
  alive until its heartbeat is missed.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from s4node import clocks


class SessionFile:
    """The owner's side: made, locked, and kept alive by :meth:`beat`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._fd, f"{os.getpid()}\n".encode())

    def beat(self) -> None:
        """Give a sign of life; raises OSError where the disk takes none."""
        now = int(clocks.wall() * 1e9)
        os.utime(self._fd, ns=(now, now))

    def removed(self) -> bool:
        """Whether somebody has deleted the file; told by what is open, whatever its folder is."""
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        """Let go of the lock: to the others, the session is dead now. Again does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SeenFile:
    """The others' side: an open file of which can be told whether its owner lives.

    ``now`` is a monotonic time and ``timeout`` the owner's own, both in seconds. A missing file is
    a dead session. Who looks seldom cannot judge: silence counts only while it is watched, so that
    processes which were all stopped together do not find each other dead.
    """

    def __init__(self, path: Path, timeout: float, now: float) -> None:
        self._timeout = timeout
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._fd = -1
        self._beat = 0
        self._since = now
        self._looked = now

    def over(self, now: float) -> bool:
        """Whether the owner is dead, or silent for longer than its timeout."""
        return self.dead() or self._silence(now) > self._timeout

    @property
    def lapse(self) -> float:
        """Which part of its timeout the owner was silent when that was asked for last."""
        return (self._looked - self._since) / self._timeout

    def dead_unheard(self) -> bool:
        """Whether the owner is dead; its silence until now will not count, and is not asked for."""
        self._looked = float("-inf")
        return self.dead()

    def dead(self) -> bool:
        """Whether the owner has let go of its lock."""
        if self._fd < 0:
            return True
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

    def _silence(self, now: float) -> float:
        """For how many seconds, as far as seen from here, the owner gave no sign of life."""
        beat = os.fstat(self._fd).st_mtime_ns
        if beat != self._beat or now - self._looked > self._timeout / 2:
            self._beat = beat
            self._since = now
        self._looked = now
        return now - self._since

    def close(self) -> None:
        """Close the file. Again does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
