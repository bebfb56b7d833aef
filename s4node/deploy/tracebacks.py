"""Tracebacks of user code: that of an app, or of a class that a setting names.

Rules
- Only frames of user code are shown. Frames of s4node and of installed packages do not help: the
  message says what went wrong there.
- What an error of s4node already says, such as the place of a syntax error, is not repeated.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

from s4node.errors import FailedElsewhere, NotRestorable, S4Error, presentable

_FRAMES = 6
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
_LIBRARIES = (
    "<",  # generated, or frozen
    str(Path(__file__).parent.parent) + os.sep,
    *{sysconfig.get_path(name) + os.sep for name in _INSTALLED},
)


def cause_trace(error: S4Error) -> str:
    """The traceback of the cause of an s4node error; empty without user code."""
    if isinstance(error, FailedElsewhere):
        return error.trace
    cause = error.__cause__
    if isinstance(cause, NotRestorable):
        cause = cause.__cause__  # the error of the class's migrate
    return "" if cause is None or isinstance(cause, (S4Error, SyntaxError)) else others_trace(cause)


def others_trace(error: BaseException) -> str:
    """The traceback of an error that is not s4node's; empty without user code."""
    trace = traceback.TracebackException.from_exception(error)
    return presentable("".join(trace.format())) if _reduced(trace) else ""


def others_line(error: BaseException) -> str:
    """The last line of user code in an error's traceback, as ``file:line``; or empty."""
    lines = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if _is_others(frame)
    ]
    return lines[-1] if lines else ""


def _is_others(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith(_LIBRARIES)


def _reduced(trace: traceback.TracebackException) -> bool:
    """Keep only the last frames of user code, also in causes; returns False if none are left."""
    frames = list(filter(_is_others, trace.stack))
    trace.stack = traceback.StackSummary.from_list(frames[-_FRAMES:])
    if trace.__cause__ is not None and not _reduced(trace.__cause__):
        trace.__cause__ = None
    if trace.__context__ is not None and not _reduced(trace.__context__):
        trace.__context__ = None
    return bool(frames)
