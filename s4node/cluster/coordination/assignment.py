"""The assignment of an app's partitions to members, from the living and former owners. Pure.

Theory of operation

The oldest living member computes the assignment and writes it over the version that it has read.
Two members may believe that they are the oldest. Both compute the same from the same entries, and
only one write succeeds, so there is no election and no harm.

There are two kinds of change. An *orphan*, a partition whose owner is dead, is assigned at once
(``assign``): nothing is processed until it has an owner. A partition whose owner lives stays there,
however uneven the load is, until that owner *hands it over* (``moves``): it finishes its events,
commits, and writes the assignment that gives the partition away. An example with four partitions,
in which B joins A:

    A owns 0 1 2 3      B joins; moves are {2: B, 3: B}
    A hands over 2      owners are A A B A, epoch 2; B restores the commit of 2 and goes on
    A is killed         assign gives 0, 1 and 3 to B, epoch 3

If B had been assigned 2 and 3 when it joined, A would have been fenced in the middle of its events:
those since its last commit would be processed again, and fast streams would lose theirs.

Stateful tasks move slowly, so an assignment prefers few moves to an even load, and a member that
may have the files of a task to one that has not.

Rules
- A fresh assignment is even: no member has two partitions more than another. Orphans go to the
  members with the fewest. If there is a choice, an orphan goes to the name that owned it, where
  files of its state may be.
- Only as many members get partitions as the app has containers; the others are spares. Members that
  own partitions come first, then those whose name owned some before, then the older ones. So a
  member that restarts does not lose its place to a spare.
- The assignment has an epoch, which grows with every change. Each partition has the epoch in which
  it last moved, which fences former owners (``offsets.task_claims``).
- A member that returns under its old name is a new member: what it had in memory is lost. The
  partitions of a name that is awaited stay with it until it returns, or is awaited no longer. A
  process that the supervisor restarts in two seconds finds its files, and nobody else fetches them.
- A partition may have a *standby*, another member that follows its state; entries have its name. It
  is in another zone than the owner, if there is such a member, and stays while both live. An orphan
  goes to its standby. Members are the standby of about as many partitions each, as far as zones and
  owners allow that, and those of one owner have several standbys: if it dies, its load is spread.
  ``moves`` prefers partitions whose standby is the new owner.
- A partition that is to move has the same next owner until it has moved, in whatever order the
  others move, because that owner fetches its state meanwhile. When a move changed the next owners
  of others, the worst of 15 partitions paused for 2.0 s.
- The same arguments always give the same assignment.
- An entry has an assignment packed: each owner once, and numbers by partition. With 1,000 members
  and 4,096 partitions that is less than 64 kB.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

import msgspec

_CHOICE = 16
"""The members with the fewest partitions among which a standby is chosen."""

Key = tuple[str, str]
"""Session and name: unique for each member, even among members of the same name."""


class Member(msgspec.Struct, frozen=True):
    """A living container that can own partitions; ``follows`` is True if it can be a standby."""

    name: str
    address: str
    session: str
    zone: str = ""
    follows: bool = False

    @property
    def key(self) -> Key:
        return self.session, self.name


class Owner(msgspec.Struct, frozen=True):
    """The owner of a partition since ``epoch``; ``member`` is empty if there is none."""

    member: str = ""
    address: str = ""
    session: str = ""
    epoch: int = 0

    @property
    def key(self) -> Key:
        return self.session, self.member


class Assignment(msgspec.Struct, frozen=True):
    """The owners of all partitions, in order. Epoch 0 is before the first assignment.

    ``standbys`` are the names of their standbys, with "" for none; it is empty without standbys.
    ``origin`` names the series of assignments in which epochs are counted: an app that was removed
    and deployed again begins another one.
    """

    epoch: int = 0
    owners: tuple[Owner, ...] = ()
    origin: str = ""
    standbys: tuple[str, ...] = ()


class _Packed(msgspec.Struct, array_like=True):
    """An assignment as an entry has it: by partition the index in ``members``, and the epoch."""

    epoch: int
    origin: str
    members: list[tuple[str, str, str]]
    owners: bytes
    epochs: bytes
    names: list[str] = []
    standbys: bytes = b""


def pack(assignment: Assignment) -> bytes:
    """The data of an entry for an assignment of at most 65,536 owners."""
    places = [(owner.member, owner.address, owner.session) for owner in assignment.owners]
    members = list(dict.fromkeys(places))
    index = {place: number for number, place in enumerate(members)}
    owners = _numbers("H", (index[place] for place in places))
    epochs = _numbers("Q", (owner.epoch for owner in assignment.owners))
    names = list(dict.fromkeys(assignment.standbys))
    numbers = {name: number for number, name in enumerate(names)}
    standbys = _numbers("H", map(numbers.__getitem__, assignment.standbys))
    packed = _Packed(assignment.epoch, assignment.origin, members, owners, epochs, names, standbys)
    return zlib.compress(msgspec.msgpack.encode(packed), 9)


def unpack(data: bytes) -> Assignment:
    """The assignment in an entry; raises ValueError if there is none."""
    try:
        packed = msgspec.msgpack.decode(zlib.decompress(data), type=_Packed)
        owners = zip(_array("H", packed.owners), _array("Q", packed.epochs), strict=True)
        found = tuple(Owner(*packed.members[index], epoch) for index, epoch in owners)
        standbys = tuple(packed.names[index] for index in _array("H", packed.standbys))
    except (zlib.error, msgspec.MsgspecError, IndexError) as error:
        raise ValueError(str(error)) from error
    return Assignment(packed.epoch, found, packed.origin, standbys)


def _numbers(kind: str, numbers: Iterable[int]) -> bytes:
    found = array(kind, numbers)
    if sys.byteorder == "big":
        found.byteswap()
    return found.tobytes()


def _array(kind: str, data: bytes) -> array[int]:
    found = array(kind)
    found.frombytes(data)
    if sys.byteorder == "big":
        found.byteswap()
    return found


def assign(
    partitions: int,
    members: Sequence[Member],
    before: Assignment | None,
    containers: int = 0,
    awaited: Collection[str] = (),
    drained: Collection[Key] = (),
) -> Assignment:
    """The next assignment; ``before`` itself if nothing changes.

    ``members`` are the living members, the oldest first. At most ``containers`` of them get
    partitions (0: all), but no member loses any. Partitions of dead members stay theirs if their
    names are ``awaited``. Members that are ``drained`` get none, unless all are. If the number of
    partitions has changed, all are orphans, and epochs continue.
    """
    if before is None:
        before = Assignment()
    old = before.owners if len(before.owners) == partitions else (Owner(),) * partitions
    kept = before.standbys if len(before.standbys) == partitions else ("",) * partitions
    alive = {member.key: member for member in members}
    load = dict.fromkeys(alive, 0)
    for owner in old:
        if owner.key in load:
            load[owner.key] += 1
    homes = [owner.key if owner.key in alive else owner.member for owner in old]
    names = {member.key: member.name for member in members}
    back = {name: key for key, name in names.items() if name in awaited}
    homes = [back.get(home, home) if isinstance(home, str) else home for home in homes]
    away = set(awaited) - back.keys() - {""}
    free = [index for index, home in enumerate(homes) if home not in away]
    open_ = {key: load[key] for key in _undrained(load, drained)}
    orphaned = [index for index in free if isinstance(homes[index], str)]
    former = {home for home in homes if isinstance(home, str)}
    former.update(kept[index] for index in orphaned if kept[index])
    chosen = _active(open_, names, former, containers)
    receivers = {names[key]: key for key in chosen}
    for index in orphaned:
        homes[index] = receivers.get(kept[index], homes[index])
    shared = balance([homes[index] for index in free], {key: names[key] for key in chosen})
    next_owners = dict(zip(free, shared, strict=True))
    epoch = before.epoch + 1
    owners: list[Owner] = []
    for index, owner in enumerate(old):
        next_owner = next_owners.get(index)
        if index not in next_owners:
            owners.append(owner)
        elif next_owner is None:
            nobody_had_it = owner.epoch and not owner.session
            owners.append(owner if nobody_had_it else Owner(epoch=epoch))
        elif next_owner == owner.key:
            owners.append(owner)
        else:
            member = alive[next_owner]
            owners.append(Owner(member.name, member.address, member.session, epoch))
    able = [alive[key] for key in open_ if alive[key].follows]
    standbys = _standbys(owners, able, kept, away, {m.name: m.zone for m in members})
    if tuple(owners) == before.owners and standbys == before.standbys:
        return before
    return Assignment(epoch, tuple(owners), before.origin, standbys)


def _standbys(
    owners: Sequence[Owner],
    able: Sequence[Member],
    before: Sequence[str],
    awaited: Collection[str],
    zones: Mapping[str, str],
) -> tuple[str, ...]:
    """The standby of each partition; empty if no member is ``able`` to follow.

    ``before`` are the former standbys. They stay if they are ``awaited``, too.
    """
    if not able:
        return ()
    zone_of = {member.name: member.zone for member in able}
    places = set(zone_of.values())

    def fits(name: str, owner: str) -> bool:
        if name == owner or name not in zone_of:
            return name != owner and name in awaited
        zone = zones.get(owner, "")
        return not zone or zone_of[name] not in ("", zone) or not places - {"", zone}

    found = [
        name if fits(name, owner.member) else "" for name, owner in zip(before, owners, strict=True)
    ]
    load = Counter(name for name in found if name)
    pairs = Counter(zip((owner.member for owner in owners), found, strict=True))

    def choose(index: int, name: str) -> None:
        owner = owners[index].member
        load[found[index]] -= 1
        pairs[owner, found[index]] -= 1
        found[index] = name
        load[name] += 1
        pairs[owner, name] += 1

    queue = sorted((load[name], name) for name in zone_of)
    for index, owner in enumerate(owners):
        if found[index] or not owner.member:
            continue
        fitting = (each for each in queue if fits(each[1], owner.member))
        few = list(islice(fitting, _CHOICE))
        if few:
            least = min(few, key=lambda each: (each[0], pairs[owner.member, each[1]]))
            queue.remove(least)
            insort(queue, (least[0] + 1, least[1]))
            choose(index, least[1])
    while True:
        richest = max(zone_of, key=lambda name: load[name])
        poorest = min(zone_of, key=lambda name: load[name])
        possible_at = [
            index
            for index, name in enumerate(found)
            if name == richest and fits(poorest, owners[index].member)
        ]
        if load[richest] - load[poorest] < 2 or not possible_at:
            return tuple(found)
        choose(max(possible_at, key=lambda index: pairs[owners[index].member, richest]), poorest)


def _undrained(members: Iterable[Key], drained: Collection[Key]) -> list[Key]:
    found = list(members)
    return [key for key in found if key not in drained] or found


def _active(
    load: Mapping[Key, int], names: Mapping[Key, str], former: set[str], containers: int
) -> list[Key]:
    """The members that get partitions, the older ones first."""
    if not containers:
        return list(load)
    ranked = sorted(load, key=lambda key: (not load[key], names[key] not in former))
    owners = sum(1 for count in load.values() if count)
    kept = set(ranked[: max(containers, owners)])
    return [key for key in load if key in kept]


def balance(homes: Sequence[Key | str], members: Mapping[Key, str]) -> list[Key | None]:
    """The new owner of each partition: as even as possible, with as few moves as that allows.

    ``homes`` has for each partition the key of its living owner, which keeps it, or the name of its
    former owner, or "". ``members`` are the possible owners by key, with their names. If there are
    none, an orphan's owner is None.
    """
    next_owners = [None if isinstance(home, str) else home for home in homes]
    if not members:
        return next_owners
    load = Counter(next_owner for next_owner in next_owners if next_owner is not None)
    orphans = [index for index, next_owner in enumerate(next_owners) if next_owner is None]
    wanted = Counter(home for home in homes if isinstance(home, str))
    share = dict.fromkeys(members, 0)
    for _ in orphans:
        poorest = min(  # of members with the same load, prefer one that owned an orphan
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
            next_owners[index] = key
    for index in orphans:
        if next_owners[index] is None:
            next_owner = min((key for key in members if share[key]), key=lambda key: load[key])
            share[next_owner] -= 1
            load[next_owner] += 1
            next_owners[index] = next_owner
    return next_owners


def moves(
    assignment: Assignment,
    members: Sequence[Member],
    containers: int = 0,
    drained: Collection[Key] = (),
) -> dict[int, Member]:
    """The partitions that living owners should hand over, with the new owners.

    They are as few as possible for an even share among those that get partitions. The arguments are
    as for ``assign``, which has to come first: with orphans the result is empty.
    """
    alive = {member.key: member for member in members}
    held: dict[Key, list[int]] = {key: [] for key in alive}
    for partition, owner in enumerate(assignment.owners):
        if owner.key not in held:
            return {}
        held[owner.key].append(partition)
    ranked = sorted(_undrained(alive, drained), key=lambda key: not held[key])
    sharing = set(ranked[: containers or len(ranked)])
    change = _levelled({key: len(each) for key, each in held.items()}, sharing)
    gets = {key: max(change[key], 0) for key in alive}
    receivers = {alive[key].name: key for key in alive if gets[key]}
    found: dict[int, Member] = {}
    leaving: list[int] = []
    for giver, partitions in held.items():
        gives = max(-change[giver], 0)
        for partition in reversed(partitions if assignment.standbys else ()):
            next_owner = receivers.get(assignment.standbys[partition])
            if gives and next_owner is not None and gets[next_owner]:
                found[partition] = alive[next_owner]
                gets[next_owner] -= 1
                gives -= 1
        others = [each for each in partitions if each not in found]
        leaving += others[len(others) - gives :]
    next_owners = (alive[key] for key in alive for _ in range(gets[key]))
    return found | dict(zip(sorted(leaving), next_owners, strict=True))


def _levelled(load: dict[Key, int], sharing: Collection[Key]) -> dict[Key, int]:
    """How many partitions each member should get, or give if it is negative, so that those that
    share them have loads that differ by one at most."""
    before = dict(load)
    shares = [key for key in load if key in sharing]
    for key in load.keys() - sharing:
        for _ in range(load.pop(key)):
            load[min(shares, key=load.__getitem__)] += 1
    while True:
        richest, poorest = max(shares, key=load.__getitem__), min(shares, key=load.__getitem__)
        if load[richest] - load[poorest] < 2:
            return {key: load.get(key, 0) - before[key] for key in before}
        load[richest] -= 1
        load[poorest] += 1


def handed_over(assignment: Assignment, next_owners: Mapping[int, Member]) -> Assignment:
    """The assignment after these partitions were handed over. A new owner that was the standby
    changes places with the former one, which has the state."""
    epoch = assignment.epoch + 1
    owners, standbys = list(assignment.owners), list(assignment.standbys)
    for partition, next_owner in next_owners.items():
        if standbys and standbys[partition] == next_owner.name:
            standbys[partition] = owners[partition].member
        owners[partition] = Owner(next_owner.name, next_owner.address, next_owner.session, epoch)
    return Assignment(epoch, tuple(owners), assignment.origin, tuple(standbys))


def has_living_owner(assignment: Assignment | None, members: Sequence[Member]) -> bool:
    """Return True if one of ``members`` owns a partition; if not, they may start from scratch."""
    alive = {member.key for member in members}
    return assignment is not None and any(owner.key in alive for owner in assignment.owners)
