"""The consumers of a container: they read its inputs and feed the stages of its tasks.

Rules
- A task that is rolled back resumes at its committed offsets. So does one that is no longer fed,
  because another container takes it over: its last commit must not be ahead of its state.
- The offsets at which an input resumes are logged once for each stream, and committed before the
  first event is read: after a crash, "upcoming" must not mean another offset.
- Reading stops at once when the container stops; batches that were read go to their tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import trio

from s4node.app.plan.graph import rule_of
from s4node.app.stream import InputStream
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError, S4Error
from s4node.events.keys import Partitioner, RoutedKeys
from s4node.events.routing import Router
from s4node.logger import get_logger
from s4node.metrics.statistics import ProgressStatistics
from s4node.offsets.checkpoint import Checkpoint
from s4node.offsets.input_progress import InputProgress
from s4node.offsets.startpoint import Startpoint
from s4node.offsets.startpoint_fan_out import Request, id_of_start
from s4node.offsets.system import System, SystemStreamPartition
from s4node.offsets.task_claims import now_ms
from s4node.runtime.commit.dead_letter_queue import DeadLetterQueue
from s4node.runtime.inputs.partition_feed import FedTasks, Keyed, PartitionFeed, Taker
from s4node.runtime.inputs.starting_offsets import Known, StartingOffsets
from s4node.runtime.task.chooser import Bootstrap
from s4node.runtime.task.task import Task
from s4node.systems.registry import Systems

log = get_logger("s4node.runtime")

_GRACE_SECONDS = 1.0
"""A system is logged as unreachable after so many seconds."""


class Tasks(FedTasks, Protocol):
    """The container's tasks, as far as consumers and feeds know them."""

    def add_input(self, task: Task, ssp: SystemStreamPartition) -> None:
        """Add the stage of an input to a task that has not started."""
        ...

    def wake(self, task: Task) -> None:
        """Queue a task that may have something to do, and have a turn soon."""
        ...

    def commit_soon(self, partition: int) -> None: ...

    def end_input(self, task: Task, ssp: SystemStreamPartition) -> None: ...


class Gained(NamedTuple):
    """A started task: its partitions, its checkpoint, and pending startpoints."""

    task: Task
    ssps: Collection[SystemStreamPartition]
    checkpoint: Checkpoint
    startpoints: Mapping[SystemStreamPartition, Request]
    start: str
    """The name of this start of the job."""


def _is_committed(taker: Taker) -> bool:
    """Return True if the offset at which the task resumes is committed."""
    return taker.progress.committed is not None and not taker.progress.startpoints


class SystemConsumers:
    """Reads the replayable ``streams`` of an app from ``systems`` for tasks.

    Every task reads the ``broadcast`` partitions. ``name`` is the job. ``progress`` is by task and
    partition. ``grown`` streams have more partitions than at first, so their events may not be in
    the partition of their key. ``away`` gets the systems that cannot be reached.
    """

    def __init__(
        self,
        config: Config,
        systems: Systems,
        partitioner: Partitioner,
        tasks: Tasks,
        dead_letters: DeadLetterQueue,
        *,
        streams: Iterable[InputStream],
        counts: Mapping[tuple[str, str], int],
        identities: Mapping[tuple[str, str], str],
        broadcast: Collection[SystemStreamPartition],
        name: str,
        grown: Mapping[str, int],
        away: set[str],
    ) -> None:
        self.progress: dict[int, dict[SystemStreamPartition, InputProgress]] = {}
        self.dead_letters = dead_letters
        self.starts = StartingOffsets(config, name, grown)
        self.stopped = False
        self._config = config
        self._systems = systems
        self._tasks = tasks
        self._streams = {stream.name: stream for stream in streams}
        self._counts = counts
        self._identities = identities
        self._broadcast = frozenset(broadcast)
        self._feeds: dict[SystemStreamPartition, PartitionFeed] = {}
        self.waiting: dict[trio.lowlevel.ParkingLot, Callable[[], bool]] = {}
        self._nursery: trio.Nursery
        self._beginning: list[Taker] = []
        self._begun: dict[int, list[Taker]] = {}  # by task; also those no longer fed
        self._reading = 0  # partitions, including those whose reader is closing
        self._scopes: set[trio.CancelScope] = set()
        self._quiet = trio.lowlevel.ParkingLot()
        self._away = away
        self._partitioner = partitioner
        self._routed: list[InputStream] = []  # by their producers, as the settings say
        self._keyed: dict[str, Keyed] = {}
        for stream in self._streams.values():
            rule = rule_of(stream)
            if rule is not None and partitioner.partitions > 1:
                same = counts[stream.system, stream.name] == partitioner.partitions
                same = same and f"{stream.system}.{stream.name}" not in grown
                if self._are_routed(stream, same=same):
                    self._routed.append(stream)
                    continue
                routing = f"{config[settings.HASHER]}:{rule.name}" if rule.name and same else ""
                self._keyed[stream.name] = Keyed(Router(rule, partitioner), routing)

    def _are_routed(self, stream: InputStream, *, same: bool) -> bool:
        """Return True if each event of a keyed stream is read by the task of its key, as the
        settings say; a stream of ``same`` has a partition for each task."""
        if not self._config.matching(settings.ROUTED).get(stream.name, False):
            return False
        hasher = self._config[settings.HASHER]
        if hasher != "kafka":
            raise ConfigError(
                f"streams.{stream.name}.routed = true says that producers partition by murmur2, "
                f"but the app has {settings.HASHER.name} = {hasher}; set {settings.HASHER.name} = "
                f"kafka, too (a job that has state begins anew with it), or remove the former"
            )
        if same and stream.targets:
            return True
        log.warning(
            "the producers of a stream do not choose its tasks, so its events are sent on to the "
            "tasks of their keys",
            stream=f"{stream.system}.{stream.name}",
            partitions=self._counts[stream.system, stream.name],
            tasks=self._partitioner.partitions,
        )
        return False

    # -- life --------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read until cancelled; raises errors that stop the container."""
        async with trio.open_nursery() as self._nursery:
            for system in self._systems:
                self._nursery.start_soon(watch, system, self._away)
            self._nursery.start_soon(self._monitor)
            task_status.started()
            await trio.sleep_forever()

    async def stop(self) -> None:
        """Stop reading; return when all batches that were read are with their tasks."""
        self.stopped = True
        for scope in self._scopes:
            scope.cancel()
        while self._reading:
            await self._quiet.park()
        await self.dead_letters.wait_empty()

    def add(self, task: Task, ssps: Iterable[SystemStreamPartition]) -> None:
        """Add a stage for each partition to a task that has not started."""
        self._watch(task, ssps)
        for ssp in ssps:
            self._tasks.add_input(task, ssp)

    def _watch(self, task: Task, ssps: Iterable[SystemStreamPartition]) -> None:
        """Have a task look at the inputs that it reads, or gets events of."""
        task.processor.times.has_unread = self._has_unread
        mine, broadcast = {ssp.stream for ssp in ssps}, {ssp.stream for ssp in self._broadcast}
        for name in self._keyed.keys() - broadcast:
            readers = self._counts[self._streams[name].system, name]
            task.processor.times.pass_on(name, readers, reads=name in mine)
        topics = self._config.matching(settings.PHYSICAL_NAME)
        names = ", ".join(f"{s.system}.{topics.get(s.name, s.name)}" for s in self._routed)
        for pe in {pe for stream in self._routed for pe in stream.targets}:
            keys = RoutedKeys(self._partitioner, task.partition, names)
            task.processor.instances[pe.name].new_keys = keys

    def _has_unread(self, ssp: SystemStreamPartition) -> bool:
        """Return True if events of a partition may wait where they are read from."""
        feed = self._feeds.get(ssp)
        lag = None if feed is None else feed.lag  # unknown at first
        return ssp.system in self._away or lag is None or lag > 0

    def assign(
        self,
        gained: Iterable[Gained],
        wishes: Callable[[Task], Mapping[SystemStreamPartition, Startpoint]],
    ) -> None:
        """Feed started tasks from the offsets at which they resume."""
        found: dict[tuple[str, str], list[Taker]] = {}
        for task, ssps, kept, startpoints, start in gained:
            self.progress[task.partition] = {}
            self._begun[task.partition] = []
            starts = wishes(task)
            for ssp in ssps:
                mark = id_of_start(start, ssp)
                known = Known(
                    starts.get(ssp),
                    startpoints.get(ssp),
                    kept.offsets.get(ssp),
                    "" if mark in kept.consumed else mark,
                    kept.epochs.get(ssp, 0),
                )
                taker = Taker(task, ssp, known, self.dead_letters)
                found.setdefault((ssp.system, ssp.stream), []).append(taker)
        for takers in found.values():
            self._beginning += takers
            self._nursery.start_soon(self._begin, takers)

    async def revoke(self, partition: int) -> None:
        """Stop feeding the task of a partition that moves to another container."""
        await self.wait(lambda: all(t.task.partition != partition for t in self._beginning))
        left = [feed for feed in self._feeds.values() if feed.revoke(partition)]
        for feed in left:
            if not feed.takers:
                del self._feeds[feed.ssp]
        for feed in left:  # the remaining takers may have waited only for the end of this one
            self.report_ends(feed.ssp)

    def drop_progress(self, partition: int) -> None:
        """Forget the task of a partition that has moved to another container."""
        self.progress.pop(partition, None)
        self._begun.pop(partition, None)

    def replace(self, old: Task, new: Task) -> None:
        """Feed ``new`` in place of ``old``, from the last commit."""
        for taker in self._beginning:
            if taker.task is old:
                taker.task = new
        self._watch(new, self.progress.get(new.partition, ()))
        for taker in self._begun.get(new.partition, ()):
            before = taker.progress
            taker.task, taker.end_reported = new, False
            taker.next = before.start if before.committed is None else before.committed
            taker.epoch = before.epoch
            taker.progress = self._progress_of(taker)
            taker.progress.committed = before.committed
            taker.progress.startpoints = before.startpoints
            self.progress[new.partition][taker.ssp] = taker.progress
            self._commit_soon(taker)
            feed = self._feeds.get(taker.ssp)
            if feed is not None and new.partition in feed.takers:
                self._join(taker)
                system = self._systems[taker.ssp.system]
                self._nursery.start_soon(self._bootstrap_again, taker, system)

    async def _bootstrap_again(self, taker: Taker, system: System) -> None:
        with self.until_stopped():
            await self._bootstrap(taker, system)

    def _progress_of(self, taker: Taker) -> InputProgress:
        progress = InputProgress(taker.ssp, taker.next, taker)
        progress.epoch = taker.epoch
        return progress

    async def _begin(self, takers: list[Taker]) -> None:
        """Find the offsets at which an input resumes, and read it from there."""
        system = self._systems[takers[0].ssp.system]
        origins: dict[str, list[str]] = {}
        with self.until_stopped():
            for taker in takers:
                ssp = taker.ssp
                found = await self.starts.find(system, ssp, taker.task.name, taker.known)
                taker.next, why, taker.epoch = found
                origins.setdefault(why, []).append(f"{ssp.partition}: {taker.next}")
            offsets = "; ".join(f"{', '.join(at)} ({why})" for why, at in origins.items())
            log.info("input resumes", input=_name(takers[0].ssp), offsets=offsets)
            for taker in takers:
                taker.progress = self._progress_of(taker)
                taker.progress.startpoints = self.starts.consumed(taker.known)
                if taker.known.checkpoint == taker.next:
                    taker.progress.committed = taker.next
                self.progress[taker.task.partition][taker.ssp] = taker.progress
                self._begun[taker.task.partition].append(taker)
            readers_of: dict[SystemStreamPartition, list[Taker]] = {}
            for taker in takers:
                readers_of.setdefault(taker.ssp, []).append(taker)
            async with trio.open_nursery() as nursery:
                for readers in readers_of.values():
                    nursery.start_soon(self._begin_partition, readers, system)
        self._beginning = [each for each in self._beginning if each not in takers]
        self.released()  # the next turn may be far away

    async def _begin_partition(self, takers: list[Taker], system: System) -> None:
        """Feed the tasks of a partition as soon as their starting offsets are committed.

        It does not wait for other partitions, whose commits may wait for a long window.
        """
        for taker in takers:
            self._commit_soon(taker)
        await self.wait(lambda: all(_is_committed(taker) for taker in takers))
        for taker in takers:
            self._join(taker)
            await self._bootstrap(taker, system)
        for taker in takers:
            self._beginning.remove(taker)
        self.report_ends(takers[0].ssp)
        self.released()

    def _commit_soon(self, taker: Taker) -> None:
        if not _is_committed(taker):
            self._tasks.commit_soon(taker.task.partition)

    async def _bootstrap(self, taker: Taker, system: System) -> None:
        """Report to a task that bootstraps how far it has to read, and how far it is."""
        task, ssp, progress = taker.task, taker.ssp, taker.progress  # a rollback changes the taker
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
            log.info("bootstrap done: the other inputs go on", task=task.name)
        self._tasks.wake(task)

    def _join(self, taker: Taker) -> None:
        feed = self._feeds.get(taker.ssp)
        if feed is None:
            feed = self._feeds[taker.ssp] = self._feed_of(taker.ssp)
        if feed.join(taker):
            self._nursery.start_soon(self._consume, feed)

    def _feed_of(self, ssp: SystemStreamPartition) -> PartitionFeed:
        types = [kind.cls for kind in self._streams[ssp.stream].types]
        system, keyed = self._systems[ssp.system], self._keyed_of(ssp)
        return PartitionFeed(ssp, system, types, keyed, self._tasks, self)

    def _keyed_of(self, ssp: SystemStreamPartition) -> Keyed | None:
        return None if ssp in self._broadcast else self._keyed.get(ssp.stream)

    @contextmanager
    def until_stopped(self, scope: trio.CancelScope | None = None) -> Iterator[None]:
        scope = scope or trio.CancelScope()
        self._scopes.add(scope)
        if self.stopped:
            scope.cancel()
        try:
            with scope:
                yield
        finally:
            self._scopes.discard(scope)

    # -- reading -----------------------------------------------------------------------------

    async def _consume(self, feed: PartitionFeed) -> None:
        self._reading += 1
        try:
            await feed.run()
        finally:
            self._reading -= 1
            self._quiet.unpark_all()

    def report_ends(self, ssp: SystemStreamPartition) -> None:
        """Report to tasks that were given everything that their input has ended.

        A task of a keyed stream gets events from all partitions, so its input ends once all
        partitions that are read here have ended.
        """
        over = [each for each in self._feeds.values() if each.ssp == ssp]
        if self._keyed_of(ssp) is not None:
            if any(_name(taker.ssp) == _name(ssp) for taker in self._beginning):
                return
            over = [each for each in self._feeds.values() if each.ssp.stream == ssp.stream]
        if all(each.ended for each in over):
            for taker in [taker for each in over for taker in each.takers.values()]:
                if not taker.end_reported:
                    taker.end_reported = True
                    self._tasks.end_input(taker.task, taker.ssp)
        self.released()  # inputs may have waited for this one

    def statistics(self, names: Mapping[int, str]) -> Iterator[ProgressStatistics]:
        for task, inputs in self.progress.items():
            for ssp, progress in inputs.items():
                feed = self._feeds.get(ssp)
                lag = None if feed is None else feed.unprocessed(progress.safe)
                held = 0 if feed is None else feed.uncommitted
                taker = None if feed is None else feed.takers.get(task)
                late = 0.0 if taker is None else taker.late(now_ms())
                place = progress.safe, progress.committed
                yield ProgressStatistics(names[task], *ssp, *place, lag, held, late)

    # -- room --------------------------------------------------------------------------------

    async def wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            lot = trio.lowlevel.ParkingLot()
            self.waiting[lot] = condition
            try:
                await lot.park()
            finally:
                del self.waiting[lot]

    def runs_ahead(self, ssp: SystemStreamPartition, tasks: Iterable[Task]) -> bool:
        ended = {str(feed.ssp) for feed in self._feeds.values() if feed.ended}
        ahead = [task.runs_ahead(ssp, ended) for task in tasks]
        return any(ahead)

    def released(self) -> None:
        """Check the conditions of ``wait``, between two turns or when a consumer answers."""
        for lot, condition in list(self.waiting.items()):
            if condition():
                lot.unpark()

    # -- watching ----------------------------------------------------------------------------

    async def _monitor(self) -> None:
        """Raise S4Error when the number of partitions of an input changes, or the stream itself."""
        while True:
            await trio.sleep(self._config[settings.MONITOR_PARTITIONS])
            for (system, stream), count in self._counts.items():
                if await self._systems[system].identity(stream) != self._identities[system, stream]:
                    raise S4Error(
                        f"{system}.{stream} was deleted and made anew under its name; the app "
                        f"stops, because its offsets mean other events. Set "
                        f"streams.{stream}.samza.reset.offset = true to begin anew with it"
                    )
                now = await self._systems[system].partitions(stream)
                if now != count:
                    raise S4Error(
                        f"{system}.{stream} has {now} partitions, but had {count} when this "
                        f"container started; the app stops, because keys move to other partitions. "
                        + (f"Give it {count} again" if now < count else "Start the app again")
                    )


def _name(ssp: SystemStreamPartition) -> str:
    return f"{ssp.system}.{ssp.stream}"


async def watch(system: System, away: set[str]) -> None:
    """Log when a system cannot be reached, and when it can again; note it in ``away`` meanwhile."""
    where = {"system": system.name}
    if address := getattr(system, "address", ""):
        where["address"] = address
    while True:
        away.add(system.name)
        with trio.move_on_after(_GRACE_SECONDS) as grace:
            await system.wait_reachable()
        if grace.cancelled_caught:
            log.warning("an input cannot be reached; waiting for it", **where)
            await system.wait_reachable()
            log.info("an input can be reached again", **where)
        away.discard(system.name)
        await system.wait_reachable(False)
