"""Coordination by a real ZooKeeper: the contract's kit, and what only ZooKeeper can suffer."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from conformance.coordination import CoordinationConformance
from harness import DEADLINE, environment, free_port, plain_errors, proxy, until
from kazoo.client import KazooClient
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, make_acl, make_digest_acl
from zookeeper_server import LONGEST_SESSION, SHORTEST_SESSION, ZooKeeperServer, zookeeper_server

from s4node.cluster.coordination.entries import NodeInfo
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.node.package import python_here
from s4node.cluster.tree.contract import LastingTreeError
from s4node.cluster.tree.zookeeper import ZooKeeperCoordination, ZooKeeperSession, credentials_of
from s4node.errors import ConfigError, CoordinationError, EntryExists, SessionLost

pytestmark = pytest.mark.spark  # whose jars it needs


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def url(server: ZooKeeperServer, tmp_path: Path) -> str:
    """A new root, without a parent that a test with credentials would close to the others."""
    return server.url(tmp_path.name)


@pytest.mark.long
class TestZooKeeper(CoordinationConformance):
    @pytest.fixture
    def where(self, url: str) -> str:
        return f"zookeeper_server:through_zookeeper:{url}"

    def granted(self, asked: float) -> float:
        return min(max(asked, SHORTEST_SESSION), LONGEST_SESSION)


def at(url: str, timeout: float = 10.0, credentials: Path | str = "") -> ZooKeeperCoordination:
    return ZooKeeperCoordination(url, session_timeout=timeout, credentials=str(credentials))


async def refusal(coordination: ZooKeeperCoordination) -> str:
    with pytest.raises(CoordinationError) as caught:
        async with coordination.session("one"):
            raise AssertionError("a session was given")
    return str(caught.value)


async def test_where_no_zookeeper_answers_the_message_says_so() -> None:
    text = await refusal(at(f"zk://127.0.0.1:{free_port()}/s4", 1.0))
    assert "no ZooKeeper answers at zk://127.0.0.1:" in text
    assert "correct s4.coordination" in text


async def test_without_kazoo_the_message_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['kazoo'] = None\n"
        "from s4node.cluster.tree.coordinations import coordination_of\n"
        "from s4node.config.config import Config\n"
        "coordination_of(Config.from_values({'s4.coordination': 'zk://localhost/s4'}))\n"
    )
    done = await trio.run_process(
        [sys.executable, "-c", code], env=environment(), check=False, capture_stderr=True
    )
    assert "pip install 's4node[zookeeper]'" in done.stderr.decode()


async def test_clusters_with_other_roots_do_not_see_each_other(url: str) -> None:
    async with at(f"{url}/a").session("one") as one, at(f"{url}/b").session("two") as two:
        await one.create("/x", b"of a")
        assert await two.get("/x") is None
        assert await two.children("/") == []


@pytest.mark.parametrize("data", [b"else's data", b"s4node tree 2"])
async def test_a_root_of_another_program_or_version_is_refused(url: str, data: bytes) -> None:
    async with at(url).session("one") as session:
        await session.create("/somebody", data)
    text = await refusal(at(f"{url}/somebody"))
    assert "entries of another program, or of another version of s4node" in text
    assert "another root" in text


async def test_entries_are_for_those_with_the_same_credentials_only(
    url: str, tmp_path: Path
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text("username = shop\npassword = secret\n")
    theirs.write_text("username = shop\npassword = guessed\n")
    async with at(url, credentials=ours).session("one") as session:
        await session.create("/clusters/shop", b"ours")
        for other in (theirs, ""):
            text = await refusal(at(url, credentials=other))
            assert "denies access" in text
            assert "s4.coordination.credentials" in text
        async with at(url, credentials=ours).session("two") as again:
            entry = await again.get("/clusters/shop")
            assert entry is not None
            assert entry.data == b"ours"


@pytest.mark.parametrize(
    "acl",
    [
        OPEN_ACL_UNSAFE,
        [make_acl("ip", "127.0.0.1", all=True)],
        [*CREATOR_ALL_ACL, make_digest_acl("stranger", "s", read=True)],
    ],
    ids=["anyone", "a host", "a stranger too"],
)
async def test_with_credentials_a_root_of_others_is_closed_if_it_is_empty_and_refused_if_not(
    url: str, tmp_path: Path, acl: list[ACL]
) -> None:
    credentials = tmp_path / "credentials"
    credentials.write_text("username = shop\npassword = secret\n")
    hosts, _, root = url.removeprefix("zk://").partition("/")
    other = KazooClient(hosts, auth_data=[("digest", "shop:secret")])
    await trio.to_thread.run_sync(other.start)
    try:
        async with at(f"{url}/empty").session("one"), at(f"{url}/used").session("two") as session:
            await session.create("/clusters/shop")
        for name in ("empty", "used"):
            other.set_acls(f"/{root}/{name}", acl)
        async with at(f"{url}/empty", credentials=credentials).session("one") as session:
            await session.create("/clusters/shop", b"ours")
            assert "denies access" in await refusal(at(f"{url}/empty"))
        text = await refusal(at(f"{url}/used", credentials=credentials))
        assert f"can use the entry /{root}/used of {url}/used; name a new root" in text
        other.set_acls(f"/{root}/used", CREATOR_ALL_ACL)
        text = await refusal(at(f"{url}/used", credentials=credentials))
        assert f"can use the entry /{root}/used/clusters of" in text
        other.set_acls(f"/{root}/used/clusters", CREATOR_ALL_ACL)
        node = NodeInfo("one", "here", 815, python_here())
        async with at(f"{url}/used", credentials=credentials).session("one") as session:
            with pytest.raises(LastingTreeError, match=f"entry /{root}/used/clusters/shop of"):
                await Registry(session).start_node("shop", node)
            other.set_acls(f"/{root}/used/clusters/shop", CREATOR_ALL_ACL)
            await Registry(session).start_node("shop", node)
    finally:
        await trio.to_thread.run_sync(other.stop)
        other.close()


def test_credentials_are_passed_on_to_kazoo(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("mechanism = DIGEST-MD5\nusername = a\npassword = b\n")
    options = credentials_of(str(file))
    assert options["sasl_options"] == {"mechanism": "DIGEST-MD5", "username": "a", "password": "b"}
    file.write_text("ca = /etc/ca.pem\ncertificate = /etc/me.pem\nkey = /etc/me.key\n")
    options = credentials_of(str(file))
    assert (options["use_ssl"], options["check_hostname"], options["ca"]) == (
        True,
        True,
        "/etc/ca.pem",
    )


@pytest.mark.parametrize("line", ["user = hunter2", "hunter2 = ", "password: hunter2", "=hunter2"])
def test_a_mistake_in_credentials_is_told_without_what_may_be_a_password(
    tmp_path: Path, line: str
) -> None:
    file = tmp_path / "credentials"
    file.write_text(f"username = a\n{line}\n")
    with pytest.raises(ConfigError, match=r"credentials:2.* username, password") as told:
        credentials_of(str(file))
    assert "hunter2" not in str(told.value)


async def test_a_change_while_the_connection_is_broken_is_told(
    server: ZooKeeperServer, url: str
) -> None:
    async with proxy(f"tcp://127.0.0.1:{server.port}", cuts=0) as between:
        broken = url.replace(str(server.port), between.address.rpartition(":")[2])
        async with at(broken).session("one") as one, at(url).session("two") as two:
            seen = await one.change("/a")
            between.stall("events")
            between.cut()
            await two.create("/a/b", b"meanwhile")
            between.go_on()
            with trio.fail_after(DEADLINE):
                assert await one.wait_change("/a", seen) > seen
            entry = await one.get("/a/b")
            assert entry is not None
            assert entry.data == b"meanwhile"
            seen = await one.change("/a")
            await two.set("/a/b", b"again")  # the watch was set again
            with trio.fail_after(DEADLINE):
                await one.wait_change("/a", seen)


async def test_a_write_whose_answer_is_lost_happens_once_and_is_known_as_ours(
    server: ZooKeeperServer, url: str
) -> None:
    async with proxy(f"tcp://127.0.0.1:{server.port}", cuts=0) as between:
        broken = url.replace(str(server.port), between.address.rpartition(":")[2])
        async with at(broken).session("one") as one, at(url).session("two") as two:
            await one.create("/number", b"0")
            await one.create("/old")

            async def cut_after_change(path: str, seen: int) -> None:
                await two.wait_change(path, seen)
                between.cut()
                between.go_on()

            @asynccontextmanager
            async def answer_lost(path: str) -> AsyncIterator[None]:
                """The connection breaks once ``path`` is written and the answer is on its way."""
                seen = await two.change(path)
                between.stall("verdicts")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cut_after_change, path, seen)
                    yield

            async with answer_lost("/mine"):
                await one.create("/mine", b"x", ephemeral=True)
            async with answer_lost("/number"):
                assert await one.set("/number", b"1", version=0) == 1
            async with answer_lost("/old"):
                await one.delete("/old", version=0)
            with pytest.raises(EntryExists):
                await one.create("/mine", b"x", ephemeral=True)
            entry = await two.get("/number")
            assert entry is not None
            assert (entry.data, entry.version) == (b"1", 1)


async def test_a_server_that_answers_nothing_makes_the_session_doubtful_and_is_left(
    server: ZooKeeperServer, url: str
) -> None:
    async with proxy(f"tcp://127.0.0.1:{server.port}", cuts=0) as between:
        broken = url.replace(str(server.port), between.address.rpartition(":")[2])
        async with at(broken, 4.0).session("one") as session:
            await session.create("/mine", ephemeral=True)
            before = between.connections
            between.stall("verdicts")
            await until(lambda: session.doubtful, "it is doubtful")
            await until(lambda: between.connections > before, "it tries another connection")
            between.go_on()
            between.cut()
            await until(lambda: not session.doubtful or session.lost.is_set(), "it knows again")


async def expire(url: str, session: ZooKeeperSession) -> None:
    """Have the servers end a session, as after its timeout."""
    await at(url).end_session(session.key)


async def test_a_session_that_has_expired_is_over_and_no_other_begins(url: str) -> None:
    async with at(url).session("watcher") as watcher, at(url).session("one") as session:
        await session.create("/mine", ephemeral=True)
        await expire(url, session)
        with trio.fail_after(DEADLINE):
            await session.lost.wait()
        for call in (session.create, session.get, session.children, session.change):
            with pytest.raises(SessionLost, match="ended it"):
                await call("/again")
        await until(lambda: not session._client.connected, "kazoo is stopped")
        await until(lambda: session._client._session_id is None, "it has no session")
        assert await watcher.children("/") == []


@pytest.mark.long
@pytest.mark.slow
async def test_while_zookeeper_is_away_longer_than_the_timeout_sessions_stay_and_calls_wait(
    tmp_path: Path,
) -> None:
    with zookeeper_server(tmp_path / "zookeeper") as server:
        url = server.url("s4")
        async with at(url, 8.0).session("one") as session:
            await session.create("/mine", b"x", ephemeral=True)
            seen = await session.change("/")
            server.kill()
            await until(lambda: session.doubtful, "it is doubtful")
            with pytest.raises(CoordinationError, match="has answered for 8 s"):
                await session.get("/mine")
            assert not session.lost.is_set()
            await trio.to_thread.run_sync(server.start)
            await until(lambda: not session.doubtful, "it is not doubtful any more")
            entry = await session.get("/mine")
            assert entry is not None
            assert entry.session == session.id
            with trio.fail_after(DEADLINE):
                assert await session.wait_change("/", seen) > seen


@pytest.mark.slow
async def test_a_session_is_closed_while_zookeeper_is_stopped(tmp_path: Path) -> None:
    with zookeeper_server(tmp_path / "zookeeper") as server:
        with trio.fail_after(DEADLINE), plain_errors():
            async with at(server.url("s4"), 2.0).session("one") as session:
                await session.create("/mine", ephemeral=True)
                server.signal(signal.SIGSTOP)
        server.signal(signal.SIGCONT)
        assert session.lost.is_set()
