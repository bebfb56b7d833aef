"""Whose database of a task is true: one folder for each time that somebody took the task over.

Rules
- The folders of a task are numbered by epoch; only who has claimed an epoch writes into its folder,
  and the highest one is true. Claiming is a compare-and-set: of two that claim at a time one fails.
- A new epoch begins as a copy of the one before, made of hard links: database files never change
  once they are written. What still grows is copied. So it takes no longer for more keys.
- An owner that was paused and wakes up writes into its own folder, which nobody reads any more.
- A copy that turns out to be damaged is passed over, saying so: the one before it is as good as it
  was, with the positions that belong to it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from s4node.errors import StateError, StoreCorrupt, TaskFenced
from s4node.faults import passing
from s4node.state.database import Database

log = structlog.get_logger("s4node.state")

_WRITTEN_ONCE = {".sst", ".blob"}
_DONE = "complete"  # a file in a folder that is whole
_LEFT_OUT = {"LOCK", _DONE}
_TRIES = 5


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


@contextmanager
def copied(folder: Path) -> Iterator[Database]:
    """The true database of a task as it is now, to look at while its owner goes on.

    Raises StateError where there is none.
    """
    found = epochs_of(folder)
    if not found:
        raise StateError(f"nothing is kept in {folder}; has a task of this name ever run?")
    with tempfile.TemporaryDirectory(prefix=".look-", dir=folder.parent) as place:
        _inherit(folder / str(found[0]), Path(place))
        database = Database(Path(place))
        try:
            yield database
        finally:
            database.close()


def claim(folder: Path, epoch: int, make: Callable[[Path], Database]) -> Database:
    """Take the task of ``folder`` over under ``epoch``, with all that was committed before.

    ``epoch`` 0 takes the next free one. Raises TaskFenced where somebody has a higher epoch or
    this one already, StateError where the folder cannot be written, StoreCorrupt where nothing
    whole is left.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
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
    earlier = [number for number in epochs_of(folder) if number < epoch]
    for number in earlier:
        try:
            _inherit(folder / str(number), own)
            database = make(own)
            try:
                database.verify()
            except BaseException:
                database.close()
                raise
        except StoreCorrupt as error:
            log.error("a state folder is damaged; going on from the one before",
                      folder=str(folder / str(number)), reason=str(error))  # fmt: skip
            _emptied(own)
            continue
        passing("claim.copied")
        (own / _DONE).touch()
        return database
    if earlier:
        shutil.rmtree(own, ignore_errors=True)
        raise StoreCorrupt(
            f"all {len(earlier)} databases below {folder} are damaged; restore one from a backup, "
            f"or remove the folder to begin anew"
        )
    database = make(own)
    passing("claim.copied")
    (own / _DONE).touch()
    return database


def _inherit(before: Path, own: Path) -> None:
    """Have in ``own`` what is in ``before``, although its owner may be alive."""
    for _ in range(_TRIES):
        try:
            story = _story(before)
            for file in before.iterdir():
                if file.name in _LEFT_OUT:
                    continue
                if file.suffix in _WRITTEN_ONCE:
                    os.link(file, own / file.name)
                else:
                    shutil.copy2(file, own / file.name)
            if _story(before) == story:
                return
        except FileNotFoundError:
            pass  # its owner is at work: a file was replaced meanwhile
        except OSError as error:
            raise StateError(f"{before} cannot be copied: {error.strerror or error}") from error
        _emptied(own)
    raise StateError(f"{before} changes faster than it can be copied; stop the process that has it")


def _story(folder: Path) -> tuple[bytes, dict[str, int]]:
    """What changes with every file that RocksDB adds or drops: its manifest, and which it has."""
    files = {
        file.name: file.stat().st_size if file.name.startswith("MANIFEST") else 0
        for file in folder.iterdir()
    }
    current = folder / "CURRENT"
    return current.read_bytes() if current.exists() else b"", files


def _emptied(folder: Path) -> None:
    for entry in folder.iterdir():
        entry.unlink(missing_ok=True)


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
