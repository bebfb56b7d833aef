"""The names in small pages are there: glossary, security, testing-apps, pes and tasks."""

from __future__ import annotations

import importlib.util
import re

from harness import ROOT

from s4node import AdapterApp, App, ProcessingElement
from s4node.config.key import Setting
from s4node.config.settings import MEMBERS
from s4node.testing import AppTest, ClusterTest


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def test_every_term_has_a_module_that_exists() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", page("glossary"), re.MULTILINE)[1:]
    terms = [term for term, _, _ in rows]
    assert 20 <= len(terms) == len(set(terms))
    for term, meaning, where in rows:
        modules = re.findall(r"`([\w.]+)`", where)
        assert modules, term
        assert meaning.strip(), term
        for module in modules:
            assert importlib.util.find_spec(f"s4node.{module}"), (term, module)


def test_every_test_that_the_page_about_security_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", page("security")))
    texts = (path.read_text() for path in (ROOT / "tests").glob("**/test_*.py"))
    made = {name for text in texts for name in re.findall(r"def (test_\w+)", text)}
    assert len(named) > 30
    assert named - made == set()


def test_every_method_of_tests_that_their_page_names_exists() -> None:
    named = set(re.findall(r"\btest\.(\w+)", page("testing-apps")))
    assert named >= {"send", "state", "output", "advance", "overflow", "relieve", "fail", "wait"}
    assert named - {*dir(AppTest), *dir(ClusterTest)} == set()


def test_every_method_that_the_page_about_pes_names_exists() -> None:
    named = set(re.findall(r"`(?:\w+\.)?((?:create|set)_\w+|start_soon|remove)\b", page("pes")))
    assert named >= {"create_pe", "create_stream", "set_trigger", "set_pe_cache", "start_soon"}
    owners = (App, AdapterApp, ProcessingElement)
    known = {name for owner in owners for name in dir(owner)} | {"set_parallelism"}
    assert named - known == set()


def test_the_defaults_in_the_table_of_tasks_are_those_of_the_settings() -> None:
    defaults = {key.name: key.text for key in MEMBERS if isinstance(key, Setting)}
    rows = re.findall(r"^\| `([a-z.]+)` \| (\S+) \|", page("tasks"), re.MULTILINE)
    assert len(rows) >= 10
    for name, told in rows:
        assert told.strip("`") == (defaults[name] or "–"), name  # noqa: RUF001
