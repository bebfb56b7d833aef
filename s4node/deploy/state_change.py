"""A deployment's change of an app's state: a savepoint before, and going back to another.

Rules
- Both are done while the app is paused: the old version has drained and ended on all nodes, and
  producers keep their events. So the savepoint has all that the old version has done.
- What can be refused is refused before the app is paused. What fails later leaves the old version
  with its state as it was; it goes on when the pause ends.
- Savepoints that deployments have taken are kept, the newest three, and so are the packages of the
  versions that they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import trio

from s4node import clocks, threads
from s4node.cluster.coordination.entries import AppId, AppInfo
from s4node.cluster.coordination.job_presence import JobPresence
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.node.package import Store
from s4node.config import settings
from s4node.config.config import Config
from s4node.deploy.savepoint import SavepointOf, savepoint_of
from s4node.errors import CheckpointError, DeployFailed, JobRuns
from s4node.offsets.job_lock import stopped
from s4node.savepoints.folders import translate_errors
from s4node.savepoints.manifest import Manifest, Upgrade
from s4node.savepoints.place import SavepointPlace
from s4node.savepoints.shipped import savepoints_of
from s4node.state.job import folder_of
from s4node.state.remote_job import RemoteJob, remote_job_of

if TYPE_CHECKING:
    from s4node.deploy.savepoint_restore import SavepointRestore

R = TypeVar("R")

KEPT = 3
"""How many of the savepoints that deployments take are kept."""

_AGAIN_SECONDS = 0.05
_LONGEST = 60
"""The most characters of a version in the name of a savepoint."""


@dataclass(frozen=True)
class GoBack:
    savepoint: str
    outputs_again: bool = False
    accept_loss: bool = False


class StateChange:
    """The change of the state of ``app``, whose containers have these settings, when ``after``
    replaces ``before``; with ``back`` it goes on from a savepoint."""

    def __init__(
        self,
        app: AppId,
        config: Config,
        before: AppInfo | None,
        after: str,
        back: GoBack | None,
        report: Callable[[str], None],
    ) -> None:
        self._id = app
        self._config = config
        self._before = before
        self._after = after
        self._back = back
        self._report = report
        self._folder = folder_of(config[settings.STATE_FOLDER], app.cluster, app.app)
        self._remote_job: RemoteJob | None = remote_job_of(config, self._folder)
        self._restore: SavepointRestore | None = None

    @property
    def place(self) -> SavepointPlace:
        return savepoints_of(self._folder, self._remote_job)

    @contextmanager
    def opened(self) -> Iterator[str]:
        """Open the savepoint to go on from, and check that nothing more has to be agreed to; gives
        its folder, empty if there is none. Raises CheckpointError."""
        with ExitStack() as stack:
            if self._back is None:
                yield ""
                return
            from s4node.deploy import savepoint_restore as restoring  # late: loads the runtime

            manifest = self.place.manifest_of(self._back.savepoint)
            manifest.check_app(self._id.app)
            restoring.check_layout(self._id.app, self._folder, self._remote_job, manifest)
            with translate_errors(self._folder):
                saved = stack.enter_context(self.place.opened(manifest))
                restoring.check_senders(self._id.cluster, manifest, saved)
                self._restore = self._restored(manifest, saved)
                self._check_agreed(lambda _: None)
            yield str(saved)

    def _restored(self, manifest: Manifest, saved: Path) -> SavepointRestore:
        from s4node.deploy.savepoint_restore import SavepointRestore

        return SavepointRestore(
            self._id.app, self._folder, self._config, self._remote_job, manifest, saved
        )

    def _check_agreed(self, report: Callable[[str], None]) -> None:
        assert self._restore is not None
        assert self._back is not None
        again, loss = self._back.outputs_again, self._back.accept_loss
        since = self._restore.since()
        try:
            self._restore.check_agreed(since, outputs_again=again, accept_loss=loss, report=report)
        except CheckpointError:
            self._restore.check_agreed(
                since, outputs_again=True, accept_loss=True, report=self._report
            )
            raise

    @property
    def needed(self) -> bool:
        """Return True if there is state to save, or a savepoint to go back to."""
        return self._back is not None or self._job is not None

    @property
    def _job(self) -> SavepointOf | None:
        return savepoint_of(self._id.app, self._config) if self._before is not None else None

    async def make(self, registry: Registry, seconds: float) -> Manifest | None:
        """Take the savepoint and go back, once nothing of the job runs, which takes at most so many
        ``seconds``. Returns the savepoint."""
        return await self.change_ended(registry, seconds, self._change)

    async def change_ended(self, registry: Registry, seconds: float, change: Callable[[], R]) -> R:
        """Call ``change`` in a thread once nothing of the job runs, which takes at most so many
        ``seconds``; the job does not start meanwhile. ``change`` raises JobRuns, before it does
        anything, if a container holds the job's lock."""
        until = trio.current_time() + seconds
        while True:
            with trio.move_on_at(until) as limit:
                await self._wait_ended(registry)
            if limit.cancelled_caught or trio.current_time() > until:
                raise DeployFailed(
                    f"{self._id.app} did not end within {seconds:g} s; see the logs of its nodes"
                )
            try:
                async with JobPresence(registry, self._id).stopped():
                    return await threads.run_sync(change)
            except JobRuns:  # a container that starts waits to enter, and then sees the pause
                await trio.sleep(_AGAIN_SECONDS)

    async def _wait_ended(self, registry: Registry) -> None:
        path = Registry.path_of_app(self._id)
        while True:
            seen = await registry.session.change(path)
            if not await registry.members(self._id) and not await registry.job.running(self._id):
                return
            await registry.session.wait_change(path, seen)

    def _change(self) -> Manifest | None:
        with translate_errors(self._folder), stopped(self._folder):
            taken = self._taken()
            if self._restore is not None:
                assert self._back is not None
                self._check_agreed(self._report)
                self._restore.restore(
                    outputs_again=self._back.outputs_again, accept_loss=self._back.accept_loss
                )
                self._report(f"{self._id.app} goes on from the savepoint {self._back.savepoint}")
            return taken

    def _taken(self) -> Manifest | None:
        job = self._job
        half = self._restore is not None and self.place.restoring() is not None
        if job is None or half:  # a restore was cut short, and is done again
            return None
        assert self._before is not None
        now = datetime.fromtimestamp(clocks.wall(), UTC)
        plain = "".join(c if c.isalnum() or c in "._-" else "_" for c in self._after)[:_LONGEST]
        name = f"before-{plain}-{now:%Y-%m-%dT%H%M%S}"
        old, back = self._before, self._back
        upgrade = Upgrade(old.version, old.package, self._after, back is not None)
        since = f", from savepoint {back.savepoint}" if back is not None else ""
        why = f"{self._after} replaced {old.version}{since}"
        manifest = job.take_stopped(name, why, upgrade)
        self._report(f"savepoint {name}: {manifest.bytes / 1e6:.1f} MB")
        return manifest

    async def undo(self, registry: Registry, taken: Manifest, seconds: float) -> None:
        """Have the app go on from the savepoint that :meth:`make` took, as nothing else worked."""

        def restore() -> None:
            with stopped(self._folder), self.place.opened(taken) as saved:
                self._restored(taken, saved).restore(outputs_again=True, accept_loss=True)

        if self._restore is not None:
            await self.change_ended(registry, seconds, restore)

    def sweep(self, packages: Store, needed: str) -> None:
        """Remove the oldest savepoints of deployments, and their packages unless ``needed``."""
        found, _ = self.place.look()
        ours = {each.name: each.upgrade for each in found if each.upgrade is not None}
        kept = {ours[name].package for name in list(ours)[-KEPT:]}
        for name in list(ours)[:-KEPT]:
            self.place.remove(name)
            if ours[name].package not in {*kept, needed}:
                packages.remove(ours[name].package)


def former_of(place: SavepointPlace, app: str, version: str) -> Manifest:
    """The savepoint that was taken when ``version`` replaced another one, the last time. Raises
    DeployFailed if there is none."""
    found, _ = place.look()
    fits = [
        each
        for each in found
        if each.upgrade is not None and (each.upgrade.after, each.upgrade.back) == (version, False)
    ]
    if not fits:
        raise DeployFailed(
            f"app {app!r} has no savepoint from the time before {version}, so there is nothing to "
            f"go back to; deploy the version that you want, with --from NAME if it needs older "
            f"state: s4 savepoint list {app}"
        )
    return fits[-1]
