"""Processes that are killed at a named step: what is kept afterwards is exactly what came."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from harness import ROOT, environment
from power import Power
from shared_apps import KEEPER

from s4node.errors import ConfigError
from s4node.failpoints import VARIABLE, point

pytestmark = pytest.mark.long


def test_a_point_that_is_not_there_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"S4_FAULT: no point 'commit\.wrote'; the points are s"):
        point("commit.wrote")
    with pytest.raises(ConfigError, match=r"'0' is not a positive number; write commit\.w"):
        point("commit.write:0")


async def test_a_command_with_a_point_that_is_not_there_says_so(tmp_path: Path) -> None:
    (tmp_path / "keeper.py").write_text(KEEPER)
    done = await trio.run_process(  # no fork, which has imported the points already
        [sys.executable, "-m", "s4node", "run", "keeper.py"],
        cwd=tmp_path,
        env=environment(S4_FAULT="commit.wrote"),
        capture_stderr=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"s4: S4_FAULT: no point 'commit.wrote'")


def test_a_fault_with_a_file_kills_once(tmp_path: Path) -> None:
    (tmp_path / "died").touch()
    die = point(f"commit.write@{tmp_path / 'died'}")
    die("commit.write")  # and we live
    assert (tmp_path / "died").exists()


USER = """
import fcntl, os, sys
from pathlib import Path
from threading import Thread
from s4node.failpoints import passing

folder = Path(sys.argv[1])
held = (folder / sys.argv[2]).open("wb")
fcntl.lockf(held, fcntl.LOCK_EX)

def write():
    number = 0
    with (folder / "a").open("r+b") as first, (folder / "b").open("r+b") as second:
        while True:
            number += 1
            for file in (first, second):
                os.pwrite(file.fileno(), number.to_bytes(8), 0)

if sys.argv[2] == "writer":
    Thread(target=write, daemon=True).start()
print("runs", flush=True)
for _ in sys.stdin:
    passing("disk.synced")
    print("passed", flush=True)
"""


def test_a_copied_folder_is_that_of_one_moment_and_its_users_keep_their_locks(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_bytes(bytes(8))
    power = Power(folder)
    with (
        started(USER, folder, "writer", fault=power.fault),
        started(USER, folder, "other", fault=power.fault) as other,
    ):
        copies = []
        for _ in range(20):
            say(other, "pass")
            copies.append([read(folder.with_name("disk.disk") / name) for name in ("a", "b")])
        for name in ("writer", "other"):
            with (folder / name).open("r+b") as file, pytest.raises(BlockingIOError):
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert all(first - second in (0, 1) for first, second in copies)
    assert copies[0][0] < copies[-1][0]  # it has gone on after each copy


# -- set-up ---------------------------------------------------------------------------------------


@contextmanager
def started(program: str, *given: object, fault: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program with pipes, once it has said something."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(**{VARIABLE: fault}),
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def say(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    print(words, file=process.stdin, flush=True)
    assert process.stdout.readline()


def read(path: Path) -> int:
    return int.from_bytes(path.read_bytes())
