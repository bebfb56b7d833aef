"""docs/testing-apps.md names only methods that exist."""

from __future__ import annotations

import re

from harness import ROOT


def test_every_method_that_the_page_names_exists() -> None:
    from s4node.testing import AppTest, ClusterTest

    named = set(re.findall(r"\btest\.(\w+)", PAGE))
    assert named >= {"send", "state", "output", "advance", "overflow", "relieve", "fail", "wait"}
    assert [
        name for name in named if not (hasattr(AppTest, name) or hasattr(ClusterTest, name))
    ] == []


# -- set-up ---------------------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "testing-apps.md").read_text()
