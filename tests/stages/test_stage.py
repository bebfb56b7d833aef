"""The promises of a stage: first in, first out, counted in events."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from s4node.events.event import EventBatch
from s4node.stages.executors import StageSettings
from s4node.stages.stage import Gauge, Stage, StageStatistics


def test_batches_leave_in_the_order_in_which_they_came() -> None:
    stage = Stage(10)
    one, two, three = batch(1), batch(2), batch(3)
    stage.offer(one)
    stage.offer(two)
    assert stage.poll() is one
    stage.offer(three)
    assert stage.poll() is two
    assert stage.poll() is three
    assert stage.poll() is None


def test_events_count_as_waiting_until_they_have_been_worked_on() -> None:
    stage = Stage(10)
    stage.offer(batch(4))
    stage.poll()
    assert stage.depth == 4
    stage.release(3)
    assert stage.depth == 1
    stage.release(1)
    assert stage.depth == 0


def test_a_stage_is_full_from_its_capacity_on_and_refuses_nothing() -> None:
    stage = Stage(5)
    assert not stage.full
    stage.offer(batch(4))
    assert not stage.full
    stage.offer(batch(4))
    assert stage.full
    assert stage.depth == 8
    stage.release(3)
    assert stage.full
    stage.release(1)
    assert not stage.full


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
