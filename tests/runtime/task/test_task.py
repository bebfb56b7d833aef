"""A task as a pure machine: ends, failures, commits, windows and stops in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from input_systems import RefusalList

from s4node.app.stream_task import Callback, Collector, Coordinator, Envelope, TaskApp
from s4node.events.event import Event, EventBatch
from s4node.offsets.input_progress import InputProgress
from s4node.offsets.receipts import BatchReceipt
from s4node.offsets.system import InputBatch, SystemStreamPartition
from s4node.runtime.loop.coordinator_requests import CoordinatorRequests
from s4node.runtime.task.actions import Actions, Ask, Asked
from s4node.runtime.task.gate import Gate, Op, Phase
from s4node.runtime.task.in_flight import InFlightEvents
from s4node.runtime.task.processor import Mode
from s4node.runtime.task.settings import TaskSettings
from s4node.runtime.task.stream_task_processor import StreamTaskProcessor
from s4node.runtime.task.task import Task, at_once
from s4node.stages.executors import StageSettings
from s4node.stages.stage import Stage
from s4node.state.rows import Changes

MOVE = st.one_of(
    st.tuples(st.just("offer"), st.integers(0, 1), st.lists(st.integers(0, 3), max_size=6)),
    st.tuples(
        st.just("end"),
        st.integers(0, 20),
        st.sampled_from(["done", "done", "done", "ignored", "commit", "shutdown"]),
    ),
    st.tuples(st.just("time"), st.integers(1, 40), st.none()),
    st.tuples(st.just("step"), st.none(), st.none()),
    st.tuples(st.just("settle"), st.none(), st.none()),
    st.tuples(st.just("ask"), st.none(), st.none()),
    st.tuples(st.just("end window"), st.none(), st.none()),
)
MOVES = st.one_of(st.lists(MOVE, max_size=8), st.lists(MOVE, min_size=15, max_size=60))
HOW = st.fixed_dictionaries(
    {
        "by_key": st.booleans(),
        "concurrency": st.integers(1, 4),
        "async_commit": st.booleans(),
        "whole": st.booleans(),
        "slow": st.booleans(),
    }
)


@settings(max_examples=300, deadline=None)
@given(MOVES, HOW)
def test_any_interleaving_keeps_the_rules_and_nothing_is_forgotten(
    moves: list[tuple[Any, ...]], how: dict[str, Any]
) -> None:
    machine = played(moves, **how)
    by_key = how["by_key"]
    if not machine.over:
        machine.finish()
        assert [p.safe for p in machine.progress] == machine.offered  # all was processed
        for stream, count in zip(("clicks", "views"), machine.offered, strict=True):
            mine = [offset for name, offset in machine.user.began if name == stream]
            assert sorted(mine) == list(range(count))
            if not by_key:
                assert mine == list(range(count))
        if by_key:
            for user in range(4):
                for stream in ("clicks", "views"):
                    mine = [
                        p[1]
                        for p in machine.user.began
                        if p[0] == stream and machine.users[p] == user
                    ]
                    assert mine == sorted(mine)
    machine.task.drain()
    machine.finish()
    assert machine.task.next_op() is Op.DONE
    safe = tuple(progress.safe for progress in machine.progress)
    if any(safe):
        assert machine.commits[-1] == safe  # the last commit covers all, and exactly what is done
    assert {(s.stream, n) for s, upto in zip(SSPS, safe, strict=True) for n in range(upto)} == set(
        machine.user.began
    )  # so a restart neither replays nor skips anything
    for stage in machine.task.backlog.stages.values():
        stage.validate()
        assert stage.depth == 0


@settings(max_examples=300, deadline=None)
@given(MOVES, HOW)
def test_a_task_that_is_handed_over_has_done_all_before_the_offset_to_resume_at_and_none_after(
    moves: list[tuple[Any, ...]], how: dict[str, Any]
) -> None:
    machine = played(moves, **how)
    machine.task.retire()
    machine.finish()
    assert machine.task.has_retired
    begun = len(machine.user.began)
    machine.settle()
    assert len(machine.user.began) == begun
    machine.task.leave_none_behind()
    for progress in machine.progress:
        mine = [offset for name, offset in machine.user.began if name == progress.ssp.stream]
        assert sorted(mine) == list(range(progress.safe))


@pytest.mark.parametrize("async_commit", [False, True])
def test_each_commit_that_was_asked_for_covers_exactly_its_event(async_commit: bool) -> None:
    machine = Machine(by_key=False, concurrency=4, async_commit=async_commit)
    machine.offer(0, [0, 1, 2, 3])
    machine.settle()
    machine.end(3, "done")
    machine.end(2, "commit")
    machine.end(1, "commit")
    machine.settle()
    assert machine.commits == []
    machine.end(0, "done")
    machine.settle()
    assert machine.commits == [(2, 0), (3, 0)]
    assert machine.progress[0].safe == 4


def test_a_due_window_waits_for_events_in_flight_and_lets_none_begin() -> None:
    machine = Machine(by_key=False, concurrency=2, async_commit=False)
    machine.offer(0, [0, 1, 2])
    machine.settle()
    machine.now = 25.0  # two ticks
    machine.end(0, "done")
    machine.settle()
    assert (len(machine.user.began), machine.user.windows) == (2, 0)
    machine.end(0, "done")
    machine.settle()
    assert (len(machine.user.began), machine.user.windows) == (3, 1)


def test_a_commit_that_waits_for_events_begins_none_during_a_window() -> None:
    machine = Machine(by_key=True, concurrency=2, async_commit=False, whole=True, slow=True)
    machine.now = 10.0
    machine.step()
    machine.offer(0, [0, 1, 2])
    machine.settle()  # they are looked at
    machine.task.want_commit()
    machine.settle()
    assert (machine.in_window, machine.user.began) == (True, [])
    machine.finish()
    assert (len(machine.user.began), machine.commits) == (3, [(3, 0)])


@pytest.mark.parametrize("held", ["clicks", "views"])
def test_a_batch_that_was_put_aside_is_done_when_all_of_it_has_ended(held: str) -> None:
    entries = InFlightEvents(4, 0)
    batches = {name: EventBatch(name, 0, [Click(0), Click(1)]) for name in ("clicks", "views")}
    first = {name: entries.look(batch, in_order=False) for name, batch in batches.items()}
    for name in (held, *(batches.keys() - {held})):
        batches[name].at += 1
        entry = entries.look(batches[name], in_order=False)
        assert entry.load is first[name].load
        assert entry.load.left == 2


@pytest.mark.parametrize(("patience", "at"), [(0.0, 6.0), (1.0, 7.0)])
def test_a_commit_before_its_interval_begins_only_if_somebody_waits_for_it(
    patience: float, at: float
) -> None:
    machine = Machine(by_key=False, concurrency=2, async_commit=False)
    commits = []
    for now in (5.0, 6.0, 6.9, 7.0, 34.0, 35.0):
        machine.now = now
        if now == 6.0:
            assert machine.task.await_commit(patience)
        machine.settle()
        commits += [now] * (len(machine.commits) - len(commits))
    assert commits == [at, 35.0]


def test_requests_are_heeded_in_the_order_of_events_and_not_of_their_ends() -> None:
    machine = Machine(by_key=False, concurrency=3, async_commit=False)
    machine.offer(0, [0, 1, 2])
    machine.settle()
    machine.end(2, "shutdown")
    machine.settle()
    assert machine.shutdowns == 0
    machine.end(1, "done")
    machine.end(0, "done")
    machine.settle()
    assert machine.shutdowns == 1


def test_a_request_is_taken_once() -> None:
    asked = Asked()
    asked.commit()
    asked.shutdown(all_tasks=True)
    found = asked.taken()
    assert (found.commit_this, found.commit_all) == (True, False)
    assert (found.shutdown_this, found.shutdown_all) == (True, True)
    again = asked.taken()
    left = (again.any, again.commit_this, again.shutdown_this, again.shutdown_all)
    assert left == (False, False, False, False)


def test_a_task_begins_nothing_before_it_has_started_and_drains_if_it_was_told_to() -> None:
    machine = Machine(by_key=False, concurrency=1, async_commit=False)
    machine.task.gate = Gate(phase=Phase.CREATED)
    machine.offer(0, [0])
    assert machine.task.next_op() is Op.NOTHING
    machine.task.drain()
    assert machine.task.gate.phase is Phase.DRAINING
    with pytest.raises(StopIteration):
        machine.task.start().send(None)
    assert machine.task.gate.phase is Phase.DRAINING
    assert machine.task.next_op() is Op.DONE  # what can be read again was given back


def test_a_task_that_has_failed_is_neither_drained_nor_retired() -> None:
    machine = Machine(by_key=False, concurrency=1, async_commit=False)
    machine.task.gate.enter(Phase.FAILED)
    machine.task.drain()
    machine.task.retire()
    assert machine.task.gate.phase is Phase.FAILED
    assert not machine.task.has_retired
    assert machine.task.busy


# -- set-up ---------------------------------------------------------------------------------------


class Click(Event):
    user: int


SSPS = [SystemStreamPartition("log", stream, 0) for stream in ("clicks", "views")]


class Held:
    """Keeps its callbacks, and asks for what the machine says at an event."""

    def __init__(self) -> None:
        self.open: dict[tuple[str, int], tuple[Callback, Coordinator]] = {}
        self.began: list[tuple[str, int]] = []
        self.windows = 0

    def process_async(
        self, envelope: Envelope, _c: Collector, coordinator: Coordinator, callback: Callback
    ) -> None:
        place = envelope.stream, envelope.offset
        self.open[place] = callback, coordinator
        self.began.append(place)

    def window(self, _c: Collector, _k: Coordinator) -> None:
        assert not self.open
        self.windows += 1


class Nothing:
    """The state of a task that has no stores."""

    def __init__(self) -> None:
        self.changes = Changes()
        self.stores: dict[str, Any] = {}
        self.instances: dict[str, Any] = {}
        self.tables: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        self.meta = self.facts.get
        self.set_meta = self.facts.__setitem__


class Machine:
    """One task, two inputs, and what becomes of them. It puts on a stream if its commits are
    ``whole``; its windows last until they are ended if they are ``slow``."""

    def __init__(
        self,
        *,
        by_key: bool,
        concurrency: int,
        async_commit: bool,
        whole: bool = False,
        slow: bool = False,
    ) -> None:
        app = TaskApp("machine", Held, inputs=["log.clicks", "log.views"])
        for ssp in SSPS:
            stream = app.create_input_stream(ssp.stream, types=Click, key="user")
            stream.system = ssp.system
        if whole:
            app.create_output_stream("out", types=Click)
        self.whole, self.slow = whole, slow
        self.in_window = False
        self.now = 0.0
        chosen = TaskSettings(
            concurrency,
            by_key,
            window=10.0,
            commit=35.0,
            async_commit=async_commit,
            ignored=frozenset({"KeyError"}),
        )
        self.processor = StreamTaskProcessor(
            app, 0, lambda: self.now, name="Partition 0", settings=chosen
        )
        assert isinstance(self.processor.task, Held)
        self.user = self.processor.task
        self.task = Task(
            app,
            0,
            stages={ssp.stream: Stage(1000) for ssp in SSPS},
            clock=lambda: self.now,
            held=set(),
            processor=self.processor,
            settings=chosen,
        )
        self.shutdowns = 0
        self.over = False  # a shutdown was asked for
        self.requests = CoordinatorRequests()
        self.requests.add(self.task)
        self.progress = [InputProgress(ssp, 0, RefusalList()) for ssp in SSPS]
        self.offered = [0, 0]
        self.users: dict[tuple[str, int], int] = {}
        self.ended: set[tuple[str, int]] = set()
        self.wishes: set[tuple[str, int]] = set()  # ended, and a commit was asked for at them
        self.commits: list[tuple[int, ...]] = []
        for ssp in SSPS:
            self.task.backlog.add_input(ssp, Stage(StageSettings(stream=ssp.stream)))
        self.task.attach_state(Nothing(), 1 << 20)  # type: ignore[arg-type]
        with pytest.raises(StopIteration):  # it has nothing to wait for
            self.task.start().send(None)

    def _carry_out(self, actions: Actions) -> None:
        for action in actions:
            if isinstance(action, Ask):
                self.requests.apply(self.task, action.asked)
                if self.requests.stopping and not self.shutdowns:
                    self.shutdowns += 1
                    self.task.give_back()

    def _commit(self, task: Task) -> None:
        safe = tuple(progress.safe for progress in self.progress)
        if not task.gate.async_commit:
            assert not self.user.open  # a commit is alone
        for ssp, upto in zip(SSPS, safe, strict=True):
            for offset in range(upto):
                assert (ssp.stream, offset) in self.ended  # covers only what is done
        if self.whole and not task.gate.async_commit:
            assert sum(safe) == len(self.ended)  # and all of it
        self.commits.append(safe)

    # -- moves

    def offer(self, which: int, users: list[int]) -> None:
        ssp, first = SSPS[which], self.offered[which]
        batch = InputBatch(ssp, first, len(users), 0, 0)
        batch.events = [Click(user) for user in users]
        batch.receipt = BatchReceipt(self.progress[which], first, first + len(users))
        for index, user in enumerate(users):
            self.users[ssp.stream, first + index] = user
        self.offered[which] += len(users)
        self.task.backlog.offer(batch)

    def end(self, pick: int, how: str) -> None:
        if not self.user.open:
            return
        place = sorted(self.user.open)[pick % len(self.user.open)]
        callback, coordinator = self.user.open.pop(place)
        if how == "commit":
            coordinator.commit()
            self.wishes.add(place)
        elif how == "shutdown":
            coordinator.shutdown()
            self.over = True
        if how == "ignored":
            callback.failure(KeyError("ignored"))
        else:
            callback.complete()
        self.ended.add(place)

    def step(self) -> bool:
        """Take one step, as the loop does; whether there was one."""
        task = self.task
        task.check_due(self.now)
        if task.in_flight is not None:
            self._carry_out(task.in_flight.end_arrived())
        op = task.next_op()
        if op in (Op.NOTHING, Op.DONE):
            return False
        if task.mode(op) is Mode.TOGETHER:
            assert task.in_flight is not None
            entry = task.in_flight.begin_event(self.now)
            assert entry is not None
            self.processor.begin_one(entry, task.in_flight.end_soon)
        else:
            self.in_window = op is Op.WINDOW and self.slow
            task.begin_step(op, Mode.AWAIT if self.in_window else Mode.LOOP)
            if op is Op.COMMIT:
                self._commit(task)
                self._carry_out(task.end_step(op, True))
            elif not self.in_window:
                self._carry_out(task.end_step(op, at_once(task.run(op, 100))))
        self.check()
        return True

    def end_window(self) -> None:
        if self.in_window:
            self.in_window = False
            self._carry_out(self.task.end_step(Op.WINDOW, at_once(self.task.run(Op.WINDOW, 100))))

    def check(self) -> None:
        gate = self.task.gate
        gate.validate()
        assert not (self.in_window and self.user.open)  # a window is alone
        assert len(self.user.open) <= gate.max_concurrency
        for which, ssp in enumerate(SSPS):
            safe = self.progress[which].safe
            assert all((ssp.stream, offset) in self.ended for offset in range(safe))
        if self.processor.by_key:
            users = [self.users[place] for place in self.user.open]
            assert len(users) == len(set(users))

    def settle(self) -> None:
        while self.step():
            pass

    def finish(self) -> None:
        """End all that is under way, and what comes of that."""
        self.settle()
        while self.user.open or self.in_window:
            self.end_window()
            self.end(0, "done")
            self.settle()


def played(moves: list[tuple[Any, ...]], **how: Any) -> Machine:
    machine = Machine(**how)
    doing: dict[str, Callable[..., Any]] = {
        "offer": machine.offer,
        "end": machine.end,
        "step": lambda *_: machine.step(),
        "settle": lambda *_: machine.settle(),
        "ask": lambda *_: machine.task.want_commit(),
        "end window": lambda *_: machine.end_window(),
    }
    for move, one, other in moves:
        if move == "time":
            machine.now += one
        else:
            doing[move](one, other)
        machine.check()
    return machine
