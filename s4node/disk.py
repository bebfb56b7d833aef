"""Files and folders that survive a power cut.

Rules
- A file is on disk once it was synced, and so were its folder, which has its name, and the folders
  above that have theirs.
- Calls block, and raise OSError.
- Every sync passes the point ``disk.synced``. If SQLite or RocksDB syncs by itself, the owner of
  the file passes the point.
"""

from __future__ import annotations

import os
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
