"""The shipped state of a task: which manifests, files and batches make it up. Pure.

Rules
- A commit is one object, a *batch*: the rows that it changed. A retried commit is another object;
  of the batches with one number the last counts. From time to time the files of a checkpoint are
  shipped, and a *manifest* describes the state: these files, the batches after them, and then the
  batches of the manifest's own fence, up to the first gap.
- The manifest with the highest fence is current; of several with one fence, the one with the most
  commits. So nobody reads what a fenced owner writes.
- An owner counts a commit only after it has been written and nobody has claimed a higher fence. A
  new owner first claims, then reads the state, then writes its manifest. So of the two, the second
  sees what the first has done, and every commit that counted is taken over.
- An owner removes what the newest manifests do not need, once it has written a manifest and seen
  that it is still the owner. It removes only objects of its own fence or lower ones, so that a
  later owner's objects are safe.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

Batch = tuple[int, int, int]
"""A commit: the fence of its writer, its number, and the writer's count of tries."""

FORMAT = 1
KEPT_MANIFESTS = 2

_NAME = re.compile(r"([0-9]{16})-([0-9a-f]{1,64})")
_BATCH = re.compile(r"([0-9]{16})-([0-9]{16})([0-9]{16})")
_FILE = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")


class StoredFile(msgspec.Struct, frozen=True):
    """A file of a checkpoint: its object, its size, and the hash of its bytes."""

    object: str
    size: int
    hash: str


class Manifest(msgspec.Struct, frozen=True):
    """The state after ``commit``: the files, as of commit ``base``, and the batches after it."""

    format: int
    fence: int
    commit: int
    base: Batch
    files: dict[str, StoredFile]
    batches: list[Batch]
    written_ms: int
    owners: dict[int, str] = {}  # the names of all owners of the task, by fence
    put: int = 0  # the number of manifests that the owner has put before

    @property
    def name(self) -> str:
        """The name of its object; names of manifests sort from oldest to newest."""
        return name_of(self.fence, f"{self.commit:016d}{self.put:016d}")


def name_of(fence: int, rest: str) -> str:
    """The name of an object of the owner with this fence."""
    return f"{fence:016d}-{rest}"


def batch_name(batch: Batch) -> str:
    """The name of a batch's object."""
    return name_of(batch[0], f"{batch[1]:016d}{batch[2]:016d}")


def fences(names: Iterable[str]) -> list[int]:
    """The fences of these objects; foreign names are skipped."""
    return [int(match[1]) for name in names if (match := _NAME.fullmatch(name))]


def batches_of(names: Iterable[str]) -> set[Batch]:
    """The batches among these objects."""
    found = (match for name in names if (match := _BATCH.fullmatch(name)))
    return {(int(match[1]), int(match[2]), int(match[3])) for match in found}


def misnamed(manifest: Manifest) -> str | None:
    """The first foreign name among the manifest's files and objects: it may lead elsewhere."""
    for file, stored in manifest.files.items():
        if not _FILE.fullmatch(file):
            return file
        if not _NAME.fullmatch(stored.object):
            return stored.object
    return None


def chain(manifest: Manifest, there: Collection[Batch]) -> list[Batch]:
    """The batches after the manifest's files, in order."""
    found = list(manifest.batches)
    last = {batch[1]: batch for batch in sorted(there) if batch[0] == manifest.fence}
    number = manifest.commit + 1
    while number in last:
        found.append(last[number])
        number += 1
    return found


def behind(base: Batch, batches: Sequence[Batch], known: Batch) -> Sequence[Batch] | None:
    """The batches after ``known``; None if ``known`` is not a part of this state."""
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
