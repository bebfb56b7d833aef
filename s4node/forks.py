"""What a fork of this process must not keep: its sockets, and the files that it has locked.

Rules
- A forked child has everything open that its parent has. It would keep the port, the connections of
  peers and the locks when its parent has died, so it closes them right after the fork.
- The child unlocks nothing: it shares its parent's locks, and would release them for both.
- Plain connections that this process has dialled are nng's, which tells no numbers: they stay open.
- In the child the closed numbers lead to /dev/null, so what closes one of them later closes nothing
  of the app's.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol, Self, TypeVar
from weakref import WeakSet


class _HasNumber(Protocol):
    def fileno(self) -> int: ...


F = TypeVar("F", bound=_HasNumber)
_ours: WeakSet[_HasNumber] = WeakSet()


def closed_in_forks(file: F) -> F:
    """Have forked children close ``file``, or a socket; returns it."""
    _ours.add(file)
    return file


class LockFile:
    """A file, or a folder, that is open to be locked: closing it releases the lock.

    A new file is for its own user only. Raises OSError.
    """

    def __init__(self, path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> None:
        self._number = os.open(path, flags | os.O_CLOEXEC, 0o600)
        closed_in_forks(self)

    def fileno(self) -> int:
        """The number of the open file; -1 once it is closed."""
        return self._number

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        if self._number >= 0:
            os.close(self._number)
            self._number = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close_in_child() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for file in list(_ours):
        with suppress(OSError):
            if (number := file.fileno()) >= 0:
                os.dup2(nowhere, number, inheritable=False)
    os.close(nowhere)


os.register_at_fork(after_in_child=_close_in_child)
