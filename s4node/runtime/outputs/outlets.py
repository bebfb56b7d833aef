"""The outlets of a container's tasks: what they write to systems, such as Kafka.

Rules
- A task has one outlet for each system that it writes to. It is made when something is first put on
  a stream of the system, or if an earlier owner has left rows.
- Records are encoded by the commit that has them; ``outlet_rows`` has its rows.
- The rest is decided by :mod:`s4node.runtime.outputs.outlet`. Each outlet has a trio task, which
  does what it decides.
- An error of a receiver that does not pass stops the container.
- A stop waits for all outlets at the same time, as long as something is published. Then nothing
  more is: others may own the tasks. Records that are left are an error if the app has ended itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import trio
from msgspec.structs import replace

from s4node import tokens
from s4node.app.stream import OutputStream, outlets_of
from s4node.errors import ConfigError, ReceiverLost, S4Error
from s4node.events.event import footprint
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.metrics.statistics import OutboxStatistics
from s4node.offsets.system import Receiver, ReceivingSystem
from s4node.offsets.task_claims import now_ms
from s4node.runtime.loop.run_loop import RunLoop
from s4node.runtime.outputs.channels import channel_name
from s4node.runtime.outputs.outlet import Batch, Open, Outlet, Publish, Saved, Wait
from s4node.runtime.outputs.outlet_rows import (
    OutletRows,
    batch_row,
    outlets_in,
    places_of,
    read_records,
    saved_row,
    written,
)
from s4node.runtime.outputs.output_carrier import OutputCarrier
from s4node.runtime.outputs.task_channels import ChannelContext, TaskChannels
from s4node.runtime.task.task import Task
from s4node.state import task_state
from s4node.state.rows import OUTLET
from s4node.state.task_state import TaskState
from s4node.systems.record_writer import RecordWriter
from s4node.systems.records import RecordFormat
from s4node.systems.registry import Systems

log = get_logger("s4node.runtime")

_AT_ONCE = 128
"""The most records of a row: the commit looks at the clock and for a cancellation after each."""

_LOG_SECONDS = 5.0
"""A receiver that fails for longer is logged."""

_GIVE_UP_SECONDS = 5.0
"""A container that stops leaves the rows to the next owner if nothing is published for so long."""

_ANSWER_SECONDS = 5.0
"""The time in which systems are asked for the streams, at the start."""

_CLOSE_SECONDS = 1.0
"""A receiver that does not close in this time is left to its threads."""


class Fences(Protocol):
    async def check_fences(self) -> None:
        """Raise TaskFenced if another container owns one of the tasks now."""
        ...


def receiving(systems: Systems, stream: OutputStream) -> ReceivingSystem:
    """The system that a stream leads to; raises ConfigError if it takes no output of tasks."""
    system: Any = systems[stream.system]
    if not hasattr(system, "receiver"):
        raise ConfigError(
            f"stream {stream.name!r} leads to system {stream.system!r}, which takes no output of "
            f"tasks; use a system of Kafka, or leave out system= so that apps consume the stream"
        )
    found: ReceivingSystem = system
    return found


async def check_outlets(systems: Systems, streams: Iterable[OutputStream]) -> None:
    """Raise UnknownStream if a stream that tasks write does not exist.

    A system that is away is not waited for: the records for it wait in the state.
    """
    with trio.move_on_after(_ANSWER_SECONDS) as patience:
        for stream in streams:
            await systems[stream.system].partitions(stream.name)
    if patience.cancelled_caught:
        log.warning("records wait, for a system does not answer", system=stream.system)


class TaskOutlet:
    """The outlet of a task to ``system``: the rows of its records, and its receiver."""

    def __init__(
        self,
        task: Task,
        system: str,
        state: TaskState,
        fence: int,
        writers: Mapping[str, RecordWriter],
        receiver: Receiver,
        rows: OutletRows,
    ) -> None:
        self.system = system
        self.receiver = receiver
        self.scope = trio.CancelScope()
        self.outlet = Outlet(task.name, system, fence, *rows)
        self.news = trio.Event()
        self._settled = trio.lowlevel.ParkingLot()
        self._state = state
        self._writers = writers
        self._saved = rows.saved
        self._pending: list[tuple[str, list[Any]]] = []
        self._pending_bytes = 0
        self._taken: list[tuple[str, list[Any]]] = []  # by the current commit
        self._encoded = 0  # events of the first of these
        self._part = 0
        self._made: list[Batch] = []  # in rows of commits that are not written
        self._rows = places_of(rows.batches)
        self.failure = ""  # why the receiver has failed for a while
        if rows.saved.settled:
            self._delete_settled()

    # -- events --------------------------------------------------------------------------------

    def put(self, stream: str, events: list[Any]) -> None:
        if not self._pending:
            self._save()  # so that there is something to commit
        self._pending.append((stream, events))
        self._pending_bytes += footprint(events)

    @property
    def holds(self) -> bool:
        """True while tasks that put on its streams have to wait."""
        return self.outlet.bytes + self._pending_bytes >= task_state.CHANGES_BYTES

    @property
    def awaited(self) -> bool:
        """True if records wait for a commit."""
        return bool(self._pending)

    @property
    def unpublished(self) -> int:
        """The records that wait, in commits or for one."""
        waiting = sum(len(events) for _, events in (*self._pending, *self._taken))
        return self.outlet.events + waiting - self._encoded

    # -- commits -------------------------------------------------------------------------------

    def begin_commit(self) -> None:
        self._taken, self._pending = [*self._taken, *self._pending], []
        self._pending_bytes = 0
        if self._taken:
            count = sum(len(events) for _, events in self._taken) - self._encoded
            before = self._saved
            self._saved = Saved(
                before.lives, before.number + 1, self.outlet.settled, before.records + count
            )
            self._part = 0

    def encode(self) -> bool:
        """Encode a part of the current commit; return False if nothing is left.

        Raises EventError for an event that cannot be written.
        """
        if not self._taken:
            return False
        stream, events = self._taken[0]
        share = events[self._encoded : self._encoded + _AT_ONCE]
        records = self._writers[stream].write(share, now_ms())
        data = written(records)
        number, add = self._saved.number, self._state.changes.add
        add(batch_row(self.system, number, self._part), data)
        self._rows.append((number, self._part))
        self._made.append(Batch(number, data, len(records)))
        self._part += 1
        self._encoded += len(records)
        if self._encoded == len(events):
            self._encoded = 0
            del self._taken[0]
        if not self._taken:
            add(saved_row(self.system), written(self._saved))
        return True

    @property
    def leaves(self) -> bool:
        """True if records may be published when the current commit is written."""
        return bool(self._made)

    def end_commit(self, *, written: bool) -> None:
        if written and self._made:
            made, self._made = self._made, []
            self.outlet.written(made[-1].number, made)
            self.news.set()

    def roll_back(self, state: TaskState) -> None:
        """Roll back to the last commit, whose rows are in ``state``."""
        self._state = state
        self._pending, self._taken, self._made = [], [], []
        self._pending_bytes = self._encoded = 0
        found = outlets_in(state.rows(OUTLET)).get(self.system)
        lives, batches = self._saved.lives, [] if found is None else found.batches
        self._saved = Saved(lives) if found is None else found.saved
        self._rows = places_of(batches)
        self._delete_settled()

    def _delete_settled(self) -> None:
        """Delete the rows of published records with the next commit."""
        put, settled = self._state.changes.put, self.outlet.settled
        kept: list[tuple[int, int]] = []
        for number, part in self._rows:
            if number <= settled:
                put(batch_row(self.system, number, part), None)
            else:
                kept.append((number, part))
        self._rows = kept
        self._saved = replace(self._saved, settled=settled)
        self._save()

    def _save(self) -> None:
        self._state.changes.put(saved_row(self.system), written(self._saved))

    # -- the receiver --------------------------------------------------------------------------

    async def run(self, fences: Fences, loop: RunLoop) -> None:
        """Publish until cancelled; raises errors that stop the container."""
        with self.scope:
            try:
                while True:
                    await self._do(self.outlet.step(trio.current_time()), fences, loop)
            finally:
                with trio.move_on_after(_CLOSE_SECONDS, shield=True):
                    await self.receiver.close()

    async def _do(self, step: Open | Publish | Wait, fences: Fences, loop: RunLoop) -> None:
        outlet = self.outlet
        if isinstance(step, Wait):
            with trio.move_on_at(step.until):
                await self.news.wait()
            self.news = trio.Event()
            return
        try:
            if isinstance(step, Open):
                passing("outlet.open")
                marker = await self.receiver.open()
                await fences.check_fences()
                settled = outlet.receiver_opened(marker)
                if outlet.before:
                    log.warning(
                        "a task has lost its state, and publishes its output again",
                        task=outlet.task,
                        system=self.system,
                        commits=outlet.before,
                    )
            else:
                records = (each for batch in step.batches for each in read_records(batch.data))
                await self.receiver.transact(records, step.marker)  # which reads them in a thread
                settled = outlet.published()
        except ReceiverLost as error:
            self._note_failing(error)
            outlet.receiver_lost(trio.current_time())
            return
        if outlet.failing_since is None:
            self.failure = ""
        if settled > self._saved.settled:
            self._delete_settled()
            passing("outlet.settled")
            self._settled.unpark_all()
            loop.nudge()  # held streams may go on

    def _note_failing(self, error: ReceiverLost) -> None:
        outlet, now = self.outlet, trio.current_time()
        if outlet.failing_since is not None and now - outlet.failing_since > _LOG_SECONDS:
            self.failure = str(error)
            log.warning(
                "records wait, for a system does not take them",
                task=outlet.task,
                system=self.system,
                events=outlet.events,
                seconds=round(now - outlet.failing_since),
                reason=str(error),
            )

    async def publish_last(self) -> None:
        """Publish what is durable, until nothing was published for some seconds; then nothing."""
        outlet = self.outlet
        while outlet.waiting:
            with trio.move_on_after(_GIVE_UP_SECONDS) as patience:
                await self._settled.park()
            if patience.cancelled_caught:
                log.warning(
                    "records are left in the state of a task; its next owner publishes them",
                    task=outlet.task,
                    system=self.system,
                    events=outlet.events,
                )
                break
        self.scope.cancel()


class _OnlyTasks:
    """The carrier of a stream to a system: events of sources are in no commit, so it takes none."""

    pressure = 0.0

    def __init__(self, stream: str) -> None:
        self._stream = stream

    async def send(self, events: Sequence[Any]) -> int:
        return self.send_nowait(events)

    def send_nowait(self, events: Sequence[Any]) -> int:  # noqa: ARG002
        raise S4Error(
            f"stream {self._stream!r} leads to a system, and takes only what PEs and tasks put; "
            f"send the event to a stream of the app whose PE puts it"
        )

    def watermark(self, time: float) -> None:
        """Do nothing: records have times of their own."""


class OutletContext(ChannelContext):
    """The parts that the channels of tasks share if these write to systems."""

    fences: Fences
    loop: RunLoop
    writers: dict[str, RecordWriter]
    receivers: dict[str, ReceivingSystem]
    nursery: trio.Nursery

    def prepare(self, systems: Systems, fences: Fences, loop: RunLoop) -> None:
        """Set the parts that are made after this; raises ConfigError for a bad setting."""
        streams = outlets_of(self.app.streams)
        self.fences, self.loop = fences, loop
        self.homes = {stream.name: stream.system for stream in streams}
        self.receivers = {stream.system: receiving(systems, stream) for stream in streams}
        for stream in streams:
            stream.carrier = _OnlyTasks(stream.name)
        self.writers = {
            stream.name: RecordWriter(
                stream.name,
                RecordFormat.configured(self.config, stream.name),
                stream.key,
                self.receivers[stream.system].most_bytes,
            )
            for stream in streams
        }

    def of_task(self, task: Task, state: TaskState, fence: int) -> TaskChannels:
        return TaskOutlets(self, task, state, fence)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self.nursery:
            task_status.started()
            await trio.sleep_forever()

    async def publish_last(self) -> None:
        async with trio.open_nursery() as nursery:
            for each in self._outlets():
                nursery.start_soon(each.publish_last)

    def failing(self) -> dict[str, str]:
        return {each.system: each.failure for each in self._outlets() if each.failure}

    def check_published(self) -> None:
        if left := self.unpublished():
            found = ", ".join(f"{left[name]:,} for system {name!r}" for name in sorted(left))
            raise S4Error(
                f"app {self.app.name!r} has ended itself, and some of its records are not "
                f"published: {found}. They are in its state: start it again, and it publishes them "
                f"and ends"
            )

    def unpublished(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for each in self._outlets():
            found[each.system] += each.unpublished
        return +found

    def _outlets(self) -> list[TaskOutlet]:
        all_channels = self.tasks.values()
        found = [each for each in all_channels if isinstance(each, TaskOutlets)]
        return [outlet for each in found for outlet in each.outlets.values()]


class TaskOutlets(TaskChannels):
    """The channels of a task that writes to systems, and its ``outlets`` by system."""

    def __init__(self, context: OutletContext, task: Task, state: TaskState, fence: int) -> None:
        super().__init__(context, task, state, fence)
        self.outlets: dict[str, TaskOutlet] = {}
        self._shared = context

    def _restore_outlets(self, found: Mapping[str, OutletRows]) -> None:
        super()._restore_outlets(found)
        for system in found.keys() & self._shared.receivers.keys():
            self._outlet(system, found[system])
            for stream, home in self._shared.homes.items():
                if home == system:
                    self._watch(stream, system)

    def _outlet(self, system: str, rows: OutletRows | None = None) -> TaskOutlet:
        shared, task = self._shared, self._task
        if system not in self.outlets:
            receiver = shared.receivers[system].receiver(shared.cluster, shared.job, task.name)
            rows = rows or OutletRows(Saved(((tokens.later(), 0),)), [])
            made = TaskOutlet(
                task, system, self._state, self._fence, shared.writers, receiver, rows
            )
            self.outlets[system] = made
            shared.nursery.start_soon(made.run, shared.fences, shared.loop)
        return self.outlets[system]

    def roll_back(self, task: Task, state: TaskState) -> None:
        super().roll_back(task, state)
        for each in self.outlets.values():
            each.roll_back(state)

    def revoke(self) -> None:
        super().revoke()
        for stream, system in self._shared.homes.items():
            self._shared.pipeline.unwatch(stream, self._holder_at(stream, system))
        for each in self.outlets.values():
            each.scope.cancel()

    def _holder_at(self, stream: str, system: str) -> tuple[int, str]:
        return self._task.partition, channel_name(stream, system)

    # -- events --------------------------------------------------------------------------------

    def send(self, carrier: OutputCarrier, events: Sequence[Any]) -> None:
        system, stream = self._shared.homes.get(carrier.stream), carrier.stream
        if system is None:
            super().send(carrier, events)
            return
        self._outlet(system).put(stream, list(events))
        self._shared.effects.commit_within(self._task.partition, 0.0)
        self._watch(stream, system)

    def _watch(self, stream: str, system: str) -> None:
        """Hold the streams that lead to a full outlet, for as long as it is full."""
        outlet = self.outlets[system]
        if outlet.holds:
            self._shared.pipeline.watch(stream, self._holder_at(stream, system), outlet)

    def statistics(self) -> Iterator[OutboxStatistics]:
        yield from super().statistics()
        for system, each in self.outlets.items():
            streams = "+".join(name for name, home in self._shared.homes.items() if home == system)
            outlet = each.outlet
            yield OutboxStatistics(outlet.task, streams, system, each.unpublished, outlet.bytes)

    # -- commits -------------------------------------------------------------------------------

    @property
    def keeps(self) -> bool:
        return super().keeps or bool(self.outlets)

    @property
    def awaited(self) -> bool:
        return super().awaited or any(each.awaited for each in self.outlets.values())

    def begin_commit(self) -> None:
        super().begin_commit()
        for each in self.outlets.values():
            each.begin_commit()

    def encode(self) -> bool:
        return super().encode() or any(each.encode() for each in self.outlets.values())

    @property
    def releases(self) -> bool:
        return super().releases or any(each.leaves for each in self.outlets.values())

    def end_commit(self, *, written: bool) -> None:
        super().end_commit(written=written)
        for each in self.outlets.values():
            each.end_commit(written=written)
