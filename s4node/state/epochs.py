"""Whose database of a task is true: one folder for each time that somebody took the task over.

Rules
- The folders of a task are numbered by epoch; only who has claimed an epoch writes into its folder,
  and the highest one is true. Claiming is a compare-and-set: of two that claim at a time one fails.
- A new epoch begins as a copy of the one before, made of hard links: database files never change
  once they are written. What still grows is copied. So it takes no longer for more keys.
- An owner that was paused and wakes up writes into its own folder, which nobody reads any more.
- Now and then an owner keeps a checkpoint: a copy made in the same way, in a folder
  ``epoch.number``.
- A database that turns out to be damaged is passed over, saying so. Of one whose log of commits is
  damaged there are the commits before the damage; else the newest checkpoint is as good as it was,
  with the positions that belong to it, or the database of the owner before. Files that are never
  changed are shared by all of these: so after damage, each row of the next is read before it is
  taken. Whether a task may go on from there is for its container to say.
- What has no file ``complete`` was never finished, and is nothing.
- Damage that is found in a copy is told as that of the original: its files have the same names.
- A folder counts when it is on the disk, with the names above it; so nothing that is older is
  removed too soon, whenever the power goes.
- Who looks has a copy of its own, and so needs no right to write to what it looks at.
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
from typing import NamedTuple, Protocol

import msgspec

from s4node import disk
from s4node.errors import StateError, StoreCorrupt, TaskFenced
from s4node.events.schema import UNREADABLE
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.state.database import DAMAGED, Database, empty

log = get_logger("s4node.state")

_WRITTEN_ONCE = {".sst", ".blob"}
_DONE = "complete"  # a file in a folder that is whole
_LEFT_OUT = {"LOCK", _DONE, DAMAGED}
_PAUSES = [0.001 * 2**n for n in range(10)]  # in seconds; one of a second in all
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP}
_FULL = os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT)  # so RocksDB and fsspec say it, too
_KEPT = re.compile(r"([0-9]+)\.([0-9]+)")


class KeptCheckpoint(NamedTuple):
    """A checkpoint that an owner kept: of its ``commit``-th commit, at a Unix time in ms."""

    epoch: int
    number: int
    commit: int
    kept_ms: int

    @property
    def name(self) -> str:
        """As its folder is called."""
        return f"{self.epoch}.{self.number}"


class _About(msgspec.Struct):
    """What is in the file ``complete`` of a checkpoint."""

    commit: int
    kept_ms: int


def epochs_of(folder: Path) -> list[int]:
    """The epochs of which there is a whole database, the newest first."""
    try:
        names = [entry.name for entry in folder.iterdir() if (entry / _DONE).exists()]
    except FileNotFoundError:
        return []
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def highest(folder: Path) -> int:
    """The highest epoch that was claimed, whole or not; 0 if none was."""
    try:
        return max((int(e.name) for e in folder.iterdir() if e.name.isdigit()), default=0)
    except FileNotFoundError:
        return 0


class Elsewhere(Protocol):
    """Where what is true is kept beside this folder."""

    def restored(
        self,
        own: Path,
        local: Callable[[], Database | None],
        make: Callable[[Path], Database],
        /,
    ) -> Database:
        """The true database in ``own``: the ``local`` one with what it lacks, or a new one."""
        ...


@contextmanager
def copied(folder: Path, elsewhere: Elsewhere | None = None) -> Iterator[Database]:
    """The true database of a task as it is now, to look at while its owner goes on.

    With ``elsewhere``, that says what is true, as to who takes the task over; nothing changes
    there, either. Raises StateError where there is none, and StoreCorrupt, as all reading does,
    where it is damaged.
    """
    if elsewhere is None and not epochs_of(folder):
        raise StateError(f"nothing is kept in {folder}; has a task of this name ever run?")
    with ExitStack() as rooms:
        place, database = _made_room(folder, elsewhere, rooms)
        with _told_of(folder, place, (StateError, StoreCorrupt)):
            try:
                yield database
            finally:
                with suppress(
                    StateError, StoreCorrupt
                ):  # what was read is right, and the copy goes
                    database.close()


def _made_room(
    folder: Path, elsewhere: Elsewhere | None, rooms: ExitStack
) -> tuple[Path, Database]:
    """A copy of a task's database, and where it is until ``rooms`` end: beside the original, where
    files can be linked, or where that cannot be, in the system's own place for such."""
    why = []
    for parent, prefix in ((folder.parent, ".look-"), (None, "s4-look-")):
        with ExitStack() as room:
            try:
                made = tempfile.TemporaryDirectory(prefix=prefix, dir=parent)
            except OSError as error:
                why.append(str(error))
                continue
            place = Path(room.enter_context(made))
            try:
                with _told_of(folder, place, (StateError, StoreCorrupt)):
                    database = _copy(folder, place, elsewhere)
            except StateError as error:
                if not any(reason in str(error) for reason in _FULL):
                    raise
                why.append(f"{place.parent} is full")
                continue
            rooms.push(room.pop_all())
            return place, database
    raise StateError(
        f"{folder} cannot be copied to be looked at: {', '.join(why)}; make room, or set TMPDIR to "
        f"a folder of yours on a disk that has some"
    )


def _copy(folder: Path, place: Path, elsewhere: Elsewhere | None) -> Database:
    """The true database of a task, in a folder in ``place`` that is called as the original is."""
    if elsewhere is not None:
        return _restored(folder, place, elsewhere)
    original = folder / str(epochs_of(folder)[0])
    own = place / original.name
    own.mkdir()
    _inherit(original, own)
    database = Database(own)
    try:
        database.verify()
    except BaseException:
        with suppress(StateError, StoreCorrupt):
            database.close()
        raise
    return database


def _restored(folder: Path, place: Path, elsewhere: Elsewhere) -> Database:
    """The same, as it is restored from elsewhere and from here."""
    newest = _candidates(folder, highest(folder) + 1)[:1]
    own = place / (newest[0].name if newest else "fetched")
    own.mkdir()
    # an owner that is alive goes on, and puts each commit there first: so this comes before a look
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
def _told_of(
    original: Path, copy: Path, kinds: tuple[type[Exception], ...] = (StoreCorrupt,)
) -> Iterator[None]:
    """Say of the original what is found to be wrong with its copy: damage, or these errors."""
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
    elsewhere: Elsewhere | None = None,
) -> Database:
    """Take the task of ``folder`` over under ``epoch``, with all that was committed before.

    ``epoch`` 0 takes the next free one. With ``elsewhere``, that says what is true.

    Raises TaskFenced where somebody has a higher epoch or this one already, StateError where the
    folder cannot be written, StoreCorrupt where nothing whole is left.
    """
    try:
        disk.make_folders(folder)
        last = highest(folder)
        epoch = epoch or last + 1
        if last >= epoch:
            raise TaskFenced(
                f"{folder} was taken over under epoch {last}; this container has epoch {epoch} "
                f"and stops, for two owners would count twice"
            )
        own = folder / str(epoch)
        own.mkdir()  # the compare-and-set: it fails if the epoch is taken
    except FileExistsError as error:
        raise TaskFenced(
            f"{folder} is being taken over under epoch {epoch} by another container at this "
            f"moment; give each container a state folder or a name of its own"
        ) from error
    except OSError as error:
        raise StateError(
            f"{folder} cannot be written: {error.strerror}; set s4.state.folder to a folder of "
            f"yours"
        ) from error
    passing("claim.copy")
    earlier = _candidates(folder, epoch)
    if elsewhere is not None:
        return _completed(own, elsewhere.restored(own, lambda: _newest(earlier, own, make), make))
    damaged = False
    for candidate in earlier:
        try:
            database = _inherited(candidate, own, make, suspicious=damaged)
        except StoreCorrupt as error:
            log.error(
                "a state folder is damaged; going on from the one before",
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
            f"{folder.parent.parent} from a backup, or remove it to begin anew (for a task that "
            f"has nothing to do with others its own folder is enough)"
        )
    return _completed(own, make(own))


def _completed(own: Path, database: Database) -> Database:
    """Say that all of a database is there; RocksDB has waited for what it has written."""
    passing("claim.copied")
    try:
        _mark(own, b"")
    except OSError as error:
        database.close()
        raise StateError(f"{own} cannot be written: {error.strerror}; make room there") from error
    return database


def _mark(folder: Path, about: bytes) -> None:
    """Say that a folder is whole; it is on the disk, and so is its name."""
    disk.sync(*folder.glob("*.json"), folder)  # RocksDB's wrapper waits for none of its files
    disk.write(folder / _DONE, about)
    disk.sync(folder.parent)


def _newest(earlier: list[Path], own: Path, make: Callable[[Path], Database]) -> Database | None:
    """The newest of these databases, as a copy; None where there is none, or it is damaged."""
    if not earlier:
        return None
    try:
        return _inherited(earlier[0], own, make, suspicious=False)
    except StoreCorrupt as error:
        log.error(
            "a state folder is damaged; going on from what is shipped",
            folder=str(earlier[0]),
            reason=str(error),
        )
        empty(own)
        return None


def _candidates(folder: Path, below: int) -> list[Path]:
    """The databases and checkpoints of epochs below this one, the newest first."""
    found = [((number, 1, 0), folder / str(number)) for number in epochs_of(folder)]
    found += [((one.epoch, 0, one.number), folder / one.name) for one in kept_of(folder)]
    return [path for (epoch, *_), path in sorted(found, reverse=True) if epoch < below]


def _inherited(
    before: Path, own: Path, make: Callable[[Path], Database], *, suspicious: bool
) -> Database:
    """The database of ``before``, as a copy; raises StoreCorrupt where it is damaged."""
    if (before / DAMAGED).exists():
        raise StoreCorrupt((before / DAMAGED).read_text())
    _inherit(before, own)
    with _told_of(before, own):
        try:
            with _told_of(before, own):
                database = make(own)
        except StoreCorrupt as error:
            empty(own)
            _inherit(before, own)
            Database(own, salvage=True).close()  # and what can be read is in tables from now on
            database = make(own)
            log.error(
                "the last commits in a state folder are damaged; going on from the one before",
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


def keep(folder: Path, epoch: int, database: Database, commit: int, now: float) -> KeptCheckpoint:
    """Keep a checkpoint of an owner's database, which nobody writes to meanwhile.

    ``now`` is Unix time. Raises StateError where that is not possible; nothing has changed then.
    """
    mine = [int(m[2]) for m in _kept_names(folder) if int(m[1]) == epoch]
    one = KeptCheckpoint(epoch, max(mine, default=0) + 1, commit, int(now * 1000))
    place = folder / one.name
    database.checkpoint(place)
    passing("checkpoint.made")
    try:
        _mark(place, msgspec.json.encode(_About(commit, one.kept_ms)))
    except OSError as error:
        raise StateError(f"{place} cannot be written: {error.strerror}") from error
    return one


def kept_of(folder: Path) -> list[KeptCheckpoint]:
    """The checkpoints that are kept of a task, the newest first."""
    found = []
    for match in _kept_names(folder):
        try:
            data = (folder / match[0] / _DONE).read_bytes()
            about = msgspec.json.decode(data, type=_About)
        except (OSError, *UNREADABLE):  # it was not finished, or is being removed
            continue
        found.append(KeptCheckpoint(int(match[1]), int(match[2]), about.commit, about.kept_ms))
    return sorted(found, reverse=True)


def _kept_names(folder: Path) -> list[re.Match[str]]:
    try:
        return [m for entry in folder.iterdir() if (m := _KEPT.fullmatch(entry.name))]
    except FileNotFoundError:
        return []


def sweep_kept(folder: Path, epoch: int, keep: int, older_than: float, now: float) -> int:
    """Remove all checkpoints but the newest ``keep``, and of those all but the newest that are
    older than so many seconds; returns how many were removed.

    ``epoch`` is that of who calls; what later ones keep is theirs.
    """
    found = [one for one in kept_of(folder) if one.epoch <= epoch]
    doomed = {one.name for one in found[keep:]}
    doomed |= {one.name for one in found[1:] if now - one.kept_ms / 1000 > older_than}
    whole = {one.name for one in found}
    for entry in folder.iterdir():
        match = _KEPT.match(entry.name)  # RocksDB makes them as name.tmp
        if match and int(match[1]) <= epoch and entry.name not in whole:
            doomed.add(entry.name)
    for name in doomed:
        shutil.rmtree(folder / name, ignore_errors=True)
    return len(doomed)


# -- inside -----------------------------------------------------------------------------------


def _inherit(before: Path, own: Path) -> None:
    """Have in ``own`` what is in ``before``, although its owner may be alive."""
    for pause in _PAUSES:
        try:
            story = _story(before)
            for file in before.iterdir():
                if file.name in _LEFT_OUT:
                    continue
                once = file.suffix in _WRITTEN_ONCE
                if not once or not _linked(file, own / file.name):
                    shutil.copy2(file, own / file.name)
                    if once:  # all else is written anew when it is opened
                        disk.sync(own / file.name)
            if _story(before) == story:
                return
        except FileNotFoundError:
            pass  # its owner is at work: a file was replaced meanwhile
        except OSError as error:
            raise StateError(f"{before} cannot be copied: {error.strerror or error}") from error
        empty(own)
        time.sleep(pause)
    raise StateError(f"{before} changes faster than it can be copied; stop the process that has it")


def _linked(file: Path, other: Path) -> bool:
    """Have a file under a second name; False where the system does not let us."""
    try:
        os.link(file, other)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    return True


def _story(folder: Path) -> tuple[bytes, dict[str, int]]:
    """What changes with every file that RocksDB adds or drops: its manifest, and which it has."""
    files = {
        file.name: file.stat().st_size if file.name.startswith("MANIFEST") else 0
        for file in folder.iterdir()
    }
    current = folder / "CURRENT"
    return current.read_bytes() if current.exists() else b"", files


def sweep(folder: Path, keep: int, older_than: float, now: float) -> int:
    """Remove what is not needed: all but ``keep`` whole databases, and of those all but the newest
    that were last written before ``older_than`` seconds ago; returns how many were removed.

    ``now`` is Unix time. What was left unfinished by a crash goes, too.
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
