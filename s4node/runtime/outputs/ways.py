"""The ways of a task: the path of each of its streams to other tasks, or to one consumer.

Rules
- The name of a way is its stream, or its stream and the consumer. A former way, which sends what a
  savepoint still had, has a longer name than the way that begins after it.
- A way to an absent consumer that an earlier owner has left is unclaimed until the consumer comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from s4node.net.egress.emitter import Emitter
from s4node.net.egress.lane import Lane
from s4node.net.egress.outbox_rows import Rows
from s4node.net.egress.routes import Routes
from s4node.net.egress.transactional_outbox import TransactionalOutbox
from s4node.runtime.task.task import Task
from s4node.state.job import LIFE
from s4node.state.task_state import TaskState

_TO = "\1"
"""Separates a stream from its consumer in the name of a way."""
FORMER = f"{_TO}former"
"""Ends the name of a former way."""


class Side:
    """One task's part: its ways by stream, and what its previous owner left for it."""

    def __init__(self, task: Task, state: TaskState, fence: int) -> None:
        self.task = task
        self.state = state
        self.fence = fence
        self.ways: dict[str, Way] = {}
        self.unclaimed: dict[str, Unclaimed] = {}  # for consumers that are not there yet
        self.left: dict[str, list[Any]] = {}
        self.own_rows = False
        self.moved = 0  # the value of _moved when the last commit began
        self.committing = False
        self.life: str = state.meta(LIFE) or ""


class Unclaimed(NamedTuple):
    """The rows that an earlier owner left for an absent consumer, and their events and bytes."""

    rows: Rows
    depth: int
    bytes: int


@dataclass(eq=False, repr=False)
class Way:
    """The path of a task's stream to other tasks, or to one consumer."""

    outbox: TransactionalOutbox
    routes: Routes
    emitter: Emitter
    replaces: bool = False  # another way, whose rows are still in the database


def way_name(stream: str, consumer: str) -> str:
    """The name of a task's way to a consumer of an output stream."""
    return f"{stream}{_TO}{consumer}"


def parts_of(way: str) -> tuple[str, str]:
    """The stream and the consumer in a way's name; no consumer between tasks of the app."""
    stream, _, rest = way.partition(_TO)
    return stream, rest.partition(_TO)[0]


def former_first(ways: Iterable[str]) -> list[str]:
    """The names of ways, each after its former one."""
    return sorted(ways, key=lambda name: -name.count(FORMER))


def is_near(way: Way, lane: Lane) -> bool:
    """Return True if the owner of a lane is connected, or may connect soon."""
    return lane.open or way.emitter.is_near(way.routes.route_of(lane))
