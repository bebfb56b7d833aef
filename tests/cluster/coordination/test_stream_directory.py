"""Finding the apps of other clusters that consume a stream, on a real folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import trio
from conformance.coordination import python_process
from harness import ROOT, plain_errors, until

from s4node.cluster.coordination.entries import RUNNING, STOPPING, AppId, AppInfo
from s4node.cluster.coordination.membership import Membership
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.coordination.stream_directory import Consumer, Directory, SystemConsumers
from s4node.cluster.tree.folder import FolderCoordination
from s4node.errors import S4Error, SessionLost


async def test_a_container_that_begins_while_its_app_is_undeployed_says_nothing_of_it(
    tmp_path: Path,
) -> None:
    app = AppId("north", "counts")
    async with FolderCoordination(tmp_path).session("m") as session:
        registry = Registry(session)
        made = Directory(session, cluster="north", app="counts", consumes=["clicks"], deployed=True)
        info = AppInfo("counts", "north", "1", 2)
        for state in (None, STOPPING):
            if state is not None:
                await registry.create_app(msgspec.structs.replace(info, state=state))
            with pytest.raises(S4Error, match=r"north\.counts was undeployed while it started"):
                await made.register()
            assert app not in (await registry.stream_users("clicks", "consumers"))
        await registry.set_app(msgspec.structs.replace(info, state=RUNNING))
        await made.register()
        assert app in (await registry.stream_users("clicks", "consumers"))


async def test_a_stream_that_nobody_consumes_is_told_once_with_nobody(tmp_path: Path) -> None:
    async with watching(tmp_path, "words", "counts") as adapter:
        await until(lambda: len(adapter.told) == 2)
        assert adapter.told == [("words", {}), ("counts", {})]
        assert adapter.consumers("words") == {}
        assert adapter.consumers("not mine") == {}


async def test_an_app_that_consumes_the_stream_is_told_with_its_owners(tmp_path: Path) -> None:
    async with (
        watching(tmp_path, "words") as adapter,
        consuming(tmp_path, "east", "count", "words"),
    ):
        await until(lambda: "east.count" in adapter.consumers("words"))
        await until(lambda: adapter.consumers("words")["east.count"].epoch == 1)
        assert adapter.consumers("words") == {
            "east.count": Consumer(
                cluster="east",
                app="count",
                epoch=1,
                owners=("tcp://m", "tcp://m"),
                epochs=(1, 1),
                members=("tcp://m",),
            )
        }


async def test_a_consumer_whose_members_are_gone_stays_with_nobody_in_it(tmp_path: Path) -> None:
    async with watching(tmp_path, "words") as adapter:
        async with consuming(tmp_path, "east", "count", "words"):
            await until(lambda: adapter.consumers("words").get("east.count") is not None)
            await until(lambda: adapter.consumers("words")["east.count"].epoch == 1)
        await until(lambda: adapter.consumers("words")["east.count"].members == ())
        assert adapter.consumers("words")["east.count"].owners == ("", "")
        async with consuming(tmp_path, "east", "count", "words", member="n"):
            await until(
                lambda: adapter.consumers("words")["east.count"].owners == ("tcp://n", "tcp://n")
            )


async def test_an_app_that_is_removed_is_no_consumer_any_more(tmp_path: Path) -> None:
    async with watching(tmp_path, "words") as adapter:
        async with consuming(tmp_path, "east", "count", "words"):
            await until(lambda: "east.count" in adapter.consumers("words"))
        async with FolderCoordination(tmp_path).session("s4 undeploy") as session:
            await Registry(session).remove_app("east", "count")
        await until(lambda: adapter.consumers("words") == {})


async def test_several_apps_of_several_clusters_consume_one_stream(tmp_path: Path) -> None:
    async with (
        consuming(tmp_path, "east", "count", "words", member="one"),
        consuming(tmp_path, "east", "top", "words", "counts", member="two", partitions=3),
        consuming(tmp_path, "west", "count", "words", member="three"),
        watching(tmp_path, "words", "counts") as adapter,
    ):
        await until(
            lambda: (
                {name: consumer.owners for name, consumer in adapter.consumers("words").items()}
                == {
                    "east.count": ("tcp://one",) * 2,
                    "east.top": ("tcp://two",) * 3,
                    "west.count": ("tcp://three",) * 2,
                }
            )
        )
        await until(lambda: list(adapter.consumers("counts")) == ["east.top"])


async def test_what_an_app_produces_and_consumes_is_known_to_who_asks(tmp_path: Path) -> None:
    async with FolderCoordination(tmp_path).session("one") as session:
        directory = Directory(
            session, cluster="east", app="count", consumes=["words"], produces=["counts"]
        )
        await directory.register()
        await directory.register()
        assert await directory.registry.stream_users("words", "consumers") == [
            AppId("east", "count")
        ]
        assert await directory.registry.stream_users("counts", "producers") == [
            AppId("east", "count")
        ]


async def test_consumers_that_have_not_changed_are_not_told_twice(tmp_path: Path) -> None:
    async with watching(tmp_path, "words") as adapter:
        async with consuming(tmp_path, "east", "count", "words"):
            await until(lambda: "east.count" in adapter.consumers("words"))
            for number in range(10):
                async with consuming(tmp_path, "east", f"other{number}", "elsewhere", member="n"):
                    pass
            await until(lambda: adapter.consumers("words")["east.count"].epoch == 1)
        await until(lambda: adapter.consumers("words")["east.count"].members == ())
        told = [consumers for _, consumers in adapter.told]
        assert all(one != two for one, two in pairwise(told))


async def test_a_killed_consumer_is_told(tmp_path: Path) -> None:
    script = ROOT / "tests" / "membership_process.py"
    async with (
        watching(tmp_path, "words") as adapter,
        consuming(tmp_path, "east", "count", "words", member="m", partitions=4),
        python_process(script, tmp_path, "x", 1, "60") as other,
    ):
        await other.line()
        await until(lambda: "east.count" in adapter.consumers("words"))
        await until(lambda: len(adapter.consumers("words")["east.count"].members) == 2)
        await other.kill()
        await until(lambda: adapter.consumers("words")["east.count"].members == ("tcp://m",))


@pytest.mark.parametrize("produces", [(), ("words",), ("words", "counts")])
async def test_a_lost_session_ends_the_watching(tmp_path: Path, produces: tuple[str, ...]) -> None:
    async def lose() -> None:
        async with watching(tmp_path, *produces):
            (tmp_path / "tree.sqlite").unlink()
            await trio.sleep_forever()

    with trio.fail_after(10), pytest.raises(SessionLost, match="was deleted"):
        await lose()


# -- set-up ---------------------------------------------------------------------------------------


class Watcher:
    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.told: list[tuple[str, SystemConsumers]] = []

    def take(self, stream: str, consumers: SystemConsumers) -> None:
        self.told.append((stream, consumers))

    def consumers(self, stream: str) -> SystemConsumers:
        return self.directory.consumers(stream)


@asynccontextmanager
async def watching(folder: Path, *produces: str, app: str = "adapter") -> AsyncIterator[Watcher]:
    with plain_errors():
        async with (
            FolderCoordination(folder).session(app) as session,
            trio.open_nursery() as nursery,
        ):
            directory = Directory(session, cluster="north", app=app, produces=produces)
            await directory.register()
            watcher = Watcher(directory)
            nursery.start_soon(directory.run, watcher.take)
            yield watcher
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def consuming(
    folder: Path, cluster: str, app: str, *streams: str, member: str = "m", partitions: int = 2
) -> AsyncIterator[Membership]:
    with plain_errors():
        async with (
            FolderCoordination(folder).session(member) as session,
            trio.open_nursery() as nursery,
        ):
            await Directory(session, cluster=cluster, app=app, consumes=streams).register()
            membership = Membership(
                session,
                cluster=cluster,
                app=app,
                member=member,
                address=f"tcp://{member}",
                partitions=partitions,
            )
            nursery.start_soon(membership.run, lambda view: None)
            yield membership
            nursery.cancel_scope.cancel()
