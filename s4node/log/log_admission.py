"""Admission of producers to a stream of the log, and when they are forgotten.

Rules
- Producers are recorded in the files of the stream's partitions; their lanes resume from there.
- A task, and a program with an id of its own, is forgotten only on request: the producer ends its
  stream, ``s4 log forget`` names it, or a later life of the task has another id.
- Any other producer is also forgotten after an absence of ``expiry`` seconds, counted while the
  node runs.
- The number of known producers is bounded. Names under which single frames were appended make room,
  the oldest first; beyond that a new producer is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from s4node.errors import LimitReached
from s4node.log.partition.ledger import part_of, unfit
from s4node.log.streams import LogPartition
from s4node.net.ingress.admission import MAX_KEPT, StreamAdmission
from s4node.net.ingress.producer_life import task_of
from s4node.net.wire import frame as wire
from s4node.offsets.producer_offsets import SavedProducer

_LOOKED_AT = 64
"""The producers that are looked at to make room for one."""


def _nothing(_: object) -> None: ...


@dataclass
class LogAdmission(StreamAdmission):
    """The producers of a stream of the log; at most ``most`` are known."""

    partitions: Sequence[LogPartition] = ()
    most: int = MAX_KEPT
    _seen: dict[str, float] = field(default_factory=dict)  # producers that expire, last seen when
    _own: set[str] = field(default_factory=set)
    _now: float = 0.0

    def __post_init__(self) -> None:
        for partition in self.partitions:
            for name, row in partition.producers.items():
                self._on_producer(name, row)
            partition.on_producer = self._on_producer

    @property
    def known(self) -> int:
        return len(self._seen) + len(self._own)

    def check_room(self, producer: str) -> None:
        """Raise LimitReached if a producer is not known, and there is no room for it."""
        if self.known < self.most or producer in self._own or producer in self._seen:
            return
        oldest = islice(self._seen, _LOOKED_AT)
        single = next((name for name in oldest if self._is_single(name)), None)
        if single is not None:
            self._forget_rows(single)
            return
        raise LimitReached(
            f"stream {self.stream!r}: the log knows {self.most} producers, and cannot know more; "
            f"forget those that will not return (s4 log forget), and give no producer id to "
            f"programs that run once"
        )

    def refusal(self, hello: wire.Hello) -> str:
        """The reason to refuse a producer the stream, or empty. Raises LimitReached."""
        if problem := unfit(hello.peer):
            return f"stream {self.stream!r}: {problem}"
        if problem := super().refusal(hello):
            return problem
        self.check_room(hello.peer)
        return ""

    def hello(
        self, hello: wire.Hello, connection: Hashable, now: float
    ) -> tuple[wire.Position, ...]:
        self._now = now
        positions = super().hello(hello, connection, now)
        self._note(hello.peer, self.lanes[hello.peer, 0].own_id)
        return positions

    def ids_of(self, producer: str) -> list[str]:
        """The known ids of a producer; the id of a task may lack its last word."""
        known = self._own | self._seen.keys()
        return [each for each in known if producer in (each, task_of(each)[0])]

    def is_here(self, producer: str) -> bool:
        """Return True if the producer is connected, or some of its events are not settled."""
        lanes = (self.lanes.get((producer, each)) for each in self.stages)
        return any(
            lane is not None and (lane.connection is not None or not self._is_over(lane))
            for lane in lanes
        )

    def forget_known(self, producer: str, done: Callable[[object], None]) -> list[int]:
        """Forget a producer that is not connected; returns the partitions that knew it. Each calls
        ``done`` with its answer."""
        for partition in self.stages:
            lane = self.lanes.get((producer, partition))
            if lane is not None:
                self._drop(lane)
        self._own.discard(producer)
        self._seen.pop(producer, None)
        return [each.number for each in self.partitions if each.forget(producer, done)]

    def _forget_absent(self, now: float, expiry: float) -> None:
        self._now = now
        if not self._next_look:  # absence counts from the start of the node
            self._seen = dict.fromkeys(self._seen, now)
        for producer, _ in self.lanes:
            self._note(producer, producer in self._own)
        for producer, seen in list(self._seen.items()):
            if seen < now - expiry:
                self._forget_rows(producer)

    def _note(self, producer: str, own_id: bool) -> None:
        """Record that the producer is known and was active now."""
        self._seen.pop(producer, None)
        if own_id:
            self._own.add(producer)
        else:
            self._own.discard(producer)
            self._seen[producer] = self._now

    def _on_producer(self, name: str, row: SavedProducer) -> None:
        part = part_of(name)
        producer = name if part is None else part[0]
        self._note(producer, row.own_id)
        self.learn(producer)

    def _is_single(self, producer: str) -> bool:
        """Return True if the producer is known only by append queries."""
        rows = [each.producers.get(producer) for each in self.partitions]
        return all(row is None or not row.life for row in rows) and not any(
            (producer, partition) in self.lanes for partition in self.stages
        )

    def _row(self, producer: str, partition: int) -> SavedProducer | None:
        return self.partitions[partition].producers.get(producer)

    def _forget_rows(self, producer: str) -> None:
        self.forget_known(producer, _nothing)
