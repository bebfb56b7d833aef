"""Files and folders that survive a power cut.

Rules
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


def sync(*paths: Path) -> None:
    """Wait until these files, or the names in these folders, are on disk."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    passing("disk.synced")


def make_folders(folder: Path) -> None:
    """Create a folder and its missing parents, and wait until they are on disk."""
    missing = []
    above = folder.absolute()
    while not above.exists():
        missing.append(above)
        above = above.parent
    folder.mkdir(parents=True, exist_ok=True)
    if missing:
        sync(*(each.parent for each in missing))


def create(path: Path, data: bytes) -> bool:
    """Write a file as a whole, unless there is one; returns False if another process was first."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_bytes(data)
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
    new.write_bytes(data)
    sync(new)
    new.replace(path)
    sync(path.parent)


@contextmanager
def temporary_folder(parent: Path, prefix: str = ".look-") -> Iterator[Path]:
    """A folder in ``parent`` for the block."""
    for left in parent.glob(f"{prefix}*"):
        with _locked(left) as ours:
            if ours:
                shutil.rmtree(left, ignore_errors=True)
    while True:
        place = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            with _locked(place) as ours:
                if ours:
                    yield place
                    return
        finally:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder for the block; gives False if another process has it, or it is gone."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    try:
        yield _lock(fd)
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(fd).st_nlink > 0
