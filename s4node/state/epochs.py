"""The epochs of a task: a folder for each time that an owner took the task over.

Rules
- The folders of a task are numbered by epoch. Only the owner that has claimed an epoch writes to
  its folder, and the highest epoch is current. Claiming is a compare-and-set: of two claims one
  fails.
- A new epoch begins as a copy of the previous one by hard links, as RocksDB never changes a
  finished file; growing files are copied. So taking over takes no longer for more keys.
- An owner that was paused and wakes up writes to its own folder, which nobody reads any more.
- From time to time an owner keeps a checkpoint: a copy made in the same way, in a folder
  ``epoch.number``.
- A damaged database is skipped, and that is logged. If only its log of commits is damaged, the
  commits before the damage are used. Else the newest checkpoint is used, with the positions in it,
  or the previous owner's database. These share files, so after damage every row of the next
  candidate is read first. The container decides whether the task may resume from there.
- A folder without a file ``complete`` is unfinished and does not count.
- Damage that is found in a copy is reported for the original: its files have the same names.
- A folder counts once it and the names above it are on disk, so a power cut never finds an older
  folder removed too soon.
- Commands read a copy of their own, so they need no permission to write to the original.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from s4node import disk
from s4node.errors import StateError, StoreCorrupt, TaskFenced
from s4node.events.schema import UNREADABLE
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.state.database import DAMAGED, Database, empty
from s4node.state.remote_task import RemoteTask

log = get_logger("s4node.state")

_WRITTEN_ONCE = {".sst", ".blob"}
_DONE = "complete"  # marks a folder as complete
_NOT_COPIED = {"LOCK", _DONE, DAMAGED}
_PAUSES = [0.001 * 2**n for n in range(10)]  # in seconds; a second in all
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP}
_FULL = os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT)  # RocksDB and fsspec use them, too
_KEPT = re.compile(r"([0-9]+)\.([0-9]+)")


class SavedCheckpoint(NamedTuple):
    """A checkpoint that an owner kept: of its commit number ``commit``, at a Unix time in ms."""

    epoch: int
    number: int
    commit: int
    kept_ms: int

    @property
    def name(self) -> str:
        return f"{self.epoch}.{self.number}"


class _About(msgspec.Struct):
    """The contents of the file ``complete`` of a checkpoint."""

    commit: int
    kept_ms: int


def epochs_of(folder: Path) -> list[int]:
    """The epochs with a complete database, the newest first."""
    try:
        names = [entry.name for entry in folder.iterdir() if (entry / _DONE).exists()]
    except FileNotFoundError:
        return []
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def highest(folder: Path) -> int:
    """The highest epoch that was claimed, complete or not; 0 if there is none."""
    try:
        return max((int(e.name) for e in folder.iterdir() if e.name.isdigit()), default=0)
    except FileNotFoundError:
        return 0


@contextmanager
def copied(folder: Path, elsewhere: RemoteTask | None = None) -> Iterator[Database]:
    """The true database of a task as it is now, to look at while its owner goes on.

    ``elsewhere`` has the current state if it is shipped; nothing changes there. Raises StateError
    if there is no state. Raises StoreCorrupt if it is damaged, as does every later read.
    """
    if elsewhere is None and not epochs_of(folder):
        raise StateError(f"{folder} has no state; has a task of this name ever run?")
    with ExitStack() as rooms:
        place, database = _temporary_copy(folder, elsewhere, rooms)
        with _reported_for(folder, place, (StateError, StoreCorrupt)):
            try:
                yield database
            finally:
                with suppress(StateError, StoreCorrupt):  # the copy is removed in any case
                    database.close()


def _temporary_copy(
    folder: Path, elsewhere: RemoteTask | None, rooms: ExitStack
) -> tuple[Path, Database]:
    """A copy of a task's database, and its folder, which ``rooms`` remove. The folder is beside the
    original if possible, so that files can be linked, else among temporary files."""
    why = []
    places = ((folder.parent, ".look-"), (Path(tempfile.gettempdir()), "s4-look-"))
    for parent, prefix in places:
        with ExitStack() as room:
            try:
                place = room.enter_context(disk.temporary_folder(parent, prefix))
            except OSError as error:
                why.append(str(error))
                continue
            try:
                with _reported_for(folder, place, (StateError, StoreCorrupt)):
                    database = _copy(folder, place, elsewhere)
            except StateError as error:
                if not any(reason in str(error) for reason in _FULL):
                    raise
                why.append(f"{place.parent} is full")
                continue
            rooms.push(room.pop_all())
            return place, database
    raise StateError(
        f"{folder} cannot be copied for reading: {', '.join(why)}; free some space, or set TMPDIR "
        f"to a folder that you may write to on a disk with space"
    )


def _copy(folder: Path, place: Path, elsewhere: RemoteTask | None) -> Database:
    """The current database of a task, in a folder in ``place`` with the original's name."""
    if elsewhere is not None:
        return _restored(folder, place, elsewhere)
    original = folder / str(epochs_of(folder)[0])
    own = place / original.name
    own.mkdir(mode=0o700)
    inherit(original, own)
    database = Database(own)
    try:
        database.verify()
    except BaseException:
        with suppress(StateError, StoreCorrupt):
            database.close()
        raise
    return database


def _restored(folder: Path, place: Path, elsewhere: RemoteTask) -> Database:
    """The current database of a task that is shipped, restored from there and from here."""
    newest = _candidates(folder, highest(folder) + 1)[:1]
    own = place / (newest[0].name if newest else "fetched")
    own.mkdir(mode=0o700)
    # a running owner ships each commit before it writes it here, so copy the local one first
    first = [_newest(newest, own, Database)]
    try:
        return elsewhere.restored(
            own, lambda: first.pop() if first else _newest(newest, own, Database), Database
        )
    except BaseException:
        if first and first[0] is not None:
            first[0].close()
        raise


@contextmanager
def _reported_for(
    original: Path, copy: Path, kinds: tuple[type[Exception], ...] = (StoreCorrupt,)
) -> Iterator[None]:
    """Report errors in the copy, by default damage, as errors in the original."""
    try:
        yield
    except kinds as error:
        if str(copy) not in str(error):
            raise
        raise type(error)(str(error).replace(str(copy), str(original))) from error


def claim(
    folder: Path,
    epoch: int,
    make: Callable[[Path], Database],
    elsewhere: RemoteTask | None = None,
    saved: Path | None = None,
) -> Database:
    """Take over the task of ``folder`` under ``epoch``, with all that was committed before.

    ``epoch`` 0 takes the next free one. ``elsewhere`` has the current state if it is shipped. With
    the files of a savepoint or a standby in ``saved`` the database is that one.

    Raises TaskFenced if this epoch or a higher one is claimed already, StateError if the folder
    cannot be written, StoreCorrupt if no sound database is left.
    """
    try:
        disk.make_folders(folder)
        last = highest(folder)
        epoch = epoch or last + 1
        if last >= epoch:
            raise TaskFenced(
                f"{folder} was taken over under epoch {last}; this container has epoch {epoch} "
                f"and stops, because two owners would count twice"
            )
        own = folder / str(epoch)
        own.mkdir(mode=0o700)  # the compare-and-set: it fails if the epoch is taken
    except FileExistsError as error:
        raise TaskFenced(
            f"another container is taking over {folder} under epoch {epoch} right now; give each "
            f"container a state folder or a name of its own"
        ) from error
    except OSError as error:
        to = "set s4.state.folder to a folder that you may write to"
        fix = "" if error.errno == errno.EMFILE else f"; {to}"
        raise StateError(f"{folder} cannot be written: {error.strerror}{fix}") from error
    passing("claim.copy")
    if saved is not None:
        filled = saved.exists() and any(saved.iterdir())  # of a task that is reset it is empty
        inherit(saved, own)
        if filled and not is_database(own):
            raise StoreCorrupt(f"{saved} was removed while it was taken over")
        return _completed(own, make(own))
    earlier = _candidates(folder, epoch)
    if elsewhere is not None:
        return _completed(own, elsewhere.restored(own, lambda: _newest(earlier, own, make), make))
    damaged = False
    for candidate in earlier:
        try:
            database = _inherited(candidate, own, make, suspicious=damaged)
        except StoreCorrupt as error:
            log.error(
                "a state folder is damaged; resuming from the one before it",
                folder=str(candidate),
                reason=str(error),
            )
            damaged = True
            empty(own)
            continue
        return _completed(own, database)
    if earlier:
        shutil.rmtree(own, ignore_errors=True)
        raise StoreCorrupt(
            f"all {len(earlier)} databases below {folder} are damaged; restore "
            f"{folder.parent.parent} from a backup, or remove it to start again without state (for "
            f"a task that shares nothing with others, its own folder is enough)"
        )
    return _completed(own, make(own))


def _completed(own: Path, database: Database) -> Database:
    passing("claim.copied")
    try:
        mark_complete(own)
    except OSError as error:
        database.close()
        fix = "" if error.errno == errno.EMFILE else "; free some space"
        raise StateError(f"{own} cannot be written: {error.strerror}{fix}") from error
    return database


def is_complete(folder: Path) -> bool:
    return (folder / _DONE).exists()


def is_database(folder: Path) -> bool:
    """Return False if a database opened there would be a new one."""
    return (folder / "CURRENT").exists()


def unmark(folder: Path) -> None:
    """Have a folder no longer marked as complete, before its files are removed."""
    if is_complete(folder):
        (folder / _DONE).unlink()
        disk.sync(folder)


def mark_complete(folder: Path, about: bytes = b"") -> None:
    """Mark a folder as complete, once it and its name are on disk."""
    for log_of_commits in folder.glob("*.log"):  # which is only synced if each commit is
        with suppress(FileNotFoundError):  # its rows have just been written into tables
            disk.sync(log_of_commits)
    disk.sync(*folder.glob("*.json"), folder)  # RocksDB's wrapper does not sync its own files
    disk.write(folder / _DONE, about)
    disk.sync(folder.parent)


def _newest(earlier: list[Path], own: Path, make: Callable[[Path], Database]) -> Database | None:
    """A copy of the newest of these databases; None if there is none or it is damaged."""
    if not earlier:
        return None
    try:
        return _inherited(earlier[0], own, make, suspicious=False)
    except StoreCorrupt as error:
        log.error(
            "a state folder is damaged; resuming from what was shipped",
            folder=str(earlier[0]),
            reason=str(error),
        )
        empty(own)
        return None


def _candidates(folder: Path, below: int) -> list[Path]:
    """The databases and checkpoints of epochs below ``below``, the newest first."""
    found = [((number, 1, 0), folder / str(number)) for number in epochs_of(folder)]
    found += [((one.epoch, 0, one.number), folder / one.name) for one in saved_checkpoints(folder)]
    return [path for (epoch, *_), path in sorted(found, reverse=True) if epoch < below]


def _inherited(
    before: Path, own: Path, make: Callable[[Path], Database], *, suspicious: bool
) -> Database:
    """A copy of the database in ``before``; raises StoreCorrupt if it is damaged."""
    if (before / DAMAGED).exists():
        raise StoreCorrupt((before / DAMAGED).read_text())
    inherit(before, own)
    with _reported_for(before, own):
        try:
            with _reported_for(before, own):
                database = make(own)
        except StoreCorrupt as error:
            empty(own)
            inherit(before, own)
            Database(own, salvage=True).close()  # moves what can be read into tables
            database = make(own)
            log.error(
                "the last commits in a state folder are damaged; resuming before them",
                folder=str(before),
                reason=str(error),
            )
        try:
            database.verify(rows=suspicious)
        except BaseException:
            database.close()
            raise
        return database


# -- kept checkpoints -------------------------------------------------------------------------


def keep(folder: Path, epoch: int, database: Database, commit: int, now: float) -> SavedCheckpoint:
    """Keep a checkpoint of an owner's database; nobody may write to it meanwhile.

    ``now`` is Unix time. Raises StateError, and changes nothing, if that fails.
    """
    mine = [int(m[2]) for m in _checkpoint_names(folder) if int(m[1]) == epoch]
    one = SavedCheckpoint(epoch, max(mine, default=0) + 1, commit, int(now * 1000))
    place = folder / one.name
    database.checkpoint(place)
    passing("checkpoint.made")
    try:
        mark_complete(place, msgspec.json.encode(_About(commit, one.kept_ms)))
    except OSError as error:
        raise StateError(f"{place} cannot be written: {error.strerror}") from error
    return one


def saved_checkpoints(folder: Path) -> list[SavedCheckpoint]:
    """The kept checkpoints of a task, the newest first."""
    found = []
    for match in _checkpoint_names(folder):
        try:
            data = (folder / match[0] / _DONE).read_bytes()
            about = msgspec.json.decode(data, type=_About)
        except (OSError, *UNREADABLE):  # unfinished, or being removed
            continue
        found.append(SavedCheckpoint(int(match[1]), int(match[2]), about.commit, about.kept_ms))
    return sorted(found, reverse=True)


def _checkpoint_names(folder: Path) -> list[re.Match[str]]:
    try:
        return [m for entry in folder.iterdir() if (m := _KEPT.fullmatch(entry.name))]
    except FileNotFoundError:
        return []


def remove_old_checkpoints(
    folder: Path, epoch: int, keep: int, older_than: float, now: float
) -> int:
    """Remove old checkpoints; returns how many were removed.

    The newest one stays, and so do the newest ``keep`` that are at most ``older_than`` seconds old.
    ``epoch`` is the caller's; checkpoints of later epochs are left alone.
    """
    found = [one for one in saved_checkpoints(folder) if one.epoch <= epoch]
    doomed = {one.name for one in found[keep:]}
    doomed |= {one.name for one in found[1:] if now - one.kept_ms / 1000 > older_than}
    whole = {one.name for one in found}
    for entry in folder.iterdir():
        match = _KEPT.match(entry.name)  # RocksDB first calls them name.tmp
        if match and int(match[1]) <= epoch and entry.name not in whole:
            doomed.add(entry.name)
    for name in doomed:
        shutil.rmtree(folder / name, ignore_errors=True)
    return len(doomed)


# -- inside -----------------------------------------------------------------------------------


def inherit(before: Path, own: Path) -> None:
    """Link or copy the files of ``before`` to ``own``, even while its owner writes."""
    for pause in _PAUSES:
        try:
            story = _fingerprint(before)
            for file in before.iterdir():
                if file.name in _NOT_COPIED:
                    continue
                once = file.suffix in _WRITTEN_ONCE
                if not once or not _linked(file, own / file.name):
                    shutil.copy2(file, own / file.name)
                    if once:  # opening the database writes the other files again
                        disk.sync(own / file.name)
            if _fingerprint(before) == story:
                return
        except FileNotFoundError:
            pass  # the owner has replaced a file meanwhile
        except OSError as error:
            raise StateError(f"{before} cannot be copied: {error.strerror or error}") from error
        empty(own)
        time.sleep(pause)
    raise StateError(f"{before} changes faster than it can be copied; stop the process that has it")


def _linked(file: Path, other: Path) -> bool:
    """Link a file under a second name; returns False if the system does not allow that."""
    try:
        os.link(file, other)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    return True


def _fingerprint(folder: Path) -> tuple[bytes, dict[str, int]]:
    """Marks that change when RocksDB adds or drops a file: its manifest, and the names of files."""
    files = {
        file.name: file.stat().st_size if file.name.startswith("MANIFEST") else 0
        for file in folder.iterdir()
    }
    current = folder / "CURRENT"
    return current.read_bytes() if current.exists() else b"", files


def sweep(folder: Path, keep: int, older_than: float, now: float) -> int:
    """Remove old complete databases; returns how many were removed.

    The newest one stays, and so do the newest ``keep`` that were written in the last ``older_than``
    seconds. ``now`` is Unix time. Unfinished folders below the newest one are removed, too.
    """
    whole = epochs_of(folder)
    if not whole:
        return 0
    doomed = set(whole[keep:])
    doomed |= {e for e in whole[1:] if now - (folder / str(e)).stat().st_mtime > older_than}
    unfinished = [
        int(entry.name)
        for entry in folder.iterdir()
        if entry.name.isdigit() and int(entry.name) not in whole
    ]
    doomed |= {e for e in unfinished if e < whole[0]}
    for number in doomed:
        shutil.rmtree(folder / str(number), ignore_errors=True)
    return len(doomed)
