"""How a process has ended, for who takes over its tasks: a small file for each process.

Rules
- A fatal signal (SIGSEGV, SIGABRT, SIGBUS, SIGILL) and ``os._exit`` are written by the process
  itself, the rest by its supervisor, if it has one: it sees the exit status, and knows what it has
  killed itself. An end in order removes the file, and so does one that somebody asked for.
- The sender of a SIGKILL cannot be seen. It says nothing against what was being processed, unless
  the supervisor sent it for a missed pulse, or the cgroup has counted an out-of-memory kill since.
- The file is made when the first task that keeps state is taken over; other processes have none.
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

from s4node import clocks
from s4node.events.schema import UNREADABLE

SIGKILL = "SIGKILL"
"""What is written of one of which nobody knows who sent it."""

MOST_SECONDS = 1.0
"""How long a supervisor may take to write how a process has ended."""

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
    """Whether it is to this file that fatal signals are written."""


def new_path(state_folder: str) -> str:
    """A path for the record of a process that is about to start."""
    # Path.expanduser raises where nobody has a home
    return str(Path(os.path.expanduser(state_folder)).absolute() / ".exits" / uuid.uuid4().hex)  # noqa: PTH111


def assign(path: str, *, supervised: bool) -> None:
    """This process has its record there."""
    _Process.path, _Process.supervised = Path(path), supervised


def begin() -> str:
    """From now on it is written how this process ends; returns the path of the record, which is
    empty where the process has none. Raises OSError."""
    path = _Process.path
    if path is None:
        return ""
    if _Process.file is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        _Process.file = path.open("wb", buffering=0)
        header = _Header(_Process.supervised, *_oom_kills())
        _Process.file.write(msgspec.json.encode(header) + b"\n")
        if not faulthandler.is_enabled():  # otherwise somebody wants to see it elsewhere
            faulthandler.enable(_Process.file)
            _Process.faults = True
        os._exit = _exit_of_the_app
        os.register_at_fork(after_in_child=_leave)
    return str(path)


def end() -> None:
    """The process ends in order, or because somebody asked for it."""
    if _Process.file is not None and _Process.path is not None:
        _leave()
        with suppress(OSError):
            _Process.path.unlink(missing_ok=True)


def _leave() -> None:
    """Write nothing more; a forked process is another one."""
    os._exit = _exit
    _Process.file = None
    if _Process.faults:
        _Process.faults = False
        faulthandler.disable()


def exit_now(status: int) -> NoReturn:
    """End the process at once, because somebody asked for it."""
    end()
    _exit(status)


def _exit_of_the_app(status: int) -> NoReturn:
    assert _Process.file is not None
    with suppress(OSError):
        _Process.file.write(f"os._exit({status})\n".encode())
    _exit(status)


def write(path: str, how: str) -> None:
    """A process has ended so, as its supervisor has seen it; does nothing where it has no record,
    or has removed it."""
    with suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, f"{how}\n".encode())
        finally:
            os.close(file)


def read(path: str) -> str:
    """How a process has ended, in words, where that can be due to what it was processing; empty
    where nothing says so. Waits for a supervisor that has just seen it."""
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
    """The cgroup of this process, and how many processes of it the kernel has killed for memory;
    empty and 0 where that is not to be seen."""
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
