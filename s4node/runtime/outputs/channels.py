"""A channel: the path of a stream's events from their owner to other tasks, or to one consumer.

Theory of operation

A channel is an *outbox*, which numbers events and has a lane for each partition; a *release*, which
says when events may leave; *routes* to the owners of partitions; and the *emitter* that has the
connections. A lane is three numbers:

    upto <= released <= next number

Events from ``next number`` on are not in a frame yet. Those from ``released`` on are in a frame
that may not leave. Those below ``upto`` have their verdict. All between ``upto`` and ``released``
leave as the receiver gives credit, and again after a lost connection or to another owner, until
their verdict arrives. A receiver takes in a number once. So an event counts once, if its number
never stands for another event.

A container without state cannot promise more than its life: its events leave ``AtOnce`` or
``ByExecutor``. A task that keeps state lives on after a crash. It goes back to its last commit, and
processes again what came since, perhaps in another order. An example, if its events left at once:

    A counts e, puts x as number 12        x leaves, B commits it
    A is killed before its commit
    A reads f before e, puts y as 12       B has 12, and drops y: y is lost

So its events leave ``WithCommit``. The frame is a row of the commit that counts e, and so is the
next number. It leaves once the commit is written, and is always the same bytes under its number:

    A counts e, puts x                     commit 6 has e, and x as number 12
    x leaves, A is killed                  the next owner of A reads the frame, and sends it again
    B has 12, and drops the second one     x counts once

The row stays until the receiver has *committed* the event, not until it has arrived:

    x arrives at B, B is killed            A still has the row, and sends it to the next owner of B
    B commits x, the verdict is 13         the next commit of A deletes the row

If A is killed before that commit, it sends x again, and B drops it. So no order of crashes loses an
event or counts it twice, and no two tasks have to commit together.

Rules
- Its owner is the container, or a task that keeps state.
- The name of a task's channel is its stream, or its stream and the consumer.
- The rows of a channel to a consumer have the numbers of its life. When they go, the total stays as
  a fact of the task, also if the task goes back to a savepoint; so totals only rise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from s4node.app.stream import OutputStream, Stream
from s4node.config import settings
from s4node.config.config import Config
from s4node.net.egress.emitter import Emitter
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.outbox_rows import Rows, channels_of, life_of, numbered
from s4node.net.egress.own_events import OwnEvents
from s4node.net.egress.release import AtOnce
from s4node.net.egress.routes import Routes
from s4node.net.egress.with_commit import WithCommit
from s4node.runtime.outputs.refusals import Refusals
from s4node.stages.executors import REMOTE_SENDER, SENDER
from s4node.state.job import SENT
from s4node.state.rows import OUTBOX
from s4node.state.task_state import TaskState

MAX_FRAME_EVENTS = 2048
"""The most events of a frame that is sent: larger ones cost less per event, and delay other streams
for longer."""

_TO = "\1"
"""Separates a stream from its consumer in the name of a channel."""

R = TypeVar("R", bound=AtOnce)

Sent: TypeAlias = tuple[str, int]
"""The latest life of a channel in which anything was sent, and the events in all lives."""

NOTHING_SENT: Sent = ("", 0)


class Unclaimed(NamedTuple):
    """The rows that an earlier owner left for an absent consumer, and their events and bytes."""

    rows: Rows
    depth: int
    bytes: int


@dataclass(eq=False, repr=False, slots=True)
class Channel(Generic[R]):
    """The path of a stream to other tasks of the app, or to one ``consumer``."""

    consumer: str
    release: R
    routes: Routes
    emitter: Emitter

    @property
    def outbox(self) -> Outbox:
        return self.release.box

    @property
    def stage(self) -> str:
        """The name of the stage by which the events leave."""
        return REMOTE_SENDER if self.consumer else SENDER

    def open(self) -> None:
        self.emitter.add(self.routes)

    def close(self) -> None:
        self.emitter.remove(self.routes)

    def report_refusals(self, refusals: Refusals) -> None:
        """Report events that were refused, or could not be encoded."""
        for refusal in self.release.take_refusals():
            refusals.report(self.stage, refusal)

    @property
    def moving(self) -> bool:
        """True if events wait or are being sent that an owner could take now."""
        return any(
            lane.open or self.emitter.is_near(self.routes.route_of(lane))
            for lane in self.outbox.lanes
            if lane.frames or lane.pending
        )


@dataclass(eq=False, repr=False, slots=True)
class TaskChannel(Channel[WithCommit]):
    own: OwnEvents  # in no frame
    replaces: bool = False  # another channel, whose rows are still in the database


def outbox_options(
    stream: Stream, config: Config, *, saved: bool = False, checked: bool = False
) -> dict[str, Any]:
    """The options of outboxes for a stream: types, limits of frames, what is checked.

    Its frames are ``saved`` with commits, or sent at once. Events of an input that were only read
    have been ``checked`` before.
    """
    return {
        "types": [kind.cls for kind in stream.types],
        "max_frame_events": MAX_FRAME_EVENTS,
        "max_frame_bytes": config[settings.SENDER_MAX_FRAME_BYTES],
        # a member reads at once what comes on an inner stream, and a check takes 80 ns an event
        "checked": isinstance(stream, OutputStream) or (saved and not checked),
        "committed": saved,
    }


def channel_name(stream: str, consumer: str) -> str:
    return f"{stream}{_TO}{consumer}"


def parts_of(channel: str) -> tuple[str, str]:
    """The stream and the consumer in a channel's name; no consumer between tasks of the app."""
    stream, _, consumer = channel.partition(_TO)
    return stream, consumer


def sent_before(state: TaskState) -> dict[str, Sent]:
    """The events that a task has sent in lives of channels that are over, as of its last commit."""
    return {name: (life, total) for name, (life, total) in (state.meta(SENT) or {}).items()}


def sent_by(state: TaskState) -> dict[str, Sent]:
    """The events that a task has sent to consumers, by channel, as of its last commit."""
    found = sent_before(state)
    for name, rows in to_consumers(state.rows(OUTBOX)).items():
        life, total = found.get(name, NOTHING_SENT)
        sent = numbered(name, rows)
        found[name] = life_of(rows) if sent else life, total + sent
    return found


def to_consumers(rows: Rows) -> dict[str, list[tuple[bytes, bytes]]]:
    return {name: found for name, found in channels_of(rows).items() if parts_of(name)[1]}
