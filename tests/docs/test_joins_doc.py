"""The page about joins: its blocks, put together, are tests that pass."""

from __future__ import annotations

from pathlib import Path

from harness import ROOT
from pages import run_blocks, unknown_settings

PAGE = (ROOT / "docs" / "joins.md").read_text()


def test_the_blocks_of_the_page_are_tests_that_pass(tmp_path: Path) -> None:
    done = run_blocks(PAGE, tmp_path)

    assert done.returncode == 0, done.stdout
    assert f"{PAGE.count('def test_')} passed" in done.stdout
    assert PAGE.count("def test_") == 4


def test_every_setting_that_the_page_names_exists() -> None:
    assert unknown_settings(PAGE, least=2) == set()
