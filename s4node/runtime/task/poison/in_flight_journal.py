"""The in-flight journal: a mapped file that tells which events a process died at.

Rules
- The mapped file has a slot for each range of events in flight. Writing a slot takes no system
  call, and the file survives when the process is killed.
- The blocks of the file are allocated when it is made, so a full disk is an error then. A later
  write to a hole would kill the process (SIGBUS) without a message. If the file system cannot
  allocate, zeros are written. A file system that copies each written block (btrfs, ZFS) may still
  run out of room.
- Suspects are replaced as a whole: if the disk is full, the earlier ones stay.
- The file exists only while the task runs. A new owner that finds the file of an earlier owner
  knows that the owner was killed, or is alive and out of date. The name has the owner's epoch, so
  no two owners share a file.
- The file names the exit record of its process, which says whether an event can have killed it.
- Suspects are saved until they are committed, however the process ends. The next owner could see
  from their numbers that others' events are committed; for the task's own there is no other record.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from s4node import exit_record
from s4node.errors import StateError
from s4node.events.schema import UNREADABLE
from s4node.runtime.task.poison.suspects import Suspect, after_death

SLOTS = 64
"""Ranges beyond so many are not recorded, nor are those whose origin is too long for a slot."""

_ORIGIN_BYTES = 1006
_RECORD_BYTES = 4096
_SLOT = struct.Struct(f"<HQQ{_ORIGIN_BYTES}s")
_BUSY = struct.Struct("<HQQ")
_NONE = bytes(2)
_SLOTS_BYTES = _SLOT.size * SLOTS
_FILE_BYTES = _SLOTS_BYTES + _RECORD_BYTES
_FILE, _SUSPECTS = "under-way-", "suspects-"
_NEW = ".new"  # suspects that are being written
_NO_ALLOCATION = {errno.EOPNOTSUPP, errno.EINVAL}
_decode = msgspec.json.Decoder(list[Suspect]).decode


class InFlightJournal:
    """The slots of one task. ``suspects`` are those that its earlier owners left."""

    def __init__(self, folder: Path, epoch: int, suspects: list[Suspect]) -> None:
        self.suspects = suspects
        self._path = folder / f"{_FILE}{epoch}"
        self._suspects_path = folder / f"{_SUSPECTS}{epoch}"
        self.suspects_files = str(folder / f"{_SUSPECTS}*")
        self._named = [""] * SLOTS
        self._lengths = [0] * SLOTS
        self._free = list(range(1, SLOTS))
        self._map = _mapped(self._path, _FILE_BYTES)
        record = exit_record.begin().encode()
        if len(record) <= _RECORD_BYTES:
            self._map[_SLOTS_BYTES : _SLOTS_BYTES + len(record)] = record
        self.save_suspects(suspects)

    def write_slot(self, origin: str, first: int, last: int, slot: int = 0) -> None:
        """Record that events begin."""
        at = slot * _SLOT.size
        if self._named[slot] == origin:
            _BUSY.pack_into(self._map, at, self._lengths[slot], first, last)
            return
        name = origin.encode()
        length = len(name) if len(name) <= _ORIGIN_BYTES else 0
        self._named[slot], self._lengths[slot] = origin, length
        _SLOT.pack_into(self._map, at, length, first, last, name)

    def clear_slot(self, slot: int = 0) -> None:
        """Record that the events of a slot have ended."""
        at = slot * _SLOT.size
        self._map[at : at + 2] = _NONE

    def take_slot(self) -> int:
        """Take a free slot; -1 if there is none."""
        return self._free.pop() if self._free else -1

    def free_slot(self, slot: int) -> None:
        """Free a slot that was taken."""
        if slot > 0:
            self.clear_slot(slot)
            self._free.append(slot)

    def save_suspects(self, suspects: Iterable[Suspect]) -> None:
        """Replace the saved suspects."""
        left = list(suspects)
        if left:
            new = self._suspects_path.with_suffix(_NEW)
            new.write_bytes(msgspec.json.encode(left))
            new.replace(self._suspects_path)
        else:
            self._suspects_path.unlink(missing_ok=True)

    def acquit(self, suspects: Collection[Suspect]) -> None:
        """Remove suspects that a written commit has cleared."""
        self.suspects = [one for one in self.suspects if one not in suspects]
        with suppress(OSError):  # then they stay suspects for longer
            self.save_suspects(self.suspects)

    def close(self, suspects: Iterable[Suspect]) -> None:
        """Close the journal at an orderly end, with these suspects left."""
        with suppress(OSError):
            self.save_suspects(suspects)
            self._path.unlink(missing_ok=True)
        self._map.close()


def enter(folder: Path, epoch: int, positions: Mapping[str, int]) -> InFlightJournal:
    """Open the journal of a new owner, whose task has committed ``positions``.

    Raises StateError if the folder cannot be written.
    """
    try:
        known: list[Suspect] = []
        under_way: list[Suspect] = []
        for before in sorted(_epochs(folder)):
            if before < epoch:
                known = _known(folder / f"{_SUSPECTS}{before}")
                under_way, how = _under_way(folder / f"{_FILE}{before}")
                if under_way:
                    known = after_death(known, under_way, positions, at_fault=bool(how))
        found = InFlightJournal(folder, epoch, after_death(known, (), positions))
        for before in _epochs(folder):
            if before < epoch:
                for name in (f"{_FILE}{before}", *(f"{_SUSPECTS}{before}{e}" for e in ("", _NEW))):
                    (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise StateError(
            f"{folder} cannot be written: {error.strerror or error}; check its permissions, make "
            f"room on its disk, or set s4.state.folder to another one"
        ) from error
    return found


def _mapped(path: Path, size: int) -> mmap.mmap:
    """Map a new file of zeros, whose blocks are all allocated."""
    with path.open("wb+") as file:
        try:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                if error.errno not in _NO_ALLOCATION:
                    raise
                file.write(bytes(size))
                file.flush()
        except OSError:
            path.unlink()
            raise
        return mmap.mmap(file.fileno(), size)


def _epochs(folder: Path) -> set[int]:
    names = [entry.name for entry in folder.iterdir()]
    found = [name.rpartition("-")[2] for name in names if name.startswith((_FILE, _SUSPECTS))]
    return {int(epoch) for epoch in found if epoch.isdigit()}


def _known(path: Path) -> list[Suspect]:
    try:
        return _decode(path.read_bytes())
    except (FileNotFoundError, *UNREADABLE):
        return []


def _under_way(path: Path) -> tuple[list[Suspect], str]:
    """The events in flight, and how the process ended ("" if no event can be the cause)."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], ""
    found = []
    if len(data) != _FILE_BYTES:  # written by another version
        return [], ""
    for length, first, last, origin in _SLOT.iter_unpack(data[:_SLOTS_BYTES]):
        if 0 < length <= _ORIGIN_BYTES:
            found.append(Suspect(origin[:length].decode(errors="replace"), first, last))
    record = data[_SLOTS_BYTES:].rstrip(b"\0").decode(errors="replace")
    return found, exit_record.read(record) if found and record else ""
