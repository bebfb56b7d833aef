"""Followers of a task's log: many histories of owners at a store that loses answers."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest
from conformance.append import PLACE, History, ids_after

from s4node.errors import StateError
from s4node.state import remote_log
from s4node.state.remote_log import (
    CREATE,
    Appender,
    Both,
    Checkpoint,
    Claim,
    Commit,
    CommitId,
    Names,
    Owner,
    Request,
)
from s4node.state.standby import position
from s4node.state.standby.position import Position, followed

HISTORIES = int(os.environ.get("HISTORIES", "1500"))


def test_a_follower_that_gets_to_the_claim_of_a_new_owner_has_what_a_restore_finds() -> None:
    histories = play_many(range(HISTORIES))
    assert sum(one.finished for one in histories) > HISTORIES / 3
    assert sum(one.begun_anew > 1 for one in histories) > HISTORIES / 10
    assert sum(one.rolled_back for one in histories) > HISTORIES / 20


# -- the histories find what is broken ------------------------------------------------------------


def test_the_histories_find_a_follower_that_does_not_read_checkpoints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Position, "agrees_with", lambda *_: True)
    with pytest.raises(AssertionError):
        play_many(range(20_000))


# -- by example -----------------------------------------------------------------------------------

ONE, TWO = Owner(1, "a" * 16), Owner(2, "b" * 16)


def follow(at: Position, *entries: remote_log.Entry) -> position.Followed | None:
    objects = {
        f"log/{remote_log.entry_name(at.number + n, None)}": remote_log.encoded(entry)
        for n, entry in enumerate(entries, 1)
    }
    steps = followed(at, PLACE)
    request = next(steps)
    while True:
        assert isinstance(request, remote_log.Get)
        try:
            request = steps.send([objects.get(place) for place in request.places])
        except StopIteration as done:
            found: position.Followed | None = done.value
            return found


def commit(owner: Owner, number: int, tries: int = 1) -> Commit:
    return Commit(owner, (owner.fence, number, tries), [(b"row", str(number).encode())])


def checkpoint(owner: Owner, base: int, last: CommitId) -> Checkpoint:
    return Checkpoint(owner, base, last, {}, {}, 0)


HERE = Position(5, (1, 3, 3), ONE)


def test_the_rows_of_many_commits_are_merged() -> None:
    found = follow(HERE, *(commit(ONE, number, number) for number in range(4, 104)))
    assert found is not None
    assert found[:4] == ((105, (1, 103, 103), ONE), {b"row": b"103"}, 100, None)


def test_all_entries_but_claims_may_be_removed_once() -> None:
    checkpointed = checkpoint(TWO, 8, (2, 5, 1))
    found = follow(HERE, commit(ONE, 4), Claim(TWO, None), commit(TWO, 5), checkpointed)
    assert found is not None
    assert list(found.removable.values()) == [True, False, True, True]


def test_a_second_try_of_the_last_commit_counts() -> None:
    found = follow(HERE, commit(ONE, 4, 4), commit(ONE, 4, 5), commit(ONE, 5, 6))
    assert found is not None
    assert found.position == (8, (1, 5, 6), ONE)
    assert follow(HERE, commit(ONE, 4, 4), commit(ONE, 4, 4)) is None


def test_a_missing_commit_or_one_of_another_owner_does_not_lead_on() -> None:
    assert follow(HERE, commit(ONE, 5)) is None
    assert follow(HERE, commit(TWO, 4)) is None
    found = follow(HERE, Claim(TWO, None), commit(TWO, 4))
    assert found is not None
    assert found.position == (7, (2, 4, 1), TWO)


def test_an_owner_that_began_from_other_state_is_not_followed() -> None:
    claim = Claim(TWO, None)
    assert follow(HERE, claim, checkpoint(TWO, 6, (1, 3, 0)), commit(TWO, 4)) is None
    same = follow(HERE, claim, checkpoint(TWO, 6, (1, 3, 3)), commit(TWO, 4))
    assert same is not None
    assert same.checkpoint == checkpoint(TWO, 6, (1, 3, 3))


def test_a_claim_that_two_checkpoints_replace_may_hide_something_else() -> None:
    first, second = checkpoint(TWO, 7, (2, 4, 1)), checkpoint(TWO, 7, (2, 4, 1))
    assert follow(HERE, Claim(TWO, None), commit(TWO, 4), first) is not None
    assert follow(HERE, Claim(TWO, None), commit(TWO, 4), first, second) is None
    after = Position(6, (1, 3, 3), TWO)
    assert follow(after, commit(TWO, 4), first, second) is not None


# -- set-up ---------------------------------------------------------------------------------------


class Following(History):
    """A history with a follower, whose owners sometimes begin from earlier state."""

    def __init__(self, seed: int) -> None:
        super().__init__(CREATE, seed)
        self.seen: tuple[Position, list[CommitId]] | None = None
        self.finished = False
        self.begun_anew = self.rolled_back = 0
        self._followers = 0

    def _life(self, commits: int | None = None) -> Generator[Request, Any, None]:
        if self._followers == 0:  # the first one only follows
            self._followers = 1
            return self._follower()
        return super()._life(commits)

    def _follower(self) -> Generator[Request, Any, None]:
        while True:
            self.seen = None
            self.begun_anew += 1
            try:
                tail = yield from remote_log.read((yield Names("log")), PLACE)
            except StateError:
                continue
            if tail.damaged or tail.gone or not tail.whole:
                continue
            state = ids_after(tail)
            if tail.checkpoint is not None:
                state = [*self.states[tail.checkpoint.written_ms], *state]
            at = Position.after(tail)
            while True:
                self.seen = at, state
                try:
                    found = yield from followed(at, PLACE)
                except StateError:
                    continue
                if found is None:
                    break
                rows = map(commit_of, found.rows)
                at, state = found.position, [*state, *(each for each in rows if each not in state)]

    def _begin(
        self, appender: Appender, kept: list[Checkpoint], state: list[CommitId]
    ) -> Generator[Request, Any, None]:
        """Sometimes go on from earlier state, under a new commit without a try. A job does not go
        back twice without a commit in between while somebody follows it."""
        if not state or not state[-1][2] or self.dice.random() < 0.2:
            return
        self.rolled_back += 1
        cut = self.dice.randrange(len(state))
        last = state[cut - 1][0] if cut else 0, state[-1][1], 0
        state[cut:] = [last]
        key = len(self.states)
        self.states[key] = list(state)
        checkpoint = Checkpoint(appender.owner, appender.number, last, {}, {}, key)
        while True:
            try:
                yield from appender.add(checkpoint)
            except StateError:
                continue
            break
        kept[:] = [*kept, checkpoint][-2:]

    def check(self) -> None:
        """A new owner, and the follower, which goes on to its claim."""

        def owner() -> Generator[Request, Any, None]:
            known = yield Both()
            fences = [each.owner.fence for each in remote_log.announced(known[0])]
            me = Owner(max(fences, default=0) + 1, f"{0:016x}")
            appender = Appender(CREATE, me, PLACE)
            yield from appender.claim("origin", me.fence, known)
            truth = yield from self._read([], (yield Names("log")), {})
            if self.seen is None:
                return
            at, state = self.seen
            found = yield from followed(at, PLACE, appender.own)
            if found is None or (found.position.number, found.position.owner) != (
                appender.number,
                me,
            ):
                return
            self.finished = True
            state = [*state, *map(commit_of, found.rows)]
            assert last_tries(state) == last_tries(truth)

        self._run(owner())


def commit_of(row: bytes) -> CommitId:
    fence, number, tries = map(int, row.split())
    return fence, number, tries


def last_tries(commits: list[CommitId]) -> dict[int, CommitId]:
    """The last try of each commit, which has all that earlier ones have."""
    return {commit[1]: commit for commit in commits}


def play_many(seeds: range) -> list[Following]:
    return [play(seed) for seed in seeds]


def play(seed: int) -> Following:
    history = Following(seed)
    try:
        history.play()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return history
