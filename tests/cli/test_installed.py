"""docs/install.md: s4node as a dependency, in an environment that has nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest
import trio
from harness import ANY_PORT, ROOT, until

pytestmark = pytest.mark.long


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
async def test_a_new_app_installs_passes_its_test_and_runs_beside_an_installed_s4node(
    version: str, tmp_path: Path
) -> None:
    python = python_of(version)
    environment = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    environment |= {name: text for name, text in os.environ.items() if name.startswith("PIP_")}
    environment |= {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}

    async def done(*command: str | Path, cwd: Path = tmp_path, stdin: bytes = b"") -> str:
        with trio.fail_after(1200):
            ended = await trio.run_process(
                [str(word) for word in command],
                stdin=stdin,
                capture_stdout=True,
                stderr=subprocess.STDOUT,
                check=False,
                cwd=cwd,
                env=environment,
            )
        assert ended.returncode == 0, ended.stdout.decode()
        return ended.stdout.decode()

    await done(python, "-m", "venv", "fresh")
    tools = tmp_path / "fresh" / "bin"
    await done(tools / "pip", "install", f"s4node @ {ROOT.as_uri()}")
    await done(tools / "s4", "new-app", "click-totals")
    project = tmp_path / "click-totals"
    await done(tools / "pip", "install", ".[test]", cwd=project)
    assert "3 passed" in await done(tools / "python", "-m", "pytest", "-q", cwd=project)
    async with trio.open_nursery() as nursery:
        run = [str(tools / "s4"), "run", "app.py", "--listen", ANY_PORT]
        output = tmp_path / "output"
        with output.open("wb") as file:
            start = partial(trio.run_process, run, stdout=file, stderr=file, cwd=project)
            app = await nursery.start(partial(start, env=environment))
        await until(lambda: " runs at " in output.read_text())
        sent = await done(tools / "s4", "send", "clicks", cwd=project, stdin=b'{"user": "joe"}\n')
        assert sent == "clicks: 1 admitted\n"
        app.terminate()


# -- set-up ---------------------------------------------------------------------------------------


def python_of(version: str) -> str:
    """A Python of this version, on PATH or of pyenv; skips the test if there is none."""
    kept = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    for found in (*kept, shutil.which(f"python{version}")):
        if (
            found
            and subprocess.run([found, "-c", "import venv, ensurepip"], check=False).returncode == 0
        ):
            return str(found)
    pytest.skip(f"Python {version} is not on this machine: not shown that s4node installs on it")
