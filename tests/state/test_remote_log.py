"""The log of a task's shipped state: many histories at a store that loses answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator
from typing import Any

import pytest
from conformance import append
from conformance.append import History, Store

from s4node.errors import StateError
from s4node.state import remote_log
from s4node.state.remote_log import (
    AT_ONCE,
    CREATE,
    LOOK,
    TRIES,
    Appender,
    Claim,
    Commit,
    Owner,
    Put,
    Request,
    Tail,
)

HISTORIES = int(os.environ.get("HISTORIES", "1500"))
_AT_ONCE = 20_000  # so that no test takes minutes


@pytest.mark.parametrize("first", range(0, HISTORIES, _AT_ONCE))
@pytest.mark.parametrize("way", [CREATE, LOOK])
def test_whatever_the_store_does_what_counted_is_in_the_log_of_every_later_owner(
    way: str, first: int
) -> None:
    seeds = range(first, min(first + _AT_ONCE, HISTORIES))
    assert append.play(way, seeds) > len(seeds)


@pytest.mark.parametrize("way", [CREATE, LOOK])
def test_a_claim_succeeds_against_an_owner_that_commits_as_fast_as_it_can(way: str) -> None:
    puts = [append.race(way, seed) for seed in range(300)]
    assert max(puts) <= TRIES + 1  # and one commit of its own
    assert way == LOOK or max(puts) > 3


class AskedStore(Store):
    """A store that keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Request] = []

    def answer(self, request: Request) -> Any:
        self.asked.append(request)
        return super().answer(request)


@pytest.mark.parametrize(("way", "beside"), [(CREATE, 4), (LOOK, 5)])
def test_a_takeover_lists_the_log_seldom_and_does_not_read_its_own_claim(
    way: str, beside: int
) -> None:
    store = AskedStore()
    history = History(way, 0, store, faults=0)
    history._run(history._life(commits=3))
    store.asked.clear()
    history._run(history._life(commits=0))
    got = [each.places for each in store.asked if isinstance(each, remote_log.Get)]
    assert len(store.asked) - len(got) == beside
    assert f"log/{max(store.folders['log'])}" not in {place for places in got for place in places}


# -- the histories find what is broken ------------------------------------------------------------


class Anything(dict[str, bool]):
    """Entries that may all be removed."""

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> bool:
        return True

    def __delitem__(self, name: str) -> None: ...


def claims_are_swept(patch: pytest.MonkeyPatch) -> None:
    sweep = remote_log.sweep
    patch.setattr(remote_log, "sweep", lambda base, _, place: sweep(base, Anything(), place))


def a_claim_is_believed_at_once(patch: pytest.MonkeyPatch) -> None:
    def claim(
        self: Appender, origin: str, epoch: int, known: tuple[Collection[str], Collection[str]]
    ) -> Generator[Request, Any, None]:
        yield Put(f"claims/{remote_log.Announced(self.owner, epoch, '0' * 16).name}", b"")
        while True:
            names = yield remote_log.Names("log")
            end = remote_log._Index(names).end
            if (yield from self._put(end + 1, remote_log.encoded(Claim(self.owner, None)))):
                self.number = end + 1
                self.begin = known[0], [*names, self.name_of(self.number, self.owner)]
                return

    patch.setattr(Appender, "claim", claim)


def another_object_follows_one_that_may_be_there(patch: pytest.MonkeyPatch) -> None:
    settle = Appender._settle

    def forgetting(self: Appender) -> Generator[Request, Any, None]:
        try:
            yield from settle(self)
        except StateError:
            self.number += 1
            self._pending = None
            raise

    patch.setattr(Appender, "_settle", forgetting)


def nobody_looks(patch: pytest.MonkeyPatch) -> None:
    def look(self: Appender) -> Generator[Request, Any, None]:
        yield from ()

    patch.setattr(Appender, "_look", look)


def one_checkpoint_is_enough(patch: pytest.MonkeyPatch) -> None:
    before = remote_log.sweep

    def sweep(base: int, removable: dict[str, bool], place: str) -> Any:
        return before(base + 3, removable, place)

    patch.setattr(remote_log, "sweep", sweep)


@pytest.mark.parametrize(
    ("way", "mistake", "seed"),
    [
        (CREATE, claims_are_swept, 0),  # one in a thousand histories finds it
        (CREATE, a_claim_is_believed_at_once, 0),
        (CREATE, another_object_follows_one_that_may_be_there, 0),
        (CREATE, one_checkpoint_is_enough, 0),
        (LOOK, nobody_looks, 0),
        (LOOK, another_object_follows_one_that_may_be_there, 0),
    ],
)
def test_the_histories_find_a_mistake(
    way: str,
    mistake: Callable[[pytest.MonkeyPatch], None],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        append.play(way, range(seed, seed + 50_000))


def test_the_histories_find_a_store_that_ignores_conditions() -> None:
    with pytest.raises(AssertionError, match=r"lost|missing|not in the log"):
        append.play(CREATE, range(2000), ignores=True)


# -- entries --------------------------------------------------------------------------------------


def test_an_entry_comes_back_as_it_was_and_damage_is_noticed() -> None:
    entry = Commit(Owner(3, "ab" * 8), (3, 7, 9), [(b"row", b"value"), (b"gone", None)])
    data = remote_log.encoded(entry)
    assert remote_log.decoded(data, "here") == entry
    for at in range(len(data)):
        if at != 3:  # the format
            damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            assert remote_log.decoded(damaged, "here") is None
    assert remote_log.decoded(None, "here") is None
    with pytest.raises(StateError, match="here has format 9, and this s4node reads 1; use the"):
        remote_log.decoded(data[:3] + b"9" + data[4:], "here")


def test_a_log_whose_beginning_is_gone_without_a_checkpoint_is_not_empty() -> None:
    for seed in range(100):
        history = History(CREATE, seed, faults=0)
        history._run(history._life(commits=0))
        history._run(history._life(commits=3))
        if not history.states:  # without a checkpoint
            break
    del history.store.folders["log"][f"{3:016d}"]
    names = history.store.answer(remote_log.Names("log"))
    steps = remote_log.read(names, "here")
    request = next(steps)
    tail = None
    while tail is None:
        try:
            request = steps.send(history.store.answer(request))
        except StopIteration as done:
            tail = done.value
    assert (tail.damaged, tail.whole, tail.empty) == (3, False, False)


# -- commits that have the rows of earlier ones ---------------------------------------------------


def log_of(store: Store, commits: int) -> tuple[Tail, int]:
    """The end of a log with so many commits, each with a row of its own and one that all change,
    and how many objects were read for it. A log that is there already is only read."""

    def owner() -> Generator[Request, Any, Tail]:
        appender = Appender(CREATE, Owner(1, "a" * 16), "here")
        if not store.folders["log"]:
            yield from appender.claim("origin", 1, ([], []))
            for number in range(1, commits + 1):
                rows = [(b"last", b"%d" % number), (b"%d" % number, b"")]
                yield from appender.add(Commit(appender.owner, (1, number, 1), rows))
        return (yield from remote_log.read((yield remote_log.Names("log")), "here"))

    steps = owner()
    request, read = next(steps), 0
    while True:
        read += len(request.places) if isinstance(request, remote_log.Get) else 0
        try:
            request = steps.send(store.answer(request))
        except StopIteration as done:
            return done.value, read


def rows_of(commits: list[Commit]) -> dict[bytes, bytes | None]:
    return {row: value for each in commits for row, value in each.rows}


@pytest.mark.parametrize("commits", [1, 31, 32, 33, 1000])
def test_a_reader_needs_few_objects_however_many_commits_there_are(commits: int) -> None:
    tail, read = log_of(Store(), commits)
    expected = {b"%d" % number: b"" for number in range(1, commits + 1)}
    assert rows_of(tail.commits) == {**expected, b"last": b"%d" % commits}
    assert read <= min(commits + 1, 2 * AT_ONCE + commits // 32)


def test_what_a_commit_has_of_earlier_ones_is_read_from_those_if_it_is_damaged() -> None:
    store = Store()
    log_of(store, 100)
    number = next(n for n in range(98, 0, -1) if has_earlier(store, n))
    store.folders["log"][f"{number:016d}"] = b"damaged"
    tail, _ = log_of(store, 100)
    assert (tail.damaged, tail.last) == (number, (1, number - 2, 1))
    assert rows_of(tail.commits).keys() == {b"last", *(b"%d" % n for n in range(1, number - 1))}


def test_a_database_that_has_some_of_merged_commits_lacks_the_others() -> None:
    tail, _ = log_of(Store(), 100)
    for number in range(1, 101):
        lacking = tail.after((1, number, 1))
        assert lacking is not None
        assert rows_of(lacking).keys() >= {b"%d" % n for n in range(number + 1, 101)}
        assert len(lacking) <= 3 + 32
    assert tail.after((1, 100, 1)) == []
    assert tail.after((1, 101, 1)) is None


def has_earlier(store: Store, number: int) -> bool:
    entry = remote_log.decoded(store.folders["log"][f"{number:016d}"], "here")
    return isinstance(entry, Commit) and entry.since > 0
