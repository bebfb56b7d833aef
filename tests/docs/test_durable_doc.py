"""The page about durable streams: its blocks, put together, are tests that pass."""

from __future__ import annotations

from pathlib import Path

from harness import ROOT
from pages import run_blocks, unknown_settings

from s4node.net.wire.frame import WINDOW_BYTES
from s4node.runtime.task.timers import SPAN


def test_the_blocks_of_the_page_are_tests_that_pass(tmp_path: Path) -> None:
    done = run_blocks(PAGE, tmp_path)

    assert done.returncode == 0, done.stdout
    assert PAGE.count("def test_") == 2
    assert "2 passed" in done.stdout


def test_every_setting_that_the_page_names_exists() -> None:
    assert unknown_settings(PAGE, least=3) == set()


def test_the_figures_of_the_page_are_those_of_the_code() -> None:
    assert (SPAN, WINDOW_BYTES) == (1.0, 64 << 20)


# -- set-up ---------------------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "durable.md").read_text()
