"""The three standard streams of a process, whatever it was started with.

Rules
- ``provide`` is the first call of a process. After it all three streams exist: closed input is
  empty, closed output is a pipe that nobody reads, and closed standard error discards messages.
- An error of writing standard output has that as its filename, and no other error does. So
  ``is_unwritten`` distinguishes it from errors of other files, sockets and disks.
- A message that cannot be written to standard error is dropped, without an error.
- Characters that the output's encoding lacks are written as in JSON, ``\u00e4``.
"""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import select
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_OUTPUT = "<stdout>"  # Python's name for it
_ESCAPES = "s4node.escapes"


def provide() -> bool:
    """Provide three standard streams; returns True if standard output was closed.

    Streams that something else has replaced, such as a test, stay as they are.
    """
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:  # or another file would become stdout
        os.set_inheritable(free, True)
    os.close(free)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - it stays open
    closed = sys.stdout is None
    if closed:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
        os.close(writer)
    codecs.register_error(_ESCAPES, _escaped)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _text(_Output(1, "w", closefd=False), sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(_Messages(2, "w", closefd=False), sys.stderr)
    return closed


def is_unwritten(error: BaseException) -> bool:
    """Return True if the error is of writing standard output."""
    return isinstance(error, OSError) and error.filename == _OUTPUT


def unwritten(error: BaseException) -> str:
    return f"the output cannot be written: {error}; free some space, or write it elsewhere"


def unread() -> BrokenPipeError:
    """The error for standard output that nobody reads, before anything is written."""
    return BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE), _OUTPUT)


def discard() -> None:
    """Discard standard output from now on, including what could not be written yet."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


class _Output(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            while (written := super().write(data)) is None:  # the file is non-blocking
                select.select([], [self], [])
            return written
        except OSError as error:
            error.filename = _OUTPUT
            raise


class _Messages(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        with suppress(OSError):
            if (written := super().write(data)) is not None:
                return written
        return memoryview(data).nbytes


def _text(file: io.FileIO, before: TextIO | None) -> TextIO:
    """A text stream into ``file`` that buffers as ``before`` did, or line by line if unbuffered."""
    at_once = isinstance(before, io.TextIOWrapper) and (
        before.line_buffering or before.write_through
    )
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding="utf-8" if before is None else before.encoding,
        errors=_ESCAPES,
        newline="\n",
        line_buffering=at_once or file.fileno() == 2,
    )


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
