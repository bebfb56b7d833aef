"""Frames of durable streams in which not all is good: a commit at any place covers what is done.

What a commit takes of a producer is the number to go on at. If an event behind it was processed,
that one is processed again after a crash; if one before it was not, it is lost.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.app.stream import InputStream
from s4node.app.stream_task import Callback, Collector, Coordinator, Envelope, TaskApp
from s4node.events.event import Event, EventBatch
from s4node.events.keys import Partitioner
from s4node.events.schema import EventType
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.ingress.commit_rows import CommitRows
from s4node.net.ingress.producer_lane import Effects, ProducerLane
from s4node.net.ingress.settlement import Commits
from s4node.net.wire import frame as wire
from s4node.runtime.inputs.port import InputPort
from s4node.runtime.task.backlog import Backlog
from s4node.runtime.task.gate import Op
from s4node.runtime.task.poison.isolation import is_covered
from s4node.runtime.task.poison.poison_events import Fault, LeftOut, Place, PoisonEvents
from s4node.runtime.task.processor import Mode
from s4node.runtime.task.settings import TaskSettings
from s4node.runtime.task.stream_task_processor import StreamTaskProcessor
from s4node.runtime.task.task import Task, at_once
from s4node.stages.stage import Stage

GOOD, STRAY = "good", "stray"
UNDECODABLE, RAISES, NONE, POISON = "undecodable", "raises", "none", "poison"
REFUSED = (UNDECODABLE, RAISES, NONE, POISON)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("bad", [0, 1, 2, 3])
def test_a_commit_after_an_event_that_does_not_decode_has_its_producer_resume_after_it(
    bad: int, mixed: bool
) -> None:
    node = Node(mixed=mixed)
    kinds = [GOOD] * 4
    kinds[bad] = UNDECODABLE
    node.send(kinds)
    while node.slice(1):  # one ends right before the bad one, one begins right behind it
        pass
    node.end()


@pytest.mark.parametrize("kind", [UNDECODABLE, RAISES, NONE, POISON])
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_bad_events_of_a_mixed_frame_stop_no_others(kind: str, limit: int) -> None:
    node = Node()
    node.send([kind, GOOD, STRAY, kind, GOOD, GOOD, kind, STRAY, GOOD, kind])
    while node.slice(limit):
        pass
    node.end()
    assert (node.processed, node.sent_on) == ({1, 4, 5, 8}, {2, 7})


KINDS = st.lists(st.sampled_from([GOOD, GOOD, GOOD, STRAY, *REFUSED]), min_size=1, max_size=12)


@given(st.lists(KINDS, max_size=4), st.lists(st.integers(1, 5), min_size=1), st.booleans())
def test_wherever_a_slice_ends_a_commit_covers_exactly_what_is_done(
    frames: list[list[str]], limits: list[int], mixed: bool
) -> None:
    node = Node(mixed=mixed)
    for kinds in frames:
        node.send(kinds)
    turn = 0
    while node.slice(limits[turn % len(limits)]):
        turn += 1
    node.end()


@given(
    st.lists(KINDS, max_size=4),
    st.integers(2, 4),
    st.lists(
        st.tuples(st.sampled_from(["step", "land", "commit"]), st.integers(0, 5)), max_size=60
    ),
    st.booleans(),
)
def test_whenever_an_event_is_done_a_commit_covers_exactly_what_is_done(
    frames: list[list[str]], concurrency: int, moves: list[tuple[str, int]], mixed: bool
) -> None:
    node = Node(concurrency, mixed=mixed)
    for kinds in frames:
        node.send(kinds)
    for move, pick in moves:
        if move == "commit":
            node.task.want_commit()
        elif move == "step":
            node.step()
        elif node.user.open:
            node.land(pick)
    while node.step() or node.user.open:
        if node.user.open:
            node.land(0)
    node.task.want_commit()
    while node.step():
        pass
    node.end()
    assert node.commits[-1] == len(node.kinds)


@pytest.mark.parametrize("limit", [2, 4])
def test_a_commit_waits_for_no_event_that_was_not_looked_at_when_it_was_asked_for(
    limit: int,
) -> None:
    node = Node(limit)
    node.send([GOOD] * 50)
    while node.step():
        pass
    node.task.want_commit()
    while not node.commits:
        if not node.step():
            node.land(0)
    assert len(node.processed) <= limit


# -- set-up ---------------------------------------------------------------------------------------


PEER = object()


class Click(Event):
    kind: str
    number: int = 0


CLICK = EventType(Click)
_PARTITIONS = Partitioner(2)
KEYS = {_PARTITIONS.partition_of(str(n)): str(n) for n in range(10)}
"""A key of each partition."""


def key_of(click: Click) -> Any:
    if click.kind == RAISES:
        raise ValueError("no key")
    return {NONE: None, STRAY: KEYS[1]}.get(click.kind, KEYS[0])


class Held:
    """Keeps its callbacks."""

    def __init__(self) -> None:
        self.open: dict[int, Callback] = {}

    def process_async(
        self, envelope: Envelope, _c: Collector, _k: Coordinator, callback: Callback
    ) -> None:
        self.open[envelope.message.number] = callback


class Node:
    """A durable stream in a task of partition 0, and what has become of its producer's events."""

    def __init__(self, concurrency: int = 1, *, mixed: bool = True) -> None:
        self.app = TaskApp("shop", Held)
        self.mixed = mixed
        stream = self.app.create_input_stream("clicks", key=key_of, types=Click)
        assert isinstance(stream, InputStream)
        self.stages = {0: Stage(1000), 1: Stage(1000)}
        self.kinds: list[str] = []
        self.processed: set[int] = set()
        self.sent_on: set[int] = set()
        self.told: dict[int, str] = {}
        self.poison_events = PoisonEvents()
        self.left_out: list[tuple[EventBatch, LeftOut]] = []
        chosen = TaskSettings(concurrency)
        processor = StreamTaskProcessor(
            self.app, 0, lambda: 0.0, name="Partition 0", settings=chosen
        )
        assert isinstance(processor.task, Held)
        self.user, self.processor = processor.task, processor
        self.task = Task(
            self.app,
            0,
            stages={"clicks": self.stages[0]},
            clock=lambda: 0.0,
            processor=processor,
            settings=chosen,
            held=set(),
        )
        self.task.gate.whole = True  # what it does is part of its commits
        self.commits: list[int] = []
        with pytest.raises(StopIteration):  # it has nothing to wait for
            self.task.start().send(None)
        self.backlog: Backlog = self.task.backlog
        self.backlog.on_load = self._loaded
        self.effects = Effects()
        self.roster = CommitRows(Commits(2))
        self.port = InputPort(
            stream,
            self.stages,
            StreamAdmission("clicks", self.stages, self.effects, roster=self.roster),
            self.stages[0].deserializer,
            Partitioner(2),
            "crc32m",
            {},
            {},
        )
        self.port.deserializer.outputs = SimpleNamespace(put=self._pass_on)  # type: ignore[assignment]
        self.port.on_hello(
            wire.Hello("p", "i1", "clicks", (CLICK.declaration,)), PEER, "node", "n1", 0.0
        )

    def send(self, kinds: list[str]) -> None:
        if not self.mixed:
            kinds = [GOOD if kind in (STRAY, RAISES, NONE) else kind for kind in kinds]
        first = len(self.kinds)
        rows: list[Any] = []
        for number, kind in enumerate(kinds, first):
            rows.append([5] if kind == UNDECODABLE else [kind, number])
            if kind == POISON:
                self.poison_events.add(Place(self.lane.origin, number), Fault("it fails"))
        body = msgspec.msgpack.encode(rows)
        sections = (wire.Section(CLICK.fingerprint, len(rows), len(body)),)
        routing = "" if self.mixed else wire.ROUTED
        data = wire.Data("clicks", 0, "p", first, len(rows), sections, routing=routing)
        self.kinds += kinds
        assert self.port.on_data(data, memoryview(body), PEER, 0.0) == ""
        for batch in self.effects.batches:
            self.backlog.offer(batch)
        self.effects.batches.clear()

    @property
    def lane(self) -> ProducerLane:
        return self.port.admission.lanes["p", 0]

    def _loaded(self, batch: EventBatch) -> None:
        self.left_out += [(batch, one) for one in self.poison_events.leave_out(batch)]

    def _pass_on(self, _from: int, _stream: str, to: int, events: list[Click], sender: str) -> None:
        assert (sender, to) == ("p", 1)
        for event in events:
            assert event.kind == STRAY
            assert event.number not in self.sent_on
            self.sent_on.add(event.number)

    def _process(self, number: int) -> None:
        assert number not in self.processed
        assert self.kinds[number] == GOOD
        self.processed.add(number)

    # -- slices

    def slice(self, limit: int) -> bool:
        """Process so many events of the batch at hand; whether there was one."""
        if not self.backlog.choose():
            return False
        self.check()  # it was loaded
        self.check_letters()
        batch = self.backlog.at_hand
        assert batch is not None
        events = batch.events[batch.at : batch.at + limit]
        for event in events:
            self._process(event.number)
        self.backlog.advance(len(events))
        self.check()
        self.check_letters()
        return True

    # -- entries

    def step(self) -> bool:
        """Take one step, as the loop does; whether there was one."""
        if self.task.in_flight is not None:
            self.task.in_flight.end_arrived()
        op = self.task.next_op()
        if op in (Op.NOTHING, Op.DONE):
            return False
        if self.task.mode(op) is Mode.TOGETHER:
            assert self.task.in_flight is not None
            entry = self.task.in_flight.begin_event(0.0)
            assert entry is not None
            self.processor.begin_one(entry, self.task.in_flight.end_soon)
        else:
            self.task.begin_step(op, Mode.LOOP)
            self.task.end_step(
                op, self._commit() if op is Op.COMMIT else at_once(self.task.run(op, 100))
            )
        return True

    def land(self, pick: int) -> None:
        """An event ends."""
        number = sorted(self.user.open)[pick % len(self.user.open)]
        self._process(number)
        self.user.open.pop(number).complete()

    # -- commits

    def _commit(self) -> bool:
        self.check()
        self.check_letters()
        self.commits.append(self.lane.safe)
        return True

    def check(self) -> None:
        """A commit that is taken now covers what is done, no less and no more."""
        row = self.roster.snapshot(0).lanes.get(self.lane.settlement)
        number = 0 if row is None else row.number
        done = self.processed | self.sent_on
        good = {n for n, kind in enumerate(self.kinds) if kind in (GOOD, STRAY)}
        assert done == {n for n in good if n < number}
        unreported = () if row is None else row.unreported
        refused = {n for first, count, *_ in unreported for n in range(first, first + count)}
        bad = {n for n, kind in enumerate(self.kinds) if kind in REFUSED}
        assert {n for n in bad if n < number} <= refused

    def check_letters(self) -> None:
        """The letters of those that such a commit covers leave with it, and no others."""
        for batch, one in self.left_out:
            assert is_covered(batch, one) == (one.place.number < self.lane.safe)

    def end(self) -> None:
        self.check()
        assert self.lane.safe == len(self.kinds)
        assert not self.lane.ruling().exceptions
        self.roster.commit_written(0, self.roster.snapshot(0))
        told = self.lane.ruling().exceptions
        refused = [n for first, count, _ in told for n in range(first, first + count)]
        assert refused == [n for n, kind in enumerate(self.kinds) if kind in REFUSED]
        assert not self.backlog.choose()
