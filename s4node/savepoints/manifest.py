"""The manifest of a savepoint: which job's state it is, and what is in it. Pure.

Rules
- The manifest is written last: without it there is no savepoint.
- It names every file of every task with its size and hash, so what is damaged or missing is found
  before anything of a savepoint is used.
"""

from __future__ import annotations

from typing import Any

import msgspec

from s4node.errors import CheckpointError
from s4node.events.schema import UNREADABLE

FORMAT = 1


class SavedFile(msgspec.Struct, frozen=True):
    """A file of a task's database: bytes, and the BLAKE2b hash of what is in it."""

    size: int
    hash: str


class SavedTask(msgspec.Struct, frozen=True):
    """The cut of a task: the owner's fence, the commit that the cut is, and the files by name."""

    fence: int
    commit: int
    files: dict[str, SavedFile]


class Manifest(msgspec.Struct, frozen=True):
    """What a savepoint is. ``number`` is that of its cuts, ``state`` the identity of the job's
    state, ``job`` what the job was like, ``created_ms`` Unix time, ``why`` who took it."""

    format: int
    name: str
    number: int
    app: str
    state: str
    created_ms: int
    version: str
    job: dict[str, Any]
    tasks: dict[str, SavedTask]
    why: str = ""

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.size for task in self.tasks.values() for file in task.files.values())


class _Format(msgspec.Struct):
    format: int


def parse(data: bytes, place: object) -> Manifest:
    """The manifest that was read from ``place``; raises CheckpointError where it cannot be used."""
    try:
        found = msgspec.json.decode(data, type=_Format).format
        if found == FORMAT:
            return msgspec.json.decode(data, type=Manifest)
    except UNREADABLE as error:
        raise CheckpointError(
            f"{place} is damaged: {error}; use another savepoint, or a copy of this one"
        ) from error
    raise CheckpointError(
        f"{place} has the format {found}, and this s4node reads {FORMAT}; use the s4node that "
        f"wrote it"
    )
