"""Who owns which partition of an app: decided here, from who lives and who owned before.

Rules
- A partition stays with its living owner, whatever the balance, until that one hands it over. Which
  ones it should, so that all have as many, is computed here as well.
- At most so many members get partitions as the app has containers; the others are spares. It is
  those who have some, then those whose former namesakes had some, then the older ones.
- Orphans fill the members up from the one with the fewest; so where nothing stays, no member has
  two more than another. Where there is a choice, an orphan goes back to the name that it was with,
  where files of its state may be: so as few as possible move, whatever the number of containers
  was before.
- The whole has an epoch, which grows with every change. A partition has the epoch in which it last
  moved: it is what fences a former owner.
- A member that comes back under its old name is another one: what it had in memory is gone.
- The same arguments give the same answer everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

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
    """The owners of all partitions, in order. Epoch 0 is before the first assignment.

    ``origin`` names the line of assignments in which the epochs count: an app that was removed and
    deployed anew begins another one.
    """

    epoch: int = 0
    owners: tuple[Owner, ...] = ()
    origin: str = ""


def assign(
    partitions: int, members: Sequence[Member], before: Assignment | None, containers: int = 0
) -> Assignment:
    """The next assignment; ``before`` itself where nothing changes.

    ``members`` are those alive, the oldest first. At most ``containers`` of them get partitions, 0
    for all, but that nobody loses any. With another number of partitions than before, all of them
    are orphans, and epochs go on.
    """
    if before is None:
        before = Assignment()
    old = before.owners if len(before.owners) == partitions else (Owner(),) * partitions
    alive = {member.key: member for member in members}
    load = dict.fromkeys(alive, 0)
    for owner in old:
        if owner.key in load:
            load[owner.key] += 1
    homes = [owner.key if owner.key in alive else owner.member for owner in old]
    names = {member.key: member.name for member in members}
    chosen = _active(load, names, {home for home in homes if isinstance(home, str)}, containers)
    heirs = balance(homes, {key: names[key] for key in chosen})
    epoch = before.epoch + 1
    owners: list[Owner] = []
    for owner, heir in zip(old, heirs, strict=True):
        if heir is None:
            nobody_had_it = owner.epoch and not owner.session
            owners.append(owner if nobody_had_it else Owner(epoch=epoch))
        elif heir == owner.key:
            owners.append(owner)
        else:
            member = alive[heir]
            owners.append(Owner(member.name, member.address, member.session, epoch))
    if tuple(owners) == before.owners:
        return before
    return Assignment(epoch, tuple(owners), before.origin)


def _active(
    load: Mapping[Key, int], names: Mapping[Key, str], former: set[str], containers: int
) -> list[Key]:
    """Those who get partitions, the older ones first."""
    if not containers:
        return list(load)
    ranked = sorted(load, key=lambda key: (not load[key], names[key] not in former))
    owners = sum(1 for count in load.values() if count)
    kept = set(ranked[: max(containers, owners)])
    return [key for key in load if key in kept]


def balance(homes: Sequence[Key | str], members: Mapping[Key, str]) -> list[Key | None]:
    """Who is to have each partition, as even as can be and with as few moves as that allows.

    ``homes`` has for each the key of a living owner, with whom it stays, or the name of a former
    one, or "". ``members`` are those who can have some, with their names. None where there is
    nobody.
    """
    heirs = [None if isinstance(home, str) else home for home in homes]
    if not members:
        return heirs
    load = Counter(heir for heir in heirs if heir is not None)
    orphans = [index for index, heir in enumerate(heirs) if heir is None]
    wanted = Counter(home for home in homes if isinstance(home, str))
    share = dict.fromkeys(members, 0)
    for _ in orphans:
        poorest = min(  # among as poor ones, who takes back something
            members, key=lambda key: (load[key] + share[key], wanted[members[key]] <= share[key])
        )
        share[poorest] += 1
    named = {name: key for key, name in members.items()}
    for index in orphans:
        home = homes[index]
        key = named.get(home) if isinstance(home, str) else None
        if key is not None and share[key]:
            share[key] -= 1
            load[key] += 1
            heirs[index] = key
    for index in orphans:
        if heirs[index] is None:
            heir = min((key for key in members if share[key]), key=lambda key: load[key])
            share[heir] -= 1
            load[heir] += 1
            heirs[index] = heir
    return heirs


def moves(
    assignment: Assignment, members: Sequence[Member], containers: int = 0
) -> dict[int, Member]:
    """Which partitions their living owners should hand over, and to whom: as few as can be so that
    those who get partitions share evenly, and others have none.

    ``members`` and ``containers`` are as for ``assign``, which comes first: there are no orphans.
    """
    alive = {member.key: member for member in members}
    held: dict[Key, list[int]] = {key: [] for key in alive}
    for partition, owner in enumerate(assignment.owners):
        if owner.key not in held:
            return {}
        held[owner.key].append(partition)
    ranked = sorted(alive, key=lambda key: not held[key])
    chosen = ranked[: containers or len(ranked)]
    found: dict[int, Member] = {}

    def move(giver: Key) -> None:
        heir = min((key for key in chosen if key != giver), key=lambda key: len(held[key]))
        found[held[giver][-1]] = alive[heir]
        held[heir].insert(0, held[giver].pop())  # what has just come does not go on

    for key in ranked[len(chosen) :]:
        while held[key]:
            move(key)
    while True:
        richest = max(chosen, key=lambda key: len(held[key]))
        if len(held[richest]) - min(len(held[key]) for key in chosen) < 2:
            return found
        move(richest)


def handed_over(assignment: Assignment, heirs: Mapping[int, Member]) -> Assignment:
    """The assignment in which these partitions belong to others."""
    epoch = assignment.epoch + 1
    owners = list(assignment.owners)
    for partition, heir in heirs.items():
        owners[partition] = Owner(heir.name, heir.address, heir.session, epoch)
    return Assignment(epoch, tuple(owners), assignment.origin)


def has_living_owner(assignment: Assignment | None, members: Sequence[Member]) -> bool:
    """Whether any partition is owned by one of ``members``; if not, they can start from scratch."""
    alive = {member.key for member in members}
    return assignment is not None and any(owner.key in alive for owner in assignment.owners)
