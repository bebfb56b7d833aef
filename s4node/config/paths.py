"""Paths that users give: the folders that settings name, and the subjects of commands.

Rules
- A bad path is a ConfigError: which path, where it was given, what to do.
- A path that cannot be read is not the same as one that does not exist.
- The path of a setting is made absolute, so that it means the same wherever it is passed. The
  absolute path must be UTF-8, because databases, entries and messages take no other text; this
  includes parts that come from the user's home or the current folder.
- An app's file may be anywhere, unless its path travels: to nodes or to containers.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from s4node.config.kinds import is_unicode
from s4node.errors import ConfigError


def full_path(text: str, setting: str) -> Path:
    """The absolute path that ``setting`` names, ``~`` being the user's home; raises ConfigError if
    there is none, or it is not UTF-8."""
    try:
        path = Path(text).expanduser().absolute()
    except (RuntimeError, OSError) as error:  # no such user, or the current folder is gone
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
    """Raise ConfigError for a path that other processes cannot be told."""
    if not is_unicode(str(path)):
        raise ConfigError(
            f"{str(path)!r} is not UTF-8, and other processes are told it; rename what is not, or "
            f"move the app elsewhere"
        )


@contextmanager
def looking(path: Path | str, fix: str) -> Iterator[None]:
    """Around code that looks at a path; raises ConfigError with the ``fix`` if that fails."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{error.filename or path} cannot be looked at ({error.strerror or error}); {fix}"
        ) from error


def is_file(path: Path, fix: str) -> bool:
    """Return True for a file; raises ConfigError if that is unknown."""
    return stat.S_ISREG(_mode(path, fix))


def is_folder(path: Path, fix: str) -> bool:
    """Return True for a folder; raises ConfigError if that is unknown."""
    return stat.S_ISDIR(_mode(path, fix))


def _mode(path: Path, fix: str) -> int:
    with looking(path, fix), suppress(FileNotFoundError, NotADirectoryError):
        return path.stat().st_mode
    return 0
