"""Files and folders that survive a power cut, and are for their own user only.

Rules
- Other users can read and enter nothing that is made here, whatever the umask of the program.
- A file is on disk once it was synced, and so were its folder, which has its name, and the folders
  above that have theirs.
- Calls block, and raise OSError.
- A temporary folder is locked as long as its process uses it. The folders of processes that were
  killed are removed when the next one is made beside them.
- Every sync passes the point ``disk.synced``. If SQLite or RocksDB syncs by itself, the owner of
  the file passes the point.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from s4node.failpoints import passing
from s4node.forks import LockFile


def sync(*paths: Path) -> None:
    """Wait until these files, or the names in these folders, are on disk."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    passing("disk.synced")


def private(path: str, flags: int) -> int:
    """Open a file for ``open(opener=)``, so that a new one is for its own user only."""
    return os.open(path, flags, 0o600)


def make_folder(folder: Path) -> list[Path]:
    """Create a folder and its missing parents; return those that were missing."""
    missing = []
    above = folder.absolute()
    while not above.exists():
        missing.append(above)
        above = above.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    return missing


def make_folders(folder: Path) -> None:
    """Create a folder and its missing parents, and wait until they are on disk."""
    if missing := make_folder(folder):
        sync(*(each.parent for each in missing))


def create(path: Path, data: bytes) -> bool:
    """Write a file as a whole, unless there is one; returns False if another process was first."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    _fill(new, data)
    try:
        sync(new)
        os.link(new, path)
    except FileExistsError:
        return False
    finally:
        new.unlink()
    sync(path.parent)
    return True


def write(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on disk; after a crash it is the new or the old one."""
    new = path.with_name(f"{path.name}.new")
    _fill(new, data)
    sync(new)
    new.replace(path)
    sync(path.parent)


@contextmanager
def temporary_folder(parent: Path, prefix: str = ".look-") -> Iterator[Path]:
    """A folder in ``parent`` for the block."""
    for left in parent.glob(f"{prefix}*"):
        with locked(left) as ours:
            if ours:
                shutil.rmtree(left, ignore_errors=True)
    while True:
        place = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            with locked(place) as ours:
                if ours:
                    yield place
                    return
        finally:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Lock a folder for the block; gives False if another process has it, or it is gone."""
    try:
        file = LockFile(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    with file:
        yield _lock(file)


def _lock(file: LockFile) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(file.fileno()).st_nlink > 0


def _fill(path: Path, data: bytes) -> None:
    passing("disk.write")
    with open(path, "wb", opener=private) as file:
        file.write(data)
