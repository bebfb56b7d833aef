"""Paths that users give: the folders of settings, and the subjects of commands.

Rules
- A bad path raises ConfigError, which says which path, where it was given, and what to do.
- A path that cannot be read is not the same as one that does not exist.
- The path of a setting is made absolute, so that it means the same in every process. The absolute
  path has to be UTF-8, because databases, entries and messages take no other text; that includes
  parts from the user's home or the current folder.
- An app's file may have any path, unless the path is passed on to nodes or containers.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from s4node.config.kinds import is_unicode
from s4node.errors import ConfigError


def full_path(text: str, setting: str) -> Path:
    """The absolute path that ``setting`` names, ``~`` being the user's home. Raises ConfigError if
    it has none, or one that is not UTF-8."""
    try:
        path = Path(text).expanduser().absolute()
    except (RuntimeError, OSError) as error:  # no such user, or the current folder is gone
        reason = error.strerror if isinstance(error, OSError) else "there is no such home"
        raise ConfigError(
            f"{setting} = {text!r} has no full path ({reason}); write its full path"
        ) from error
    if not is_unicode(str(path)):
        raise ConfigError(
            f"{setting} = {text!r} is {str(path)!r}, which is not UTF-8; set another path"
        )
    return path


def check_travels(path: Path | str) -> None:
    """Raise ConfigError for a path that cannot be passed to other processes."""
    if not is_unicode(str(path)):
        raise ConfigError(
            f"{str(path)!r} is not UTF-8, so it cannot be passed to other processes; rename the "
            f"file or folder, or move the app elsewhere"
        )


@contextmanager
def looking(path: Path | str, fix: str) -> Iterator[None]:
    """Read a path in the block; raises ConfigError with the ``fix`` if that fails."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{error.filename or path} cannot be read ({error.strerror or error}); {fix}"
        ) from error


def is_file(path: Path, fix: str) -> bool:
    """Return True for an existing file; raises ConfigError if that is unknown."""
    return stat.S_ISREG(_mode(path, fix))


def is_folder(path: Path, fix: str) -> bool:
    """Return True for an existing folder; raises ConfigError if that is unknown."""
    return stat.S_ISDIR(_mode(path, fix))


def _mode(path: Path, fix: str) -> int:
    with looking(path, fix), suppress(FileNotFoundError, NotADirectoryError):
        return path.stat().st_mode
    return 0
