"""The page about testing apps: its blocks, put together, are tests that pass."""

from __future__ import annotations

import re
from pathlib import Path

from harness import ROOT
from pages import run_blocks


def test_the_blocks_of_the_page_are_tests_that_pass(tmp_path: Path) -> None:
    done = run_blocks(PAGE, tmp_path)

    assert done.returncode == 0, done.stdout
    assert f"{PAGE.count('def test_')} passed" in done.stdout
    assert PAGE.count("def test_") >= 8


def test_every_method_that_the_page_names_exists() -> None:
    from s4node.testing import AppTest

    named = set(re.findall(r"\btest\.(\w+)", PAGE))
    assert named >= {"send", "state", "output", "advance", "overflow", "relieve", "fail", "wait"}
    assert [name for name in named if not hasattr(AppTest, name)] == []


# -- set-up ---------------------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "testing-apps.md").read_text()
