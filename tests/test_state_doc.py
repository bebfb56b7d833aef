"""The page about state: its blocks, put together, are tests that pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from harness import environment

from s4node.config import KEYS

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "state.md").read_text()


def test_the_blocks_of_the_page_are_tests_that_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "test_page.py").write_text("\n\n".join(blocks))

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=environment(),
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert PAGE.count("def test_") == 2
    assert "2 passed" in done.stdout


def test_every_setting_that_the_page_names_exists() -> None:
    known = {key.name for key in KEYS}
    named = set(re.findall(r"`<?((?:task|job|s4)\.[a-zA-Z.]*[a-zA-Z])", PAGE))

    assert len(named) >= 7
    assert named - known == set()
