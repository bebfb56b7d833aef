"""What runs on this machine for this user: an entry for each process that runs an app or a node.

Rules
- An entry is a file in a folder of its process, below the user's runtime folder: ``s4node`` in
  $XDG_RUNTIME_DIR, or in /run/user/UID; where neither is there, ``s4node-UID`` among the temporary
  files.
- Only the user can enter the runtime folder (0700). One that others can enter, or that is another
  user's, is neither read nor written.
- A reader takes a process for dead when the lock on its folder is free, whatever its entry says.
- A process runs without an entry where it cannot write one, and logs that.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from s4node.cluster.node.own_folder import ProcessFolder, lives, process_folder
from s4node.errors import ConfigError, described
from s4node.events.schema import UNREADABLE
from s4node.logger import get_logger

log = get_logger("s4node.cluster")

_FILE = "running.json"


class Running(msgspec.Struct, frozen=True):
    """A process that runs an app, or that runs a node or an app's containers.

    ``app`` is empty for the latter. ``folder`` is the coordination's, empty for a process that is
    alone; such a process can be asked at ``admin``. ``address`` is where programs outside ask,
    empty before the app is ready; with ``log`` the streams of a log are there, too. ``inputs`` are
    the live input streams of the app, ``streams`` those that are not inputs. ``settings`` are those
    that are not defaults.
    """

    pid: int
    cluster: str
    node: str
    app: str = ""
    folder: str = ""
    address: str = ""
    admin: str = ""
    log: bool = False
    inputs: list[str] = []
    streams: list[str] = []
    partitions: int = 0
    settings: dict[str, str] = {}


class RunningEntry:
    """The entry of this process; ``admin`` is where its admin socket goes, if it has one."""

    def __init__(self, folder: ProcessFolder | None) -> None:
        self.admin = folder.admin if folder is not None else None
        self._file = folder.path / _FILE if folder is not None else None

    def write(self, running: Running) -> None:
        """Say what runs, over what was said before."""
        if self._file is None:
            return
        new = self._file.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode(running))
            new.replace(self._file)
        except OSError as error:
            _tell_unlisted(described(error))


@contextmanager
def running_entry() -> Iterator[RunningEntry]:
    """The entry of this process for the time of the block."""
    with ExitStack() as stack:
        folder = None
        try:
            below = _runtime_folder()
            below.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_private(below)
            folder = stack.enter_context(process_folder(below))
        except (OSError, ConfigError) as error:
            _tell_unlisted(described(error))
        yield RunningEntry(folder)


def _tell_unlisted(reason: str) -> None:
    log.warning(
        "commands such as s4 status do not find this process",
        reason=reason,
        fix="set XDG_RUNTIME_DIR to a folder of yours that can be written",
    )


def running_processes() -> list[Running]:
    """The living processes; raises ConfigError where the runtime folder is not the user's own."""
    below = _runtime_folder()
    try:
        _check_private(below)
        folders = sorted(below.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(
            f"{below} cannot be looked at ({error.strerror}); fix its permissions"
        ) from error
    found = []
    for folder in filter(lives, folders):
        try:
            found.append(msgspec.json.decode((folder / _FILE).read_bytes(), type=Running))
        except (OSError, *UNREADABLE):  # it has not been written yet, or goes at this moment
            continue
    return sorted(found, key=lambda one: (one.cluster, one.app, one.folder, one.node))


def _runtime_folder() -> Path:
    """Where the entries of this user are."""
    user = os.getuid()
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    for folder in (given, f"/run/user/{user}"):
        if folder.startswith("/") and Path(folder).is_dir():
            return Path(folder) / "s4node"
    return Path(tempfile.gettempdir()) / f"s4node-{user}"


def _check_private(folder: Path) -> None:
    """Raise ConfigError for a folder that others can enter, FileNotFoundError for none."""
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or seen.st_mode & 0o077:
        raise ConfigError(
            f"{folder} is not a folder of user {os.getuid()} alone (mode "
            f"{stat.S_IMODE(seen.st_mode):o}, of user {seen.st_uid}), and is not trusted; remove "
            f"it, or set XDG_RUNTIME_DIR to a folder of yours"
        )
