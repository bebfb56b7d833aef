"""What all processes of a node take up together: a file that each of them maps.

Rules
- Each process has a place in the file, which its supervisor gives it, and writes only there. When
  a process has ended, the supervisor clears its place.
- A process without a file counts only itself. So does one beyond the last place.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator, MutableSequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from s4node.net.ingress.peer_limits import Budget

_PLACES = 64
_BUDGETS = 4
_NUMBER_BYTES = 8

_own = 0
_rows: list[MutableSequence[int]] = [[0] for _ in range(_BUDGETS)]


def budget(number: int, limit: int) -> Budget[Any]:
    """This process's part of a budget of at most ``limit``."""
    return Budget(limit, _rows, number, _own)


def join(path: str, place: int) -> None:
    """Count in a node's file, at ``place``, from now on; for a process that does not listen yet."""
    global _own
    if place < _PLACES:
        _own = place
        _rows[:] = _mapped(path)


@contextmanager
def shared() -> Iterator[str]:
    """Let other processes count with this one, which has place 0; gives the path of the file."""
    file, path = tempfile.mkstemp(prefix="s4-totals-")
    try:
        os.write(file, bytes(_BUDGETS * _PLACES * _NUMBER_BYTES))
        os.close(file)
        rows = _mapped(path)
        for row, before in zip(rows, _rows, strict=True):
            row[0] = before[0]
        _rows[:] = rows
        yield path
    finally:
        Path(path).unlink()


def clear(place: int) -> None:
    """Forget a process that has ended."""
    if place < _PLACES:
        for row in _rows:
            row[place] = 0


def _mapped(path: str) -> list[MutableSequence[int]]:
    with Path(path).open("r+b") as file:
        numbers: Any = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
    return [numbers[at * _PLACES : (at + 1) * _PLACES] for at in range(_BUDGETS)]
