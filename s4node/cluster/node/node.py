"""The node: runs a container process for every app that is deployed to its cluster.

Rules
- The registry says what is to run, and the node follows it. A request in the tree only prepares a
  new version: it is loaded and checked, and held while the old one runs (``deployment``).
- One version of an app runs at a time. The old version drains and ends on all nodes, then the new
  one joins; producers keep their events meanwhile. An app that is paused has no containers, and
  keeps its streams; the pause ends with the session of the command that changes its state.
- A node that has lost its session joins again; its containers have sessions of their own.
- A node that starts waits for the session of a killed one with its name to end.
- Trouble with the coordination ends a node only at its start. Later it is logged once and waited
  out, while the containers continue. A running node ends only for what waiting does not fix: a
  tree that is gone, damaged or of another format, or another node with its name.
- The nodes of a cluster run one version of s4node, but for its last number, and have one URL for
  their state if they share no folder.
"""

from __future__ import annotations

import os
import shutil
import socket
from functools import partial
from typing import NoReturn

import trio

from s4node.cluster.coordination.entries import (
    RUNNING,
    AppId,
    AppInfo,
    ClusterInfo,
    Group,
    NodeInfo,
)
from s4node.cluster.coordination.follow import follow
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.node import package as archive
from s4node.cluster.node import supervisor_protocol
from s4node.cluster.node.deployment import Deployments
from s4node.cluster.node.node_folder import node_folder
from s4node.cluster.node.node_status import NodeStatus
from s4node.cluster.node.package import Manifest, Store, packages_url, store_folder
from s4node.cluster.node.post import Post
from s4node.cluster.node.redirector import Redirector
from s4node.cluster.node.supervisor import (
    ContainerProcess,
    Supervisor,
    limits_of,
    status_of,
    supervising,
)
from s4node.cluster.tree.contract import LastingTreeError, Session
from s4node.cluster.tree.coordinations import (
    coordination_of,
    in_folder,
    is_zookeeper,
    machine_folder,
    place_of,
)
from s4node.config import settings
from s4node.config.config import Config
from s4node.config.kinds import is_name
from s4node.errors import (
    ConfigError,
    CoordinationError,
    NameTaken,
    PackageError,
    S4Error,
    SessionLost,
    StateError,
)
from s4node.logger import get_logger
from s4node.offsets.task_claims import now_ms
from s4node.savepoints.manifest import AS_IS, StateCheck
from s4node.version import __version__

log = get_logger("s4node.cluster")

_AGAIN_SECONDS = 1.0
"""The pause before a failed step is retried."""


def check_name(name: str) -> None:
    """Raise ConfigError unless ``name`` is a node name, which has to fit into lists and logs."""
    if not (is_name(name) and name.isprintable()):
        raise ConfigError(
            f"{name!r} is not a node name; use printable characters without spaces and , = < >, "
            f"and dots only between others (s4 node --name)"
        )


def default_name(place: str) -> str:
    """The name of a node that was given none. Machines that share a ZooKeeper run one each, and it
    keeps its name when it is started again; in a folder there may be several."""
    host = socket.gethostname()
    return host if is_zookeeper(place) else f"{host}-{os.getpid()}"


class UnfitNode(CoordinationError):  # noqa: N818
    """This node does not fit to the others of its cluster."""


class Node:
    """A node; call :meth:`run` once. Raises ConfigError for a name that is none.

    With ``folder`` the nodes find each other there; if state has a URL, its coordination remains
    that of the settings. ``log`` is the address of the log of another node, if that is the
    containers' own.
    """

    def __init__(self, config: Config, name: str = "", *, folder: str = "", log: str = "") -> None:
        here = in_folder(config, folder) if folder else config
        self.config = config if config[settings.STATE_URL] else here
        self.cluster = config[settings.CLUSTER_NAME]
        self.place = place_of(here)
        self.name = name or default_name(self.place)
        check_name(self.name)
        self.ready = trio.Event()
        self.awaits_app = False
        """Set while an app is about to be deployed: clients wait for its streams."""
        self._log = log
        self._coordination = coordination_of(here)
        self._own = machine_folder(here)
        self._url = packages_url(self.place, config)
        self.packages = Store(store_folder(self._own), self._url, self.cluster)
        self._redirector = Redirector(config, self.name, self._lookup, self.status)
        self._posts: dict[str, Post] = {}
        self._groups: dict[str, Group] = {}  # as last read, by app
        self._deployments = Deployments(self)
        self._stopping = trio.Event()
        self._failure: S4Error | None = None
        self.registry: Registry | None = None
        self.supervisor: Supervisor
        self._nursery: trio.Nursery

    @property
    def address(self) -> str:
        """The address where outside programs ask for an app's containers."""
        return self._redirector.address

    def status(self) -> NodeStatus:
        if not self.ready.is_set():
            return status_of(self.name, self.cluster, self.address, ())
        processes, history = self.supervisor.processes, self.supervisor.history.last
        return status_of(self.name, self.cluster, self.address, processes, history)

    def lacking(self) -> list[str]:
        """The reasons why the node is not ready: its cluster, its apps, or its share of partitions.

        A container that has got its share once stays ready when partitions move later.
        """
        found = []
        if self._stopping.is_set():
            found.append("the node is stopping")
        if self.registry is None or not self.ready.is_set():
            found.append("the node has not joined its cluster")
        for post in self._posts.values():
            process = post.process
            if post.paused:
                found.append(f"app {post.app!r} is paused by a command that changes its state")
            if post.wanted is None or (process is not None and process.is_done):
                continue
            if process is None or post.running != post.wanted or not process.address:
                reason = post.failure or (process.ended_because if process is not None else "")
                found.append(f"app {post.app!r} is starting{reason and f': {reason}'}")
            elif not process.is_settled:
                found.append(f"app {post.app!r} waits for its share of partitions")
        return found

    @property
    def has_apps(self) -> bool:
        """True unless no app is left to run: all are done, or were undeployed."""
        found = (post.process for post in self._posts.values())
        return any(each is None or not each.ended.is_set() for each in found)

    def stop(self) -> None:
        """Begin an orderly stop: the containers drain and end; then ``run`` returns."""
        self._stopping.set()

    async def run(self) -> None:
        """Run until :meth:`stop`; raises an error that ends the node."""
        with node_folder(self._own) as self._folder:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await nursery.start(self._redirector.run)
                self._log = self._log or supervisor_protocol.log_of(self.config, self.address)
                async with supervising(
                    limits_of(self.config), self._coordination.end_session
                ) as self.supervisor:
                    nursery.start_soon(self._stay)
                    nursery.start_soon(self._update_redirector)
                    await self._stopping.wait()
                    failures = await self.supervisor.stop()
                    await self._redirector.finish()
                nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure
        if failures:
            raise S4Error("\n".join(failures))

    # -- what the registry says --------------------------------------------------------------

    async def _stay(self) -> None:
        """Stay in the registry and follow it, until that is no longer possible."""
        try:
            await self._follow_sessions()
        except S4Error as error:  # the containers drain first
            self._failure = error
            self._stopping.set()

    async def _follow_sessions(self) -> None:
        """Follow the registry, opening a new session when one is lost."""
        reason = ""
        while True:
            try:
                async with self._coordination.session(f"node {self.name}") as session:
                    await self._join(session, again=bool(reason))
                    if reason:
                        log.info("the node has joined again", node=self.name)
                        reason = ""
                    if not self.ready.is_set():  # at the start, trouble ends the node
                        await self._learn(session)
                    async with self._deployments.served(Registry(session)):
                        await self._follow(session)
            except SessionLost as error:
                reason = str(error)
                log.warning("the node's session is lost; joining again", reason=reason)
            except (LastingTreeError, NameTaken, UnfitNode):
                raise
            except CoordinationError as error:
                if not self.ready.is_set():
                    raise
                if reason != str(error):
                    reason = str(error)
                    log.warning("cannot join again; running containers continue", reason=reason)
            self.registry = None
            await trio.sleep(_AGAIN_SECONDS)
            if self._has_disappeared():
                raise CoordinationError(
                    f"the folder {self._own} has disappeared with everything that was deployed, so "
                    f"the node stops; start it again, and deploy the apps again"
                )

    def _has_disappeared(self) -> bool:
        if is_zookeeper(self.place):
            return False
        try:
            self._folder.stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # unknown
            pass
        return False

    async def _join(self, session: Session, *, again: bool) -> None:
        registry = Registry(session)
        me = NodeInfo(
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            python=archive.python_here(),
            address=self.address,
            version=__version__,
            log=bool(self.config[settings.LOG_FOLDER]),
        )
        cluster = await registry.cluster(self.cluster)
        if cluster is None:
            partitions = self.config[settings.CLUSTER_PARTITIONS]
            await registry.put_cluster(ClusterInfo(self.cluster, partitions, self._url))
        elif cluster.url != self._url:
            raise UnfitNode(
                f"cluster {self.cluster!r} has its packages and state at "
                f"{cluster.url or 'no URL'}, and this node has s4.state.url = {self._url}; give "
                f"all nodes the same one"
            )
        join = registry.rejoin_node if again else registry.start_node
        await join(self.cluster, me)  # from now on apps are deployed, to that URL
        for other in (await registry.nodes(self.cluster)).values():
            if _series(other.version) != _series(__version__):
                raise UnfitNode(
                    f"node {other.name!r} of cluster {self.cluster!r} runs s4node {other.version}, "
                    f"and this one {__version__}; stop the nodes of one version first"
                )
        for app in () if self.ready.is_set() else await registry.apps(self.cluster):
            await registry.remove_drained(AppId(self.cluster, app), self.name)
        self.registry = registry

    async def _follow(self, session: Session) -> NoReturn:
        seen = -1

        async def step() -> None:
            nonlocal seen
            last, seen = seen, -1  # a failed step is retried at once, without waiting for news
            await session.wait_change(Registry.path_of_apps(self.cluster), last)
            seen = await self._learn(session)

        await follow(
            step,
            lambda why: log.warning(
                "cannot learn what is deployed; running containers continue", reason=why
            ),
            lambda: log.info("can learn what is deployed again", node=self.name),
        )

    async def _learn(self, session: Session) -> int:
        """Read what is to run; returns the number of the change that this reflects."""
        assert self.registry is not None
        seen = await session.change(Registry.path_of_apps(self.cluster))
        apps = await self.registry.apps(self.cluster)
        self._groups = {name: each for name, each in self._groups.items() if name in apps}
        for name in {*apps, *self._posts}:
            found = apps[name].value if name in apps else None
            group = await self.registry.group(AppId(self.cluster, name), self._groups.get(name))
            self._groups[name] = group
            paused = found is not None and await self.registry.paused(AppId(self.cluster, name))
            self._want(name, found, group.addresses, paused=paused)
        infos = {name: each.value for name, each in apps.items()}
        self.supervisor.history.seen(now_ms(), infos, self._groups)
        self._redirector.news()
        self.ready.set()
        return seen

    def _want(
        self, name: str, app: AppInfo | None, members: tuple[str, ...], *, paused: bool
    ) -> None:
        wanted = app if app is not None and app.state == RUNNING and not paused else None
        post = self._posts.get(name)
        if post is None:
            if wanted is None and not paused:
                return
            post = self._posts[name] = Post(name)
            self._nursery.start_soon(self._tend, post)
        post.members = members
        post.wanted = wanted
        post.paused = paused
        post.change()

    # -- an app ------------------------------------------------------------------------------

    async def _tend(self, post: Post) -> None:
        """Keep the wanted version of the app running."""
        while not self._stopping.is_set():
            wanted, changed = post.wanted, post.changed
            if wanted != post.running:
                await self._end(post)
                if wanted is not None:
                    await self._begin(post, wanted)
            elif wanted is None and not post.paused:
                self._posts.pop(post.app, None)
                self.supervisor.note_change()
                return
            if post.wanted == wanted and not changed.is_set():
                with trio.move_on_after(_AGAIN_SECONDS):
                    await changed.wait()

    async def _end(self, post: Post) -> None:
        process, post.process, post.running = post.process, None, None
        if process is not None:
            log.info("stops", app=post.app, version=process.begin.version, node=self.name)
            await process.stop()
            code = process.begin.folder
            if not any(other.begin.folder == code for other in self.supervisor.processes):
                await trio.to_thread.run_sync(partial(shutil.rmtree, code, ignore_errors=True))

    async def _begin(self, post: Post, app: AppInfo) -> None:
        """Start ``app``, or the process that was prepared, once no other version runs anywhere."""
        while await self._others_run(app):
            changed = post.changed
            if post.wanted != app:
                return
            with trio.move_on_after(_AGAIN_SECONDS):
                await changed.wait()
        if post.wanted != app or self._stopping.is_set():
            return
        process = self._deployments.prepared.pop(app.package, None)
        if process is None:
            try:
                data = await trio.to_thread.run_sync(self.packages.get, app.package)
                manifest = archive.decode(data).manifest
            except (PackageError, StateError) as error:
                if str(error) != post.failure:
                    log.error("an app cannot run here", app=app.name, reason=str(error))
                post.failure = str(error)
                return
            begin = self.to_begin(manifest, app.package, app.partitions, app.expected)
            process = self.supervisor.start(begin)
        post.failure = ""
        post.process, post.running = process, app
        post.learn()
        await process.go()

    async def _others_run(self, app: AppInfo) -> bool:
        """Return True if a container of another version of ``app`` lives on some node."""
        if self.registry is None:
            return True
        try:
            members = await self.registry.members(AppId(self.cluster, app.name))
        except CoordinationError:  # unknown: ask again
            return True
        return any(member.value.version != app.version for member in members.values())

    def settings_of(self, deployed: dict[str, str], partitions: int) -> dict[str, str]:
        host = self.config[settings.LISTENER_ADDRESS].rpartition(":")[0]
        ours = {
            settings.LISTENER_ADDRESS.name: f"{host}:0",
            settings.CLUSTER_NAME.name: self.cluster,
            settings.CLUSTER_PARTITIONS.name: str(partitions),
            settings.COORDINATION_FOLDER.name: str(machine_folder(self.config)),
        }
        return supervisor_protocol.handed_on(self.config, self._log) | deployed | ours

    def to_begin(
        self,
        manifest: Manifest,
        digest: str,
        partitions: int,
        expected: int,
        *,
        check: StateCheck | None = None,
    ) -> supervisor_protocol.Begin:
        return supervisor_protocol.Begin(
            app=manifest.name,
            member=self.name,
            settings=self.settings_of(manifest.settings, partitions),
            package=str(self.packages.file(digest)),
            digest=digest,
            version=manifest.version,
            folder=str(self._folder / digest[:20]),  # not a name from the package
            node=self.name,
            coordination=self.place,
            redirector=self.address,
            log=self._log,
            expected=expected,
            hold=check is not None,
            check=check or AS_IS,
        )

    # -- what clients ask ----------------------------------------------------------------------

    async def _update_redirector(self) -> None:
        while True:
            changed = self.supervisor.changed
            for post in self._posts.values():
                post.learn()
            self._redirector.news()
            await changed.wait()

    @property
    def _knows_all(self) -> bool:
        """Return True if every app that is to run here, or is paused, has reported its streams."""
        posts = self._posts.values()
        return self.ready.is_set() and all(
            post.known is not None if post.paused else post.wanted in (None, post.known)
            for post in posts
        )

    def _lookup(self, stream: str, reads: bool) -> tuple[str, ...] | str:
        """The containers of the app that takes ``stream``, or with ``reads`` puts events on it.

        Empty while the stream may still turn out to exist, because a refusal is final.
        """
        posts = self._posts.values()
        for post in posts:
            if stream in (post.outputs if reads else post.inputs):
                return post.members
        if self.awaits_app or not self._knows_all:
            return ()
        if reads and len(posts) == 1:  # its containers know its internal streams
            return next(iter(posts)).members
        kind = "output" if reads else "input"
        known = sorted(n for post in posts for n in (post.outputs if reads else post.inputs))
        return (
            f"no app of cluster {self.cluster!r} has an {kind} stream {stream!r}; its {kind} "
            f"streams: {', '.join(known) or 'none'}"
        )

    def runs(self, process: ContainerProcess) -> bool:
        return any(post.process is process for post in self._posts.values())


def _series(version: str) -> str:
    """The part of a version that the nodes of a cluster share."""
    return version.rpartition(".")[0]
