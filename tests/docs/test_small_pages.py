"""docs/glossary.md, docs/security.md and docs/testing-apps.md: what they name is there."""

from __future__ import annotations

import importlib.util
import re

from harness import ROOT


def test_every_term_has_a_module_that_exists() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)[1:]
    terms = [term for term, _, _ in rows]
    assert 20 <= len(terms) == len(set(terms))
    for term, meaning, where in rows:
        modules = re.findall(r"`([\w.]+)`", where)
        assert modules, term
        assert meaning.strip(), term
        for module in modules:
            assert importlib.util.find_spec(f"s4node.{module}"), (term, module)


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "security.md").read_text()))
    texts = (path.read_text() for path in (ROOT / "tests").glob("**/test_*.py"))
    made = {name for text in texts for name in re.findall(r"def (test_\w+)", text)}
    assert len(named) > 30
    assert named - made == set()


def test_every_method_that_the_page_names_exists() -> None:
    from s4node.testing import AppTest, ClusterTest

    named = set(re.findall(r"\btest\.(\w+)", PAGE))
    assert named >= {"send", "state", "output", "advance", "overflow", "relieve", "fail", "wait"}
    assert [
        name for name in named if not (hasattr(AppTest, name) or hasattr(ClusterTest, name))
    ] == []


# -- set-up ---------------------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "testing-apps.md").read_text()
