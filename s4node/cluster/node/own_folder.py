"""Folders of one process each, locked while the process lives and removed after its death.

Rules
- The lock is a flock on a file in the folder, which the kernel releases when the process dies. The
  file is renamed into place once it is locked, so no new folder is taken for an abandoned one.
- Folders without such a file, or of another user, are left alone.
- A reader asks for a shared lock, so that readers do not disturb each other.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from s4node.forks import LockFile

_LOCK = "owner.lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder that nobody else uses yet, during the block."""
    new = folder / f"{_LOCK}.new"
    with LockFile(new, os.O_CREAT | os.O_EXCL | os.O_RDWR) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        new.rename(folder / _LOCK)
        yield


def abandoned(folders: Iterable[Path]) -> Iterator[Path]:
    """The folders whose processes have died; each is locked while it is given."""
    for folder in folders:
        try:
            file = LockFile(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue
        with file, suppress(BlockingIOError):
            if os.fstat(file.fileno()).st_uid == os.getuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield folder


def lives(folder: Path) -> bool:
    try:
        file = LockFile(folder / _LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def process_folder(below: Path) -> Iterator[Path]:
    """A new folder of this process in ``below``, which is removed at the end of the block.

    Folders of dead processes in ``below`` are removed. Raises OSError if the folder cannot be
    created.
    """
    below.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in abandoned(below.iterdir()):
        shutil.rmtree(left, ignore_errors=True)
    folder = below / secrets.token_hex(4)
    folder.mkdir(mode=0o700)
    with locked(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def temporary_coordination(prefix: str) -> Iterator[Path]:
    """A new folder for a coordination that ends with the block; its name begins with ``prefix``.

    Such folders of dead processes are removed, unless a process that they left behind still has a
    session there.
    """
    from s4node.cluster.tree.folder import has_sessions  # late: it loads a database

    for left in abandoned(Path(tempfile.gettempdir()).glob(f"{prefix}*")):
        if not has_sessions(left):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with locked(folder):
            yield folder
