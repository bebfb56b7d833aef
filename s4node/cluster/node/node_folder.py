"""A node's own folder, inside of the coordination's: its admin socket, and the code it runs.

Rules
- Only its owner can enter it (0700), and a node holds a lock on it while it lives.
- It goes with the node. What nodes left behind that were killed is swept up by the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from s4node.cluster.node.own_folder import ProcessFolder, process_folder
from s4node.errors import CoordinationError


class NodeFolder:
    """Where a node keeps what is its own; see :func:`node_folder`."""

    def __init__(self, folder: ProcessFolder) -> None:
        self.code = folder.path / "code"
        self.admin = folder.admin


@contextmanager
def node_folder(coordination: Path) -> Iterator[NodeFolder]:
    """A new folder below the coordination's ``nodes``; gone at the end of the block.

    Raises CoordinationError where it cannot be made.
    """
    below = coordination / "nodes"
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(process_folder(below))
        except OSError as error:
            raise CoordinationError(
                f"a folder in {below} cannot be made: {error.strerror}; set s4.coordination.folder "
                f"to a folder of yours that can be written"
            ) from error
        yield NodeFolder(folder)
