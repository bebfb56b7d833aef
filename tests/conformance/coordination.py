"""The contract of every implementation of coordination.

A test module derives a class from :class:`CoordinationConformance`, which says how the same tree is
reached from here and from other processes. Nothing is tested that the contract does not promise, so
that every implementation passes the same kit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio
from harness import ROOT, environment, plain_errors

from s4node.cluster.tree.contract import (
    MAX_DATA_BYTES,
    MAX_PATH_LENGTH,
    Coordination,
    Entry,
    Session,
)
from s4node.errors import (
    BadVersion,
    CoordinationError,
    EntryExists,
    EntryNotEmpty,
    NoEntry,
    SessionLost,
)

SOON = 10.0
"""Seconds after which what should happen soon has not; many times what it takes at rest."""


class Peer:
    """Another process with a session of its own; see ``coordination_process.py``."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._rest = b""

    async def line(self) -> str:
        assert self.process.stdout is not None
        with trio.fail_after(SOON * 3):
            while b"\n" not in self._rest:
                chunk = await self.process.stdout.receive_some(4096)
                assert chunk, f"the process ended with {await self.process.wait()}"
                self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    async def rest(self) -> list[str]:
        assert self.process.stdout is not None
        with trio.fail_after(SOON * 3):
            while chunk := await self.process.stdout.receive_some(65536):
                self._rest += chunk
        return self._rest.decode().splitlines()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    async def kill(self) -> None:
        """kill -9, and wait until the process is gone."""
        self.process.kill()
        await self.process.wait()


def peer(where: str, role: str, *arguments: str | int) -> AbstractAsyncContextManager[Peer]:
    """A process in this role at this place; killed at the end."""
    script = Path(__file__).with_name("coordination_process.py")
    return python_process(script, where, role, *arguments)


@asynccontextmanager
async def python_process(script: Path, *arguments: str | int | Path) -> AsyncIterator[Peer]:
    """A script in a process of its own; killed at the end."""
    process = await trio.lowlevel.open_process(
        [sys.executable, str(script), *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment(PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'tests'}"),
    )
    try:
        yield Peer(process)
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            assert process.stdout is not None
            await process.stdout.aclose()


async def gone(session: Session, path: str) -> float:
    """Wait until there is no entry at ``path``; returns after how many seconds."""
    start = time.monotonic()
    with trio.fail_after(SOON * 3):
        while True:
            seen = await session.change(path)
            if await session.get(path) is None:
                return time.monotonic() - start
            await session.wait_change(path, seen)


async def entry_at(session: Session, path: str) -> Entry:
    entry = await session.get(path)
    assert entry is not None
    return entry


class CoordinationConformance:
    """The kit. ``where`` (a fixture) names a new, empty tree, as ``module:function:argument``; the
    function makes of ``argument`` and a session timeout in seconds a Coordination."""

    @pytest.fixture
    def coordination(self, where: str) -> Coordination:
        from conformance.coordination_process import reach

        return reach(where, 10.0)

    def granted(self, asked: float) -> float:
        """The timeout of a session for which ``asked`` seconds were asked."""
        return asked

    # --- entries ---------------------------------------------------------------------------------

    async def test_an_entry_is_created_read_written_and_deleted(
        self, coordination: Coordination
    ) -> None:
        async with coordination.session("one") as session:
            assert await session.get("/apps/count") is None
            await session.create("/apps/count", b"first")
            entry = await entry_at(session, "/apps/count")
            assert (entry.data, entry.version, entry.session) == (b"first", 0, "")
            assert await session.set("/apps/count", b"second") == 1
            assert await session.set("/apps/count", b"third", version=1) == 2
            entry = await entry_at(session, "/apps/count")
            assert (entry.data, entry.version) == (b"third", 2)
            await session.delete("/apps/count")
            assert await session.get("/apps/count") is None

    async def test_what_is_on_the_way_to_an_entry_is_made_without_data(
        self, coordination: Coordination
    ) -> None:
        async with coordination.session("one") as session:
            await session.create("/a/b/c", b"deep", ephemeral=True)
            for path in ("/a", "/a/b"):
                entry = await entry_at(session, path)
                assert (entry.data, entry.version, entry.session) == (b"", 0, "")

    async def test_children_are_the_last_parts_in_order(self, coordination: Coordination) -> None:
        async with coordination.session("one") as session:
            for path in ("/n/b", "/n/a", "/n/c/below", "/n/~", "/nn/x", "/n/b%2Fc"):
                await session.create(path)
            assert await session.children("/n") == ["a", "b", "b%2Fc", "c", "~"]
            assert await session.children("/n/a") == []
            assert await session.children("/nowhere") == []
            assert {"n", "nn"} <= set(await session.children("/"))

    async def test_an_entry_that_comes_again_starts_at_version_0(
        self, coordination: Coordination
    ) -> None:
        async with coordination.session("one") as session:
            await session.create("/a")
            await session.set("/a", b"1")
            await session.delete("/a")
            await session.create("/a")
            entry = await entry_at(session, "/a")
            assert entry.version == 0

    async def test_entries_know_the_order_in_which_they_were_created(
        self, coordination: Coordination
    ) -> None:
        async with coordination.session("one") as one, coordination.session("two") as two:
            created = []
            for number, session in enumerate((one, two, two, one, two)):
                path = f"/members/{9 - number}"
                await session.create(path, ephemeral=True)
                await session.set(path, b"news")
                entry = await entry_at(one, path)
                created.append(entry.created)
        assert created == sorted(set(created))

    async def test_an_existing_entry_is_not_created_again(self, coordination: Coordination) -> None:
        async with coordination.session("one") as session:
            await session.create("/a/b", b"first")
            for path in ("/a/b", "/a", "/"):
                with pytest.raises(EntryExists, match=path):
                    await session.create(path, b"second")
            entry = await entry_at(session, "/a/b")
            assert entry.data == b"first"

    async def test_a_missing_entry_is_neither_written_nor_deleted(
        self, coordination: Coordination
    ) -> None:
        async with coordination.session("one") as session:
            with pytest.raises(NoEntry, match="/a/b"):
                await session.set("/a/b", b"x")
            with pytest.raises(NoEntry, match="/a/b"):
                await session.set("/a/b", b"x", version=0)
            with pytest.raises(NoEntry, match="/a/b"):
                await session.delete("/a/b")
            assert await session.get("/a") is None

    async def test_another_version_is_neither_written_nor_deleted(
        self, coordination: Coordination
    ) -> None:
        async with coordination.session("one") as one, coordination.session("two") as two:
            await one.create("/a", b"0")
            await two.set("/a", b"1")
            with pytest.raises(BadVersion, match="version 1, not 0"):
                await one.set("/a", b"mine", version=0)
            with pytest.raises(BadVersion, match="version 1, not 0"):
                await one.delete("/a", version=0)
            entry = await entry_at(one, "/a")
            assert (entry.data, entry.version) == (b"1", 1)
            await one.delete("/a", version=1)

    async def test_an_entry_with_entries_below_it_is_not_deleted(
        self, coordination: Coordination
    ) -> None:
        async with coordination.session("one") as session:
            await session.create("/a/b/c")
            with pytest.raises(EntryNotEmpty, match="/a/b"):
                await session.delete("/a/b")
            await session.delete("/a/b/c")
            await session.delete("/a/b")
            assert await session.children("/a") == []

    async def test_data_is_any_bytes_up_to_its_limit(self, coordination: Coordination) -> None:
        most = bytes(range(256)) * (MAX_DATA_BYTES // 256) + bytes(MAX_DATA_BYTES % 256)
        async with coordination.session("one") as session:
            await session.create("/a", most)
            entry = await entry_at(session, "/a")
            assert entry.data == most
            with pytest.raises(CoordinationError, match="would have 1000001 bytes"):
                await session.set("/a", most + b"x")
            with pytest.raises(CoordinationError, match="would have 1000001 bytes"):
                await session.create("/b", most + b"x")
            assert await session.get("/b") is None

    @pytest.mark.parametrize(
        "path",
        [
            "",
            "a",
            "a/b",
            "/a/",
            "//a",
            "/a//b",
            "/a/../b",
            "/./a",
            "/a\0b",
            "/a\nb",
            "/\ud800",
            "/ä",
        ],
    )
    async def test_an_invalid_path_is_refused_by_every_operation(
        self, coordination: Coordination, path: str
    ) -> None:
        async with coordination.session("one") as session:
            for call in (
                session.create,
                session.get,
                session.delete,
                session.children,
                session.change,
            ):
                with pytest.raises(CoordinationError, match="path"):
                    await call(path)
            with pytest.raises(CoordinationError, match="path"):
                await session.set(path, b"")
            with pytest.raises(CoordinationError, match="path"):
                await session.wait_change(path, 0)

    async def test_a_path_has_a_longest_length(self, coordination: Coordination) -> None:
        longest = "/" + "p" * (MAX_PATH_LENGTH - 1)
        async with coordination.session("one") as session:
            await session.create(longest)
            with pytest.raises(CoordinationError, match="1024 are allowed"):
                await session.create(longest + "p")

    # --- sessions --------------------------------------------------------------------------------

    async def test_all_sessions_see_one_tree(self, coordination: Coordination) -> None:
        async with coordination.session("one") as one, coordination.session("two") as two:
            for number in range(20):
                await one.create(f"/n/{number}", b"one")
                entry = await entry_at(two, f"/n/{number}")
                assert await two.set(f"/n/{number}", b"two", entry.version) == 1
                entry = await entry_at(one, f"/n/{number}")
                assert entry.data == b"two"

    async def test_sessions_of_one_name_are_two(self, coordination: Coordination) -> None:
        async with coordination.session("one") as one, coordination.session("one") as two:
            assert one.name == two.name == "one"
            assert one.id != two.id
            assert "" not in (one.id, two.id)

    async def test_ephemeral_entries_end_with_their_session_and_others_stay(
        self, coordination: Coordination
    ) -> None:
        async with coordination.session("one") as one:
            async with coordination.session("two") as two:
                await two.create("/nodes/two", b"here", ephemeral=True)
                await two.create("/nodes/stays", b"here")
                await one.create("/nodes/one", ephemeral=True)
                entry = await entry_at(one, "/nodes/two")
                assert entry.session == two.id
            assert await one.children("/nodes") == ["one", "stays"]
        async with coordination.session("three") as three:
            assert await three.children("/nodes") == ["stays"]

    async def test_nothing_can_be_below_an_ephemeral_entry(
        self, coordination: Coordination
    ) -> None:
        async with coordination.session("one") as session:
            await session.create("/nodes/one", ephemeral=True)
            with pytest.raises(CoordinationError, match="/nodes/one"):
                await session.create("/nodes/one/below")
            with pytest.raises(CoordinationError, match="/nodes/one"):
                await session.create("/nodes/one/far/below", ephemeral=True)

    async def test_others_may_write_and_delete_an_ephemeral_entry(
        self, coordination: Coordination
    ) -> None:
        async with coordination.session("one") as one, coordination.session("two") as two:
            await one.create("/nodes/one", ephemeral=True)
            await two.set("/nodes/one", b"news")
            entry = await entry_at(one, "/nodes/one")
            assert (entry.data, entry.session) == (b"news", one.id)
            await two.delete("/nodes/one")
            await two.create("/nodes/one", ephemeral=True)
        async with coordination.session("three") as three:
            assert await three.children("/nodes") == []

    async def test_a_session_that_was_closed_is_over_for_all_calls(
        self, coordination: Coordination
    ) -> None:
        async with coordination.session("one") as session:
            await session.create("/a")
        assert session.lost.is_set()
        for call in (session.create, session.get, session.delete, session.children, session.change):
            with pytest.raises(SessionLost, match="'one'"):
                await call("/a")
        with pytest.raises(SessionLost, match="'one'"):
            await session.set("/a", b"")
        with pytest.raises(SessionLost, match="'one'"):
            await session.wait_change("/a", 0)

    async def test_who_waits_for_a_change_is_told_when_the_session_ends(
        self, coordination: Coordination
    ) -> None:
        waiting = trio.Event()
        told = trio.Event()

        async def wait(session: Session, seen: int) -> None:
            waiting.set()
            with pytest.raises(SessionLost):
                await session.wait_change("/a", seen)
            told.set()

        with trio.fail_after(SOON):
            async with trio.open_nursery() as nursery, coordination.session("one") as session:
                nursery.start_soon(wait, session, await session.change("/a"))
                await waiting.wait()
                await session.get("/a")
            await told.wait()

    async def test_an_error_inside_of_the_session_s_block_comes_out_as_it_is(
        self, coordination: Coordination
    ) -> None:
        async def fail() -> None:
            async with coordination.session("one") as session:
                await session.create("/nodes/one", ephemeral=True)
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await fail()
        async with coordination.session("two") as session:
            assert await session.children("/nodes") == []

    async def test_a_session_that_is_cancelled_takes_its_entries_along(
        self, coordination: Coordination
    ) -> None:
        with trio.CancelScope() as scope:
            async with coordination.session("one") as session:
                await session.create("/nodes/one", ephemeral=True)
                scope.cancel()
                await trio.sleep_forever()
        async with coordination.session("two") as session:
            assert await session.children("/nodes") == []

    @pytest.mark.parametrize("asked", [0.6, 4.0, 100.0])
    async def test_a_session_says_which_timeout_was_granted(self, where: str, asked: float) -> None:
        from conformance.coordination_process import reach

        async with reach(where, asked).session("one") as session:
            assert session.timeout == self.granted(asked)
            assert not session.doubtful

    async def test_a_session_that_is_ended_by_its_key_is_gone_for_all(
        self, coordination: Coordination, where: str
    ) -> None:
        async with (
            coordination.session("one") as session,
            peer(where, "tell", "/nodes/two", 10) as other,
        ):
            key = await other.line()
            await other.kill()
            await coordination.end_session(key)
            with trio.fail_after(SOON):
                await gone(session, "/nodes/two")
            await coordination.end_session(key)  # it has ended
            assert not session.lost.is_set()

    # --- watching --------------------------------------------------------------------------------

    async def test_a_change_at_or_below_the_path_is_told(self, coordination: Coordination) -> None:
        async with coordination.session("one") as one, coordination.session("two") as two:
            await one.create("/a/b/c", b"0")
            steps = [
                ("/a/b/c", lambda: two.set("/a/b/c", b"1")),
                ("/a/b", lambda: two.set("/a/b/c", b"2")),
                ("/", lambda: two.set("/a/b/c", b"3")),
                ("/a", lambda: two.create("/a/x/y")),
                ("/a/x/y", lambda: two.delete("/a/x/y")),
                ("/a/x", lambda: two.create("/a/x/z", ephemeral=True)),
                ("/a", lambda: two.delete("/a/x/z")),
                ("/not/yet", lambda: two.create("/not/yet")),
                ("/a/b/c", lambda: two.delete("/a/b/c")),
                ("/a/b/c", lambda: two.create("/a/b/c")),
            ]
            for path, change in steps:
                seen = await one.change(path)
                await change()
                with trio.fail_after(SOON):
                    now = await one.wait_change(path, seen)
                assert now > seen
                assert now <= await one.change(path)

    async def test_a_change_made_before_the_wait_is_told_at_once(
        self, coordination: Coordination
    ) -> None:
        async with coordination.session("one") as session:
            seen = await session.change("/a")
            await session.create("/a/b")
            with trio.fail_after(SOON):
                assert await session.wait_change("/a", seen) > seen
                assert await session.wait_change("/a", seen) > seen

    async def test_an_ending_session_is_a_change(self, coordination: Coordination) -> None:
        async with coordination.session("one") as one:
            async with coordination.session("two") as two:
                await two.create("/nodes/two", ephemeral=True)
                seen = await one.change("/nodes")
            with trio.fail_after(SOON):
                await one.wait_change("/nodes", seen)
            assert await one.get("/nodes/two") is None

    async def test_a_cancelled_wait_leaves_the_session_unchanged(
        self, coordination: Coordination
    ) -> None:
        async with coordination.session("one") as session:
            for _ in range(5):
                seen = await session.change("/a")
                with trio.move_on_after(0.01):
                    await session.wait_change("/a", seen)
            await session.create("/a")
            assert await session.wait_change("/a", seen) > seen

    async def test_many_wait_at_a_time_and_all_are_told(self, coordination: Coordination) -> None:
        told = []

        async def wait(session: Session, path: str, seen: int) -> None:
            await session.wait_change(path, seen)
            told.append(path)

        async with coordination.session("one") as one, coordination.session("two") as two:
            with trio.fail_after(SOON):
                async with trio.open_nursery() as nursery:
                    for number in range(20):
                        path = f"/n/{number}"
                        nursery.start_soon(wait, one, path, await one.change(path))
                    for number in range(20):
                        await two.create(f"/n/{number}")
        assert len(set(told)) == 20

    async def test_a_watcher_sees_the_last_value_that_others_write(
        self, coordination: Coordination, where: str
    ) -> None:
        async with (
            coordination.session("watcher") as session,
            peer(where, "count", "/counter", 200) as one,
            peer(where, "count", "/counter", 200) as two,
        ):
            values = []
            with trio.fail_after(SOON * 3):
                while values[-1:] != [400]:
                    seen = await session.change("/counter")
                    entry = await session.get("/counter")
                    if entry is not None:
                        values.append(int(entry.data))
                    if values[-1:] != [400]:
                        await session.wait_change("/counter", seen)
            assert [await one.line(), await two.line()] == ["done", "done"]
        assert values == sorted(values)

    # --- other processes -------------------------------------------------------------------------

    async def test_compare_and_set_from_several_processes_loses_nothing(
        self, coordination: Coordination, where: str
    ) -> None:
        async with (
            peer(where, "count", "/counter", 100) as one,
            peer(where, "count", "/counter", 100) as two,
            peer(where, "count", "/counter", 100) as three,
            peer(where, "count", "/counter", 100) as four,
        ):
            for process in (one, two, three, four):
                assert await process.line() == "done"
        async with coordination.session("reader") as session:
            entry = await entry_at(session, "/counter")
        assert (entry.data, entry.version) == (b"400", 400)

    async def test_of_many_processes_that_create_one_entry_one_does(self, where: str) -> None:
        async with (
            peer(where, "claim", "/leader") as one,
            peer(where, "claim", "/leader") as two,
            peer(where, "claim", "/leader") as three,
        ):
            answers = [await process.line() for process in (one, two, three)]
        assert sorted(answers) == ["EntryExists", "EntryExists", "mine"]

    async def test_a_killed_process_is_noticed_and_its_entries_go(
        self, coordination: Coordination, where: str
    ) -> None:
        async with (
            coordination.session("one") as session,
            peer(where, "hold", "/nodes/two", 3) as other,
        ):
            assert await other.line() == "holds"
            assert await session.children("/nodes") == ["two"]
            await other.kill()
            await gone(session, "/nodes/two")
            assert not session.lost.is_set()

    @pytest.mark.slow
    async def test_a_stopped_process_is_ended_by_others_learns_it_and_ends_in_order(
        self, coordination: Coordination, where: str
    ) -> None:
        async with (
            coordination.session("one") as session,
            peer(where, "hold", "/nodes/two", 2) as other,
        ):
            assert await other.line() == "holds"
            other.signal(signal.SIGSTOP)
            assert await gone(session, "/nodes/two") > 1
            other.signal(signal.SIGCONT)
            assert await other.rest() == ["lost", "SessionLost SessionLost"]
            with trio.fail_after(SOON * 3):
                assert await other.process.wait() == 0
            assert await session.get("/nodes/two") is None

    @pytest.mark.slow
    async def test_a_process_that_is_stopped_for_a_moment_keeps_its_session_and_learns_of_changes(
        self, coordination: Coordination, where: str
    ) -> None:
        async with (
            coordination.session("one") as session,
            peer(where, "hold", "/nodes/two", 10) as other,
        ):
            assert await other.line() == "holds"
            other.signal(signal.SIGSTOP)
            with trio.move_on_after(1), plain_errors():
                await gone(session, "/nodes/two")
            seen = await session.change("/nodes/two")
            await session.set("/nodes/two", b"end")
            other.signal(signal.SIGCONT)
            assert await other.line() == "end"
            with trio.fail_after(SOON):
                await session.wait_change("/nodes/two", seen)

    @pytest.mark.slow
    async def test_a_loop_that_hangs_loses_its_session_although_the_process_lives(
        self, coordination: Coordination, where: str
    ) -> None:
        async with (
            coordination.session("one") as session,
            peer(where, "hang", "/nodes/two", 2) as other,
        ):
            assert await other.line() == "hangs"
            await gone(session, "/nodes/two")
            assert other.process.poll() is None
            other.signal(signal.SIGUSR1)
            assert await other.line() == "SessionLost"

    @pytest.mark.slow
    async def test_a_session_that_ends_in_the_middle_of_writing_writes_nothing_afterwards(
        self, coordination: Coordination, where: str
    ) -> None:
        async with (
            coordination.session("one") as session,
            peer(where, "write", "/nodes/two", 2) as other,
        ):
            assert await other.line() == "writes"
            await gone(session, "/nodes/two")
            last = await session.get("/nodes/number")
            other.signal(signal.SIGUSR1)
            assert await other.line() == "SessionLost"
            assert await session.get("/nodes/number") == last
