"""The channels of a task that keeps state: what it sends to other tasks and to other apps.

Rules
- An event that a task puts for another one leaves with the task's commit, over a socket; also to
  tasks of the same container, so that there is one mechanism. Events for the task itself wait in
  its own stage, and a commit saves the waiting ones.
- Each task is a producer. Its name has the task's name and the life of its state; a task that began
  without state has a new life. On a channel to a consumer it has the life of the channel instead,
  because the consumer does not go back with the task.
- A channel is made when something is first put on it, or when an earlier owner of the task has left
  rows for it. One to an absent consumer is unclaimed until the consumer comes.
- If more than a bound waits for commits of receivers, the channel holds the streams that lead to
  it, unless they feed themselves.
- An output stream has a channel to each of its consumers. A new consumer gets the events put from
  then on; the channel to a consumer that has gone is forgotten. A consumer that returns may know
  earlier numbers, so its new channel has another producer name. The same holds for a consumer with
  a new number of partitions: events that do not count yet are routed again, by one commit of their
  task.
- If a job goes on from a savepoint and a task has sent a consumer more than the savepoint has, its
  channel begins another life, and first puts what waited in the savepoint.
- Events of a commit that was taken before the partitions were known leave with a later commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from s4node import tokens
from s4node.app.app import App
from s4node.app.stream import InputStream
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import EventError, S4Error
from s4node.events.event import EventBatch, footprint
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.metrics.statistics import OutboxStatistics
from s4node.net.egress.emitter import Emitter
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.outbox_rows import (
    Rows,
    SavedRows,
    channels_of,
    forget,
    life_of,
    numbered,
    weight_of,
)
from s4node.net.egress.own_events import OwnEvents
from s4node.net.egress.routes import Routes
from s4node.net.egress.settlements import ReceiversCommits
from s4node.net.egress.spill import Spill
from s4node.net.egress.with_commit import WithCommit
from s4node.net.ingress.producer_lane import Effects
from s4node.net.wire import frame as wire
from s4node.offsets.cuts import AT_ONCE, NO_CUTS, Cuts
from s4node.offsets.task_claims import now_ms
from s4node.runtime.loop.pipeline import Pipeline
from s4node.runtime.outputs.channels import (
    NOTHING_SENT,
    TaskChannel,
    Unclaimed,
    channel_name,
    outbox_options,
    parts_of,
    sent_before,
)
from s4node.runtime.outputs.outlet_rows import OutletRows, check_homes, outlets_in
from s4node.runtime.outputs.output_carrier import OutputCarrier
from s4node.runtime.outputs.refusals import Refusals
from s4node.runtime.task.task import Task
from s4node.state import task_state
from s4node.state.job import LIFE, SENT
from s4node.state.rows import OUTBOX, OUTLET

log = get_logger("s4node.runtime")


@dataclass(eq=False, repr=False)
class ChannelContext:
    """The parts that the channels of all tasks of ``app`` share; ``job`` is its name.

    ``effects`` get the tasks that have to commit; ``emitter`` leads to other tasks, and ``owners``
    are those of all partitions, with epoch and origin. ``carriers`` know the consumers of output
    streams.
    """

    app: App
    config: Config
    pipeline: Pipeline
    job: str
    incarnation: str
    partitions: int
    effects: Effects
    refusals: Refusals
    cuts: Cuts
    emitter: Emitter = field(init=False)
    carriers: Mapping[str, OutputCarrier] = field(init=False)
    tasks: dict[int, TaskChannels] = field(default_factory=dict)
    owners: tuple[Sequence[str], int, str] = ((), -1, "")
    homes: dict[str, str] = field(default_factory=dict)  # the systems of streams that lead to one

    @property
    def cluster(self) -> str:
        return self.config[settings.CLUSTER_NAME]

    def of_task(self, task: Task, state: task_state.TaskState, fence: int) -> TaskChannels:
        return TaskChannels(self, task, state, fence)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()

    async def publish_last(self) -> None:
        """Publish what tasks have written to systems, as far as these answer; then nothing more."""

    def failing(self) -> dict[str, str]:
        """The systems that have taken no records for a while, and why."""
        return {}

    def check_published(self) -> None:
        """Raise S4Error if records are not published."""

    def unpublished(self) -> Counter[str]:
        """The records that are not published, by system."""
        return Counter()


@dataclass(eq=False, repr=False)
class TaskOverflow:
    """The overflow of a task's own stage, saved as rows of the task, which is one of ``_tasks``."""

    _tasks: Mapping[int, TaskChannels]
    _stream: str
    _partition: int

    def append(self, batch: EventBatch) -> None:
        self._tasks[self._partition].spill(self._stream).append(batch)

    def pop(self) -> EventBatch | None:
        return self._tasks[self._partition].spill(self._stream).pop()

    def clear(self) -> None:
        task = self._tasks.get(self._partition)
        if task is not None and self._stream in task.channels:  # else the next owner has it
            task.spill(self._stream).clear()


class TaskChannels:
    """The channels of ``task`` by name, and what its previous owner has left; ``fence`` is that of
    its claim."""

    def __init__(
        self, context: ChannelContext, task: Task, state: task_state.TaskState, fence: int
    ) -> None:
        self.channels: dict[str, TaskChannel] = {}
        self._context = context
        self._task = task
        self._state = state
        self._fence = fence
        self._unclaimed: dict[str, Unclaimed] = {}  # for consumers that are not there yet
        self._left: dict[str, list[Any]] = {}  # events that the task had put for itself
        self._own_rows = False
        self._moved = 0  # the value of _move when the last commit began
        self._committing = False
        self._life: str = state.meta(LIFE) or ""
        self._sent = sent_before(state)

    def restore(self, rows: Rows) -> None:
        """Begin with the rows that the task's previous owner has left."""
        context, task = self._context, self._task
        task.processor.times.puts.on_passed_on = self._report_times
        self._restore_outlets(outlets_in(self._state.rows(OUTLET)))
        for name, mine in channels_of(rows).items():
            stream, consumer = parts_of(name)
            if stream not in context.app.streams:
                raise S4Error(
                    f"task {task.name!r} has unacknowledged events on stream {stream!r}, which the "
                    f"app no longer has; run the version of the app that has it until it stops in "
                    f"order"
                )
            if not consumer or consumer in context.carriers[stream].channels:
                self._channel(name, mine)
            else:
                self._unclaimed[name] = Unclaimed(mine, *weight_of(mine))

    def _restore_outlets(self, found: Mapping[str, OutletRows]) -> None:
        """Raise S4Error if records wait for a system to which the app no longer writes."""
        check_homes(self._task.name, found, self._context.homes)

    def roll_back(self, task: Task, state: task_state.TaskState) -> None:
        """Roll back to the last commit for ``task``, which replaces a failed one.

        Events that the failed one has put since that commit never leave.
        """
        self._task, self._state, self._own_rows = task, state, False
        self._moved, self._left, self._sent = 0, {}, sent_before(state)
        task.processor.times.puts.on_passed_on = self._report_times
        if self._life and not state.meta(LIFE):
            state.set_meta(LIFE, self._life)
        rows = channels_of(state.rows(OUTBOX))
        for name in [name for name, channel in self.channels.items() if channel.replaces]:
            self._close(name)
            self._channel(name, rows.get(name, ()))
        for name in rows.keys() - self._unclaimed.keys():
            channel, life = self.channels.get(name), life_of(rows[name])
            if channel is None or channel.release.rows.life != life:
                self._remember(name, life, numbered(name, rows[name]))
                forget(state.changes, rows[name])  # the consumer has gone since they were written
        for name, channel in self.channels.items():
            saved = channel.release.rows.roll_back(state.changes, rows.get(name, ()))
            channel.release.roll_back(saved)
            channel.report_refusals(self._context.refusals)
            self._give_back(name, channel, saved)

    def revoke(self) -> None:
        """Close the channels of a task that another container takes over from its last commit."""
        for name, channel in list(self.channels.items()):
            channel.release.rows.unsent.report_lost()
            channel.report_refusals(self._context.refusals)
            self._close(name)

    def return_own_events(self) -> None:
        """Give the restored task the events that it had put for itself."""
        task = self._task
        left, self._left = self._left, {}
        for stream, events in left.items():
            task.backlog.offer(EventBatch(stream, task.partition, events, weight=footprint(events)))
        for stream, channel in self.channels.items():
            if spilled := channel.own.spill.events:
                overflow = TaskOverflow(self._context.tasks, stream, task.partition)
                task.backlog.restore_overflow(stream, overflow, spilled)

    def spill(self, stream: str) -> Spill:
        """The spilled events of a channel, which is made if there is none."""
        return (self.channels.get(stream) or self._channel(stream)).own.spill

    # -- channels ----------------------------------------------------------------------------

    def _channel(self, name: str, rows: Rows = ()) -> TaskChannel:
        """Make a channel; its name is a stream, or a stream and a consumer."""
        context, task, state = self._context, self._task, self._state
        stream, consumer = parts_of(name)
        if not self._life:
            self._life = tokens.later()
            state.set_meta(LIFE, self._life)
        life = life_of(rows) if rows else tokens.later() if consumer else ""
        edges, to = context.pipeline.order.edges, context.app.streams[stream]
        only_read = isinstance(to, InputStream) and not edges.lead_to(stream)
        outbox = Outbox(
            stream,
            f"{wire.TASK}{context.cluster}/{context.job}/{task.name}#{life or self._life}",
            key=to.key if consumer else None,
            **outbox_options(to, context.config, saved=True, checked=only_read),
        )
        settlement = ReceiversCommits(
            outbox,
            name,
            state.changes,
            state.database,
            life,
            home=task.partition,
            cuts=NO_CUTS if consumer else context.cuts,
        )
        release = WithCommit(
            settlement,
            partitions=0 if consumer else context.partitions,
            bound=task_state.CHANGES_BYTES,
            clock=now_ms,
        )
        routes = Routes(outbox, context.incarnation, headers=self._headers(outbox, consumer))
        emitter = context.emitter
        if consumer:
            emitter = context.carriers[stream].channels[consumer].emitter
        own = OwnEvents(context.app.name, task.partition, settlement)
        channel = TaskChannel(consumer, release, routes, emitter, own)
        self.channels[name] = channel
        saved = settlement.restore(rows)
        release.restore(saved)
        self._give_back(name, channel, saved)
        if release.holds:  # with what an earlier owner has left
            context.pipeline.watch(stream, (task.partition, name), release)
        channel.open()
        if context.owners[0] and not consumer:
            emitter.assign(routes, *context.owners)
        return channel

    def _headers(self, outbox: Outbox, consumer: str) -> wire.Headers:
        """The headers of a hello: the claim, and who says the time of a stream's events.

        Without a header for that the task reports it with its commits. What it puts from streams
        without a time shows it by itself.
        """
        headers: wire.Headers = {wire.FENCE: self._fence}
        if not consumer:
            headers[wire.CLUSTER] = self._context.cluster
        puts, stream = self._task.processor.times.puts, self._context.app.streams[outbox.stream]
        reports = stream.name in puts.times and stream.name not in puts.untimed
        if not (isinstance(stream, InputStream) or reports):
            outbox.latest.by_commits = False
            outbox.latest.field = stream.time.field if stream.time else None  # before an answer
            headers[wire.UNTIMED] = True
        return headers

    def _give_back(self, name: str, channel: TaskChannel, saved: SavedRows) -> None:
        """Give events that are in no frame back to the task, or to the outbox of a consumer."""
        own = channel.own.restore(saved, trio.current_time())
        if channel.consumer:
            channel.release.wait_again(own)
        elif own:
            self._left[name] = own
            self._own_rows = True

    def consumer(self, stream: str, consumer: str) -> None:
        """Add or remove the channel to a consumer that has come or gone."""
        here = consumer in self._context.carriers[stream].channels
        name = channel_name(stream, consumer)
        if here and name in self._unclaimed:
            self._channel(name, self._unclaimed.pop(name).rows)
        elif not here and name in self.channels:
            self._forget(name, sum(lane.released for lane in self.channels[name].outbox.lanes))

    def _forget(self, name: str, sent: int) -> None:
        """Nothing more is sent on a channel, and its rows go with the next commit."""
        channel = self._close(name)
        self._remember(name, channel.release.rows.life, sent)
        for row in (*channel.release.all_rows(), *channel.own.rows()):
            self._state.changes.put(row, None)

    def _remember(self, name: str, life: str, sent: int) -> None:
        """Remember what was sent in a life of a channel, whose rows go with the next commit."""
        if sent and parts_of(name)[1]:
            self._sent[name] = life, self._sent.get(name, NOTHING_SENT)[1] + sent
            self._state.set_meta(SENT, self._sent)

    def _close(self, name: str) -> TaskChannel:
        """Stop sending on a channel; nothing waits for it any more."""
        channel = self.channels.pop(name)
        channel.close()
        self._context.pipeline.unwatch(channel.outbox.stream, (self._task.partition, name))
        return channel

    # -- events on their way -----------------------------------------------------------------

    def put(self, stream: str, partition: int, events: Sequence[Any], sender: str = "") -> None:
        channel = self.channels.get(stream) or self._channel(stream)
        channel.release.put(events, partition, sender=sender)
        self._after_put(stream, stream, channel)

    def send(self, carrier: OutputCarrier, events: Sequence[Any]) -> None:
        carrier.passed_by(len(events))
        for consumer in carrier.channels:
            name = channel_name(carrier.stream, consumer)
            channel = self.channels.get(name) or self._channel(name)
            channel.release.put(events)
            self._after_put(carrier.stream, name, channel)

    def _after_put(self, stream: str, name: str, channel: TaskChannel) -> None:
        """After a put: hold the streams that lead to a full channel, and have a commit soon."""
        context, partition = self._context, self._task.partition
        if channel.release.holds:
            context.pipeline.watch(stream, (partition, name), channel.release)
            context.effects.commits[partition] = AT_ONCE  # nothing leaves before that
        elif channel.release.unreleased:
            context.effects.commit_within(partition, 0.0)

    @property
    def idle(self) -> bool:
        """True if all events for other tasks are committed by their receivers."""
        return all(one.release.idle for one in self.channels.values() if not one.consumer)

    @property
    def moving(self) -> bool:
        return any(one.moving for one in self.channels.values() if not one.release.idle)

    def handle_news(self) -> None:
        """Handle news of receivers; raises S4Error if one does not accept a stream."""
        if self.awaited:  # events put before the stream's partitions were known
            self._context.effects.commit_within(self._task.partition, 0.0)
        if not self._committing:
            self._replace_channels()
        for channel in self.channels.values():
            outbox, rows = channel.outbox, channel.release.rows
            if rows.shrank:
                rows.shrank = False
                passing("outbox.settled")
            channel.report_refusals(self._context.refusals)
            if outbox.error and not outbox.repartitioned:
                raise EventError(f"stream {outbox.stream!r}: {outbox.error}")

    def _replace_channels(self) -> None:
        """Route events again for consumers that have a new number of partitions.

        No commit may be running, because its events have to be in its rows.
        """
        for name, channel in list(self.channels.items()):
            outbox = channel.outbox
            if not outbox.repartitioned:
                continue
            events = channel.release.rows.uncounted_events()
            log.warning("a consumer has a new number of partitions; events that it has not "
                        "counted are routed again", stream=outbox.stream, task=self._task.name,
                        consumer=channel.consumer, events=len(events))  # fmt: skip
            self._forget(name, sum(lane.upto for lane in outbox.lanes))
            new = self._channel(name)
            new.replaces = True
            new.release.put(events)
            self._context.effects.commits[self._task.partition] = AT_ONCE

    def statistics(self) -> Iterator[OutboxStatistics]:
        task = self._task.name
        for channel in self.channels.values():
            box = channel.outbox
            events, size = box.unsettled, box.unsettled_bytes
            yield OutboxStatistics(task, box.stream, channel.consumer, events, size)
        for name, (_, depth, size) in self._unclaimed.items():
            yield OutboxStatistics(task, *parts_of(name), depth, size)

    # -- commits -----------------------------------------------------------------------------

    @property
    def keeps(self) -> bool:
        return bool(self.channels)

    @property
    def awaited(self) -> bool:
        """True if events that the task has put wait for a commit of it."""
        return any(channel.release.unreleased for channel in self.channels.values())

    @property
    def changed(self) -> bool:
        """True if a commit of the task would write rows of the channels."""
        if any(one.release.changed or one.own.spill.tails for one in self.channels.values()):
            return True
        return self._move != self._moved and (self._own_rows or bool(self._task.own_events()))

    @property
    def _move(self) -> int:
        """A number that changes whenever the waiting own events of the task may have changed."""
        return self._task.processed + self._task.sent

    def begin_commit(self) -> None:
        """Begin a commit of the task, or its cut, which covers all events put until now."""
        task, context = self._task, self._context
        own = task.own_events()
        for stream, events in self._left.items():
            own[stream] = [*events, *own.get(stream, ())]
        for stream in own.keys() - self.channels.keys():
            self._channel(stream)
        puts = task.processor.times.puts
        for stream, time in puts.times.items():  # also if it has put nothing
            carrier = context.carriers.get(stream)
            names = [channel_name(stream, one) for one in carrier.channels] if carrier else [stream]
            for name in names:
                if name not in self.channels and carrier is None and context.partitions == 1:
                    continue  # nobody waits for it
                channel = self.channels.get(name) or self._channel(name)
                channel.outbox.latest.coming = time
                channel.outbox.latest.coming_idle = stream in puts.idle
        for stream, channel in self.channels.items():
            channel.release.begin_commit()
            channel.own.begin_commit([*own.get(stream, ()), *channel.outbox.unrouted])
        self._committing = True
        self._own_rows = bool(own)
        self._moved = self._move

    def _report_times(self, streams: Iterable[str]) -> None:
        """Report to others how far the task is in inputs of which it has nothing to send on.

        No commit has to come first: after a crash it has nothing of these events for them, either.
        """
        for stream in streams:
            channel = self.channels.get(stream)
            if channel is None or channel.release.unreleased or channel.release.leaving:
                continue
            latest = channel.outbox.latest
            latest.nothing_sent_before(now_ms() / 1000)
            latest.reach_at_once(self._task.processor.times.puts.times[stream])
            channel.emitter.wake()

    def encode(self) -> bool:
        """Encode a part of the events of the commit; return False if none are left."""
        return any(one.release.encode() or one.own.encode() for one in self.channels.values())

    @property
    def releases(self) -> bool:
        """True if events may leave when the current commit is written."""
        return any(channel.release.leaving for channel in self.channels.values())

    def end_commit(self, *, written: bool) -> None:
        self._committing = False
        self._replace_channels()
        if not written:
            self._moved = -1
        leaving = written and self.releases
        if leaving:
            passing("outbox.release")
        for channel in self.channels.values():
            channel.release.end_commit(written=written)
            channel.replaces = channel.replaces and not written
            channel.report_refusals(
                self._context.refusals
            )  # no answer comes if nothing is left to send
        for channel in self.channels.values() if written else ():
            channel.emitter.wake()  # also to report a time
        if leaving:
            passing("outbox.released")
