"""The open files of a process in folders: databases and locked files, which end with it.

Rules
- A process of a test in memory does not end with its files: who kills it closes them here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary


class Closable(Protocol):
    def close(self) -> None: ...


_open: WeakKeyDictionary[Closable, Path] = WeakKeyDictionary()


def opened(file: Closable, path: Path) -> None:
    """Note what is open at a path, until it is garbage; closing it twice does nothing."""
    _open[file] = path


def close_below(folder: Path) -> None:
    """Close all that is open below a folder."""
    for file in list(_below(folder)):
        with suppress(Exception):  # a database that is broken closes with an error
            file.close()


def _below(folder: Path) -> Iterator[Closable]:
    for file, path in list(_open.items()):
        if path.is_relative_to(folder):
            yield file
