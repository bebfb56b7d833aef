"""``s4 new-app``: what it makes passes its own tests, and runs."""

from __future__ import annotations

import os
import shlex
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest
import trio
from cli_apps import ended
from harness import environment, node_process, run_module, run_s4, s4, s4_process

from s4node.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


async def test_a_new_app_passes_its_own_tests_and_runs(tmp_path: Path) -> None:
    made = await run_s4("new-app", "click-totals", cwd=tmp_path)
    folder = tmp_path / "click-totals"

    assert (made.returncode, made.stdout) == (0, "")
    assert "cd click-totals && pip install '.[test]' && python -m pytest" in made.stderr
    session = ("-q", "-W", "error", "-p", "no:cacheprovider")
    tested = await run_module("pytest", *session, cwd=folder, deadline=60)
    assert tested.returncode == 0, tested.stdout
    assert "3 passed" in tested.stdout

    async with node_process("app.py", cwd=folder) as node:
        sent = await run_s4(
            "send", "clicks", "--to", node.address, cwd=folder, stdin=b'{"user": "joe"}\n'
        )
    assert sent.stderr == "clicks: 1 admitted\n"


async def test_an_app_whose_log_lacks_its_output_stream_says_how_to_create_it(
    tmp_path: Path,
) -> None:
    await run_s4("new-app", "clicks", cwd=tmp_path)
    folder = tmp_path / "clicks"
    anywhere = ("-p", "s4.listener.address=tcp://127.0.0.1:0", "--folder", tmp_path / "cluster")
    logs = ("node", "logs", "-p", f"s4.log.folder={tmp_path / 'log'}", *anywhere)
    async with s4_process(*logs, cwd=tmp_path) as log:
        settings = {
            "s4.listener.address": "tcp://127.0.0.1:0",
            "s4.cluster.log.address": log.address,
            "s4.state.folder": str(tmp_path / "state"),
        }
        options = [text for each in settings.items() for text in ("-p", "=".join(each))]
        app = ("run", "app.py", "--config", "app.properties", *options)
        ended = await run_s4(*app, cwd=folder)

    assert ended.returncode == 1
    assert "stream 'totals'" in ended.stderr
    assert "s4 log create totals creates it" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.long
async def test_a_new_app_s_files_are_well_kept(tmp_path: Path) -> None:
    await run_s4("new-app", "x2", "--folder", "deep/inside", cwd=tmp_path)
    folder = tmp_path / "deep" / "inside"

    assert names_in(folder) == [
        "README.md",
        "app.properties",
        "app.py",
        "compose.yaml",
        "pyproject.toml",
        "test_app.py",
    ]
    assert "class X2App(App):" in (folder / "app.py").read_text()
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["dependencies"]) == ("x2", [f"s4node>={__version__}"])
    for tool in (
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "app.py", "test_app.py"],
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--isolated", "."],
        [sys.executable, "-m", "ruff", "format", "--check", "--no-cache", "--isolated", "."],
    ):
        with trio.fail_after(120):
            checked = await trio.run_process(
                tool,
                capture_stdout=True,
                check=False,
                cwd=folder,
                env=environment(),
            )
        assert checked.returncode == 0, checked.stdout.decode()


async def test_a_container_of_another_user_can_read_a_new_app(tmp_path: Path) -> None:
    before = os.umask(0o077)  # as careful administrators set it
    try:
        assert (await run_s4("new-app", "shop", cwd=tmp_path)).returncode == 0
    finally:
        os.umask(before)

    shop = tmp_path / "shop"
    assert shop.stat().st_mode & 0o777 == 0o755
    modes = {path.name: path.stat().st_mode & 0o777 for path in shop.iterdir()}
    assert set(modes.values()) == {0o644}, modes


@pytest.mark.parametrize("name", ["", "Clicks", "2fast", "../up", "a b", "class", "-x", "naïve"])
def test_an_invalid_name_of_an_app_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ended(["new-app", "--", name]) == 2
    assert f"{name!r} is not a name for an app; use lower-case letters" in capsys.readouterr().err
    assert names_in(tmp_path) == []


async def test_a_new_app_never_writes_into_a_folder_that_exists(tmp_path: Path) -> None:
    (tmp_path / "clicks").mkdir()
    (tmp_path / "file").write_text("mine")

    again = await run_s4("new-app", "clicks", cwd=tmp_path)
    below = await run_s4("new-app", "clicks", "--folder", "file/clicks", cwd=tmp_path)

    assert (again.returncode, below.returncode) == (2, 2)
    assert "clicks exists already; name another folder with --folder" in again.stderr
    assert "file/clicks cannot be created: Not a directory" in below.stderr
    assert names_in(tmp_path / "clicks") == []


async def test_a_new_app_for_which_there_is_no_room_leaves_nothing(tmp_path: Path) -> None:
    command = f"ulimit -f 0; exec {shlex.join(s4('new-app', 'clicks'))}"  # it writes no byte
    full = await trio.run_process(
        ["bash", "-c", command], capture_stderr=True, check=False, cwd=tmp_path, env=environment()
    )

    assert full.returncode == 2
    assert b"s4: clicks cannot be created: File too large; free some space" in full.stderr
    assert names_in(tmp_path) == []


async def test_what_it_says_to_do_next_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    made = await run_s4("new-app", "ok", "--folder", "x y/ok", cwd=tmp_path)
    assert "cd 'x y/ok' && pip install '.[test]' && python -m pytest" in made.stderr
    assert "s4 run 'x y/ok/app.py'" in made.stderr


# -- set-up ---------------------------------------------------------------------------------------


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
