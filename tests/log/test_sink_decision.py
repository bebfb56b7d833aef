"""Decide and carry: whatever is run again and wherever the node dies, a batch is one attempt's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s4node.errors import SinkError
from s4node.log.partition.ledger import Incoming, Ledger
from s4node.log.sink.decision import Attempt, Carrying, Sink, decide, is_done, tally
from s4node.net.wire.frame import Section


class Died(Exception):  # noqa: N818
    """The node died between two writes."""


@dataclass
class Row:
    start: int
    first: int
    count: int
    producer: str
    number: int
    events: list[str]


@dataclass
class Partition:
    """A partition as its file keeps it: a real ledger, and the rows that it planned."""

    ledger: Ledger = field(default_factory=Ledger)
    rows: list[Row] = field(default_factory=list)

    def append(self, producer: str, first: int, events: list[str]) -> None:
        frame = Incoming(producer, first, len(events), b"", (Section(1, len(events), 1),))
        plan = self.ledger.plan([frame], 0)
        self.ledger.apply(plan)
        for entry in plan.entries:
            self.rows.append(Row(entry.start, entry.first, len(events), producer, first, events))

    @property
    def events(self) -> list[str]:
        return [each for row in self.rows for each in row.events[row.start - row.first :]]


class Node:
    """The disk of a log with one target and a spool for each sink."""

    def __init__(self, partitions: int) -> None:
        self.target = [Partition() for _ in range(partitions)]
        self.spools: dict[str, list[Partition]] = {}
        self.sinks: dict[str, Sink] = {}
        self.left = -1

    def write(self) -> None:
        """Die instead of this write if it is its turn."""
        if self.left == 0:
            raise Died
        self.left -= 1

    def spool(self, sink: str) -> list[Partition]:
        return self.spools.setdefault(sink, [Partition() for _ in self.target])

    def publish(self, id_: str, batch: int, attempts: list[Attempt]) -> None:
        sink = self.sinks.get(id_) or Sink(id_, "clicks")
        if sink.open is not None:
            sink = self.carry(sink)
        if is_done(sink, batch):
            return
        spool = self.spool(id_)
        numbers = {each for attempt in attempts for each in attempt.counts}
        staged = {number: tally(spool[number].rows) for number in numbers}
        first = {}
        for number in numbers:
            known = self.target[number].ledger.producers.get(f"sink:{id_}")
            first[number] = 0 if known is None else known.number
        decided = decide(sink, batch, attempts, staged, first, 0)
        self.write()
        self.sinks[id_] = decided
        self.carry(decided)

    def carry(self, sink: Sink) -> Sink:
        assert sink.open is not None
        for number in sink.open.first:
            carrying = Carrying(sink, number)
            for row, first in carrying.carry(self.spool(sink.id)[number].rows):
                self.write()
                self.target[number].append(f"sink:{sink.id}", first, row.events)
            carrying.check()
        self.write()
        done = self.sinks[sink.id] = sink._replace(open=None)
        for partition in self.spool(sink.id) if self.left != 0 else ():  # or it stays for a while
            partition.rows.clear()
        return done

    def roll_forward(self) -> None:
        for sink in list(self.sinks.values()):
            if sink.open is not None:
                self.carry(sink)


PARTITIONS = 2
attempts_of = st.lists(  # of a task: in which partitions its frames are, how long, and what is lost
    st.tuples(
        st.lists(
            st.tuples(st.integers(0, PARTITIONS - 1), st.integers(1, 3), st.booleans()), max_size=4
        ),
        st.booleans(),  # whether it ends
    ),
    min_size=1,
    max_size=3,
)
plays = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.lists(attempts_of, min_size=1, max_size=3),  # tasks
        st.lists(st.integers(0, 6), max_size=3),  # writes until the node dies, in each try
        st.booleans(),  # whether the driver dies after it, and the batch is run again
    ),
    max_size=6,
)


@settings(max_examples=400, deadline=None)
@given(plays)
def test_each_batch_is_one_attempt_s_rows_of_each_task(plays: list) -> None:
    node = Node(PARTITIONS)
    fresh = iter(range(1_000_000))
    batches = {"a": 0, "b": 0}
    allowed: dict[tuple[str, int], list[list[list[str]]]] = {}

    def run(sink: str, tasks: list, batch: int) -> list[Attempt]:
        """Run all attempts of the tasks; the last one that ended is the one that Spark names."""
        named = []
        whole: list[list[str]] = [[] for _ in range(PARTITIONS)]
        for number, attempts in enumerate(tasks):
            last = len(attempts) - 1
            for index, (frames, ends) in enumerate(attempts):
                ends = ends or index == last
                producer = f"{batch}/{number}/{index}-{next(fresh)}"
                numbers = Counter()
                rows: list[list[str]] = [[] for _ in range(PARTITIONS)]
                for partition, count, repeated in frames:
                    events = [f"{sink}{batch}:{producer}:{next(fresh)}" for _ in range(count)]
                    place = node.spool(sink)[partition]
                    place.append(producer, numbers[partition], events)
                    if repeated:  # its answer was lost; with another frame's end
                        events = [*events, f"{sink}{batch}:{producer}:{next(fresh)}"]
                        place.append(producer, numbers[partition], events)
                    numbers[partition] += len(events)
                    rows[partition] += events
                if ends:
                    chosen = Attempt(producer, dict(numbers)), rows
            named.append(chosen[0])
            for partition in range(PARTITIONS):
                whole[partition] += chosen[1][partition]
        allowed.setdefault((sink, batch), []).append([sorted(each) for each in whole])
        return named

    for sink, tasks, deaths, again in plays:
        batch = batches[sink]
        named = run(sink, tasks, batch)
        for left in deaths:
            node.left = left
            try:
                node.publish(sink, batch, named)
            except Died:
                node.left = -1
                if again:  # the driver died as well, and runs the batch again, with other rows
                    named = run(sink, tasks, batch)
                if left % 2:
                    node.roll_forward()
        node.left = -1
        node.publish(sink, batch, named)
        node.publish(sink, batch, run(sink, tasks, batch) if again else named)
        batches[sink] += 1

    found: dict[tuple[str, int], list[list[str]]] = {}
    for number, partition in enumerate(node.target):
        for event in partition.events:
            key = event[0], int(event[1 : event.index(":")])
            found.setdefault(key, [[] for _ in range(PARTITIONS)])[number].append(event)
    for key, versions in allowed.items():
        visible = found.get(key, [[] for _ in range(PARTITIONS)])
        assert [sorted(each) for each in visible] in versions
        for partition in range(PARTITIONS):  # in the order in which an attempt has written them
            for producer in {event.split(":")[1] for event in visible[partition]}:
                mine = [int(e.split(":")[2]) for e in visible[partition] if f":{producer}:" in e]
                assert mine == sorted(mine)


def staged(*rows: tuple[str, int, int]) -> list[Row]:
    at, found = 0, []
    for producer, number, count in rows:
        found.append(Row(at, at, count, producer, number, []))
        at += count
    return found


def test_an_attempt_with_a_hole_or_of_fewer_events_than_it_says_is_not_published() -> None:
    tallies = {0: tally(staged(("x", 0, 3), ("y", 0, 2), ("x", 4, 3)))}
    assert tallies == {0: {"x": 3, "y": 2}}
    with pytest.raises(SinkError, match="3 of 7 events of attempt 'x' are staged"):
        decide(Sink("s", "clicks"), 0, [Attempt("x", {0: 7})], tallies, {}, 0)
    with pytest.raises(SinkError, match="0 of 1 events of attempt 'z' are staged"):
        decide(Sink("s", "clicks"), 0, [Attempt("z", {1: 1})], tallies, {}, 0)


def test_no_other_batch_is_decided_while_one_is_carried() -> None:
    tallies = {0: {"x": 3}}
    decided = decide(Sink("s", "clicks"), 0, [Attempt("x", {0: 3})], tallies, {}, 0)
    assert (decided.batch, decided.events, is_done(decided, 0)) == (0, 3, True)
    with pytest.raises(SinkError, match="batch 0 of sink 's' is still being carried"):
        decide(decided, 1, [Attempt("x", {0: 3})], tallies, {}, 0)


def test_a_decided_batch_whose_rows_are_gone_says_so() -> None:
    decided = decide(Sink("s", "clicks"), 0, [Attempt("x", {0: 3})], {0: {"x": 3}}, {}, 0)
    carrying = Carrying(decided, 0)
    assert len(list(carrying.carry(staged(("x", 0, 2))))) == 1
    with pytest.raises(SinkError, match=r"1 of its events are missing .* s4 log sinks --forget s"):
        carrying.check()
