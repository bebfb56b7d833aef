"""Coordination by ZooKeeper 3.6 or later, through kazoo.

Rules
- A session ends for good, and all calls are refused from then on.
- The loop sends heartbeats, each a ``sync``. A server that does not answer one in time is left for
  another one.
- A session is doubtful if no heartbeat that was sent within half of its timeout has been answered.
- A read follows a ``sync``, as a server may be behind the others.
- Each path whose changes are asked for has a persistent, recursive watch. A broken connection loses
  the watches: they are set again, and then everything may have changed.
- A call whose connection breaks is sent again, for as long as the session's timeout. A write that
  then meets its own result has succeeded.
- With credentials, only those who have the same ones can read and write the entries. A root that
  others can use is refused, unless it is empty: then it is closed to them.
- The entry of the root says which version of the tree is below it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import trio
from kazoo import exceptions as refused
from kazoo.client import KazooState

from s4node import clocks, threads
from s4node.cluster.tree.contract import Entry, LastingTreeError, check_data, check_path, parent_of
from s4node.cluster.tree.kazoo_client import OneSessionClient, credentials_of
from s4node.cluster.tree.session_life import living
from s4node.cluster.tree.tree_access import TreeAccess
from s4node.config.kinds import ZOOKEEPER_SCHEME
from s4node.errors import (
    BadVersion,
    CoordinationError,
    EntryExists,
    EntryNotEmpty,
    NoEntry,
    SessionLost,
)
from s4node.logger import get_logger

log = get_logger("s4node.cluster")

TREE = b"s4node tree 1"
"""The data of the root's entry."""

_BEATS = 5
"""The heartbeats of a session during its timeout."""

_OF_ENTRIES = (
    refused.BadVersionError,
    refused.NoChildrenForEphemeralsError,
    refused.NoNodeError,
    refused.NodeExistsError,
    refused.NotEmptyError,
)
_READ_AGAIN = "read it again before you decide"


class ZooKeeperCoordination:
    """The tree below the root of ``url``, which is ``zk://host:port,host:port/root``.

    A session lasts at most ``session_timeout`` seconds without a heartbeat; the servers may grant
    another time. ``credentials`` is a file, or empty.
    """

    def __init__(self, url: str, *, session_timeout: float = 10.0, credentials: str = "") -> None:
        self.url = url
        self._hosts, _, root = url.removeprefix(ZOOKEEPER_SCHEME).partition("/")
        self._root = f"/{root}"
        self._session_timeout = session_timeout
        self._options = credentials_of(credentials) if credentials else {}

    @asynccontextmanager
    async def session(self, name: str) -> AsyncIterator[ZooKeeperSession]:
        session = ZooKeeperSession(name, self.url, self._root)
        session.connect(self._hosts, self._session_timeout, self._options)
        async with living(session.close, session.stay):
            with trio.move_on_after(self._session_timeout) as patience:
                await session.wait_open()
            if patience.cancelled_caught:
                raise CoordinationError(
                    f"no ZooKeeper answers at {self.url} within {self._session_timeout:g} s; start "
                    f"it, or correct s4.coordination"
                )
            yield session

    async def end_session(self, key: str) -> None:
        id_, _, password = key.partition(":")
        session = ZooKeeperSession("end", self.url, self._root)
        known = (int(id_), bytes.fromhex(password))
        session.connect(self._hosts, self._session_timeout, self._options | {"client_id": known})
        async with living(session.close):
            with trio.move_on_after(self._session_timeout), suppress(SessionLost):
                await session.wait_connected()


class ZooKeeperSession:
    """A :class:`contract.Session` of ZooKeeper; made by :meth:`ZooKeeperCoordination.session`."""

    def __init__(self, name: str, url: str, root: str) -> None:
        self.id = ""
        self.name = name
        self.key = ""
        self.timeout = 0.0
        self.lost = trio.Event()
        self._url = url
        self._root = root
        self._reason = ""
        self._answered = clocks.steady()  # when the last heartbeat that was answered was sent
        self._connected = False
        self._connections = 0
        self._changed = trio.Event()
        self._numbers: dict[str, int] = {}  # of the last change, by watched path
        self._number = 0
        self._waiting: set[trio.Event] = set()
        self._trio = trio.lowlevel.current_trio_token()
        self._client: OneSessionClient

    @property
    def doubtful(self) -> bool:
        return clocks.steady() - self._answered > self.timeout / 2

    # --- the contract ----------------------------------------------------------------------------

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        check_path(path)
        check_data(path, data)

        async def ours() -> bool:
            entry = await self.get(path)
            mine = data, 0, self.id if ephemeral else ""
            return entry is not None and (entry.data, entry.version, entry.session) == mine

        create = self._client.create_async
        while True:
            try:
                await self._send_write(
                    ours, lambda: create(self._place(path), data, ephemeral=ephemeral)
                )
            except refused.NodeExistsError:
                raise EntryExists(f"the entry {path!r} exists already; {_READ_AGAIN}") from None
            except refused.NoNodeError:
                above = parent_of(path)
                if above == "/":
                    raise LastingTreeError(
                        f"the root of {self._url} was deleted, with everything that was deployed; "
                        f"restart all nodes, and deploy the apps again"
                    ) from None
                with suppress(EntryExists):
                    await self.create(above)
            except refused.NoChildrenForEphemeralsError:
                raise CoordinationError(
                    f"{path!r} would be below an entry that is ephemeral and can have no entries "
                    f"below it; choose another path"
                ) from None
            else:
                return

    async def get(self, path: str) -> Entry | None:
        check_path(path)
        try:
            data, stat = await self._read_synced(path, self._client.get_async)
        except refused.NoNodeError:
            return None
        owner = _session_id(stat.ephemeralOwner) if stat.ephemeralOwner else ""
        data = b"" if path == "/" else data  # the root's says which version of the tree this is
        return Entry(data, stat.version, owner, stat.czxid)

    async def set(self, path: str, data: bytes, version: int | None = None) -> int:
        check_path(path)
        check_data(path, data)
        place = self._changeable(path)

        async def ours() -> int:
            entry = await self.get(path)
            after = 0 if version is None else version + 1
            return (
                after if entry is not None and (entry.data, entry.version) == (data, after) else 0
            )

        expected = -1 if version is None else version
        try:
            stat = await self._send_write(
                ours, lambda: self._client.set_async(place, data, expected)
            )
        except refused.NoNodeError:
            raise _no_entry(path) from None
        except refused.BadVersionError:
            raise await self._bad_version(path, version) from None
        return stat if isinstance(stat, int) else int(stat.version)

    async def delete(self, path: str, version: int | None = None) -> None:
        check_path(path)
        place = self._changeable(path)

        async def ours() -> bool:
            return await self.get(path) is None

        expected = -1 if version is None else version
        try:
            await self._send_write(ours, lambda: self._client.delete_async(place, expected))
        except refused.NoNodeError:
            raise _no_entry(path) from None
        except refused.BadVersionError:
            raise await self._bad_version(path, version) from None
        except refused.NotEmptyError:
            raise EntryNotEmpty(f"{path!r} has entries below it; delete those first") from None

    async def children(self, path: str) -> list[str]:
        check_path(path)
        try:
            return sorted(await self._read_synced(path, self._client.get_children_async))
        except refused.NoNodeError:
            return []

    async def change(self, path: str) -> int:
        check_path(path)
        if self.lost.is_set() or path not in self._numbers:
            await self._call(lambda: self._client.watch_async(self._place(path)))
            self._numbers.setdefault(path, self._number)
        else:
            await trio.lowlevel.checkpoint()
        return self._numbers[path]

    async def wait_change(self, path: str, seen: int) -> int:
        while True:
            changed = self._changed
            number = await self.change(path)
            if number > seen:
                return number
            await changed.wait()

    # --- calls -----------------------------------------------------------------------------------

    async def _read_synced(self, path: str, ask: Callable[[str], Any]) -> Any:
        place = self._place(path)

        def send() -> Any:
            self._client.sync_async(place)
            return ask(place)

        return await self._call(send)

    async def _send_write(
        self, ours: Callable[[], Awaitable[object]], send: Callable[[], Any]
    ) -> Any:
        """Send a write; if an earlier try may have happened, ``ours`` says whether it has."""
        again = False
        while True:
            try:
                return await self._attempt(send)
            except _Broken:
                again = True
            except (refused.NodeExistsError, refused.NoNodeError, refused.BadVersionError):
                if again and (found := await ours()):
                    return found
                raise

    async def _call(self, send: Callable[[], Any]) -> Any:
        while True:
            with suppress(_Broken):
                return await self._attempt(send)

    async def _attempt(self, send: Callable[[], Any]) -> Any:
        """Send a request once, while there is a connection; raises _Broken if that breaks.

        Raises kazoo's errors of entries, SessionLost, or CoordinationError.
        """
        with trio.move_on_after(self.timeout) as patience:
            await self.wait_connected()
        if patience.cancelled_caught:
            raise CoordinationError(
                f"no ZooKeeper of {self._url} has answered for {self.timeout:g} s; see whether "
                f"most of its servers run, and whether this machine reaches them"
            )
        try:
            return await self._answer(send())
        except (refused.ConnectionLoss, refused.OperationTimeoutError):
            await trio.lowlevel.checkpoint()  # the loop learns first that there is no connection
            raise _Broken from None
        except (refused.SessionExpiredError, refused.AuthFailedError) as error:
            self._lose(_why_lost(error))
            raise SessionLost(self._reason) from None
        except _OF_ENTRIES:
            raise
        except refused.NoAuthError:
            raise CoordinationError(
                f"ZooKeeper denies access to entries of {self._url}; name the credentials of their "
                f"owner in s4.coordination.credentials, or choose another root"
            ) from None
        except refused.UnimplementedError:
            raise CoordinationError(
                f"the ZooKeeper at {self._url} has no recursive watches; use version 3.6 or later"
            ) from None
        except refused.KazooException as error:
            raise CoordinationError(
                f"ZooKeeper at {self._url} could not do this: {type(error).__name__} {error}; see "
                f"its log"
            ) from error

    async def _answer(self, result: Any) -> Any:
        """The value of kazoo's ``result``; raises its error, or SessionLost."""
        done = trio.Event()
        self._waiting.add(done)
        try:
            result.rawlink(lambda _: self._soon(done.set))
            await done.wait()
        finally:
            self._waiting.discard(done)
        if not result.ready():
            raise SessionLost(self._reason)
        return result.get_nowait()

    def _place(self, path: str) -> str:
        return self._root + path if path != "/" else self._root

    def _changeable(self, path: str) -> str:
        if path == "/":
            raise _no_entry(path)
        return self._place(path)

    async def _bad_version(self, path: str, version: int | None) -> Exception:
        entry = await self.get(path)
        if entry is None:
            return _no_entry(path)
        return BadVersion(f"{path!r} is at version {entry.version}, not {version}; {_READ_AGAIN}")

    # --- its life --------------------------------------------------------------------------------

    def connect(self, hosts: str, timeout: float, options: dict[str, Any]) -> None:
        """Begin to connect, in kazoo's threads."""
        self.timeout = timeout
        self._client = OneSessionClient(self, hosts=hosts, timeout=timeout, **options)
        self._client.add_listener(self._client.on_state)
        self._client.start_async()

    async def wait_connected(self) -> None:
        """Return when there is a connection; raises SessionLost if there will be none."""
        while not (self._connected or self.lost.is_set()):
            await self._changed.wait()
        if self.lost.is_set():
            raise SessionLost(self._reason)

    async def wait_open(self) -> None:
        """Return when the tree can be used; raises CoordinationError if it cannot."""
        await self.wait_connected()
        root = self._root
        for end in (index for index, char in enumerate(f"{root}/") if char == "/" and index):
            await self._make(root[:end], TREE if end == len(root) else b"")
        found, _ = await self._call(lambda: self._client.get_async(root))
        if found != TREE:
            raise LastingTreeError(
                f"{self._url} has entries of another program, or of another version of s4node "
                f"({found[:40]!r}); name another root in s4.coordination"
            )

        if self._client.default_acl:
            await self._access().close_root()

    async def check_closed(self) -> None:
        if self._client.default_acl:
            await self._access().check_closed()

    def _access(self) -> TreeAccess:
        return TreeAccess(self._client, self._call, self._url, self._root)

    async def _make(self, place: str, data: bytes) -> None:
        if await self._call(lambda: self._client.exists_async(place)) is None:
            with suppress(refused.NodeExistsError):
                await self._call(lambda: self._client.create_async(place, data))

    async def stay(self) -> None:
        """Send heartbeats, and set watches again after a broken connection, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat)
            connections = 0
            while not self.lost.is_set():
                changed = self._changed
                if connections == self._connections:
                    await changed.wait()
                else:
                    connections = self._connections
                    await self._watch_again()

    async def _beat(self) -> None:
        with suppress(SessionLost):
            while True:
                await self.wait_connected()
                sent = clocks.steady()
                with trio.move_on_after(self.timeout / 3) as patience, suppress(_Broken):
                    await self._attempt(lambda: self._client.sync_async(self._root))
                    self._answered = sent
                if patience.cancelled_caught:
                    self._client.leave_server()
                await trio.sleep(self.timeout / _BEATS)

    async def _watch_again(self) -> None:
        try:
            for path in list(self._numbers):
                await self._attempt(partial(self._client.watch_async, self._place(path)))
        except (_Broken, CoordinationError):  # there will be news of the next connection
            return
        self._note(self._numbers)

    def _note(self, paths: Iterable[str]) -> None:
        """Note that there may be changes at or below each of these watched paths."""
        self._number += 1
        self._numbers.update(dict.fromkeys(paths, self._number))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _lose(self, reason: str) -> None:
        if not self.lost.is_set():
            self._reason = f"session {self.name!r} at {self._url} is lost: {reason}"
            self.lost.set()
            for done in self._waiting:
                done.set()
            self._wake()

    async def close(self) -> None:
        """End the session, unless it has ended; the others notice at once."""
        self._lose("it was closed")
        await threads.run_sync(self._client.shut, abandon_on_cancel=True)

    # --- what kazoo's thread learns --------------------------------------------------------------

    def _soon(self, function: Callable[..., object], *arguments: object) -> None:
        with suppress(trio.RunFinishedError):
            self._trio.run_sync_soon(function, *arguments)

    def granted(self, id_: int, password: bytes, seconds: float) -> None:
        """Note the session and the timeout that a server has granted. Called in kazoo's thread."""
        self._soon(self._on_granted, id_, password, seconds)

    def on_state(self, state: str, error: Exception | None) -> None:
        """Note a state of the connection. Called in kazoo's thread."""
        self._soon(self._on_state, state, error)

    def on_change(self, place: str) -> None:
        """Note a change at ``place``. Called in kazoo's thread."""
        self._soon(self._on_change, place)

    def _on_granted(self, id_: int, password: bytes, seconds: float) -> None:
        self.id, self.timeout = _session_id(id_), seconds
        self.key = f"{id_}:{password.hex()}"

    def _on_state(self, state: str, error: Exception | None) -> None:
        self._connected = state == KazooState.CONNECTED
        if state == KazooState.LOST:
            self._lose(_why_lost(error))
        elif self._connected:
            self._connections += 1
            if self._connections > 1:
                log.info("is connected to ZooKeeper again", session=self.name)
        else:
            log.warning("has no connection to ZooKeeper", session=self.name, url=self._url)
        self._wake()

    def _on_change(self, place: str) -> None:
        path = place[len(self._root) :] or "/"
        above = [
            each for each in self._numbers if each in ("/", path) or path.startswith(f"{each}/")
        ]
        if above:
            self._note(above)


class _Broken(Exception):  # noqa: N818 - a reason to retry, never seen outside of the module
    """The connection broke; the request may have been done or not."""


def _session_id(number: int) -> str:
    return f"{number & (1 << 64) - 1:x}"


def _no_entry(path: str) -> NoEntry:
    return NoEntry(f"there is no entry {path!r}; create it first")


def _why_lost(error: Exception | None) -> str:
    if isinstance(error, refused.AuthFailedError):
        return "ZooKeeper refuses the credentials; correct the file of s4.coordination.credentials"
    return (
        "ZooKeeper ended it, because it had no heartbeat for too long; restart the process, and "
        "find out what stopped it: a handler that blocks its loop, SIGSTOP, or a broken network"
    )
