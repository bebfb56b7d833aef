"""What the tasks of a container send each other, those of the other members, and other apps.

Rules
- It is there where tasks keep what they do. What a task puts for another one, wherever that is,
  leaves with its commit and by a socket; also to tasks of our own container, so that there is one
  way. What it puts for itself waits in its own stage, and is saved where it waits at a commit.
- A task is a producer of its own: its name is that of the task, and of the life of its state, which
  is another one where somebody has begun without any.
- A way is made when something is first put on it, or has been by an earlier owner of its task.
- What waits beyond a bound for others to commit it holds the streams that lead there, unless they
  feed themselves.
- An output stream has a way to each of its consumers. One that comes later gets what is put from
  then on; the way to one that has gone is forgotten. When that comes again it may know numbers of
  before, so the way to it is made anew as another producer. So is the way to one that has another
  number of partitions than before, for it has begun anew: what waits for it is routed again.
- What tasks put for others waits for their commits. So does what a commit held before anybody knew
  its partitions, once they are known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import trio

from s4node import tokens
from s4node.app.app import App
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import EventError, S4Error
from s4node.events.event import EventBatch, footprint
from s4node.failpoints import passing
from s4node.logger import get_logger
from s4node.net.egress.emitter import Emitter
from s4node.net.egress.lane import Lane
from s4node.net.egress.outbox_rows import Rows, forget, life_of, ways_of, weight_of
from s4node.net.egress.routes import Routes
from s4node.net.egress.transactional_outbox import TransactionalOutbox
from s4node.net.wire import frame as wire
from s4node.offsets.cuts import Cuts
from s4node.offsets.task_claims import now_ms
from s4node.runtime.loop.pipeline import Pipeline
from s4node.runtime.outputs.output_streams import OutputStreams, outbox_options
from s4node.runtime.outputs.refusals import Refusals
from s4node.runtime.task.statistics import OutboxStatistics
from s4node.runtime.task.task import Task
from s4node.stages.executors import REMOTE_SENDER, SENDER
from s4node.stages.stage import Overflow
from s4node.state.rows import OUTBOX
from s4node.state.task_state import TaskState

log = get_logger("s4node.runtime")

_LIFE = "life"
_TO = "\1"
"""Between a stream and its consumer, in the name of a way."""

_MOMENT = 0.5
"""Seconds that it may take to connect to an owner."""


class _Side:
    """One task's part: its ways by stream, and what its predecessor had left for it."""

    def __init__(self, task: Task, state: TaskState, fence: int) -> None:
        self.task = task
        self.state = state
        self.fence = fence
        self.ways: dict[str, Way] = {}
        self.unclaimed: dict[str, Unclaimed] = {}  # of ways to consumers that are not there yet
        self.left: dict[str, list[Any]] = {}
        self.own_rows = False
        self.moved = 0  # events that the task had processed and put when a commit began
        self.committing = False
        self.life: str = state.meta(_LIFE) or ""


class Unclaimed(NamedTuple):
    """What an earlier owner has left for a consumer that is not there: rows, with so many events
    and bytes."""

    rows: Rows
    depth: int
    bytes: int


@dataclass(eq=False, repr=False)
class Way:
    """What a task has put on a stream for others, and what leads there."""

    outbox: TransactionalOutbox
    routes: Routes
    emitter: Emitter
    replaces: bool = False  # another one, of which the database still has the rows


@dataclass(eq=False, repr=False)
class _Spilled:
    """What finds no room in a task's own stage, as rows of the task."""

    _exchange: Exchange
    _stream: str
    _partition: int

    def append(self, batch: EventBatch) -> None:
        """Put a batch behind the others."""
        self._exchange.own_outbox(self._stream, self._partition).spill.append(batch)

    def pop(self) -> EventBatch | None:
        """The oldest events, or None."""
        return self._exchange.own_outbox(self._stream, self._partition).spill.pop()

    def clear(self) -> None:
        """Forget all."""
        if self._exchange.has_put(self._stream, self._partition):  # else it is the next owner's
            self._exchange.own_outbox(self._stream, self._partition).spill.clear()


class Exchange:
    """The ways between the tasks of ``app``, which is kept under ``name``.

    ``wake`` is told of tasks that are to commit. ``on_news`` is called when a receiver was heard.
    """

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
        wake: Callable[[Task], None],
        on_news: Callable[[], None],
        refusals: Refusals,
        cuts: Cuts,
    ) -> None:
        self.emitter = Emitter(queue_size=config[settings.SENDER_WORK_QUEUE_SIZE], on_news=on_news)
        self._app = app
        self._config = config
        self._pipeline = pipeline
        self._outputs = outputs
        outputs.on_consumer = self.consumer
        pipeline.overflow_of = self._overflow_of
        self._name = name
        self._incarnation = incarnation
        self._partitions = partitions
        self._wake = wake
        self._refusals = refusals
        self._cuts = cuts
        self._sides: dict[int, _Side] = {}
        self._owners: tuple[Sequence[str], int, str] = ((), -1, "")

    # -- tasks -------------------------------------------------------------------------------

    def open(self, task: Task, state: TaskState, fence: int, rows: Rows) -> None:
        """Go on for a task that has been claimed, with the rows that its predecessor left."""
        side = self._sides[task.partition] = _Side(task, state, fence)
        for name, mine in ways_of(rows).items():
            stream, _, consumer = name.partition(_TO)
            if stream not in self._app.streams:
                raise S4Error(
                    f"task {task.name!r} has sent events on stream {stream!r} that nobody has "
                    f"taken, and the app has no such stream now; run the version of the app that "
                    f"has it until it stops in order"
                )
            if not consumer or consumer in self._outputs.senders[stream].emitters:
                self._way(side, name, mine)
            else:
                side.unclaimed[name] = Unclaimed(mine, *weight_of(mine))

    def go_back(self, task: Task, state: TaskState) -> None:
        """``task`` takes the place of one that has failed: what that had put since its last commit
        never leaves."""
        side = self._sides[task.partition]
        side.task, side.state, side.own_rows = task, state, False
        side.moved, side.left = 0, {}
        if side.life and not state.meta(_LIFE):
            state.set_meta(_LIFE, side.life)
        rows = ways_of(state.rows(OUTBOX))
        for name in [name for name, way in side.ways.items() if way.replaces]:
            self._close(side, name, side.ways.pop(name))
            self._way(side, name, rows.get(name, ()))
        for stream, way in side.ways.items():
            own = way.outbox.go_back(state.changes, rows.get(stream, ()), trio.current_time())
            self._tell(way)
            if own:
                side.left[stream] = own
                side.own_rows = True
        for name in rows.keys() - side.ways.keys() - side.unclaimed.keys():
            forget(state.changes, rows[name])  # its consumer has gone since they were written

    def leave(self, task: Task) -> None:
        """Another container goes on for a task, with the rows of its last commit."""
        side = self._sides.pop(task.partition)
        for name, way in side.ways.items():
            way.outbox.unsent.leave()
            self._tell(way)
            self._close(side, name, way)

    def resume(self, task: Task) -> None:
        """Give a task that has started what it had put for itself."""
        side = self._sides.get(task.partition)
        if side is None:
            return
        left, side.left = side.left, {}
        for stream, events in left.items():
            task.backlog.offer(EventBatch(stream, task.partition, events, weight=footprint(events)))
        for stream, way in side.ways.items():
            if way.outbox.spill.events:
                overflow = self._overflow_of(stream, task.partition)
                task.backlog.resume(stream, overflow, way.outbox.spill.events)

    def _overflow_of(self, stream: str, partition: int) -> Overflow:
        """Where a task keeps what its own stage of a stream has no room for."""
        return _Spilled(self, stream, partition)

    def has_put(self, stream: str, partition: int) -> bool:
        """Whether a task of ours has an outbox for a stream."""
        side = self._sides.get(partition)
        return side is not None and stream in side.ways

    def own_outbox(self, stream: str, partition: int) -> TransactionalOutbox:
        """That of a task for a stream, made if there is none."""
        side = self._sides[partition]
        return (side.ways.get(stream) or self._way(side, stream)).outbox

    def _way(self, side: _Side, name: str, rows: Rows = ()) -> Way:
        """Make the way of this name, which is that of a stream, or of one and a consumer."""
        task, state = side.task, side.state
        stream, _, consumer = name.partition(_TO)
        if not side.life:
            side.life = tokens.later()
            state.set_meta(_LIFE, side.life)
        life = life_of(rows) if rows else tokens.later() if consumer else ""
        lives = f"{side.life}.{life}" if life else side.life
        cluster = self._config[settings.CLUSTER_NAME]
        fence = {wire.FENCE: side.fence}
        outbox = TransactionalOutbox(
            stream,
            f"{wire.TASK}{cluster}/{self._name}/{task.name}#{lives}",
            state.changes,
            name,
            partitions=0 if consumer else self._partitions,
            home=task.partition,
            key=self._app.streams[stream].key if consumer else None,
            bound=self._config[settings.STATE_CHANGES_BYTES],
            clock=now_ms,
            read=state.database.get,
            life=life,
            app=self._app.name,
            ask_for_cut=_other_job if consumer else partial(self._cuts.request, task.partition),
            **outbox_options(self._app.streams[stream], self._config),
        )
        headers = fence if consumer else {**fence, wire.CLUSTER: cluster}
        routes = Routes(outbox, self._incarnation, headers=headers)
        emitter = self.emitter
        if consumer:
            emitter = self._outputs.senders[stream].emitters[consumer]
        if not consumer:
            outbox.cut = self._cuts.made(task.partition)
        own = outbox.restore(rows, trio.current_time())
        if own:
            side.left[stream] = own
            side.own_rows = True
        way = side.ways[name] = Way(outbox, routes, emitter)
        emitter.add(routes)
        owners, epoch, origin = self._owners
        if owners and not consumer:
            emitter.assign(routes, owners, epoch, origin)
        return way

    def consumer(self, stream: str, consumer: str) -> None:
        """An app consumes a stream from now on, or not any more."""
        name = f"{stream}{_TO}{consumer}"
        here = consumer in self._outputs.senders[stream].emitters
        for side in self._sides.values():
            if here and name in side.unclaimed:
                self._way(side, name, side.unclaimed.pop(name).rows)
            elif not here and name in side.ways:
                way = side.ways.pop(name)
                self._close(side, name, way)
                for row in way.outbox.rows():
                    side.state.changes.put(row, None)

    def _close(self, side: _Side, name: str, way: Way) -> None:
        """Nothing more is sent on a way, and nobody waits for it."""
        way.emitter.remove(way.routes)
        self._pipeline.forget(name.partition(_TO)[0], (side.task.partition, name))

    def assign(self, owners: Sequence[str], epoch: int, origin: str = "") -> None:
        """Lead the ways to where the partitions are now."""
        self._owners = owners, epoch, origin
        for routes in list(self.emitter.carried):
            self.emitter.assign(routes, owners, epoch, origin)

    # -- events on their way -----------------------------------------------------------------

    def put(self, task: Task, stream: str, partition: int, events: Sequence[Any]) -> None:
        """Take what a task has put for another one."""
        side = self._sides[task.partition]
        way = side.ways.get(stream) or self._way(side, stream)
        way.outbox.extend_lane(partition, events)
        self._look(side, stream, stream, way)

    def send(self, task: Task, stream: str, events: Sequence[Any]) -> None:
        """Take what a task has put on an output stream."""
        side = self._sides[task.partition]
        sender = self._outputs.senders[stream]
        sender.passed_by(len(events))
        for consumer in sender.consumers:
            name = f"{stream}{_TO}{consumer}"
            way = side.ways.get(name) or self._way(side, name)
            way.outbox.extend(events)
            self._look(side, stream, name, way)

    def _look(self, side: _Side, stream: str, name: str, way: Way) -> None:
        """Something was put on a way: hold who fills it up, and have it leave."""
        if way.outbox.holds:
            self._pipeline.watch(stream, (side.task.partition, name), way.outbox)
            side.task.want_commit()  # nothing of it leaves before
            self._wake(side.task)
        elif way.outbox.unreleased and side.task.await_commit():
            self._wake(side.task)

    def full(self, task: Task, stream: str) -> bool:
        """Whether more of a stream waits to be committed by others than there should be."""
        way = self._sides[task.partition].ways.get(stream)
        return way is not None and way.outbox.holds

    @property
    def idle(self) -> bool:
        """Whether all that tasks have put for each other is committed where it went."""
        return all(way.outbox.idle for way in self._all() if way.emitter is self.emitter)

    @property
    def moving(self) -> bool:
        """Whether something waits or is under way that somebody could take now."""
        return any(
            _is_near(way, lane)
            for way in self._all()
            if not way.outbox.idle
            for lane in way.outbox.lanes
            if lane.kept or lane.pending
        )

    def _all(self) -> Iterator[Way]:
        for side in self._sides.values():
            yield from side.ways.values()

    def heard(self) -> None:
        """A receiver has ruled, come or gone; raises S4Error if one does not take a stream."""
        for side in self._sides.values():
            if self.awaited(side.task) and side.task.await_commit():
                self._wake(side.task)  # it was put before the partitions of the stream were known
            if not side.committing:
                self._replace_ways(side)
        for way in self._all():
            outbox = way.outbox
            if outbox.settled:
                outbox.settled = False
                passing("outbox.settled")
            self._tell(way)
            if outbox.error and not outbox.repartitioned:
                raise EventError(f"stream {outbox.stream!r}: {outbox.error}")

    def _replace_ways(self, side: _Side) -> None:
        """Route what waits for consumers that have another number of partitions now. No commit may
        be under way: what that one holds has to be in its rows."""
        for name, way in list(side.ways.items()):
            outbox = way.outbox
            if not outbox.repartitioned:
                continue
            events = way.outbox.unsettled_events()
            log.warning("a consumer has begun anew with another number of partitions; what it has "
                        "not committed is routed again", stream=outbox.stream, task=side.task.name,
                        consumer=name.partition(_TO)[2], events=len(events))  # fmt: skip
            self._close(side, name, side.ways.pop(name))
            for row in way.outbox.rows():
                side.state.changes.put(row, None)
            new = self._way(side, name)
            new.replaces = True
            new.outbox.extend(events)
            side.task.want_commit()
            self._wake(side.task)

    def _tell(self, way: Way) -> None:
        """Tell of events that were refused, or could not be encoded."""
        stage = SENDER if way.emitter is self.emitter else REMOTE_SENDER
        for refusal in way.outbox.take_refusals():
            self._refusals.take(stage, refusal)

    def statistics(self) -> Iterator[OutboxStatistics]:
        """What has been put for others, and is not settled."""
        for side in self._sides.values():
            task = side.task.name
            for name, way in side.ways.items():
                stream, _, consumer = name.partition(_TO)
                events, size = way.outbox.unsettled, way.outbox.unsettled_bytes
                yield OutboxStatistics(task, stream, consumer, events, size)
            for name, (_, depth, size) in side.unclaimed.items():
                stream, _, consumer = name.partition(_TO)
                yield OutboxStatistics(task, stream, consumer, depth, size)

    # -- commits -----------------------------------------------------------------------------

    def keeps(self, task: Task) -> bool:
        """Whether there has been anything of this in a commit of a task."""
        return bool(self._ways(task))

    def awaited(self, task: Task) -> bool:
        """Whether something that a task has put waits for a commit of it, to leave."""
        return any(way.outbox.unreleased for way in self._ways(task))

    def _ways(self, task: Task) -> Collection[Way]:
        side = self._sides.get(task.partition)
        return () if side is None else side.ways.values()

    def changed(self, task: Task) -> bool:
        """Whether a commit of a task would write anything of this."""
        side = self._sides.get(task.partition)
        if side is None:
            return False
        if any(way.outbox.changed for way in side.ways.values()):
            return True
        return _moved(task) != side.moved and (side.own_rows or bool(task.own()))

    def begin(self, task: Task) -> None:
        """A commit of a task begins, or its cut: all that it has put until now is part of it."""
        side = self._sides.get(task.partition)
        if side is None:
            return
        own = task.own()
        for stream, events in side.left.items():
            own[stream] = [*events, *own.get(stream, ())]
        for stream in own.keys() - side.ways.keys():
            self._way(side, stream)
        for stream, way in side.ways.items():
            if way.emitter is self.emitter:
                way.outbox.cut = self._cuts.made(task.partition)
            way.outbox.begin(own.get(stream, ()))
        side.committing = True
        side.own_rows = bool(own)
        side.moved = _moved(task)

    def encode(self, task: Task) -> bool:
        """Encode a part of what belongs to the commit; False if nothing of it is left."""
        return any(way.outbox.encode() for way in self._ways(task))

    def leaves(self, task: Task) -> bool:
        """Whether something may leave when the commit under way is written."""
        return any(way.outbox.leaving for way in self._ways(task))

    def end(self, task: Task, *, written: bool) -> None:
        """The commit has been written, or has failed."""
        side = self._sides.get(task.partition)
        if side is None:
            return
        side.committing = False
        self._replace_ways(side)
        if not written:
            side.moved = -1
        leaves = written and self.leaves(task)
        if leaves:
            passing("outbox.release")
        for way in side.ways.values():
            way.outbox.end(written=written)
            if written:
                way.replaces = False
                way.emitter.wake()
            self._tell(way)  # nobody answers where nothing is left to send
        if leaves:
            passing("outbox.released")


def _other_job(_: int) -> bool:
    """Ask for no cut: what another app's tasks say bears no number of ours."""
    return False


def _moved(task: Task) -> int:
    """Another number whenever what waits of the task's own may be another."""
    return task.processed + task.sent


def _is_near(way: Way, lane: Lane) -> bool:
    """Whether the owner of a lane is there, or may come in a moment."""
    route = way.routes.of(lane)
    if lane.open or route is None:
        return lane.open
    link = way.emitter.links.get(route.address)
    return link is not None and link.away < _MOMENT
