"""The copy of a task's state at a URL: its log, and the files of checkpoints.

Rules
- :mod:`s4node.state.remote_log` decides; this module reads and writes. All calls block: make them
  in threads, and for one task one at a time, except ``upload``.
- A commit is shipped before it is written to the node's own folder. So that folder is never ahead
  of the copy, and a restore only fetches what it lacks.
- A restore fetches many objects at a time, and writes their rows at once. A checkpoint is due when
  fetching the commits since the last one would take too long.
- A folder whose last commit has an unknown owner was never shipped here and is refused: only the
  user can know which of the two states is right.
- A job that stops shipping, or ships to another URL, resumes from its folder only if no other owner
  has continued from the copy.
- The files of a checkpoint are shipped once each, as their names are hashes. Sizes, hashes and
  names are checked when they are read.
- An owner that did not begin with the whole log ships a checkpoint before its first commit.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from s4node import clocks, tokens
from s4node.errors import ConfigError, StateError, StoreCorrupt, TaskFenced
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.state import remote_log
from s4node.state.commit_id import known_of, owners_of, shipped_of
from s4node.state.database import Database, empty
from s4node.state.remote_files import RemoteFiles, at_once
from s4node.state.remote_log import (
    AT_ONCE,
    Appender,
    Checkpoint,
    Commit,
    CommitId,
    Entry,
    Owner,
    Row,
    StoredFile,
    Tail,
)

log = get_logger("s4node.state")

R = TypeVar("R")

MOST_COMMITS = 1000
_MOST_BYTES = 64 << 20
_READS = 5  # of a log whose objects are removed meanwhile
_SMOOTHING = 0.1  # the weight of one more commit in the time of a request
_NOT_SHIPPED = {"LOCK", "LOG", "complete", "damaged"}
_FOLDERS = ("claims", "log", "files")

Source = Callable[[], Database | None]
"""Opens the node's own database, which may be behind; None if there is none that can be used."""


class RemoteTask:
    """The copy of a task; ``name`` is that of its folder. Call ``highest``, then ``claim``, then
    ``restored``, then ``take_over``.

    ``append_mode`` is how to append; without it the copy is only read. Fetching the commits
    after a checkpoint shall take at most ``restore_seconds``.
    """

    def __init__(
        self,
        files: RemoteFiles,
        name: str,
        append_mode: Callable[[], str] | None = None,
        restore_seconds: float = 2.0,
    ) -> None:
        self._files = files
        self._root = f"{files.root}/tasks/{name}"
        self.url = f"{files.url}/tasks/{name}"
        self.owner = Owner(0, "")
        self._append_mode = append_mode
        self._restore_seconds = restore_seconds
        self._appender: Appender | None = None
        self._appending = threading.Lock()
        self._listed: tuple[list[str], list[str]] = [], []  # claims and log, for the fence
        self.at = 0  # the number of the last entry that counts for this owner
        self._whole = False  # True if this owner began with the whole log
        self._owners: dict[int, str] = {}  # from before the copy
        self._kept: list[Checkpoint] = []  # the last two that are read or written
        self._removable: dict[str, bool] = {}  # by the name of an entry, if it is known
        self._hashes: dict[tuple[int, int, int], str] = {}
        """Hashes of finished files by inode, time and size, as an inode may be reused."""
        self._since = 0  # commits since the last checkpoint
        self._since_bytes = 0
        self._seconds = 0.0  # of a request
        self.uploading = False
        self.fetched = 0  # objects, by a restore
        self.wanted = 0  # the objects that it will have fetched at most, as far as is known

    # -- who owns it -------------------------------------------------------------------------

    def highest(self) -> int:
        """The highest fence under which the task is claimed; 0 if there is none."""
        with self._files.translate_errors():
            for folder in _FOLDERS:
                self._files.make_folder(f"{self._root}/{folder}")
            self._listed = self._answer(remote_log.Both())
        claims = remote_log.announced(self._listed[0])
        return max((each.owner.fence for each in claims), default=0)

    def claim(self, fence: int, origin: str, epoch: int) -> None:
        """Claim the task under ``fence``, which is above the ``highest`` one.

        Raises TaskFenced if another owner has claimed it meanwhile, or in a later epoch of
        ``origin``.
        """
        assert self._append_mode is not None
        self.owner = Owner(fence, tokens.fresh(8))
        appender = Appender(self._append_mode(), self.owner, self.url)
        self.run(appender.claim(origin, epoch, self._listed))
        passing("ship.claimed")
        self._appender, self.at = appender, appender.number

    def retire(self) -> None:
        """Fence all owners and remove the files of checkpoints, as the job has no such task any
        more. The log stays, so that no owner can append to it."""
        self.claim(self.highest() + 1, "", 0)
        names = self.names_in("files")
        with self._files.translate_errors():
            self._files.remove(f"{self._root}/files/{name}" for name in names)

    @property
    def own(self) -> Mapping[int, bytes]:
        """The object of this owner's claim, by its number in the log; empty before the claim."""
        return {} if self._appender is None else self._appender.own

    # -- taking over -------------------------------------------------------------------------

    def restored(self, own: Path, local: Source, make: Callable[[Path], Database]) -> Database:
        """The current database in the folder ``own``: ``local`` with what it lacks, or the copy.
        The folder is to count only after this.

        Raises StoreCorrupt if no sound copy is left.
        """
        skipped: list[int] = []
        begin = None if self._appender is None else self._appender.begin[1]
        while True:
            tail = self.read(skipped, begin, self.own)
            if tail.empty:
                database = local()
                database = make(own) if database is None else self._first(database)
                self._whole = known_of(database)[1] == 0
                return database
            if not tail.whole:
                raise StoreCorrupt(
                    f"all {len(skipped)} checkpoints at {self.url} are damaged; restore one from a "
                    f"backup, or remove it to start again"
                    if skipped
                    else f"entry {tail.damaged} at {self.url}/log is missing, and no checkpoint "
                    f"replaces it; restore a backup, or remove {self.url} to start again"
                )
            try:
                database = self._filled(tail, own, local, make)
            except StoreCorrupt as error:
                log.error(
                    "a shipped checkpoint is damaged; resuming from the one before it",
                    place=self.url,
                    checkpoint=tail.number,
                    reason=str(error),
                )
                empty(own)
                skipped.append(tail.number)
                continue
            if tail.damaged:
                log.error(
                    "a shipped commit is missing or damaged; inputs are processed again from the "
                    "one before it, and acknowledged events of producers may be lost",
                    place=f"{self.url}/log",
                    entry=tail.damaged,
                    found=tail.last[1],
                )
            self._follow(tail)
            return database

    def read(
        self,
        skipped: Collection[int] = (),
        names: Collection[str] | None = None,
        known: Mapping[int, bytes] = MappingProxyType({}),
    ) -> Tail:
        """The end of the log, as far as a restore needs it; ``names`` are those of its objects, if
        they are listed already, and of these some contents may be ``known``."""
        for _ in range(_READS):
            if names is None:
                names, known = self.names_in("log"), {}
            self.wanted = self.fetched + len(names)
            tail = self.run(remote_log.read(names, self.url, skipped, known))
            if not tail.gone:
                break
            names = None
        return tail

    def _follow(self, tail: Tail) -> None:
        """Go on from this end of the log."""
        self._whole = not tail.damaged
        self._since = len(tail.commits)
        for number, entry in tail.entries:
            self._note(number, entry)
        if tail.checkpoint is not None:
            self._kept = [tail.checkpoint]

    def _note(self, number: int, entry: Entry) -> None:
        """Note whether an entry may be removed once."""
        if self._appender is None:
            return
        first = entry.since + 1 if isinstance(entry, Commit) and entry.since else number
        for each in range(first, number + 1):
            name = self._appender.name_of(each, entry.owner)
            self._removable[name] = remote_log.is_removable(entry)

    def _filled(
        self, tail: Tail, own: Path, local: Source, make: Callable[[Path], Database]
    ) -> Database:
        database, commits = local(), tail.commits
        lacking: Sequence[Commit] | None = None
        if database is not None:
            try:
                self.check_shipped(database, tail, own.parent)
            except StateError:
                database.close()
                raise
            lacking = tail.after(known_of(database))
            if lacking is None:
                database.close()
                empty(own)
        if database is None or lacking is None:
            log.info("state is being fetched", place=self.url, checkpoint=tail.number)
            self.fetch({} if tail.checkpoint is None else tail.checkpoint.files, own)
            database, lacking = make(own), commits
        rows = {row: value for commit in lacking for row, value in commit.rows}
        if rows:
            try:
                database.fill(list(rows), list(rows.values()))
            except BaseException:
                database.close()
                raise
        return database

    def _first(self, database: Database) -> Database:
        """The folder's own database, if nothing has been shipped here yet."""
        before = shipped_of(database)
        if before not in ("", self.job_url):
            try:
                check_newest(before, self._root.rpartition("/")[2], database)
            except StateError:
                database.close()
                raise
        return database

    def check_shipped(self, database: Database, tail: Tail, folder: Path) -> None:
        """Raise StateError unless the folder's own database is a part of the copy."""
        fence, number, _ = known_of(database)
        claims = self.names_in("claims") if self._appender is None else self._appender.begin[0]
        owners = {each.owner for each in remote_log.announced(claims)}
        if tail.checkpoint is not None:
            owners.update(Owner(f, name) for f, name in tail.checkpoint.owners.items())
        ours = Owner(fence, owners_of(database).get(fence, "")) in owners
        if number and not (ours and number <= tail.last[1]):
            raise StateError(
                f"{folder} has commit {number}, which was written without s4.state.url, or with "
                f"another one, and never shipped to {self.url}, where the last is {tail.last[1]}. "
                f"To continue from the shipped state, remove {folder}, which loses its later "
                f"commits; to continue from the folder, remove {self.url}"
            )

    def resume(
        self, since: int, checkpoint: Checkpoint | None, removable: Mapping[str, bool]
    ) -> None:
        """Go on from a database that has all that counts, with so many commits since the newest
        checkpoint. ``removable`` says of entries whether a sweep may remove them."""
        self._whole, self._since = True, since
        self._removable.update(removable)
        self._kept = [] if checkpoint is None else [checkpoint]

    def last(self) -> CommitId | None:
        tail = self.read()
        return None if tail.empty else tail.last

    def replaced(self) -> int:
        """The number of the last commit of the copy, which the state of this owner replaces; 0 if
        there is none."""
        last = self.last()
        return 0 if last is None else last[1]

    def fetch(self, files: Mapping[str, StoredFile], own: Path) -> None:
        """Fetch the files of a checkpoint into a folder, many at a time."""

        def fetch(each: tuple[str, StoredFile]) -> None:
            name, stored = each
            place, at = own / name, f"{self.url}/files/{stored.object}"
            try:
                self._files.fs.get_file(f"{self._root}/files/{stored.object}", str(place))
            except FileNotFoundError as error:
                raise StoreCorrupt(f"{at} is missing") from error
            if (place.stat().st_size, hash_of(place)) != (stored.size, stored.hash):
                raise StoreCorrupt(f"{at} has other contents than put")
            self.fetched += 1

        self.wanted = self.fetched + len(files)
        with self._files.translate_errors():
            at_once(fetch, files.items())

    @property
    def job_url(self) -> str:
        return self._files.url

    def take_over(
        self, last: CommitId, owners: Mapping[int, str], folder: Callable[[], Path]
    ) -> None:
        """Ship, before the first commit, the state that this owner starts from, unless the log has
        it.

        ``last`` is the last commit and ``owners`` are all owners including this one, as in
        :mod:`s4node.state.commit_id`. ``folder`` makes a checkpoint.
        """
        before = self._kept[-1].owners if self._kept else {}
        others = {f: name for f, name in owners.items() if f != self.owner.fence}
        self._owners = {**before, **others}
        if not self._whole:
            self._upload(folder() if last[1] else None, last, self.at)
            self._whole = True

    # -- commits -----------------------------------------------------------------------------

    def commit(self, commit: CommitId, rows: list[Row]) -> None:
        """Ship a commit; it counts when this returns.

        Raises StateError if the commit may or may not be shipped: ship another try, with all
        changes since. Raises TaskFenced if the task has another owner.
        """
        passing("ship.put")
        began = clocks.steady()
        self.at, size = self._append(Commit(self.owner, commit, rows))
        took = clocks.steady() - began
        self._seconds += (took - self._seconds) * (_SMOOTHING if self._seconds else 1)
        passing("ship.counts")
        self._since += 1
        self._since_bytes += size

    @property
    def due(self) -> bool:
        """Return True if enough commits were shipped to upload a checkpoint."""
        if self.uploading:
            return False
        restoring = self._since / AT_ONCE * self._seconds
        return (
            self._since >= MOST_COMMITS
            or self._since_bytes >= _MOST_BYTES
            or restoring > self._restore_seconds
        )

    def upload_of(self, folder: Path, last: CommitId) -> Callable[[], None]:
        """A function that ships the checkpoint in ``folder``, which is as of the last commit. Call
        it while commits continue.

        The task may be handed over meanwhile, which is not an error here: an owner that still
        writes learns of it at its next commit.
        """
        self.uploading = True
        return partial(self._upload_beside, folder, last, self.at, self._since, self._since_bytes)

    def _upload_beside(
        self, folder: Path, last: CommitId, base: int, since: int, since_bytes: int
    ) -> None:
        fails = "a checkpoint could not be shipped"
        try:
            self._upload(folder, last, base)
            self._since -= since
            self._since_bytes -= since_bytes
            fails = "what checkpoints replace could not be removed"
            self._sweep()
        except TaskFenced:
            log.info(
                "a checkpoint is not shipped, because another container now has the task",
                place=self.url,
            )
        except StateError as error:
            log.warning(
                f"{fails}; it is retried with the next checkpoint",
                place=self.url,
                reason=str(error),
            )
        finally:
            self.uploading = False

    def _upload(self, folder: Path | None, last: CommitId, base: int) -> None:
        """Ship the files in ``folder``: the state after the entry ``base``."""
        before = self._kept[-1].files.values() if self._kept else ()
        known = {stored.hash: stored for stored in before}
        files: dict[str, StoredFile] = {}
        with self._files.translate_errors():
            for path in [] if folder is None else sorted(folder.iterdir()):
                if path.name in _NOT_SHIPPED or path.name.startswith("LOG."):
                    continue
                digest, size = self._hash(path), path.stat().st_size
                stored = known.get(digest)
                if stored is None:
                    name = remote_log.file_name(self.owner.fence, digest)
                    stored = StoredFile(name, size, digest)
                    self._files.put_file(path, f"{self._root}/files/{stored.object}")
                    known[digest] = stored
                files[path.name] = stored
        passing("ship.files")
        now = int(clocks.wall() * 1000)
        checkpoint = Checkpoint(self.owner, base, last, files, self._owners, now)
        self._append(checkpoint)
        self._kept = [*self._kept, checkpoint][-2:]
        passing("ship.checkpoint")

    def _hash(self, path: Path) -> str:
        if path.suffix != ".sst":
            return hash_of(path)
        stat = path.stat()
        place = stat.st_ino, stat.st_mtime_ns, stat.st_size
        if place not in self._hashes:
            self._hashes[place] = hash_of(path)
        return self._hashes[place]

    def _sweep(self) -> None:
        """Remove what the last two checkpoints replace; leftovers are removed at another time."""
        if len(self._kept) < 2:
            return
        self.run(remote_log.sweep(self._kept[0].base, self._removable, self.url))
        unused = remote_log.unused(self.names_in("files"), self.owner, self._kept)
        with self._files.translate_errors():
            self._files.remove(f"{self._root}/files/{name}" for name in unused)

    # -- objects -----------------------------------------------------------------------------

    def _append(self, entry: Commit | Checkpoint) -> tuple[int, int]:
        """Append an entry; returns its number, and its size in bytes."""
        assert self._appender is not None
        with self._appending:
            number = self.run(self._appender.add(entry))
        self._note(number, entry)
        return number, self._appender.size

    def run(self, steps: Generator[Any, Any, R]) -> R:
        """Answer the requests of the log's functions."""
        try:
            request = next(steps)
            while True:
                try:
                    with self._files.translate_errors():
                        answer = self._answer(request)
                except StateError as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as done:
            result: R = done.value
            return result

    def _answer(self, request: remote_log.Request) -> Any:
        match request:
            case remote_log.Put(place, data, True):
                return self._files.put_new(f"{self._root}/{place}", data)
            case remote_log.Put(place, data):
                return self._files.put(f"{self._root}/{place}", data)
            case remote_log.Names(folder):
                return self._files.names(f"{self._root}/{folder}")
            case remote_log.Both():
                return self._files.names_below(self._root, ("claims", "log"))
            case remote_log.Get(places):
                found = self._files.get(f"{self._root}/{place}" for place in places)
                self.fetched += len(places)
                return found
            case remote_log.Remove(places):
                return self._files.remove(f"{self._root}/{place}" for place in places)

    def names_in(self, folder: str) -> list[str]:
        with self._files.translate_errors():
            return self._files.names(f"{self._root}/{folder}")


def check_newest(url: str, task: str, database: Database) -> None:
    """Raise StateError if the copy at ``url`` is not at the last commit of a task's ``database``.
    The task is no longer shipped there. If the copy cannot be read, that is logged."""
    root, cluster, app = url.rsplit("/", 2)
    known = known_of(database)
    try:
        last = RemoteTask(RemoteFiles(root, Path(cluster) / app), task).last()
    except (StateError, ConfigError) as error:
        log.warning(
            "a task was shipped until now, and its copy cannot be read; if another node has "
            "continued from the copy, its work is missing here",
            task=task,
            commit=known[1],
            reason=str(error),
        )
        return
    if last not in (None, known):
        assert last is not None
        raise StateError(
            f"task folder {task!r} has commit {known[1]}, and {url}, where it was shipped until "
            f"now, has commit {last[1]}. Set s4.state.url to its former value. To change it, or to "
            f"stop shipping, start the job once with the former value on the node where the task "
            f"is to run, stop it, and then change the value; to continue from this folder anyway, "
            f"remove {url}"
        )


def hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
