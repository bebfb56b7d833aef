"""What the nodes of all clusters share: a tree of small entries, written through sessions.

Rules
- This is a contract, implemented by a folder on one machine
  (:mod:`s4node.cluster.coordination.folder`) and made so that ZooKeeper can implement every
  sentence of it. Who needs more than is stated here is wrong.
- A path is ``/`` or ``/part/part``; a part is any printable text without ``/`` that is
  not empty, ``.`` or ``..``. ``/`` is always there and holds no data.
- Writes are linearizable: all sessions see them in one order, and a read sees every write that had
  returned before it began.
- An ephemeral entry ends with its session and never has entries below it.
- Watching is by level, not by event: :meth:`Session.wait_change` may return for nothing, and
  several changes may look like one; what it never does is to miss the last one.
- Where a connection can break, a write may have happened although its call raised SessionLost, and
  a write that is repeated after a break may meet itself: who is told EntryExists or BadVersion
  looks whether what stands there is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from s4node.errors import CoordinationError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    import trio

MAX_DATA_BYTES = 1_000_000
"""The longest data of an entry; ZooKeeper's packets end at 1 MiB, with what is around the data."""

MAX_PATH_LENGTH = 1024
"""The longest path, in characters."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as it was when it was read.

    ``version`` is 0 when the entry is created and grows by one with every ``set``; an entry that
    was deleted and created again starts at 0. ``session`` is the id of the owner of an ephemeral
    entry, and empty for others. ``created`` orders entries by their creation, over the whole tree;
    nothing else may be read from it.
    """

    data: bytes
    version: int
    session: str
    created: int


class Session(Protocol):
    """A living connection to the tree. Every method raises SessionLost once the session is over.

    A method that is cancelled has either had its whole effect or none, but that entries made on the
    way to another may stay.
    """

    @property
    def id(self) -> str:
        """What names this session and no other, ever; the ``session`` of its ephemeral entries."""

    @property
    def name(self) -> str:
        """What its user called it, for messages; need not be unique."""

    @property
    def timeout(self) -> float:
        """After how many seconds without a sign of life the others end this session."""

    @property
    def lost(self) -> trio.Event:
        """Set when the session is over: expired, the tree gone, or closed by its own user.

        A process that was stopped or cut off learns it when it runs again, which may be after
        others took over what it owned: what must not be written twice needs an epoch of its own.
        """

    @property
    def doubtful(self) -> bool:
        """Whether this process was stopped for so long that the session may be over, unnoticed yet.

        Until it is known, which takes a moment, others may own what this session owned.
        """

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        """Create an entry of version 0, and persistent entries without data on the way to it.

        Raises EntryExists; CoordinationError where an entry on the way is ephemeral, and for a path
        or data that cannot be.
        """

    async def get(self, path: str) -> Entry | None:
        """The entry at ``path``, or None."""

    async def set(self, path: str, data: bytes, version: int | None = None) -> int:
        """Write ``data`` and return the new version; with ``version``, only over that version.

        Raises NoEntry, and BadVersion where another version stands there.
        """

    async def delete(self, path: str, version: int | None = None) -> None:
        """Delete the entry; with ``version``, only that version.

        Raises NoEntry, BadVersion, and EntryNotEmpty where there are entries below it.
        """

    async def children(self, path: str) -> list[str]:
        """The last parts of the paths right below ``path``, sorted; empty if there is no entry."""

    async def change(self, path: str) -> int:
        """A number that grows whenever an entry at or below ``path`` is created, set or deleted.

        It may grow for other changes too. Numbers of different paths cannot be compared.
        """

    async def wait_change(self, path: str, seen: int) -> int:
        """Return ``change(path)`` as soon as it is greater than ``seen``.

        Ask ``change`` first, then read, then wait with that number: so nothing is missed.
        """


class Coordination(Protocol):
    """Where sessions come from."""

    def session(self, name: str) -> AbstractAsyncContextManager[Session]:
        """Open a session for the time of the block; leaving it deletes its ephemeral entries.

        Raises CoordinationError where the tree cannot be reached. Losing the session later does not
        end the block: wait for ``lost``, or be told by the next call.
        """


def check_path(path: str) -> None:
    """Raise CoordinationError unless ``path`` can be one."""
    parts = path.split("/")[1:]
    if path == "/":
        return
    if not path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise CoordinationError(f"{path!r} is no path of entries; write it as /part/part")
    if len(path) > MAX_PATH_LENGTH:
        raise CoordinationError(
            f"the path {path[:40]!r}... has {len(path)} characters; {MAX_PATH_LENGTH} are allowed: "
            f"use shorter names"
        )
    if not path.isprintable():
        raise CoordinationError(
            f"the path {path!r} has characters that cannot be printed; take them out"
        )


def check_data(path: str, data: bytes) -> None:
    """Raise CoordinationError if ``data`` is too long for an entry."""
    if len(data) > MAX_DATA_BYTES:
        raise CoordinationError(
            f"{len(data)} bytes are too many for the entry {path!r}, which takes {MAX_DATA_BYTES}; "
            f"keep large things in a file and their place in the entry"
        )


def parent_of(path: str) -> str:
    """The path right above ``path``; that of ``/`` is ``/`` itself."""
    return path.rpartition("/")[0] or "/"
