"""Histories of owners that append to one log at a store that loses answers, and what must hold.

A history is a seed: several owners claim the task one after the other or at the same time, commit,
write checkpoints and remove what those replace. Between any two requests another owner may go on,
and an owner may stop for good. A request may fail before or after it is done, and a put may arrive
much later. A list of two folders may see the second one later. The commits of an owner are its
state; a checkpoint has those before it.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Generator, Iterator, Mapping
from typing import Any

from s4node.errors import StateError, TaskFenced
from s4node.state import remote_log
from s4node.state.remote_log import (
    CREATE,
    Appender,
    Both,
    Checkpoint,
    Claim,
    Commit,
    CommitId,
    Get,
    Names,
    Owner,
    Put,
    Remove,
    Request,
    Row,
    Tail,
)
from s4node.state.remote_task import RemoteTask

PLACE = "memory"
_RUNS = (1, 1, 1, 2, 8)  # the requests of an owner before another one goes on


class Store:
    """Objects by place. ``ignores`` conditions, as some servers do."""

    def __init__(self, *, ignores: bool = False) -> None:
        self.folders: dict[str, dict[str, bytes]] = {"claims": {}, "log": {}}
        self.late: list[Put] = []
        self._ignores = ignores

    def answer(self, request: Request) -> Any:
        match request:
            case Put():
                return self.put(request)
            case Names(folder):
                return list(self.folders[folder])
            case Both():
                return list(self.folders["claims"]), list(self.folders["log"])
            case Get(places):
                return [self.folders["log"].get(place[4:]) for place in places]
            case Remove(places):
                for place in places:
                    self.folders["log"].pop(place[4:], None)
        return None

    def put(self, put: Put) -> bool:
        folder, _, name = put.place.partition("/")
        if put.new and not self._ignores and name in self.folders[folder]:
            return False
        self.folders[folder][name] = put.data
        return True

    def deliver(self, dice: random.Random) -> None:
        if self.late:
            self.put(self.late.pop(int(dice.random() * len(self.late))))


class History:
    """One history; ``play`` plays it, and raises AssertionError if something does not hold."""

    def __init__(
        self, way: str, seed: int, store: Store | None = None, *, faults: float = 0.12
    ) -> None:
        self.way = way
        self.dice = random.Random(seed)
        self.store = store or Store()
        self.counted: list[tuple[Owner, CommitId]] = []
        self.begun: dict[Owner, list[CommitId]] = {}  # the state that an owner began with
        self.states: dict[int, list[CommitId]] = {}  # of checkpoints
        self._names = 0
        self._faults = faults

    def play(self) -> None:
        dice = self.dice
        owners: list[tuple[Generator[Request, Any, None], list[Any]]] = []
        to_come = dice.randint(2, 5)
        for _ in range(dice.randint(20, 160)):
            if to_come and (not owners or dice.random() < 0.06):
                to_come -= 1
                owner = self._life()
                owners.append((owner, [next(owner)]))
            if dice.random() < 0.08:
                self.store.deliver(dice)
            if not owners:
                continue
            at = int(dice.random() * dice.random() * len(owners))
            for _ in range(_RUNS[int(dice.random() * len(_RUNS))]):
                if not self._step(*owners[at]):
                    del owners[at]
                    break
        for owner, request in owners:  # what is left goes on to its end, or stops
            while dice.random() < 0.9 and self._step(owner, request):
                pass
        self.check()

    def _step(self, owner: Generator[Request, Any, None], request: list[Any]) -> bool:
        """Answer an owner's request; return False if it has ended or stops for good."""
        dice, fault = self.dice, self.dice.random()
        asked = request[0]
        if isinstance(asked, Both) and len(request) == 1 and dice.random() < 0.5:
            request.append(self.store.answer(Names("claims")))  # and the log only later
            return True
        try:
            if fault < self._faults:
                if dice.random() < 0.05:
                    return False  # it is killed
                if isinstance(asked, Put):
                    if fault < self._faults / 3:
                        self.store.answer(asked)
                    elif fault < self._faults * 2 / 3:
                        self.store.late.append(asked)
                request[0] = owner.throw(StateError("no answer"))
            else:
                answer = self.store.answer(asked)
                if len(request) == 2:
                    answer = request.pop(), answer[1]
                request[0] = owner.send(answer)
        except (StopIteration, TaskFenced, StateError):
            return False
        return True

    def _life(self, commits: int | None = None) -> Generator[Request, Any, None]:
        """An owner: claims, reads, commits, and writes checkpoints."""
        known = yield Both()
        fence = max((each.owner.fence for each in remote_log.announced(known[0])), default=0) + 1
        self._names += 1
        owner = Owner(fence, f"{self._names:016x}")
        appender = Appender(self.way, owner, PLACE)
        appender.earlier.every = self.dice.randint(1, 6)
        yield from appender.claim("origin", fence, known)
        kept: list[Checkpoint] = []
        state = yield from self._read(kept, appender.begin[1], appender.own)
        yield from self._begin(appender, kept, state)
        self.begun[owner] = list(state)
        removable: dict[str, bool] = {}
        at = appender.number
        tries = 0
        first = state[-1][1] + 1 if state else 1
        many = self.dice.randint(1, 30) if commits is None else commits
        for number in range(first, first + many):
            while True:
                tries += 1
                commit = fence, number, tries
                try:
                    at = yield from appender.add(Commit(owner, commit, [row_of(commit)]))
                except StateError:
                    continue
                break
            state.append(commit)
            self.counted.append((owner, commit))
            if self.dice.random() < 0.3:
                key = len(self.states)
                self.states[key] = list(state)
                checkpoint = Checkpoint(owner, at, commit, {}, {}, key)
                try:
                    yield from appender.add(checkpoint)
                    kept = [*kept, checkpoint][-2:]
                    if len(kept) == 2:
                        yield from remote_log.sweep(kept[0].base, removable, PLACE)
                except StateError:
                    continue

    def _begin(
        self,
        appender: Appender,
        kept: list[Checkpoint],
        state: list[CommitId],
    ) -> Generator[Request, Any, None]:
        """The work of an owner before its first commit."""
        yield from ()

    def _read(
        self, kept: list[Checkpoint], names: Collection[str], known: Mapping[int, bytes]
    ) -> Generator[Request, Any, list[CommitId]]:
        while (tail := (yield from remote_log.read(names, PLACE, (), known))).gone:
            names = yield Names("log")  # its successor has removed what it has listed
            known = {}
        assert not tail.damaged, f"entry {tail.damaged} is missing"
        state: list[CommitId] = []
        if tail.checkpoint is not None:
            kept.append(tail.checkpoint)
            state = list(self.states[tail.checkpoint.written_ms])
        entries = [entry for _, entry in tail.entries if not isinstance(entry, Claim)]
        fences = [entry.owner.fence for entry in entries]
        assert fences == sorted(fences), fences
        return state + ids_after(tail)

    def check(self) -> None:
        """One more owner, with no faults: what counted is there, and what an owner has seen."""
        last: list[CommitId] = []

        def owner() -> Generator[Request, Any, None]:
            known = yield Both()
            fences = [each.owner.fence for each in remote_log.announced(known[0])]
            me = Owner(max(fences, default=0) + 1, f"{0:016x}")
            yield from Appender(self.way, me, PLACE).claim("origin", me.fence, known)
            last.extend((yield from self._read([], (yield Names("log")), {})))

        self._run(owner())
        at = {commit: n for n, commit in enumerate(last)}
        assert len(at) == len(last), "a commit is there twice"
        by_owner: dict[Owner, list[int]] = {}
        for who, commit in self.counted:
            assert commit in at, f"commit {commit} counted, and is lost"
            by_owner.setdefault(who, []).append(at[commit])
        for who, places in by_owner.items():
            assert places == sorted(places)
            began = self.begun[who]
            assert last[: len(began)] == began, f"{who} began with what is not in the log"

    def _run(self, steps: Generator[Request, Any, None]) -> None:
        try:
            request = next(steps)
            while True:
                request = steps.send(self.store.answer(request))
        except StopIteration:
            return


def ids_after(tail: Tail) -> list[CommitId]:
    """The commits after the checkpoint, whose rows are all there."""
    rows = {row for each in tail.commits for row, _ in each.rows}
    found = [commit for each in tail.commits for commit in (*each.before, each.commit)]
    if tail.base in found:
        del found[: found.index(tail.base) + 1]
    assert all(row_of(each)[0] in rows for each in found), "rows are missing"
    return found


def row_of(commit: CommitId) -> Row:
    """The row of a commit; a commit changes no other."""
    return b"%d %d %d" % commit, b""


class RealStore(Store):
    """The objects of a task at a URL."""

    def __init__(self, task: RemoteTask) -> None:
        super().__init__()
        task.highest()  # makes its folders
        self._task = task

    def answer(self, request: Request) -> Any:
        with self._task._files.translate_errors():
            return self._task._answer(request)

    def put(self, put: Put) -> bool:
        return bool(self.answer(put))


def play(way: str, seeds: Iterator[int] | range, *, ignores: bool = False) -> int:
    """Play histories, and return how many commits counted in them."""
    counted = 0
    for seed in seeds:
        history = History(way, seed, Store(ignores=ignores))
        try:
            history.play()
        except AssertionError as error:
            raise AssertionError(f"{way}, seed {seed}: {error}") from error
        counted += len(history.counted)
    return counted


def race(way: str, seed: int) -> int:
    """An owner that commits as fast as it can, and a claimer; returns the claimer's puts."""
    history = History(way, seed, faults=0)
    dice = random.Random(seed)
    owner = history._life(commits=10_000)
    asked = [next(owner)]
    for _ in range(40):
        assert history._step(owner, asked)
    claimer = history._life(commits=1)
    request = next(claimer)
    puts = 0
    every = dice.choice((1, 2, 3, 10))  # the owner's requests to one of the claimer's
    owns = True
    while True:
        if isinstance(request, Put) and request.place.startswith("log/"):
            puts += 1
        try:
            request = claimer.send(history.store.answer(request))
        except StopIteration:
            break
        for _ in range(dice.randint(1, every) if way == CREATE else every):
            owns = owns and history._step(owner, asked)
    history.check()
    return puts
