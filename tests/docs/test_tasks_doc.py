"""docs/tasks.md gives the defaults of the settings."""

from __future__ import annotations

import re

from harness import ROOT

from s4node.config.key import Setting
from s4node.config.settings import MEMBERS


def test_the_defaults_of_the_table_are_those_of_the_settings() -> None:
    defaults = {key.name: key.text for key in MEMBERS if isinstance(key, Setting)}
    rows = re.findall(r"^\| `([a-z.]+)` \| (\S+) \|", PAGE, re.MULTILINE)

    assert len(rows) >= 10
    for name, told in rows:
        assert told.strip("`") == (defaults[name] or "–"), name  # noqa: RUF001


# -- set-up ---------------------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "tasks.md").read_text()
