"""A follower's position in the log of a task, and the entries that lead on from there. Pure.

Rules
- Objects are named by their numbers alone (*create*), so the first writer of a number owns it, and
  what is there stays true until it is removed. A follower gets the next numbers until one is
  missing: it need not list the log. A new owner knows the number of its claim, which is the last.
- An entry leads on if it is the next one: a commit has the next commit number, or is another try
  of the last one, and its owner is that of the last claim.
- An owner may go on from other state than that of the last commit: after a savepoint is restored,
  or without a damaged commit. It ships a checkpoint before its first commit, which says so.
- Entries are removed once two later checkpoints are in the log, and then a claim, but nothing else,
  may be put at a removed number. So a claim that is followed by two checkpoints which replace it
  may hide something else, unless the follower was at the end of the log in between.
- If the entries do not lead on, the follower begins anew. A new owner that is not led to its own
  claim restores as if there were no follower.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from s4node.state.remote_log import (
    AT_ONCE,
    Checkpoint,
    Claim,
    Commit,
    CommitId,
    Get,
    Owner,
    Steps,
    Tail,
    decoded,
    entry_name,
    is_removable,
)


class Position(NamedTuple):
    """The last entry that was followed, the last commit, and the owner of the last claim."""

    number: int = 0
    commit: CommitId = (0, 0, 0)
    owner: Owner | None = None

    @classmethod
    def after(cls, tail: Tail) -> Position:
        """The position at the end of a log that has no damage."""
        if not tail.entries:
            return cls()
        number, entry = tail.entries[-1]
        return cls(number, tail.last, entry.owner)

    def leads_to(self, commit: Commit) -> bool:
        fence, number, tries = commit.commit
        if commit.owner != self.owner or fence != commit.owner.fence:
            return False
        again = fence == self.commit[0] and number == self.commit[1] and tries > self.commit[2]
        return again or number == self.commit[1] + 1

    def agrees_with(self, checkpoint: Checkpoint) -> bool:
        """Return True unless the owner has begun from other state."""
        return checkpoint.owner == self.owner and checkpoint.goes_on_from(self.commit)


class Followed(NamedTuple):
    """The part followed to the end of the log: the changed rows, the number of commits, the newest
    checkpoint, and by the name of each entry whether a sweep may remove it once."""

    position: Position
    rows: dict[bytes, bytes | None]
    commits: int
    checkpoint: Checkpoint | None
    removable: dict[str, bool]


def followed(
    position: Position, place: str, last: Mapping[int, bytes] = MappingProxyType({})
) -> Steps[Followed | None]:
    """Follow the log at ``place`` to its end; None if its entries do not lead on. If the ``last``
    entry is known, with its number, the entries before it are got at once."""
    rows: dict[bytes, bytes | None] = {}
    removable: dict[str, bool] = {}
    commits, newest = 0, None
    claim = 0  # the number of the first one
    begin, end = position.number, max(last, default=0)
    while not end or position.number < end:
        first = position.number + 1
        most = end - position.number if end else max(position.number - begin, 1)
        names = {n: entry_name(n, None) for n in range(first, first + min(most, AT_ONCE))}
        unknown = [n for n in names if n not in last]
        answers = yield Get([f"log/{names[number]}" for number in unknown])
        found = {**last, **dict(zip(unknown, answers, strict=True))}
        for number, name in names.items():
            data = found[number]
            if data is None:
                return Followed(position, rows, commits, newest, removable)
            entry = decoded(data, f"{place}/log/{name}")
            match entry:
                case Claim(owner):
                    position = position._replace(number=number, owner=owner)
                    claim = claim or number
                case Commit() if position.leads_to(entry):
                    position = position._replace(number=number, commit=entry.commit)
                    rows.update(entry.rows)
                    commits += 1
                case Checkpoint() if position.agrees_with(entry):
                    if newest is not None and 0 < claim <= newest.base:
                        return None
                    position = position._replace(number=number)
                    newest = entry
                case _:
                    return None
            removable[name] = is_removable(entry)
    return Followed(position, rows, commits, newest, removable)
