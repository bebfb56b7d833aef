"""What a task has under way, where it outlives the process: to know what has killed it.

Rules
- A file that is mapped into memory has a slot for each range of events that is being processed. It
  is written without a call of the system, and is there when the process is killed.
- The blocks of the file are allocated when it is made: on a full disk that is an error. A write to
  a mapped hole would kill the process (SIGBUS) without a word. Where the file system cannot
  allocate, zeros are written. One that copies each block that is written (btrfs, ZFS) may still
  find no room for the copy.
- Suspects are replaced as a whole: those that a full disk does not take leave the ones before.
- It is there only while the task runs: who finds that of an earlier owner knows that he was killed,
  or may be alive and out of date. It has the owner's epoch in its name, so two never share one.
- It names the exit record of its process, which says whether an event can have killed it.
- Suspects are kept until they are committed, whatever ends the process. Of others' events the next
  owner finds that by their numbers; of the task's own nothing else tells.
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
"""Ranges that are told apart; of what is under way beyond that nothing is known, nor of what comes
from where the name is longer than a slot."""

_ORIGIN_BYTES = 1006
_RECORD_BYTES = 4096
_SLOT = struct.Struct(f"<HQQ{_ORIGIN_BYTES}s")
_BUSY = struct.Struct("<HQQ")
_NONE = bytes(2)
_SLOTS_BYTES = _SLOT.size * SLOTS
_FILE_BYTES = _SLOTS_BYTES + _RECORD_BYTES
_FILE, _SUSPECTS = "under-way-", "suspects-"
_NEW = ".new"  # suspects that are not yet whole
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
        self.keep(suspects)

    def begin(self, origin: str, first: int, last: int, slot: int = 0) -> None:
        """These events begin."""
        at = slot * _SLOT.size
        if self._named[slot] == origin:
            _BUSY.pack_into(self._map, at, self._lengths[slot], first, last)
            return
        name = origin.encode()
        length = len(name) if len(name) <= _ORIGIN_BYTES else 0
        self._named[slot], self._lengths[slot] = origin, length
        _SLOT.pack_into(self._map, at, length, first, last, name)

    def end(self, slot: int = 0) -> None:
        """They have ended."""
        at = slot * _SLOT.size
        self._map[at : at + 2] = _NONE

    def take(self) -> int:
        """A free slot; -1 if there is none."""
        return self._free.pop() if self._free else -1

    def give(self, slot: int) -> None:
        """A slot that was taken is free again."""
        if slot > 0:
            self.end(slot)
            self._free.append(slot)

    def keep(self, suspects: Iterable[Suspect]) -> None:
        """These are the suspects now."""
        left = list(suspects)
        if left:
            new = self._suspects_path.with_suffix(_NEW)
            new.write_bytes(msgspec.json.encode(left))
            new.replace(self._suspects_path)
        else:
            self._suspects_path.unlink(missing_ok=True)

    def acquit(self, suspects: Collection[Suspect]) -> None:
        """A commit that is written covers these, or nothing of them can be known any more."""
        self.suspects = [one for one in self.suspects if one not in suspects]
        with suppress(OSError):  # they are suspected for longer then
            self.keep(self.suspects)

    def close(self, suspects: Iterable[Suspect]) -> None:
        """The process ends by itself, with these suspects left."""
        with suppress(OSError):
            self.keep(suspects)
            self._path.unlink(missing_ok=True)
        self._map.close()


def enter(folder: Path, epoch: int, positions: Mapping[str, int]) -> InFlightJournal:
    """Become the owner under ``epoch`` of a task whose ``positions`` are committed; raises
    StateError where the folder cannot be written."""
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
            f"{folder} cannot be written: {error.strerror or error}; see to its rights, make room "
            f"on its disk, or set s4.state.folder to another one"
        ) from error
    return found


def _mapped(path: Path, size: int) -> mmap.mmap:
    """A new file of zeros, which is there in full, in memory."""
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
    """What was under way, and how the process has ended, where that can be due to it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], ""
    found = []
    if len(data) != _FILE_BYTES:  # another version's
        return [], ""
    for length, first, last, origin in _SLOT.iter_unpack(data[:_SLOTS_BYTES]):
        if 0 < length <= _ORIGIN_BYTES:
            found.append(Suspect(origin[:length].decode(errors="replace"), first, last))
    record = data[_SLOTS_BYTES:].rstrip(b"\0").decode(errors="replace")
    return found, exit_record.read(record) if found and record else ""
