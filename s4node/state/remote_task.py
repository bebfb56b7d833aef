"""The copy of a task's state at a URL: claims, commits, and the files of checkpoints.

Rules
- :mod:`s4node.state.remote_manifest` decides; this module reads and writes. All calls block: make
  them in threads, and for one task one at a time, except ``upload``.
- A commit is shipped before it is written to the node's own folder. So that folder is never ahead
  of the copy, and a restore only fetches what it lacks.
- A folder whose last commit has an unknown owner was never shipped here and is refused: only the
  user can know which of the two states is right.
- A job that stops shipping, or ships to another URL, resumes from its folder only if no other owner
  has continued from the copy.
- The files of a checkpoint are shipped once each, as their names are hashes. Sizes, hashes and
  names are checked when they are read.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from s4node import clocks, tokens
from s4node.errors import ConfigError, StateError, StoreCorrupt, TaskFenced
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.state import remote_manifest
from s4node.state.commit_id import known_of, owners_of, shipped_of
from s4node.state.database import Database, empty
from s4node.state.remote_files import RemoteFiles
from s4node.state.remote_manifest import Batch, Manifest, StoredFile

log = get_logger("s4node.state")

Row = tuple[bytes, bytes | None]

_MOST_BATCHES = 1000
_MOST_BYTES = 64 << 20
_MAGIC = b"S4b1"
_NOT_SHIPPED = {"LOCK", "LOG", "complete", "damaged"}
_FOLDERS = ("claims", "manifests", "batches", "files")
_encode = msgspec.msgpack.Encoder().encode
_decode_rows = msgspec.msgpack.Decoder(list[tuple[bytes, bytes | None]]).decode
_decode_manifest = msgspec.json.Decoder(Manifest).decode


class _Claim(msgspec.Struct):
    """The contents of a claim: the coordination that assigned the task, and its epoch."""

    origin: str
    epoch: int


Source = Callable[[], Database | None]
"""Opens the node's own database, which may be behind; None if there is none that can be used."""


class RemoteTask:
    """The copy of a task; ``name`` is that of its folder. Call ``claim``, then ``restored``, then
    ``begin``."""

    def __init__(self, files: RemoteFiles, name: str) -> None:
        self._files = files
        self._root = f"{files.root}/tasks/{name}"
        self.url = f"{files.url}/tasks/{name}"
        self._fence = 0
        self._owners: dict[int, str] = {}
        self._latest: Manifest | None = None  # the last one written or read
        self._hashes: dict[tuple[int, int, int], str] = {}
        """Hashes of finished files by inode, time and size, as an inode may be reused."""
        self._since = 0  # batches since the last checkpoint
        self._since_bytes = 0
        self._puts = 0  # the manifests that this owner has put
        self.uploading = False

    # -- who owns it -------------------------------------------------------------------------

    def highest(self) -> int:
        """The highest fence under which the task is claimed; 0 if there is none."""
        with self._files.told():
            for folder in _FOLDERS:
                self._files.make_folder(f"{self._root}/{folder}")
            return max(remote_manifest.fences(self._names("claims")), default=0)

    def claim(self, fence: int, origin: str, epoch: int) -> None:
        """Claim the task under ``fence``, which is higher than all others.

        Raises TaskFenced if another owner has claimed it meanwhile, or in a later epoch of
        ``origin``.
        """
        mine = remote_manifest.name_of(fence, tokens.fresh(8))
        with self._files.told():
            for name in self._names("claims"):
                claimed = msgspec.json.decode(self._get("claims", name), type=_Claim)
                if (claimed.origin, claimed.epoch > epoch) == (origin, True):
                    raise TaskFenced(
                        f"{self.url} now belongs to epoch {claimed.epoch}, and this container has "
                        f"epoch {epoch}; it stops, because two owners would count twice"
                    )
            self._put("claims", mine, msgspec.json.encode(_Claim(origin, epoch)))
            passing("ship.claimed")
            others = [name for name in self._names("claims") if name != mine]
            if max(remote_manifest.fences(others), default=0) >= fence:
                self._remove("claims", [mine])
                raise TaskFenced(
                    f"another container is taking over {self.url} right now; this container stops"
                )
        self._fence = fence

    def _check_claim(self) -> None:
        """Raise TaskFenced if another owner has claimed the task."""
        if max(remote_manifest.fences(self._names("claims")), default=0) > self._fence:
            raise TaskFenced(
                f"another container has taken over {self.url}; this container stops, and the other "
                f"one processes again what came after the last commit"
            )

    # -- taking over -------------------------------------------------------------------------

    def restored(self, own: Path, local: Source, make: Callable[[Path], Database]) -> Database:
        """The current database in the folder ``own``: ``local`` with what it lacks, or the copy.

        Raises StoreCorrupt if no sound copy is left.
        """
        with self._files.told():
            manifests = self._manifests()
            there = remote_manifest.batches_of(self._names("batches"))
        if not manifests:
            database = local()
            return make(own) if database is None else self._first(database)
        newest = manifests[-1]
        self._owners = {f: name for one in manifests for f, name in one.owners.items()}
        for manifest in reversed(manifests):
            batches = remote_manifest.chain(manifest, there)
            try:
                database, batches = self._filled(manifest, batches, own, local, make)
            except StoreCorrupt as error:
                log.error(
                    "a shipped checkpoint is damaged; resuming from the one before it",
                    place=self.url,
                    manifest=manifest.name,
                    reason=str(error),
                )
                empty(own)
                continue
            last = (batches or [manifest.base])[-1]
            if last[1] < newest.commit:
                log.error(
                    "commits of a task are missing; inputs are processed again from the last one "
                    "found, and events that producers were told are safe may be lost",
                    place=self.url,
                    found=last[1],
                    written=newest.commit,
                )
            self._latest = msgspec.structs.replace(manifest, commit=last[1], batches=batches)
            self._since = len(batches)
            return database
        raise StoreCorrupt(
            f"all {len(manifests)} checkpoints at {self.url} are damaged; restore one from a "
            f"backup, or remove it to start again"
        )

    def _filled(
        self,
        manifest: Manifest,
        batches: list[Batch],
        own: Path,
        local: Source,
        make: Callable[[Path], Database],
    ) -> tuple[Database, list[Batch]]:
        """The database, and the batches after the manifest's files that it has."""
        database = local()
        lacking = None
        if database is not None:
            try:
                self._check_shipped(database, (batches or [manifest.base])[-1], own.parent)
            except StateError:
                database.close()
                raise
            lacking = remote_manifest.behind(manifest.base, batches, known_of(database))
            if lacking is None:
                database.close()
                empty(own)
        if database is None or lacking is None:
            log.info("state is being fetched", place=self.url, manifest=manifest.name)
            self._fetch(manifest, own)
            database, lacking = make(own), batches
        try:
            for batch in lacking:
                rows = self._batch(batch)
                if rows is None:
                    return database, batches[: batches.index(batch)]
                database.write([row for row, _ in rows], [value for _, value in rows])
        except BaseException:
            database.close()
            raise
        return database, batches

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

    def _check_shipped(self, database: Database, last: Batch, folder: Path) -> None:
        """Raise StateError unless the folder's own database is a part of the copy. ``last`` is the
        last commit of the copy."""
        fence, number, _ = known_of(database)
        ours = self._owners.get(fence) == owners_of(database).get(fence)
        if number and not (ours and number <= last[1]):
            raise StateError(
                f"{folder} has commit {number}, which was written without s4.state.url, or with "
                f"another one, and never shipped to {self.url}, where the last is {last[1]}. To "
                f"continue from the shipped state, remove {folder}, which loses its later commits; "
                f"to continue from the folder, remove {self.url}"
            )

    def last(self) -> Batch | None:
        """The last commit of the copy; None if there is none."""
        with self._files.told():
            manifests = self._manifests()
            there = remote_manifest.batches_of(self._names("batches"))
        if not manifests:
            return None
        return (remote_manifest.chain(manifests[-1], there) or [manifests[-1].base])[-1]

    def replaced(self) -> int:
        """The number of the last commit of the copy, which the state of this owner replaces; 0 if
        there is none. Its owners stay known, so that their folders are not taken for others."""
        with self._files.told():
            self._owners = {
                fence: name for one in self._manifests() for fence, name in one.owners.items()
            }
        last = self.last()
        return 0 if last is None else last[1]

    def _fetch(self, manifest: Manifest, own: Path) -> None:
        for name, stored in manifest.files.items():
            place = own / name
            with self._files.told():
                try:
                    self._files.fs.get_file(f"{self._root}/files/{stored.object}", str(place))
                except FileNotFoundError as error:
                    raise StoreCorrupt(f"{self.url}/files/{stored.object} is missing") from error
            if (place.stat().st_size, _hash(place)) != (stored.size, stored.hash):
                raise StoreCorrupt(f"{self.url}/files/{stored.object} has other contents than put")

    def _batch(self, batch: Batch) -> list[Row] | None:
        name = remote_manifest.batch_name(batch)
        with self._files.told():
            try:
                rows = _unpacked(self._get("batches", name))
            except FileNotFoundError:
                rows = None
        if rows is None:
            log.error(
                "a shipped commit is damaged; resuming from the one before it",
                place=f"{self.url}/batches/{name}",
            )
        return rows

    @property
    def job_url(self) -> str:
        """The URL of the job."""
        return self._files.url

    def take_over(self, last: Batch, owners: Mapping[int, str], folder: Callable[[], Path]) -> None:
        """Write, before the first commit, a manifest of the state that this owner starts from.

        ``last`` is the last commit and ``owners`` are all owners including this one, as in
        :mod:`s4node.state.commit_id`. ``folder`` makes a checkpoint; it is called if nothing has
        been shipped yet.
        """
        before = self._latest
        self._owners = {**self._owners, **owners}
        if before is None:
            self._upload(folder() if last[1] else None, last)
            return
        with self._files.told():
            self._write(self._manifest(last, before.base, before.files, before.batches))
            self._check_claim()

    # -- commits -----------------------------------------------------------------------------

    def commit(self, commit: Batch, rows: list[Row]) -> None:
        """Ship a commit; it counts when this returns.

        Raises StateError if the commit may or may not be shipped: ship another try, with all
        changes since. Raises TaskFenced if the task has another owner.
        """
        data = _packed(rows)
        with self._files.told():
            passing("ship.put")
            self._put("batches", remote_manifest.batch_name(commit), data)
            passing("ship.there")
            self._check_claim()
            passing("ship.counts")
        self._since += 1
        self._since_bytes += len(data)

    @property
    def due(self) -> bool:
        """Return True if enough batches were shipped to upload a checkpoint."""
        much = self._since >= _MOST_BATCHES or self._since_bytes >= _MOST_BYTES
        return much and not self.uploading

    def upload(self, folder: Path, last: Batch) -> None:
        """Ship the checkpoint in ``folder``, as of commit ``last``, while commits continue.

        The task may be handed over meanwhile, which is not an error here: an owner that still
        writes learns of it at its next commit.
        """
        try:
            with self._files.told():
                self._check_claim()
            since, since_bytes = self._since, self._since_bytes
            self._upload(folder, last)
            self._since -= since
            self._since_bytes -= since_bytes
            self._sweep()
        except TaskFenced:
            log.info(
                "a checkpoint is not shipped, because another container now has the task",
                place=self.url,
            )
        except StateError as error:
            log.warning(
                "a checkpoint could not be shipped; it is retried with the next one",
                place=self.url,
                reason=str(error),
            )
        finally:
            self.uploading = False

    def _upload(self, folder: Path | None, last: Batch) -> None:
        before = self._latest.files.values() if self._latest is not None else ()
        known = {stored.hash: stored for stored in before}
        files: dict[str, StoredFile] = {}
        with self._files.told():
            for path in [] if folder is None else sorted(folder.iterdir()):
                if path.name in _NOT_SHIPPED or path.name.startswith("LOG."):
                    continue
                digest, size = self._hash(path), path.stat().st_size
                stored = known.get(digest)
                if stored is None:
                    stored = StoredFile(remote_manifest.name_of(self._fence, digest), size, digest)
                    self._files.put_file(path, f"{self._root}/files/{stored.object}")
                    known[digest] = stored
                files[path.name] = stored
            passing("ship.files")
            self._write(self._manifest(last, last, files, []))
            passing("ship.manifest")

    def _hash(self, path: Path) -> str:
        if path.suffix != ".sst":
            return _hash(path)
        stat = path.stat()
        place = stat.st_ino, stat.st_mtime_ns, stat.st_size
        if place not in self._hashes:
            self._hashes[place] = _hash(path)
        return self._hashes[place]

    def _manifest(
        self, last: Batch, base: Batch, files: dict[str, StoredFile], batches: list[Batch]
    ) -> Manifest:
        now = int(clocks.wall() * 1000)
        owners, self._puts = self._owners, self._puts + 1
        return Manifest(
            remote_manifest.FORMAT,
            self._fence,
            last[1],
            base,
            files,
            batches,
            now,
            owners,
            self._puts,
        )

    def _write(self, manifest: Manifest) -> None:
        self._put("manifests", manifest.name, msgspec.json.encode(manifest))
        self._latest = manifest

    def _sweep(self) -> None:
        """Remove what the newest manifests do not need; leftovers are removed at another time."""
        with self._files.told():
            manifests = {one.name: one for one in self._manifests()}
            files, batches = self._names("files"), self._names("batches")
            old, unused, passed = remote_manifest.doomed(
                self._fence, manifests, files, remote_manifest.batches_of(batches)
            )
            claims = self._names("claims")
            passed_claims = [n for n in claims if remote_manifest.fences([n])[0] < self._fence]
            self._check_claim()  # after our manifest was written, and before anything is removed
            self._remove("manifests", old)
            self._remove("files", unused)
            self._remove("batches", map(remote_manifest.batch_name, passed))
            self._remove("claims", passed_claims)

    # -- objects -----------------------------------------------------------------------------

    def _manifests(self) -> list[Manifest]:
        """All readable manifests, the newest last; unfinished ones are skipped."""
        found = []
        for name in sorted(self._names("manifests")):
            with suppress(msgspec.DecodeError, FileNotFoundError):
                manifest = _decode_manifest(self._get("manifests", name))
                if manifest.format != remote_manifest.FORMAT:
                    raise StateError(
                        f"{self.url}/manifests/{name} has format {manifest.format}, and this "
                        f"s4node reads {remote_manifest.FORMAT}; use the s4node that wrote it"
                    )
                if (misnamed := remote_manifest.misnamed(manifest)) is not None:
                    raise StateError(
                        f"{self.url}/manifests/{name} names a file {misnamed!r}, which s4node does "
                        f"not write and which may lead elsewhere; check who may write to "
                        f"s4.state.url, and remove that object to continue without it"
                    )
                found.append(manifest)
        return found

    def _names(self, folder: str) -> list[str]:
        names = self._files.names(f"{self._root}/{folder}")
        return [name for name in names if remote_manifest.fences([name])]

    def _get(self, folder: str, name: str) -> bytes:
        return bytes(self._files.fs.cat_file(f"{self._root}/{folder}/{name}"))

    def _put(self, folder: str, name: str, data: bytes) -> None:
        self._files.put(f"{self._root}/{folder}/{name}", data)

    def _remove(self, folder: str, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._files.fs.rm_file(f"{self._root}/{folder}/{name}")


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


def _packed(rows: list[Row]) -> bytes:
    body = _encode(rows)
    return _MAGIC + zlib.crc32(body).to_bytes(4, "big") + body


def _unpacked(data: bytes) -> list[Row] | None:
    """The rows; None if ``data`` is damaged."""
    body = data[8:]
    if data[:4] != _MAGIC or zlib.crc32(body).to_bytes(4, "big") != data[4:8]:
        return None
    return _decode_rows(body)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
