"""A node's own folder, inside of the coordination's: its admin socket, and the code it runs.

Rules
- Only its owner can enter it (0700), and a node holds a lock on it while it lives.
- It goes with the node. What nodes left behind that were killed is swept up by the next one.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from s4node.cluster.node.own_folder import abandoned, locked
from s4node.errors import CoordinationError

_LONGEST_SOCKET_PATH = 100
"""Unix sockets' paths end at 108 bytes on Linux, and at 104 elsewhere."""

_SHORT = "s4-node-"
"""How the folders begin that are made elsewhere, where this path would be too long."""


class NodeFolder:
    """Where a node keeps what is its own; see :func:`node_folder`."""

    def __init__(self, folder: Path, admin: Path) -> None:
        self.code = folder / "code"
        self.admin = admin


@contextmanager
def node_folder(coordination: Path) -> Iterator[NodeFolder]:
    """A new folder below the coordination's ``nodes``; gone at the end of the block.

    Raises CoordinationError where it cannot be made.
    """
    below = coordination / "nodes"
    folder = below / secrets.token_hex(4)
    try:
        below.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(below)
        folder.mkdir(mode=0o700)
        lock = ExitStack()
        lock.enter_context(locked(folder))
    except OSError as error:
        raise CoordinationError(
            f"{folder} cannot be made: {error.strerror}; set s4.coordination.folder to a folder "
            f"of yours that can be written"
        ) from error
    with lock:
        admin = folder / "admin"
        places = [folder]
        if len(os.fsencode(admin)) > _LONGEST_SOCKET_PATH:
            places.append(Path(tempfile.mkdtemp(prefix=_SHORT)))
            (folder / "elsewhere").symlink_to(places[-1])
            admin = places[-1] / "admin"
        try:
            yield NodeFolder(folder, admin)
        finally:
            for place in places:
                shutil.rmtree(place, ignore_errors=True)


def _sweep(below: Path) -> None:
    """Remove the folders of nodes that have died."""
    for folder in abandoned(below.iterdir()):
        with suppress(FileNotFoundError):
            elsewhere = (folder / "elsewhere").readlink()
            if elsewhere.name.startswith(_SHORT):
                shutil.rmtree(elsewhere, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
