"""The standbys of a container: the tasks of other members whose shipped state it follows.

Rules
- A member follows tasks that it would take over, and some that others are to hand over to it. Each
  has a follower, which follows the log once in a second.
- A follower that cannot go on is reported once, and tried again.
- The folder of a task that is followed no more is removed. At the end of the container it stays,
  so that the next start goes on from there.
- A follower is at the end of its log until it cannot go on, or has not been there for some seconds.
- A task is ready to be taken over while its follower is at the end, or if the log goes on too fast
  for it: a claim stops the log. ``on_change`` is called when ready or stuck ones change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import trio

from s4node import clocks, threads
from s4node.errors import S4Error
from s4node.logger import get_logger
from s4node.state.job import task_folder
from s4node.state.remote_job import RemoteJob
from s4node.state.standby.follower import STALE_SECONDS, Follower, Make, remove_standby

log = get_logger("s4node.runtime")

FOLLOW_SECONDS = 1.0
_THREADS = 4
"""Logs that are followed at a time."""
_LEFT_BEHIND = 3
"""So often the log may go on without a follower before its task is ready all the same."""


class _Following:
    """A task that is followed, until ``scope`` is cancelled and ``ended`` is set."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self.keep = True  # the folder, at the end
        self.taken = False  # the follower, which then stays open
        self.problem = ""  # of the last call
        self.since = clocks.steady()


class Standbys:
    """Follows tasks of the job in ``folder``, whose state is in ``remote_job``. ``names`` are those
    of the tasks by partition, and ``make`` opens a database."""

    def __init__(
        self,
        folder: Path,
        remote_job: RemoteJob,
        names: Mapping[int, str],
        make: Make,
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._folder = folder
        self._remote_job = remote_job
        self._names = names
        self._make = make
        self._following: dict[int, _Following] = {}
        self._ended: dict[int, trio.Event] = {}  # of the last follower, by partition
        self._taken: set[int] = set()  # whose folders may be in use
        self._announced = (frozenset[int](), frozenset[int]())  # which are ready or stuck
        self._wanted = trio.Event()  # set once it is known what to follow
        self._removing = trio.Lock()
        self._limiter = trio.CapacityLimiter(_THREADS)
        self._nursery: trio.Nursery

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            self._nursery.start_soon(self._remove_left)
            try:
                while True:  # a call may hang, which only the time shows
                    self._announce()
                    await trio.sleep(FOLLOW_SECONDS)
            finally:
                for one in self._following.values():
                    one.follower.stopping = True

    async def _remove_left(self) -> None:
        """Remove the folders of tasks that are followed no more since the last start."""
        await self._wanted.wait()
        for partition in self._names:
            async with self._removing:
                if partition not in self._following.keys() | self._taken:
                    await threads.run_sync(self._follower(partition).remove_left)

    def follow(self, partitions: Collection[int]) -> None:
        for partition in self._following.keys() - set(partitions):
            one = self._following.pop(partition)
            one.keep = False
            _end(one)
        for partition in sorted(set(partitions) - self._following.keys()):
            one = self._following[partition] = _Following(self._follower(partition))
            before, self._ended[partition] = self._ended.get(partition), one.ended
            self._nursery.start_soon(self._follow, one, self._names[partition], before)
        self._wanted.set()

    async def take(self, partition: int) -> Follower | None:
        """The follower of a task that this member is about to claim, which ends; None if there is
        none."""
        one = self._following.pop(partition, None)
        self._taken.add(partition)
        if one is not None:
            one.taken = True
            _end(one)
        if (ended := self._ended.pop(partition, None)) is not None:
            await ended.wait()
        if one is not None:
            return one.follower
        async with self._removing:
            found = self._follower(partition)
            return found if found.folder.exists() else None

    @property
    def at_end(self) -> frozenset[int]:
        """The partitions whose followers are at the end of their logs."""
        since = clocks.steady() - STALE_SECONDS
        found = [(p, one.follower.at_end) for p, one in self._following.items() if not one.problem]
        return frozenset(p for p, at_end in found if at_end is not None and at_end > since)

    @property
    def ready(self) -> frozenset[int]:
        """The partitions that can be taken over now."""
        return self.at_end.union(
            p for p, one in self._following.items() if one.follower.left_behind >= _LEFT_BEHIND
        )

    @property
    def followed(self) -> frozenset[int]:
        return frozenset(self._following)

    @property
    def stuck(self) -> frozenset[int]:
        """The partitions whose followers cannot go on now."""
        return frozenset(p for p, one in self._following.items() if one.problem)

    def lags(self) -> dict[str, float]:
        """By followed task, for how many seconds it has not been at the end of its log."""
        now = clocks.steady()
        return {
            self._names[partition]: now - (one.follower.at_end or one.since)
            for partition, one in self._following.items()
        }

    def _follower(self, partition: int) -> Follower:
        folder = task_folder(self._folder, self._names[partition])
        return Follower(self._remote_job.task(folder.name), folder, self._make)

    async def _follow(self, one: _Following, name: str, before: trio.Event | None) -> None:
        with trio.CancelScope(shield=True):  # the folder may be being removed
            if before is not None:
                await before.wait()
            async with self._removing:
                pass
        try:
            with one.scope:
                await self._follow_on(one, name)
        finally:
            with trio.CancelScope(shield=True):
                await threads.run_sync(self._close, one)
            one.ended.set()

    async def _follow_on(self, one: _Following, name: str) -> None:
        while True:
            try:
                await threads.run_sync(one.follower.follow, limiter=self._limiter)
                one.problem = ""
            except (OSError, S4Error) as error:
                if not one.problem:
                    log.warning(
                        "the state of a task cannot be followed now", task=name, reason=str(error)
                    )
                one.problem = str(error) or type(error).__name__
            self._announce()
            await trio.sleep(FOLLOW_SECONDS)

    def _announce(self) -> None:
        now = self.ready, self.stuck
        if now != self._announced:
            self._announced = now
            self.on_change()

    def _close(self, one: _Following) -> None:
        if not one.taken:
            one.follower.close()
        if not one.keep:
            remove_standby(one.follower.folder.parent)


def _end(one: _Following) -> None:
    one.follower.stopping = True
    one.scope.cancel()
