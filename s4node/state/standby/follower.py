"""A follower: a database that follows the shipped state of a task that another member owns.

Rules
- A follower claims nothing, and writes only to its own folder ``standby``, beside those of the
  task's epochs. All calls block: make them in threads, one at a time.
- It begins with what this node has of the state, if the log leads on from there, else with the
  files of the newest checkpoint. The owner removes objects meanwhile, so it may have to try again;
  it keeps the files that it has fetched.
- It writes what it has followed to the end of the log at once. So its database is as of a commit
  that was the last one.
- If the owner writes to this folder, too, as another process of this node, there is nothing to
  follow: a new owner restores from there.
- A new owner claims the task first. Then nobody else can append anything, and the follower goes on
  to the claim. If it gets there, its folder has the state; if it does not, the new owner restores
  as if there were no follower.
- The folder without a file ``complete`` is unfinished. It is removed once the task is claimed here,
  or is followed here no more.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from s4node import clocks
from s4node.errors import StateError, StoreCorrupt
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.state import epochs
from s4node.state.commit_id import known_of
from s4node.state.database import DAMAGED, Database
from s4node.state.remote_log import (
    AT_ONCE,
    Checkpoint,
    Commit,
    StoredFile,
    Tail,
    announced,
    entry_name,
    is_removable,
    number_of,
)
from s4node.state.remote_task import RemoteTask, hash_of
from s4node.state.standby.position import Position, followed

log = get_logger("s4node.state")

Make = Callable[[Path], Database]
"""Opens the database in a folder."""

STANDBY = "standby"
"""The name of a follower's folder, in that of the task."""

STALE_SECONDS = 10.0
"""A follower that was last at the end of the log so long ago may be anywhere before it."""

_LOOK_EVERY = 32
"""After so many calls in which the log did not go on, it is listed: the next entry may have been
removed. It is listed at once if the follower was not at the end for long."""


class Follower:
    """Follows ``task``; ``folder`` has the epochs of the task here, and ``make`` opens a database.

    ``at_end`` is the steady time at which it was last at the end of the log; None until it has
    been there. The log has ``left_behind`` it so many times in turn: the owner removed what was to
    be followed. Set ``stopping`` from any thread to end a long call.
    """

    def __init__(self, task: RemoteTask, folder: Path, make: Make) -> None:
        self.task = task
        self.folder = folder / STANDBY
        self.at_end: float | None = None
        self.left_behind = 0
        self.stopping = False
        self._epochs = folder
        self._make = make
        self._database: Database | None = None
        self._position = Position()
        self._checkpoint: Checkpoint | None = None
        self._since = 0  # commits since the newest checkpoint
        self._removable: dict[str, bool] = {}  # entries that a sweep may come to, by name
        self._idle = 0
        self._is_here = False  # the owner's own folder

    def follow(self) -> None:
        """Follow the log to its end. Raises StateError if that is not possible now: call it again
        after a pause."""
        begins = self._database is None
        database = self._database = self._database or self._filled()
        if database is None:
            self.at_end = clocks.steady()
            return
        began = clocks.steady()
        stale = self.at_end is None or began - self.at_end > STALE_SECONDS
        own = self.task.own
        end = max(own, default=0)
        if not own and (stale or self._idle >= _LOOK_EVERY):
            end = self._listed_end()
        found = self.task.run(followed(self._position, self.task.url, own))
        if found is None or found.position.number < end:
            self._begin_anew()
            self.left_behind += 1
            raise StateError(f"{self.task.url} does not lead on from entry {self._position.number}")
        if not begins:
            self.left_behind = 0
        self._idle = 0 if found.commits else self._idle + 1
        passing("standby.found")
        if found.rows:
            try:
                database.write(list(found.rows), list(found.rows.values()))
            except StoreCorrupt:  # or another process has removed the folder
                self._begin_anew()
                raise
        passing("standby.written")
        self._position = found.position
        self._since += found.commits
        self._removable |= found.removable
        if found.checkpoint is not None:
            self._forget_swept()
            self._checkpoint = found.checkpoint
            self._since = found.position.number - found.checkpoint.base
        self.at_end = began

    def follow_to_claim(self) -> Path | None:
        """End following, once ``task`` has been claimed, and return the folder with its state.
        Returns None if the log does not lead to the claim: restore the task otherwise."""
        try:
            self.stopping = True
            self.task.fetched = self.task.wanted = 0  # the restore's progress begins
            if self._is_here:
                return None
            self.follow()
            if (self._position.number, self._position.owner) != (self.task.at, self.task.owner):
                return None
            assert self._database is not None
            self._database.verify()
        except (OSError, StateError, StoreCorrupt) as error:
            log.warning(
                "what was followed cannot be used, and the state is fetched",
                folder=str(self.folder),
                reason=str(error),
            )
            return None
        finally:
            self.close()
        self.task.resume(self._since, self._checkpoint, self._removable)
        passing("standby.finished")
        return self.folder

    def remove_left(self) -> None:
        """Remove the folder that an earlier process has left, unless another one follows there."""
        if self.folder.exists():
            try:
                self._make(self.folder).close()
            except StateError:
                return  # it is in use
            except StoreCorrupt:
                pass
        remove_standby(self._epochs)

    def close(self) -> None:
        """Close the database; the folder stays."""
        if self._database is not None:
            with suppress(StateError, StoreCorrupt):  # the log has all that is in it
                self._database.close()
            self._database = None

    def _forget_swept(self) -> None:
        """Forget what the owner removes, or leaves for good, once it has a next checkpoint."""
        if self._checkpoint is not None:
            base = self._checkpoint.base
            self._removable = {n: yes for n, yes in self._removable.items() if number_of(n) > base}

    def _begin_anew(self) -> None:
        self.close()
        self._removable = {}
        self.at_end = None
        self._idle = 0
        epochs.unmark(self.folder)

    def _listed_end(self) -> int:
        self._idle = 0
        return max(map(number_of, self.task.names_in("log")), default=0)

    # -- the beginning -----------------------------------------------------------------------

    def _filled(self) -> Database | None:
        """The database as of the end of the log, in the folder; None if the owner's is here."""
        fence = max((one.owner.fence for one in announced(self.task.names_in("claims"))), default=0)
        self._is_here = 0 < fence <= epochs.highest(self._epochs)
        if self._is_here:
            return None
        tail = self.task.read()
        if tail.damaged or tail.gone or not tail.whole:
            self.left_behind += bool(tail.gone)
            raise StateError(f"{self.task.url} cannot be followed before its owner continues")
        found = self._beginning(tail)
        if found is None:
            log.info(
                "state is fetched, to be followed", place=self.task.url, checkpoint=tail.number
            )
            epochs.unmark(self.folder)
            try:
                self._fetch({} if tail.checkpoint is None else tail.checkpoint.files)
            except StoreCorrupt:  # which is no damage if the owner has a next checkpoint
                self.left_behind += self.task.read().number > tail.number
                raise
            if tail.checkpoint is not None and not epochs.is_database(self.folder):
                raise StateError(f"{self.folder} was removed by another process")
            found = self._make(self.folder), tail.commits
        database, lacking = found
        passing("standby.fetched")
        try:
            if rows := {row: value for commit in lacking for row, value in commit.rows}:
                database.write(list(rows), list(rows.values()))
            epochs.mark_complete(self.folder)
        except BaseException:
            database.close()
            raise
        passing("standby.filled")
        self._position = Position.after(tail)
        self._checkpoint, self._since = tail.checkpoint, len(tail.commits)
        self._removable = {entry_name(n, None): is_removable(each) for n, each in tail.entries}
        return database

    def _beginning(self, tail: Tail) -> tuple[Database, list[Commit]] | None:
        """The state that this node has, with the commits that it lacks. Raises StateError if an
        epoch has commits that were never shipped, as a restore would."""
        is_new = not epochs.is_complete(self.folder)
        if is_new:
            newest = epochs.epochs_of(self._epochs)[:1]
            if not newest or self.folder.exists():
                return None
            self.folder.mkdir(mode=0o700)
            epochs.inherit(self._epochs / str(newest[0]), self.folder)
        if (self.folder / DAMAGED).exists():
            return None
        try:
            database = self._make(self.folder)
        except (StateError, StoreCorrupt):
            return None
        try:
            database.verify()
            self.task.check_shipped(database, tail, self._epochs if is_new else self.folder)
            lacking = tail.after(known_of(database))
        except StoreCorrupt:
            lacking = None
        except StateError:
            if is_new:
                database.close()
                remove_standby(self._epochs)
                raise
            lacking = None
        if lacking is None:
            database.close()
            return None
        return database, lacking

    def _fetch(self, files: Mapping[str, StoredFile]) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for place in self.folder.iterdir():
            stored = files.get(place.name)
            if stored is None or (place.stat().st_size, hash_of(place)) != (
                stored.size,
                stored.hash,
            ):
                place.unlink()  # never written over: another epoch may have a link to it
        lacking = [name for name in sorted(files) if not (self.folder / name).exists()]
        for at in range(0, len(lacking), AT_ONCE):
            if self.stopping:
                raise StateError(f"{self.folder} is not needed any more")
            self.task.fetch({name: files[name] for name in lacking[at : at + AT_ONCE]}, self.folder)


def remove_standbys(folder: Path) -> None:
    for standby in (folder / "tasks").glob(f"*/{STANDBY}"):
        remove_standby(standby.parent)


def remove_standby(folder: Path) -> None:
    epochs.unmark(folder / STANDBY)
    shutil.rmtree(folder / STANDBY, ignore_errors=True)
