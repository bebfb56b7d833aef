"""Exit records: small files that tell the next owners of tasks how processes ended.

Rules
- The process itself records fatal signals (SIGSEGV, SIGABRT, SIGBUS, SIGILL) and ``os._exit``.
  Other ends are recorded by its supervisor, if it has one, which sees the exit status and knows
  which processes it has killed. An orderly or requested end removes the file.
- The sender of a SIGKILL is unknown. A SIGKILL does not incriminate the events in flight, unless
  the supervisor sent it for a missed pulse, or the cgroup has counted an out-of-memory kill since.
- The file is created when the first task with state is taken over; other processes have none.
"""

from __future__ import annotations

import faulthandler
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

import msgspec

from s4node import clocks, disk
from s4node.events.schema import UNREADABLE

SIGKILL = "SIGKILL"
"""The record of a SIGKILL from an unknown sender."""

MOST_SECONDS = 1.0
"""How long a supervisor may take to record the end of a process."""

_OOM = "the kernel's out-of-memory killer"
_KEPT_SECONDS = 90 * 86_400
_exit = os._exit


class _Header(msgspec.Struct, frozen=True):
    supervised: bool
    cgroup: str
    oom_kills: int


_decode = msgspec.json.Decoder(_Header).decode


class _Process:
    """The record of this process."""

    path: Path | None = None
    supervised = False
    file: IO[bytes] | None = None
    faults = False
    """True if fatal signals are written to this file."""


def new_path(state_folder: str) -> str:
    """A path for the record of a process that is about to start."""
    # Path.expanduser raises if the user has no home
    return str(Path(os.path.expanduser(state_folder)).absolute() / ".exits" / uuid.uuid4().hex)  # noqa: PTH111


def assign(path: str, *, supervised: bool) -> None:
    """Set the path of this process's record."""
    _Process.path, _Process.supervised = Path(path), supervised


def begin() -> str:
    """Start to record how this process ends; returns the path of the record. The path is empty if
    the process has no record. Raises OSError."""
    path = _Process.path
    if path is None:
        return ""
    if _Process.file is None:
        disk.make_folder(path.parent)
        _sweep(path.parent)
        created = disk.private(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        _Process.file = os.fdopen(created, "wb", buffering=0)
        header = _Header(_Process.supervised, *_oom_kills())
        _Process.file.write(msgspec.json.encode(header) + b"\n")
        if not faulthandler.is_enabled():  # the user may have enabled it for another file
            faulthandler.enable(_Process.file)
            _Process.faults = True
        os._exit = _exit_of_the_app
        os.register_at_fork(after_in_child=_leave)
    return str(path)


def end() -> None:
    """Remove the record: the end is orderly, or was requested."""
    if _Process.file is not None and _Process.path is not None:
        _leave()
        with suppress(OSError):
            _Process.path.unlink(missing_ok=True)


def _leave() -> None:
    """Record nothing more; also in a forked child, which is another process."""
    os._exit = _exit
    _Process.file = None
    if _Process.faults:
        _Process.faults = False
        faulthandler.disable()


def exit_now(status: int) -> NoReturn:
    """End the process at once, on request."""
    end()
    _exit(status)


def _exit_of_the_app(status: int) -> NoReturn:
    assert _Process.file is not None
    with suppress(OSError):
        _Process.file.write(f"os._exit({status})\n".encode())
    _exit(status)


def write(path: str, how: str) -> None:
    """Record how a process ended, as seen by its supervisor. Does nothing if it has no record, or
    has removed it."""
    with suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, f"{how}\n".encode())
        finally:
            os.close(file)


def read(path: str) -> str:
    """How a process ended, in words, if the events in flight may be the cause; else empty. Waits
    for a supervisor that is about to record it."""
    until = clocks.steady() + MOST_SECONDS
    while True:
        try:
            header, _, rest = Path(path).read_bytes().partition(b"\n")
            begun = _decode(header)
        except (OSError, ValueError, *UNREADABLE):
            return ""
        if rest or not begun.supervised or clocks.steady() > until:
            break
        time.sleep(0.01)
    how = rest.decode(errors="replace").partition("\n")[0]
    if how not in ("", SIGKILL):
        return how
    cgroup, oom_kills = _oom_kills()
    return _OOM if cgroup == begun.cgroup and oom_kills > begun.oom_kills else ""


def _oom_kills() -> tuple[str, int]:
    """The cgroup of this process, and how many of its processes were killed for lack of memory.
    Empty and 0 if that is unknown."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            if controllers in ("", "memory"):
                root = Path("/sys/fs/cgroup") / controllers
                for file in ("memory.events", "memory.oom_control"):
                    for folder in (root / place.lstrip("/"), root):
                        with suppress(OSError):
                            words = (folder / file).read_text().split()
                            return place, int(words[words.index("oom_kill") + 1])
    return "", 0


def _sweep(folder: Path) -> None:
    before = clocks.wall() - _KEPT_SECONDS
    with suppress(OSError):
        for entry in folder.iterdir():
            if entry.stat().st_mtime < before:
                entry.unlink(missing_ok=True)
