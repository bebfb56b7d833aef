"""The place of a job at a URL: whose it is, and its tasks. Real file systems of fsspec."""

from __future__ import annotations

import asyncio
import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fsspec.asyn import AsyncFileSystem

from s4node.errors import CheckpointError, ConfigError, StateError
from s4node.offsets.checkpoint import JobGuard
from s4node.state.remote_files import AT_ONCE
from s4node.state.remote_job import RemoteJob
from s4node.state.remote_task import RemoteTask


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_another_job_s_place_is_refused(kind: str, tmp_path: Path) -> None:
    remote_job = RemoteJob(f"{kind}://{tmp_path}/remote_job", Path("here/app"))
    remote_job.admit(JobGuard(4, "by-partition", "crc32m", {"log.clicks": 4}))
    remote_job.admit(JobGuard(4, "by-partition", "crc32m", {"log.views": 2}))
    with pytest.raises(CheckpointError, match=r"does not fit this job:\n- it had 4 tasks"):
        remote_job.admit(JobGuard(8, "by-partition", "crc32m", {"log.clicks": 4}))


def test_a_url_that_means_nothing_is_a_mistake_in_the_configuration() -> None:
    with pytest.raises(
        ConfigError, match=r"s4\.state\.url = nosuch://bucket: .*; fsspec knows abfs,"
    ):
        RemoteJob("nosuch://bucket", Path("here/app"))


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_shipment_is_of_one_task(kind: str, tmp_path: Path) -> None:
    remote_job = RemoteJob(f"{kind}://{tmp_path}/remote_job", Path("here/app"))
    one, other = remote_job.task("one"), remote_job.task("other")
    one.highest(), other.highest()
    one.claim(5, "origin", 1)
    assert (one.highest(), other.highest()) == (5, 0)
    assert isinstance(one, RemoteTask)


def test_of_two_writers_that_create_a_name_in_a_folder_one_succeeds(tmp_path: Path) -> None:
    writers = [RemoteJob(f"file://{tmp_path}/remote_job", Path("here/app")).files for _ in "ab"]
    root = writers[0].root
    writers[0].make_folder(root)
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(
            lambda files: [files.put_new(f"{root}/{n}", b"x") for n in range(1000)], writers
        )
    assert [a != b for a, b in zip(one, other, strict=True)] == [True] * 1000
    assert not list(tmp_path.rglob("*.tmp"))


def test_how_owners_append_is_recorded_once_and_who_cannot_is_refused(tmp_path: Path) -> None:
    """On ``memory:`` a name is looked for and then taken, which is not a condition."""
    folder, memory = (
        RemoteJob(f"{kind}://{tmp_path}/remote_job", Path("here/app"))
        for kind in ("file", "memory")
    )
    assert (folder.append_mode(), memory.append_mode()) == ("create", "look")
    jobs = tmp_path / "remote_job/here/app/jobs"
    assert [path.name for path in jobs.iterdir()] == ["create"]
    (jobs / "create").rename(jobs / "look")
    assert RemoteJob(f"file://{tmp_path}/remote_job", Path("here/app")).append_mode() == "look"
    (jobs / "create").touch()
    with pytest.raises(StateError, match="has both 'create' and 'look'"):
        RemoteJob(f"file://{tmp_path}/remote_job", Path("here/app")).append_mode()
    other = RemoteJob(f"memory://{tmp_path}/other", Path("here/app"))
    other.files.put(f"{other.files.root}/jobs/create", b"")
    with pytest.raises(StateError, match="this node cannot make them there: two writers of one"):
        other.task("t").claim(1, "origin", 1)


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "is full: free some space or raise"),
        (OSError("QuotaExceededException"), "is full: free some space or raise its quota"),
        (PermissionError("Access Denied"), "right to list, read, write and remove"),
        (OSError(errno.EROFS, "Read-only file system"), "right to list, read, write and remove"),
        (FileNotFoundError("The specified bucket does not exist"), "create the bucket or folder"),
        (ConnectionError("refused"), "check that this node can reach s4.state.url"),
    ],
)
def test_a_place_that_refuses_says_what_to_do(error: OSError, fix: str, tmp_path: Path) -> None:
    files = RemoteJob(f"file://{tmp_path}/remote_job", Path("here/app")).files
    with pytest.raises(StateError) as caught, files.translate_errors():
        raise error
    text = str(caught.value)
    assert text.startswith(f"file://{tmp_path}/remote_job/here/app cannot be read or written: ")
    assert fix in text


def test_a_file_system_with_an_event_loop_fetches_many_objects_in_one_call() -> None:
    """Each of the first 32 comes only once all 32 are asked for, by one thread more."""
    threads_before, threads_then = threading.active_count(), list[int]()

    class Store(AsyncFileSystem):  # type: ignore[misc]
        cachable = False
        asked = 0
        together = asyncio.Event()

        async def _cat_file(self, path: str, **options: Any) -> bytes:
            self.asked += 1
            threads_then.append(threading.active_count())
            if self.asked == AT_ONCE:
                self.together.set()
            await asyncio.wait_for(self.together.wait(), 60)
            if path == "missing":
                raise FileNotFoundError(path)
            if path == "refused":
                raise PermissionError(path)
            return path.encode()

    files = RemoteJob("memory://anywhere", Path("here/app")).files
    files.fs = Store()
    places = [f"[{number}]*" for number in range(39)]  # no patterns, and in any order
    expected = [place.encode() for place in places]
    assert files.get(iter(["missing", *places[::-1]])) == [None, *expected[::-1]]
    assert max(threads_then) <= threads_before + 1
    with pytest.raises(PermissionError):
        files.get(["missing", "refused"])
