"""PoisonEvents are left out of their batches, and the backoff behind them grows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from input_systems import RefusalList

from s4node import Event
from s4node.errors import ProcessingError
from s4node.events.event import EventBatch
from s4node.offsets.input_progress import InputProgress
from s4node.offsets.receipts import BatchReceipt
from s4node.offsets.system import InputBatch, SystemStreamPartition
from s4node.runtime.task.poison.poison_events import (
    LONGEST_BACKOFF,
    CommitBackoff,
    Fault,
    Place,
    PoisonEvents,
    fault_of,
    place_of,
)


@given(
    bad=st.sets(st.integers(0, 30)),
    sizes=st.lists(st.integers(1, 9), max_size=5),
    slices=st.lists(st.integers(1, 4)),
)
def test_poison_events_count_as_done_and_all_others_come_once(
    bad: set[int], sizes: list[int], slices: list[int]
) -> None:
    poison_events, mine, seen, at = PoisonEvents(), progress(), [], 0
    for number in bad:
        poison_events.add(Place(str(SSP), number), FAULT)
    for size in sizes:
        batch = read(mine, at, size)
        found = poison_events.leave_out(batch)
        assert [one.place.number for one in found] == [n for n in range(at, at + size) if n in bad]
        assert all(place_of(batch, i).number == e.number for i, e in enumerate(batch.events))
        at += size
        receipt, done = batch.receipt, 0
        for count in slices:  # the task processes it in slices
            if done + count >= len(batch.events):
                break
            receipt.complete(batch.number(done), batch.number(done + count - 1) + 1)
            done += count
            assert mine.safe == batch.number(done)
        receipt.done()
        assert mine.safe == at
        seen += [event.number for event in batch.events]
    assert seen == [n for n in range(at) if n not in bad]


def test_a_batch_without_poison_events_stays_as_it_is() -> None:
    poison_events, mine = PoisonEvents(), progress()
    poison_events.add(Place(str(SSP), 100), FAULT)
    poison_events.add(Place("log.views[0]", 1), FAULT)
    batch = read(mine, 0, 5)
    receipt = batch.receipt
    assert poison_events.leave_out(batch) == []
    assert batch.receipt is receipt
    assert batch.numbers is None


def test_a_tasks_own_event_is_skipped_once_until_that_is_undone() -> None:
    poison_events = PoisonEvents()

    def left(*numbers: int) -> list[int]:
        batch = EventBatch("hops", 0, [Click(n) for n in numbers])
        poison_events.leave_out(batch)
        return [event.number for event in batch.events]

    failed = EventBatch("hops", 0, [Click(7)])
    poison_events.add(place_of(failed, 0), FAULT)
    assert left(1, 7, 7, 2) == [1, 7, 2]
    assert left(7) == [7]
    poison_events.going_back({})
    assert left(1, 7, 7, 2) == [1, 7, 2]
    poison_events.taken()
    poison_events.going_back({})  # for the commit has failed
    assert left(1, 7, 7, 2) == [1, 7, 2]
    poison_events.taken()
    poison_events.written()
    poison_events.going_back({})
    assert left(7) == [7]


def test_as_many_of_a_task_s_own_equal_events_are_skipped_as_have_failed() -> None:
    poison_events = PoisonEvents()
    hops = EventBatch("hops", 0, [Click(7), Click(7), Click(7)])
    for left in (2, 1, 0):  # one after the other fails, with no commit in between
        poison_events.add(place_of(hops, 0), FAULT)
        poison_events.going_back({})
        batch = EventBatch("hops", 0, list(hops.events))
        assert len(poison_events.leave_out(batch)) == 3 - left
        assert batch.events == hops.events[:left]


def test_poison_events_below_the_last_commit_are_forgotten() -> None:
    poison_events = PoisonEvents()
    for number in (3, 5):
        poison_events.add(Place(str(SSP), number), FAULT)
    poison_events.going_back({str(SSP): 5})
    batch = read(progress(), 0, 9)
    assert [one.place.number for one in poison_events.leave_out(batch)] == [5]


def test_a_fault_says_what_was_raised_where_with_the_end_of_a_long_trace() -> None:
    cause = ValueError("deep " * 1000)
    fault = fault_of(ProcessingError("app", "Count", ("joe", 1), "clicks[0]@3", cause))
    assert fault.reason.startswith("ValueError: deep deep")
    assert 490 < len(fault.reason) <= 500
    assert (fault.pe, fault.key) == ("Count", "('joe', 1)")
    assert fault.trace.startswith("[...] ")
    assert fault.trace.endswith("deep deep \n")
    assert len(fault.trace) == 2006


@pytest.mark.parametrize("rounds", [1, 5])
def test_the_backoff_is_a_commit_after_one_event_two_four_and_so_on(rounds: int) -> None:
    backoff, lengths, length = CommitBackoff(rounds), [], 0
    while True:
        length += backoff.left
        if backoff.pulls(backoff.left):
            lengths.append(length)
            length = 0
            if backoff.commit_taken():
                break
    assert lengths == [2**n for n in range(14)] + [LONGEST_BACKOFF] * rounds
    assert backoff.covered == sum(lengths)


# -- set-up ---------------------------------------------------------------------------------------


SSP = SystemStreamPartition("log", "clicks", 0)
FAULT = Fault("it is bad")


class Click(Event):
    number: int


def read(progress: InputProgress, first: int, count: int) -> InputBatch:
    batch = InputBatch(SSP, first, count, 0, 0)
    batch.events = [Click(n) for n in range(first, first + count)]
    batch.receipt = BatchReceipt(progress, first, first + count)
    return batch


def progress() -> InputProgress:
    return InputProgress(SSP, 0, RefusalList())
