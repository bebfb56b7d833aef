"""The loggers of this package, and the default form of their lines.

Rules
- If the program or :mod:`s4node.process.log_setup` has configured structlog, that holds. As a
  library, s4node configures nothing globally.
- Otherwise lines go to stderr, because structlog's default is stdout, which belongs to the
  program's output. They are for people at a terminal, else one JSON object per line.
- This is decided for each line, so that a program may configure structlog at any time.
- A logger has the name of the first folder of its module, such as ``s4node.net``. No line shows it;
  programs can select loggers by name.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from structlog.typing import Processor


def get_logger(name: str) -> Any:
    """A logger; ``name`` is ``s4node`` and the first folder of the module."""
    return _Logger(name)


class StderrLogger:
    """Writes each line to the current ``sys.stderr``.

    structlog's own loggers keep the file of their first use, which may have been closed or replaced
    since. A line is written in one piece, so that lines of several threads do not mix.
    """

    def __init__(self, *_: object) -> None:
        """Ignore the arguments of ``get_logger``, which structlog passes on."""

    def msg(self, message: str) -> None:
        """Write one line."""
        if sys.stderr is not None:  # None if the process was started with it closed
            sys.stderr.write(message + "\n")
            sys.stderr.flush()

    debug = info = warning = error = critical = msg


def processors(format: str = "auto") -> list[Processor]:  # noqa: A002 - as the key has it
    """The processors that render a line; ``format`` is a value of ``s4.logger_format``."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    people = format == "console" or (format == "auto" and terminal)
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *(_for_people(colors=terminal) if people else _for_programs()),
    ]


def _for_people(*, colors: bool) -> list[Processor]:
    return [
        structlog.dev.ConsoleRenderer(
            colors=colors and not os.environ.get("NO_COLOR"),
            exception_formatter=structlog.dev.plain_traceback,
        )
    ]


def _for_programs() -> list[Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


@cache
def _unconfigured() -> Any:
    return structlog.wrap_logger(
        StderrLogger(),
        processors=processors(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )


class _Logger:
    """structlog's logger if structlog is configured, else our own."""

    def __init__(self, name: str) -> None:
        self._configured = structlog.get_logger(name)

    def __getattr__(self, method: str) -> Any:
        return getattr(self._configured if structlog.is_configured() else _unconfigured(), method)
