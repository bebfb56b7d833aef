"""The nodes' shared knowledge, on a real folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from s4node.cluster.coordination.assignment import Assignment, Owner
from s4node.cluster.coordination.entries import AppId, AppInfo, ClusterInfo, MemberInfo, NodeInfo
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.tree.folder import FolderCoordination
from s4node.errors import BadVersion, CoordinationError, EntryExists, NameTaken

ODD_NAMES = ["a/b", "..", ".", "a b", "ü/%2F", "日本", "x" * 60]


# --- clusters and nodes --------------------------------------------------------------------------


async def test_a_cluster_is_written_over_what_was_there(tmp_path: Path) -> None:
    async with registry(tmp_path) as one:
        assert await one.cluster("east") is None
        await one.put_cluster(ClusterInfo("east", 4))
        await one.put_cluster(ClusterInfo("west", 8))
        await one.put_cluster(ClusterInfo("east", 6))
        assert await one.cluster("east") == ClusterInfo("east", 6)
        assert await one.cluster("west") == ClusterInfo("west", 8)


async def test_a_node_is_there_as_long_as_its_session(tmp_path: Path) -> None:
    async with registry(tmp_path) as one:
        async with registry(tmp_path, "two") as two:
            await one.join_node("east", node("n1"))
            await two.join_node("east", node("n2"))
            await two.join_node("west", node("n1"))
            assert await one.nodes("east") == {"n1": node("n1"), "n2": node("n2")}
            await two.join_node("east", node("n2", pid=9))  # the same session's: news of it
            assert (await one.nodes("east"))["n2"].pid == 9
        assert await one.nodes("east") == {"n1": node("n1")}
        assert await one.nodes("west") == {}
        assert await one.cluster("east") is None  # it only has had nodes


async def test_two_nodes_with_one_name_the_second_is_told_of_the_first(tmp_path: Path) -> None:
    async with registry(tmp_path) as one, registry(tmp_path, "two") as two:
        await one.join_node("east", node("n1", pid=815))
        with pytest.raises(NameTaken) as caught:
            await two.join_node("east", node("n1"), patience=0.1)
        assert str(caught.value) == (
            "cluster 'east' already has a node 'n1': process 815 on here; give this node "
            "another name, or stop that one"
        )
        assert (await one.nodes("east"))["n1"].pid == 815


async def test_a_node_waits_for_its_namesake_that_is_just_going(tmp_path: Path) -> None:
    async with registry(tmp_path) as two:
        async with trio.open_nursery() as nursery, registry(tmp_path, "one") as one:
            await one.join_node("east", node("n1", pid=1))
            nursery.start_soon(lambda: two.join_node("east", node("n1", pid=2), patience=20))
            assert (await two.nodes("east"))["n1"].pid == 1
        assert (await two.nodes("east"))["n1"].pid == 2


async def test_a_node_that_joins_again_in_its_session_writes_its_news(tmp_path: Path) -> None:
    async with registry(tmp_path) as one:
        await one.join_node("east", node("n1", pid=1))
        await one.join_node("east", node("n1", pid=2))
        assert (await one.nodes("east"))["n1"].pid == 2


# --- apps ----------------------------------------------------------------------------------------


async def test_an_app_is_created_once_and_then_set_by_version(tmp_path: Path) -> None:
    async with registry(tmp_path) as one:
        assert await one.app("east", "count") is None
        await one.create_app(app())
        with pytest.raises(EntryExists):
            await one.create_app(app(version="2"))
        found = await one.app("east", "count")
        assert found is not None
        assert found.value == app()
        await one.set_app(app(version="2"), found.version)
        with pytest.raises(BadVersion):
            await one.set_app(app(version="3"), found.version)
        assert {name: f.value.version for name, f in (await one.apps("east")).items()} == {
            "count": "2"
        }


async def test_an_app_that_has_members_already_can_be_created(tmp_path: Path) -> None:
    async with registry(tmp_path) as one:
        await one.join_member(COUNT, member("m"))
        assert await one.apps("east") == {}
        await one.create_app(app())
        assert list(await one.apps("east")) == ["count"]


async def test_one_of_two_that_deploy_at_once_is_first(tmp_path: Path) -> None:
    outcomes: list[str] = []

    async def deploy(registry: Registry, version: str) -> None:
        try:
            await registry.create_app(app(version=version))
        except EntryExists:
            outcomes.append("exists")
        else:
            outcomes.append(version)

    async with registry(tmp_path) as one, registry(tmp_path, "two") as two:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deploy, one, "1")
            nursery.start_soon(deploy, two, "2")
        found = await one.app("east", "count")
        assert found is not None
        assert sorted(outcomes) == [found.value.version, "exists"]


async def test_an_app_is_removed_with_all_that_it_said(tmp_path: Path) -> None:
    async with registry(tmp_path) as one:
        await one.create_app(app())
        await one.write_assignment(COUNT, Assignment(1, (Owner("m"),)), None)
        await one.add_stream_user("words", "consumers", COUNT)
        await one.add_stream_user("counts", "producers", COUNT)
        await one.add_stream_user("words", "consumers", AppId("west", "count"))
        await one.remove_app("east", "count")
        await one.remove_app("east", "count")
        assert await one.app("east", "count") is None
        assert await one.assignment(COUNT) is None
        assert await one.stream_users("words", "consumers") == [AppId("west", "count")]
        assert await one.stream_users("counts", "producers") == []


async def test_an_app_that_runs_is_not_removed(tmp_path: Path) -> None:
    async with registry(tmp_path) as one:
        await one.create_app(app())
        await one.join_member(COUNT, member("m1"))
        with pytest.raises(CoordinationError, match="still runs in cluster 'east', on m1"):
            await one.remove_app("east", "count")
        assert await one.app("east", "count") is not None
        await one.leave_member(COUNT, "m1")
        await one.remove_app("east", "count")


# --- members and assignment ----------------------------------------------------------------------


async def test_members_come_and_go_and_know_their_age(tmp_path: Path) -> None:
    async with registry(tmp_path) as one, registry(tmp_path, "two") as two:
        await two.join_member(COUNT, member("z", "tcp://z"))
        await one.join_member(COUNT, member("a", "tcp://a"))
        group = await one.group(COUNT)
        assert group.addresses == ("tcp://z", "tcp://a")
        assert (group.epoch, group.owners, group.epochs) == (0, (), ())
        await two.leave_member(COUNT, "z")
        await two.leave_member(COUNT, "z")
        await two.leave_member(COUNT, "a")  # not its own
        assert list(await one.members(COUNT)) == ["a"]


async def test_two_members_with_one_name_the_second_is_told_of_the_first(tmp_path: Path) -> None:
    async with registry(tmp_path) as one, registry(tmp_path, "two") as two:
        await one.join_member(COUNT, member("m", "tcp://127.0.0.1:7"))
        with pytest.raises(NameTaken, match=r"app 'east\.count' already has .* 'm': .* 4711"):
            await two.join_member(COUNT, member("m"), patience=0.1)


async def test_an_assignment_is_written_over_the_one_that_was_read(tmp_path: Path) -> None:
    first = Assignment(1, (Owner("m", "tcp://m", "s", 1),))
    second = Assignment(2, (Owner("n", "tcp://n", "t", 2),))
    async with registry(tmp_path) as one:
        assert await one.assignment(COUNT) is None
        await one.write_assignment(COUNT, first, None)
        with pytest.raises(EntryExists):
            await one.write_assignment(COUNT, second, None)
        await one.write_assignment(COUNT, second, 0)
        with pytest.raises(BadVersion):
            await one.write_assignment(COUNT, first, 0)
        found = await one.assignment(COUNT)
        assert found is not None
        assert (found.value, found.version) == (second, 1)


async def test_an_owner_that_does_not_live_has_no_address(tmp_path: Path) -> None:
    async with registry(tmp_path) as one:
        await one.join_member(COUNT, member("m", "tcp://m"))
        id_ = one.session.id
        owners = (Owner("m", "tcp://m", id_, 1), Owner("m", "tcp://m", "x", 1), Owner(epoch=2))
        await one.write_assignment(COUNT, Assignment(2, owners), None)
        group = await one.group(COUNT)
        assert (group.epoch, group.owners, group.epochs) == (2, ("tcp://m", "", ""), (1, 1, 2))


# --- streams -------------------------------------------------------------------------------------


async def test_a_stream_has_producers_and_consumers_in_several_clusters(tmp_path: Path) -> None:
    async with registry(tmp_path) as one:
        for cluster, name in (("west", "a"), ("east", "b"), ("east", "a"), ("east", "a")):
            await one.add_stream_user("words", "consumers", AppId(cluster, name))
        await one.add_stream_user("words", "producers", AppId("north", "adapter"))
        assert await one.streams() == ["words"]
        assert await one.stream_users("words", "consumers") == [
            AppId("east", "a"),
            AppId("east", "b"),
            AppId("west", "a"),
        ]
        assert await one.stream_users("words", "producers") == [AppId("north", "adapter")]
        assert await one.stream_users("unknown", "consumers") == []
        await one.remove_stream_user("words", "consumers", AppId("west", "a"))
        await one.remove_stream_user("words", "consumers", AppId("west", "a"))
        assert await one.stream_users("words", "consumers") == [
            AppId("east", "a"),
            AppId("east", "b"),
        ]


async def test_the_consumers_of_a_stream_are_known_after_their_sessions(tmp_path: Path) -> None:
    async with registry(tmp_path) as one:
        await one.add_stream_user("words", "consumers", COUNT)
    async with registry(tmp_path, "two") as two:
        assert await two.stream_users("words", "consumers") == [COUNT]


# --- names and broken entries --------------------------------------------------------------------


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_any_text_can_be_a_name(tmp_path: Path, name: str) -> None:
    async with registry(tmp_path) as one:
        await one.put_cluster(ClusterInfo(name, 1))
        await one.join_node(name, node(name))
        await one.join_member(AppId(name, name), member(name))
        await one.add_stream_user(name, "producers", AppId(name, name))
        assert await one.cluster(name) == ClusterInfo(name, 1)
        assert list(await one.nodes(name)) == [name]
        assert list(await one.members(AppId(name, name))) == [name]
        assert await one.streams() == [name]
        assert await one.stream_users(name, "producers") == [AppId(name, name)]


@pytest.mark.parametrize("data", [b'{"name": 7}', b'{"name": "\xff"}', b"[" * 100_000])
async def test_an_entry_that_cannot_be_read_is_told_with_its_place(
    tmp_path: Path, data: bytes
) -> None:
    async with registry(tmp_path) as one:
        await one.session.create("/clusters/east", data)
        with pytest.raises(CoordinationError) as caught:
            await one.cluster("east")
    assert "the entry '/clusters/east' cannot be read" in str(caught.value)
    assert "run one version, or delete it" in str(caught.value)


async def test_watching_a_path_tells_of_what_is_written_there(tmp_path: Path) -> None:
    async with registry(tmp_path) as one, registry(tmp_path, "two") as two:
        for path, change in (
            (Registry.path_of_apps("east"), lambda: two.create_app(app())),
            (Registry.path_of_app(COUNT), lambda: two.join_member(COUNT, member("m"))),
            (Registry.path_of_stream("s"), lambda: two.add_stream_user("s", "consumers", COUNT)),
        ):
            seen = await one.session.change(path)
            await change()
            with trio.fail_after(10):
                assert await one.session.wait_change(path, seen) > seen


# -- set-up ---------------------------------------------------------------------------------------


COUNT = AppId("east", "count")


def node(name: str, pid: int = 4711) -> NodeInfo:
    return NodeInfo(name=name, host="here", pid=pid, python="3.11")


def member(name: str, address: str = "tcp://127.0.0.1:1", partitions: int = 4) -> MemberInfo:
    return MemberInfo(
        name=name,
        node="n",
        host="here",
        pid=4711,
        address=address,
        version="1",
        partitions=partitions,
    )


def app(name: str = "count", version: str = "1") -> AppInfo:
    return AppInfo(name=name, cluster="east", version=version, partitions=4)


@asynccontextmanager
async def registry(folder: Path, name: str = "one") -> AsyncIterator[Registry]:
    async with FolderCoordination(folder).session(name) as session:
        yield Registry(session)
