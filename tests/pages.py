"""Pages of docs: their Python blocks as a file of tests, and what they say that commands print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import environment

from s4node.cli.main import main
from s4node.config.settings import MEMBERS


def run_blocks(page: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the blocks of a page in an empty folder."""
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (folder / "test_page.py").write_text("\n\n".join(blocks))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        env=environment(),
        check=False,
    )


def unknown_settings(page: str, least: int) -> set[str]:
    """The settings that a page names and that do not exist, of at least so many that it names."""
    named = set(re.findall(r"`<?((?:task|job|s4)\.[a-zA-Z.<>]*[a-zA-Z])", page))
    assert len(named) >= least
    return named - {key.name for key in MEMBERS}


def check_commands(named: set[str]) -> None:
    """Assert that ``s4`` has these commands, more than 5."""
    assert len(named) > 5
    for command in sorted(named):
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0, command


def matches(told: list[str], printed: list[str]) -> bool:
    """A command has printed what was told, where three dots are any text."""
    patterns = [re.escape(line).replace(r"\.\.\.", ".+") for line in told]
    return len(printed) == len(told) and all(map(re.fullmatch, patterns, printed))
