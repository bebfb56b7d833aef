"""The promises of a stage: first in, first out, counted in events."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.events.event import EventBatch
from s4node.stages.executors import StageSettings
from s4node.stages.stage import Credit, Gauge, Stage, StageStatistics


def test_statistics_count_events_since_the_start() -> None:
    stage = Stage(5)
    stage.offer(batch(4))
    stage.offer(batch(3))
    stage.poll()
    stage.release(4)
    assert stage.statistics() == StageStatistics(
        "stream", "", None, "block", 3, 0, 5, 1 << 62, 7, 7, {}, 0, 0, 0.0
    )


@given(st.integers(1, 20), st.lists(st.integers(-3, 6), max_size=40))
def test_nothing_is_lost_or_counted_wrongly(capacity: int, moves: list[int]) -> None:
    """Positive: a batch of that size comes; zero: one is taken; negative: so many are worked on."""
    stage = Stage(capacity)
    waiting: deque[EventBatch] = deque()
    depth = admitted = highest = taken = 0
    for move in moves:
        if move > 0:
            waiting.append(batch(move))
            stage.offer(waiting[-1])
            admitted += move
            depth += move
            highest = max(highest, depth)
        elif move == 0:
            expected = waiting.popleft() if waiting else None
            assert stage.poll() is expected
            taken += expected.size if expected else 0
        else:
            worked = min(-move, taken)
            stage.release(worked)
            taken -= worked
            depth -= worked
        told = stage.statistics()
        assert (told.depth, told.admitted, told.highest) == (depth, admitted, highest)
        assert told.in_flight == taken
        assert stage.full == (depth >= capacity)
        stage.validate()


class Received:
    """A receipt, which makes a batch one from outside."""

    by_event = True

    def done(self) -> None: ...

    def complete(self, first: int, end: int) -> None: ...

    def refuse(self, number: int, reason: str) -> None: ...

    def shed(self, number: int, count: int, reason: str) -> None: ...

    def describe(self, number: int) -> str:
        return str(number)


class Frame(EventBatch):
    """A batch that is decoded when it is loaded."""

    __slots__ = ()

    is_frame = True


def outside(size: int) -> EventBatch:
    return EventBatch("clicks", 0, ["event"] * size, Received())


class Overflow:
    """A queue without a bound."""

    def __init__(self) -> None:
        self.batches: deque[EventBatch] = deque()

    def append(self, batch: EventBatch) -> None:
        self.batches.append(batch)

    def pop(self) -> EventBatch | None:
        return self.batches.popleft() if self.batches else None


def test_events_that_the_app_has_put_leave_before_those_from_outside() -> None:
    stage = Stage(10)
    one, two, three = outside(1), batch(1), outside(1)
    for each in (one, two, three):
        stage.offer(each)
    assert [stage.poll() for _ in range(4)] == [two, one, three, None]


def test_a_stream_that_feeds_itself_overflows_at_its_capacity_and_returns_in_order() -> None:
    stage = Stage(5)
    stage.overflow = overflow = Overflow()
    batches = [batch(3) for _ in range(5)]
    for each in batches:
        stage.offer(each)
    assert list(overflow.batches) == batches[2:]
    assert (stage.depth, stage.spilled, stage.full) == (15, 9, True)
    late = outside(1)
    stage.offer(late)
    assert [stage.poll() for _ in range(2)] == batches[:2]
    last = batch(1)
    stage.offer(last)  # behind what is there already
    assert [stage.poll() for _ in range(5)] == [*batches[2:], last, late]
    assert stage.spilled == 0
    stage.validate()


@given(st.lists(st.sampled_from(["frame", "poll", "load", "give back", "clear"]), max_size=40))
def test_a_frame_counts_in_the_deserializer_of_all_stages_until_it_is_decoded_or_dropped(
    moves: list[str],
) -> None:
    gauge = Gauge(StageSettings())
    stages = [Stage(100, number, deserializer=gauge) for number in range(2)]
    for turn, move in enumerate(moves):
        stage = stages[turn % 2]
        if move == "frame":
            stage.offer(Frame("clicks", 0, ["event"] * (turn + 1), Received(), weight=10))
            stage.offer(EventBatch("clicks", 0, ["event"], Received(), weight=10))
        elif move == "poll" and stage.head is None:
            stage.poll()
        elif move == "load" and stage.head is not None and not stage.loaded:
            stage.load()
        elif move == "give back":
            stage.give_back(lambda batch: batch.size % 2 == 0)
            if stage.head is not None:
                stage.give_head_back()
                stage.head = None
        elif move == "clear":
            stage.clear()
        undecoded = [batch for each in stages for batch in each.waiting]
        undecoded += [each.head for each in stages if each.head is not None and not each.loaded]
        frames = [batch for batch in undecoded if batch.is_frame]
        assert gauge.depth == sum(batch.size for batch in frames)
        assert gauge.bytes == 10 * len(frames)
        stage.validate()


def test_one_batch_that_is_larger_than_the_stage_needs_no_overflow() -> None:
    stage = Stage(5)
    stage.overflow = overflow = Overflow()
    stage.offer(batch(50))
    assert not overflow.batches


def test_bytes_fill_a_stage_as_events_do() -> None:
    stage = Stage(StageSettings(capacity=100, max_bytes=1000))
    stage.offer(EventBatch("clicks", 0, ["event"] * 2, weight=1000))
    assert stage.full
    assert stage.holds
    assert not stage.roomy
    stage.poll()
    stage.release(1)
    assert stage.full  # its bytes are there until it is done
    stage.release(1, 1000)
    assert stage.roomy
    stage.validate()


def test_the_waiting_time_of_batches_is_reported() -> None:
    stage = Stage(10)
    stage.offer(batch(2), 1.0)
    stage.offer(batch(2), 2.0)
    stage.poll(3.0)
    stage.poll(6.0)
    told = stage.statistics()
    assert (told.waited_last, told.in_flight) == (4.0, 4)


# -- set-up ---------------------------------------------------------------------------------------


def batch(size: int) -> EventBatch:
    return EventBatch("clicks", 0, ["event"] * size)


@pytest.mark.parametrize(
    ("safe", "limit", "new"),
    [
        (0, 0, 100),  # the first grant
        (100, 100, 200),  # all used up and processed
        (25, 100, 125),  # a quarter
        (24, 100, 100),  # less than a quarter is not worth a grant
        (0, 100, 100),
        (0, 170, 170),  # what was given when the share was larger
        (60, 170, 170),
        (95, 170, 195),
    ],
)
def test_a_limit_grows_to_a_share_beyond_what_is_processed_in_quarters(
    safe: int, limit: int, new: int
) -> None:
    _, credit = credit_of(100, "a")
    assert credit.limit("a", safe, limit, credit.share) == new


def test_while_the_stage_is_full_no_limit_grows_that_has_credit_left() -> None:
    stage, credit = credit_of(100, "a", "b")
    filled(stage, 100)
    assert credit.limit("a", 40, 50, credit.share) == 50
    assert credit.held
    assert credit.release() == set()
    stage.release(1)
    assert credit.limit("b", 40, 50, credit.share) == 90
    assert credit.release() == {"a"}
    assert not credit.held
    assert credit.release() == set()


class Producer:
    """The numbers that a producer and the node know."""

    def __init__(self) -> None:
        self.safe = self.sent = self.limit = 0


@given(
    st.integers(1, 40),
    st.lists(
        st.tuples(
            st.sampled_from(["join", "leave", "send", "process", "ask", "ask", "release"]),
            st.integers(0, 3),
            st.integers(1, 20),
        ),
        max_size=60,
    ),
)
def test_limits_never_go_back_shares_are_kept_and_nobody_starves(
    capacity: int, moves: list[tuple[str, int, int]]
) -> None:
    stage = Stage(capacity)
    credit: Credit[int] = Credit(stage)
    members: dict[int, Producer] = {}
    held: set[int] = set()

    def ask(number: int) -> None:
        producer = members[number]
        before, full = producer.limit, stage.full
        producer.limit = credit.limit(number, producer.safe, producer.limit, credit.share)
        assert before <= producer.limit <= max(before, producer.safe + credit.share)
        assert producer.limit > producer.safe
        if full and before > producer.safe:
            assert producer.limit == before
            held.add(number)

    def release() -> None:
        released = credit.release()
        assert released == (set() if stage.full else held)
        held.difference_update(released)
        for number in released:
            ask(number)

    for move, number, count in moves:
        producer = members.get(number)
        if move == "join":
            members.setdefault(number, Producer())
            credit.join(number)
        elif producer is None:
            continue
        elif move == "leave" and producer.sent == producer.safe:
            del members[number]
            held.discard(number)
            credit.remove(number)
        elif move == "send":
            sent = min(count, producer.limit - producer.sent)
            if sent:
                filled(stage, sent)
                producer.sent += sent
        elif move == "process":
            worked = min(count, producer.sent - producer.safe)
            stage.release(worked)
            producer.safe += worked
        elif move == "ask":
            ask(number)
        elif move == "release":
            release()
        assert bool(credit.held) == bool(held)
        assert credit.share == max(1, capacity // max(1, len(members)))

    for producer in members.values():  # all is processed and everybody asks
        stage.release(producer.sent - producer.safe)
        producer.safe = producer.sent
    assert stage.depth == 0
    release()
    for number, producer in members.items():
        ask(number)
        assert (producer.limit - producer.safe) * 4 > credit.share * 3


def test_a_producer_that_sends_nothing_for_two_periods_has_no_share_until_it_sends_again() -> None:
    _, credit = credit_of(100, *map(str, range(10)))
    assert credit.share == 10
    credit.tick()
    credit.active("0")
    assert credit.share == 10
    credit.tick()
    assert credit.share == 100
    assert credit.limit("0", 50, 50, credit.share) == 150
    credit.active("1")
    assert credit.share == 50
    credit.active("stranger")
    assert credit.share == 50


def test_a_share_is_cut_by_what_events_weigh() -> None:
    credit: Credit[str] = Credit(Stage(StageSettings(capacity=1000, max_bytes=10_000)))
    credit.join("a")
    assert credit.share_of(0) == 9  # until it is known, an event is taken to weigh 1 KiB
    assert credit.share_of(5) == 1000
    assert credit.share_of(100) == 100
    assert credit.share_of(1_000_000) == 1
    assert credit.limit("a", 0, 0, credit.share_of(100)) == 100


def test_a_full_deserializer_holds_credit_back_too() -> None:
    deserializer = Gauge(StageSettings(capacity=10))
    credit: Credit[str] = Credit(Stage(100, deserializer=deserializer))
    credit.join("a")
    deserializer.came(10, 0)
    assert credit.limit("a", 40, 50, credit.share) == 50
    assert credit.held
    deserializer.went(1, 0)
    assert credit.release() == {"a"}


def test_a_stage_that_drops_holds_nobody_back() -> None:
    stage = Stage(StageSettings(executor="shed", capacity=100))
    credit: Credit[str] = Credit(stage)
    credit.join("a")
    filled(stage, 100)
    assert not credit.withholds
    assert credit.limit("a", 40, 50, credit.share) == 140
    assert not credit.held


# -- set-up ---------------------------------------------------------------------------------------


def filled(stage: Stage, events: int) -> None:
    stage.offer(EventBatch("clicks", 0, ["event"] * events))


def credit_of(capacity: int, *producers: str) -> tuple[Stage, Credit[str]]:
    stage = Stage(capacity)
    credit: Credit[str] = Credit(stage)
    for producer in producers:
        credit.join(producer)
    return stage, credit
