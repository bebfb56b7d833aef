"""Commands whose session is lost go on in another one, and find what they have begun."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio
from harness import until, until_told
from lost_sessions import end_sessions

from s4node import Config
from s4node.cli.drain import drain
from s4node.cli.job import Job
from s4node.cluster.coordination.assignment import Assignment, Owner
from s4node.cluster.coordination.entries import AppId, AppInfo, MemberInfo, NodeInfo
from s4node.cluster.coordination.job_presence import JobPresence
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.coordination.startpoint_store import StartpointStore
from s4node.cluster.tree.folder import FolderCoordination
from s4node.cluster.tree.tree_database import Tree
from s4node.errors import StartpointError
from s4node.offsets.startpoint import Oldest
from s4node.offsets.startpoint_fan_out import Request, Requests

SHOP = AppId("shop", "counter")
SET = Request("a1", "log", "clicks", 0, Oldest(), 1000)


async def test_startpoints_whose_session_is_lost_before_they_are_written_are_written_in_another_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = StartpointStore(tmp_path, Config())
    lost: list[int] = []

    def put(them: Requests) -> tuple[Requests, list[Request]]:
        if not lost:
            lost.append(end_sessions(tmp_path / "coordination", "startpoints"))
        return them.put([SET])

    assert await store.change("state", put) == [SET]
    assert lost == [1]
    assert (await store.requests("state")).asked == (SET,)
    assert "the change of startpoints goes on in another one" in capsys.readouterr().err


async def test_a_deletion_of_startpoints_that_a_lost_session_has_written_is_counted(
    tmp_path: Path,
) -> None:
    store, folder = StartpointStore(tmp_path, Config()), tmp_path / "coordination"
    await store.change("state", lambda them: them.put([SET]))
    called: list[int] = []

    def delete(them: Requests) -> tuple[Requests, int]:
        after, count = them.delete()
        if not called:
            with closing(Tree(folder / "tree.sqlite")) as tree:
                (row,) = tree.sessions()
                tree.set(row.id, "/startpoints/state", msgspec.json.encode(after), None)
            end_sessions(folder, "startpoints")
        called.append(count)
        return after, count

    assert await store.change("state", delete) == 1
    assert called == [1]
    assert await store.requests("state") == Requests()


async def test_a_command_whose_sessions_are_lost_again_and_again_says_what_may_be_undone(
    tmp_path: Path,
) -> None:
    store = StartpointStore(tmp_path, Config())

    def put(them: Requests) -> tuple[Requests, list[Request]]:
        end_sessions(tmp_path / "coordination", "startpoints")
        return them.put([SET])

    with pytest.raises(StartpointError, match=r"for the 5th time, so the change of startpoints m"):
        await store.change("state", put)


async def test_a_command_whose_session_is_lost_while_it_waits_for_a_job_waits_in_another_one(
    tmp_path: Path,
) -> None:
    job = Job("counter", tmp_path / "job", config(tmp_path), None, ())
    called: list[str] = []
    async with FolderCoordination(tmp_path / "shared").session("start") as starts:
        async with trio.open_nursery() as nursery, Registry(starts).job.gate(SHOP):
            nursery.start_soon(trio.to_thread.run_sync, job.while_stopped, called.append)
            await until(lambda: end_sessions(tmp_path / "shared", "s4 for counter") == 1)
            await until(lambda: end_sessions(tmp_path / "shared", "s4 for counter") == 1)
            assert called == []
        assert called == [""]
        async with JobPresence(Registry(starts), SHOP).stopped():  # nobody holds its gate
            pass


async def test_a_drain_whose_session_is_lost_waits_in_another_one_until_the_node_is_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status: list[int] = []

    def command() -> None:
        status.append(drain("one", config(tmp_path), timeout=30.0))

    async with FolderCoordination(tmp_path / "shared").session("node one") as session:
        registry = Registry(session)
        await registry.join_node("shop", NodeInfo(name="one", host="h", pid=1, python="3.11"))
        await registry.create_app(AppInfo("counter", "shop", "v1", 1))
        at = "tcp://127.0.0.1:1"
        await registry.join_member(SHOP, MemberInfo("one", "one", "h", 1, at, "v1", 1))
        owner = Owner("one", at, session.id, 1)
        await registry.write_assignment(SHOP, Assignment(1, (owner,)), None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, command)
            drained = partial(registry.entries.names, "/clusters/shop/apps/counter/drained")
            await until_told(drained, lambda names: names == ["one"])
            assert end_sessions(tmp_path / "shared", "drain one") == 1
            await until(lambda: "goes on in another one" in capsys.readouterr().err)
            await registry.leave_member(SHOP, "one")
    assert status == [0]


def config(folder: Path) -> Config:
    return Config.from_values(
        {"s4.cluster.name": "shop", "s4.coordination.folder": str(folder / "shared")}
    )
