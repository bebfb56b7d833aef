"""Logging: one stream of messages, for people at a terminal or one JSON object a line.

Rules
- Logs always go to stderr; stdout belongs to what a command prints.
- ``configure`` is called once, when the process starts. Loggers keep the level and format of their
  first use, so that a disabled call costs next to nothing.
- Several processes share one terminal or pipe, so an app's prints leave a line at a time, each line
  in one piece.
- Log what happens to a batch, a connection or a task, never to one event.
- Tracebacks have no local variables: those hold people's events.
"""

from __future__ import annotations

import io
import logging
import sys

import structlog

from s4node.config.config import Config
from s4node.config.settings import LOGGER_FORMAT, LOGGER_LEVEL
from s4node.logger import StderrLogger, processors

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure(level: str = "info", format: str = "auto") -> None:  # noqa: A002 - as the key has it
    """Set up logging for this process; the arguments are the values of the two logger keys.

    Warnings that libraries log through Python's ``logging`` go to the same stream. Raises
    ConfigError if an argument is not one of the choices.
    """
    config = Config.of({LOGGER_LEVEL.name: level, LOGGER_FORMAT.name: format})
    threshold = _LEVELS[config[LOGGER_LEVEL]]
    structlog.configure(
        processors=processors(format),
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=StderrLogger,
        cache_logger_on_first_use=True,
    )
    _route_libraries(threshold)


def print_whole_lines() -> None:
    """Write each printed line at once and in one piece.

    Into a pipe Python buffers some kilobytes first, which a kill loses; with PYTHONUNBUFFERED it
    writes a line's end separately, and the lines of several processes mix.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not where it is an app's own
            stream.reconfigure(line_buffering=True, write_through=False)


class _ToStructlog(logging.Handler):
    """Passes what libraries log through ``logging`` to structlog."""

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
