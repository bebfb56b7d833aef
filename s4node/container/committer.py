"""The committer: writes the progress of tasks, each as of a moment between two of its events.

Rules
- A commit is asked for in the loop, while nothing of its task runs; it takes the offsets as they
  are then, and the task goes on. What follows runs beside it: wait until all that had been put on
  the app's own streams was processed and all that was sent has its verdict, then write, in a
  thread.
- One commit of a task is under way at a time. Those asked for meanwhile become one, the newest.
- A commit that cannot be written (a full disk, lost rights) is told once, and tried again with the
  newest offsets; the container stops only if that lasts for ``task.commit.timeout.ms``. Waiting for
  verdicts is no failure: it is told when it lasts, for then a consumer is away. A task that
  another container has taken over, and a damaged file, stop the container at once.
- An input that was begun at a startpoint keeps its old offset until an event of it is processed;
  the commit that covers that one also says that the startpoint is consumed.
- ``finish`` returns when all that was asked for is written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import structlog
import trio

from s4node.container.task import Task
from s4node.errors import CheckpointError, ProgressUnwritten
from s4node.progress.checkpoint import Checkpoint, JobGuard
from s4node.progress.input_progress import InputProgress, taken
from s4node.progress.store import Claim, ProgressStore, now_ms
from s4node.systems.system import SystemStreamPartition

log = structlog.get_logger("s4node.progress")

R = TypeVar("R")

RETRY_SECONDS = 1.0
PATIENCE_SECONDS = 30.0
"""After how long waiting for verdicts is told."""


class Sent(Protocol):
    """What had been sent at some moment."""

    async def wait_settled(self) -> None:
        """Return when all of it has its verdict."""
        ...


class _Commit:
    """Offsets to be written, startpoints ``consumed``, and what must have its verdict before."""

    __slots__ = ("consumed", "offsets", "sent")

    def __init__(
        self, offsets: dict[SystemStreamPartition, int], consumed: frozenset[str], sent: Sent
    ) -> None:
        self.offsets = offsets
        self.consumed = consumed
        self.sent = sent


class _Kept:
    """A task's row: the right to write it, and what it holds."""

    __slots__ = ("checkpoint", "claim", "failing_since", "pending", "writing")

    def __init__(self, claim: Claim, checkpoint: Checkpoint) -> None:
        self.claim = claim
        self.checkpoint = checkpoint
        self.pending: _Commit | None = None
        self.writing = False
        self.failing_since: float | None = None


class Committer:
    """Keeps the progress of tasks in ``folder``.

    ``progress`` is by task and partition; ``sent`` says what has been sent to output streams so
    far. ``on_consumed(name, ids)`` is called with the startpoints that a task has consumed, and
    returns whether nobody can meet them any more. ``timeout`` (seconds) is for how long commits
    may fail. ``commits`` and ``failures`` count.
    """

    def __init__(
        self,
        folder: Path,
        progress: Mapping[int, Mapping[SystemStreamPartition, InputProgress]],
        sent: Callable[[], Sent],
        on_consumed: Callable[[str, Collection[str]], Awaitable[bool]],
        *,
        timeout: float,
    ) -> None:
        self.commits = 0
        self.failures = 0
        self._folder = folder
        self._progress = progress
        self._sent = sent
        self._on_consumed = on_consumed
        self._timeout = timeout
        self._tasks: dict[int, _Kept] = {}
        self._thread = trio.CapacityLimiter(1)
        self._store: ProgressStore
        self._nursery: trio.Nursery
        self._ending = False
        self._quiet = trio.lowlevel.ParkingLot()

    # -- life --------------------------------------------------------------------------------

    async def open(self, job: JobGuard) -> None:
        """Open the store for a job; raises CheckpointError where its progress fits another one."""
        self._store = await self._in_thread(ProgressStore, self._folder)
        await self._in_thread(self._store.admit, job)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write commits until cancelled; raises what stops the container."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._ending = True
        finally:
            self._store.close()

    async def claim(self, task: int, name: str, origin: str, epoch: int) -> Checkpoint:
        """Become the one who writes a task's progress; returns what is kept of it."""
        claim, kept = await self._in_thread(self._store.claim, name, origin, epoch)
        self._tasks[task] = _Kept(claim, kept)
        return kept

    async def _in_thread(self, function: Callable[..., R], *arguments: Any) -> R:
        return await trio.to_thread.run_sync(function, *arguments, limiter=self._thread)

    # -- commits -----------------------------------------------------------------------------

    def commit(self, task: Task) -> None:
        """Take the task's offsets as they are now, to be written soon."""
        self.snapshot(task.partition)

    def snapshot(self, task: int) -> None:
        """As commit, by the task's number; only what has changed is written."""
        if self._ending:  # all is being cancelled, and a task has taken one more step
            return
        kept = self._tasks.get(task)
        if kept is None:  # a member that stops is just taking it over, and has done nothing of it
            return
        offsets, consumed = taken(self._progress.get(task, {}))
        known = kept.checkpoint.offsets
        idle = kept.pending is None and not kept.writing and not consumed
        if idle and all(known.get(ssp) == offset for ssp, offset in offsets.items()):
            return
        kept.pending = _Commit(offsets, consumed, self._sent())
        if not kept.writing:
            kept.writing = True
            self._nursery.start_soon(self._write_all, task, kept)

    async def finish(self) -> None:
        """Return when every commit that was asked for is written."""
        while any(kept.writing for kept in self._tasks.values()):
            await self._quiet.park()

    async def _write_all(self, task: int, kept: _Kept) -> None:
        try:
            while kept.pending is not None:
                commit, kept.pending = kept.pending, None
                await self._settled(kept, commit.sent)
                await self._write(task, kept, commit)
        finally:
            kept.writing = False
            self._quiet.unpark_all()

    async def _settled(self, kept: _Kept, sent: Sent) -> None:
        with trio.move_on_after(PATIENCE_SECONDS) as patience:
            await sent.wait_settled()
        if patience.cancelled_caught:
            log.warning("a commit waits for the verdicts of output streams: is a consumer away?",
                        task=kept.claim.task, seconds=PATIENCE_SECONDS)  # fmt: skip
            await sent.wait_settled()

    async def _write(self, task: int, kept: _Kept, commit: _Commit) -> None:
        offsets: dict[tuple[str, str, int], int] = dict(commit.offsets.items())
        checkpoint = Checkpoint(offsets, now_ms(), commit.consumed).over(kept.checkpoint)
        try:
            await self._in_thread(self._store.write, kept.claim, checkpoint)
        except ProgressUnwritten as error:
            await self._failed(kept, commit, error)
            return
        if kept.failing_since is not None:
            kept.failing_since = None
            log.info("progress is written again", task=kept.claim.task)
        self.commits += 1
        kept.checkpoint = checkpoint
        for ssp, offset in commit.offsets.items():
            self._progress[task][ssp].committed = offset
        if commit.consumed:
            for each in self._progress[task].values():
                if each.startpoint in commit.consumed:
                    each.startpoint = ""
            if await self._on_consumed(kept.claim.task, commit.consumed):
                self.forget(task, commit.consumed)

    def forget(self, task: int, startpoints: Collection[str]) -> None:
        """Nobody can meet these startpoints of a task any more: its next commit leaves them out."""
        kept = self._tasks[task]
        kept.checkpoint = kept.checkpoint.without(startpoints)

    async def _failed(self, kept: _Kept, commit: _Commit, error: ProgressUnwritten) -> None:
        """Have it tried again, with the newest offsets."""
        self.failures += 1
        now = trio.current_time()
        if kept.failing_since is None:
            kept.failing_since = now
            log.warning("progress could not be written; it is tried again, and a crash now replays "
                        "more", task=kept.claim.task, error=str(error))  # fmt: skip
        elif now - kept.failing_since >= self._timeout:
            raise CheckpointError(
                f"the progress of task {kept.claim.task!r} could not be written for "
                f"{self._timeout:g} s (task.commit.timeout.ms): {error}"
            ) from error
        if kept.pending is None:
            kept.pending = commit
        await trio.sleep(RETRY_SECONDS)

    def committed(self) -> Mapping[int, Checkpoint]:
        """What is written of each task."""
        return {task: kept.checkpoint for task, kept in self._tasks.items()}


def folder_of(root: str, cluster: str, app: str) -> Path:
    """Where the progress of an app on a cluster is kept."""
    return Path(root).expanduser() / _safe(cluster) / _safe(app)


def _safe(name: str) -> str:
    """A name as that of a folder: letters, digits and ``._-`` as they are."""
    return "".join(c if c.isalnum() or c in "._-" else f"%{ord(c):02x}" for c in name).lstrip(".")
