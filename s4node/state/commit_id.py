"""The identity of a database's last commit: its number, its writer, and its URL if shipped.

Rules
- Fence, number and try identify a commit only within one folder or one URL: an owner elsewhere may
  use the same numbers. So each owner also has a unique name.
- A state that is shipped has the names of all its owners, so that a folder that has missed some of
  them is recognised as outdated.
"""

from __future__ import annotations

import msgspec

from s4node.state.database import Database
from s4node.state.remote_log import CommitId
from s4node.state.rows import META, task_row

COMMIT_ROW = task_row(META, b"commit")
OWNERS_ROW = task_row(META, b"owners")
SHIPPED_ROW = task_row(META, b"shipped")

_decode_commit = msgspec.msgpack.Decoder(tuple[int, int, int]).decode
_decode_owners = msgspec.msgpack.Decoder(dict[int, str]).decode
_decode_text = msgspec.msgpack.Decoder(str).decode


def known_of(database: Database) -> CommitId:
    """The last commit of a database; its number is 0 before the first commit."""
    data = database.get(COMMIT_ROW)
    return (0, 0, 0) if data is None else _decode_commit(data)


def owners_of(database: Database) -> dict[int, str]:
    """The names of owners by fence; the owner of the last commit is among them."""
    data = database.get(OWNERS_ROW)
    return {} if data is None else _decode_owners(data)


def shipped_of(database: Database) -> str:
    """The URL that the last commit was shipped to; empty if it was not shipped."""
    data = database.get(SHIPPED_ROW)
    return "" if data is None else _decode_text(data)
