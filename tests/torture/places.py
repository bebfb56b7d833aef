"""A place of this machine, which takes the part of a machine of its own: a folder and an address.

All places are on one small disk, where one can be mounted: if it is full, it is so for all of them.
"""

from __future__ import annotations

import errno
import shutil
import subprocess
from pathlib import Path

_BLOCK = bytes(1 << 16)


class Place:
    """The place of a node, with its folder on ``disk``."""

    ip = "127.0.0.1"

    def __init__(self, name: str, disk: Path) -> None:
        self.disk = disk / name
        self.disk.mkdir(parents=True, exist_ok=True)
        self._ballast = disk / "ballast"

    def inside(self, *command: str | Path) -> list[str]:
        return [*map(str, command)]

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            try:
                while file.write(_BLOCK):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def make_room(self) -> None:
        self._ballast.unlink()

    def wipe(self) -> None:
        for path in self.disk.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def mount(folder: Path, megabytes: int) -> str:
    """Mount a disk in memory; returns why it cannot be, empty if it can. Only root may."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def unmount(folder: Path) -> None:
    """Remove a disk with all that is on it."""
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
