"""A disk of its own that is small, and is filled and emptied while processes work on it."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path

_BLOCK = bytes(1 << 16)


class SmallDisk:
    """A disk of so many ``megabytes`` at ``folder``, in memory; only root may make one."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"
        folder.mkdir()
        size = f"size={megabytes}m"
        mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        self.mounted = not done.returncode
        self.why = done.stderr.strip()

    def fill(self) -> None:
        """Leave no room."""
        with self._ballast.open("ab", buffering=0) as file:
            try:
                while file.write(_BLOCK):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def empty(self) -> None:
        """Give the room back."""
        self._ballast.unlink()

    def unmount(self) -> None:
        """Remove the disk with all that is on it."""
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)
