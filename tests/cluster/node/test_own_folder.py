"""Folders that belong to one process, and what becomes of them when it is killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import environment

from s4node.cluster.node.own_folder import abandoned, temporary_coordination
from s4node.cluster.tree.folder import FolderCoordination

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_the_folder_of_a_process_that_was_killed_is_removed_by_the_next_and_no_other(
    tmp_path: Path,
) -> None:
    stranger = tmp_path / "s4-test-stranger"
    stranger.mkdir()
    with holder(tmp_path) as (killed, left), holder(tmp_path) as (_, living):
        killed.kill()
        killed.wait()
        assert left.is_dir()
        with temporary_coordination("s4-test-") as mine:
            assert {mine, living, stranger} == set(tmp_path.iterdir())
    assert not mine.exists()


async def test_a_folder_stays_while_one_who_was_left_behind_has_a_session_there(
    tmp_path: Path,
) -> None:
    with holder(tmp_path) as (killed, left):
        async with FolderCoordination(left).session("container"):
            killed.kill()
            killed.wait()
            with temporary_coordination("s4-test-"):
                assert left.is_dir()
        with temporary_coordination("s4-test-"):
            assert not left.exists()


def test_nobody_gets_a_folder_that_another_one_sweeps(tmp_path: Path) -> None:
    with holder(tmp_path) as (killed, left):
        killed.kill()
        killed.wait()
        for folder in abandoned([left]):
            assert folder == left
            assert list(abandoned([left])) == []


# -- set-up ---------------------------------------------------------------------------------------


HOLDER = """\
from s4node.cluster.node.own_folder import temporary_coordination
with temporary_coordination("s4-test-") as folder:
    print(folder, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@contextmanager
def holder(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has such a folder, and the folder; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(TMPDIR=str(tmp_path)),
    )
    with process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()
