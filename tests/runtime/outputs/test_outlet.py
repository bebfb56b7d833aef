"""Outlets: the records of each commit are published once, whatever is killed at whatever moment.

``HISTORIES=20000`` plays more random histories.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from random import Random

import pytest

from s4node.errors import MarkerError, TaskFenced
from s4node.offsets.system import Marker
from s4node.runtime.outputs.outlet import (
    AT_ONCE_BYTES,
    FIRST_PAUSE,
    LAST_PAUSE,
    PACE,
    Batch,
    Open,
    Outlet,
    Publish,
    Saved,
    State,
    Wait,
)

LIFE = (("a", 0),)


def test_commits_that_wait_are_published_together_with_the_number_of_the_last() -> None:
    outlet = opened(None)
    step = written(outlet, 1, 2, 3).step(0)
    assert step == Publish((batch(1), batch(2), batch(3)), Marker(LIFE, 3, fence=1))
    assert outlet.published() == 3
    assert (outlet.events, outlet.bytes) == (0, 0)


def test_a_commit_of_many_rows_is_published_whole() -> None:
    outlet, half = opened(None), b"x" * (AT_ONCE_BYTES // 2)
    outlet.written(2, [Batch(1, half, 1), Batch(1, half, 1), Batch(1, half, 1), Batch(2, half, 1)])
    step = outlet.step(0)
    assert isinstance(step, Publish)
    assert [each.number for each in step.batches] == [1, 1, 1]
    assert step.marker.number == 1
    outlet.published()
    assert outlet.step(PACE) == Publish((Batch(2, half, 1),), Marker(LIFE, 2, fence=1))


def test_nothing_is_opened_before_there_is_something_to_publish() -> None:
    outlet = Outlet("t", "kafka", 1, Saved(LIFE))
    assert outlet.step(0) == Wait()
    assert written(outlet, 1).step(0) == Open()
    assert outlet.step(0) == Wait()


def test_a_transaction_begins_at_the_earliest_a_tenth_of_a_second_after_the_one_before() -> None:
    outlet = written(opened(None), 1)
    outlet.step(7.0)
    outlet.published()
    assert written(outlet, 2).step(7.01) == Wait(7.0 + PACE)
    assert isinstance(outlet.step(7.0 + PACE), Publish)


def test_after_an_error_it_is_opened_again_with_pauses_that_grow() -> None:
    outlet, now, pauses = written(Outlet("t", "kafka", 1, Saved(LIFE)), 1), 0.0, []
    for _ in range(6):
        assert outlet.step(now) == Open()
        outlet.receiver_lost(now)
        step = outlet.step(now)
        assert isinstance(step, Wait)
        pauses.append(step.until - now)
        now = step.until
    assert pauses[0] == FIRST_PAUSE
    assert pauses == sorted(pauses)
    assert pauses[-1] == LAST_PAUSE
    outlet.step(now)
    outlet.receiver_opened(None)
    assert isinstance(outlet.step(now), Publish)


def test_an_opening_that_finds_all_published_ends_the_trouble() -> None:
    outlet = written(opened(None), 1)
    outlet.step(0)
    outlet.receiver_lost(1)  # the answer was lost, not the transaction
    outlet.step(9)
    outlet.receiver_opened(Marker(LIFE, 1, fence=1))
    assert outlet.failing_since is None
    written(outlet, 2).step(100)
    outlet.receiver_lost(100)
    assert (outlet.failing_since, outlet.step(100)) == (100, Wait(100 + FIRST_PAUSE))


# --- the table: what an owner finds when it opens -------------------------------------------------


@pytest.mark.parametrize(
    ("what", "marker", "published"),
    [
        ("killed before the transaction", None, []),
        ("killed within it: aborted", Marker(LIFE, 4), [5, 6]),
        ("killed after it was committed", Marker(LIFE, 5), [6]),
        ("killed before the rows were deleted", Marker(LIFE, 6), []),
    ],
)
def test_an_owner_publishes_what_the_marker_does_not_have(
    what: str, marker: Marker | None, published: list[int]
) -> None:
    settled = 0 if marker is None else 4
    saved = Saved(LIFE, number=6, settled=settled)
    first = 1 if marker is None else 5
    outlet = Outlet("t", "kafka", 2, saved, map(batch, range(first, 7)))
    assert outlet.step(0) == Open()
    outlet.receiver_opened(marker)
    step = outlet.step(0)
    if marker is None:
        published = [1, 2, 3, 4, 5, 6]
    found = [each.number for each in step.batches] if isinstance(step, Publish) else []
    assert found == published, what


@pytest.mark.parametrize(
    ("saved", "marker", "error", "said"),
    [
        (Saved(LIFE, 6, 4), None, MarkerError, "has no marker of task 't', which has published"),
        (Saved(LIFE, 6, 4), Marker(LIFE, 3), MarkerError, "has only the marker 3"),
        (Saved(LIFE, 6, 4), Marker((("b", 0),), 9), MarkerError, "commits 5 to 7 may be there"),
        (Saved(LIFE, 6, 4), Marker(LIFE, 8), MarkerError, "state has only 7: the state is older"),
        (Saved(LIFE, 6, 4), Marker(LIFE, 9, fence=3), TaskFenced, "another container has taken"),
        (Saved(LIFE, 6, 4), Marker((*LIFE, ("b", 5)), 6), TaskFenced, "another container"),
    ],
)
def test_a_marker_that_contradicts_the_state_is_an_error(
    saved: Saved, marker: Marker | None, error: type[Exception], said: str
) -> None:
    outlet = Outlet("t", "kafka", 2, saved, [batch(5), batch(6)])
    written(outlet, 7).step(0)
    with pytest.raises(error, match=said):
        outlet.receiver_opened(marker)


@pytest.mark.parametrize(
    ("marker", "published"),
    [
        (Marker(LIFE, 9), [7]),  # all of the savepoint, and more, which comes again
        (Marker(LIFE, 5), [6, 7]),
        (Marker((*LIFE, ("b", 6)), 8), [7]),  # an earlier return to the same savepoint
        (Marker((*LIFE, ("b", 5)), 8), [6, 7]),  # one to an earlier savepoint
        (Marker((("x", 0),), 8), [5, 6, 7]),  # nothing is known of it
        (None, [5, 6, 7]),
    ],
)
def test_a_task_that_goes_back_publishes_what_waited_then_and_all_after_it(
    marker: Marker | None, published: list[int]
) -> None:
    saved = Saved(LIFE, number=6, settled=4)
    saved.begin_life("c")
    outlet = written(Outlet("t", "kafka", 3, saved, [batch(5), batch(6)]), 7)
    outlet.step(0)
    outlet.receiver_opened(marker)
    step = outlet.step(0)
    assert isinstance(step, Publish)
    assert [each.number for each in step.batches] == published
    assert step.marker == Marker((*LIFE, ("c", 6)), 7, fence=3)


def test_a_task_that_has_lost_its_state_says_how_many_commits_it_had() -> None:
    outlet = written(Outlet("t", "kafka", 1, Saved((("new", 0),))), 1)
    outlet.step(0)
    outlet.receiver_opened(Marker(LIFE, 40))
    assert outlet.before == 40
    assert isinstance(outlet.step(0), Publish)


# --- random histories -----------------------------------------------------------------------------


def test_random_histories_publish_each_durable_record_once_and_in_order() -> None:
    for seed in range(int(os.environ.get("HISTORIES", "400"))):
        History(seed).play()


@dataclass
class Brokers:
    """A receiver's other end: committed records, a marker, and at most one open transaction."""

    records: list[int] = field(default_factory=list)
    marker: Marker | None = None
    epoch: int = 0
    open: tuple[list[int], Marker] | None = None

    def init(self) -> int:
        self.epoch, self.open = self.epoch + 1, None
        return self.epoch

    def commit(self) -> None:
        assert self.open is not None
        records, self.marker = self.open
        self.records += records
        self.open = None


@dataclass
class Store:
    """The state of the task that outlives its owners. A commit is written by the claim's owner."""

    fence: int = 0
    saved: Saved = field(default_factory=lambda: Saved(LIFE))
    rows: list[Batch] = field(default_factory=list)
    truth: list[int] = field(default_factory=list)  # the records of durable commits


class Owner:
    """One owner: a container that may be paused at any step, and go on later."""

    def __init__(self, history: History) -> None:
        store = history.store
        store.fence += 1
        self.fence = store.fence
        self.history = history
        self.outlet = Outlet("t", "kafka", self.fence, replace_saved(store.saved), store.rows)
        self.epoch = 0
        self.steps: list[str] = []
        self.step: Publish | None = None
        self.found: Marker | None = None
        self.waits_for_claim: list[Batch] = []

    def act(self, now: float) -> bool:
        """Do one thing; return False if there was nothing to do. Raises TaskFenced."""
        brokers, store, draw = self.history.brokers, self.history.store, self.history.draw
        if self.steps:
            name = self.steps.pop(0)
            if name in ("claim", "marker", "begin", "commit", "answer") and draw.random() < 0.05:
                self.steps = []  # an error; if the transaction was committed, nobody knows
                self.outlet.receiver_lost(now)
                return True
            getattr(self, f"_{name}")(now, brokers, store)
            return True
        step = self.outlet.step(now)
        if isinstance(step, Open):
            self.steps = ["init", "claim", "marker", "ready"]
        elif isinstance(step, Publish):
            self.step = step
            self.steps = ["begin", "commit", "answer"]
        return not isinstance(step, Wait)

    def commit(self, records: int) -> None:
        """Write a commit with some records, if the claim still holds, and check it after."""
        store = self.history.store
        if store.fence != self.fence:
            raise TaskFenced("claim")
        if records:
            number = store.saved.number + 1
            batch = Batch(number, bytes(records), records)
            store.rows.append(batch)
            for _ in range(records):
                self.history.last += 1
                store.truth.append(self.history.last)
                self.history.contents.setdefault(number, []).append(self.history.last)
            store.saved = Saved(store.saved.lives, number, store.saved.settled)
            self.outlet.written(number, [batch])
        settled = self.outlet.settled
        store.rows = [row for row in store.rows if row.number > settled]
        store.saved = Saved(store.saved.lives, store.saved.number, settled)

    # one step each, by name

    def _init(self, _: float, brokers: Brokers, __: Store) -> None:
        self.epoch = brokers.init()

    def _claim(self, _: float, __: Brokers, store: Store) -> None:
        if store.fence != self.fence:
            raise TaskFenced("claim")

    def _marker(self, _: float, brokers: Brokers, __: Store) -> None:
        self.found = brokers.marker

    def _ready(self, _: float, __: Brokers, ___: Store) -> None:
        self.outlet.receiver_opened(self.found)

    def _begin(self, now: float, brokers: Brokers, _: Store) -> None:
        assert self.step is not None
        if self.epoch != brokers.epoch:
            self.steps = []
            self.outlet.receiver_lost(now)
            return
        contents = self.history.contents
        numbers = dict.fromkeys(batch.number for batch in self.step.batches)
        records = [each for number in numbers for each in contents[number]]
        brokers.open = records, self.step.marker

    def _commit(self, now: float, brokers: Brokers, _: Store) -> None:
        if self.epoch != brokers.epoch or brokers.open is None:
            self.steps = []
            self.outlet.receiver_lost(now)
            return
        brokers.commit()

    def _answer(self, _: float, __: Brokers, ___: Store) -> None:
        self.outlet.published()


_WHAT, _WEIGHTS = ("act", "commit", "claim", "kill", "timeout"), (60, 25, 3, 3, 4)


class History:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draw = Random(seed)
        self.brokers, self.store = Brokers(), Store()
        self.contents: dict[int, list[int]] = {}
        self.last = 0

    def play(self) -> None:
        draw, owners, now = self.draw, [Owner(self)], 0.0
        for _ in range(draw.randrange(20, 120)):
            now += draw.uniform(0, 0.2)
            owner = draw.choice(owners)
            try:
                match draw.choices(_WHAT, _WEIGHTS)[0]:
                    case "act":
                        owner.act(now)
                    case "commit":
                        owner.commit(draw.randrange(3))
                    case "claim":  # the former owner is paused, or does not know
                        owners.append(Owner(self))
                    case "kill":
                        owners.remove(owner)
                    case "timeout":  # the broker aborts, and fences who has begun
                        if self.brokers.open is not None:
                            self.brokers.init()
            except TaskFenced:
                owners.remove(owner)
            owners = owners or [Owner(self)]
            self.check()
        last = Owner(self)
        while last.outlet.waiting:
            now += 1
            last.act(now)
            owner = draw.choice([*owners, last])  # zombies go on
            if owner is not last and draw.random() < 0.3:
                try:
                    owner.act(now)
                except TaskFenced:
                    owners.remove(owner)
            self.check()
        assert self.brokers.records == self.store.truth, self.seed

    def check(self) -> None:
        published = self.brokers.records
        assert published == self.store.truth[: len(published)], self.seed


# --- set-up ---------------------------------------------------------------------------------------


def batch(number: int) -> Batch:
    return Batch(number, b"x" * number, 1)


def written(outlet: Outlet, *numbers: int) -> Outlet:
    for number in numbers:
        outlet.written(number, [batch(number)])
    return outlet


def opened(marker: Marker | None) -> Outlet:
    outlet = Outlet("t", "kafka", 1, Saved(LIFE))
    outlet.state = State.OPENING
    outlet.receiver_opened(marker)
    return outlet


def replace_saved(saved: Saved) -> Saved:
    return Saved(saved.lives, saved.number, saved.settled)
