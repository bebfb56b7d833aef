"""Paths that users give: the folders that settings name, and what commands are about.

Rules
- What is wrong with one is told as a ConfigError: which path, where it was given, what to do.
- What cannot be looked at is not the same as what is not there.
- The path of a setting is used in full, so that it stays what it was wherever it is handed to.
  In full it is UTF-8, because databases, entries and messages take no other text; whether that part
  of it was written, is the user's home or is the folder we are in makes no difference.
- An app's file may be anywhere, except where its path is to travel: to nodes or to containers.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from s4node.config.kinds import is_unicode
from s4node.errors import ConfigError


def full_path(text: str, setting: str) -> Path:
    """What ``setting`` names, ``~`` being the user's home; raises ConfigError if it is nowhere,
    or not UTF-8."""
    try:
        path = Path(text).expanduser().absolute()
    except (RuntimeError, OSError) as error:  # nobody's home, and from a folder that has gone
        reason = error.strerror if isinstance(error, OSError) else "there is no such home"
        raise ConfigError(
            f"{setting} = {text!r} is nowhere ({reason}); write its full path"
        ) from error
    if not is_unicode(str(path)):
        raise ConfigError(
            f"{setting} = {text!r} is {str(path)!r}, which is not UTF-8; set it to a path that is"
        )
    return path


def check_travels(path: Path | str) -> None:
    """Raise ConfigError for a path that cannot be told to other processes."""
    if not is_unicode(str(path)):
        raise ConfigError(
            f"{str(path)!r} is not UTF-8, and other processes are told it; rename what is not, or "
            f"move the app elsewhere"
        )


@contextmanager
def looking(path: Path | str, fix: str) -> Iterator[None]:
    """Around what looks at a path; raises ConfigError with the ``fix`` where that cannot be."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{error.filename or path} cannot be looked at ({error.strerror or error}); {fix}"
        ) from error


def is_file(path: Path, fix: str) -> bool:
    """Whether it is a file; raises ConfigError where that cannot be known."""
    return stat.S_ISREG(_mode(path, fix))


def is_folder(path: Path, fix: str) -> bool:
    """Whether it is a folder; raises ConfigError where that cannot be known."""
    return stat.S_ISDIR(_mode(path, fix))


def _mode(path: Path, fix: str) -> int:
    with looking(path, fix), suppress(FileNotFoundError, NotADirectoryError):
        return path.stat().st_mode
    return 0
