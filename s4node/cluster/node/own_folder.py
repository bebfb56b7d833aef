"""Folders of one process each: locked while it lives, and swept up after it was killed.

Rules
- The lock is a flock on a file in the folder; the kernel lets go of it when the process dies. The
  file gets its name when it is locked, so that no folder is taken for abandoned while it is made.
- Nothing is touched that has no such file, or is another user's.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from s4node.cluster.coordination.folder import has_sessions

_LOCK = "owner.lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Have a folder, which nobody else uses yet, locked for the time of the block."""
    new = folder / f"{_LOCK}.new"
    descriptor = os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        new.rename(folder / _LOCK)
        yield
    finally:
        os.close(descriptor)


def abandoned(folders: Iterable[Path]) -> Iterator[Path]:
    """Those of the folders whose processes have died; nobody else gets one at the same time."""
    for folder in folders:
        try:
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(descriptor).st_uid == os.getuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield folder
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)


@contextmanager
def temporary_coordination(prefix: str) -> Iterator[Path]:
    """A new folder for a coordination that ends with the block; its name begins with ``prefix``.

    Such folders of processes that were killed are removed, unless somebody whom they have left
    behind has a session there.
    """
    for left in abandoned(Path(tempfile.gettempdir()).glob(f"{prefix}*")):
        if not has_sessions(left):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with locked(folder):
            yield folder
