"""The registry: clusters, nodes, apps and streams, as entries of the coordination's tree.

Rules
- The registry uses only the contract of :mod:`s4node.cluster.tree.contract`. It and its ``job``
  are the only places that know the paths in the tree.
- Living things are ephemeral (nodes, members); decisions are persistent (clusters, apps,
  assignments, producers and consumers of a stream).
- Entries are JSON, but for assignments, which are packed.

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
    /locks/<cluster>/<what>                      the holder of the lock, ephemeral
    /streams/<stream>/consumers/<cluster>/<app>  empty
    /streams/<stream>/producers/<cluster>/<app>  the streams that lead to it in the app, or empty
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Literal

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
from s4node.cluster.coordination.job_registry import JobRegistry
from s4node.cluster.coordination.typed_entries import (
    TypedEntries,
    below,
    path_of_app,
    path_to,
    unreadable,
)
from s4node.errors import CoordinationError, EntryExists, NameTaken, NoEntry, SessionLost
from s4node.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from s4node.cluster.tree.contract import Session

log = get_logger("s4node.cluster")

Role = Literal["producers", "consumers"]

_ROLES: tuple[Role, ...] = ("producers", "consumers")

NAME_PATIENCE_SECONDS = 1.0
"""How long a new node or member waits for one of the same name, which may be about to end."""

_START_SECONDS = 5.0
"""How much longer than a session's timeout a node or member that starts waits for its name."""


class Registry:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.entries = TypedEntries(session)
        self.job = JobRegistry(self.entries)

    # --- clusters, nodes -------------------------------------------------------------------------

    async def put_cluster(self, cluster: ClusterInfo) -> None:
        await self.entries.put(path_to("clusters", cluster.name), cluster)

    async def cluster(self, name: str) -> ClusterInfo | None:
        found = await self.entries.get(path_to("clusters", name), ClusterInfo)
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

        await self.entries.claim(
            path_to("clusters", cluster, "nodes", node.name), node, taken, patience
        )

    async def start_node(self, cluster: str, node: NodeInfo) -> None:
        """Add a node that starts, if only its credentials can use the tree: it runs what is there.
        Waits for its name as :meth:`start_member` does."""
        await self.session.check_closed()
        await self._start("node", partial(self.join_node, cluster, node))

    async def _start(self, what: str, join: Callable[..., Awaitable[None]]) -> None:
        try:
            await join()
        except NameTaken as taken:
            seconds = self.session.timeout + _START_SECONDS
            log.warning(
                f"waits for a session with this {what}'s name to end, as that of a killed {what} "
                f"does",
                seconds=seconds,
                reason=str(taken),
            )
            await join(patience=seconds)

    async def rejoin_node(self, cluster: str, node: NodeInfo) -> None:
        """Add a node that has lost a session, as :meth:`join_node` does, but wait for that session:
        it may be there again, for a timeout, if another ZooKeeper leads since.

        Not for a node that starts: containers of one host name have equal process ids.
        """
        while True:
            try:
                return await self.join_node(cluster, node)
            except NameTaken:
                if (await self.nodes(cluster)).get(node.name, node) != node:
                    raise

    async def nodes(self, cluster: str) -> dict[str, NodeInfo]:
        all_ = await self.entries.all(path_to("clusters", cluster, "nodes"), NodeInfo)
        return {name: found.value for name, found in all_.items()}

    async def living_clusters(self) -> list[str]:
        return [
            name for name in await self.entries.names(path_to("clusters")) if await self.nodes(name)
        ]

    # --- apps ------------------------------------------------------------------------------------

    async def create_app(self, app: AppInfo) -> None:
        """Write a new app; raises EntryExists if the cluster has an app of this name."""
        path = path_to("clusters", app.cluster, "apps", app.name)
        await self.entries.create_or_fill(path, app)

    async def set_app(self, app: AppInfo, version: int | None = None) -> None:
        """Replace an app; with ``version``, only over that version (BadVersion)."""
        path = path_to("clusters", app.cluster, "apps", app.name)
        await self.session.set(path, msgspec.json.encode(app), version)

    async def app(self, cluster: str, name: str) -> Found[AppInfo] | None:
        return await self.entries.get(path_to("clusters", cluster, "apps", name), AppInfo)

    async def apps(self, cluster: str) -> dict[str, Found[AppInfo]]:
        return await self.entries.all(path_to("clusters", cluster, "apps"), AppInfo)

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
        await self.entries.delete_tree(path_to("clusters", cluster, "apps", name))

    async def lock(self, cluster: str, what: str, who: str) -> None:
        """Take a lock of the cluster for this session; raises EntryExists if it is taken."""
        path = path_to("locks", cluster, what)
        await self.session.create(path, who.encode(), ephemeral=True)

    async def unlock(self, cluster: str, what: str) -> None:
        path = path_to("locks", cluster, what)
        entry = await self.session.get(path)
        if entry is not None and entry.session == self.session.id:
            await self.session.delete(path)

    async def locked_by(self, cluster: str, what: str) -> str | None:
        """The text that the holder of a lock gave; None if nobody holds it."""
        entry = await self.session.get(path_to("locks", cluster, what))
        return entry.data.decode() if entry is not None else None

    @contextlib.asynccontextmanager
    async def pause(self, app: AppId, who: str) -> AsyncIterator[None]:
        """Keep the containers of a deployed app stopped during the block, and no longer than this
        session lives; its streams stay its own."""
        path = path_of_app(app) + "/paused"
        await self.session.create(path, who.encode(), ephemeral=True)
        try:
            yield
        finally:
            with trio.CancelScope(shield=True), contextlib.suppress(NoEntry, SessionLost):
                await self.session.delete(path)

    async def paused(self, app: AppId) -> bool:
        """Return True if an app's containers are kept stopped."""
        return await self.session.get(path_of_app(app) + "/paused") is not None

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

        path = below(path_of_app(app) + "/members", member.name)
        await self.entries.claim(path, member, taken, patience)

    async def start_member(self, app: AppId, member: MemberInfo) -> None:
        """Add a container that starts, as :meth:`join_member` does, but wait for longer than a
        session's timeout: if a process of this name was killed, its session lives on for so long.
        """
        await self._start("container", partial(self.join_member, app, member))

    async def leave_member(self, app: AppId, member: str) -> None:
        """Remove a member that this session has added; may be called twice."""
        path = below(path_of_app(app) + "/members", member)
        entry = await self.session.get(path)
        if entry is not None and entry.session == self.session.id:
            await self.session.delete(path)

    async def set_member(self, app: AppId, member: MemberInfo) -> None:
        """Replace the entry of a member that this session has added; raises NoEntry if it left."""
        path = below(path_of_app(app) + "/members", member.name)
        await self.session.set(path, msgspec.json.encode(member))

    async def member(self, app: AppId, name: str) -> Found[MemberInfo] | None:
        return await self.entries.get(below(path_of_app(app) + "/members", name), MemberInfo)

    async def members(self, app: AppId) -> dict[str, Found[MemberInfo]]:
        return await self.entries.all(path_of_app(app) + "/members", MemberInfo)

    async def group(self, app: AppId, known: Group | None = None) -> Group:
        """The members, the assignment and the state, read one after the other: the assignment
        first, so that its owners have joined before, and one that is not found has left.

        With ``known``, an earlier group, members that still own partitions are not read again,
        except the oldest. One that was replaced under its name is then taken for living until the
        assignment has changed.
        """
        assignment = await self.assignment(app)
        names = set(await self.entries.names(path_of_app(app) + "/members"))
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
                found = await self.member(app, name)
                if found is not None:
                    members[name] = found
            read |= unread
            oldest = min(members.values(), key=lambda each: each.created, default=None)
            if oldest is None or oldest.value.name in read:
                break
            unread = {oldest.value.name}
        by_age = sorted(members.values(), key=lambda member: member.created)
        drained = frozenset(await self.entries.names(path_of_app(app) + "/drained"))
        return Group(tuple(by_age), assignment, await self.job.state(app), drained)

    async def add_drained(self, app: AppId, node: str) -> None:
        """Have the containers of a node hand over their partitions of an app, and get none."""
        with contextlib.suppress(EntryExists):
            await self.session.create(below(path_of_app(app) + "/drained", node))

    async def remove_drained(self, app: AppId, node: str) -> None:
        """Let a node have partitions again; may be called twice."""
        with contextlib.suppress(NoEntry):
            await self.session.delete(below(path_of_app(app) + "/drained", node))

    async def assignment(self, app: AppId) -> Found[Assignment] | None:
        path = path_of_app(app) + "/assignment"
        entry = await self.session.get(path)
        if entry is None:
            return None
        try:
            assignment = unpack(entry.data)
        except ValueError as error:
            raise unreadable(path, error) from error
        return Found(assignment, entry.version, entry.session, entry.created)

    async def write_assignment(
        self, app: AppId, assignment: Assignment, version: int | None
    ) -> None:
        """Write an assignment over the one of ``version``, or as the first one (None).

        Raises BadVersion, EntryExists or NoEntry if another was faster: read it again.
        """
        data = pack(assignment)
        if version is None:
            await self.session.create(path_of_app(app) + "/assignment", data)
        else:
            await self.session.set(path_of_app(app) + "/assignment", data, version)

    # --- streams ---------------------------------------------------------------------------------

    async def add_stream_user(self, stream: str, role: Role, app: AppId) -> None:
        """Record that ``app`` produces or consumes a stream, until that is removed."""
        with contextlib.suppress(EntryExists):
            await self.session.create(path_to("streams", stream, role, *app), b"")

    async def remove_stream_user(self, stream: str, role: Role, app: AppId) -> None:
        """Remove what :meth:`add_stream_user` recorded; may be called twice."""
        with contextlib.suppress(NoEntry):
            await self.session.delete(path_to("streams", stream, role, *app))

    async def streams(self) -> list[str]:
        """All streams that ever had a producer or consumer, sorted."""
        return await self.entries.names("/streams")

    async def stream_users(self, stream: str, role: Role) -> list[AppId]:
        base = path_to("streams", stream, role)
        found = []
        for cluster in await self.entries.names(base):
            found += [AppId(cluster, app) for app in await self.entries.names(below(base, cluster))]
        return found

    # --- watching: the paths that wait_change takes ----------------------------------------------

    @staticmethod
    def path_of_cluster(cluster: str) -> str:
        return path_to("clusters", cluster)

    @staticmethod
    def path_of_request(cluster: str, id_: str = "") -> str:
        path = path_to("clusters", cluster, "requests")
        return below(path, id_) if id_ else path

    @staticmethod
    def path_of_answers(cluster: str, id_: str, node: str = "") -> str:
        path = path_to("clusters", cluster, "answers", id_)
        return below(path, node) if node else path

    @staticmethod
    def path_of_apps(cluster: str) -> str:
        """The path of a cluster's apps, with members and assignments, for watching."""
        return path_to("clusters", cluster, "apps")

    @staticmethod
    def path_of_app(app: AppId) -> str:
        """The path of an app's description, members and assignment, for watching."""
        return path_of_app(app)

    @staticmethod
    def path_of_stream(stream: str = "") -> str:
        """The path of a stream's producers and consumers, or of all streams, for watching."""
        return path_to("streams", stream) if stream else path_to("streams")
