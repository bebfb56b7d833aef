"""The file of a spill: bytes that wait on disk, in order.

Rules
- The file is in the folder for temporary files, which ``TMPDIR`` sets. It has no name, so that it
  goes with its process, however the process ends. Space that was read is returned to the disk in
  blocks.
- A full disk stops the app, because the events would be lost.
"""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path

from s4node.errors import SpillError

_SIZE = struct.Struct("=I")
_RECLAIM = 8 << 20


class SpillFile:
    """The waiting blocks of a stream, oldest first."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._file: int | None = None
        self._read_at = 0
        self._write_at = 0
        self._reclaimed = 0

    @property
    def size(self) -> int:
        """The number of waiting bytes."""
        return self._write_at - self._read_at

    def append(self, data: bytes) -> None:
        """Append a block; raises SpillError if the disk is full."""
        left = memoryview(_SIZE.pack(len(data)) + data)
        try:
            if self._file is None:
                self._file = self._open()
            while left:
                written = os.pwrite(self._file, left, self._write_at)
                self._write_at += written
                left = left[written:]
        except OSError as error:
            raise self._failed("written", error) from error

    def pop(self) -> bytes:
        assert self._file is not None
        try:
            (size,) = _SIZE.unpack(os.pread(self._file, _SIZE.size, self._read_at))
            data = os.pread(self._file, size, self._read_at + _SIZE.size)
            self._read_at += _SIZE.size + size
            self._reclaim()
        except (OSError, struct.error) as error:
            raise self._failed("read back", error) from error
        return data

    def forget_all(self) -> None:
        if self._file is not None:
            self._read_at = self._write_at
            self._reclaim()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        folder = Path(tempfile.gettempdir())
        try:
            return os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o600)
        except OSError:  # the file system cannot make files without a name
            file, name = tempfile.mkstemp(prefix="s4-spill-", dir=folder)
            Path(name).unlink()
            return file

    def _reclaim(self) -> None:
        assert self._file is not None
        if self._read_at == self._write_at:
            os.ftruncate(self._file, 0)
            self._read_at = self._write_at = self._reclaimed = 0
        elif self._read_at - self._reclaimed >= _RECLAIM and self._read_at > self.size:
            self._move_to_start()

    def _move_to_start(self) -> None:
        """Copy the waiting blocks, which are less than what was read, to the start of the file."""
        assert self._file is not None
        to = 0
        while self._read_at < self._write_at:
            block = os.pread(self._file, min(1 << 20, self.size), self._read_at)
            os.pwrite(self._file, block, to)
            self._read_at += len(block)
            to += len(block)
        os.ftruncate(self._file, to)
        self._read_at, self._write_at, self._reclaimed = 0, to, 0

    def _failed(self, what: str, error: Exception) -> SpillError:
        folder = tempfile.gettempdir()
        reason = getattr(error, "strerror", None) or error
        return SpillError(
            f"events of stream {self._stream!r} cannot be {what} in {folder}: {reason}; "
            f"{self.size:,} bytes wait there. Make room, or set TMPDIR to a folder on another disk"
        )
