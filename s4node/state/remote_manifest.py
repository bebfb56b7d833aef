"""What is kept of a task at a place that nodes reach by URL, and which of it is true. Pure.

Rules
- A commit is one object, a *batch*: the rows that it changed. One that is tried again is another
  object, and of those of one number the last counts. Now and then the files of a
  checkpoint are there as well, and a *manifest* says what the state is: these files, these batches
  behind them, and then the batches of its own fence, as far as they follow without a hole.
- The manifest with the highest fence is true, and of those of one fence that with most commits. So
  an owner that was fenced may write what it likes: nobody will read it.
- An owner counts a commit only when it has seen, after it was there, that nobody has a higher
  fence. Who takes over says so first, then looks what is there, then writes its manifest. So
  the second of the two sees the first: what counted is taken over.
- What no manifest of the newest ones needs is removed, by an owner that has seen after its own
  manifest that it is still the owner. Who comes later begins with a manifest as new as that. Only
  an owner removes objects of its own fence and of lower ones; what it puts there anew has its own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

Batch = tuple[int, int, int]
"""A commit: the fence of who wrote it, its number, and which of all tries of that owner it was."""

FORMAT = 1
KEPT_MANIFESTS = 2

_NAME = re.compile(r"([0-9]{16})-([0-9a-f]{1,64})")
_BATCH = re.compile(r"([0-9]{16})-([0-9]{16})([0-9]{16})")
_FILE = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")


class StoredFile(msgspec.Struct, frozen=True):
    """A file of a checkpoint: the object that holds it, its size, and the hash of its bytes."""

    object: str
    size: int
    hash: str


class Manifest(msgspec.Struct, frozen=True):
    """The state after ``commit``: the files, which are as of ``base``, and these batches."""

    format: int
    fence: int
    commit: int
    base: Batch
    files: dict[str, StoredFile]
    batches: list[Batch]
    written_ms: int
    owners: dict[int, str] = {}  # the names of all who have had the task, by their fences
    put: int = 0  # how many the owner has put before

    @property
    def name(self) -> str:
        """As its object is called; the names of manifests sort as they count."""
        return name_of(self.fence, f"{self.commit:016d}{self.put:016d}")


def name_of(fence: int, rest: str) -> str:
    """The name of an object of an owner."""
    return f"{fence:016d}-{rest}"


def batch_name(batch: Batch) -> str:
    """The name of a commit's object."""
    return name_of(batch[0], f"{batch[1]:016d}{batch[2]:016d}")


def fences(names: Iterable[str]) -> list[int]:
    """The fences of these objects; names of others' are passed over."""
    return [int(match[1]) for name in names if (match := _NAME.fullmatch(name))]


def batches_of(names: Iterable[str]) -> set[Batch]:
    """The commits of which there are objects."""
    found = (match for name in names if (match := _BATCH.fullmatch(name)))
    return {(int(match[1]), int(match[2]), int(match[3])) for match in found}


def misnamed(manifest: Manifest) -> str | None:
    """A file or an object of the manifest whose name is none of ours, and may lead elsewhere."""
    for file, stored in manifest.files.items():
        if not _FILE.fullmatch(file):
            return file
        if not _NAME.fullmatch(stored.object):
            return stored.object
    return None


def chain(manifest: Manifest, there: Collection[Batch]) -> list[Batch]:
    """The batches that belong to a state behind its files, in order."""
    found = list(manifest.batches)
    last = {batch[1]: batch for batch in sorted(there) if batch[0] == manifest.fence}
    number = manifest.commit + 1
    while number in last:
        found.append(last[number])
        number += 1
    return found


def behind(base: Batch, batches: Sequence[Batch], known: Batch) -> Sequence[Batch] | None:
    """The batches that one who has ``known`` lacks; None where that is no part of this state."""
    points = [base, *batches]
    return batches[points.index(known) :] if known in points else None


def doomed(
    fence: int,
    manifests: Mapping[str, Manifest],
    files: Iterable[str],
    batches: Iterable[Batch],
) -> tuple[list[str], list[str], list[Batch]]:
    """The manifests, files and batches that an owner may remove."""
    mine = sorted(name for name, one in manifests.items() if one.fence <= fence)
    kept = [manifests[name] for name in mine[-KEPT_MANIFESTS:]]
    needed_files = {stored.object for one in kept for stored in one.files.values()}
    needed = {batch for one in kept for batch in one.batches}
    from_here = min((one.commit for one in kept), default=0)
    return (
        mine[:-KEPT_MANIFESTS],
        [name for name in files if name not in needed_files and fences([name])[0] <= fence],
        [b for b in batches if b not in needed and b[0] <= fence and b[1] <= from_here],
    )
