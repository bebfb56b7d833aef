"""docs/glossary.md: terms in their order of travel, each with a module that there is."""

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
