"""The node: runs a container process for every app that is deployed to its cluster.

Rules
- The registry says what is to run, and the node follows it. A request at the admin socket only
  prepares a new version: it is loaded and checked, and held while the old one runs.
- One version of an app runs at a time. The old version drains and ends on all nodes, then the new
  one joins; producers keep their events meanwhile. An app that is paused has no containers, and
  keeps its streams; the pause ends with the session of the command that changes its state.
- A node that has lost its session joins again; its containers have sessions of their own.
- Trouble with the coordination ends a node only at its start. Later it is logged once and waited
  out, while the containers continue. A running node ends only for what waiting does not fix: a
  folder that is gone, damaged or of another format, or another node with its name.
"""

from __future__ import annotations

import os
import shutil
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

import trio

from s4node.cluster.coordination.contract import Session
from s4node.cluster.coordination.folder import FolderCoordination
from s4node.cluster.coordination.follow import follow
from s4node.cluster.coordination.registry import (
    RUNNING,
    AppId,
    AppInfo,
    ClusterInfo,
    NodeInfo,
    Registry,
)
from s4node.cluster.coordination.tree import LastingTreeError
from s4node.cluster.node import admin, supervisor_protocol
from s4node.cluster.node import package as archive
from s4node.cluster.node.node_folder import NodeFolder, node_folder
from s4node.cluster.node.package import Manifest, Store
from s4node.cluster.node.redirector import Redirector
from s4node.cluster.node.supervisor import ContainerProcess, Supervisor, limits_of, supervising
from s4node.config import settings
from s4node.config.config import Config
from s4node.config.kinds import is_name
from s4node.errors import (
    ConfigError,
    ContainerFailed,
    CoordinationError,
    NameTaken,
    PackageError,
    S4Error,
    SessionLost,
)
from s4node.logger import get_logger

log = get_logger("s4node.cluster")

"""The states of an app in the registry."""

_AGAIN_SECONDS = 1.0
"""The pause before a failed step is retried."""


@dataclass
class Post:
    """An app's place on this node."""

    app: str
    wanted: AppInfo | None = None
    running: AppInfo | None = None
    process: ContainerProcess | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    known: AppInfo | None = None  # the version that has these streams
    failure: str = ""
    paused: bool = False
    changed: trio.Event = field(default_factory=trio.Event)

    def change(self) -> None:
        """Wake the task that looks after the app."""
        self.changed.set()
        self.changed = trio.Event()

    def learn(self) -> None:
        """Learn the app's streams, once one of its processes has reported them."""
        prepared = self.process.prepared if self.process is not None else None
        if prepared is not None:
            self.inputs, self.outputs = tuple(prepared.inputs), tuple(prepared.outputs)
            self.known = self.running


def check_name(name: str) -> None:
    """Raise ConfigError unless ``name`` is a node name, which has to fit into lists and logs."""
    if not (is_name(name) and name.isprintable()):
        raise ConfigError(
            f"{name!r} is not a node name; use one printable word without commas (s4 node --name)"
        )


class Node:
    """A node; call :meth:`run` once. Raises ConfigError for a name that is none."""

    def __init__(self, config: Config, name: str = "") -> None:
        self.config = config
        self.cluster = config[settings.CLUSTER_NAME]
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        check_name(self.name)
        self.ready = trio.Event()
        self._coordination = FolderCoordination(
            config[settings.COORDINATION_FOLDER],
            session_timeout=config[settings.SESSION_TIMEOUT],
        )
        self._store = Store(store_folder(self._coordination.folder))
        self._redirector = Redirector(config, self.name, self._lookup)
        self._posts: dict[str, Post] = {}
        self._waiting: dict[str, ContainerProcess] = {}  # prepared, by digest of their package
        self._stopping = trio.Event()
        self._failure: S4Error | None = None
        self._registry: Registry | None = None
        self._folder: NodeFolder
        self._supervisor: Supervisor
        self._nursery: trio.Nursery

    @property
    def address(self) -> str:
        """The address where outside programs ask for an app's containers."""
        return self._redirector.address

    def stop(self) -> None:
        """Begin an orderly stop: the containers drain and end; then ``run`` returns."""
        self._stopping.set()

    async def run(self) -> None:
        """Run until :meth:`stop`; raises an error that ends the node."""
        with node_folder(self._coordination.folder) as self._folder:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await nursery.start(self._redirector.run)
                await nursery.start(admin.serve, self._folder.admin, self._asked)
                async with supervising(limits_of(self.config)) as self._supervisor:
                    nursery.start_soon(self._stay)
                    nursery.start_soon(self._tell_redirector)
                    await self._stopping.wait()
                    failures = await self._supervisor.stop()
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
        told = ""
        while True:
            try:
                async with self._coordination.session(f"node {self.name}") as session:
                    await self._join(session)
                    if told:
                        log.info("the node has joined again", node=self.name)
                        told = ""
                    if not self.ready.is_set():  # at the start, trouble ends the node
                        await self._learn(session)
                    await self._follow(session)
            except SessionLost as error:
                told = str(error)
                log.warning("the node's session is lost; joining again", reason=told)
            except (LastingTreeError, NameTaken):
                raise
            except CoordinationError as error:
                if not self.ready.is_set():
                    raise
                if told != str(error):
                    told = str(error)
                    log.warning("cannot join again; running containers continue", reason=told)
            self._registry = None
            await trio.sleep(_AGAIN_SECONDS)
            if self._has_disappeared():
                raise CoordinationError(
                    f"the folder {self._coordination.folder} has disappeared with everything that "
                    f"was deployed, so the node stops; start it again, and deploy the apps again"
                )

    def _has_disappeared(self) -> bool:
        try:
            self._folder.admin.stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # unknown
            pass
        return False

    async def _join(self, session: Session) -> None:
        registry = Registry(session)
        me = NodeInfo(
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            python=archive.python_here(),
            address=self.address,
            admin=str(self._folder.admin),
        )
        await registry.join_node(self.cluster, me)
        if await registry.cluster(self.cluster) is None:
            partitions = self.config[settings.CLUSTER_PARTITIONS]
            await registry.put_cluster(ClusterInfo(self.cluster, partitions))
        self._registry = registry

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
        assert self._registry is not None
        seen = await session.change(Registry.path_of_apps(self.cluster))
        apps = await self._registry.apps(self.cluster)
        for name in {*apps, *self._posts}:
            found = apps[name].value if name in apps else None
            group = await self._registry.group(AppId(self.cluster, name))
            paused = found is not None and await self._registry.paused(AppId(self.cluster, name))
            self._want(name, found, group.addresses, paused=paused)
        self._redirector.news()
        self.ready.set()
        return seen

    def _want(
        self, name: str, app: AppInfo | None, members: tuple[str, ...], *, paused: bool
    ) -> None:
        wanted = app if app is not None and app.state == RUNNING and not paused else None
        post = self._posts.get(name)
        if post is None:
            if wanted is None:
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
            if not any(other.begin.folder == code for other in self._supervisor.processes):
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
        process = self._waiting.pop(app.package, None)
        if process is None:
            try:
                data = await trio.to_thread.run_sync(self._store.get, app.package)
                manifest = archive.decode(data).manifest
            except PackageError as error:
                if str(error) != post.failure:
                    log.error("an app cannot run here", app=app.name, reason=str(error))
                post.failure = str(error)
                return
            begin = self._to_begin(manifest, app.package, app.partitions, app.expected)
            process = self._supervisor.start(begin)
        post.failure = ""
        post.process, post.running = process, app
        post.learn()
        await process.go()

    async def _others_run(self, app: AppInfo) -> bool:
        """Return True if a container of another version of ``app`` lives on some node."""
        if self._registry is None:
            return True
        try:
            members = await self._registry.members(AppId(self.cluster, app.name))
        except CoordinationError:  # unknown: ask again
            return True
        return any(member.value.version != app.version for member in members.values())

    def _settings_of(self, deployed: dict[str, str], partitions: int) -> dict[str, str]:
        """The settings of a container of an app that was deployed with some."""
        host = self.config[settings.LISTENER_ADDRESS].rpartition(":")[0]
        ours = {
            settings.LISTENER_ADDRESS.name: f"{host}:0",
            settings.CLUSTER_NAME.name: self.cluster,
            settings.CLUSTER_PARTITIONS.name: str(partitions),
            settings.COORDINATION_FOLDER.name: str(self._coordination.folder),
        }
        return supervisor_protocol.handed_on(self.config, self.address) | deployed | ours

    def _to_begin(
        self,
        manifest: Manifest,
        digest: str,
        partitions: int,
        expected: int,
        *,
        hold: bool = False,
        savepoint: str = "",
    ) -> supervisor_protocol.Begin:
        return supervisor_protocol.Begin(
            app=manifest.name,
            member=self.name,
            settings=self._settings_of(manifest.settings, partitions),
            package=str(self._store.folder / f"{digest}.zip"),
            digest=digest,
            version=manifest.version,
            folder=str(self._folder.code / digest[:20]),  # not a name from the package
            node=self.name,
            coordination=str(self._coordination.folder),
            redirector=self.address,
            log=supervisor_protocol.log_of(self.config, self.address),
            expected=expected,
            hold=hold,
            savepoint=savepoint,
        )

    # -- what is asked -----------------------------------------------------------------------

    async def _tell_redirector(self) -> None:
        while True:
            changed = self._supervisor.changed
            for post in self._posts.values():
                post.learn()
            self._redirector.news()
            await changed.wait()

    @property
    def _knows_all(self) -> bool:
        """Return True if every app that is to run here has reported its streams."""
        posts = self._posts.values()
        return self.ready.is_set() and all(post.wanted in (None, post.known) for post in posts)

    def _lookup(self, stream: str, reads: bool) -> tuple[str, ...] | str:
        """The containers of the app that takes ``stream``, or with ``reads`` puts events on it.

        Empty while the stream may still turn out to exist, because a refusal is final.
        """
        posts = self._posts.values()
        for post in posts:
            if stream in (post.outputs if reads else post.inputs):
                return post.members
        if not self._knows_all:
            return ()
        if reads and len(posts) == 1:  # its containers know its internal streams
            return next(iter(posts)).members
        kind = "output" if reads else "input"
        known = sorted(n for post in posts for n in (post.outputs if reads else post.inputs))
        return (
            f"no app of cluster {self.cluster!r} has an {kind} stream {stream!r}; its {kind} "
            f"streams: {', '.join(known) or 'none'}"
        )

    async def _asked(self, ask: admin.Ask, body: bytes, conversation: admin.Conversation) -> None:
        match ask:
            case admin.AskStatus():
                await conversation.say(self.status())
            case admin.AskSettings():
                await conversation.say(admin.Settings(self._settings_of(ask.deployed, 1)))
            case admin.AskDeploy():
                await self._prepare(ask, body, conversation)

    async def _prepare(
        self, ask: admin.AskDeploy, data: bytes, conversation: admin.Conversation
    ) -> None:
        """Prepare a new version beside the old one, for as long as the client stays."""
        package = archive.decode(data)
        package.check_python()
        digest = await trio.to_thread.run_sync(self._store.put, data)
        begin = self._to_begin(
            package.manifest,
            digest,
            ask.partitions,
            ask.expected,
            hold=True,
            savepoint=ask.savepoint,
        )
        process = self._supervisor.start(begin)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._see_through, process, digest, conversation, nursery)
                await conversation.wait_end()
                nursery.cancel_scope.cancel()
        finally:
            if self._waiting.get(digest) is process:
                del self._waiting[digest]
            if not any(post.process is process for post in self._posts.values()):
                process.stop_soon()

    async def _see_through(
        self,
        process: ContainerProcess,
        digest: str,
        conversation: admin.Conversation,
        nursery: trio.Nursery,
    ) -> None:
        """Report how a new version starts, until it is ready or has failed."""
        try:
            prepared = await process.wait_prepared()
            self._waiting[digest] = process
            answer = admin.Prepared(digest, prepared.inputs, prepared.outputs)
            await conversation.say(answer)
            address = await process.wait_ready()
            await conversation.say(admin.Ready(address))
        except ContainerFailed as error:
            log.info(
                "a new version does not run",
                app=process.begin.app,
                version=process.begin.version,
                reason=error.reason,
            )
            with suppress(trio.BrokenResourceError):  # the client may have left as well
                await conversation.say(admin.Failed(error.reason, error.trace))
        except trio.BrokenResourceError:
            pass
        nursery.cancel_scope.cancel()

    def status(self) -> admin.NodeStatus:
        """The status of this node."""
        processes = self._supervisor.processes
        return admin.NodeStatus(
            self.name,
            self.cluster,
            os.getpid(),
            self.address,
            [each.status() for each in processes],
            [each.statistics for each in processes if each.statistics is not None],
        )


def store_folder(coordination: Path) -> Path:
    """The folder of packages in a coordination's folder."""
    return coordination / "packages"
