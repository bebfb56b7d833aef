"""docs/security.md names only tests that exist."""

from __future__ import annotations

import re

from harness import ROOT


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "security.md").read_text()))
    texts = (path.read_text() for path in (ROOT / "tests").glob("**/test_*.py"))
    made = {name for text in texts for name in re.findall(r"def (test_\w+)", text)}
    assert len(named) > 30
    assert named - made == set()
