"""Resources that a fork of this process must close: sockets, and files that it has locked.

Rules
- A forked child has everything open that its parent has. It would keep the port, the connections of
  peers and the locks when its parent has died, so it closes them right after the fork.
- The child unlocks nothing: it shares its parent's locks, and would release them for both.
- Plain connections that this process has dialled are nng's, which does not give their numbers.
  They are found by their addresses, where there is /proc.
- In the child the closed numbers lead to /dev/null, so what closes one of them later closes nothing
  of the app's.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar
from weakref import WeakSet

from s4node.open_files import opened


class _HasNumber(Protocol):
    def fileno(self) -> int: ...


F = TypeVar("F", bound=_HasNumber)
_ours: WeakSet[_HasNumber] = WeakSet()

connections_closed_in_forks: set[tuple[str, str]] = set()
"""Connections without a known number, each as its own address and that of its peer."""


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
        opened(self, path)

    def fileno(self) -> int:
        """The number of the open file; -1 once it is closed."""
        return self._number

    def close(self) -> None:
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
    if connections_closed_in_forks:
        for number, ends in _connections():
            if ends in connections_closed_in_forks:
                os.dup2(nowhere, number, inheritable=False)
    os.close(nowhere)


def _connections() -> Iterator[tuple[int, tuple[str, str]]]:
    """The connected sockets of this process, with both addresses."""
    with suppress(OSError):
        for entry in list(Path("/proc/self/fd").iterdir()):
            number = int(entry.name)
            with suppress(OSError):
                if stat.S_ISSOCK(os.fstat(number).st_mode):
                    found = socket.socket(fileno=number)
                    try:
                        ends = _text(found.getsockname()), _text(found.getpeername())
                    finally:
                        found.detach()
                    yield number, ends


def _text(address: Any) -> str:
    """An address of TCP as nng writes it; anything else is no address of nng's."""
    if not isinstance(address, tuple):
        return ""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


os.register_at_fork(after_in_child=_close_in_child)
