"""The database of a task: RocksDB in a folder of its own.

Rules
- A write is a whole commit: after a crash all of it is there, or nothing. Any thread may read.
- RocksDB holds the interpreter's lock while it takes a batch, so a commit of many rows is written
  in pieces, and other threads run in between. All pieces are first saved beside the rows; from one
  small write on they count, and the next owner writes the missing ones. Readers may see some pieces
  before others; the rows of a commit under way are read from memory until it ends. For the same
  reason the databases of a process take turns, piece by piece: a small commit does not wait for a
  large one of another task.
- A killed process loses no commit. What a power cut loses depends on ``s4.state.sync``: without it,
  the commits that the system had not yet written to disk.
- One process uses a database at a time; a folder that is open in another one is refused.
- Errors of RocksDB become StoreCorrupt if the database is damaged, else StateError.
- After a failed write RocksDB accepts no other, so the next write reopens the database. Readers
  wait meanwhile. While that fails, because the disk is still full, rows can be read all the same.
- Damage is found when it is read: a missing or truncated file, and a bad checksum in the log of
  commits, when the database is opened; a bad checksum in a table when its row is read. A file in
  the folder then marks the database as damaged for the next owner.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from s4node import clocks, disk, threads
from s4node.errors import StateError, StoreCorrupt
from s4node.failpoints import passing
from s4node.open_files import opened
from s4node.state.rows import META, PREFIX_BYTES, REDO, TASK_GROUP, prefix, task_row

FORMAT = b"1"
"""The version of the rows; a database of another version is refused."""

DAMAGED = "damaged"
"""The file in a database's folder that says which damage was found in it."""

_VERSION_ROW = task_row(META, b"format")
CACHE_BYTES = 64 << 20
"""The memory for file contents, indexes and filters of all databases of a process."""

_NEWEST_FILTER = 0.02
"""The share of the memory for new rows that is used to filter their keys: some ten bits a row."""

_CHUNK = 64
_VERIFY_TRIES = 5

PIECE_ROWS = 4096
"""The rows of one piece; writing it takes a few milliseconds."""

_PAUSE_SECONDS = 0.0002
"""The pause between two pieces, in seconds, in which other threads run. Without it the writer takes
the interpreter's lock for 5 ms whenever the loop releases it, which is at each call of a socket."""

_LOOK_SECONDS = 0.005

_PIECES_ROW = task_row(REDO, b"")
_NUMBER = struct.Struct(">I")

R = TypeVar("R")
_turn = threading.Lock()
_cache = Cache(CACHE_BYTES)
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Any]).decode


class Database:
    """The rows of one task.

    With ``salvage`` a damaged log of commits is read up to the damage; without it, it is refused.
    """

    def __init__(
        self,
        folder: Path,
        *,
        sync: bool = False,
        write_buffer_bytes: int = 8 << 20,
        salvage: bool = False,
    ) -> None:
        self.folder = folder
        self.sync = sync
        self._broken = False  # True after a failed write,
        self._torn = False  # and while only some pieces of a commit are written
        self._opening = threading.RLock()
        self._reading = threading.Lock()  # a snapshot, which keeps the database open
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(write_buffer_bytes)
        options.set_max_write_buffer_number(4)  # waiting for a buffer holds the interpreter's lock
        # most reads are of rows that were written long ago: skip the search among the newest
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(_NEWEST_FILTER)
        options.set_keep_log_file_num(2)
        options.set_max_open_files(512)
        # a large index and filter would not stay in the cache, and splitting them in two levels
        # would double the cost of each read
        options.set_target_file_size_base(2 << 20)
        options.set_target_file_size_multiplier(2)
        blocks = BlockBasedOptions()
        blocks.set_block_cache(_cache)
        blocks.set_bloom_filter(10, False)
        blocks.set_cache_index_and_filter_blocks(True)
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
        options.set_block_based_table_factory(blocks)
        options.set_wal_recovery_mode(
            DBRecoveryMode.point_in_time()
            if salvage
            else DBRecoveryMode.tolerate_corrupted_tail_records()
        )
        self._options = options
        self._write_options = WriteOptions()
        self._write_options.sync = sync
        with self._translated():
            disk.make_folder(folder)
            self._db = Rdict(str(folder), options)
            options.create_if_missing(False)  # if it is opened again, it has to be there
            try:
                version = self._db.get(_VERSION_ROW)
                if version is None:
                    self._db[_VERSION_ROW] = FORMAT
            except BaseException:
                self._db.close()
                raise
        opened(self, folder)
        if version not in (None, FORMAT):
            self.close()
            raise StateError(
                f"{folder} has the format {version!r}, which this version does not know; use the "
                f"version of s4node that wrote it, or a newer one"
            )
        try:
            self._redo()
        except BaseException:
            self._db.close()
            raise

    def get(self, row: bytes) -> bytes | None:
        if self._torn:
            self._check_whole()
        try:
            return self._db.get(row)
        except Exception as error:
            return self._again(error, lambda: self._db.get(row))

    def get_many(self, rows: list[bytes]) -> list[bytes | None]:
        if self._torn:
            self._check_whole()
        try:
            return self._db.get(rows)  # type: ignore[arg-type,return-value]
        except Exception as error:
            return self._again(error, lambda: self._db.get(rows))  # type: ignore[arg-type,return-value]

    @contextmanager
    def committed(self, seconds: float) -> Iterator[list[Any]]:
        """A snapshot of RocksDB with the last commit, for a block that may be in any thread; in a
        list, from which it is taken at the end.

        Closing waits for the block, so keep it short. Raises StateError if a commit is being
        written for longer than ``seconds``.
        """
        until = clocks.steady() + seconds
        while True:
            with self._reading, self._translated():
                held = [self._db.snapshot()]
                try:
                    if self._has_no_pieces(held[0]):
                        yield held
                        return
                finally:
                    held.clear()  # which keeps the database open
            if clocks.steady() > until:
                raise StateError("a commit is being written; ask again in some seconds")
            threads.pause(_LOOK_SECONDS)

    def _has_no_pieces(self, snapshot: Any) -> bool:
        it = snapshot.iter()
        it.seek(_PIECES_ROW)
        return not (it.valid() and it.key() == _PIECES_ROW)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows from ``start`` to before ``end``, in order.

        A few rows at a time are read, so that other threads may write meanwhile.
        """
        while True:
            chunk = self.chunk(start, end, _CHUNK)
            yield from chunk
            if len(chunk) < _CHUNK:
                return
            start = chunk[-1][0] + b"\x00"

    def table(self, number: int) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a table, by key group; passes over those of other tables."""
        start = prefix(0, number)
        while start:
            found, start = self._read(self._chunk_of_table, start, number)
            yield from found

    def chunk(self, start: bytes, end: bytes, rows: int) -> list[tuple[bytes, bytes]]:
        """At most ``rows`` rows from ``start`` to before ``end``, in order."""
        return self._read(self._chunk, start, end, rows)

    def _read(self, read: Callable[..., R], *arguments: Any) -> R:
        if self._torn:
            self._check_whole()
        try:
            return read(*arguments)
        except Exception as error:
            return self._again(error, lambda: read(*arguments))

    def _chunk_of_table(self, start: bytes, number: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """A few rows of a table from ``start`` on, and where to continue; no bytes at the end."""
        table = number.to_bytes(2, "big")
        found: list[tuple[bytes, bytes]] = []
        it = self._db.iter()
        try:
            it.seek(start)
            while it.valid():
                row = it.key()
                if row[2:PREFIX_BYTES] == table:
                    if len(found) >= _CHUNK:
                        return found, row
                    found.append((row, it.value()))
                    it.next()
                    continue
                group = int.from_bytes(row[:2], "big") + (row[2:PREFIX_BYTES] > table)
                if group > TASK_GROUP:
                    break
                it.seek(prefix(group, number))
            it.status()
        finally:
            del it  # as in _chunk
        return found, b""

    def _chunk(self, start: bytes, end: bytes, rows: int) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        it = self._db.iter()
        try:
            it.seek(start)
            while it.valid() and len(found) < rows:
                key = it.key()
                if key >= end:
                    break
                found.append((key, it.value()))
                it.next()
            it.status()
        finally:
            del it  # a traceback would keep the iterator, and the iterator the database
        return found

    def _check_whole(self) -> None:
        """Complete a commit of which only some pieces could be written; raises StateError."""
        with self._translated(), self._opening:
            if self._broken:
                self._open_again()

    def _again(self, error: Exception, read: Callable[[], R]) -> R:
        """Read again if the database was being reopened; else raise the error."""
        with self._translated():
            if not isinstance(error, DbClosedError):
                raise error
            with self._opening:
                pass
            return read()

    def write(self, rows: list[bytes], values: list[bytes | None]) -> int:
        """Write the rows; a value of None deletes its row. Returns the bytes written.

        Call it in a thread: it may take long.
        """
        with self._translated():
            if self._broken:
                self._open_again()
            try:
                if len(rows) <= PIECE_ROWS:
                    return self._write(rows, values)
                return self._write_in_pieces(rows, values)
            except BaseException:
                with self._opening:
                    self._broken = True
                    if self._torn and self._open_again():
                        return 0  # the commit counted, and reopening has completed it
                raise

    def fill(self, rows: list[bytes], values: list[bytes | None]) -> None:
        """Write rows of a database that counts only once it is whole, each row once.

        After an error, or a crash, it has a part of them. Call it in a thread: it may take long.
        """
        with self._translated():
            for at in range(0, len(rows), PIECE_ROWS):
                if at:
                    threads.pause(_PAUSE_SECONDS)
                self._write(rows[at : at + PIECE_ROWS], values[at : at + PIECE_ROWS])

    def _write(self, rows: list[bytes], values: list[bytes | None]) -> int:
        passing("disk.write")
        batch = WriteBatch(raw_mode=True)
        with _turn:
            if None in values:
                for row, value in zip(rows, values, strict=True):
                    if value is None:
                        batch.delete(row)
                    else:
                        batch.put(row, value)
            else:
                deque(map(batch.put, rows, values), maxlen=0)
            size: int = batch.size_in_bytes()
            self._db.write(batch, self._write_options)
        if self.sync:
            passing("disk.synced")
        return size

    def _write_in_pieces(self, rows: list[bytes], values: list[bytes | None]) -> int:
        starts = range(0, len(rows), PIECE_ROWS)
        size = 0
        for number, at in enumerate(starts):
            threads.pause(_PAUSE_SECONDS)
            piece = [*rows[at : at + PIECE_ROWS], *values[at : at + PIECE_ROWS]]
            size += self._write([_piece_row(number)], [_pack(piece)])
        passing("pieces.prepared")
        self._torn = True
        size += self._write([_PIECES_ROW], [_NUMBER.pack(len(starts))])
        passing("pieces.count")
        for number, at in enumerate(starts):
            threads.pause(_PAUSE_SECONDS)
            size += self._write(
                [*rows[at : at + PIECE_ROWS], _piece_row(number)],
                [*values[at : at + PIECE_ROWS], None],
            )
            passing("pieces.piece")
        passing("pieces.done")
        size += self._write([_PIECES_ROW], [None])
        self._torn = False
        return size

    def _redo(self) -> bool:
        """Write the missing pieces of a commit that counts, or remove those of one that does not.
        Returns True if the commit counted."""
        with self._translated():
            counts = self._db.get(_PIECES_ROW) is not None
            start, end = prefix(TASK_GROUP, REDO), prefix(TASK_GROUP, REDO + 1)
            while piece := [each for each in self._chunk(start, end, 2) if each[0] != _PIECES_ROW]:
                row, packed = piece[0]
                rows, values = _rows_of(packed) if counts else ([], [])
                self._write([*rows, row], [*values, None])
            if counts:
                self._write([_PIECES_ROW], [None])
        self._torn = False
        return counts

    def _open_again(self) -> bool:
        """Reopen the database; returns True if that completed a commit."""
        with self._opening, self._reading:
            with suppress(Exception):  # it reports the failed write again
                self._db.close()
            try:
                self._db = Rdict(str(self.folder), self._options)
            except Exception:
                with suppress(Exception):
                    read_only = AccessType.read_only()
                    self._db = Rdict(str(self.folder), self._options, access_type=read_only)
                raise
            counted = self._redo()
            self._broken = False
        return counted

    def verify(self, *, rows: bool = False) -> None:
        """Raise StoreCorrupt if a file of the database is missing or truncated.

        With ``rows`` all rows are read as well, which takes time in proportion.
        """
        suspects: set[str] = set()
        for _ in range(_VERIFY_TRIES):  # a compaction may remove a file while we look
            suspects = self._damaged_files()
            if not suspects:
                break
        else:
            raise StoreCorrupt(f"{self.folder}: {', '.join(suspects)} is missing or truncated")
        if rows:
            with self._translated():
                it = self._db.iter()
                try:
                    it.seek_to_first()
                    while it.valid():
                        it.next()
                    it.status()
                finally:
                    del it

    def _damaged_files(self) -> set[str]:
        found = set()
        with self._translated():
            for file in self._db.live_files():
                name = file["name"].lstrip("/")
                try:
                    size = (self.folder / name).stat().st_size
                except FileNotFoundError:
                    size = -1
                if size != file["size"]:
                    found.add(name)
        return found

    def write_tables(self) -> None:
        """Write the newest rows into tables, which RocksDB syncs."""
        with self._translated():
            self._db.flush()

    def checkpoint(self, folder: Path) -> None:
        """Copy all that is written to ``folder``, which must not exist, by hard links.

        Raises StateError if the copy cannot be made, also if its place has been removed meanwhile.
        """
        with self._translated():
            disk.make_folder(folder.parent)
            self._db.flush()
            try:
                Checkpoint(self._db).create_checkpoint(str(folder))
            except Exception as error:
                if "Corruption" in str(error):
                    raise
                self.verify()  # "No such file" may mean one of ours, or the place of the copy
                raise StateError(f"{self.folder} cannot be copied to {folder}: {error}") from error

    def close(self) -> None:
        """Close the database; raises StateError or StoreCorrupt if its folder is gone."""
        self._broken = False  # so that no reader opens it again
        try:
            with self._reading:
                self._db.close()
        except Exception as error:
            raise _error_for(self.folder, error) from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors of RocksDB, and record damage in the folder."""
        try:
            yield
        except StateError:
            raise
        except Exception as error:
            meaning = error if isinstance(error, StoreCorrupt) else _error_for(self.folder, error)
            if isinstance(meaning, StoreCorrupt):
                with suppress(OSError):
                    (self.folder / DAMAGED).write_text(str(error))
            raise meaning from error


def empty(folder: Path) -> None:
    """Remove the files of a closed database."""
    for entry in folder.iterdir():
        entry.unlink(missing_ok=True)


def _piece_row(number: int) -> bytes:
    return task_row(REDO, _NUMBER.pack(number))


def _rows_of(packed: bytes) -> tuple[list[Any], list[Any]]:
    """The rows of a piece, and their values."""
    found = _unpack(packed)
    if isinstance(found[0], list):  # the pairs of an earlier release
        return [row for row, _ in found], [value for _, value in found]
    return found[: len(found) // 2], found[len(found) // 2 :]


def _error_for(folder: Path, error: Exception) -> StateError | StoreCorrupt:
    if isinstance(error, OSError):
        return StateError(f"{folder} cannot be used: {error.strerror or error}")
    text = str(error)
    if any(part in text for part in ("Corruption", "Invalid argument", "No such file")):
        return StoreCorrupt(
            f"{folder} is damaged: {text}; restart the job: it resumes from the part that is "
            f"sound, or says why it cannot"
        )
    if "lock" in text.lower():
        return StateError(f"{folder} is in use by another process: {text}; stop that process first")
    return StateError(f"{folder} cannot be read or written: {text}")
