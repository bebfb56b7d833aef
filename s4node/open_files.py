"""The open files of a process in folders: databases and locked files, which end with it.

Rules
- The system closes them when a process dies. A process of a test in memory has no system, so its
  world notes what it opens, and closes that when it is killed; nobody else notes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol


class Closable(Protocol):
    def close(self) -> None: ...


def _pass(file: Closable, path: Path) -> None:
    """Do nothing."""


_note: Callable[[Closable, Path], None] = _pass


def opened(file: Closable, path: Path) -> None:
    """Note what is open at a path; closing it twice does nothing."""
    _note(file, path)


@contextmanager
def replaced(note: Callable[[Closable, Path], None]) -> Iterator[None]:
    """Call ``note`` with all that is opened during the block."""
    global _note
    before, _note = _note, note
    try:
        yield
    finally:
        _note = before
