"""Coordination on one machine without a server: a folder that all processes share.

Rules
- The folder holds a database (:mod:`s4node.cluster.tree.tree_database`), a file for each session
  (:mod:`s4node.cluster.tree.session_file`) and a lock for opening sessions one at a time.
  It must be on a disk of this machine: network file systems implement neither kind of lock
  reliably.
- Calls that read or write run in a thread, as SQLite may wait for another process or the disk. The
  loop looks for changes every 50 ms, or 200 ms after some calm seconds: a few system calls that
  never wait, about 0.1 ms in all.
- Every session watches all others. A process that dies loses its lock; the kernel wakes the others
  at once, and the first session that notices ends the dead one. A stopped process is ended when it
  has sent no heartbeat for its timeout.
- A session is lost for good when it finds itself ended, or its folder deleted or damaged. Any other
  trouble in watching the others (a full disk, no file descriptors left, lost permissions) is waited
  out; it is logged once, and once when it is over.
- A session is doubtful after half its timeout without a heartbeat, because the process stood still
  or the disk failed, until it has sent one and has read that it still exists.
- A session that ends a silent one has itself just sent a heartbeat: the disk that keeps the other
  silent may be its own. It starts to try before the other's timeout, to leave the other as much
  time to recover.
"""

from __future__ import annotations

import contextlib
import fcntl
import select
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from s4node import clocks, threads, tokens
from s4node.cluster.tree.session_file import SeenFile, SessionFile
from s4node.cluster.tree.session_life import living
from s4node.cluster.tree.tree_database import (
    ENDED,
    DamagedTreeError,
    SessionRow,
    Tree,
    TreeBusy,
    Watch,
)
from s4node.cluster.tree.tree_session import TreeSession
from s4node.config.paths import full_path
from s4node.config.settings import COORDINATION_FOLDER
from s4node.errors import CoordinationError, SessionLost
from s4node.forks import LockFile
from s4node.logger import get_logger

log = get_logger("s4node.cluster")

T = TypeVar("T")

LOOK_SECONDS = 0.05
"""How often a session looks for changes and for dead sessions, while anything changes."""

_CALM_SECONDS, _CALM_LOOK_SECONDS = 5.0, 0.2
"""If nothing has changed for some seconds, it looks less often: to be woken is most of what a
process without work costs."""

_BEATS = 5
"""The heartbeats of a session during its timeout."""

_SESSIONS = "sessions"


def has_sessions(folder: Path) -> bool:
    for path in (folder / _SESSIONS).glob("*"):
        seen = SeenFile(path, 0.0, 0.0)
        try:
            if not seen.dead():
                return True
        finally:
            seen.close()
    return False


class FolderGoneError(CoordinationError):
    """The folder was deleted or replaced."""


class FolderCoordination:
    """The tree in ``folder``, which is created if missing; ``~`` is the user's home.

    The others end a session that is silent for ``session_timeout`` seconds.
    """

    def __init__(self, folder: Path | str, *, session_timeout: float = 10.0) -> None:
        self.folder = full_path(str(folder), COORDINATION_FOLDER.name)
        self.session_timeout = session_timeout

    @asynccontextmanager
    async def session(self, name: str) -> AsyncIterator[FolderSession]:
        session = await self._open(name)
        async with living(session.close, session.beat, session.look):
            yield session

    async def end_session(self, key: str) -> None:
        """Do nothing: the others notice at once that the process has died."""

    async def _open(self, name: str) -> FolderSession:
        row = SessionRow(tokens.fresh(16), name, self.session_timeout)
        thread = trio.CapacityLimiter(1)
        deadline = trio.current_time() + self.session_timeout
        while True:
            try:
                return await threads.run_sync(_open_session, self.folder, row, limiter=thread)
            except TreeBusy as busy:
                if trio.current_time() > deadline:
                    raise _locked_error(self.folder, self.session_timeout) from busy
                await trio.sleep(LOOK_SECONDS)
            except OSError as error:
                raise CoordinationError(
                    f"the coordination's folder {self.folder} cannot be used ({error}); fix its "
                    f"permissions, or set s4.coordination.folder to another folder"
                ) from error


class FolderSession(TreeSession):
    """A :class:`contract.Session` in a folder; made by :meth:`FolderCoordination.session`."""

    def __init__(
        self, folder: Path, row: SessionRow, tree: Tree, watch: Watch, file: SessionFile
    ) -> None:
        super().__init__(row.id, tree)
        self.name = row.name
        self.key = ""
        self.timeout = row.timeout
        self.lost = trio.Event()
        self._reason = ""
        self._asleep = False  # until it is known whether the session still exists
        self._beaten = clocks.steady()
        self._mute = False  # True if the last heartbeat failed
        self._folder = folder
        self._watch = watch
        self._inode = tree.path.stat().st_ino
        self._file = file
        self._turn = trio.Lock()
        self._thread = trio.CapacityLimiter(1)  # separate: handlers may occupy all other threads
        self._others: dict[str, SeenFile] = {}
        self._deaths = select.epoll()  # of the others' processes
        self._stale = True  # the other sessions have to be read again
        self._changed_at = self._beaten
        self._troubles: dict[str, str] = {}

    @property
    def doubtful(self) -> bool:
        return self._asleep or clocks.steady() - self._beaten > self.timeout / 2

    async def _in_tree(self, step: Callable[[], T], *, write: bool = False) -> T:
        """Run ``step`` in a thread; retry while other processes hold the lock."""
        deadline = trio.current_time() + self.timeout
        while True:
            try:
                result = await self._attempt(step)
            except TreeBusy as busy:
                if trio.current_time() > deadline:
                    raise _locked_error(self._folder, self.timeout) from busy
            else:
                if write:
                    self.wake()
                return result

    async def _attempt(self, step: Callable[[], T]) -> T:
        async with self._turn:
            if self.lost.is_set():
                raise SessionLost(self._reason)
            try:
                return await threads.run_sync(step, limiter=self._thread)
            except SessionLost as lost:
                self._lose(str(lost))
                raise SessionLost(self._reason) from None

    def _lose(self, reason: str) -> None:
        if not self.lost.is_set():
            self._reason = f"session {self.name!r} in {self._folder} is lost: {reason}"
            self.lost.set()
            self._file.close()
            self.wake()

    async def beat(self) -> None:
        """Send heartbeats; separate from ``look``, which may have to wait for others."""
        while not self.lost.is_set():
            self._send_heartbeat()
            await trio.sleep(self.timeout / _BEATS)

    def _send_heartbeat(self) -> None:
        self._asleep = self.doubtful
        try:
            self._file.beat()
        except OSError as error:
            self._mute = True
            self._log_trouble("send heartbeats", _unusable(self._file.path, error))
        else:
            self._mute = False
            self._beaten = clocks.steady()
            self._log_trouble("send heartbeats", "")

    def _log_trouble(self, what: str, trouble: str) -> None:
        """Log once what the session cannot do, and once that it can again (``trouble`` empty)."""
        if trouble == self._troubles.get(what, ""):
            return
        self._troubles[what] = trouble
        if trouble:
            log.warning(f"cannot {what}", session=self.name, reason=trouble)
        else:
            log.info(f"can {what} again", session=self.name)

    async def look(self) -> None:
        try:
            await self._poll()
        except (CoordinationError, OSError) as error:
            self._lose(str(error))
        finally:
            self._watch.close()
            self._deaths.close()
            for other in self._others.values():
                other.close()

    async def _poll(self) -> None:
        while not self.lost.is_set():
            try:
                self._check_folder()
                await self._look_after_others(clocks.steady())
            except TreeBusy:
                pass  # retried at the next look
            except SessionLost:
                return
            except (FolderGoneError, DamagedTreeError):
                raise
            except (CoordinationError, OSError) as error:  # retried, and it may last
                self._stale = True
                self._log_trouble("watch the other sessions", str(error))
            else:
                self._log_trouble("watch the other sessions", "")
            calm = clocks.steady() - self._changed_at > _CALM_SECONDS
            with trio.move_on_after(_CALM_LOOK_SECONDS if calm else LOOK_SECONDS):
                await trio.lowlevel.wait_readable(self._deaths)
                self._deaths.poll(0)  # each is reported once

    async def _look_after_others(self, now: float) -> None:
        """Notice changes, and end dead sessions."""
        self._stale = self._stale or self._asleep
        if self._watch.changed():
            self._changed_at, self._stale = now, True
            self.wake()
        if self._stale:
            await self._read_sessions(now)
            self._stale = False
        for id_ in () if self.lost.is_set() else self._over(now):
            await self._attempt(partial(_end_session, self._tree, self._folder, id_))
            self._others.pop(id_).close()
            self.wake()

    def _over(self, now: float) -> list[str]:
        """The sessions to end: dead ones, and those that are silent while we are not."""
        if not self._mute:
            over = [id_ for id_, other in self._others.items() if other.over(now)]
            if any(other.lapse > 1 - 1 / _BEATS for other in self._others.values()):
                self._send_heartbeat()
        if self._mute:
            over = [id_ for id_, other in self._others.items() if other.dead_unheard()]
        return over

    def _check_folder(self) -> None:
        try:
            same = self._tree.path.stat().st_ino == self._inode
        except (FileNotFoundError, NotADirectoryError):
            same = False
        except OSError as error:  # unknown: the database may still be there
            if not self._file.removed():
                raise CoordinationError(_unusable(self._tree.path, error)) from error
            same = False
        if not same:
            raise FolderGoneError(
                "its database was deleted or replaced; restart all nodes, and exclude the folder "
                "from automatic clean-up"
            )

    async def _read_sessions(self, now: float) -> None:
        asleep = self._asleep
        rows = {row.id: row for row in await self._attempt(self._tree.sessions)}
        if self.id not in rows:
            self._lose(ENDED)
        elif asleep:
            self._asleep = False
        for id_ in self._others.keys() - rows.keys():
            self._others.pop(id_).close()
        for id_ in rows.keys() - self._others.keys() - {self.id}:
            other = SeenFile(_session_path(self._folder, id_), rows[id_].timeout, now)
            self._others[id_] = other
            if other.process >= 0:
                self._deaths.register(other.process, select.EPOLLIN | select.EPOLLONESHOT)

    async def close(self) -> None:
        """End the session, unless it has ended; the others notice when they look next."""
        try:
            while not self.lost.is_set():
                with contextlib.suppress(TreeBusy):
                    await self._attempt(partial(_end_session, self._tree, self._folder, self.id))
                    break
        except (CoordinationError, OSError):
            pass  # the others notice that the lock below is released
        finally:
            self._lose("it was closed")
            with trio.CancelScope(shield=True):
                async with self._turn:  # after a call in progress
                    await threads.run_sync(self._tree.close, limiter=self._thread)


# --- in threads ----------------------------------------------------------------------------------


def _open_session(folder: Path, row: SessionRow) -> FolderSession:
    """Create the folder if needed, end dead sessions, and add ``row``; raises TreeBusy."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & stat.S_IWOTH:
        raise CoordinationError(
            f"everyone may write to {folder}, and so decide what the nodes run; forbid it "
            f"(chmod o-w), or set s4.coordination.folder to another folder"
        )
    (folder / _SESSIONS).mkdir(mode=0o700, exist_ok=True)
    with LockFile(folder / "lock") as lock, ExitStack() as undo:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as busy:
            raise TreeBusy(str(busy)) from busy
        path = folder / "tree.sqlite"
        tree = Tree(path)
        undo.callback(tree.close)
        watch = tree.watch()
        undo.callback(watch.close)
        _end_dead_sessions(tree, folder)
        file = SessionFile(_session_path(folder, row.id))
        undo.callback(file.close)
        tree.open_session(row)
        session = FolderSession(folder, row, tree, watch, file)
        undo.pop_all()
        return session


def _end_dead_sessions(tree: Tree, folder: Path) -> None:
    """End the sessions of dead processes, so that nobody sees their entries.

    A file without a session is left from a process that died while opening one.
    """
    for path in sorted(
        {_session_path(folder, row.id) for row in tree.sessions()}
        | set((folder / _SESSIONS).iterdir())
    ):
        seen = SeenFile(path, 0.0, 0.0)
        try:
            if seen.dead():
                _end_session(tree, folder, path.name)
        finally:
            seen.close()


def _end_session(tree: Tree, folder: Path, id_: str) -> None:
    tree.end_session(id_)
    _session_path(folder, id_).unlink(missing_ok=True)


def _session_path(folder: Path, id_: str) -> Path:
    return folder / _SESSIONS / id_


def _unusable(path: Path, error: OSError) -> str:
    return (
        f"the coordination's file {path} cannot be used ({error.strerror}); fix the permissions of "
        f"its folder, or check its disk (setting s4.coordination.folder)"
    )


def _locked_error(folder: Path, seconds: float) -> CoordinationError:
    return CoordinationError(
        f"the coordination's folder {folder} was locked by another process for {seconds:g} s; look "
        f"for a stopped process (ps shows state T), and resume or kill it"
    )
