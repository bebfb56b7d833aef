"""The log of a task's shipped state: numbered objects, and who may append to it. Pure.

Rules
- Entries are numbered from 1 without a hole. A *commit* has the rows that it changed. A
  *checkpoint* has the files of the state after the entry ``base``, and a *claim* begins the entries
  of a new owner. The state is that of the newest checkpoint and of the commits after its base.
- From time to time a commit has the rows of its owner's commits before it as well, if they are few.
  A reader leaves those out, so it reads few objects however many commits there are.
- An owner is a fence and a name. It announces its claim, with a fence above all others, before it
  looks for the end of the log. An owner that sees a higher fence announced appends no more.
- *create*: the name of an object is its number, and the store refuses a second one. So the first
  writer of a number owns it. A former owner's next number is that of a claim, so it can append
  nothing, whatever it believes. It also looks at what is announced from time to time, so that a
  claim succeeds while an owner commits as fast as it can.
- *look*: the name of an object has its owner as well. An object counts if its writer looks at what
  is announced after it has put the object, and sees no higher fence. A claim names the owner of the
  entry before it. So the entries of a former owner at numbers from there on are not in the log.
- Claims, in the log and announced, are never removed. Commits and checkpoints are removed once two
  later checkpoints are in the log. So a number from which an owner may go on is never free again.
- A claimer that finds entries after its own has put its claim at a number that was removed, or is
  overtaken. It claims again at the end.
- With *create* a claimer first tries the end of the log that it has seen before it announced its
  claim: if that is not the end any more, the number is taken, or was removed.
- If it is not known whether an object was put, its owner puts the same object again before any
  other. Its own object at the number counts as success.
- The functions are generators: they yield requests, and get the answers. A request that has no
  answer raises StateError in them.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from bisect import bisect_right
from collections.abc import Collection, Generator, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from s4node.errors import StateError, TaskFenced
from s4node.events.schema import UNREADABLE

CREATE, LOOK = "create", "look"
AT_ONCE = 32
"""The objects that are fetched at a time."""

TRIES = 10
"""How often a claimer tries to be faster than the owner."""

LOOK_EVERY = 8
"""The appended objects after which an owner looks at what is announced, if it need not always. Each
failed try of a claimer means one more object, so the owner has looked before the last try."""

_REPEATS = 3  # of a request without an answer
_EVERY = 32  # commits, of which the last has the rows of all
_MERGED_BYTES = 256 << 10  # of commits whose rows come in another object, too

CommitId: TypeAlias = tuple[int, int, int]
"""A commit: the fence of its writer, its number, and the writer's count of tries."""

Row: TypeAlias = tuple[bytes, bytes | None]
R = TypeVar("R")

_NAME = re.compile(r"([0-9]{16})(?:-([0-9]{16})([0-9a-f]{16}))?")
_ANNOUNCED = re.compile(r"([0-9]{16})-([0-9]{16})([0-9a-f]{16})([0-9a-f]{16})")
_STORED = re.compile(r"([0-9]{16})-[0-9a-f]{1,64}")
_FILE = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")
_KIND, _FORMAT = b"S4l", b"1"


class Owner(NamedTuple):
    """An owner of a task; owners compare by fence."""

    fence: int
    name: str


# -- entries --------------------------------------------------------------------------------------


class StoredFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a checkpoint: its object, its size, and the hash of its bytes."""

    object: str
    size: int
    hash: str


class Claim(msgspec.Struct, frozen=True, array_like=True, tag="claim"):
    """The first entry of an owner; ``before`` is the owner of the entry before, for *look*."""

    owner: Owner
    before: Owner | None


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """The rows that a commit has changed. If ``since`` is not 0, it has those of all entries after
    that number as well, which are commits of its owner: ``before``, and failed tries of these."""

    owner: Owner
    commit: CommitId
    rows: list[Row]
    since: int = 0
    before: list[CommitId] = []


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, tag="checkpoint"):
    """The files of the state after the entry ``base``, which is the state after ``commit``.
    ``owners`` are the names of owners before, by fence."""

    owner: Owner
    base: int
    commit: CommitId
    files: dict[str, StoredFile]
    owners: dict[int, str]
    written_ms: int

    def goes_on_from(self, last: CommitId) -> bool:
        """Return False if its owner has begun from other state than that of the ``last`` commit
        before it in the log."""
        return last[0] == self.owner.fence or self.commit == last


Entry: TypeAlias = Claim | Commit | Checkpoint

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode


def encoded(entry: Entry) -> bytes:
    body = _encode(entry)
    return _KIND + _FORMAT + zlib.crc32(body).to_bytes(4, "big") + body


def is_commit(data: bytes) -> bool:
    """Return True if an object is the entry of a commit, without a look at its rows."""
    return data[:3] == _KIND and data[9:16] == b"\xa6commit"


def decoded(data: bytes | None, place: str) -> Entry | None:
    """The entry in the object at ``place``; None if it is missing or damaged.

    Raises StateError if another version of s4node wrote it, or if it names a foreign file, which
    may lead elsewhere.
    """
    if data is None or data[:3] != _KIND:
        return None
    if data[3:4] != _FORMAT:
        raise StateError(
            f"{place} has format {data[3:4].decode('latin-1')}, and this s4node reads "
            f"{_FORMAT.decode()}; use the s4node that wrote it"
        )
    if zlib.crc32(data[8:]).to_bytes(4, "big") != data[4:8]:
        return None
    try:
        entry: Entry = _decode(data[8:])
    except UNREADABLE:
        return None
    if isinstance(entry, Checkpoint) and (name := misnamed(entry)) is not None:
        raise StateError(
            f"{place} names a file {name!r}, which s4node does not write and which may lead "
            f"elsewhere; check who may write to s4.state.url, and put back that object from a "
            f"backup"
        )
    return entry


def misnamed(checkpoint: Checkpoint) -> str | None:
    """The first foreign name among a checkpoint's files and objects."""
    for file, stored in checkpoint.files.items():
        if not _FILE.fullmatch(file):
            return file
        if not _STORED.fullmatch(stored.object):
            return stored.object
    return None


# -- names ----------------------------------------------------------------------------------------


def entry_name(number: int, owner: Owner | None) -> str:
    """The name of an entry's object; ``owner`` is None for *create*."""
    return f"{number:016d}" if owner is None else f"{number:016d}-{owner.fence:016d}{owner.name}"


def number_of(name: str) -> int:
    """The number of an entry; 0 for a foreign name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else 0


def file_name(fence: int, digest: str) -> str:
    return f"{fence:016d}-{digest}"


class Announced(NamedTuple):
    """An announced claim: the owner, and the coordination that assigned the task to it in
    ``epoch``."""

    owner: Owner
    epoch: int
    origin: str

    @property
    def name(self) -> str:
        return f"{self.owner.fence:016d}-{self.epoch:016d}{self.origin}{self.owner.name}"


def announced(names: Iterable[str]) -> list[Announced]:
    """The announced claims; foreign names are skipped."""
    found = (match for name in names if (match := _ANNOUNCED.fullmatch(name)))
    return [Announced(Owner(int(m[1]), m[4]), int(m[2]), m[3]) for m in found]


class _Index:
    """The numbers of a log's objects by owner, from the last; and the end of the log."""

    def __init__(self, names: Iterable[str]) -> None:
        self._numbers: dict[Owner | None, list[int]] = {}
        for name in names:
            if (match := _NAME.fullmatch(name)) is not None:
                owner = Owner(int(match[2]), match[3]) if match[2] else None
                self._numbers.setdefault(owner, []).append(int(match[1]))
        for numbers in self._numbers.values():
            numbers.sort()
        self.owner = max(self._numbers, key=lambda owner: owner or (), default=None)
        self.end = self._numbers[self.owner][-1] if self._numbers else 0

    def last(self, owner: Owner | None, number: int) -> int:
        """The last of the numbers up to ``number``; 0 if there is none."""
        numbers = self._numbers.get(owner, [])
        at = bisect_right(numbers, number)
        return numbers[at - 1] if at else 0

    def down(self, owner: Owner | None, number: int, base: int, step: int) -> list[int]:
        """The next numbers to read, each so many below the one before, from ``number`` down to
        after ``base``."""
        steps = range(number, base, -step)
        return [n for n in steps[:AT_ONCE] if self.last(owner, n) == n]


# -- requests -------------------------------------------------------------------------------------


class Put(NamedTuple):
    """Put an object; the answer is False if it is to be ``new``, and there is one already."""

    place: str
    data: bytes
    new: bool = False


class Names(NamedTuple):
    """List a folder; the answer has the names of its objects."""

    folder: str


class Both(NamedTuple):
    """List what is announced and the log, in one request if the store can; the answer has the names
    of both."""


class Get(NamedTuple):
    """Get objects; the answer has their contents, and None for those that are missing."""

    places: list[str]


class Remove(NamedTuple):
    places: list[str]


Request: TypeAlias = Put | Names | Both | Get | Remove
Steps: TypeAlias = Generator[Request, Any, R]


# -- appending ------------------------------------------------------------------------------------


class _Earlier:
    """The last commits of an owner: each ``every``-th commit has their rows as well."""

    def __init__(self) -> None:
        self.every = _EVERY
        self.clear()

    def clear(self) -> None:
        """Begin with the next commit."""
        self._since = self._bytes = 0
        self._commits: list[CommitId] = []
        self._rows: dict[bytes, bytes | None] = {}

    def merged(self, commit: Commit) -> Commit:
        if len(self._commits) + 1 < self.every:
            return commit
        rows = self._rows | dict(commit.rows)
        return Commit(commit.owner, commit.commit, list(rows.items()), self._since, self._commits)

    def add(self, commit: Commit, number: int, size: int) -> None:
        self._bytes += size
        if commit.since or self._bytes > _MERGED_BYTES:
            self.clear()
            return
        self._since = self._since or number - 1
        self._commits.append(commit.commit)
        self._rows.update(commit.rows)


class Appender:
    """Appends to the log at ``place``, in one of the two ways, as the owner that it claims to be.

    ``number`` is that of the last entry that is known to be there. ``begin`` are the names of what
    was announced, and of the log up to the claim; ``own`` is the claim's object by its number.
    """

    def __init__(self, mode: str, owner: Owner, place: str) -> None:
        self.owner = owner
        self.number = 0
        self.begin: tuple[Collection[str], Collection[str]] = (), ()
        self.own: dict[int, bytes] = {}
        self.size = 0  # of the last entry, in bytes
        self._mode = mode
        self._place = place
        self.earlier = _Earlier()
        self._pending: bytes | None = None  # the next entry, which may be there or not
        self._since_look = 0

    def claim(
        self, origin: str, epoch: int, known: tuple[Collection[str], Collection[str]]
    ) -> Steps[None]:
        """Become the owner; ``known`` is what was announced, and the log, when the fence was
        chosen. Raises TaskFenced if another has claimed the task meanwhile, or in a later epoch of
        ``origin``."""
        source = hashlib.blake2b(origin.encode(), digest_size=8).hexdigest()
        mine = Announced(self.owner, epoch, source)
        claims, entries = known
        self._check_announced(mine, claims)  # as what is announced stays
        yield from _repeated(Put(f"claims/{mine.name}", b""))
        for tried in range(TRIES):
            if tried or self._mode == LOOK:
                claims, entries = yield Both()
                self._check_announced(mine, claims)
            index = _Index(entries)
            number = index.end + 1
            data = encoded(Claim(self.owner, index.owner))
            if not (yield from self._put(number, data)):
                continue
            if self._mode == LOOK:
                entries = [*entries, self.name_of(number, self.owner)]
            else:
                claims, entries = yield Both()
                if _Index(entries).end != number:
                    continue
                self._check_announced(mine, claims)  # for one that was announced after we looked
            self.number = number
            self.begin = claims, entries
            self.own = {number: data}
            return
        raise StateError(
            f"{self._place} cannot be claimed: in {TRIES} tries its owner was always faster; start "
            f"the container again"
        )

    def _check_announced(self, mine: Announced, names: Iterable[str]) -> None:
        """Raise TaskFenced unless this claim is above all others."""
        for other in announced(names):
            if (other.origin, other.epoch > mine.epoch) == (mine.origin, True):
                raise TaskFenced(
                    f"{self._place} now belongs to epoch {other.epoch}, and this container has "
                    f"epoch {mine.epoch}; it stops, because two owners would count twice"
                )
            if other.owner != self.owner and other.owner.fence >= self.owner.fence:
                raise TaskFenced(
                    f"another container is taking over {self._place} right now; this container "
                    f"stops"
                )

    def add(self, entry: Commit | Checkpoint) -> Steps[int]:
        """Append an entry, and return its number; it counts from then on.

        After a StateError the entry may be there or not: append a later one, with all that it has.
        Raises TaskFenced if the task has another owner.
        """
        if self._pending is not None:
            yield from self._settle()
        if isinstance(entry, Commit):
            entry = self.earlier.merged(entry)
        else:
            self.earlier.clear()  # or a reader would leave the checkpoint out
        self._pending = encoded(entry)
        self.size = len(self._pending)
        yield from self._settle()
        if isinstance(entry, Commit):
            self.earlier.add(entry, self.number, self.size)
        return self.number

    def name_of(self, number: int, owner: Owner) -> str:
        return entry_name(number, owner if self._mode == LOOK else None)

    def _settle(self) -> Steps[None]:
        """Put the pending entry, until it is certain to be there."""
        assert self._pending is not None
        if self._mode == CREATE and self._since_look >= LOOK_EVERY:
            yield from self._look()
            self._since_look = 0
        if not (yield from self._put(self.number + 1, self._pending)):
            raise self._fenced()
        self.number += 1
        self._since_look += 1
        self._pending = None

    def _put(self, number: int, data: bytes) -> Steps[bool]:
        """Put an entry; return False if the number has another owner."""
        if self._mode == LOOK:
            yield from _repeated(Put(f"log/{self.name_of(number, self.owner)}", data))
            yield from self._look()
            return True
        place = f"log/{self.name_of(number, self.owner)}"
        if (yield from _repeated(Put(place, data, new=True))):
            return True
        (there,) = yield Get([place])
        return bool(there == data)

    def _look(self) -> Steps[None]:
        """Raise TaskFenced if a higher fence is announced."""
        fences = [each.owner.fence for each in announced((yield Names("claims")))]
        if max(fences, default=0) > self.owner.fence:
            raise self._fenced()

    def _fenced(self) -> TaskFenced:
        return TaskFenced(
            f"another container has taken over {self._place}; this container stops, and the other "
            f"one processes again what came after the last commit"
        )


def _repeated(request: Put) -> Steps[Any]:
    for _ in range(_REPEATS - 1):
        try:
            return (yield request)
        except StateError:
            continue
    return (yield request)


# -- reading --------------------------------------------------------------------------------------


class Tail(NamedTuple):
    """The newest checkpoint with its number, and the entries after its base in order.

    ``damaged`` is the highest number of an entry that is missing or damaged; 0 if there is none.
    What comes after it is left out. ``whole`` is False if the state is not known: no checkpoint
    is left, and the log does not begin with its first entry. ``gone`` is True if a listed object
    was not there any more.
    """

    number: int
    checkpoint: Checkpoint | None
    entries: list[tuple[int, Entry]]
    damaged: int
    whole: bool
    gone: bool

    @property
    def commits(self) -> list[Commit]:
        return [entry for _, entry in self.entries if isinstance(entry, Commit)]

    @property
    def base(self) -> CommitId:
        return (0, 0, 0) if self.checkpoint is None else self.checkpoint.commit

    @property
    def last(self) -> CommitId:
        commits = self.commits
        return commits[-1].commit if commits else self.base

    def after(self, known: CommitId) -> list[Commit] | None:
        """The commits after ``known``; None if the checkpoint or the commits do not have it."""
        commits = self.commits
        if known == self.base:
            return commits
        for at, each in enumerate(commits):
            if known in each.before:
                return commits[at:]
            if known == each.commit:
                return commits[at + 1 :]
        return None

    @property
    def empty(self) -> bool:
        """True if nothing has ever been shipped."""
        return self.whole and not (self.checkpoint or self.commits or self.damaged)


def read(
    names: Collection[str],
    place: str,
    skipped: Collection[int] = (),
    known: Mapping[int, bytes] = MappingProxyType({}),
) -> Steps[Tail]:
    """Read the log with these objects, from its end back to the base of the newest checkpoint.

    Those at ``known`` numbers are not got. Checkpoints with ``skipped`` numbers are left out. So is
    what comes after one from which an owner has begun, if that was other state than that of the
    log.
    """
    index = _Index(names)
    number, owner = index.end, index.owner  # the next entry to read
    checkpoint: Checkpoint | None = None
    entries: list[tuple[int, Entry]] = []
    at = damaged = base = 0
    hole = gone = False
    ahead: dict[int, bytes | None] = {**known}  # what was read, by number
    step = 1
    while (n := index.last(owner, number)) > base:
        if n not in ahead:
            numbers = index.down(owner, n, base, step)
            answers = yield Get([f"log/{entry_name(each, owner)}" for each in numbers])
            ahead = dict(zip(numbers, answers, strict=True))
        data = ahead[n]
        entry = decoded(data, f"{place}/log/{entry_name(n, owner)}")
        gone = gone or data is None
        if n < number or data is None:
            hole = True
        if n < number or entry is None:
            damaged = damaged or max(n, number)
            entries.clear()  # they rely on it
        number, step = n - 1, 1
        if entry is not None:
            entries.append((n, entry))
        if isinstance(entry, Checkpoint) and checkpoint is None and n not in skipped:
            at, checkpoint, base = n, entry, entry.base
        if isinstance(entry, Claim) and entry.before != owner and owner is not None:
            owner = entry.before
            ahead.clear()
        if isinstance(entry, Commit) and 0 < entry.since < n:
            number, step = entry.since, n - entry.since  # others may be as far apart
    if number > base:
        hole, damaged = True, damaged or number
        entries.clear()
    entries.reverse()
    last = checkpoint.commit if checkpoint is not None else (0, 0, 0)
    for count, (n, entry) in enumerate(entries):
        if isinstance(entry, Commit):
            last = entry.commit
        elif isinstance(entry, Checkpoint) and n in skipped and not entry.goes_on_from(last):
            hole, damaged = True, damaged or n
            del entries[count:]  # they rely on it
            break
    return Tail(at, checkpoint, entries, damaged, checkpoint is not None or not hole, gone)


# -- removing -------------------------------------------------------------------------------------


def is_removable(entry: Entry | None) -> bool:
    """Return True if an entry may be removed once checkpoints replace it; a claim never is."""
    return isinstance(entry, (Commit, Checkpoint))


def sweep(base: int, removable: dict[str, bool], place: str) -> Steps[None]:
    """Remove what checkpoints replace: commits and checkpoints up to the entry ``base``.

    A later owner needs none of it, so this may happen late. ``removable`` is by the name of an
    entry, and gets those that were not known.
    """
    names = yield Names("log")
    old = [name for name in names if 0 < number_of(name.partition(".")[0]) <= base]
    for name in old:
        if name.endswith(".tmp"):  # of a writer that was killed
            removable[name] = True
    unknown = [name for name in old if name not in removable]
    for at in range(0, len(unknown), AT_ONCE):
        block = unknown[at : at + AT_ONCE]
        answers = yield Get([f"log/{name}" for name in block])
        for name, data in zip(block, answers, strict=True):
            entry = decoded(data, f"{place}/log/{name}")
            removable[name] = is_removable(entry)
    doomed = [name for name in old if removable[name]]
    yield Remove([f"log/{name}" for name in doomed])
    for name in doomed:
        del removable[name]


def unused(files: Iterable[str], owner: Owner, kept: Iterable[Checkpoint]) -> list[str]:
    needed = {stored.object for one in kept for stored in one.files.values()}
    found = (match for name in files if (match := _STORED.fullmatch(name)))
    return [m[0] for m in found if int(m[1]) <= owner.fence and m[0] not in needed]
