"""Deploying apps to a cluster from the command line.

Rules
- First every living node starts the new version and has it check itself. Only if all of them can
  run it does it become the cluster's version. A failure before that changes nothing. A failure
  after that, when the new version really starts, brings the old version back with its saved state,
  but without what was only in its memory.
- An app with state is paused meanwhile: its state is saved, and goes back to a savepoint if that is
  asked for (``state_change``). If that fails, the pause ends, and the old version goes on.
- Progress is printed on standard error.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec
import trio

from s4node import threads
from s4node.cluster.coordination.entries import RUNNING, STOPPING, AppId, AppInfo, Found, NodeInfo
from s4node.cluster.coordination.node_requests import requesting
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.node import deploy_protocol as protocol
from s4node.cluster.node.package import (
    MAX_BYTES,
    Package,
    Store,
    content_version,
    decode,
    digest_of,
    store_folder,
)
from s4node.cluster.node.restart_policy import END_SECONDS
from s4node.cluster.tree.coordinations import is_zookeeper, machine_folder, place_of
from s4node.config import settings
from s4node.config.config import Config
from s4node.config.key import Setting
from s4node.deploy.answers import (
    changing,
    from_all,
    living_nodes,
    named,
    no_node_in,
    report,
    settings_of,
)
from s4node.deploy.state_change import GoBack, StateChange, former_of
from s4node.errors import (
    BadVersion,
    DeployFailed,
    EntryExists,
    NoEntry,
    PackageError,
    S4Error,
    SessionLost,
)
from s4node.savepoints.manifest import AS_IS, Manifest, StateCheck

_LEAVING_SECONDS = 5.0
"""The time that an interrupted deployment has to bring the old version back."""


def to_deploy(config: Config) -> tuple[dict[str, str], list[str]]:
    """The settings that are deployed with an app, and the names of those that each node has its own
    of. Nodes that share a machine may share its folders."""
    whose = {key.name: key.belongs_to for key in settings.KEYS if isinstance(key, Setting)}
    given, nodes = {}, []
    for entry in config.items():
        owner = whose.get(entry.name, "app")
        if entry.origin == "default" or entry.name == settings.CLUSTER_PARTITIONS.name:
            continue
        if owner == "app" or (owner == "machine" and not is_zookeeper(place_of(config))):
            given[entry.name] = entry.text
        elif owner != "process":
            nodes.append(entry.name)
    return given, nodes


@dataclass(frozen=True)
class Deployed:
    """The outcome: which version of an app runs on which nodes, by address."""

    app: str
    cluster: str
    version: str
    partitions: int
    before: str
    containers: dict[str, str]


async def packages_of(registry: Registry, config: Config) -> Store:
    cluster = config[settings.CLUSTER_NAME]
    info = await registry.cluster(cluster)
    return Store(store_folder(machine_folder(config)), info.url if info else "", cluster)


# -- deploying ------------------------------------------------------------------------------------


async def deploy(
    package: Package,
    config: Config,
    partitions: int | None = None,
    back: GoBack | None = None,
    agreed: StateCheck = AS_IS,
) -> Deployed:
    """Make the cluster run ``package``, with ``back`` from a savepoint; raises S4Error with the
    reason if it does not. What it may leave unused was ``agreed``."""
    app = package.manifest.name
    data = package.encode()
    if len(data) > MAX_BYTES:
        raise DeployFailed(
            f"the package has {len(data)} bytes, and at most {MAX_BYTES} are allowed; keep data "
            f"out of the app's folder"
        )
    deployment = _Deployment(config, package, data, back, agreed)

    async def work(registry: Registry) -> Deployed:
        return await deployment.run(registry, partitions)

    return await changing(config, f"deploy {app}", f"deployment of {app!r}", work)


async def roll_back(
    app: str, config: Config, *, outputs_again: bool = False, accept_loss: bool = False
) -> Deployed:
    """Make the cluster run the former version of ``app``, from the savepoint that was taken before
    the present one; raises S4Error with the reason if it does not."""
    cluster = config[settings.CLUSTER_NAME]
    begun: list[_Deployment] = []

    async def work(registry: Registry) -> Deployed:
        if begun:
            return await begun[0].run(registry, None)
        found = await _deployed(registry, app, config)
        nodes = await living_nodes(registry, config)
        packages = await packages_of(registry, config)
        former_package = await threads.run_sync(packages.get, found.package)
        former_settings = decode(former_package).manifest.settings
        start = config[settings.CONTAINER_START_TIMEOUT]
        here = await settings_of(registry, cluster, nodes, former_settings, start)
        change = StateChange(AppId(cluster, app), here, None, "", None, report)
        former = await threads.run_sync(former_of, change.place, app, found.version)
        assert former.upgrade is not None
        data = await threads.run_sync(packages.get, former.upgrade.package)
        report(f"{app} goes back to {former.upgrade.before}, and to the savepoint {former.name}")
        back = GoBack(former.name, outputs_again, accept_loss)
        begun.append(_Deployment(config, decode(data), data, back))
        return await begun[0].run(registry, None)

    return await changing(config, f"rollback {app}", f"rollback of {app!r}", work)


class _Deployment:
    def __init__(
        self,
        config: Config,
        package: Package,
        data: bytes,
        back: GoBack | None,
        agreed: StateCheck = AS_IS,
    ) -> None:
        self._registry: Registry
        self._before = ""  # the version that it replaces
        self._put: AppInfo | None = None  # what it has made the cluster's version, or was about to
        self._config = config
        self._package = package
        self._manifest = package.manifest
        self._data = data
        self._back = back
        self._agreed = agreed
        self._id = AppId(config[settings.CLUSTER_NAME], package.manifest.name)

    async def run(self, registry: Registry, partitions: int | None) -> Deployed:
        """Deploy as the rules of the module say; again if the session was lost."""
        self._registry = registry
        (cluster, app), manifest = self._id, self._manifest
        nodes = await living_nodes(registry, self._config)
        self._check_pythons(nodes)
        before = await registry.app(cluster, app)
        partitions = await self._partitions(before and before.value, partitions)
        if before is not None and before.value == self._put:
            return await self._see_through(before.value, len(nodes))
        self._before = before.value.version if before else ""
        same = before is not None and (before.value.version, before.value.state) == (
            manifest.version,
            RUNNING,
        )
        if same:
            assert before is not None
            await self._check_same(before.value.package)
        if same and self._back is None:
            members = await registry.members(self._id)
            at = {member.value.node: member.value.address for member in members.values()}
            if not at:
                raise DeployFailed(
                    f"{app} {manifest.version} is already deployed to {cluster}, but none of its "
                    f"containers runs; s4 status says why"
                )
            report(f"{app} {manifest.version} is already deployed to {cluster}")
            return Deployed(app, cluster, manifest.version, partitions, manifest.version, at)
        packages, digest = await packages_of(registry, self._config), digest_of(self._data)
        known = await threads.run_sync(packages.has, digest)
        await threads.run_sync(packages.put, self._data)
        try:
            ready = await self._switch(nodes, before, partitions, packages, digest)
        except SessionLost:
            raise
        except BaseException:
            if not known:
                with trio.CancelScope(shield=True):
                    await threads.run_sync(packages.remove, digest)
            raise
        at = {name: answer.address for name, answer in ready.items()}
        return Deployed(app, cluster, manifest.version, partitions, self._before, at)

    async def _see_through(self, info: AppInfo, nodes: int) -> Deployed:
        """Wait until the version runs that was made the cluster's in a session that was lost."""
        config = self._config
        seconds = config[settings.TASK_SHUTDOWN_MS] + END_SECONDS
        seconds += (
            config[settings.CONTAINER_START_TIMEOUT] + config[settings.CLUSTER_GATHER_TIMEOUT]
        )
        with trio.move_on_after(seconds) as limit:
            await wait_running(self._registry, info, nodes)
        if limit.cancelled_caught:
            raise DeployFailed(
                f"{info.name} {info.version} is the cluster's version now, and does not run on all "
                f"nodes after {seconds:g} s; s4 status says why"
            )
        members = await self._registry.members(self._id)
        at = {member.value.node: member.value.address for member in members.values()}
        return Deployed(*self._id[::-1], info.version, info.partitions, self._before, at)

    async def _check_same(self, deployed: str) -> None:
        """Raise DeployFailed if this version runs with other contents."""
        packages = await packages_of(self._registry, self._config)
        try:
            package = decode(await threads.run_sync(packages.get, deployed))
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
        self,
        nodes: dict[str, NodeInfo],
        before: Found[AppInfo] | None,
        partitions: int,
        packages: Store,
        digest: str,
    ) -> dict[str, protocol.Ready]:
        """Prepare the new version on all nodes, then replace the old one."""
        cluster, app = self._id
        manifest = self._manifest
        report(f"{app} {manifest.version} ({len(self._data)} bytes) to {named(nodes)}")
        config = self._config
        start = config[settings.CONTAINER_START_TIMEOUT] + config[settings.CLUSTER_GATHER_TIMEOUT]
        drain = config[settings.TASK_SHUTDOWN_MS] + END_SECONDS
        app_config = await settings_of(self._registry, cluster, nodes, manifest.settings, start)
        old = before.value if before else None
        change = StateChange(self._id, app_config, old, manifest.version, self._back, report)
        async with AsyncExitStack() as stack:
            saved = await threads.run_sync(stack.enter_context, change.opened())
            check = msgspec.structs.replace(self._agreed, savepoint=saved)
            ask = protocol.AskDeploy(digest, partitions, len(nodes), check)
            request = await stack.enter_async_context(
                requesting(self._registry, cluster, nodes, ask, protocol.decode_answer)
            )
            prepared = await from_all(request, 0, protocol.Prepared, start, "load and check it")
            report(f"loaded and checked on {named(nodes)}")
            first = next(iter(prepared.values()))
            await self._check_streams(first.inputs)
            info = AppInfo(
                name=app,
                cluster=cluster,
                version=manifest.version,
                partitions=partitions,
                package=digest,
                hasher=self._config[settings.HASHER],
                expected=len(nodes),
                state=RUNNING,
            )
            if old:
                report(f"{app} {old.version} drains and ends")
            taken = await self._change(change, info, before, drain)
            try:
                todo = "process what the old version has, and run it" if before else "run it"
                ready = await from_all(request, 1, protocol.Ready, drain + start, todo)
            except SessionLost:
                raise
            except S4Error:
                with trio.move_on_after(drain + start):
                    await self._take_back(info, old, change, taken)
                    if old is not None:
                        await wait_running(self._registry, old, len(nodes))
                raise
            except BaseException:  # interrupted: the nodes bring the old version back
                with trio.move_on_after(_LEAVING_SECONDS, shield=True):
                    await self._take_back(info, old, change, taken)
                raise
        if old and old.package != info.package and taken is None:
            await threads.run_sync(packages.remove, old.package)
        await threads.run_sync(change.sweep, packages, info.package)
        return ready

    async def _change(
        self, change: StateChange, info: AppInfo, before: Found[AppInfo] | None, drain: float
    ) -> Manifest | None:
        """Make ``info`` the cluster's version, and do what has to be done with the app's state
        before it runs. Returns the savepoint that was taken."""
        if not await threads.run_sync(lambda: change.needed):
            await self._put_info(info, before.version if before else None)
            return None
        async with AsyncExitStack() as stack:
            if before is not None:
                who = f"deployment by process {os.getpid()}"
                await stack.enter_async_context(self._registry.pause(self._id, who))
            taken = await change.make(self._registry, drain)
            try:
                await self._put_info(info, before.version if before else None)
            except SessionLost:
                raise
            except BaseException:
                if taken is not None:
                    with trio.move_on_after(_LEAVING_SECONDS, shield=True):
                        await change.undo(self._registry, taken, drain)
                raise
            return taken

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
                f"{asked} by a deployment; give an app with state another number with s4 "
                f"repartition {before.name} {asked}, or undeploy it first: s4 undeploy "
                f"{before.name}"
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

    async def _put_info(self, info: AppInfo, version: int | None) -> None:
        """Make ``info`` the cluster's version, unless another process has changed it meanwhile."""
        self._put = info
        try:
            if version is None:
                await self._registry.create_app(info)
            else:
                await self._registry.set_app(info, version)
        except (BadVersion, EntryExists, NoEntry) as error:
            raise DeployFailed(
                f"app {info.name!r} was changed by another process meanwhile, and nothing was "
                f"deployed; see s4 status, and try again"
            ) from error

    async def _take_back(
        self, info: AppInfo, before: AppInfo | None, change: StateChange, taken: Manifest | None
    ) -> None:
        if before is None:
            await _remove(self._registry, self._config, info)
            return
        report(
            f"{info.name} {before.version} is restored; what was only in its memory, and not "
            f"saved, is lost"
        )
        if taken is None:
            await self._registry.set_app(before)
            return
        async with self._registry.pause(self._id, "a deployment that has failed"):
            await self._registry.set_app(before)
            await change.undo(self._registry, taken, self._config[settings.TASK_SHUTDOWN_MS])


async def wait_running(registry: Registry, info: AppInfo, nodes: int) -> None:
    app = AppId(info.cluster, info.name)
    path = Registry.path_of_app(app)
    while True:
        seen = await registry.session.change(path)
        members = [each.value for each in (await registry.members(app)).values()]
        found = [(each.version, each.partitions) for each in members]
        if found == [(info.version, info.partitions)] * nodes:
            return
        await registry.session.wait_change(path, seen)


# -- removing -------------------------------------------------------------------------------------


async def undeploy(app: str, config: Config) -> AppInfo:
    """Stop an app on all nodes, and remove it; raises DeployFailed if there is no such app."""
    begun: list[AppInfo] = []

    async def work(registry: Registry) -> AppInfo:
        if not begun:
            begun.append(await _deployed(registry, app, config))
        if await registry.app(config[settings.CLUSTER_NAME], app) is not None:
            await _remove(registry, config, begun[0])
        return begun[0]

    return await changing(config, f"undeploy {app}", f"removal of {app!r}", work)


async def _deployed(registry: Registry, app: str, config: Config) -> AppInfo:
    """The app as it is deployed; raises DeployFailed if it is not."""
    cluster = config[settings.CLUSTER_NAME]
    found = await registry.app(cluster, app)
    if found is None:
        known = ", ".join(await registry.apps(cluster)) or "none"
        why = f"cluster {cluster!r} has no app {app!r}; its apps: {known}"
        if not await registry.nodes(cluster):
            why += f"; {await no_node_in(registry, config)}"
        raise DeployFailed(why)
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
    packages = await packages_of(registry, config)
    await threads.run_sync(packages.remove, info.package)
