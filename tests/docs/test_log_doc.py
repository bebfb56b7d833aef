"""docs/log.md is true: its commands print what it says, and its program runs."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

import pytest
import trio
from harness import ROOT, run_s4, s4_process
from pages import matches

PAGE = (ROOT / "docs" / "log.md").read_text()


@pytest.mark.long
async def test_every_command_of_the_page_prints_what_it_says(tmp_path: Path) -> None:
    (_, start, ready), *others = commands()
    start = start.replace("/var/lib/s4/log", str(tmp_path / "log"))
    more = ("--folder", tmp_path / "cluster", "-p", "s4.listener.address=tcp://127.0.0.1:0")
    async with s4_process(*start.split(), *more, cwd=tmp_path) as node:
        assert matches([line.replace(HERE, node.address) for line in ready], [node.readiness])
        for stdin, command, told in others:
            arguments = [*shlex.split(command), "--to", node.address]
            done = await run_s4(*arguments, cwd=tmp_path, stdin=stdin.encode())
            printed = (done.stdout + done.stderr).replace(node.address, HERE).splitlines()
            assert matches(told, printed), (command, printed)
            assert done.returncode == 0
        assert len(others) == 6

        scope: dict[str, object] = {}
        program = next(
            b for b in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "main" in b
        )
        exec(compile(program, "docs/log.md", "exec"), scope)
        main = scope["main"]
        assert callable(main)
        with trio.fail_after(10):
            await main(node.address)
        node.signal(signal.SIGTERM)
        assert await node.wait() == 0


# -- set-up ---------------------------------------------------------------------------------------


HERE = "tcp://127.0.0.1:12000"


def commands() -> list[tuple[str, str, list[str]]]:
    found = []
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for one in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *told = one.rstrip("\n").split("\n")
            fed, pipe, rest = command.rpartition(" | ")
            stdin = shlex.split(fed)[1] + "\n" if pipe else ""
            found.append((stdin, rest.removeprefix("s4 "), told))
    return found
