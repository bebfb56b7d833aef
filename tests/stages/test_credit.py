"""The promises of credit: fair shares, never taken back, and nobody is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.events.event import EventBatch
from s4node.stages.executors import StageSettings
from s4node.stages.stage import Credit, Gauge, Stage


@pytest.mark.parametrize(
    ("capacity", "producers", "share"),
    [(100, 1, 100), (100, 2, 50), (100, 3, 33), (100, 100, 1), (100, 1000, 1), (1, 1, 1)],
)
def test_producers_share_the_capacity_evenly_and_each_has_one_event_at_least(
    capacity: int, producers: int, share: int
) -> None:
    _, credit = credit_of(capacity, *map(str, range(producers)))
    assert credit.share == share


def test_joining_twice_is_joining_once_and_who_leaves_makes_room() -> None:
    _, credit = credit_of(100, "a", "b", "a")
    assert credit.share == 50
    credit.remove("a")
    assert credit.share == 100
    credit.remove("a")
    credit.remove("b")
    assert credit.share == 100  # for whoever comes


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


def test_a_tiny_share_still_grows() -> None:
    _, credit = credit_of(1, "a", "b", "c")
    assert [credit.limit("a", safe, safe, credit.share) for safe in range(3)] == [1, 2, 3]
    assert credit.limit("a", 0, 1, credit.share) == 1


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


def test_even_while_the_stage_is_full_each_may_have_one_event_under_way() -> None:
    stage, credit = credit_of(100, "a", "b")
    filled(stage, 100)
    assert credit.limit("b", 50, 50, credit.share) >= 51


def test_a_producer_that_has_left_is_not_waited_for() -> None:
    stage, credit = credit_of(100, "a", "b")
    filled(stage, 100)
    credit.limit("a", 40, 50, credit.share)
    credit.limit("b", 40, 50, credit.share)
    credit.remove("a")
    stage.release(100)
    assert credit.release() == {"b"}


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
