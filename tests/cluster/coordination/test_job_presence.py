"""Containers of a job, on nodes that share the coordination and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from s4node.cluster.coordination.entries import AppId
from s4node.cluster.coordination.job_presence import JobPresence
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.tree.contract import Session
from s4node.cluster.tree.folder import FolderCoordination
from s4node.errors import JobRuns


async def test_a_start_is_one_for_all_containers_and_ends_with_the_last(tmp_path: Path) -> None:
    coordination = FolderCoordination(tmp_path)
    async with coordination.session("other") as other:
        async with coordination.session("one") as one:
            start = (await JobPresence(Registry(one), JOB).enter(one_state, nothing)).start
            async with coordination.session("two") as two:
                assert (
                    await JobPresence(Registry(two), JOB).enter(one_state, nothing)
                ).start == start
            with pytest.raises(JobRuns, match=r"'east\.count' is running; stop all"):
                async with JobPresence(Registry(other), JOB).stopped():
                    pass
        async with JobPresence(Registry(other), JOB).stopped():
            pass
        again = await JobPresence(Registry(other), JOB).enter(one_state, nothing)
        assert again.start not in ("", start)
        sum_ = await JobPresence(Registry(other), AppId("east", "sum")).enter(one_state, nothing)
        assert sum_.start not in ("", start, again.start)


async def test_a_container_waits_while_somebody_needs_the_job_not_to_run(tmp_path: Path) -> None:
    coordination = FolderCoordination(tmp_path)
    order: list[str] = []
    waits = trio.Event()

    async def enter() -> None:
        async with coordination.session("container") as session:
            wait_change = session.wait_change

            async def waiting(path: str, seen: int) -> None:
                waits.set()
                await wait_change(path, seen)

            session.wait_change = waiting  # type: ignore[method-assign]
            await JobPresence(Registry(session), JOB).enter(one_state, nothing)
            order.append("started")

    async with coordination.session("import") as session, trio.open_nursery() as nursery:
        presence = JobPresence(Registry(session), JOB)
        async with presence.stopped():
            nursery.start_soon(enter)
            await waits.wait()
            order.append("let go")
    assert order == ["let go", "started"]


async def test_what_held_the_gate_and_died_lets_go_of_it(tmp_path: Path) -> None:
    coordination = FolderCoordination(tmp_path)
    async with coordination.session("waits") as waits:
        async with coordination.session("dies") as dies:
            await dies.create("/clusters/east/apps/count/gate", ephemeral=True)
        with trio.fail_after(10):
            await JobPresence(Registry(waits), JOB).enter(one_state, nothing)


async def test_the_state_of_a_job_is_that_of_its_first_container_until_a_start_adopts_another(
    tmp_path: Path,
) -> None:
    coordination = FolderCoordination(tmp_path)
    async with coordination.session("one") as one, coordination.session("two") as two:
        first, second = JobPresence(Registry(one), JOB), JobPresence(Registry(two), JOB)
        assert (await first.enter(one_state, nothing))[1:] == ("one", "one")
        assert (await second.enter(other_state, nothing, adopt=True))[1:] == (
            "other",
            "one",
        )  # it runs
    async with coordination.session("three") as three:
        presence = JobPresence(Registry(three), JOB)
        assert (await presence.enter(other_state, nothing))[1:] == ("other", "one")
    async with coordination.session("four") as four:
        presence = JobPresence(Registry(four), JOB)
        assert (await presence.enter(other_state, nothing, adopt=True))[1:] == ("other", "other")


async def test_what_belongs_to_a_start_is_done_by_the_first_container_with_a_state(
    tmp_path: Path,
) -> None:
    coordination = FolderCoordination(tmp_path)
    done: list[str] = []

    async def enter(session: Session, name: str, state: Callable[[], Awaitable[str]]) -> None:
        async def at_start() -> None:
            done.append(name)

        await JobPresence(Registry(session), JOB).enter(state, at_start)

    async with (
        coordination.session("one") as one,
        coordination.session("two") as two,
        coordination.session("three") as three,
    ):
        await enter(one, "one", one_state)
        await enter(two, "two", other_state)
        await enter(three, "three", other_state)
    assert done == ["one", "two"]
    async with coordination.session("four") as four:
        await enter(four, "four", one_state)
    assert done == ["one", "two", "four"]


# -- set-up ---------------------------------------------------------------------------------------


JOB = AppId("east", "count")


async def one_state() -> str:
    return "one"


async def other_state() -> str:
    return "other"


async def nothing() -> None:
    pass
