"""docs/first-durable-app.md is true: its commands, run in order, print what it says."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from harness import ROOT, NodeProcess, environment, free_port, run_s4, s4_process
from pages import matches

pytestmark = pytest.mark.slow


@pytest.mark.long
async def test_every_command_of_the_page_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HOME", "XDG_RUNTIME_DIR"):
        folder = tmp_path / variable
        folder.mkdir(mode=0o700)
        monkeypatch.setenv(variable, str(folder))
    async with AsyncExitStack() as background:
        terminal = Terminal(tmp_path, background)
        for command, told in commands():
            printed = await terminal.run(command)
            assert not told or matches(told, printed), (command, printed)
        assert terminal.running == {}
    assert len(commands()) == 20


# -- set-up ---------------------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "first-durable-app.md").read_text()


def commands() -> list[tuple[str, list[str]]]:
    found = []
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for one in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *told = one.rstrip("\n").split("\n")
            found.append((command, told))
    return found


class Terminal:
    """Runs the commands of the page in a folder, on ports of its own."""

    def __init__(self, folder: Path, background: AsyncExitStack) -> None:
        self.folder = folder
        self.ports = {"12000": str(free_port()), "12001": str(free_port())}
        self.running: dict[str, NodeProcess] = {}
        self._background = background

    async def run(self, command: str) -> list[str]:
        words = shlex.split(command)
        if words[0] == "pip":
            pass  # tests/cli/test_installed.py
        elif words[:2] == ["s4", "new-app"]:
            done = await run_s4(*words[1:], cwd=self.folder)
            assert done.returncode == 0, done.stderr
        elif words[0] == "cd":
            self.folder /= words[1]
            properties = self.folder / "app.properties"
            properties.write_text(self._moved(properties.read_text()))
            (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
            (self.folder / "send.py").write_text(self._moved(program))
        elif words[-1] == "&":
            options = ["-p", self._moved("s4.listener.address=tcp://127.0.0.1:12000")]
            options = options if words[1] == "node" else []
            name = " ".join(words[1:3])
            self.running[name] = await self._background.enter_async_context(
                s4_process(*words[1:-1], *options, cwd=self.folder)
            )
        elif words[0] == "kill":
            (name,) = [name for name in self.running if f"s4 {name}".startswith(words[-1][1:])]
            stopped = self.running.pop(name)
            stopped.signal(signal.SIGKILL if "-9" in words else signal.SIGTERM)
            assert await stopped.wait() == (-signal.SIGKILL if "-9" in words else 0)
        elif words[0] == "python":
            with trio.fail_after(60):
                ended = await trio.run_process(
                    [sys.executable, *words[1:]],
                    cwd=self.folder,
                    env=environment(),
                    capture_stdout=True,
                    capture_stderr=True,
                    check=False,
                )
            assert ended.returncode == 0, (ended.stdout + ended.stderr).decode()
        else:
            fed, pipe, rest = command.rpartition(" | ")
            stdin = shlex.split(fed)[1].replace("\\n", "\n").rstrip("\n") + "\n" if pipe else ""
            done = await run_s4(
                *shlex.split(rest)[1:], cwd=self.folder, stdin=stdin.encode(), deadline=60
            )
            assert done.returncode == 0, (command, done.stderr)
            printed = done.stdout + done.stderr
            for port, own in self.ports.items():
                printed = printed.replace(own, port)
            return printed.splitlines()
        return []

    def _moved(self, text: str) -> str:
        for port, own in self.ports.items():
            text = text.replace(port, own)
        return text
