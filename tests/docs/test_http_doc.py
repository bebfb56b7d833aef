"""docs/http.md is true: its commands print what it says."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import trio
from harness import ROOT, node_process, until
from pages import matches

PAGE = (ROOT / "docs" / "http.md").read_text()
URL = "http://127.0.0.1:12080"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl"),
]


async def test_every_command_of_the_page_prints_what_it_says(tmp_path: Path) -> None:
    (start, ready), *others = commands()
    state = f"-ps4.state.folder={tmp_path}"
    _, _, file, *option = shlex.split(start)
    async with node_process(ROOT / file, *option, state, cwd=tmp_path) as process:
        await until(lambda: process.url)
        shown = "\n".join(ready).replace("tcp://127.0.0.1:12000", process.address)
        told = [*shown.replace(URL, process.url).split("\n")[:2], "  send events:  s4 send ..."]
        await until(lambda: matches(told, process.stderr[-3:]))  # these come line by line
        asked = 0
        for command, says in others:
            if "--no-buffer" in command:  # which does not end
                continue
            words = shlex.split(command.replace(URL, process.url))
            done = await trio.run_process([words[0], "-s", *words[1:]], capture_stdout=True)
            printed = done.stdout.decode().rstrip("\n").split("\n")
            assert matches(says, printed), (command, printed)
            asked += 1
        assert asked == 10


def test_the_lines_of_tokens_that_the_page_shows_are_as_they_should_be(tmp_path: Path) -> None:
    from s4node import Config
    from s4node.http.tokens import Tokens

    (text,) = re.findall(r"```\n(# a role.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "tokens"
    file.write_text(text)
    file.chmod(0o600)
    tokens = Tokens(Config.from_values({"s4.http.tokens": str(file)}))
    assert tokens.holder(f"Bearer {text.split()[-1]}") == ("producer", "till")


def commands() -> list[tuple[str, list[str]]]:
    found = []
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for one in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *says = one.rstrip("\n").split("\n")
            found.append((command, says))
    return found
