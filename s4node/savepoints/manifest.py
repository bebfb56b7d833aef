"""The manifest of a savepoint: whose state it is, and which files it consists of. Pure.

Rules
- The manifest is written last: without it there is no savepoint.
- It names every file of every task with its size and hash, so damaged and missing files are found
  before any file is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from s4node.errors import CheckpointError
from s4node.events.schema import UNREADABLE
from s4node.offsets.startpoint_fan_out import Requests

FORMAT = 1
"""The version of the manifest and of the files that it names; others are refused."""


class SavedFile(msgspec.Struct, frozen=True):
    """A file of a savepoint: its size in bytes, and the BLAKE2b hash of its content."""

    size: int
    hash: str


class SavedTask(msgspec.Struct, frozen=True):
    """The cut of a task: the owner's fence, the commit that the cut is, and the files by name."""

    fence: int
    commit: int
    files: dict[str, SavedFile]


class Upgrade(msgspec.Struct, frozen=True):
    """The version that a deployment replaced, with the digest of its package, and the new one,
    which went ``back`` to a savepoint or did not."""

    before: str
    package: str
    after: str
    back: bool = False


class Manifest(msgspec.Struct, frozen=True):
    """The content of a manifest.

    ``number`` is that of the cuts, ``state`` the identity of the job's state, ``job`` the job's
    guard as a row, ``created_ms`` Unix time, and ``why`` says who took the savepoint.
    ``startpoints`` were set and not consumed yet. A savepoint that a deployment took has the
    ``upgrade``. Fast inputs were held for ``held_ms``.
    """

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
    startpoints: Requests = Requests()
    upgrade: Upgrade | None = None
    held_ms: int = 0

    @property
    def bytes(self) -> int:
        return sum(file.size for _, _, file in self.files())

    def check_app(self, app: str) -> None:
        """Raise CheckpointError if this is a savepoint of another app."""
        if self.app != app:
            raise CheckpointError(
                f"savepoint {self.name!r} is of app {self.app!r}, and cannot be used for {app!r}; "
                f"use one of {app!r}, or name that app"
            )

    def files(self) -> Iterator[tuple[str, str, SavedFile]]:
        for task, saved in self.tasks.items():
            for name, file in saved.files.items():
                yield task, name, file


class Facts(msgspec.Struct, frozen=True):
    """The facts of a task's commit that others rely on.

    ``sent`` has the latest life of each channel to a consumer, and the number of events in all
    lives, ``acknowledged`` the committed number of each producer of a stream.
    """

    sent: dict[str, tuple[str, int]]
    acknowledged: list[tuple[str, str, int]]


class Restoring(msgspec.Struct, frozen=True):
    """The mark of a job whose tasks are being restored from the savepoint ``name``.

    ``newest`` has the facts of each task from before the restore, None if it had no state here.
    With ``partitions`` they are the tasks of another layout, which has so many.
    """

    name: str
    newest: dict[str, Facts | None]
    partitions: int = 0


class _Format(msgspec.Struct):
    format: int


def parse(data: bytes, place: object) -> Manifest:
    """The manifest that was read from ``place``; raises CheckpointError if it cannot be used."""
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


class StateCheck(msgspec.Struct, frozen=True):
    """The state that a version of an app has to fit, and what the user has agreed to.

    The state is that in the folder of a ``savepoint``, or as it is. PEs and stores named ``unused``
    may have rows that the version does not use. With ``same_keys`` the keys of streams are the same
    ones under another name.
    """

    savepoint: str = ""
    unused: tuple[str, ...] = ()
    same_keys: bool = False


AS_IS = StateCheck()
"""The state as it is, and nothing was agreed to."""
