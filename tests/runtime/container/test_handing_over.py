"""A task is handed over in the middle of something: nothing of it is left behind, and nothing lost.

Containers of one process, real sockets, and inputs in memory. ``n0`` runs alone until ``n1`` comes,
which gets the last partition.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from failing import Click, Store, Stores, counted, fill, ssp, stored, truth
from harness import free_port, until, until_told
from several_containers import Nodes, nodes
from shared_apps import OnePE, counting

from s4node import App, Client, ProcessingElement, TaskApp
from s4node.cluster.coordination.entries import AppId
from s4node.cluster.coordination.membership import Membership
from s4node.cluster.coordination.registry import Registry
from s4node.events.keys import Partitioner
from s4node.runtime.container import announcement
from s4node.runtime.container.container import Container
from s4node.runtime.container.ownership import Ownership
from s4node.runtime.task.gate import Phase
from s4node.runtime.task.task import Task
from s4node.stages.stage import Overflow
from s4node.state import task_state
from s4node.state.key_value_store import KeyValueStore
from s4node.state.task_state import TaskState
from s4node.systems.memory import MemorySystem

# -- inputs ---------------------------------------------------------------------------------------


async def test_a_task_that_fails_while_it_is_handed_over_loses_nothing(
    system: MemorySystem, settings: dict[str, str], tmp_path: Path
) -> None:
    closing, closed = trio.Event(), trio.Event()

    class Slow(Store):
        async def close(self) -> None:
            closing.set()
            await closed.wait()

    clicks = fill(system, 500, lambda n: n > 400 and n % 3 == 0)
    settings |= {"s4.stream.clicks.onError": "skip", "task.commit.ms": "1000000"}
    async with two(tmp_path, lambda: Stores("stores", Slow), settings) as it:
        await closing.wait()
        await it.begin()
        closed.set()
        await it.end()
        await it.processed(system)
        assert it.sum_of(stored) == truth(clicks)


async def test_a_container_that_hands_over_its_only_open_input_is_told_of_the_end_of_the_others(
    system: MemorySystem, settings: dict[str, str], tmp_path: Path
) -> None:
    clicks = fill(system, 100, lambda _: False)
    system.end_partition("clicks", 0)
    async with two(tmp_path, lambda: Stores("stores", Store), settings) as it:
        await it.hand_over()
        await until(it.old._stopping.is_set)
        await until(lambda: len(it.new.tasks) == 2)
        await it.processed(system)
        assert stored(it.new) == truth(clicks)


class Forgetful(TaskApp):
    """With stores of which rows are over after a time."""

    def on_init(self) -> None:
        self.create_input_stream("clicks", key="user", types=Click, system="memory")
        self.create_output_stream("seen", types=Click)
        for name in ("counts", "others", "more", "most"):
            self.create_store(name, key=str, value=int, ttl=3600)


async def test_a_task_is_handed_over_while_its_expired_rows_are_deleted(
    system: MemorySystem,
    settings: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expire, close = KeyValueStore.expire, TaskState.close
    looked: list[bool] = []
    closed: list[Any] = []

    def note(store: KeyValueStore[Any, Any], *arguments: Any) -> bytes:
        time.sleep(0.02)  # there is much of it, or the machine is slow
        looked.append(store._rows not in closed)
        return expire(store, *arguments)

    def note_closed(state: TaskState) -> None:
        closed.append(state.database)
        close(state)

    monkeypatch.setattr(KeyValueStore, "expire", note)
    monkeypatch.setattr(TaskState, "close", note_closed)
    clicks = fill(system, 100, lambda _: False)
    settings["task.commit.ms"] = "1000000"
    async with two(tmp_path, lambda: Forgetful("stores", Store), settings) as it:
        await it.hand_over()
        await it.processed(system)
        assert it.sum_of(stored) == truth(clicks)
    assert all(looked)


async def test_no_stage_of_a_task_that_was_handed_over_is_given_a_spill(
    system: MemorySystem, settings: dict[str, str], tmp_path: Path
) -> None:
    clicks = fill(system, 100, lambda _: False)
    async with two(tmp_path, lambda: Stores("stores", Store), settings) as it:
        pipeline = it.old.parts.pipeline
        await it.hand_over()
        spill, partitions = pipeline.overflow_of, []

        def noted(stream: str, partition: int) -> Overflow:
            partitions.append(partition)
            assert spill is not None
            return spill(stream, partition)

        pipeline.overflow_of = noted
        pipeline.learn("clicks", "clicks")  # it feeds itself, and only now is that known
        assert set(partitions) == {0}
        await it.processed(system)
        assert it.sum_of(stored) == truth(clicks)


# -- what tasks put -------------------------------------------------------------------------------


def passing() -> App:
    app = OnePE(
        counting(Click, lambda pe, event: pe.seen.put(event)), name="passing", system="memory"
    )
    app.pe.seen = app.create_output_stream("seen", key="user", types=Click)
    return app


async def test_a_full_outbox_that_is_handed_over_holds_no_task(
    system: MemorySystem,
    settings: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_state, "CHANGES_BYTES", 2000)
    system.create("clicks", 2)
    home = Partitioner(2)
    users = {home.partition_of(user): user for user in map(str, range(100))}
    settings |= {
        "s4.stream.seen.consumers": "elsewhere",  # which nobody runs
        "s4.cluster.elsewhere.address": f"tcp://127.0.0.1:{free_port()}",
        "task.commit.ms": "20",
    }
    async with two(tmp_path, passing, settings) as it:
        system.put("clicks", 1, *(Click(users[1], n) for n in range(1000)))
        await until(lambda: "clicks" in it.old.parts.pipeline.order.held)
        system.put("clicks", 0, Click(users[0]))
        await until(lambda: it.old.tasks[0].backlog.stages[ssp(0)].depth)
        assert it.old.tasks[0].processed == 0
        await it.hand_over()
        await until(lambda: it.old.tasks[0].processed == 1)
        assert not it.old.parts.pipeline.full


# -- producers ------------------------------------------------------------------------------------


async def test_a_producer_that_waits_for_its_earlier_life_is_answered_by_the_next_owner(
    settings: dict[str, str], tmp_path: Path
) -> None:
    begun, may_end = trio.Event(), trio.Event()

    class Waiting(ProcessingElement):
        clicks: int = 0

        async def on_event(self, event: Click) -> None:
            begun.set()
            await may_end.wait()
            self.clicks += 1

    home = Partitioner(2)
    user = next(user for user in map(str, range(100)) if home.partition_of(user) == 1)
    del settings["systems.memory.samza.offset.default"]
    settings |= {"s4.stream.clicks.grade": "durable", "task.commit.ms": "1000000"}
    async with two(tmp_path, lambda: OnePE(Waiting), settings) as it:
        async with trio.open_nursery() as first_life:

            async def send() -> None:
                async with Client(it.old.address, producer="clicker") as client:
                    stream = await client.stream("clicks", again=True)
                    lanes = it.old.ports["clicks"].admission.lanes
                    for number in range(5):
                        await stream.send(Click(user, number))
                        await until(lambda: lanes["clicker", 1].expected > number)  # noqa: B023
                    await trio.sleep_forever()

            first_life.start_soon(send)
            await begun.wait()
            lanes = it.old.ports["clicks"].admission.lanes
            await until(lambda: lanes["clicker", 1].expected == 5)
            first_life.cancel_scope.cancel()
        await until(lambda: lanes["clicker", 1].connection is None)
        async with trio.open_nursery() as second_life:

            async def go_on() -> None:
                async with Client(it.old.address, producer="clicker") as client:
                    stream = await client.stream("clicks", again=True)
                    for number in range(5):
                        await stream.send(Click(user, number))
                    await trio.sleep_forever()

            second_life.start_soon(go_on)
            await until(lambda: lanes["clicker", 1].settlement.awaited)
            await it.begin()
            may_end.set()
            await it.end()
            await until(lambda: it.sum_of(counted) == {user: 5})
            second_life.cancel_scope.cancel()


# -- members that come -----------------------------------------------------------------------------


async def test_partitions_move_one_after_the_other_so_that_each_pauses_for_its_own_move(
    system: MemorySystem,
    settings: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hand_over, ready = Ownership._hand_over, []

    async def noted(ownership: Ownership, partition: int) -> None:
        given = {p for p, epoch in enumerate(ownership.view.epochs) if epoch > 1}
        ready.append(given == it.new.parts.ownership.view.mine)  # all of it takes events
        await hand_over(ownership, partition)

    monkeypatch.setattr(Ownership, "_hand_over", noted)
    fill(system, 100, lambda _: False, partitions=8)
    async with two(tmp_path, lambda: Stores("stores", Store), settings, partitions=8) as it:
        await it.begin()
        await until(lambda: len(it.new.tasks) == 4)
        await it.processed(system)
    assert ready == [True] * 4


async def test_a_move_that_does_not_end_keeps_no_other_from_the_next_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcement, "PATIENCE_SECONDS", 0.1)
    stuck = hanging(monkeypatch, 0)
    async with durable_nodes(tmp_path, 2, 6) as (all_nodes, nursery):
        late = (await all_nodes.start("n2", nursery)).parts.ownership  # gets one of each
        await until(lambda: len(late.view.mine) == 1, "the other partition has moved")
        assert late.view.coming == set(stuck)


async def test_an_owner_whose_hand_over_does_not_end_hands_over_others_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcement, "PATIENCE_SECONDS", 0.1)
    stuck = hanging(monkeypatch, 1)
    async with durable_nodes(tmp_path, 1, 8) as (all_nodes, nursery):
        late = (await all_nodes.start("n1", nursery)).parts.ownership
        await until(lambda: len(late.view.mine) == 3, "all but one of its share have moved")
        assert late.view.coming == set(stuck)


async def test_an_owner_whose_hand_over_does_not_end_learns_of_other_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = hanging(monkeypatch, 0)
    async with durable_nodes(tmp_path, 2, 4) as (all_nodes, nursery):
        late = await all_nodes.start("n2", nursery)
        await until(lambda: bool(stuck), "one is being handed over")
        for name, container in list(all_nodes.containers.items()):
            if container is not late and stuck[0] not in container.tasks:
                all_nodes.kill(name)
        (former,) = (one for one in all_nodes.containers.values() if one is not late)
        view = former.parts.ownership.view
        assert view.owners.count(late.address) == 0
        await until(lambda: former.parts.ownership.view.owners.count(late.address) == 2)
        assert stuck[0] in former.tasks


async def test_a_member_that_restores_other_partitions_is_ready_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging(monkeypatch, 1)
    take, said = Membership.take, []

    async def slow(membership: Membership, partitions: Iterable[int]) -> None:
        """Meanwhile views come, of which only the last one counts."""
        await take(membership, partitions)
        await until(lambda: not partitions or bool(membership.view.mine))

    monkeypatch.setattr(Membership, "take", slow)
    async with (
        durable_nodes(tmp_path, 1, 8) as (all_nodes, nursery),
        all_nodes.coordination.session("spectator") as session,
    ):
        second = await all_nodes.start("n1", nursery)
        await until(lambda: len(second.tasks) == 1, "which is all that it gets")
        late = await all_nodes.start("n2", nursery)
        restore = late.replay.restore.restore

        async def ready() -> tuple[int, ...]:
            found = await Registry(session).member(AppId("default", "app"), "n2")
            assert found is not None
            return found.value.ready

        async def noted(tasks: Collection[Task], origin: str, since: Sequence[int]) -> None:
            if tasks and not said:  # not at the end, when it gets all
                said.append(await ready())
            await restore(tasks, origin, since)

        late.replay.restore.restore = noted  # type: ignore[method-assign]
        await until_told(ready, bool)
        all_nodes.kill("n1")
        await until(lambda: len(late.tasks) == 1, "it has that of the dead one")
        await until_told(ready, bool)
    assert said == [()]


async def test_a_member_has_not_settled_while_partitions_wait_for_a_dead_owner_to_return(
    tmp_path: Path,
) -> None:
    async with durable_nodes(tmp_path, 2, 4, stay=600.0) as (all_nodes, nursery):
        first = all_nodes.containers["n0"].parts.ownership
        all_nodes.kill("n1")
        await until(lambda: first.view.owners.count("") == 2)
        late = (await all_nodes.start("n2", nursery)).parts.ownership
        assert not late.settled.is_set()  # it gets some of what the first and the dead one have
        await all_nodes.start("n1", nursery)
        await late.settled.wait()
        assert len(late.view.mine) == 1


# -- set-up ---------------------------------------------------------------------------------------


class Two:
    """``old`` has all partitions until ``hand_over`` makes ``new``."""

    def __init__(self, all_nodes: Nodes, nursery: trio.Nursery, partitions: int) -> None:
        self.partitions = partitions
        self.old = all_nodes.containers["n0"]
        self.new: Container
        self._nodes = all_nodes
        self._nursery = nursery

    async def begin(self) -> None:
        """Have the last partition handed over; returns when its task begins nothing more."""
        self.new = await self._nodes.start("n1", self._nursery)
        last, tasks, ownership = self.partitions - 1, self.old.tasks, self.old.parts.ownership
        still = (Phase.RETIRING, Phase.FAILED)
        await until(
            lambda: (
                last not in tasks
                or (last in ownership.view.to_hand_over and tasks[last].gate.phase in still)
            )
        )

    async def end(self) -> None:
        last = self.partitions - 1
        await until(lambda: last in self.new.tasks)
        assert last not in self.old.tasks

    async def hand_over(self) -> None:
        await self.begin()
        await self.end()

    async def processed(self, system: MemorySystem) -> None:
        """Return when all that is in the clicks was processed, by whichever of the two."""
        for partition in range(self.partitions):
            upcoming = (await system.bounds(ssp(partition))).upcoming

            def done(partition: int = partition, end: int = upcoming) -> bool:
                owner = self.new if partition in self.new.tasks else self.old
                mine = owner.replay.consumers.progress.get(partition, {}).get(ssp(partition))
                return mine is not None and mine.safe >= end

            await until(done, f"partition {partition} up to {upcoming}")

    def sum_of(self, state: Callable[[Container], Mapping[str, int]]) -> Counter[str]:
        """The counts of both."""
        return Counter(state(self.old)) + Counter(state(self.new))


def hanging(monkeypatch: pytest.MonkeyPatch, after: int) -> list[int]:
    """Have one hand-over never end, after so many others. Returns where its partition goes."""
    hand_over, begun, stuck = Ownership._hand_over, [], []

    async def hang(ownership: Ownership, partition: int) -> None:
        begun.append(partition)
        if len(begun) == after + 1:
            stuck.append(partition)
            await trio.sleep_forever()
        await hand_over(ownership, partition)

    monkeypatch.setattr(Ownership, "_hand_over", hang)
    return stuck


@asynccontextmanager
async def durable_nodes(
    folder: Path, count: int, partitions: int, stay: float = 0.0
) -> AsyncIterator[tuple[Nodes, trio.Nursery]]:
    """The containers of an app whose partitions move one after the other."""
    durable = {"s4.stream.clicks.grade": "durable", "s4.state.folder": str(folder / "state")}
    app, place = (lambda: OnePE(counting(Click))), folder / "cluster"
    async with nodes(place, app, count, partitions, stay=stay, **durable) as found:
        yield found


@asynccontextmanager
async def two(
    folder: Path, make: Callable[[], App], settings: dict[str, str], partitions: int = 2
) -> AsyncIterator[Two]:
    async with nodes(folder / "cluster", make, 1, partitions, **settings) as (all_nodes, nursery):
        yield Two(all_nodes, nursery, partitions)
