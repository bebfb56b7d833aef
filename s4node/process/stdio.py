"""The three standard streams of a process of ours, whatever it was started with.

Rules
- ``provide`` comes first in a process. From then on all three are there: input that was closed is
  empty, output that was closed is a pipe that nobody reads, and messages go nowhere.
- An error of writing standard output names it as its file, and nothing else does: that is how
  ``is_unwritten`` tells it from the errors of other files, sockets and disks.
- What cannot be said on standard error is left unsaid: it fails nothing.
- Characters that the output's encoding does not have are written as JSON has them, ``\\u00e4``.
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

_OUTPUT = "<stdout>"  # as Python calls it
_ESCAPES = "s4node.escapes"


def provide() -> bool:
    """Have three standard streams; returns whether standard output was closed.

    Streams that something else has put there already, such as a test's, stay as they are.
    """
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:  # or some file of ours would come to be 1
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
    """Whether it says that standard output could not be written."""
    return isinstance(error, OSError) and error.filename == _OUTPUT


def unwritten(error: BaseException) -> str:
    """What is said of such an error."""
    return f"the output cannot be written: {error}; make room there, or have it written elsewhere"


def unread() -> BrokenPipeError:
    """What is raised where nobody reads standard output any longer, before any of it is written."""
    return BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE), _OUTPUT)


def discard() -> None:
    """From now on throw standard output away, with what of it could not be written yet."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


class _Output(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            while (written := super().write(data)) is None:  # somebody has made it non-blocking
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
    """A stream of text into ``file`` as the one before was; unbuffered is line by line."""
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
