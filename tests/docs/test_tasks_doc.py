"""The page about tasks: its blocks, put together, are tests that pass."""

from __future__ import annotations

import re
from pathlib import Path

from harness import ROOT
from pages import run_blocks

from s4node.config.key import Setting
from s4node.config.settings import MEMBERS


def test_the_blocks_of_the_page_are_tests_that_pass(tmp_path: Path) -> None:
    done = run_blocks(PAGE, tmp_path)

    assert done.returncode == 0, done.stdout
    assert f"{PAGE.count('def test_')} passed" in done.stdout
    assert PAGE.count("def test_") >= 6


def test_every_setting_that_the_page_names_exists() -> None:
    known = {key.name for key in MEMBERS}
    page = PAGE.replace("streams.clicks.", "streams.<stream>.")
    page = page.replace("streams.profiles.", "streams.<stream>.")
    named = set(re.findall(r"`((?:task|job|s4|streams)\.[a-z.<>]*[a-z])", page))

    assert len(named) >= 15
    assert {name for name in named if not name.startswith("s4.app")} - known == set()


def test_the_defaults_of_the_table_are_those_of_the_settings() -> None:
    defaults = {key.name: key.text for key in MEMBERS if isinstance(key, Setting)}
    rows = re.findall(r"^\| `([a-z.]+)` \| (\S+) \|", PAGE, re.MULTILINE)

    assert len(rows) >= 10
    for name, told in rows:
        assert told.strip("`") == (defaults[name] or "–"), name  # noqa: RUF001


# -- set-up ---------------------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "tasks.md").read_text()
