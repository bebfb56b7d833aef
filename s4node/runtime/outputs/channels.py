"""The channels of a task: the path of each of its streams to other tasks, or to one consumer.

Rules
- The name of a channel is its stream, or its stream and the consumer.
- A channel to an absent consumer that an earlier owner has left is unclaimed until the consumer
  comes.
- The rows of a channel to a consumer have the numbers of its life. When they go, the total stays as
  a fact of the task, also if the task goes back to a savepoint; so totals only rise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from s4node.app.stream import InputStream, Stream
from s4node.net.egress.emitter import Emitter
from s4node.net.egress.lane import Lane
from s4node.net.egress.outbox import Outbox
from s4node.net.egress.outbox_rows import Rows, channels_of, life_of, numbered
from s4node.net.egress.own_events import OwnEvents
from s4node.net.egress.routes import Routes
from s4node.net.egress.with_commit import WithCommit
from s4node.net.wire import frame as wire
from s4node.runtime.task.task import Task
from s4node.state.job import LIFE, SENT
from s4node.state.rows import OUTBOX
from s4node.state.task_state import TaskState

_TO = "\1"
"""Separates a stream from its consumer in the name of a channel."""

Sent: TypeAlias = tuple[str, int]
"""The latest life of a channel in which anything was sent, and the events in all lives."""

NOTHING_SENT: Sent = ("", 0)


class Side:
    """One task's part: its channels by stream, and what its previous owner left for it."""

    def __init__(self, task: Task, state: TaskState, fence: int) -> None:
        self.task = task
        self.state = state
        self.fence = fence
        self.channels: dict[str, Channel] = {}
        self.unclaimed: dict[str, Unclaimed] = {}  # for consumers that are not there yet
        self.left: dict[str, list[Any]] = {}
        self.own_rows = False
        self.moved = 0  # the value of _moved when the last commit began
        self.committing = False
        self.life: str = state.meta(LIFE) or ""
        self.sent = sent_before(state)

    def remember(self, channel: str, life: str, sent: int) -> None:
        """Remember what was sent in a life of a channel, whose rows go with the next commit."""
        if sent and parts_of(channel)[1]:
            self.sent[channel] = life, self.sent.get(channel, NOTHING_SENT)[1] + sent
            self.state.set_meta(SENT, self.sent)


class Unclaimed(NamedTuple):
    """The rows that an earlier owner left for an absent consumer, and their events and bytes."""

    rows: Rows
    depth: int
    bytes: int


@dataclass(eq=False, repr=False)
class Channel:
    """The path of a task's stream to other tasks, or to one consumer."""

    release: WithCommit
    own: OwnEvents  # in no frame
    routes: Routes
    emitter: Emitter
    replaces: bool = False  # another channel, whose rows are still in the database

    @property
    def outbox(self) -> Outbox:
        return self.release.box


def channel_name(stream: str, consumer: str) -> str:
    """The name of a task's channel to a consumer of an output stream."""
    return f"{stream}{_TO}{consumer}"


def parts_of(channel: str) -> tuple[str, str]:
    """The stream and the consumer in a channel's name; no consumer between tasks of the app."""
    stream, _, consumer = channel.partition(_TO)
    return stream, consumer


def sent_before(state: TaskState) -> dict[str, Sent]:
    """What a task has sent in lives of channels that are over, as of its last commit."""
    return {name: (life, total) for name, (life, total) in (state.meta(SENT) or {}).items()}


def sent_by(state: TaskState) -> dict[str, Sent]:
    """What a task has sent to consumers, by channel, as of its last commit."""
    found = sent_before(state)
    for name, rows in to_consumers(state.rows(OUTBOX)).items():
        life, total = found.get(name, NOTHING_SENT)
        sent = numbered(name, rows)
        found[name] = life_of(rows) if sent else life, total + sent
    return found


def to_consumers(rows: Rows) -> dict[str, list[tuple[bytes, bytes]]]:
    """The channels to consumers among a task's rows."""
    return {name: found for name, found in channels_of(rows).items() if parts_of(name)[1]}


def is_near(channel: Channel, lane: Lane) -> bool:
    """Return True if the owner of a lane is connected, or may connect soon."""
    return lane.open or channel.emitter.is_near(channel.routes.route_of(lane))


def headers_of_time(task: Task, stream: Stream, outbox: Outbox) -> wire.Headers:
    """The headers of a hello that say who tells the time of a stream's events.

    Without one the task reports it with its commits. What it puts from streams without a time tells
    it by itself.
    """
    puts, untimed = task.processor.times.puts.times, task.processor.times.puts.untimed
    if isinstance(stream, InputStream) or (stream.name in puts and stream.name not in untimed):
        return {}
    outbox.latest.by_commits = False
    outbox.latest.field = stream.time.field if stream.time else None  # before there is an answer
    return {wire.UNTIMED: True}
