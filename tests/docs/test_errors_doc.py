"""The page about errors: its app runs, and its commands print what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from harness import ROOT, run_s4, s4_process
from log_bench import separate_log

from s4node import Event


@pytest.mark.long
async def test_the_commands_of_the_page_print_what_it_says(tmp_path: Path) -> None:
    async with separate_log(tmp_path) as log:
        await log.create("clicks", 2)
        await log.create("dead", 2)
        await log.append(
            "clicks", 1, [Click("joe", "1.5"), Click("joe", "free"), Click("joe", "2")]
        )
        (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        (tmp_path / "clicks.py").write_text(program)
        (settings,) = re.findall(r"```properties\n(.*?)```", PAGE, re.DOTALL)
        settings = settings.replace("tcp://127.0.0.1:12000", log.address)
        settings += f"s4.state.folder = {tmp_path / 'state'}\n"
        (tmp_path / "clicks.properties").write_text(settings)
        run = ("run", "clicks.py", "--config", "clicks.properties", "--listen", "tcp://127.0.0.1:0")
        async with s4_process(*run, cwd=tmp_path):
            done = None
            while not done or "1  log.clicks" not in done.stdout:
                done = await run_s4(
                    "dead-letter", "list", "clicks", "--config", "clicks.properties", cwd=tmp_path
                )
        of_letters = r"^\$ s4 ([^\n]* --config [^\n]*)\n(.*?)(?=^\$|^```)"
        commands = re.findall(of_letters, PAGE, re.DOTALL | re.MULTILINE)
        assert len(commands) == 4
        for command, told in commands:  # the app is away: it was not mended
            done = await run_s4(*shlex.split(command), cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            pattern = re.escape(told).replace(r"\.\.\.", ".+")
            assert re.fullmatch(pattern, done.stdout + done.stderr, re.DOTALL), command


# -- set-up ---------------------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "errors.md").read_text()


class Click(Event):
    user: str
    price: str
