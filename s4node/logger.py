"""The loggers of this package, and the default form of their lines.

Rules
- If the program or :mod:`s4node.process.log_setup` has configured structlog, that holds. As a
  library, s4node configures nothing globally.
- Otherwise lines go to stderr, because structlog's default is stdout, which belongs to the
  program's output. They are for people at a terminal, else one JSON object per line.
- This is decided for each line, so that a program may configure structlog at any time.
- structlog, which loads much, is imported with the first line, so that a command without one does
  not wait for it. A program that has configured it has imported it.
- Of each line of ours a bounded number is written in a second, because peers and events can cause
  many. The next line says how many were left out.
- A logger has the name of the first folder of its module, such as ``s4node.net``. No line shows it;
  programs can select loggers by name.
"""

from __future__ import annotations

import logging
import os
import sys
from contextvars import ContextVar
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from s4node import clocks
from s4node.log_throttle import LogThrottle

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from structlog.typing import Processor


def get_logger(name: str) -> Any:
    """A logger; ``name`` is ``s4node`` and the first folder of the module."""
    return _Logger(name)


class StderrLogger:
    """Writes each line to the current ``sys.stderr``.

    structlog's own loggers keep the file of their first use, which may have been closed or replaced
    since. A line is written in one piece, so that lines of several threads do not mix.
    """

    def __init__(self, name: str = "", *_: object) -> None:
        """Take the arguments of ``get_logger``, which structlog passes on."""
        self.ours = isinstance(name, str) and name.startswith("s4node")

    def msg(self, message: str) -> None:
        if sys.stderr is not None:  # None if the process was started with it closed
            sys.stderr.write(message + "\n")
            sys.stderr.flush()

    debug = info = warning = error = critical = msg


class _Throttled:
    """Drops those of our own lines that are beyond their number in a second."""

    def __init__(self, lines: int) -> None:
        self._throttle = LogThrottle(1.0, lines)

    def __call__(self, logger: Any, _: str, line: MutableMapping[str, Any]) -> Any:
        if getattr(logger, "ours", False):
            left_out = self._throttle.left_out(line.get("event"), clocks.steady())
            if left_out is None:
                import structlog

                raise structlog.DropEvent
            if left_out:
                line["left_out"] = left_out
        return line


LINES_A_SECOND = 50
"""The lines of one kind of ours that are written in a second."""


def processors(format: str = "auto") -> list[Processor]:  # noqa: A002
    """The processors that render a line; see ``s4.logger_format``."""
    import structlog

    terminal = sys.stderr is not None and sys.stderr.isatty()
    people = format == "console" or (format == "auto" and terminal)
    return [
        _Throttled(LINES_A_SECOND),
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *(_for_people(colors=terminal) if people else _for_programs()),
    ]


def _for_people(*, colors: bool) -> list[Processor]:
    import structlog

    return [
        structlog.dev.ConsoleRenderer(
            colors=colors and not os.environ.get("NO_COLOR"),
            exception_formatter=structlog.dev.plain_traceback,
        )
    ]


def _for_programs() -> list[Processor]:
    import structlog

    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


@cache
def _unconfigured() -> Any:
    import structlog

    return structlog.wrap_logger(
        StderrLogger("s4node"),
        processors=processors(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )


quiet = ContextVar("quiet", default=False)
"""True where nobody needs to learn what is no warning: clients of the process that they are in."""


class _Logger:
    """structlog's logger if structlog is configured, else our own."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        import structlog

        if method == "info" and quiet.get():
            method = "debug"
        if not structlog.is_configured():
            return getattr(_unconfigured(), method)
        return getattr(self._configured, method)

    @cached_property
    def _configured(self) -> Any:
        import structlog

        return structlog.get_logger(self._name)
