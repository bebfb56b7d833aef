"""The list of this user's processes on this machine that run an app or a node.

Rules
- An entry is a file in a folder of its process, below the user's runtime folder: ``s4node`` in
  $XDG_RUNTIME_DIR or in /run/user/UID; if neither exists, ``s4node-UID`` among the temporary files.
- Only the user can enter the runtime folder (0700). A folder that others can enter, or of another
  user, is neither read nor written.
- Only processes with the same home folder are found: a command with a HOME of its own finds those
  that were started with it.
- A process is dead if the lock on its folder is free, whatever its entry says.
- A process that cannot write its entry runs without one, and logs that.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from s4node.cluster.node.own_folder import lives, process_folder
from s4node.config.config import Config
from s4node.errors import ConfigError, described, presentable
from s4node.events.schema import UNREADABLE
from s4node.logger import get_logger
from s4node.net.certificates.credentials import OPTIONS

log = get_logger("s4node.cluster")

START_SECONDS = 5.0
"""How long a command waits for a process that may still be starting."""

_FILE = "running.json"


class Running(msgspec.Struct, frozen=True):
    """A process that runs an app, or a node, or an app's containers.

    ``app`` is empty for a node or an app's containers, and ``place`` is that of their coordination.
    A process that runs an app alone has no ``place``. Outside programs and commands use
    ``address``, empty before the app is ready; with ``log`` it also serves a log's streams.
    ``inputs`` are the live input streams of the app, ``streams`` its others. ``settings`` are those
    that are not defaults, perhaps of another version of s4node. ``home`` and ``file``, that of the
    entry, are set by this module.
    """

    pid: int
    cluster: str
    node: str
    app: str = ""
    place: str = ""
    address: str = ""
    log: bool = False
    inputs: list[str] = []
    streams: list[str] = []
    partitions: int = 0
    settings: dict[str, str] = {}
    home: str = ""
    file: str = ""


class RunningEntry:
    def __init__(self, folder: Path | None) -> None:
        self._file = folder / _FILE if folder is not None else None

    def write(self, running: Running) -> None:
        if self._file is None:
            return
        new = self._file.with_suffix(".new")
        try:
            file = presentable(str(self._file))
            placed = msgspec.structs.replace(running, home=_home(), file=file)
            new.write_bytes(msgspec.json.encode(placed))
            new.replace(self._file)
        except OSError as error:
            _log_unlisted(described(error))


def settings_for_commands(config: Config, address: str) -> dict[str, str]:
    """The settings of a process at ``address`` as commands need them, which start elsewhere."""
    from s4node.cluster.node.supervisor_protocol import handed_on, log_of  # not for commands

    given = handed_on(config, log_of(config, address))
    return given | {name: str(Path(given[name]).absolute()) for name in OPTIONS if given.get(name)}


@contextmanager
def running_entry() -> Iterator[RunningEntry]:
    with ExitStack() as stack:
        folder = None
        try:
            below = _runtime_folder()
            below.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_private(below)
            folder = stack.enter_context(process_folder(below))
        except (OSError, ConfigError) as error:
            _log_unlisted(described(error))
        yield RunningEntry(folder)


def _log_unlisted(reason: str) -> None:
    log.warning(
        "commands such as s4 status do not find this process",
        reason=reason,
        fix="set XDG_RUNTIME_DIR to a folder that you may write to",
    )


def running_processes() -> list[Running]:
    """The living processes of this home folder; raises ConfigError if others can enter the runtime
    folder."""
    below = _runtime_folder()
    try:
        _check_private(below)
        folders = sorted(below.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(
            f"{below} cannot be read ({error.strerror}); fix its permissions"
        ) from error
    found = []
    for folder in filter(lives, folders):
        try:
            found.append(msgspec.json.decode((folder / _FILE).read_bytes(), type=Running))
        except (OSError, *UNREADABLE):  # not written yet, or being removed
            continue
    home = _home()
    mine = [each for each in found if each.home == home]
    return sorted(mine, key=lambda one: (one.cluster, one.app, one.place, one.node))


def _home() -> str:
    return presentable(str(Path("~").expanduser().absolute()))  # it may be no UTF-8


def _runtime_folder() -> Path:
    user = os.getuid()
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    for folder in (given, f"/run/user/{user}"):
        if folder.startswith("/") and Path(folder).is_dir():
            return Path(folder) / "s4node"
    return Path(tempfile.gettempdir()) / f"s4node-{user}"


def _check_private(folder: Path) -> None:
    """Raise ConfigError if others can enter the folder, FileNotFoundError if it is missing."""
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or seen.st_mode & 0o077:
        raise ConfigError(
            f"{folder} is not private to user {os.getuid()} (mode "
            f"{stat.S_IMODE(seen.st_mode):o}, of user {seen.st_uid}), and is not trusted; remove "
            f"it, or set XDG_RUNTIME_DIR to a folder of yours"
        )
