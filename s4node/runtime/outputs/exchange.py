"""The exchange: events that durable tasks send to each other and to other apps.

Rules
- An event that a task puts for another one leaves with the task's commit, over a socket; also to
  tasks of the same container, so that there is one mechanism. Events for the task itself wait in
  its own stage, and a commit saves the waiting ones.
- Each task is a producer. Its name has the task's name and the life of its state; a task that began
  without state has a new life. On a channel to a consumer it has the life of the channel instead,
  because the consumer does not go back with the task.
- A channel, the path of a stream to other tasks or to one consumer, is made when something is first
  put on it, or when an earlier owner of the task has left rows for it.
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

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from s4node import tokens
from s4node.app.app import App
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
from s4node.net.ingress.producer_lane import AT_ONCE, Effects
from s4node.net.wire import frame as wire
from s4node.offsets.cuts import NO_CUTS, Cuts
from s4node.offsets.task_claims import now_ms
from s4node.runtime.loop.pipeline import Pipeline
from s4node.runtime.outputs.channels import (
    Channel,
    Side,
    Unclaimed,
    channel_name,
    headers_of_time,
    is_near,
    parts_of,
    sent_before,
)
from s4node.runtime.outputs.fast_exchange import FastExchange
from s4node.runtime.outputs.output_streams import OutputStreams, outbox_options
from s4node.runtime.outputs.refusals import Refusals
from s4node.runtime.task.task import Task
from s4node.stages.executors import REMOTE_SENDER, SENDER
from s4node.stages.stage import Overflow
from s4node.state import task_state
from s4node.state.job import LIFE
from s4node.state.rows import OUTBOX

log = get_logger("s4node.runtime")


@dataclass(eq=False, repr=False)
class _Spilled:
    """The overflow of a task's own stage, saved as rows of the task."""

    _exchange: Exchange
    _stream: str
    _partition: int

    def append(self, batch: EventBatch) -> None:
        self._exchange.spill(self._stream, self._partition).append(batch)

    def pop(self) -> EventBatch | None:
        return self._exchange.spill(self._stream, self._partition).pop()

    def clear(self) -> None:
        if self._exchange.has_put(self._stream, self._partition):  # else the next owner has it
            self._exchange.spill(self._stream, self._partition).clear()


class Exchange(FastExchange):
    """The channels between the tasks of ``app``, whose job is ``name``.

    ``effects`` get the tasks that have to commit; ``emitter`` leads to other tasks.
    """

    joins = True

    def __init__(
        self,
        app: App,
        config: Config,
        pipeline: Pipeline,
        outputs: OutputStreams,
        *,
        name: str,
        incarnation: str,
        partitions: int,
        effects: Effects,
        emitter: Emitter,
        refusals: Refusals,
        cuts: Cuts,
    ) -> None:
        super().__init__(pipeline, outputs)
        self.emitter = emitter
        self._app = app
        self._config = config
        outputs.on_consumer = self.consumer
        pipeline.overflow_of = self._overflow_of
        self._name = name
        self._incarnation = incarnation
        self._partitions = partitions
        self._effects = effects
        self._refusals = refusals
        self._cuts = cuts
        self._sides: dict[int, Side] = {}
        self._owners: tuple[Sequence[str], int, str] = ((), -1, "")

    # -- tasks -------------------------------------------------------------------------------

    def add_task(self, task: Task, state: task_state.TaskState, fence: int, rows: Rows) -> None:
        """Open the part of a claimed task, with the rows that its previous owner left."""
        side = self._sides[task.partition] = Side(task, state, fence)
        task.processor.times.puts.on_passed_on = partial(self._tell_times, side)
        for name, mine in channels_of(rows).items():
            stream, consumer = parts_of(name)
            if stream not in self._app.streams:
                raise S4Error(
                    f"task {task.name!r} has unacknowledged events on stream {stream!r}, which the "
                    f"app no longer has; run the version of the app that has it until it stops in "
                    f"order"
                )
            if not consumer or consumer in self._outputs.senders[stream].emitters:
                self._channel(side, name, mine)
            else:
                side.unclaimed[name] = Unclaimed(mine, *weight_of(mine))

    def roll_back(self, task: Task, state: task_state.TaskState) -> None:
        """Roll back to the last commit for ``task``, which replaces a failed one.

        Events that the failed one has put since that commit never leave.
        """
        side = self._sides[task.partition]
        side.task, side.state, side.own_rows = task, state, False
        side.moved, side.left, side.sent = 0, {}, sent_before(state)
        task.processor.times.puts.on_passed_on = partial(self._tell_times, side)
        if side.life and not state.meta(LIFE):
            state.set_meta(LIFE, side.life)
        rows = channels_of(state.rows(OUTBOX))
        for name in [name for name, channel in side.channels.items() if channel.replaces]:
            self._close(side, name, side.channels.pop(name))
            self._channel(side, name, rows.get(name, ()))
        for name in rows.keys() - side.unclaimed.keys():
            channel, life = side.channels.get(name), life_of(rows[name])
            if channel is None or channel.release.rows.life != life:
                side.remember(name, life, numbered(name, rows[name]))
                forget(state.changes, rows[name])  # the consumer has gone since they were written
        for name, channel in side.channels.items():
            saved = channel.release.rows.roll_back(state.changes, rows.get(name, ()))
            channel.release.roll_back(saved)
            self._tell(channel)
            _give_back(side, name, channel, saved)

    def revoke(self, task: Task) -> None:
        """Close the part of a task that another container takes over from its last commit."""
        side = self._sides.pop(task.partition)
        for name, channel in side.channels.items():
            channel.release.rows.unsent.tell_lost()
            self._tell(channel)
            self._close(side, name, channel)

    def return_own_events(self, task: Task) -> None:
        """Give a restored task the events that it had put for itself."""
        side = self._sides.get(task.partition)
        if side is None:
            return
        left, side.left = side.left, {}
        for stream, events in left.items():
            task.backlog.offer(EventBatch(stream, task.partition, events, weight=footprint(events)))
        for stream, channel in side.channels.items():
            if spilled := channel.own.spill.events:
                overflow = self._overflow_of(stream, task.partition)
                task.backlog.restore_overflow(stream, overflow, spilled)

    def _overflow_of(self, stream: str, partition: int) -> Overflow:
        return _Spilled(self, stream, partition)

    def has_put(self, stream: str, partition: int) -> bool:
        """Return True if a task of ours has a channel for a stream."""
        side = self._sides.get(partition)
        return side is not None and stream in side.channels

    def spill(self, stream: str, partition: int) -> Spill:
        """The spilled events of a task's channel, which is made if there is none."""
        side = self._sides[partition]
        return (side.channels.get(stream) or self._channel(side, stream)).own.spill

    def _channel(self, side: Side, name: str, rows: Rows = ()) -> Channel:
        """Make a channel; its name is a stream, or a stream and a consumer."""
        task, state = side.task, side.state
        stream, consumer = parts_of(name)
        if not side.life:
            side.life = tokens.later()
            state.set_meta(LIFE, side.life)
        life = life_of(rows) if rows else tokens.later() if consumer else ""
        cluster = self._config[settings.CLUSTER_NAME]
        fence: wire.Headers = {wire.FENCE: side.fence}
        outbox = Outbox(
            stream,
            f"{wire.TASK}{cluster}/{self._name}/{task.name}#{life or side.life}",
            key=self._app.streams[stream].key if consumer else None,
            committed=True,
            **outbox_options(self._app.streams[stream], self._config, saved=True),
        )
        settlement = ReceiversCommits(
            outbox,
            name,
            state.changes,
            life,
            home=task.partition,
            cuts=NO_CUTS if consumer else self._cuts,
        )
        release = WithCommit(
            settlement,
            partitions=0 if consumer else self._partitions,
            bound=task_state.CHANGES_BYTES,
            clock=now_ms,
        )
        headers = fence if consumer else {**fence, wire.CLUSTER: cluster}
        headers = {**headers, **headers_of_time(task, self._app.streams[stream], outbox)}
        routes = Routes(outbox, self._incarnation, headers=headers)
        emitter = self.emitter
        if consumer:
            emitter = self._outputs.senders[stream].emitters[consumer]
        own = OwnEvents(self._app.name, task.partition, settlement, state.database)
        channel = side.channels[name] = Channel(release, own, routes, emitter)
        saved = settlement.restore(rows)
        release.restore(saved)
        _give_back(side, name, channel, saved)
        if release.holds:  # with what an earlier owner has left
            self._pipeline.watch(stream, (task.partition, name), release)
        emitter.add(routes)
        owners, epoch, origin = self._owners
        if owners and not consumer:
            emitter.assign(routes, owners, epoch, origin)
        return channel

    def consumer(self, stream: str, consumer: str) -> None:
        """Add or remove the channels to a consumer that has come or gone."""
        here = consumer in self._outputs.senders[stream].emitters
        name = channel_name(stream, consumer)
        for side in self._sides.values():
            if here and name in side.unclaimed:
                self._channel(side, name, side.unclaimed.pop(name).rows)
            elif not here and name in side.channels:
                lanes = side.channels[name].outbox.lanes
                self._forget_channel(side, name, sum(lane.released for lane in lanes))

    def _forget_channel(self, side: Side, name: str, sent: int) -> None:
        """Nothing more is sent on a channel, and its rows go with the next commit."""
        channel = side.channels.pop(name)
        side.remember(name, channel.release.rows.life, sent)
        self._close(side, name, channel)
        for row in (*channel.release.all_rows(), *channel.own.rows()):
            side.state.changes.put(row, None)

    def _close(self, side: Side, name: str, channel: Channel) -> None:
        """Stop sending on a channel; nothing waits for it any more."""
        channel.emitter.remove(channel.routes)
        self._pipeline.unwatch(parts_of(name)[0], (side.task.partition, name))

    def insist(self) -> None:
        self.emitter.insist()

    def assign(self, owners: Sequence[str], epoch: int, origin: str = "") -> None:
        """Route the channels to the current owners of partitions."""
        self._owners = owners, epoch, origin
        for routes in list(self.emitter.carried):
            self.emitter.assign(routes, owners, epoch, origin)

    # -- events on their way -----------------------------------------------------------------

    def put(
        self, home: int, stream: str, partition: int, events: Sequence[Any], sender: str = ""
    ) -> None:
        """Take events that the task of ``home`` has put for another task, or has from a producer,
        ``sender``."""
        side = self._sides[home]
        channel = side.channels.get(stream) or self._channel(side, stream)
        channel.release.put(events, partition, sender=sender)
        self._after_put(side, stream, stream, channel)

    def send(self, task: Task, stream: str, events: Sequence[Any]) -> None:
        """Take events that a task has put on an output stream."""
        side = self._sides[task.partition]
        sender = self._outputs.senders[stream]
        sender.passed_by(len(events))
        for consumer in sender.consumers:
            name = channel_name(stream, consumer)
            channel = side.channels.get(name) or self._channel(side, name)
            channel.release.put(events)
            self._after_put(side, stream, name, channel)

    def _after_put(self, side: Side, stream: str, name: str, channel: Channel) -> None:
        """After a put: hold the streams that lead to a full channel, and have a commit soon."""
        if channel.release.holds:
            self._pipeline.watch(stream, (side.task.partition, name), channel.release)
            self._effects.commits[side.task.partition] = AT_ONCE  # nothing leaves before that
        elif channel.release.unreleased:
            self._effects.commit_within(side.task.partition, 0.0)

    @property
    def idle(self) -> bool:
        """True if all events between tasks are committed by their receivers."""
        return all(one.release.idle for one in self._all() if one.emitter is self.emitter)

    @property
    def moving(self) -> bool:
        """True if events wait or are being sent that an owner could take now."""
        return any(
            is_near(channel, lane)
            for channel in self._all()
            if not channel.release.idle
            for lane in channel.outbox.lanes
            if lane.frames or lane.pending
        )

    def _all(self) -> Iterator[Channel]:
        for side in self._sides.values():
            yield from side.channels.values()

    def heard(self) -> None:
        """Handle news of receivers; raises S4Error if one does not accept a stream."""
        for side in self._sides.values():
            if self.awaited(side.task):  # events put before the stream's partitions were known
                self._effects.commit_within(side.task.partition, 0.0)
            if not side.committing:
                self._replace_channels(side)
        for channel in self._all():
            outbox = channel.outbox
            if channel.release.rows.shrank:
                channel.release.rows.shrank = False
                passing("outbox.settled")
            self._tell(channel)
            if outbox.error and not outbox.repartitioned:
                raise EventError(f"stream {outbox.stream!r}: {outbox.error}")

    def _replace_channels(self, side: Side) -> None:
        """Route events again for consumers that have a new number of partitions.

        No commit may be running, because its events have to be in its rows.
        """
        for name, channel in list(side.channels.items()):
            outbox = channel.outbox
            if not outbox.repartitioned:
                continue
            events = channel.release.rows.uncounted_events()
            log.warning("a consumer has a new number of partitions; events that it has not "
                        "counted are routed again", stream=outbox.stream, task=side.task.name,
                        consumer=parts_of(name)[1], events=len(events))  # fmt: skip
            self._forget_channel(side, name, sum(lane.upto for lane in outbox.lanes))
            new = self._channel(side, name)
            new.replaces = True
            new.release.put(events)
            self._effects.commits[side.task.partition] = AT_ONCE

    def _tell(self, channel: Channel) -> None:
        """Report events that were refused, or could not be encoded."""
        stage = SENDER if channel.emitter is self.emitter else REMOTE_SENDER
        for refusal in channel.release.take_refusals():
            self._refusals.report(stage, refusal)

    def statistics(self) -> Iterator[OutboxStatistics]:
        """The unacknowledged events of each channel."""
        for side in self._sides.values():
            task = side.task.name
            for name, channel in side.channels.items():
                stream, consumer = parts_of(name)
                events, size = channel.outbox.unsettled, channel.outbox.unsettled_bytes
                yield OutboxStatistics(task, stream, consumer, events, size)
            for name, (_, depth, size) in side.unclaimed.items():
                stream, consumer = parts_of(name)
                yield OutboxStatistics(task, stream, consumer, depth, size)

    # -- commits -----------------------------------------------------------------------------

    def keeps(self, task: Task) -> bool:
        """Return True if a task has any channel, so that its commits have rows of it."""
        return bool(self._channels(task))

    def awaited(self, task: Task) -> bool:
        """Return True if events that a task has put wait for a commit of the task."""
        return any(channel.release.unreleased for channel in self._channels(task))

    def _channels(self, task: Task) -> Collection[Channel]:
        side = self._sides.get(task.partition)
        return () if side is None else side.channels.values()

    def changed(self, task: Task) -> bool:
        """Return True if a commit of a task would write rows of its channels."""
        side = self._sides.get(task.partition)
        if side is None:
            return False
        if any(one.release.changed or one.own.spill.tails for one in side.channels.values()):
            return True
        return _moved(task) != side.moved and (side.own_rows or bool(task.own_events()))

    def begin_commit(self, task: Task) -> None:
        """Begin a commit of a task, or its cut, which covers all events put until now."""
        side = self._sides.get(task.partition)
        if side is None:
            return
        own = task.own_events()
        for stream, events in side.left.items():
            own[stream] = [*events, *own.get(stream, ())]
        for stream in own.keys() - side.channels.keys():
            self._channel(side, stream)
        for stream, time in task.processor.times.puts.times.items():  # also if it has put nothing
            sender = self._outputs.senders.get(stream)
            names = [channel_name(stream, one) for one in sender.consumers] if sender else [stream]
            for name in names if sender or self._partitions > 1 else ():
                channel = side.channels.get(name) or self._channel(side, name)
                channel.outbox.latest.coming = time
                channel.outbox.latest.coming_idle = stream in task.processor.times.puts.idle
        for stream, channel in side.channels.items():
            channel.release.begin_commit()
            channel.own.begin_commit([*own.get(stream, ()), *channel.outbox.unrouted])
        side.committing = True
        side.own_rows = bool(own)
        side.moved = _moved(task)

    def _tell_times(self, side: Side, streams: Iterable[str]) -> None:
        """Tell others how far a task is in inputs of which it has nothing to send on.

        No commit has to come first: after a crash it has nothing of these events for them, either.
        """
        for stream in streams:
            channel = side.channels.get(stream)
            if channel is None or channel.release.unreleased or channel.release.leaving:
                continue
            channel.outbox.latest.nothing_sent_before(now_ms() / 1000)
            channel.outbox.latest.reach_at_once(side.task.processor.times.puts.times[stream])
            channel.emitter.wake()

    def encode(self, task: Task) -> bool:
        """Encode a part of the events of the commit; return False if none are left."""
        return any(one.release.encode() or one.own.encode() for one in self._channels(task))

    def leaves(self, task: Task) -> bool:
        """Return True if events may leave when the current commit is written."""
        return any(channel.release.leaving for channel in self._channels(task))

    def end_commit(self, task: Task, *, written: bool) -> None:
        side = self._sides.get(task.partition)
        if side is None:
            return
        side.committing = False
        self._replace_channels(side)
        if not written:
            side.moved = -1
        leaving = written and self.leaves(task)
        if leaving:
            passing("outbox.release")
        for channel in side.channels.values():
            channel.release.end_commit(written=written)
            channel.replaces = channel.replaces and not written
            self._tell(channel)  # no answer will come if nothing is left to send
        for channel in side.channels.values() if written else ():
            channel.emitter.wake()  # also to tell a time
        if leaving:
            passing("outbox.released")


def _give_back(side: Side, name: str, channel: Channel, saved: SavedRows) -> None:
    """Give events that are in no frame back to the task, or to the outbox of a consumer."""
    own = channel.own.restore(saved, trio.current_time())
    if parts_of(name)[1]:
        channel.release.wait_again(own)
    elif own:
        side.left[name] = own
        side.own_rows = True


def _moved(task: Task) -> int:
    """A number that changes whenever the waiting own events of a task may have changed."""
    return task.processed + task.sent
