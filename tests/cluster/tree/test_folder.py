"""Coordination in a folder: the contract's kit, and what only a folder can suffer."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import sqlite3
import stat
import sys
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
import trio
from conformance.coordination import CoordinationConformance, gone, peer
from harness import limited, until
from structlog.testing import capture_logs

from s4node.cluster.tree.folder import FolderCoordination, FolderSession
from s4node.cluster.tree.session_file import SessionFile
from s4node.errors import ConfigError, CoordinationError, SessionLost


class TestFolder(CoordinationConformance):
    @pytest.fixture
    def where(self, folder: Path) -> str:
        return where_of(folder)


def made(folder: Path, mode: int = 0o700) -> Path:
    """The folder, there already, with this mode; returns where its database would be."""
    folder.mkdir()
    folder.chmod(mode)
    return folder / "tree.sqlite"


async def refusal(folder: Path | str) -> str:
    with pytest.raises(CoordinationError) as caught:
        async with FolderCoordination(folder, session_timeout=0.5).session("one"):
            raise AssertionError("a session was given")
    return str(caught.value)


# --- the folder ----------------------------------------------------------------------------------


async def test_the_folder_is_made_and_is_its_owner_s_alone(folder: Path) -> None:
    async with FolderCoordination(folder / "deep").session("one"):
        for path in (folder / "deep", folder / "deep" / "sessions"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        for path in (folder / "deep").glob("**/*"):
            assert stat.S_IMODE(path.stat().st_mode) in (0o600, 0o700)


async def test_a_tilde_is_the_user_s_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert FolderCoordination("~/.s4node").folder == tmp_path / ".s4node"
    with pytest.raises(ConfigError, match="'~nobody-at-all/x' has no full path"):
        FolderCoordination("~nobody-at-all/x")


async def test_what_was_written_is_there_when_all_have_gone_and_come_again(folder: Path) -> None:
    async with FolderCoordination(folder).session("one") as session:
        await session.create("/a/b", b"stays")
        await session.set("/a/b", b"stays here")
    async with FolderCoordination(folder).session("two") as session:
        entry = await session.get("/a/b")
        assert entry is not None
        assert (entry.data, entry.version) == (b"stays here", 1)
    assert list((folder / "sessions").iterdir()) == []


async def test_processes_that_make_the_folder_at_once_find_each_other(folder: Path) -> None:
    async with (
        peer(where_of(folder), "claim", "/leader") as one,
        peer(where_of(folder), "claim", "/leader") as two,
        peer(where_of(folder), "claim", "/leader") as three,
        peer(where_of(folder), "claim", "/leader") as four,
    ):
        answers = [await process.line() for process in (one, two, three, four)]
    assert sorted(answers) == ["EntryExists"] * 3 + ["mine"]


async def test_a_folder_that_everybody_may_write_to_is_refused(folder: Path) -> None:
    made(folder, 0o777)
    assert "everyone may write to" in await refusal(folder)


@pytest.mark.parametrize("place", [__file__, f"{__file__}/below", "/proc/s4node"])
async def test_where_no_folder_can_be_is_told(place: str) -> None:
    """Nobody may make a folder in /proc, not even root."""
    message = await refusal(place)
    assert place in message
    assert message.endswith("fix its permissions, or set s4.coordination.folder to another folder")


async def test_a_database_that_is_none_is_refused(folder: Path) -> None:
    made(folder).write_bytes(b"this is no database\n" * 100)
    message = await refusal(folder)
    assert str(folder / "tree.sqlite") in message
    assert "it is damaged: stop all nodes and delete the folder" in message


async def test_a_database_of_another_program_is_refused(folder: Path) -> None:
    other = sqlite3.connect(made(folder))
    other.execute("CREATE TABLE songs (title)")
    other.commit()
    other.close()
    assert "is a database of another program" in await refusal(folder)


async def test_a_database_in_another_format_is_refused_with_both_numbers(folder: Path) -> None:
    async with FolderCoordination(folder).session("one"):
        pass
    database = sqlite3.connect(folder / "tree.sqlite", isolation_level=None)
    database.execute("PRAGMA user_version = 9")
    database.close()
    assert "has format 9, and this s4node reads format 1" in await refusal(folder)


async def test_a_folder_that_vanishes_ends_all_sessions(folder: Path) -> None:
    coordination = FolderCoordination(folder)
    async with coordination.session("one") as one, coordination.session("two") as two:
        await one.create("/a")
        shutil.rmtree(folder)
        with trio.fail_after(10):
            await one.lost.wait()
            await two.lost.wait()
        with pytest.raises(SessionLost, match="was deleted or replaced"):
            await one.get("/a")


async def test_a_database_that_is_replaced_ends_the_sessions_of_the_old_one(folder: Path) -> None:
    async with FolderCoordination(folder).session("one") as one:
        shutil.rmtree(folder)
        async with FolderCoordination(folder).session("two") as two:
            with trio.fail_after(10):
                await one.lost.wait()
            await two.create("/a")


async def test_a_database_that_is_damaged_while_it_is_used_is_told(folder: Path) -> None:
    async def damage() -> None:
        async with FolderCoordination(folder).session("one") as session:
            for path in (folder / "tree.sqlite", folder / "tree.sqlite-wal"):
                path.write_bytes(os.urandom(path.stat().st_size))
            with trio.fail_after(10):
                for number in range(1000):
                    await session.create(f"/a/{number}", bytes(1000))

    with pytest.raises(CoordinationError, match=r"tree\.sqlite"):
        await damage()


async def test_a_full_disk_refuses_the_write_and_keeps_the_session(folder: Path) -> None:
    async with FolderCoordination(folder).session("one") as session:
        await session.create("/small", b"fits")
        # what SQLite says when a disk is full it also says when the file may grow no more
        session._tree._db.execute("PRAGMA max_page_count = 20")
        with pytest.raises(CoordinationError, match="the disk is full: free some space on it"):
            await session.create("/large", bytes(500_000))
        session._tree._db.execute("PRAGMA max_page_count = 100000")
        assert await session.children("/") == ["small"]
        await session.create("/large", bytes(500_000))


async def test_a_process_that_stops_in_the_middle_of_a_write_is_told_of_and_waited_for(
    folder: Path,
) -> None:
    async with FolderCoordination(folder, session_timeout=0.5).session("one") as session:
        await session.create("/a", b"0")
        other = sqlite3.connect(folder / "tree.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(CoordinationError, match=r"was locked by another process for 0\.5 s"):
            await session.set("/a", b"1")
        assert await session.get("/a") is not None
        assert not session.lost.is_set()
        other.execute("ROLLBACK")
        assert await session.set("/a", b"1") == 1
        other.close()


async def test_a_full_disk_keeps_the_session_of_who_notices_a_death(folder: Path) -> None:
    async with (
        FolderCoordination(folder).session("one") as session,
        peer(where_of(folder), "hold", "/nodes/two", 60) as other,
    ):
        assert await other.line() == "holds"
        # nothing that is written to a file fits any more
        with capture_logs() as logs, limited(resource.RLIMIT_FSIZE, 1):
            await other.kill()
            await until(lambda: logs)
            await looked(session, 5)
            assert not session.lost.is_set()
            assert await session.get("/nodes/two") is not None
        await gone(session, "/nodes/two")
        assert [line["event"] for line in logs] == ["cannot watch the other sessions"]


async def test_a_process_out_of_file_descriptors_keeps_its_session(folder: Path) -> None:
    async with (
        FolderCoordination(folder).session("one") as session,
        peer(where_of(folder), "hold", "/nodes/two", 60) as other,
    ):
        # long before the other is there: it has Python to start
        with capture_logs() as logs, limited(resource.RLIMIT_NOFILE, 0):
            assert await other.line() == "holds"
            await until(lambda: logs)
            await looked(session, 5)
            assert not session.lost.is_set()
        await other.kill()
        await gone(session, "/nodes/two")


async def looked(session: FolderSession, times: int) -> None:
    """Wait until a session has looked for changes so many times from now on."""
    check, looks = session._check_folder, 0

    def counting() -> None:
        nonlocal looks
        looks += 1
        check()

    session._check_folder = counting  # type: ignore[method-assign]
    await until(lambda: looks >= times)
    session._check_folder = check  # type: ignore[method-assign]


def events_of(logs: list[MutableMapping[str, Any]]) -> list[str]:
    return [line["event"] for line in logs]


async def test_a_folder_that_cannot_be_come_to_for_a_while_keeps_the_session(
    tmp_path: Path, folder: Path
) -> None:
    made(folder)
    way, loop = tmp_path / "way", tmp_path / "loop"
    way.symlink_to(folder)
    async with FolderCoordination(way).session("one") as session:
        loop.symlink_to("way")
        with capture_logs() as logs:
            loop.replace(way)  # it leads to itself
            await until(lambda: logs)
            await session.create("/a")
            await looked(session, 5)
            assert not session.lost.is_set()
            loop.symlink_to(folder)
            loop.replace(way)
            await until(lambda: len(logs) == 2)
    assert events_of(logs) == [
        "cannot watch the other sessions",
        "can watch the other sessions again",
    ]
    assert "fix the permissions of its folder, or check its disk" in logs[0]["reason"]


async def test_a_folder_that_is_deleted_while_it_cannot_be_come_to_ends_the_session(
    tmp_path: Path, folder: Path
) -> None:
    made(folder)
    way, loop = tmp_path / "way", tmp_path / "loop"
    way.symlink_to(folder)
    async with FolderCoordination(way).session("one") as session:
        loop.symlink_to("way")
        loop.replace(way)
        shutil.rmtree(folder)
        with trio.fail_after(10):
            await session.lost.wait()


@pytest.mark.long
async def test_sessions_on_a_disk_that_took_no_sign_of_life_do_not_end_each_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordination = FolderCoordination(folder, session_timeout=1)
    async with coordination.session("one") as one, coordination.session("two") as two:
        with monkeypatch.context() as disk, capture_logs() as logs:

            def refuse(_: SessionFile) -> None:
                raise OSError(errno.EROFS, "Read-only file system")

            disk.setattr(SessionFile, "beat", refuse)
            await until(lambda: one.doubtful and two.doubtful)
            await trio.sleep(1.5)
            assert one.doubtful
            assert two.doubtful
        await until(lambda: not one.doubtful and not two.doubtful)
        await trio.sleep(1.5)
        assert not one.lost.is_set()
        assert not two.lost.is_set()
    assert events_of(logs) == ["cannot send heartbeats"] * 2


@pytest.mark.long
async def test_who_seldom_gives_a_sign_of_life_tries_before_it_judges_those_who_often_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        FolderCoordination(folder, session_timeout=60).session("slow") as slow,
        FolderCoordination(folder, session_timeout=1).session("quick") as quick,
    ):
        await until(lambda: slow._others and quick._others, "each has seen the other")
        with monkeypatch.context() as disk:

            def refuse(_: SessionFile) -> None:
                raise OSError(errno.EROFS, "Read-only file system")

            disk.setattr(SessionFile, "beat", refuse)
            await until(lambda: quick.doubtful)
            await trio.sleep(1.5)
        await until(lambda: not quick.doubtful or quick.lost.is_set())
        assert not quick.lost.is_set()
        assert not slow.lost.is_set()


async def test_who_can_give_no_sign_of_life_is_in_doubt_before_others_end_its_session(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordination = FolderCoordination(folder, session_timeout=1)
    async with coordination.session("mute") as mute, coordination.session("other") as other:
        await mute.create("/mute", ephemeral=True)
        beat = SessionFile.beat

        def refuse(file: SessionFile) -> None:
            if file is mute._file:
                raise OSError(errno.EIO, "Input/output error")
            beat(file)

        monkeypatch.setattr(SessionFile, "beat", refuse)
        while await other.get("/mute") is not None:
            doubtful = mute.doubtful
        assert doubtful
        await mute.lost.wait()


# --- sessions ------------------------------------------------------------------------------------


async def test_a_killed_process_is_noticed_at_once_by_who_seldom_looks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        FolderCoordination(folder).session("one") as session,
        peer(where_of(folder), "hold", "/nodes/two", 60) as other,
    ):
        assert await other.line() == "holds"
        await until(lambda: session._others)
        monkeypatch.setattr("s4node.cluster.tree.folder._CALM_SECONDS", 0.0)
        monkeypatch.setattr("s4node.cluster.tree.folder._CALM_LOOK_SECONDS", 60.0)
        await looked(session, 1)  # the next look is after a minute
        other.process.kill()
        await gone(session, "/nodes/two")


async def test_a_new_session_finds_no_entries_of_dead_ones(folder: Path) -> None:
    async with peer(where_of(folder), "hold", "/nodes/one", 60) as other:
        assert await other.line() == "holds"
        await other.kill()
    async with FolderCoordination(folder).session("two") as session:
        assert await session.get("/nodes/one") is None
        assert [path.name for path in (folder / "sessions").iterdir()] == [session.id]


async def test_two_that_notice_a_death_at_once_do_it_once(folder: Path) -> None:
    coordination = FolderCoordination(folder)
    async with (
        coordination.session("a") as a,
        coordination.session("b") as b,
        coordination.session("c") as c,
        peer(where_of(folder), "hold", "/nodes/x", 60) as other,
    ):
        assert await other.line() == "holds"
        await other.kill()
        for session in (a, b, c):
            await gone(session, "/nodes/x")
        await until(lambda: len(list((folder / "sessions").iterdir())) == 3)
        assert not any(session.lost.is_set() for session in (a, b, c))


@pytest.mark.slow
@pytest.mark.long
async def test_processes_that_were_all_stopped_together_lose_nothing(folder: Path) -> None:
    """As when a machine's containers are paused: nobody was there to count the silence."""
    async with (
        peer(where_of(folder), "hold", "/nodes/one", 1) as one,
        peer(where_of(folder), "hold", "/nodes/two", 1) as two,
    ):
        assert [await one.line(), await two.line()] == ["holds", "holds"]
        for process in (one, two):
            process.signal(signal.SIGSTOP)
        time.sleep(2.5)  # noqa: ASYNC251 - nothing here may look
        for process in (one, two):
            process.signal(signal.SIGCONT)
        async with FolderCoordination(folder).session("three") as session:
            for path in ("/nodes/one", "/nodes/two"):
                await session.set(path, b"end")
        assert [await one.line(), await two.line()] == ["end", "end"]


@pytest.mark.slow
@pytest.mark.long
async def test_a_loop_that_is_blocked_for_too_long_loses_its_session(folder: Path) -> None:
    async with FolderCoordination(folder, session_timeout=0.5).session("one") as session:
        await session.create("/nodes/one", ephemeral=True)
        async with peer(where_of(folder), "hold", "/nodes/two", 60) as other:
            assert await other.line() == "holds"
            time.sleep(2)  # noqa: ASYNC251 - as a handler that computes
            with trio.fail_after(10):
                await session.lost.wait()
            with pytest.raises(SessionLost, match="a handler that blocks its loop, SIGSTOP, or"):
                await session.get("/nodes/one")


async def test_a_session_whose_process_stood_still_is_in_doubt_until_it_has_looked(
    tmp_path: Path,
) -> None:
    async with FolderCoordination(tmp_path, session_timeout=1).session("a") as session:
        assert not session.doubtful
        time.sleep(0.6)  # noqa: ASYNC251 - nothing runs, as after a SIGSTOP
        assert session.doubtful
        await until(lambda: not session.doubtful)
        assert not session.lost.is_set()


def test_a_second_session_of_a_process_takes_no_lock_of_the_first(folder: Path) -> None:
    """Another process that takes itself for the last one would delete the log of the database."""
    path = str(folder / "tree.sqlite")
    query = "SELECT count(*) FROM entry"
    read = f"import sqlite3; c = sqlite3.connect({path!r}); c.execute({query!r}); c.close()"

    async def main() -> None:
        coordination = FolderCoordination(folder)
        async with coordination.session("first") as first:
            async with coordination.session("second"):
                pass
            await trio.run_process([sys.executable, "-c", read])
            assert (folder / "tree.sqlite-wal").exists()
            await first.create("/after", b"it")
            async with coordination.session("third") as third:
                entry = await third.get("/after")
                assert entry is not None
                assert entry.data == b"it"

    trio.run(main)


# -- set-up ---------------------------------------------------------------------------------------


def where_of(folder: Path) -> str:
    return f"conformance.folder:in_folder:{folder}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "coordination"
