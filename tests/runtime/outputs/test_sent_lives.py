"""What going back to savepoints says of a consumer, beside what a real admission takes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest

from s4node import Event, clocks, tokens
from s4node.events.schema import EventType
from s4node.net.egress.outbox_rows import Rows, life_of, sort_rows
from s4node.net.egress.routes import NodeRoute, Routes
from s4node.net.egress.transactional_outbox import TransactionalOutbox
from s4node.net.ingress.durable_admission import DurableAdmission
from s4node.net.wire import frame as wire
from s4node.net.wire.body import FrameDecoder
from s4node.offsets.producer_offsets import SavedProducer
from s4node.runtime.outputs.channels import FORMER, channel_name, former_first
from s4node.runtime.outputs.sent_lives import (
    Sent,
    SentLives,
    ended_in,
    merged,
    rows_anew,
    sent_on,
    sent_since,
    to_consumers,
    with_waiting,
)
from s4node.stages.stage import Stage
from s4node.state.rows import OUTBOX, Changes, task_row

PARTITIONS = 2
LIVES = 4
MAIN = channel_name("done", "end")
_PREFIX = len(task_row(OUTBOX, b""))


class Done(Event):
    user: str
    number: int


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_what_comes_again_is_what_is_said_however_often_a_task_goes_back(
    seed: int, in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MAX_LIVES", LIVES)
    random, world = Random(seed), World()
    with seconds_that_pass():
        for _ in range(12):
            for _ in range(random.randrange(12)):
                random.choice(world.moves)(random)
            if not world.saved or random.random() < 0.5:
                world.save()
            world.go_back(random.choice(world.saved), in_order=in_order)


# -- set-up ---------------------------------------------------------------------------------------


@contextmanager
def seconds_that_pass() -> Iterator[None]:
    """Each look at the clock is a second later."""
    now = count(1_000_000)
    with clocks.replaced(clocks.steady, lambda: float(next(now))):
        yield


class Consumer:
    """An app of two partitions: its admission, what it has committed, and what it has got."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, SavedProducer]] = {0: {}, 1: {}}
        self.got: Counter[int] = Counter()
        self.numbers: defaultdict[str, list[int]] = defaultdict(lambda: [0] * PARTITIONS)
        self.there = True
        self.start()

    def start(self) -> None:
        """Start from what is committed."""
        self.pending: list[int] = []
        self.connection = object()
        self.admission = DurableAdmission(
            "done",
            {each: Stage(100_000) for each in range(PARTITIONS)},
            lambda _: None,
            partitions=PARTITIONS,
        )
        for partition, rows in self.rows.items():
            self.admission.restore(partition, rows, 0.0)

    def commit(self) -> None:
        """Commit all that has come in."""
        self.admission.tick(0.0, 1e9)
        self.admission._forget_ended()
        for partition, rows in self.rows.items():
            taken = self.admission.snapshot(partition)
            for lane, row in taken.lanes.items():
                rows[lane.producer] = row
                self.numbers[lane.producer][partition] = max(
                    row.number, self.numbers[lane.producer][partition]
                )
            for producer in taken.forgotten:
                rows.pop(producer, None)
            self.admission.commit_written(partition, taken)
        self.got.update(self.pending)
        self.pending.clear()


@dataclass
class Saved:
    """A committed state of the task: its rows, what it has sent before, and how many events it has
    put; and what was true of the consumer then."""

    rows: dict[bytes, bytes] = field(default_factory=dict)
    before: SentLives = field(default_factory=dict)
    put: int = 0
    total: int = 0  # of arrivals, once all has arrived that was under way
    lost: int = 0  # of events that were put and never arrive, as their life was over

    @property
    def outbox(self) -> Rows:
        return [(key[_PREFIX:], value) for key, value in sorted(self.rows.items())]

    @property
    def sent(self) -> SentLives:
        return merged(sent_on(to_consumers(self.outbox)), self.before)


class World:
    """A task that puts events for a consumer; both die, and the task goes back to savepoints."""

    def __init__(self) -> None:
        self.consumer = Consumer()
        self.kept = Saved()  # the last commit
        self.saved: list[Saved] = []
        self.lost = 0
        self.unsure = 0  # of events that were not acknowledged when the task went back
        self.fence = 0
        self.extra = 0  # arrivals beyond one for each event
        self.start()
        self.moves = [
            *[self.put, self.commit, self.exchange, self.commit_consumer] * 3,
            self.die,
            self.lose_consumer,
            self.consumer_goes,
            self.consumer_comes,
        ]

    # -- the task ----------------------------------------------------------------------------

    def start(self, _: Random | None = None) -> None:
        """Start from the last commit."""
        self.fence += 1
        self.number = self.kept.put
        self.changes = Changes()
        self.channels: dict[str, TransactionalOutbox] = {}
        self.routes: dict[str, NodeRoute] = {}
        left = to_consumers(self.kept.outbox)
        for name in former_first(left):
            self.channel(name, left[name])

    die = start

    def channel(self, name: str, rows: Rows = ()) -> TransactionalOutbox:
        life = life_of(rows) or tokens.later()
        former = name.endswith(FORMER)
        outbox = self.channels[name] = TransactionalOutbox(
            "done",
            producer(life),
            self.changes,
            name,
            partitions=0,
            key="user",
            types=[Done],
            life=life,
            max_frame_events=3,
            read=self.kept.rows.get,
            former=former,
        )
        outbox.restore(rows)
        headers: wire.Headers = {wire.FENCE: self.fence}
        if former:
            headers[wire.FORMER] = True
        self.routes[name] = Routes(outbox, f"i{self.fence}", headers=headers).to("tcp://end:1")
        return outbox

    def put(self, random: Random) -> None:
        outbox = self.channels.get(MAIN) or self.channel(MAIN)
        many = random.randint(1, 6)
        outbox.extend([event(n) for n in range(self.number, self.number + many)])
        self.number += many

    def commit(self, _: Random | None = None) -> None:
        for outbox in self.channels.values():
            outbox.begin_commit()
        self.changes.begin_commit()
        put = self.number
        for outbox in self.channels.values():
            while outbox.encode():
                pass
        for row, value in zip(*self.changes.rows_to_write(), strict=True):
            if value is None:
                self.kept.rows.pop(row, None)
            else:
                self.kept.rows[row] = value
        self.changes.written()
        self.kept.put = put
        for outbox in self.channels.values():
            outbox.end_commit(written=True)
            outbox.validate()

    # -- between them ------------------------------------------------------------------------

    def exchange(self, _: Random | None = None) -> None:
        """What may leave arrives, and is processed."""
        if not self.consumer.there:
            return
        for name, route in self.routes.items():
            if f"{name}{FORMER}" in self.channels:
                continue
            if not route.opened:
                self.greet(route)
            while frames := route.frames(1 << 20):
                self.arrive(frames)
            route.outbox.validate()

    def greet(self, route: NodeRoute) -> None:
        consumer = self.consumer
        (hello,) = headers_of([route.hello_frame()])
        assert consumer.admission.refusal(hello) == "", "the task cannot go on"
        assert not consumer.admission.unsettled(hello, 0.0)
        positions = consumer.admission.hello(hello, consumer.connection, 0.0)
        types = (EventType(Done).declaration,)
        route.on_hello(
            wire.Hello(
                "end", "e", "done", types, "crc32m:user", PARTITIONS, positions,
                headers={wire.DURABLE: True, wire.LAYOUT: 0},
            )
        )  # fmt: skip
        assert not route.outbox.error

    def arrive(self, frames: list[bytes]) -> None:
        consumer = self.consumer
        decoder = FrameDecoder({EventType(Done).fingerprint: EventType(Done)})
        for frame in wire.read_envelope(wire.envelope(frames), 1 << 20):
            assert isinstance(frame, wire.Frame)
            if not isinstance(frame.header, wire.Data):
                continue
            receipt = consumer.admission.admit(frame.header, consumer.connection, 0.0)
            if receipt is not None:
                events, _ = decoder.decode(frame.header, frame.body)
                first = receipt.first - frame.header.first
                consumer.pending += [each.number for each in events[first:]]
                receipt.done()

    def commit_consumer(self, _: Random | None = None) -> None:
        """The consumer commits, and the task hears of it."""
        self.consumer.commit()
        for route in self.routes.values():
            if route.opened:
                rulings = [
                    lane.ruling()
                    for lane in self.consumer.admission.lanes.values()
                    if lane.producer == route.outbox.producer
                ]
                name = route.outbox.producer
                route.on_verdict(wire.Verdict("done", name, tuple(rulings)))
        self.end_former()

    def lose_consumer(self, _: Random | None = None) -> None:
        """The consumer dies, and starts from its last commit."""
        for route in self.routes.values():
            route.disconnected()
        self.consumer.start()

    def consumer_goes(self, _: Random) -> None:
        self.lose_consumer()
        self.consumer.there = False

    def consumer_comes(self, _: Random) -> None:
        self.consumer.there = True

    def end_former(self) -> None:
        """Have new channels begin after former ones that have nothing to send."""
        for name in former_first(self.channels):
            if name.endswith(FORMER) and f"{name}{FORMER}" not in self.channels:
                outbox = self.channels[name]
                if outbox.idle:
                    del self.channels[name], self.routes[name]
                    sent = sum(lane.upto for lane in outbox.lanes)
                    gone = {("done", "end", outbox.life): Sent(sent, sent)}
                    self.kept.before = merged(self.kept.before, gone)
                    for row in outbox.rows():
                        self.changes.put(row, None)

    # -- savepoints --------------------------------------------------------------------------

    def save(self) -> None:
        """Take one, of the last commit."""
        self.saved.append(saved := deepcopy(self.kept))
        saved.total, saved.lost = saved.put + self.extra, self.lost

    def go_back(self, saved: Saved, *, in_order: bool) -> None:
        """Stop, go back, and see what comes once nothing else is put.

        A task that stops ``in_order`` sends all before.
        """
        if in_order:
            self.settle()
        else:
            self.lose_consumer()
        got, newest = self.consumer.numbers, self.kept.sent
        channels = to_consumers(saved.outbox)
        said = sent_since(channels, saved.sent, newest).total()
        over = ended_in(channels, newest)
        lost = sum(
            max(0, end - got[producer(life_of(channels[name]))][partition])
            for name in over
            for partition, end in sort_rows(name, channels[name]).next_numbers.items()
        )
        waiting = sent_on(to_consumers(self.kept.outbox)).values()
        self.unsure += sum(each.sent - each.acknowledged for each in waiting)
        rows = {task_row(OUTBOX, key): value for key, value in rows_anew(channels, newest)}
        sent = with_waiting(channels, merged(newest, saved.sent))
        self.kept = Saved(rows, sent, saved.put)
        self.start()
        self.settle()
        arrived = self.consumer.got
        since = arrived.total() + lost - saved.total
        assert since <= said <= since + self.unsure
        assert not (in_order and self.unsure)
        assert lost <= sum(over.values())
        self.lost = saved.lost + lost
        assert sum(not arrived[n] for n in range(saved.put)) <= self.lost
        self.extra = arrived.total() - saved.put

    def settle(self) -> None:
        """Have all arrive that was put."""
        self.consumer.there = True
        for _ in range(4 * LIVES):
            self.commit()
            self.exchange()
            self.commit_consumer()
        self.commit()
        assert all(outbox.idle for outbox in self.channels.values())


def event(number: int) -> Done:
    return Done(f"user-{number % 7}", number)


def producer(life: str) -> str:
    return f"~default/shop/Partition 0#{life}"


def headers_of(frames: list[bytes]) -> list[wire.Hello]:
    found = []
    for frame in wire.read_envelope(wire.envelope(frames), 1 << 20):
        assert isinstance(frame, wire.Frame)
        assert isinstance(frame.header, wire.Hello)
        found.append(frame.header)
    return found
