"""The folder of a node, inside that of its machine: its apps' code.

Rules
- Only its owner can enter the folder (0700), and the node holds a lock on it while it lives.
- The folder is removed with the node; the next node removes the folders of killed ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from s4node.cluster.node.own_folder import process_folder
from s4node.errors import CoordinationError


@contextmanager
def node_folder(machine: Path) -> Iterator[Path]:
    """A new folder below the machine's ``nodes``, which is removed at the end of the block.

    Raises CoordinationError if it cannot be created.
    """
    below = machine / "nodes"
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(process_folder(below))
        except OSError as error:
            raise CoordinationError(
                f"no folder can be created in {below}: {error.strerror}; set "
                f"s4.coordination.folder to a folder that you may write to"
            ) from error
        yield folder
