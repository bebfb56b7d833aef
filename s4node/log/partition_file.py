"""The writer's side of one partition of the log: its file, what is in it, and its transactions.

Rules
- A ``PartitionFile`` is written by one thread. It blocks, so it is called in threads.
- A group of frames is one transaction, with the numbers of its producers and the declarations of
  its types: after any crash the file holds all of it or nothing.
- A process that dies loses nothing that was committed, with any ``sync``: it is with the kernel by
  then. A power cut loses nothing with ``full``; with ``normal`` what was committed since the
  write-ahead log was last worked off, but the file is sound; with ``none`` it may damage the file.
- A new epoch of the partition begins when it is opened after anything but a clean close: its last
  events may be gone, and what comes has their offsets. Opening and closing wait for the disk,
  whatever ``sync`` is. With ``none`` no close is clean. A copy that was put back is another file.
- Only whole rows are deleted, from the old end. The oldest offset is written with them, so it
  survives the last row.
- The write-ahead log is worked off by a connection of its own (:meth:`PartitionFile.work_off`), in
  another thread, so that a commit rarely waits for the disk.
- What was written to a file that does not have the partition's name any more is NotTaken, too.
  SQLite opens what it may not write for reading alone, and leaves it at that: so it is opened again
  before a new try.
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
from s4node.events.schema import TypeDecl
from s4node.failpoints import passing
from s4node.log.ledger import Ledger, Plan
from s4node.log.partition_database import (
    PAGE_BYTES,
    NotTaken,
    PartitionDatabase,
)
from s4node.log.partition_rows import INSERT_FRAME, row_of
from s4node.log.retention import Held, Keep, Row, cut
from s4node.offsets.producer_offsets import KeptProducer

WAL_BYTES = 4 << 20
"""So much in the write-ahead log is worked off into the database beside the writing."""

MAX_WAL_BYTES = 16 << 20
"""So much is worked off at once, while the writer waits: it writes faster than the disk."""

_SYNCHRONOUS = {"none": "OFF", "normal": "NORMAL", "full": "FULL"}
_BUSY_MS = 50  # so long a write waits for others before it is tried again later
_STEP_ROWS = 128  # rows deleted at once
_STEP_PAGES = 16  # pages given back at once

_encoder = msgspec.msgpack.Encoder()
_type_decoder = msgspec.msgpack.Decoder(TypeDecl)


class PartitionFile:
    """The writing side of one partition's file; opens what :func:`create_database` has made.

    ``sync`` is none, normal or full. Raises StoreError where the file is another's or of a newer
    format, StoreCorrupt where it is damaged; any call may raise StoreCorrupt or NotTaken.
    """

    def __init__(self, path: Path, stream: str, number: int, sync: str = "normal") -> None:
        self.path = path
        self.below = 0
        """Rows that end there or before are to be deleted: somebody asked."""
        self.unworked = 0
        """Bytes written since the write-ahead log was last worked off, about."""
        self.let_go: Callable[[], None] = lambda: None
        """Closes the connections of readers, in the writer's thread: while one is open, SQLite does
        not ask again what may be written."""
        self._synchronous = f"PRAGMA synchronous = {_SYNCHRONOUS[sync]}"
        self._sync = sync
        self.epochs: tuple[tuple[int, int], ...] = ()
        """Each epoch, with the first offset of its events."""
        self._entered = False
        self._wal = path.with_name(f"{path.name}-wal")
        self._database = PartitionDatabase(path, "rw")
        try:
            with self._database.explained():
                self._opened = path.stat()
                self._database.check(stream, number)
                self._set_up()
                self._database.writing = True
                self.load()
                with contextlib.suppress(NotTaken):  # it is done before the first write, then
                    self._enter()
                # others' writes are waited for by trying again: it holds nobody up meanwhile
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
        # some builds overwrite what is deleted: deleting would cost as much as writing
        self._database.execute("PRAGMA secure_delete = OFF")
        self._database.execute(f"PRAGMA wal_autocheckpoint = {MAX_WAL_BYTES // PAGE_BYTES}")

    def _enter(self) -> None:
        """Begin an epoch, unless the file is as the last owner has closed it."""
        self._database.execute("PRAGMA synchronous = FULL")
        with self._database.transaction():
            clean = self._database.one("SELECT value FROM meta WHERE name = 'clean'")
            if clean != (self._opened.st_ino,):
                upcoming = self.ledger.upcoming
                last = self._database.one("SELECT ifnull(max(epoch), 0) FROM epochs")[0]
                epoch = max(int(clocks.wall() * 1000), last + 1)  # a copy's must not be equal
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
        self._entered = True

    def load(self) -> None:
        """Read the book from the file, as it stands there."""
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
                    name: KeptProducer(following, life, incarnation, bool(own_id))
                    for name, following, life, incarnation, own_id in producers
                },
                {declaration.fingerprint: declaration for declaration in declarations},
            )
            self.held = self._measured()

    def write(self, plan: Plan) -> None:
        """Write a plan of ``ledger`` in one transaction, and settle it."""
        if not plan.producers:
            return
        if not self._entered:
            with self._database.explained():
                self._enter()
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
        self.ledger.settle(plan)
        self.unworked += total - self._total + PAGE_BYTES
        self._total = total
        if rows:
            self._newest = plan.entries[-1].start
        self.held = self._measured()

    def delete(self, keep: Keep, now_ms: int) -> bool:
        """Delete some of the oldest rows that are to go; returns whether there were any."""
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
        """Give some free pages back to the disk, once the write-ahead log is worked off."""
        before = self.held.free
        with self._database.transaction():
            self._database.execute(f"PRAGMA incremental_vacuum({_STEP_PAGES})").fetchall()
        self.held = self._measured()
        return self.held.free < before

    def work_off(self) -> None:
        """Work the write-ahead log off, as far as nobody reads it; for another thread."""
        with (
            contextlib.suppress(sqlite3.Error, StoreError),  # the writer will
            contextlib.closing(PartitionDatabase(self.path, "rw")) as database,
        ):
            database.execute(self._synchronous)
            database.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def cut_wal(self) -> bool:
        """Work the write-ahead log off and empty its file; returns False while others use it."""
        with self._database.explained():
            busy = self._database.one("PRAGMA wal_checkpoint(TRUNCATE)")[0]
        self.unworked = 0
        self.held = self._measured()
        return not busy

    def forget(self, producers: Sequence[str]) -> None:
        """Forget producers: what they send again is no longer known as a repetition."""
        with self._database.transaction():
            self._database.executemany(
                "DELETE FROM producers WHERE id = ?", [(name,) for name in producers]
            )
        for name in producers:
            self.ledger.producers.pop(name, None)

    def ask(self, below: int) -> None:
        """Have rows deleted that end at or below an offset, by the next steps."""
        self.below = max(self.below, below)
        self.held = self.held._replace(below=self.below)

    @property
    def trimmed(self) -> bool:
        """Whether all that was asked for is deleted."""
        return self.below <= self._oldest or not self.held.size

    def close(self) -> None:
        """Close the file; everything that was written stays."""
        with contextlib.suppress(sqlite3.Error, StoreError, NotTaken):
            if self._entered and self._sync != "none":
                self._sizes()  # it is still the partition's
                self._database.execute("PRAGMA synchronous = FULL")
                with self._database.transaction():
                    self._database.execute(
                        "INSERT OR REPLACE INTO meta VALUES ('clean', ?)", (self._opened.st_ino,)
                    )
                passing("disk.synced")
        with contextlib.suppress(sqlite3.Error):
            self._database.close()

    def _open_again(self) -> None:
        """Take another connection: one that SQLite has opened without the right to write stays so,
        whatever rights are given later."""
        self._sizes()  # another file would get the write-ahead log of this file
        for beside in ("-wal", "-shm"):  # SQLite made them with the rights that the file had then
            with contextlib.suppress(OSError):
                self.path.with_name(f"{self.path.name}{beside}").chmod(self.path.stat().st_mode)
        try:
            database = PartitionDatabase(self.path, "rw", writing=True)
        except StoreError as error:
            raise NotTaken(str(error)) from error
        self._database.close()
        self._database = database
        self.let_go()
        database.read_only = True  # until it is set up: what fails here is done again
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
            file=max(pages * PAGE_BYTES, size),  # it shrinks with the log
            free=free * PAGE_BYTES,
            wal=wal,
        )

    def _sizes(self) -> tuple[int, int]:
        """The bytes of the file and of its write-ahead log, where they are still the partition's:
        SQLite goes on with a file that somebody has moved, and a restart would not find it."""
        status = self.path.stat() if self.path.exists() else None
        if status is None or not samestat(status, self._opened):
            raise NotTaken(
                f"{self.path} is not the file that was opened: it was moved or replaced while the "
                f"log is in use; put it back, or start the node again"
            )
        return status.st_size, self._wal.stat().st_size if self._wal.exists() else 0


class Standing(NamedTuple):
    """A partition as it stands on the disk, and what has changed there since the last one."""

    oldest: int
    upcoming: int
    size: int
    disk: int
    last_ms: int
    producers: Mapping[str, KeptProducer] = {}
    types: Mapping[int, TypeDecl] = {}
    forgotten: Sequence[str] = ()
    epochs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(
        cls,
        file: PartitionFile,
        producers: Mapping[str, KeptProducer] = {},
        types: Mapping[int, TypeDecl] = {},
        forgotten: Sequence[str] = (),
    ) -> Standing:
        """As the file says."""
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
