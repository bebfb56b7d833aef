"""The contract of a coordination: a tree of small entries that nodes write through sessions. Pure.

Rules
- A folder on one machine implements this contract (:mod:`s4node.cluster.tree.folder`), and
  so does ZooKeeper (:mod:`s4node.cluster.tree.zookeeper`). Callers must not rely on
  anything else.
- A path is ``/`` or ``/part/part``; a part is printable ASCII text without ``/``, except the empty
  text, ``.`` and ``..``. ``/`` always exists and holds no data.
- Writes are linearizable: all sessions see them in one order, and a read sees every write that had
  returned before the read began.
- An ephemeral entry is deleted when its session ends, and never has entries below it.
- Changes are watched by level, not by event: :meth:`Session.wait_change` may return without a
  change, and once for several, but it never misses the last one.
- If a connection can break, a write may have happened although its call raised SessionLost, and a
  repeated write may then meet its own result: after EntryExists or BadVersion, check whether the
  entry is yours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from s4node.errors import CoordinationError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    import trio

MAX_DATA_BYTES = 1_000_000
"""The most bytes of an entry: a ZooKeeper packet ends at 1 MiB, with headers around the data."""

MAX_PATH_LENGTH = 1024
"""The most characters of a path."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as it was when it was read.

    ``version`` is 0 when the entry is created, or created again, and grows by one with every
    ``set``. ``session`` is the id of the owner of an ephemeral entry, else empty. ``created``
    orders all entries of the tree by their creation; use it for nothing else.
    """

    data: bytes
    version: int
    session: str
    created: int


class Session(Protocol):
    """A living connection to the tree. Every method raises SessionLost once the session has ended.

    A cancelled method has either had its whole effect or none, except that ``create`` may leave
    parent entries.
    """

    @property
    def id(self) -> str:
        """The unique id of this session, which is the ``session`` of its ephemeral entries."""

    @property
    def name(self) -> str:
        """The name that the user gave, for messages; need not be unique."""

    @property
    def timeout(self) -> float:
        """The seconds without a heartbeat after which this session ends, as they were granted."""

    @property
    def key(self) -> str:
        """The text with which others can end this session when its process has died; see
        :meth:`Coordination.end_session`. Keep it secret: others can also write with it."""

    @property
    def lost(self) -> trio.Event:
        """Set when the session has ended: expired, closed, or because the tree is gone.

        A process that was stopped or cut off learns this when it runs again, perhaps after others
        have taken over what it owned: fence what must not be written twice with an epoch.
        """

    @property
    def doubtful(self) -> bool:
        """True if this process was stopped for so long that the session may have ended.

        Until that is known, which takes a moment, others may own what this session owned.
        """

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        """Create an entry of version 0, and its missing parents, persistent and without data.

        Raises EntryExists; CoordinationError if a parent is ephemeral, or if the path or the data
        is invalid.
        """

    async def get(self, path: str) -> Entry | None:
        """The entry at ``path``, or None."""

    async def set(self, path: str, data: bytes, version: int | None = None) -> int:
        """Write ``data`` and return the new version; with ``version``, only over that version.

        Raises NoEntry, and BadVersion if the entry has another version.
        """

    async def delete(self, path: str, version: int | None = None) -> None:
        """Delete the entry; with ``version``, only that version.

        Raises NoEntry, BadVersion, and EntryNotEmpty if there are entries below it.
        """

    async def children(self, path: str) -> list[str]:
        """The last parts of the paths right below ``path``, sorted; empty if there is no entry."""

    async def change(self, path: str) -> int:
        """A number that grows whenever an entry at or below ``path`` is created, set or deleted.

        It may grow for other changes too. Numbers of different paths cannot be compared.
        """

    async def wait_change(self, path: str, seen: int) -> int:
        """Return ``change(path)`` as soon as it is greater than ``seen``.

        To miss nothing, call ``change`` first, then read, then wait with that number.
        """

    async def check_closed(self) -> None:
        """Raise LastingTreeError if programs without our credentials can use an entry; reads all
        entries. Without credentials all may use them."""


class Coordination(Protocol):
    def session(self, name: str) -> AbstractAsyncContextManager[Session]:
        """Open a session for the block; leaving the block deletes its ephemeral entries.

        Raises CoordinationError if the tree cannot be reached. The block continues if the session
        is lost later: wait for ``lost``, or the next call raises SessionLost.
        """

    async def end_session(self, key: str) -> None:
        """End the session with this key, whose process has died, before its timeout.

        Does nothing if it has ended, or if that cannot be done now: then it ends by itself.
        """


class LastingTreeError(CoordinationError):
    """The tree cannot be used; waiting does not help."""


def check_path(path: str) -> None:
    """Raise CoordinationError unless ``path`` is a valid path."""
    parts = path.split("/")[1:]
    if path == "/":
        return
    if not path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise CoordinationError(f"{path!r} is not a path of entries; write it as /part/part")
    if len(path) > MAX_PATH_LENGTH:
        raise CoordinationError(
            f"the path {path[:40]!r}... has {len(path)} characters, and at most {MAX_PATH_LENGTH} "
            f"are allowed; use shorter names"
        )
    if not (path.isprintable() and path.isascii()):
        raise CoordinationError(
            f"the path {path!r} has characters that are not printable ASCII; quote or remove them"
        )


def check_data(path: str, data: bytes) -> None:
    """Raise CoordinationError if ``data`` is too long for an entry."""
    if len(data) > MAX_DATA_BYTES:
        raise CoordinationError(
            f"the entry {path!r} would have {len(data)} bytes, and at most {MAX_DATA_BYTES} are "
            f"allowed; save large data in a file, and the path of the file in the entry"
        )


def parent_of(path: str) -> str:
    """The path right above ``path``; the parent of ``/`` is ``/`` itself."""
    return path.rpartition("/")[0] or "/"
