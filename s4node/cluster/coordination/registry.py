"""The registry: clusters, nodes, apps and streams, as entries of the coordination's tree.

Rules
- The registry uses only the contract of :mod:`s4node.cluster.tree.contract`, and is the
  only place that knows the paths in the tree.
- Living things are ephemeral (nodes, members); decisions are persistent (clusters, apps,
  assignments, producers and consumers of a stream).
- Entries are JSON, but for assignments, which are packed. Newer versions may add fields, which
  older ones ignore.
- A name may be any text: it is quoted to become a part of a path.

::

    /clusters/<cluster>                          ClusterInfo
    /clusters/<cluster>/nodes/<node>             NodeInfo, ephemeral
    /clusters/<cluster>/requests/<id>            what a command asks of nodes, ephemeral
    /clusters/<cluster>/answers/<id>/<node>      what a node has answered, ephemeral
    /clusters/<cluster>/apps/<app>               AppInfo
    /clusters/<cluster>/apps/<app>/members/<m>   MemberInfo, ephemeral
    /clusters/<cluster>/apps/<app>/assignment    Assignment
    /clusters/<cluster>/apps/<app>/drained/<n>   empty; a node that is to have no partitions
    /clusters/<cluster>/apps/<app>/paused        who keeps its containers stopped, ephemeral
    /clusters/<cluster>/apps/<app>/gate          the holder of its job's gate, ephemeral
    /clusters/<cluster>/apps/<app>/running/<id>  a container of its job, by session, ephemeral
    /clusters/<cluster>/apps/<app>/start         the name of the last start of its job
    /clusters/<cluster>/apps/<app>/state         the identity of the state of its job
    /locks/<cluster>/<what>                      the holder of the lock, ephemeral
    /streams/<stream>/<role>/<cluster>/<app>     empty; role is producers or consumers
    /startpoints/<state>                         Requests for the job whose state has this identity
"""

from __future__ import annotations

import contextlib
import urllib.parse
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
import trio

from s4node.cluster.coordination.assignment import Assignment, pack, unpack
from s4node.cluster.coordination.entries import (
    AppId,
    AppInfo,
    ClusterInfo,
    Found,
    Group,
    MemberInfo,
    NodeInfo,
)
from s4node.errors import (
    BadVersion,
    CoordinationError,
    EntryExists,
    EntryNotEmpty,
    NameTaken,
    NoEntry,
    SessionLost,
)
from s4node.events.schema import UNREADABLE
from s4node.offsets.cuts import CutReport
from s4node.offsets.startpoint_fan_out import Requests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from s4node.cluster.tree.contract import Entry, Session

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")

Role = Literal["producers", "consumers"]

NAME_PATIENCE_SECONDS = 1.0
"""How long a new node or member waits for one of the same name, which may be about to end."""


class Registry:
    """The registry, through one session of the coordination."""

    def __init__(self, session: Session) -> None:
        self.session = session

    # --- clusters, nodes -------------------------------------------------------------------------

    async def put_cluster(self, cluster: ClusterInfo) -> None:
        """Write a cluster, replacing a former entry."""
        await self._put(_path("clusters", cluster.name), cluster)

    async def cluster(self, name: str) -> ClusterInfo | None:
        """The cluster, or None."""
        found = await self._get(_path("clusters", name), ClusterInfo)
        return found and found.value

    async def join_node(
        self, cluster: str, node: NodeInfo, *, patience: float = NAME_PATIENCE_SECONDS
    ) -> None:
        """Add a node for as long as this session lives.

        Raises NameTaken if the cluster has a living node of this name that does not end within
        ``patience`` seconds.
        """

        def taken(living: NodeInfo) -> str:
            return (
                f"cluster {cluster!r} already has a node {node.name!r}: process {living.pid} on "
                f"{living.host}; give this node another name, or stop that one"
            )

        await self._claim(_path("clusters", cluster, "nodes", node.name), node, taken, patience)

    async def nodes(self, cluster: str) -> dict[str, NodeInfo]:
        """The living nodes of a cluster by name."""
        all_ = await self._all(_path("clusters", cluster, "nodes"), NodeInfo)
        return {name: found.value for name, found in all_.items()}

    async def living_clusters(self) -> list[str]:
        """The clusters with living nodes."""
        return [name for name in await self._names(_path("clusters")) if await self.nodes(name)]

    # --- apps ------------------------------------------------------------------------------------

    async def create_app(self, app: AppInfo) -> None:
        """Write a new app; raises EntryExists if the cluster has an app of this name."""
        path = _path("clusters", app.cluster, "apps", app.name)
        await self._create_or_fill(path, app)

    async def set_app(self, app: AppInfo, version: int | None = None) -> None:
        """Replace an app; with ``version``, only over that version (BadVersion)."""
        path = _path("clusters", app.cluster, "apps", app.name)
        await self.session.set(path, msgspec.json.encode(app), version)

    async def app(self, cluster: str, name: str) -> Found[AppInfo] | None:
        """The app with the version of its entry, or None."""
        return await self._get(_path("clusters", cluster, "apps", name), AppInfo)

    async def apps(self, cluster: str) -> dict[str, Found[AppInfo]]:
        """The apps deployed to a cluster by name."""
        return await self._all(_path("clusters", cluster, "apps"), AppInfo)

    async def remove_app(self, cluster: str, name: str) -> None:
        """Remove an app, its assignment and its streams; a missing app is not an error.

        Raises CoordinationError while members of it live.
        """
        living = await self.members(AppId(cluster, name))
        if living:
            raise CoordinationError(
                f"app {name!r} still runs in cluster {cluster!r}, on "
                f"{', '.join(sorted(living))}; stop these containers first"
            )
        for stream in await self.streams():
            for role in _ROLES:
                await self.remove_stream_user(stream, role, AppId(cluster, name))
        await self.delete_tree(_path("clusters", cluster, "apps", name))

    async def lock(self, cluster: str, what: str, who: str) -> None:
        """Take a lock of the cluster for this session; raises EntryExists if it is taken."""
        path = _path("locks", cluster, what)
        await self.session.create(path, who.encode(), ephemeral=True)

    async def unlock(self, cluster: str, what: str) -> None:
        """Release this session's own :meth:`lock`."""
        path = _path("locks", cluster, what)
        entry = await self.session.get(path)
        if entry is not None and entry.session == self.session.id:
            await self.session.delete(path)

    async def locked_by(self, cluster: str, what: str) -> str | None:
        """The text that the holder of a lock gave; None if nobody holds it."""
        entry = await self.session.get(_path("locks", cluster, what))
        return entry.data.decode() if entry is not None else None

    @contextlib.asynccontextmanager
    async def pause(self, app: AppId, who: str) -> AsyncIterator[None]:
        """Keep the containers of a deployed app stopped during the block, and no longer than this
        session lives; its streams stay its own."""
        path = _app(app) + "/paused"
        await self.session.create(path, who.encode(), ephemeral=True)
        try:
            yield
        finally:
            with trio.CancelScope(shield=True), contextlib.suppress(NoEntry, SessionLost):
                await self.session.delete(path)

    async def paused(self, app: AppId) -> bool:
        """Return True if an app's containers are kept stopped."""
        return await self.session.get(_app(app) + "/paused") is not None

    # --- members and assignment ------------------------------------------------------------------

    async def join_member(
        self,
        app: AppId,
        member: MemberInfo,
        *,
        patience: float = NAME_PATIENCE_SECONDS,
    ) -> None:
        """Add a container of ``app`` for as long as this session lives.

        Raises NameTaken as :meth:`join_node` does.
        """

        def taken(living: MemberInfo) -> str:
            return (
                f"app {str(app)!r} already has a container {member.name!r}: process {living.pid} "
                f"on {living.host}, at {living.address}; give this container another name, or stop "
                f"that one"
            )

        path = _below(_app(app) + "/members", member.name)
        await self._claim(path, member, taken, patience)

    async def leave_member(self, app: AppId, member: str) -> None:
        """Remove a member that this session has added; may be called twice."""
        path = _below(_app(app) + "/members", member)
        entry = await self.session.get(path)
        if entry is not None and entry.session == self.session.id:
            await self.session.delete(path)

    async def members(self, app: AppId) -> dict[str, Found[MemberInfo]]:
        """The living members by name."""
        return await self._all(_app(app) + "/members", MemberInfo)

    async def group(self, app: AppId, known: Group | None = None) -> Group:
        """The members, the assignment and the state, read one after the other.

        With ``known``, an earlier group, members that still own partitions are not read again,
        except the oldest. One that was replaced under its name is then taken for living until the
        assignment has changed.
        """
        path = _app(app) + "/members"
        names = set(await self._names(path))
        assignment = await self.assignment(app)
        owners = {owner.key for owner in assignment.value.owners} if assignment else set()
        before = known.members if known is not None else ()
        members = {
            each.value.name: each
            for each in before
            if each.value.name in names and (each.session, each.value.name) in owners
        }
        read: set[str] = set()
        unread = names - members.keys()
        while True:
            for name in unread:
                members.pop(name, None)
                found = await self._get(_below(path, name), MemberInfo)
                if found is not None:
                    members[name] = found
            read |= unread
            oldest = min(members.values(), key=lambda each: each.created, default=None)
            if oldest is None or oldest.value.name in read:
                break
            unread = {oldest.value.name}
        by_age = sorted(members.values(), key=lambda member: member.created)
        drained = frozenset(await self._names(_app(app) + "/drained"))
        return Group(tuple(by_age), assignment, await self.state(app), drained)

    async def add_drained(self, app: AppId, node: str) -> None:
        """Have the containers of a node hand over their partitions of an app, and get none."""
        with contextlib.suppress(EntryExists):
            await self.session.create(_below(_app(app) + "/drained", node))

    async def remove_drained(self, app: AppId, node: str) -> None:
        """Let a node have partitions again; may be called twice."""
        with contextlib.suppress(NoEntry):
            await self.session.delete(_below(_app(app) + "/drained", node))

    async def assignment(self, app: AppId) -> Found[Assignment] | None:
        """The app's assignment with its version, or None before the first one."""
        path = _assignment(app)
        entry = await self.session.get(path)
        if entry is None:
            return None
        try:
            assignment = unpack(entry.data)
        except ValueError as error:
            raise _unreadable(path, error) from error
        return Found(assignment, entry.version, entry.session, entry.created)

    async def write_assignment(
        self, app: AppId, assignment: Assignment, version: int | None
    ) -> None:
        """Write an assignment over the one of ``version``, or as the first one (None).

        Raises BadVersion, EntryExists or NoEntry if another was faster: read it again.
        """
        data = pack(assignment)
        if version is None:
            await self.session.create(_assignment(app), data)
        else:
            await self.session.set(_assignment(app), data, version)

    # --- the job ---------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def gate(self, app: AppId) -> AsyncIterator[None]:
        """Hold the gate of an app's job; waits while another session holds it."""
        path = _app(app) + "/gate"
        while True:
            seen = await self.session.change(path)
            try:
                await self.session.create(path, self.session.name.encode(), ephemeral=True)
            except EntryExists:
                await self.session.wait_change(path, seen)
            else:
                break
        try:
            yield
        finally:
            with trio.CancelScope(shield=True), contextlib.suppress(SessionLost, NoEntry):
                await self.session.delete(path)

    async def add_running(self, app: AppId, state: str) -> None:
        """Record that this session is of a container of the app's job, with this ``state``."""
        with contextlib.suppress(EntryExists):
            path = _below(_app(app) + "/running", self.session.id)
            await self.session.create(path, state.encode(), ephemeral=True)

    async def running(self, app: AppId) -> Mapping[str, str]:
        """The sessions of the containers of the app's job, with the identities of their states."""
        path = _app(app) + "/running"
        sessions = await self._names(path)
        return {each: await self._text(_below(path, each)) for each in sessions}

    async def start(self, app: AppId) -> str:
        """The name of the last start of the app's job; empty before the first."""
        return await self._text(_app(app) + "/start")

    async def set_start(self, app: AppId, name: str) -> None:
        """Name a new start of the app's job; the caller holds its gate."""
        await self._set_text(_app(app) + "/start", name)

    async def state(self, app: AppId) -> str:
        """The identity of the state of the app's job; empty before it has any."""
        return await self._text(_app(app) + "/state")

    async def set_state(self, app: AppId, identity: str) -> None:
        """Set the identity of the state of the app's job; the caller holds its gate."""
        await self._set_text(_app(app) + "/state", identity)

    async def change_startpoints(
        self, state: str, change: Callable[[Requests], tuple[Requests, R]]
    ) -> R:
        """Replace startpoints by the first result of ``change``; returns the second result. They
        are for the state with this identity. If another was faster, ``change`` is called again."""
        path = _path("startpoints", state)
        while True:
            found = await self._get(path, Requests)
            before = Requests() if found is None else found.value
            after, result = change(before)
            if after == before:
                return result
            data = msgspec.json.encode(after)
            try:
                if found is None:
                    await self.session.create(path, data)
                else:
                    await self.session.set(path, data, found.version)
            except (EntryExists, BadVersion, NoEntry):
                continue
            return result

    # --- savepoints ------------------------------------------------------------------------------

    async def request_savepoint(self, state: str, number: int) -> None:
        """Ask the tasks of the job whose state has this identity for their cuts, for as long as
        this session lives; raises EntryExists where another session asks."""
        path = self.path_of_savepoint(state)
        await self.session.create(path + "/request", str(number).encode(), ephemeral=True)
        for before in await self._names(path + "/cuts"):
            if before != str(number):
                await self.delete_tree(f"{path}/cuts/{before}")

    async def requested_savepoint(self, state: str) -> int:
        """The number of the savepoint that is asked for; 0 for none."""
        return int(await self._text(self.path_of_savepoint(state) + "/request") or 0)

    async def withdraw_savepoint(self, state: str) -> None:
        """Ask for no cuts any more, and remove what was reported."""
        path = self.path_of_savepoint(state)
        with contextlib.suppress(NoEntry):
            await self.session.delete(path + "/request")
        await self.delete_tree(path + "/cuts")

    async def report_cut(self, state: str, number: int, report: CutReport) -> None:
        """Say what has become of the cut of a task."""
        path = _below(f"{self.path_of_savepoint(state)}/cuts/{number}", report.task)
        await self._put(path, report)

    async def cuts(self, state: str, number: int) -> dict[str, CutReport]:
        """What was reported for the savepoint of this number, by task."""
        found = await self._all(f"{self.path_of_savepoint(state)}/cuts/{number}", CutReport)
        return {name: each.value for name, each in found.items()}

    @staticmethod
    def path_of_savepoint(state: str) -> str:
        """Where there is a change when a savepoint is asked for, or a cut is made."""
        return _path("savepoints", state)

    async def _text(self, path: str) -> str:
        entry = await self.session.get(path)
        return "" if entry is None else entry.data.decode()

    async def _set_text(self, path: str, text: str) -> None:
        with contextlib.suppress(EntryExists):
            await self.session.create(path)
        await self.session.set(path, text.encode())

    # --- streams ---------------------------------------------------------------------------------

    async def add_stream_user(self, stream: str, role: Role, app: AppId) -> None:
        """Record that ``app`` produces or consumes a stream, until that is removed."""
        with contextlib.suppress(EntryExists):
            await self.session.create(_path("streams", stream, role, *app))

    async def remove_stream_user(self, stream: str, role: Role, app: AppId) -> None:
        """Remove what :meth:`add_stream_user` recorded; may be called twice."""
        with contextlib.suppress(NoEntry):
            await self.session.delete(_path("streams", stream, role, *app))

    async def streams(self) -> list[str]:
        """All streams that ever had a producer or consumer, sorted."""
        return await self._names("/streams")

    async def stream_users(self, stream: str, role: Role) -> list[AppId]:
        """The apps that produce or consume a stream, sorted."""
        base = _path("streams", stream, role)
        found = []
        for cluster in await self._names(base):
            found += [AppId(cluster, app) for app in await self._names(_below(base, cluster))]
        return found

    # --- watching: the paths that wait_change takes ----------------------------------------------

    @staticmethod
    def path_of_cluster(cluster: str) -> str:
        """The path of everything in a cluster."""
        return _path("clusters", cluster)

    @staticmethod
    def path_of_request(cluster: str, id_: str = "") -> str:
        """The path of a request to nodes, or of all of them."""
        path = _path("clusters", cluster, "requests")
        return _below(path, id_) if id_ else path

    @staticmethod
    def path_of_answers(cluster: str, id_: str, node: str = "") -> str:
        """The path of the answers to a request, or of those of a node."""
        path = _path("clusters", cluster, "answers", id_)
        return _below(path, node) if node else path

    @staticmethod
    def path_of_apps(cluster: str) -> str:
        """The path of a cluster's apps, with members and assignments, for watching."""
        return _path("clusters", cluster, "apps")

    @staticmethod
    def path_of_app(app: AppId) -> str:
        """The path of an app's description, members and assignment, for watching."""
        return _app(app)

    @staticmethod
    def path_of_stream(stream: str) -> str:
        """The path of a stream's producers and consumers, for watching."""
        return _path("streams", stream)

    # --- inside ----------------------------------------------------------------------------------

    async def _get(self, path: str, kind: type[T]) -> Found[T] | None:
        entry = await self.session.get(path)
        if entry is None or not entry.data:  # only the parent of other entries
            return None
        return _found(path, entry, kind)

    async def _all(self, path: str, kind: type[T]) -> dict[str, Found[T]]:
        found = {}
        for part in await self.session.children(path):
            one = await self._get(f"{path}/{part}", kind)
            if one is not None:
                found[urllib.parse.unquote(part)] = one
        return found

    async def _names(self, path: str) -> list[str]:
        return sorted(urllib.parse.unquote(part) for part in await self.session.children(path))

    async def _put(self, path: str, value: msgspec.Struct) -> None:
        data = msgspec.json.encode(value)
        while True:
            try:
                await self.session.create(path, data)
            except EntryExists:
                try:
                    await self.session.set(path, data)
                except NoEntry:  # deleted in between
                    continue
            return

    async def _create_or_fill(self, path: str, value: msgspec.Struct) -> None:
        """Create an entry, or fill one that is only the parent of others."""
        data = msgspec.json.encode(value)
        try:
            await self.session.create(path, data)
        except EntryExists:
            entry = await self.session.get(path)
            if entry is None or entry.data:
                raise
            await self.session.set(path, data, entry.version)

    async def _claim(self, path: str, value: T, taken: Callable[[T], str], patience: float) -> None:
        deadline = trio.current_time() + patience
        while True:
            try:
                await self.session.create(path, msgspec.json.encode(value), ephemeral=True)
            except EntryExists:
                seen = await self.session.change(path)
                entry = await self.session.get(path)
                if entry is None:  # deleted in between
                    continue
                living = _found(path, entry, type(value))
                if living.session == self.session.id:
                    await self.session.set(path, msgspec.json.encode(value))
                    return
                with trio.move_on_at(deadline) as scope:
                    await self.session.wait_change(path, seen)
                if scope.cancelled_caught:
                    raise NameTaken(taken(living.value)) from None
            else:
                return

    async def delete_tree(self, path: str) -> None:
        """Delete an entry and all below it; a missing one is not an error."""
        while True:
            for part in await self.session.children(path):
                await self.delete_tree(f"{path}/{part}")
            try:
                await self.session.delete(path)
            except EntryNotEmpty:
                continue
            except NoEntry:
                pass
            return


def _found(path: str, entry: Entry, kind: type[T]) -> Found[T]:
    try:
        value = msgspec.json.decode(entry.data, type=kind)
    except UNREADABLE as error:
        raise _unreadable(path, error) from error
    return Found(value, entry.version, entry.session, entry.created)


def _unreadable(path: str, error: Exception) -> CoordinationError:
    return CoordinationError(
        f"the entry {path!r} cannot be read ({error}); another version of s4node may have written "
        f"it: run one version, or delete it"
    )


_ROLES: tuple[Role, ...] = ("producers", "consumers")


def _part(name: str) -> str:
    """The part of a path for a name."""
    quoted = urllib.parse.quote(name, safe="")
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


def _below(path: str, name: str) -> str:
    return f"{path}/{_part(name)}"


def _path(*names: str) -> str:
    return "".join(f"/{_part(name)}" for name in names)


def _app(app: AppId) -> str:
    return _path("clusters", app.cluster, "apps", app.app)


def _assignment(app: AppId) -> str:
    return _app(app) + "/assignment"
