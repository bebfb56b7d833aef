"""The consumers of a container: they read its inputs and feed the stages of its tasks.

Rules
- One reader a partition of an input, whichever tasks read it; each of them has its own start, place
  and progress. A new owner makes the reader begin anew, where the slowest place is.
- A task that goes back has its old places again, also one that is fed no more, for it is about to
  be another container's: what it commits last must not be ahead of its state.
- A reader is asked only while there is room with every task that its events may go to, so a slow
  task bounds what is kept for it.
- Where an input goes on is told once a stream, and committed before the first event is read: a
  crash must not make another place of what was upcoming.
- A keyed stream's events go to the tasks of their keys. Batches that were routed by the same rule
  are right already; of others the task that reads them sends on what is not its own.
- Reading stops at once when the container stops; what was read goes to its tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import trio

from s4node.app.graph import rule_of
from s4node.app.stream import InputStream
from s4node.config import settings
from s4node.config.settings import Config
from s4node.errors import InputLost, S4Error
from s4node.events.event import EventBatch
from s4node.events.keys import Partitioner
from s4node.logger import get_logger
from s4node.offsets.checkpoint import Checkpoint
from s4node.offsets.input_progress import InputProgress, InputReceipt
from s4node.offsets.startpoint import Startpoint
from s4node.offsets.startpoint_fan_out import Request
from s4node.offsets.system import (
    EndOfStream,
    InputBatch,
    PartitionReader,
    System,
    SystemStreamPartition,
)
from s4node.runtime.commit.dead_letter_queue import Rejects
from s4node.runtime.inputs.input_batches import MixedBatch, Reject, TaskBatch, refused
from s4node.runtime.inputs.starting_offsets import Known, Starts
from s4node.runtime.task.chooser import Bootstrap
from s4node.runtime.task.statistics import ProgressStatistics
from s4node.runtime.task.task import Task
from s4node.systems.registry import Systems

log = get_logger("s4node.inputs")

_GRACE_SECONDS = 1.0
"""After how long a system that cannot be reached is told of."""


class Tasks(Protocol):
    """What consumers need of the container's tasks."""

    def add_input(self, task: Task, ssp: SystemStreamPartition) -> None:
        """Give a task that is to start a stage for one of its inputs."""
        ...

    def feed(self, task: Task, batch: EventBatch) -> None:
        """Queue a batch with a task of this container."""
        ...

    def send(self, task: Task, stream: str, partition: int, events: list[Any]) -> None:
        """Put events that a task has read on the way to the task of their keys."""
        ...

    def wake(self, task: Task) -> None:
        """A task of this container may have something to do."""
        ...

    def commit_soon(self, partition: int) -> None:
        """Have the task of a partition of this container commit as soon as it may."""
        ...

    def ended(self, task: Task, ssp: SystemStreamPartition) -> None:
        """A task of this container has been given all that an input will ever hold."""
        ...

    def full(self, task: Task, stream: str) -> bool:
        """Whether so much of what a task has sent on waits that it is to read no more."""
        ...


class _Taker:
    """A task that reads a partition: ``next`` is the offset that it has not been given yet."""

    def __init__(self, task: Task, ssp: SystemStreamPartition, known: Known) -> None:
        self.task = task
        self.ssp = ssp
        self.known = known
        self.next = 0
        self.told_end = False
        self.progress: InputProgress
        self.undecoded: Reject


class Gained(NamedTuple):
    """A task that has started: what it reads, what is kept of it, and pending startpoints."""

    task: Task
    ssps: Collection[SystemStreamPartition]
    kept: Checkpoint
    startpoints: Mapping[SystemStreamPartition, Request]


class _Feed:
    """One partition of an input, and the tasks that read it."""

    def __init__(self, ssp: SystemStreamPartition) -> None:
        self.ssp = ssp
        self.takers: dict[int, _Taker] = {}
        self.scope = trio.CancelScope()
        self.runs = False
        self.ended = False
        self.anew = False  # the reader is to begin where the slowest taker is
        self.reader: PartitionReader | None = None

    def stale(self) -> bool:
        """Whether what was read is not to be given to the tasks any more."""
        return self.anew


def _is_kept(taker: _Taker) -> bool:
    """Whether the task's checkpoint, or else its startpoint, has a place for the input."""
    return taker.progress.committed is not None or bool(taker.progress.startpoint)


class Consumers:
    """Reads the replayable ``streams`` of an app from ``systems`` for the tasks it is given.

    ``broadcast`` are partitions that every task reads; ``name`` is what progress is kept under.
    ``progress`` is by task and partition.
    """

    def __init__(
        self,
        config: Config,
        systems: Systems,
        partitioner: Partitioner,
        tasks: Tasks,
        rejects: Rejects,
        *,
        streams: Iterable[InputStream],
        counts: Mapping[tuple[str, str], int],
        broadcast: Collection[SystemStreamPartition],
        name: str,
    ) -> None:
        self.progress: dict[int, dict[SystemStreamPartition, InputProgress]] = {}
        self.rejects = rejects
        self.starts = Starts(config, name)
        self._config = config
        self._systems = systems
        self._tasks = tasks
        self._streams = {stream.name: stream for stream in streams}
        self._counts = counts
        self._broadcast = frozenset(broadcast)
        self._feeds: dict[SystemStreamPartition, _Feed] = {}
        self._waiting: dict[trio.lowlevel.ParkingLot, Callable[[], bool]] = {}
        self._nursery: trio.Nursery
        self._beginning: list[_Taker] = []
        self._begun: dict[int, list[_Taker]] = {}  # by task; also those that are fed no more
        self._reading = 0  # partitions, with those of which the reader is being closed
        self._scopes: set[trio.CancelScope] = set()
        self._stopped = False
        self._quiet = trio.lowlevel.ParkingLot()
        self._partition_of: dict[str, Callable[[Any], int]] = {}
        self._routing: dict[str, str] = {}
        for stream in self._streams.values():
            rule = rule_of(stream)
            if rule is not None and partitioner.partitions > 1:
                self._partition_of[stream.name] = _partition_finder(rule.finder(), partitioner)
                hasher = config[settings.HASHER]
                self._routing[stream.name] = f"{hasher}:{rule.name}" if rule.name else ""
        self._partitions = partitioner.partitions

    # -- life --------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read until cancelled; raises what cannot be gone on from."""
        async with trio.open_nursery() as self._nursery:
            for system in self._systems:
                self._nursery.start_soon(watch, system)
            self._nursery.start_soon(self._monitor)
            task_status.started()
            await trio.sleep_forever()

    async def stop(self) -> None:
        """Read nothing more; returns when all that was read is with its tasks."""
        self._stopped = True
        for scope in self._scopes:
            scope.cancel()
        while self._reading:
            await self._quiet.park()
        await self.rejects.settle()

    def add(self, task: Task, ssps: Iterable[SystemStreamPartition]) -> None:
        """Give a task that is to start a stage for each of its partitions."""
        for ssp in ssps:
            self._tasks.add_input(task, ssp)

    def take(
        self,
        gained: Iterable[Gained],
        wishes: Callable[[Task], Mapping[SystemStreamPartition, Startpoint]],
    ) -> None:
        """Feed these tasks, which have started, with their partitions from where they go on."""
        found: dict[tuple[str, str], list[_Taker]] = {}
        for task, ssps, kept, startpoints in gained:
            self.progress[task.partition] = {}
            self._begun[task.partition] = []
            starts = wishes(task)
            for ssp in ssps:
                known = Known(starts.get(ssp), startpoints.get(ssp), kept.offsets.get(ssp))
                taker = _Taker(task, ssp, known)
                taker.undecoded = partial(self._undecoded, taker)
                found.setdefault((ssp.system, ssp.stream), []).append(taker)
        for takers in found.values():
            self._beginning += takers
            self._nursery.start_soon(self._begin, takers)

    async def leave(self, partition: int) -> None:
        """Feed the task of a partition no more; another container is about to."""
        await self.wait(lambda: all(t.task.partition != partition for t in self._beginning))
        left = [feed for feed in self._feeds.values() if feed.takers.pop(partition, None)]
        for feed in left:
            feed.anew = True
            feed.scope.cancel()
            if not feed.takers:
                del self._feeds[feed.ssp]
        for feed in left:  # those who stay may have waited for the end of this one only
            self._tell_ends(feed.ssp)

    def forget(self, partition: int) -> None:
        """Another container goes on with the task of a partition."""
        self.progress.pop(partition, None)
        self._begun.pop(partition, None)

    def go_back(self, old: Task, new: Task) -> None:
        """Feed ``new`` in the place of ``old``, from where that has committed last."""
        for taker in self._beginning:
            if taker.task is old:
                taker.task = new
        for taker in self._begun.get(new.partition, ()):
            before = taker.progress
            taker.task, taker.told_end = new, False
            taker.next = before.start if before.committed is None else before.committed
            taker.progress = self._progress_of(taker)
            taker.progress.committed = before.committed
            taker.progress.startpoint = before.startpoint
            self.progress[new.partition][taker.ssp] = taker.progress
            self._want_kept(taker)
            feed = self._feeds.get(taker.ssp)
            if feed is not None and new.partition in feed.takers:
                system = self._systems[taker.ssp.system]
                self._join(taker, system)
                self._nursery.start_soon(self._bootstrap_again, taker, system)

    async def _bootstrap_again(self, taker: _Taker, system: System) -> None:
        with self._until_stopped():
            await self._bootstrap(taker, system)

    def _progress_of(self, taker: _Taker) -> InputProgress:
        return InputProgress(taker.ssp, taker.next, partial(self._refused, taker))

    async def _begin(self, takers: list[_Taker]) -> None:
        """Find out where an input goes on, and read it from there."""
        system = self._systems[takers[0].ssp.system]
        origins: dict[str, list[str]] = {}
        with self._until_stopped():
            for taker in takers:
                ssp = taker.ssp
                taker.next, why = await self.starts.of(system, ssp, taker.task.name, taker.known)
                origins.setdefault(why, []).append(f"{ssp.partition}: {taker.next}")
            offsets = "; ".join(f"{', '.join(at)} ({why})" for why, at in origins.items())
            log.info("input goes on", input=_name(takers[0].ssp), offsets=offsets)
            for taker in takers:
                taker.progress = self._progress_of(taker)
                if taker.known.request is not None:
                    taker.progress.startpoint = taker.known.request.id
                if taker.known.kept == taker.next:
                    taker.progress.committed = taker.next
                self.progress[taker.task.partition][taker.ssp] = taker.progress
                self._begun[taker.task.partition].append(taker)
            await self._keep_begin(takers)
            for taker in takers:
                self._join(taker, system)
                await self._bootstrap(taker, system)
        self._beginning = [each for each in self._beginning if each not in takers]
        self.released()  # there may be no turn for long

    async def _keep_begin(self, takers: list[_Taker]) -> None:
        """Return when it is committed where each of these begins."""
        for taker in takers:
            self._want_kept(taker)
        await self.wait(lambda: all(_is_kept(taker) for taker in takers))

    def _want_kept(self, taker: _Taker) -> None:
        if not _is_kept(taker):
            self._tasks.commit_soon(taker.task.partition)

    async def _bootstrap(self, taker: _Taker, system: System) -> None:
        """Tell a task that bootstraps how far it has to read, and how far it is."""
        task, ssp, progress = taker.task, taker.ssp, taker.progress  # it may go back meanwhile
        bootstrap = task.backlog.bootstrap
        if bootstrap is None or ssp.stream not in bootstrap.streams:
            return

        def on_safe(safe: int) -> None:
            if bootstrap.reached(ssp, safe):
                progress.on_safe = None
                self._caught_up(task, bootstrap)

        progress.on_safe = on_safe
        if bootstrap.begins(ssp, progress.start, await system.bounds(ssp)):
            self._caught_up(task, bootstrap)
        elif progress.on_safe is on_safe:
            on_safe(progress.safe)

    def _caught_up(self, task: Task, bootstrap: Bootstrap) -> None:
        if not bootstrap.streams:
            log.info("bootstrapped: the other inputs go on", task=task.name)
        self._tasks.wake(task)

    def _join(self, taker: _Taker, system: System) -> None:
        feed = self._feeds.setdefault(taker.ssp, _Feed(taker.ssp))
        feed.takers[taker.task.partition] = taker
        feed.ended = False
        feed.anew = True
        if feed.runs:
            feed.scope.cancel()  # it begins anew, where the newcomer does
        else:
            feed.runs = True
            self._nursery.start_soon(self._consume, feed, system)

    @contextmanager
    def _until_stopped(self, scope: trio.CancelScope | None = None) -> Iterator[None]:
        """Cancelled when reading stops."""
        scope = scope or trio.CancelScope()
        self._scopes.add(scope)
        if self._stopped:
            scope.cancel()
        try:
            with scope:
                yield
        finally:
            self._scopes.discard(scope)

    # -- reading -----------------------------------------------------------------------------

    async def _consume(self, feed: _Feed, system: System) -> None:
        """Read a partition for all its takers until its end, or until reading stops."""
        types = [kind.cls for kind in self._streams[feed.ssp.stream].types]
        reader: PartitionReader | None = None
        self._reading += 1
        try:
            while not self._stopped and not feed.ended and feed.takers:
                feed.scope = trio.CancelScope()
                ended: EndOfStream | None = None
                if feed.anew:
                    await _close(reader)
                    reader, feed.anew = None, False
                with self._until_stopped(feed.scope):
                    if reader is None and feed.takers:
                        at = min(taker.next for taker in feed.takers.values())
                        reader = feed.reader = await system.open(feed.ssp, at, types)
                    if reader is not None and not feed.stale():  # takers come and go meanwhile
                        ended = await self._read(feed, system, reader)
                if ended is None:
                    feed.anew = True
                else:
                    self._end(feed)
        finally:
            feed.runs = False  # who joins while this reader is closed has another one
            await _close(reader)
            self._reading -= 1
            self._quiet.unpark_all()

    async def _read(
        self, feed: _Feed, system: System, reader: PartitionReader
    ) -> EndOfStream | None:
        """Give the tasks what is read, as there is room with all of them.

        Returns the end of the partition, or None where the reader must begin anew.
        """
        tasks = [taker.task for taker in feed.takers.values()]
        stages = [task.backlog.stages[feed.ssp] for task in tasks]
        stream = feed.ssp.stream
        keyed = stream in self._partition_of and feed.ssp not in self._broadcast
        while True:
            if any(stage.full for stage in stages):
                await self.wait(lambda: all(stage.roomy for stage in stages))
            if keyed and self._tasks.full(tasks[0], stream):
                await self.wait(lambda: not self._tasks.full(tasks[0], stream))
            if self.rejects.full:
                await self.rejects.wait_room()
            try:
                batch = await reader.read()
            except InputLost as error:
                bounds = await system.bounds(feed.ssp)
                oldest = self.starts.skipped(feed.ssp, reader.position, bounds.oldest, error)
                for taker in feed.takers.values():
                    if taker.next < oldest:
                        taker.progress.complete(taker.next, oldest)
                        taker.next = oldest
                return None
            if feed.stale():
                return None
            if isinstance(batch, EndOfStream):
                return batch
            if keyed and not self._is_routed(batch, feed.ssp):
                self._give_mixed(feed, batch)
            else:
                self._give(feed, batch)

    def _give_mixed(self, feed: _Feed, batch: InputBatch) -> None:
        """Queue a batch with its task, which has to send on what is not its own."""
        (taker,) = feed.takers.values()
        task, stream, end = taker.task, batch.stream, batch.first + batch.size
        if taker.next < end:
            mine = MixedBatch(
                batch, task.partition, taker.progress, taker.next, taker.undecoded,
                self._partition_of[stream], partial(self._tasks.send, task, stream),
            )  # fmt: skip
            taker.next = end
            self._tasks.feed(task, mine)

    def _give(self, feed: _Feed, batch: InputBatch) -> None:
        """Queue a batch with each of its tasks that has not had all of it."""
        end = batch.first + batch.size
        for taker in feed.takers.values():
            if taker.next < end:
                mine = TaskBatch(
                    batch, taker.task.partition, taker.progress, taker.next, taker.undecoded
                )
                taker.next = end
                self._tasks.feed(taker.task, mine)

    def _is_routed(self, batch: InputBatch, ssp: SystemStreamPartition) -> bool:
        """Whether each event is in the partition of its key, as we would find it."""
        return (
            batch.routing != ""
            and batch.routing == self._routing[ssp.stream]
            and self._counts[ssp.system, ssp.stream] == self._partitions
        )

    def _end(self, feed: _Feed) -> None:
        """The partition has ended for good."""
        feed.ended = True
        log.info("input has ended", input=str(feed.ssp))
        self._tell_ends(feed.ssp)

    def _tell_ends(self, ssp: SystemStreamPartition) -> None:
        """Tell the tasks that have been given all. A task that gets events of its keys from all
        partitions of a stream hears of the end when all have ended that are read here."""
        over = [each for each in self._feeds.values() if each.ssp == ssp]
        if ssp.stream in self._partition_of and ssp not in self._broadcast:
            over = [each for each in self._feeds.values() if each.ssp.stream == ssp.stream]
        if all(each.ended for each in over):
            for taker in [taker for each in over for taker in each.takers.values()]:
                if not taker.told_end:
                    taker.told_end = True
                    self._tasks.ended(taker.task, taker.ssp)

    def statistics(self, names: Mapping[int, str]) -> Iterator[ProgressStatistics]:
        """How far each task is, by the tasks' ``names``."""
        for task, inputs in self.progress.items():
            for ssp, progress in inputs.items():
                feed = self._feeds.get(ssp)
                lag = feed.reader.lag if feed is not None and feed.reader is not None else None
                yield ProgressStatistics(names[task], *ssp, progress.safe, progress.committed, lag)

    # -- room --------------------------------------------------------------------------------

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Return once a condition is true, which is looked at between turns."""
        while not condition():
            lot = trio.lowlevel.ParkingLot()
            self._waiting[lot] = condition
            try:
                await lot.park()
            finally:
                del self._waiting[lot]

    def released(self) -> None:
        """Between two turns, or when a consumer was heard: let go on who waits for something."""
        for lot, condition in list(self._waiting.items()):
            if condition():
                lot.unpark()

    # -- what cannot be processed ------------------------------------------------------------

    def _undecoded(
        self, taker: _Taker, receipt: InputReceipt, number: int, reason: str, event: Any
    ) -> None:
        self.rejects.reject(taker.task, receipt, number, reason, event, given=False)

    def _refused(self, taker: _Taker, receipt: InputReceipt, number: int, reason: str) -> None:
        event = refused(receipt, number)
        self.rejects.reject(taker.task, receipt, number, reason, event, given=True)

    # -- watching ----------------------------------------------------------------------------

    async def _monitor(self) -> None:
        """Notice a number of partitions that changes."""
        while True:
            await trio.sleep(self._config[settings.MONITOR_PARTITIONS])
            for (system, stream), count in self._counts.items():
                now = await self._systems[system].partitions(stream)
                if now != count:
                    raise S4Error(
                        f"{system}.{stream} has {now} partitions, and had {count} when this "
                        f"container started; the app stops, for its keys would be elsewhere. "
                        + (f"Give it {count} again" if now < count else "Start the app again")
                    )


def _partition_finder(find: Callable[[Any], Any], partitioner: Partitioner) -> Callable[[Any], int]:
    memo = partitioner.memo
    return lambda event: memo[find(event)]


def _name(ssp: SystemStreamPartition) -> str:
    return f"{ssp.system}.{ssp.stream}"


async def _close(reader: PartitionReader | None) -> None:
    if reader is not None:
        with trio.CancelScope(shield=True):
            await reader.aclose()


async def watch(system: System) -> None:
    """Tell once that a system cannot be reached, and that it is back."""
    where = {"system": system.name}
    if address := getattr(system, "address", ""):
        where["address"] = address
    while True:
        with trio.move_on_after(_GRACE_SECONDS) as grace:
            await system.wait_reachable()
        if grace.cancelled_caught:
            log.warning("an input cannot be reached; it is waited for", **where)
            await system.wait_reachable()
            log.info("an input can be reached again", **where)
        await system.wait_reachable(False)
