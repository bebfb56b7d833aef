"""Files and folders that a power cut leaves as they are: what is written, and waited for.

Rules
- A file is on the disk when it was waited for, and so was the folder that has its name; the same
  holds for that folder's name.
- Everything blocks, and raises OSError.
- A disk that was waited for passes the point ``disk.synced``, also where SQLite or RocksDB has
  waited by itself: the owners of their files say so.
"""

from __future__ import annotations

import os
from pathlib import Path

from s4node.failpoints import passing


def sync(*paths: Path) -> None:
    """Wait until what is in these files, or the names in these folders, is on the disk."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    passing("disk.synced")


def make_folders(folder: Path) -> None:
    """Make a folder with all above it that are missing; all of them are on the disk then."""
    missing = []
    above = folder.absolute()
    while not above.exists():
        missing.append(above)
        above = above.parent
    folder.mkdir(parents=True, exist_ok=True)
    if missing:
        sync(*(each.parent for each in missing))


def write(path: Path, data: bytes) -> None:
    """Have a file with this content on the disk: all of it, or what was there before."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(data)
    sync(new)
    new.replace(path)
    sync(path.parent)
