"""Deploying apps to a cluster from the command line.

Rules
- A cluster has one deployment or removal at a time; the error for a second one names the first.
- First every living node starts the new version and has it check itself. Only if all of them can
  run it does it become the cluster's version. A failure before that changes nothing. A failure
  after that, when the new version really starts, brings the old version back with its saved state,
  but without what was only in its memory.
- Progress is printed on standard error.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import msgspec
import trio

from s4node.cluster.coordination.folder import FolderCoordination
from s4node.cluster.coordination.registry import (
    RUNNING,
    STOPPING,
    AppId,
    AppInfo,
    Found,
    NodeInfo,
    Registry,
)
from s4node.cluster.node import admin
from s4node.cluster.node.node import store_folder
from s4node.cluster.node.package import (
    MAX_BYTES,
    Package,
    Store,
    content_version,
    decode,
    digest_of,
)
from s4node.config import settings
from s4node.config.config import Config
from s4node.config.paths import is_folder
from s4node.deploy.cluster_snapshot import no_node
from s4node.errors import (
    BadVersion,
    ConfigError,
    DeployFailed,
    EntryExists,
    NoEntry,
    PackageError,
    S4Error,
)

LOCK = "deploying"
_PATIENCE_SECONDS = 3.0
"""The time after which nodes that have not answered are named."""
_LEAVING_SECONDS = 5.0
"""The time that an interrupted deployment has to bring the old version back."""

OWN_KEYS = {
    settings.CLUSTER_NAME.name,
    settings.CLUSTER_PARTITIONS.name,
    settings.COORDINATION_FOLDER.name,
    settings.LISTENER_ADDRESS.name,
}
"""The settings that are not sent with an app: they say where it goes."""


def tell(text: str) -> None:
    """Print one line of progress."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Deployed:
    """The outcome: which version of an app runs on which nodes, by address."""

    app: str
    cluster: str
    version: str
    partitions: int
    before: str
    containers: dict[str, str]


@asynccontextmanager
async def registry_of(config: Config, who: str) -> AsyncIterator[Registry]:
    """The registry in the configured folder; raises ConfigError if no node has ever used it."""
    cluster = config[settings.CLUSTER_NAME]
    coordination = FolderCoordination(
        config[settings.COORDINATION_FOLDER], session_timeout=config[settings.SESSION_TIMEOUT]
    )
    folder, fix = (
        coordination.folder,
        "fix its permissions, or name the nodes' folder with --folder",
    )
    if not await trio.to_thread.run_sync(is_folder, folder, fix):
        raise ConfigError(
            f"no node of cluster {cluster!r} lives: the folder {folder} does not exist; start one "
            f"with: s4 node {cluster}, or name the nodes' folder with --folder"
        )
    async with coordination.session(who) as session:
        yield Registry(session)


def packages_of(config: Config) -> Store:
    """The packages in the configured folder."""
    return Store(store_folder(FolderCoordination(config[settings.COORDINATION_FOLDER]).folder))


# -- deploying ------------------------------------------------------------------------------------


async def deploy(package: Package, config: Config, partitions: int | None = None) -> Deployed:
    """Make the cluster run ``package``; raises S4Error with the reason if it does not."""
    cluster, app = config[settings.CLUSTER_NAME], package.manifest.name
    data = package.encode()
    if len(data) > MAX_BYTES:
        raise DeployFailed(
            f"the package has {len(data)} bytes, and at most {MAX_BYTES} are allowed; keep data "
            f"out of the app's folder"
        )
    async with (
        registry_of(config, f"deploy {app}") as registry,
        deploying(registry, cluster, f"deployment of {app!r}"),
    ):
        return await _Deployment(registry, config, package, data).run(partitions)


@asynccontextmanager
async def deploying(registry: Registry, cluster: str, what: str) -> AsyncIterator[None]:
    """Hold the cluster's lock for changing apps; raises DeployFailed if it is taken."""
    mine = f"the {what} by process {os.getpid()} on {socket.gethostname()}"
    try:
        await registry.lock(cluster, LOCK, mine)
    except EntryExists:
        other = (
            await registry.locked_by(cluster, LOCK) or "another deployment, which has just ended"
        )
        raise DeployFailed(
            f"{other} is in progress in cluster {cluster!r}, and only one is possible at a time; "
            f"try again when it is done"
        ) from None
    try:
        yield
    finally:
        with trio.move_on_after(1, shield=True):
            await registry.unlock(cluster, LOCK)


class _Deployment:
    def __init__(self, registry: Registry, config: Config, package: Package, data: bytes) -> None:
        self._registry = registry
        self._config = config
        self._package = package
        self._manifest = package.manifest
        self._data = data
        self._id = AppId(config[settings.CLUSTER_NAME], package.manifest.name)

    async def run(self, partitions: int | None) -> Deployed:
        """Deploy as the rules of the module say."""
        registry, (cluster, app), manifest = self._registry, self._id, self._manifest
        nodes = await registry.nodes(cluster)
        if not nodes:
            raise DeployFailed(no_node(cluster, await registry.living_clusters()))
        self._check_pythons(nodes)
        before = await registry.app(cluster, app)
        partitions = await self._partitions(before and before.value, partitions)
        if before and (before.value.version, before.value.state) == (manifest.version, RUNNING):
            self._check_same(before.value.package)
            members = await registry.members(self._id)
            at = {member.value.node: member.value.address for member in members.values()}
            if not at:
                raise DeployFailed(
                    f"{app} {manifest.version} is already deployed to {cluster}, but none of its "
                    f"containers runs; s4 status says why"
                )
            tell(f"{app} {manifest.version} is already deployed to {cluster}")
            return Deployed(app, cluster, manifest.version, partitions, manifest.version, at)
        try:
            ready = await self._switch(nodes, before, partitions)
        except BaseException:
            if before is None or before.value.package != digest_of(self._data):
                packages_of(self._config).remove(digest_of(self._data))
            raise
        at = {name: answer.address for name, answer in ready.items()}
        old = before.value.version if before else ""
        return Deployed(app, cluster, manifest.version, partitions, old, at)

    def _check_same(self, deployed: str) -> None:
        """Raise DeployFailed if this version runs with other contents."""
        try:
            package = decode(packages_of(self._config).get(deployed))
        except PackageError:  # unknown
            return
        content = content_version(package.manifest, package.files)
        if content != content_version(self._manifest, self._package.files):
            app, version = self._manifest.name, self._manifest.version
            raise DeployFailed(
                f"version {version} of {app} is already running with other sources or settings; "
                f"give this one another --version, or none"
            )

    async def _switch(
        self, nodes: dict[str, NodeInfo], before: Found[AppInfo] | None, partitions: int
    ) -> dict[str, admin.Ready]:
        """Prepare the new version on all nodes, then replace the old one."""
        cluster, app = self._id
        manifest = self._manifest
        tell(f"{app} {manifest.version} ({len(self._data)} bytes) to {_named(nodes)}")
        config = self._config
        start = config[settings.CONTAINER_START_TIMEOUT] + config[settings.CLUSTER_GATHER_TIMEOUT]
        drain = config[settings.TASK_SHUTDOWN_MS] + config[settings.CONTAINER_END_TIMEOUT]
        ask = admin.AskDeploy(len(self._data), partitions, len(nodes))
        async with AsyncExitStack() as stack:
            callers = [
                await stack.enter_async_context(admin.asking(name, node.admin, ask, self._data))
                for name, node in nodes.items()
            ]
            prepared = await _from_all(callers, admin.Prepared, start, "load and check it")
            tell(f"loaded and checked on {_named(nodes)}")
            first = next(iter(prepared.values()))
            await self._check_streams(first.inputs)
            info = AppInfo(
                name=app,
                cluster=cluster,
                version=manifest.version,
                partitions=partitions,
                package=first.digest,
                hasher=self._config[settings.HASHER],
                expected=len(nodes),
                state=RUNNING,
            )
            await self._put(info, before.version if before else None)
            try:
                if before:
                    tell(f"{app} {before.value.version} drains and ends")
                todo = "process what the old version has, and run it" if before else "run it"
                ready = await _from_all(callers, admin.Ready, drain + start, todo)
            except S4Error:
                with trio.move_on_after(drain + start):
                    await self._take_back(info, before.value if before else None)
                    await self._wait_back(before.value if before else None, len(nodes))
                raise
            except BaseException:  # interrupted: the nodes bring the old version back
                with trio.move_on_after(_LEAVING_SECONDS, shield=True):
                    await self._take_back(info, before.value if before else None)
                raise
        if before and before.value.package != info.package:
            packages_of(self._config).remove(before.value.package)
        return ready

    def _check_pythons(self, nodes: dict[str, NodeInfo]) -> None:
        for node in nodes.values():
            if node.python != self._manifest.python:
                raise DeployFailed(
                    f"the app is packaged with Python {self._manifest.python}, and node "
                    f"{node.name!r} runs Python {node.python}, which cannot load it: deploy with "
                    f"Python {node.python}, or run the nodes with Python {self._manifest.python}"
                )

    async def _partitions(self, before: AppInfo | None, asked: int | None) -> int:
        if before is not None and asked not in (None, before.partitions):
            raise DeployFailed(
                f"app {before.name!r} has {before.partitions} partitions, which cannot become "
                f"{asked} while it is deployed; undeploy it first: s4 undeploy {before.name}"
            )
        if before is not None:
            return before.partitions
        if asked is not None:
            return asked
        cluster = await self._registry.cluster(self._id.cluster)
        return cluster.partitions if cluster else 1

    async def _check_streams(self, inputs: list[str]) -> None:
        for stream in inputs:
            for user in await self._registry.stream_users(stream, "consumers"):
                if user.cluster == self._id.cluster and user != self._id:
                    raise DeployFailed(
                        f"app {user.app!r} of cluster {user.cluster!r} already has an input stream "
                        f"{stream!r}, and a cluster has one app for an input stream; rename this "
                        f"stream, or deploy to another cluster"
                    )

    async def _put(self, info: AppInfo, version: int | None) -> None:
        """Make ``info`` the cluster's version, unless another process has changed it meanwhile."""
        try:
            if version is None:
                await self._registry.create_app(info)
            else:
                await self._registry.set_app(info, version)
        except (BadVersion, EntryExists, NoEntry) as error:
            raise DeployFailed(
                f"app {info.name!r} was changed by another process meanwhile, and nothing was "
                f"deployed; see s4 apps, and try again"
            ) from error

    async def _take_back(self, info: AppInfo, before: AppInfo | None) -> None:
        """Undo the deployment."""
        if before is not None:
            tell(
                f"{info.name} {before.version} is restored; what was only in its memory, and not "
                f"saved, is lost"
            )
            await self._registry.set_app(before)
            return
        await _remove(self._registry, self._config, info)

    async def _wait_back(self, before: AppInfo | None, nodes: int) -> None:
        """Wait until the old version runs again on all nodes."""
        path = Registry.path_of_app(self._id)
        while before is not None:
            seen = await self._registry.session.change(path)
            members = (await self._registry.members(self._id)).values()
            if [member.value.version for member in members] == [before.version] * nodes:
                return
            await self._registry.session.wait_change(path, seen)


async def _from_all(
    callers: list[admin.Caller], kind: type[admin.M], seconds: float, todo: str
) -> dict[str, admin.M]:
    """The next answers of all callers within ``seconds``, by node; raises the first failure.

    ``todo`` describes what they are asked to do.
    """
    answers: dict[str, admin.M] = {}
    failures: list[Exception] = []

    async def ask(caller: admin.Caller, scope: trio.CancelScope) -> None:
        try:
            answers[caller.node] = await caller.answer(kind)
        except Exception as error:
            failures.append(error)
            scope.cancel()

    async def tell_late() -> None:
        await trio.sleep(_PATIENCE_SECONDS)
        late = [caller.node for caller in callers if caller.node not in answers]
        tell(
            f"waiting for {_named(late)}, at most {seconds:g} s, to {todo}; "
            f"{'their logs say' if len(late) > 1 else 'its log says'} more"
        )

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as outer:
            outer.start_soon(tell_late)
            async with trio.open_nursery() as nursery:
                for caller in callers:
                    nursery.start_soon(ask, caller, nursery.cancel_scope)
            outer.cancel_scope.cancel()
    if failures:
        raise failures[0]
    for caller in callers:
        if caller.node not in answers:
            raise DeployFailed(
                f"node {caller.node!r} did not answer within {seconds:g} s; it may be stopped: see "
                f"its log, or end it and deploy again"
            )
    return answers


def _named(nodes: Collection[str]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(sorted(nodes))}"


# -- removing -------------------------------------------------------------------------------------


async def undeploy(app: str, config: Config) -> AppInfo:
    """Stop an app on all nodes, and remove it; raises DeployFailed if there is no such app."""
    cluster = config[settings.CLUSTER_NAME]
    async with (
        registry_of(config, f"undeploy {app}") as registry,
        deploying(registry, cluster, f"removal of {app!r}"),
    ):
        found = await registry.app(cluster, app)
        if found is None:
            known = ", ".join(await registry.apps(cluster)) or "none"
            why = f"cluster {cluster!r} has no app {app!r}; its apps: {known}"
            if not await registry.nodes(cluster):
                why += f"; {no_node(cluster, await registry.living_clusters())}"
            raise DeployFailed(why)
        await _remove(registry, config, found.value)
        return found.value


async def _remove(registry: Registry, config: Config, info: AppInfo) -> None:
    app = AppId(info.cluster, info.name)
    await registry.set_app(msgspec.structs.replace(info, state=STOPPING))
    path = Registry.path_of_app(app)
    while True:
        seen = await registry.session.change(path)
        if not await registry.members(app):
            break
        await registry.session.wait_change(path, seen)
    await registry.remove_app(*app)
    packages_of(config).remove(info.package)
