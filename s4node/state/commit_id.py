"""Which commit a database has: its number, who wrote it, and where it was shipped to.

Rules
- Fence, number and try name a commit only among those who share a folder or a place: elsewhere
  another owner may have the same. So each owner has a name besides, which nobody else ever has.
- A state that is shipped keeps the names of all its owners: a folder that has missed some of them
  is known as one that was left behind.
"""

from __future__ import annotations

import msgspec

from s4node.state.database import Database
from s4node.state.remote_manifest import Batch
from s4node.state.rows import META, task_row

COMMIT_ROW = task_row(META, b"commit")
OWNERS_ROW = task_row(META, b"owners")
SHIPPED_ROW = task_row(META, b"shipped")

_decode_batch = msgspec.msgpack.Decoder(tuple[int, int, int]).decode
_decode_owners = msgspec.msgpack.Decoder(dict[int, str]).decode
_decode_text = msgspec.msgpack.Decoder(str).decode


def known_of(database: Database) -> Batch:
    """The last commit of a database; of number 0 before the first."""
    data = database.get(COMMIT_ROW)
    return (0, 0, 0) if data is None else _decode_batch(data)


def owners_of(database: Database) -> dict[int, str]:
    """The names of owners by their fences; that of the last commit is there."""
    data = database.get(OWNERS_ROW)
    return {} if data is None else _decode_owners(data)


def shipped_of(database: Database) -> str:
    """The URL to which the last commit was shipped; empty if it was not."""
    data = database.get(SHIPPED_ROW)
    return "" if data is None else _decode_text(data)
