"""The book of a partition of the log: offsets, and what was there before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.errors import StoreCorrupt
from s4node.events.type_declaration import TypeDecl
from s4node.log.partition.ledger import Appended, Incoming, Ledger, part_name, part_of, unfit
from s4node.net.wire.frame import Section
from s4node.offsets.checkpoint import SavedProducer


def test_offsets_are_given_out_one_after_another_over_all_producers() -> None:
    ledger = Ledger()
    assert appended(ledger, frame("a", 0, 3), frame("b", 50, 2), frame("a", 3, 1)) == [
        Appended(0, 3, 3),
        Appended(3, 2, 52),
        Appended(5, 1, 4),
    ]
    assert ledger.upcoming == 6


def test_what_was_appended_before_is_not_appended_again() -> None:
    ledger = Ledger()
    appended(ledger, frame("a", 0, 5))
    assert appended(ledger, frame("a", 0, 5), frame("a", 1, 2)) == [
        Appended(5, 0, 5),
        Appended(5, 0, 5),
    ]
    assert ledger.upcoming == 5


def test_a_repetition_in_the_same_group_is_known_too() -> None:
    assert appended(Ledger(), frame("a", 0, 5), frame("a", 0, 5))[1] == Appended(5, 0, 5)


def test_a_frame_that_was_there_in_part_is_trimmed_at_the_front() -> None:
    ledger = Ledger()
    appended(ledger, frame("a", 0, 5))
    plan = ledger.plan([frame("a", 3, 6)], 1000)
    assert plan.answers == [Appended(5, 4, 9)]
    assert [(e.start, e.first, e.end) for e in plan.entries] == [(5, 3, 9)]


def test_a_producer_resumes_after_numbers_that_will_never_come() -> None:
    ledger = Ledger()
    appended(ledger, frame("a", 0, 5))
    assert appended(ledger, frame("a", 8, 2)) == [Appended(5, 2, 10)]


def test_a_frame_that_reaches_back_beyond_the_start_of_the_partition_is_no_repetition() -> None:
    ledger = Ledger()
    appended(ledger, frame("a", 100, 2))
    odd, good = appended(ledger, frame("a", 50, 100), frame("a", 102, 1))
    assert "52 of them are below its next number 102" in str(odd)
    assert isinstance(odd, StoreCorrupt)
    assert good == Appended(2, 1, 103)
    assert ledger.producers == {"a": SavedProducer(103)}


def test_a_frame_that_was_taken_apart_is_trimmed_by_its_events_own_numbers() -> None:
    ledger = Ledger()
    part = frame("a", 10, 3, end=20, numbers=(11, 15, 18))
    assert appended(ledger, part) == [Appended(0, 3, 20)]
    again = frame("a", 15, 4, end=30, numbers=(15, 18, 22, 25))
    assert appended(ledger, again) == [Appended(3, 2, 30)]
    assert appended(ledger, part) == [Appended(5, 0, 30)]


def test_a_frame_without_events_moves_the_number_only() -> None:
    ledger = Ledger()
    appended(ledger, frame("a", 0, 2))
    assert appended(ledger, frame("a", 2, 0, end=9)) == [Appended(2, 0, 9)]
    assert appended(ledger, frame("a", 9, 1)) == [Appended(2, 1, 10)]


def test_the_time_of_appending_never_goes_back() -> None:
    ledger = Ledger()
    appended(ledger, frame("a", 0, 1), now_ms=5000)
    plan = ledger.plan([frame("a", 1, 1)], 2000)
    assert [entry.appended_ms for entry in plan.entries] == [5000]
    assert plan.last_ms == 5000


def test_a_plan_that_is_not_written_leaves_no_trace() -> None:
    ledger = Ledger()
    ledger.plan([frame("a", 0, 3), frame("b", 0, 3, kind=VIEW)], 1000)
    assert (ledger.upcoming, ledger.last_ms, ledger.producers, ledger.types) == (0, 0, {}, {})


def test_a_type_is_declared_with_its_first_frame() -> None:
    ledger = Ledger()
    plan = ledger.plan([frame("a", 0, 1), frame("a", 1, 1), frame("a", 2, 1, kind=VIEW)], 1000)
    assert plan.types == {7: CLICK, 8: VIEW}
    ledger.apply(plan)
    assert ledger.plan([frame("a", 3, 1)], 1000).types == {}


@pytest.mark.parametrize("lossy", [False, True], ids=["every group is kept", "groups are lost"])
@given(data=st.data())
def test_every_event_is_there_once_and_in_order_whatever_is_sent_again(
    lossy: bool, data: st.DataObject
) -> None:
    """A producer sends any frames at or before the end of what it has sent. Some plans are lost:
    it sends nothing behind them before them."""
    ledger, sent = Ledger(), {"a": 0, "b": 0}
    log: list[tuple[str, int]] = []
    for _ in range(data.draw(st.integers(1, 12))):
        group, before = [], dict(sent)
        for _ in range(data.draw(st.integers(1, 4))):
            producer = data.draw(st.sampled_from(["a", "b"]))
            first = data.draw(st.integers(0, sent[producer]))
            group.append(frame(producer, first, data.draw(st.integers(1, 5))))
            sent[producer] = max(sent[producer], group[-1].behind)
        plan = ledger.plan(group, 1000)
        if lossy and data.draw(st.booleans()):
            sent = before
            continue
        ledger.apply(plan)
        for entry in plan.entries:
            assert entry.start == len(log)
            number = entry.frame.first + entry.start - entry.first
            log += [(entry.frame.producer, n) for n in range(number, entry.frame.behind)]
            assert entry.end == len(log)
    for producer in ("a", "b"):
        numbers = [number for name, number in log if name == producer]
        begin = numbers[0] if numbers else 0
        assert numbers == list(range(begin, begin + len(numbers)))
        known = ledger.producers.get(producer)
        assert (known.number if known else begin) == begin + len(numbers)
    assert ledger.upcoming == len(log)


@given(st.text(st.characters() | st.sampled_from("\t\n0123456789")), st.integers(0, 4095))
def test_no_producer_that_is_taken_has_the_name_of_a_part(producer: str, lane: int) -> None:
    assert part_of(part_name(producer, lane)) == (producer, lane)
    assert unfit(part_name(producer, lane))
    assert bool(unfit(producer)) == (part_of(producer) is not None)


@pytest.mark.parametrize("producer", ["a\t", "a\t00000", "a\t" + "9" * 5000, "a\t\u0663", "a\t7\n"])
def test_only_digits_of_a_partition_make_an_id_that_of_a_part(producer: str) -> None:
    assert not unfit(producer)


# -- set-up ---------------------------------------------------------------------------------------


CLICK = TypeDecl("Click", 7, (("user", "str", True),))

VIEW = TypeDecl("View", 8, (("page", "str", True),))


def frame(
    producer: str,
    first: int,
    count: int,
    end: int | None = None,
    numbers: tuple[int, ...] | None = None,
    kind: TypeDecl = CLICK,
) -> Incoming:
    """A frame whose body's bytes stand for its events."""
    return Incoming(
        producer,
        first,
        count,
        b"x" * count,
        (Section(kind.fingerprint, count, count),),
        types={CLICK.fingerprint: CLICK, VIEW.fingerprint: VIEW},
        end=end,
        numbers=numbers,
    )


def appended(
    ledger: Ledger, *frames: Incoming, now_ms: int = 1000
) -> list[Appended | StoreCorrupt]:
    plan = ledger.plan(frames, now_ms)
    ledger.apply(plan)
    return plan.answers
