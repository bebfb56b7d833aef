"""The progress of a task in an input: whole batches, parts of batches, and what is held."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from input_systems import RefusalList

from s4node.offsets.input_progress import InputProgress, InputReceipt, taken
from s4node.offsets.receipts import BatchReceipt, PartReceipt
from s4node.offsets.system import SystemStreamPartition


def test_refusals_go_to_the_given_handler() -> None:
    owner = RefusalList()
    it = InputProgress(SSP, 0, owner)
    whole = receipt(it, 0, 4)
    PartReceipt(whole, [1, 2]).refuse(2, "no key")
    whole.refuse(0, "full", shed=True)
    assert owner.refusals == [(2, "no key"), (0, "full")]


@given(st.data())
def test_safe_never_passes_what_is_not_done_and_reaches_the_end_when_all_is(
    data: st.DataObject,
) -> None:
    it = progress()
    pending: list[list[Step]] = []  # what comes in order, each list by itself
    batches: dict[int, set[int]] = {}  # parts and held offsets of a batch that are not over
    done: set[int] = set()
    count = data.draw(st.integers(1, 4))
    for batch in range(count):
        first = batch * 10
        owners = data.draw(st.lists(st.integers(0, 2), min_size=10, max_size=10))
        held = data.draw(st.sets(st.integers(first, first + 9), max_size=3))
        parts = sorted(set(owners))
        whole = receipt(it, first, first + 10, parts=len(parts))
        batches[batch] = {*parts, *(100 + number for number in held)}
        for number in sorted(held):
            whole.hold(number)
            pending.append([Step(partial(whole.release, number), batch, {number}, 100 + number)])
        for part in parts:
            numbers = [first + index for index in range(10) if owners[index] == part]
            cut = data.draw(st.integers(0, len(numbers)))
            mine = PartReceipt(whole, numbers)
            early = Step(
                partial(mine.complete, numbers[0], numbers[cut - 1] + 1 if cut else numbers[0]),
                batch,
                set(numbers[:cut]) - held,
            )
            pending.append([early, Step(mine.done, batch, set(), part)])
    while any(pending):
        step = data.draw(st.sampled_from([steps for steps in pending if steps])).pop(0)
        step.run()
        done |= step.done
        batches[step.batch].discard(step.ends)
        if not batches[step.batch]:
            done |= set(range(step.batch * 10, step.batch * 10 + 10))
        expected = next(number for number in range(count * 10 + 1) if number not in done)
        assert it.safe == expected
    assert it.safe == count * 10


class Step(NamedTuple):
    """Something that happens to a batch: which offsets it calls done, and what of it ends."""

    run: Callable[[], None]
    batch: int
    done: set[int]
    ends: int = -1


def test_a_startpoint_is_consumed_by_the_first_offsets_that_are_taken() -> None:
    plain, begun = progress(3), progress(10)
    other = SystemStreamPartition("log", "views", 0)
    begun.startpoints = frozenset({"one"})
    both = {SSP: plain, other: begun}
    before = taken(both)
    assert before == ({SSP: 3, other: 10}, frozenset({"one"}))
    begun.startpoints -= before[1]
    begun.complete(10, 12)
    assert taken(both) == ({SSP: 3, other: 12}, frozenset())


# -- set-up ---------------------------------------------------------------------------------------


SSP = SystemStreamPartition("memory", "clicks", 0)


def progress(start: int = 0) -> InputProgress:
    return InputProgress(SSP, start, RefusalList())


def receipt(of: InputProgress, first: int, end: int, parts: int = 1) -> InputReceipt:
    whole = BatchReceipt(of, first, end)
    whole.parts = parts
    return whole
