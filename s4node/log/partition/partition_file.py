"""The writer's side of a partition: its file, its ledger and its transactions.

Rules
- One thread writes a ``PartitionFile``. Its calls block.
- A group of frames is one transaction, together with the numbers of its producers and the
  declarations of its types: after any crash the file holds all of it or nothing.
- The death of the process loses no committed event, whatever ``sync`` is: the kernel has them. A
  power cut loses nothing with ``full``. With ``normal`` it loses the commits since the last
  checkpoint of the write-ahead log, but the file is sound. With ``none`` it may damage the file.
- Opening a file that was not closed cleanly begins a new epoch of the partition: its last events
  may be lost, and new events get their offsets. A copy that was put back counts as not closed.
  Opening and closing wait for the disk, whatever ``sync`` is; with ``none`` no close is clean.
- Only whole rows are deleted, oldest first. The oldest offset is written with the deletion, so it
  survives the last row.
- A second connection in another thread checkpoints the write-ahead log
  (:meth:`PartitionFile.work_off`), so a commit rarely waits for the disk.
- A write to a file that no longer has the partition's name is NotTaken, too. SQLite opens a file
  without write permission as read-only and never asks again, so it is reopened before a retry.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from os.path import samestat
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from s4node import clocks
from s4node.errors import StoreError
from s4node.events.type_declaration import TypeDecl
from s4node.failpoints import passing
from s4node.log.partition.ledger import Ledger, Plan
from s4node.log.partition.partition_database import PAGE_BYTES, NotTaken, PartitionDatabase
from s4node.log.partition.partition_rows import INSERT_FRAME, row_of
from s4node.log.partition.retention import Held, Keep, Row, cut
from s4node.offsets.checkpoint import SavedProducer

WAL_BYTES = 4 << 20
"""The size at which the write-ahead log is checkpointed beside the writing."""

MAX_WAL_BYTES = 16 << 20
"""The size at which the writer waits for a checkpoint: it writes faster than the disk."""

_SYNCHRONOUS = {"none": "OFF", "normal": "NORMAL", "full": "FULL"}
_BUSY_MS = 50  # a write waits this long for other programs before it is retried later
_STEP_ROWS = 128  # rows deleted at once
_STEP_PAGES = 16  # pages given back at once

_encoder = msgspec.msgpack.Encoder()
_type_decoder = msgspec.msgpack.Decoder(TypeDecl)


class PartitionFile:
    """The writer's side of a partition's file, which :func:`create_database` has made.

    ``sync`` is none, normal or full. Raises StoreError if the file is another partition's or has
    another format, StoreCorrupt if it is damaged; any call may raise StoreCorrupt or NotTaken.
    """

    def __init__(self, path: Path, stream: str, number: int, sync: str = "normal") -> None:
        self.path = path
        self.below = 0
        """Rows that end at or below this offset are to be deleted: a trim asked for it."""
        self.unworked = 0
        """The approximate bytes written since the last checkpoint of the write-ahead log."""
        self.let_go: Callable[[], None] = lambda: None
        """Closes the readers' connections, in the writer's thread: while one is open, SQLite does
        not check permissions again."""
        self._synchronous = f"PRAGMA synchronous = {_SYNCHRONOUS[sync]}"
        self._sync = sync
        self.epochs: tuple[tuple[int, int], ...] = ()
        """Each epoch, with its first offset."""
        self._has_epoch = False
        self._wal = path.with_name(f"{path.name}-wal")
        self._database = PartitionDatabase(path, "rw")
        try:
            with self._database.explained():
                self._opened = path.stat()
                self._database.check(stream, number)
                self._set_up()
                self._database.writing = True
                self.load()
                with contextlib.suppress(NotTaken):  # `write` tries again
                    self._begin_epoch()
                # short: a write that has to wait for others is retried, and blocks nobody meanwhile
                self._database.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        except NotTaken as error:
            self._database.close()
            raise StoreError(str(error)) from error
        except BaseException:
            self._database.close()
            raise

    def _set_up(self) -> None:
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute(self._synchronous)
        self._database.waits = self._sync == "full"
        # some builds overwrite deleted data, which would make a deletion as slow as a write
        self._database.execute("PRAGMA secure_delete = OFF")
        self._database.execute(f"PRAGMA wal_autocheckpoint = {MAX_WAL_BYTES // PAGE_BYTES}")

    def _begin_epoch(self) -> None:
        """Begin an epoch, unless the last owner closed the file cleanly."""
        self._database.execute("PRAGMA synchronous = FULL")
        with self._database.transaction():
            clean = self._database.one("SELECT value FROM meta WHERE name = 'clean'")
            if clean != (self._opened.st_ino,):
                upcoming = self.ledger.upcoming
                last = self._database.one("SELECT ifnull(max(epoch), 0) FROM epochs")[0]
                epoch = max(int(clocks.wall() * 1000), last + 1)  # never that of another copy
                self._database.execute("DELETE FROM epochs WHERE first >= ?", (upcoming,))
                self._database.execute("INSERT INTO epochs VALUES (?, ?)", (epoch, upcoming))
            self._database.execute(
                "DELETE FROM epochs WHERE epoch < (SELECT max(epoch) FROM epochs WHERE first <= ?)",
                (self._oldest,),
            )
            self._database.execute("DELETE FROM meta WHERE name = 'clean'")
        passing("disk.synced")
        self._database.execute(self._synchronous)
        found = self._database.execute("SELECT epoch, first FROM epochs ORDER BY epoch")
        self.epochs = tuple(found)
        self._has_epoch = True

    def load(self) -> None:
        with self._database.explained():
            if self._database.read_only:
                self._open_again()
            self._oldest = self._database.one("SELECT value FROM meta WHERE name = 'oldest'")[0]
            last = self._database.one(
                "SELECT first + count, appended_ms, total, start FROM frames ORDER BY start DESC"
            )
            upcoming, last_ms, total, newest = last or (self._oldest, 0, 0, 0)
            self._total: int = total
            self._newest: int = newest
            producers = self._database.execute(
                "SELECT id, next, life, incarnation, own_id FROM producers"
            )
            types = self._database.execute("SELECT declaration FROM types")
            declarations = [_type_decoder.decode(row[0]) for row in types]
            self.ledger = Ledger(
                upcoming,
                last_ms,
                {
                    name: SavedProducer(following, life, incarnation, bool(own_id))
                    for name, following, life, incarnation, own_id in producers
                },
                {declaration.fingerprint: declaration for declaration in declarations},
            )
            self.held = self._measured()

    def write_plan(self, plan: Plan) -> None:
        """Write a plan of ``ledger`` in one transaction, and apply it to the ledger."""
        if not plan.producers:
            return
        if not self._has_epoch:
            with self._database.explained():
                self._begin_epoch()
        total = self._total
        rows: list[tuple[Any, ...]] = []
        for entry in plan.entries:
            rows.append(row_of(entry, total))
            total = rows[-1][4]
        with self._database.transaction():
            self._database.executemany(INSERT_FRAME, rows)
            self._database.executemany(
                "INSERT OR REPLACE INTO producers VALUES (?,?,?,?,?)",
                [
                    (name, row.number, row.life, row.incarnation, row.own_id)
                    for name, row in plan.producers.items()
                ],
            )
            if plan.types:
                self._database.executemany(
                    "INSERT OR IGNORE INTO types VALUES (?,?)",
                    [
                        (mark.to_bytes(8, "big"), _encoder.encode(declaration))
                        for mark, declaration in plan.types.items()
                    ],
                )
        self.ledger.apply(plan)
        self.unworked += total - self._total + PAGE_BYTES
        self._total = total
        if rows:
            self._newest = plan.entries[-1].start
        self.held = self._measured()

    def delete_rows(self, keep: Keep, now_ms: int) -> bool:
        """Delete some of the oldest rows that are due; returns whether there were any."""
        with self._database.transaction():
            rows = self._database.execute(
                "SELECT start, first + count, appended_ms, size FROM frames ORDER BY start LIMIT ?",
                (_STEP_ROWS,),
            )
            found = [Row(*row) for row in rows]
            gone = cut(found, self.held, keep, now_ms, self._newest)
            if gone > self._oldest:
                self._database.execute("DELETE FROM frames WHERE start < ?", (gone,))
                self._database.execute("UPDATE meta SET value = ? WHERE name = 'oldest'", (gone,))
        if gone == self._oldest:
            self.below = 0
            self.held = self.held._replace(below=0)
            return False
        self._oldest = gone
        self.held = self._measured()
        return True

    def shrink(self) -> bool:
        """Return some free pages to the disk; the file shrinks at the next checkpoint."""
        before = self.held.free
        with self._database.transaction():
            self._database.execute(f"PRAGMA incremental_vacuum({_STEP_PAGES})").fetchall()
        self.held = self._measured()
        return self.held.free < before

    def work_off(self) -> None:
        """Checkpoint the write-ahead log as far as readers allow; for another thread."""
        with (
            contextlib.suppress(sqlite3.Error, StoreError),  # then the writer does it
            contextlib.closing(PartitionDatabase(self.path, "rw")) as database,
        ):
            database.execute(self._synchronous)
            database.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def cut_wal(self) -> bool:
        """Checkpoint and empty the write-ahead log; returns False while others use it."""
        with self._database.explained():
            busy = self._database.one("PRAGMA wal_checkpoint(TRUNCATE)")[0]
        self.unworked = 0
        self.held = self._measured()
        return not busy

    def forget(self, producers: Sequence[str]) -> None:
        """Delete the rows of producers: what they send again is appended again."""
        with self._database.transaction():
            self._database.executemany(
                "DELETE FROM producers WHERE id = ?", [(name,) for name in producers]
            )
        for name in producers:
            self.ledger.producers.pop(name, None)

    def ask(self, below: int) -> None:
        """Have the next steps delete the rows that end at or below an offset."""
        self.below = max(self.below, below)
        self.held = self.held._replace(below=self.below)

    @property
    def trimmed(self) -> bool:
        """Return True if the rows that a trim asked for are deleted."""
        return self.below <= self._oldest or not self.held.size

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error, StoreError, NotTaken):
            if self._has_epoch and self._sync != "none":
                self._sizes()  # raises NotTaken if the file has been moved
                self._database.execute("PRAGMA synchronous = FULL")
                with self._database.transaction():
                    self._database.execute(
                        "INSERT OR REPLACE INTO meta VALUES ('clean', ?)", (self._opened.st_ino,)
                    )
                passing("disk.synced")
        with contextlib.suppress(sqlite3.Error):
            self._database.close()

    def _open_again(self) -> None:
        """Replace the connection after a failed write. SQLite keeps a read-only one read-only, even
        after the permissions have been fixed."""
        self._sizes()  # or this file's write-ahead log would be applied to another file
        for beside in ("-wal", "-shm"):  # SQLite gave them the permissions that the file had
            with contextlib.suppress(OSError):
                self.path.with_name(f"{self.path.name}{beside}").chmod(self.path.stat().st_mode)
        try:
            database = PartitionDatabase(self.path, "rw", writing=True)
        except StoreError as error:
            raise NotTaken(str(error)) from error
        self._database.close()
        self._database = database
        self.let_go()
        database.read_only = True  # until it is set up: a failure here leads to another reopening
        with database.explained():
            database.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            self._set_up()
        database.read_only = False

    def _measured(self) -> Held:
        with self._database.explained():
            first = self._database.one(
                "SELECT start, appended_ms, total - size FROM frames ORDER BY start"
            )
            pages, free = self._database.one(
                "SELECT * FROM pragma_page_count, pragma_freelist_count"
            )
            size, wal = self._sizes()
        oldest, oldest_ms, before = first or (self._oldest, 0, self._total)
        self._oldest = oldest
        return Held(
            oldest=oldest,
            size=self._total - before,
            oldest_ms=oldest_ms,
            several=first is not None and oldest < self._newest,
            last_ms=self.ledger.last_ms,
            below=self.below,
            file=max(pages * PAGE_BYTES, size),  # the file shrinks only at a checkpoint
            free=free * PAGE_BYTES,
            wal=wal,
        )

    def _sizes(self) -> tuple[int, int]:
        """The bytes of the file and of its write-ahead log; NotTaken if the file was moved. SQLite
        would keep writing to a moved file, which a restart does not find."""
        status = self.path.stat() if self.path.exists() else None
        if status is None or not samestat(status, self._opened):
            raise NotTaken(
                f"{self.path} is not the file that the log opened: it was moved or replaced while "
                f"in use; put it back, or restart the node"
            )
        return status.st_size, self._wal.stat().st_size if self._wal.exists() else 0


class Standing(NamedTuple):
    """The state of a partition on disk, and what changed since the previous one."""

    oldest: int
    upcoming: int
    size: int
    disk: int
    last_ms: int
    producers: Mapping[str, SavedProducer] = {}
    types: Mapping[int, TypeDecl] = {}
    forgotten: Sequence[str] = ()
    epochs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_file(
        cls,
        file: PartitionFile,
        producers: Mapping[str, SavedProducer] = {},
        types: Mapping[int, TypeDecl] = {},
        forgotten: Sequence[str] = (),
    ) -> Standing:
        held, ledger = file.held, file.ledger
        return cls(
            held.oldest,
            ledger.upcoming,
            held.size,
            held.disk,
            ledger.last_ms,
            producers,
            types,
            forgotten,
            file.epochs,
        )
