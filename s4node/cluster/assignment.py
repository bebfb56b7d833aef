"""Who owns which partition of an app: decided here, from who lives and who owned before.

Rules
- A partition stays with its living owner, whatever the balance: its state is there.
- An orphan goes to the member with the fewest partitions, the older one where several have as few;
  so where nothing stays, no member has two more than another. Members beyond that are spares.
- The whole has an epoch, which grows with every change. A partition has the epoch in which it last
  moved: it is what fences a former owner.
- A member that comes back under its old name is another one: what it had in memory is gone.
- The same arguments give the same answer, whoever asks.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

Key = tuple[str, str]
"""Session and name: they tell a member from all others, its former namesakes included."""


class Member(msgspec.Struct, frozen=True):
    """A living container that can own partitions."""

    name: str
    address: str
    session: str

    @property
    def key(self) -> Key:
        """What tells it from all others."""
        return self.session, self.name


class Owner(msgspec.Struct, frozen=True):
    """Who has a partition, and since which epoch; ``member`` is empty where nobody does."""

    member: str = ""
    address: str = ""
    session: str = ""
    epoch: int = 0

    @property
    def key(self) -> Key:
        """The key of the member that it is."""
        return self.session, self.member


class Assignment(msgspec.Struct, frozen=True):
    """The owners of all partitions, in order. Epoch 0 is before the first assignment."""

    epoch: int = 0
    owners: tuple[Owner, ...] = ()


def assign(partitions: int, members: Sequence[Member], before: Assignment | None) -> Assignment:
    """The next assignment; ``before`` itself where nothing changes.

    ``members`` are those alive, the oldest first. With another number of partitions than before,
    all of them are orphans, and epochs go on.
    """
    if before is None:
        before = Assignment()
    old = before.owners if len(before.owners) == partitions else (None,) * partitions
    load = {member.key: 0 for member in members}
    for owner in old:
        if owner is not None and owner.key in load:
            load[owner.key] += 1
    epoch = before.epoch + 1
    owners: list[Owner] = []
    for owner in old:
        if owner is not None and owner.key in load:
            owners.append(owner)
        elif members:
            heir = min(members, key=lambda member: load[member.key])
            load[heir.key] += 1
            owners.append(Owner(heir.name, heir.address, heir.session, epoch))
        elif owner is not None and not owner.session:
            owners.append(owner)
        else:
            owners.append(Owner(epoch=epoch))
    if tuple(owners) == before.owners:
        return before
    return Assignment(epoch, tuple(owners))


def has_living_owner(assignment: Assignment | None, members: Sequence[Member]) -> bool:
    """Whether any partition is owned by one of ``members``; if not, they can start from scratch."""
    alive = {member.key for member in members}
    return assignment is not None and any(owner.key in alive for owner in assignment.owners)
