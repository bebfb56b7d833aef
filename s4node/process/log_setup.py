"""The setup of logging: messages for people at a terminal, else one JSON object per line.

Rules
- Logs always go to stderr; stdout belongs to the output of commands.
- ``configure`` is called once, when the process starts. Loggers keep the level and format of their
  first use, so that a disabled call costs next to nothing.
- Several processes may share a terminal or pipe, so what an app prints is written line by line,
  each line in one piece.
- Log what happens to a batch, a connection or a task, never to one event.
- Tracebacks have no local variables: those may contain users' events.
"""

from __future__ import annotations

import io
import logging
import sys
from types import ModuleType

from s4node.config.config import Config
from s4node.config.settings import LOGGER_FORMAT, LOGGER_LEVEL
from s4node.logger import StderrLogger, processors


def _without_rich() -> ModuleType:
    """structlog, which loads rich if it can, for tracebacks that ours are not; that takes longer
    than all else of it."""
    absent = "rich" not in sys.modules
    if absent:
        sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog
    finally:
        if absent:
            del sys.modules["rich"]
    return structlog


structlog = _without_rich()

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure(level: str = "info", format: str = "auto") -> None:  # noqa: A002
    """Set up logging for this process; the arguments are the values of the logger keys.

    Warnings that libraries log through Python's ``logging`` go to the same stream. Raises
    ConfigError if an argument is not one of the choices.
    """
    config = Config.from_values({LOGGER_LEVEL.name: level, LOGGER_FORMAT.name: format})
    threshold = _LEVELS[config[LOGGER_LEVEL]]
    structlog.configure(
        processors=processors(format),
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=StderrLogger,
        cache_logger_on_first_use=True,
    )
    _route_libraries(threshold)


def configure_from(config: Config) -> None:
    configure(config[LOGGER_LEVEL], config[LOGGER_FORMAT])


def print_whole_lines() -> None:
    """Write each printed line at once and in one piece.

    Into a pipe, Python buffers some kilobytes, which a kill would lose. With PYTHONUNBUFFERED it
    writes the end of a line separately, so that lines of several processes mix.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not a stream that the app has put there
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
        except Exception:  # a log handler must not break the program that logs
            self.handleError(record)


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # placeholders and arguments of the library's message disagree
        return f"{record.msg} {record.args!r}"


def _route_libraries(threshold: int) -> None:
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, _ToStructlog):
            root.removeHandler(handler)
    root.addHandler(_ToStructlog())
    # Libraries log much below warnings, and even if refused that would cost the formatting.
    root.setLevel(max(threshold, logging.WARNING))
