"""The producers that the files of a log remember: the roster of a stream of the log.

Rules
- Producers are recorded in the files of the stream's partitions; their lanes resume from there. A
  new life that sends nothing again resumes after every part of its frames in any partition: if the
  file of its own lane was lost or is an older copy, new events must not get the numbers of those
  parts.
- A task, and a program with an id of its own, is forgotten only on request: the producer ends its
  stream, ``s4 log forget`` names it, or a later life of the task has another id.
- Any other producer is also forgotten after an absence of ``expiry`` seconds, counted while the
  node runs.
- The number of known producers is bounded. Names under which single frames were appended make room,
  the oldest first; beyond that a new producer is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile

from msgspec.structs import replace

from s4node.errors import LimitReached
from s4node.log.partition.ledger import part_of, unfit
from s4node.log.streams import LogPartition
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.ingress.producer_lane import ProducerLane
from s4node.net.ingress.producer_life import task_of
from s4node.net.ingress.roster import MAX_KEPT, Roster
from s4node.net.wire import frame as wire
from s4node.offsets.checkpoint import Closings, SavedProducer

_LOOKED_AT = 64
"""The producers that are looked at to make room for one."""


def _nothing(_: object) -> None: ...


@dataclass(eq=False)
class LogRows(Roster):
    """The producers of a stream of the log; at most ``most`` are known."""

    partitions: Sequence[LogPartition]
    most: int = MAX_KEPT
    _admission: StreamAdmission = field(init=False)
    _seen: dict[str, float] = field(default_factory=dict)  # producers that expire, last seen when
    _own: set[str] = field(default_factory=set)
    _batches: dict[str, float] = field(default_factory=dict)  # as _seen
    _now: float = 0.0
    _looked: bool = False  # for absent producers

    def begin(self, admission: StreamAdmission) -> None:
        self._admission = admission
        for partition in self.partitions:
            for name, row in partition.producers.items():
                self._on_producer(name, row)
            partition.on_producer = self._on_producer

    @property
    def known(self) -> int:
        return len(self._seen) + len(self._own)

    def check_room(self, producer: str) -> None:
        """Raise LimitReached if a producer is not known, and there is no room for it."""
        if producer.startswith(wire.BATCH):
            if producer in self._batches or len(self._batches) < wire.MAX_BATCHES:
                return
        elif self.known < self.most or producer in self._own or producer in self._seen:
            return
        oldest = islice(self._seen, _LOOKED_AT)
        single = next((name for name in oldest if self._is_single(name)), None)
        if single is not None:
            self.forget_rows(single)
            return
        raise LimitReached(
            f"stream {self._admission.stream!r}: the log knows {self.most} producers, and cannot "
            f"know more; forget those that will not return (s4 log forget), and give no producer "
            f"id to programs that run once"
        )

    def problem(self, hello: wire.Hello) -> str:
        if problem := unfit(hello.peer):
            return f"stream {self._admission.stream!r}: {problem}"
        self.check_room(hello.peer)
        return ""

    def in_layout(self, said: wire.Hello) -> tuple[wire.Hello, Closings, str]:
        if not said.headers.get(wire.NEW) or said.positions:
            return said, (), ""
        behind: dict[int, int] = {}  # the number after all split frames, by the lane they came by
        for each in self.partitions:
            for lane, number in each.parts(said.peer).items():
                behind[lane] = max(behind.get(lane, 0), number)
        positions = tuple(wire.Position(*each) for each in behind.items())
        return replace(said, positions=positions), (), ""

    def greeted(self, lane: ProducerLane, *, changed: bool) -> None:  # noqa: ARG002
        self._now = lane.seen
        self._note(lane.producer, lane.own_id)

    def ids_of(self, producer: str) -> list[str]:
        """The known ids of a producer; the id of a task may lack its last part."""
        known = self._own | self._seen.keys()
        return [each for each in known if producer in (each, task_of(each)[0])]

    def is_here(self, producer: str) -> bool:
        """Return True if the producer is connected, or some of its events are not settled."""
        return any(
            lane.connection is not None or not self._admission.is_over(lane)
            for lane in self._admission.lanes_of(producer)
        )

    def forget_known(self, producer: str, done: Callable[[object], None]) -> list[int]:
        """Forget a producer that is not connected; returns the partitions that knew it. Each calls
        ``done`` with its answer."""
        for lane in self._admission.lanes_of(producer):
            self._admission.remove(lane)
        self._own.discard(producer)
        self._seen.pop(producer, None)
        self._batches.pop(producer, None)
        return [each.number for each in self.partitions if each.forget(producer, done)]

    def forget_absent(self, now: float, expiry: float) -> None:
        self._now = now
        if not self._looked:  # absence counts from the start of the node
            self._seen, self._looked = dict.fromkeys(self._seen, now), True
            self._batches = dict.fromkeys(self._batches, now)
        for producer, _ in self._admission.lanes:
            self._note(producer, producer in self._own)
        for producer, seen in list(self._seen.items()):
            if seen < now - expiry:
                self.forget_rows(producer)
        old = now - max(expiry, wire.BATCH_SECONDS)
        for producer in list(takewhile(lambda name: self._batches[name] < old, self._batches)):
            self.forget_rows(producer)

    def _note(self, producer: str, own_id: bool) -> None:
        """Record that the producer is known and was active now."""
        self._seen.pop(producer, None)
        if producer.startswith(wire.BATCH):
            self._batches.pop(producer, None)
            self._batches[producer] = self._now
        elif own_id:
            self._own.add(producer)
        else:
            self._own.discard(producer)
            self._seen[producer] = self._now

    def _on_producer(self, name: str, row: SavedProducer) -> None:
        part = part_of(name)
        producer = name if part is None else part[0]
        self._note(producer, row.own_id)
        self._admission.learn(producer)

    def _is_single(self, producer: str) -> bool:
        """Return True if the producer is known only by append queries."""
        rows = [each.producers.get(producer) for each in self.partitions]
        single = all(row is None or not row.life for row in rows)
        return single and not self._admission.lanes_of(producer)

    def row(self, producer: str, partition: int) -> SavedProducer | None:
        return self.partitions[partition].producers.get(producer)

    def forget_rows(self, producer: str) -> None:
        self.forget_known(producer, _nothing)
