"""Logging: one stream of messages, for people at a terminal or one JSON object a line.

Rules
- Logs go to stderr, always; stdout belongs to what a command prints.
- ``configure`` is called once, when the process starts. Loggers keep the level and format of their
  first use, which is what makes a disabled call cost next to nothing.
- Log what happens to a batch, a connection or a task, never to one event.
- Tracebacks come without local variables: those hold people's events.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

import structlog

from s4node.config import LOGGER_FORMAT, LOGGER_LEVEL, Config

if TYPE_CHECKING:
    from structlog.typing import Processor

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure(level: str = "info", format: str = "auto") -> None:  # noqa: A002 - as the key has it
    """Set up logging for this process; the arguments are the values of the two logger keys.

    Warnings that libraries log through Python's ``logging`` come out in the same stream. Raises
    ConfigError where an argument is none of the choices.
    """
    config = Config.of({LOGGER_LEVEL.name: level, LOGGER_FORMAT.name: format})
    threshold = _LEVELS[config[LOGGER_LEVEL]]
    terminal = sys.stderr.isatty()
    people = format == "console" or (format == "auto" and terminal)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(_for_people(colors=terminal) if people else _for_programs()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=_StderrLogger,
        cache_logger_on_first_use=True,
    )
    _route_libraries(threshold)


def _for_people(*, colors: bool) -> list[Processor]:
    return [
        structlog.dev.ConsoleRenderer(
            colors=colors and not os.environ.get("NO_COLOR"),
            exception_formatter=structlog.dev.plain_traceback,
        )
    ]


def _for_programs() -> list[Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


class _StderrLogger:
    """Writes a rendered line to whatever ``sys.stderr`` is now.

    structlog's own loggers keep the file of their first use, and so go on writing to one that was
    closed or replaced meanwhile. A line is written in one piece, so that those of several threads
    do not mix.
    """

    def __init__(self, *_: object) -> None:
        """structlog hands on what ``get_logger`` was called with; nothing here depends on it."""

    def msg(self, message: str) -> None:
        sys.stderr.write(message + "\n")
        sys.stderr.flush()

    debug = info = warning = error = critical = msg


class _ToStructlog(logging.Handler):
    """Hands what libraries log through ``logging`` to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # structlog knows the five standard levels only; others count as the one below.
            level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)
            logger = structlog.get_logger()
            logger.log(
                level, _message_of(record), logger=record.name, exc_info=record.exc_info or None
            )
        except Exception:  # a handler may not break the program that logs
            self.handleError(record)


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # the library's placeholders and arguments disagree: still say what it said
        return f"{record.msg} {record.args!r}"


def _route_libraries(threshold: int) -> None:
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, _ToStructlog):
            root.removeHandler(handler)
    root.addHandler(_ToStructlog())
    # Libraries tell a lot below warnings, and even refused it would cost them the formatting.
    root.setLevel(max(threshold, logging.WARNING))
