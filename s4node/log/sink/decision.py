"""The decision about a batch of a sink: which staged attempts count, and their numbers. Pure.

Rules
- An attempt is a producer of its own in the sink's spool. Only attempts that the batch names count,
  and only if all of their events are in the rows of the spool.
- One row per sink has its last decided batch. That batch and earlier ones are done for ever,
  whichever attempts they name. Once the row is written, the batch will become visible.
- The frames of attempts that count are carried in the order of the spool, under one producer per
  sink. The decision has the first number in each partition, so nothing is appended twice if they
  are carried again.
- While a batch is being carried, no other of its sink is decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from s4node.errors import SinkError
from s4node.net.wire import frame as wire


class Attempt(msgspec.Struct, array_like=True, frozen=True):
    """One attempt of a task: its producer in the spool, and its events by partition."""

    producer: wire.Name
    counts: dict[wire.Small, wire.Number]


class NamedAttempts:
    """The attempts of a batch that a commit names in parts."""

    def __init__(self) -> None:
        self._commit = ""
        self._attempts: list[Attempt] = []

    def add(self, commit: str, first: int, part: Sequence[Attempt]) -> Sequence[Attempt]:
        """All attempts that ``commit`` has named so far, with a part from number ``first`` on.

        A part that does not follow the others, because the node was started again, is left out.
        """
        if commit != self._commit:  # the driver of the other one has died
            self._commit, self._attempts = commit, []
        if first <= len(self._attempts):
            self._attempts[first:] = part
        return self._attempts


class Decision(msgspec.Struct, array_like=True, frozen=True):
    """A decided batch that may not be carried yet: ``first`` has the number of the first event of
    each partition."""

    attempts: tuple[Attempt, ...]
    first: dict[int, int]

    def events(self, partition: int) -> int:
        return sum(attempt.counts.get(partition, 0) for attempt in self.attempts)

    @property
    def total(self) -> int:
        return sum(sum(attempt.counts.values()) for attempt in self.attempts)


class Sink(NamedTuple):
    """A sink's row: its last decided batch, -1 if there is none; ``open`` while it is carried."""

    id: str
    stream: str
    batch: int = -1
    events: int = 0
    total: int = 0
    decided_ms: int = 0
    open: Decision | None = None


class StagedFrame(Protocol):
    """A row of the spool: the body begins at the offset ``first``; what is before ``start`` is
    repeated."""

    @property
    def start(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def producer(self) -> str: ...
    @property
    def number(self) -> int: ...


F = TypeVar("F", bound=StagedFrame)


def is_done(sink: Sink, batch: int) -> bool:
    """Return True if the batch was decided before. Raises SinkError for a negative number."""
    if batch < 0:
        raise SinkError(f"{batch} is not the number of a batch; count from 0")
    return batch <= sink.batch


def tally(frames: Iterable[StagedFrame]) -> dict[str, int]:
    """The staged events of each producer in a partition, counted from number 0 up to the first
    hole."""
    found: dict[str, int] = {}
    for frame in frames:
        repeated = frame.start - frame.first
        if frame.number + repeated == found.get(frame.producer, 0):
            found[frame.producer] = frame.number + frame.count
    return found


def decide(
    sink: Sink,
    batch: int,
    attempts: Sequence[Attempt],
    staged: Mapping[int, Mapping[str, int]],
    first: Mapping[int, int],
    now_ms: int,
) -> Sink:
    """The sink's row once this batch is decided.

    ``staged`` has the tally of each partition, ``first`` the next number of the sink's producer
    there. Raises SinkError unless all events of the attempts are staged, and if another batch is
    still being carried.
    """
    if sink.open is not None:
        raise SinkError(f"batch {sink.batch} of sink {sink.id!r} is still being carried; ask again")
    if len({attempt.producer for attempt in attempts}) < len(attempts):
        raise SinkError(f"batch {batch} of sink {sink.id!r} names an attempt twice; write it again")
    for attempt in attempts:
        for partition, count in attempt.counts.items():
            found = staged.get(partition, {}).get(attempt.producer, 0)
            if found != count:
                raise SinkError(
                    f"batch {batch} of sink {sink.id!r} cannot be published: {found} of {count} "
                    f"events of attempt {attempt.producer!r} are staged in "
                    f"{sink.stream}[{partition}]; they were dropped, or lost in a power cut. Write "
                    f"the batch again"
                )
    decision = Decision(
        tuple(attempts),
        {
            partition: first.get(partition, 0)
            for partition in sorted({each for attempt in attempts for each in attempt.counts})
        },
    )
    events = decision.total
    return sink._replace(
        batch=batch,
        events=events,
        total=sink.total + events,
        decided_ms=now_ms,
        open=decision,
    )


class Carrying:
    """The carrying of a decision in one partition, from the spool's first row on."""

    def __init__(self, sink: Sink, partition: int) -> None:
        assert sink.open is not None
        self._sink = sink
        self._partition = partition
        self._decision = sink.open
        self._next = self._decision.first.get(partition, 0)
        self._end = self._next + self._decision.events(partition)
        self._at = {
            attempt.producer: 0
            for attempt in self._decision.attempts
            if attempt.counts.get(partition)
        }

    @property
    def complete(self) -> bool:
        return self._next == self._end

    def carry(self, frames: Iterable[F]) -> Iterator[tuple[F, int]]:
        """The frames of attempts that count, each with the number of its first event.

        Repeated events keep their numbers, so they are appended once.
        """
        for frame in frames:
            at = self._at.get(frame.producer)
            repeated = frame.start - frame.first
            if at is None or frame.number + repeated != at:
                continue
            self._at[frame.producer] = frame.number + frame.count
            yield frame, self._next - repeated
            self._next += frame.count - repeated

    def check(self) -> None:
        """Raise SinkError unless all events have passed, once the spool is at its end."""
        if not self.complete:
            raise SinkError(
                f"batch {self._sink.batch} of sink {self._sink.id!r} is decided, and "
                f"{self._end - self._next} of its events are missing from the spool of "
                f"{self._sink.stream}[{self._partition}]: a power cut lost them, or its file was "
                f"replaced. Put the file back and restart the node, or give the batch up: "
                f"s4 log sinks --forget {self._sink.id}"
            )
