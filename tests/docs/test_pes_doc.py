"""The page about apps of PEs: its blocks, put together, are tests that pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness import ROOT
from pages import run_blocks, unknown_settings

from s4node import AdapterApp, App, ProcessingElement
from s4node.errors import GraphError


def test_the_blocks_of_the_page_are_tests_that_pass(tmp_path: Path) -> None:
    done = run_blocks(PAGE, tmp_path)

    assert done.returncode == 0, done.stdout
    assert f"{PAGE.count('def test_')} passed" in done.stdout
    assert PAGE.count("def test_") >= 5


def test_every_setting_that_the_page_names_exists() -> None:
    unknown = unknown_settings(PAGE, least=3)
    assert {name for name in unknown if not name.startswith("s4.app")} == set()


def test_every_method_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(?:\w+\.)?((?:create|set)_\w+|start_soon|remove)\b", PAGE))

    assert named >= {"create_pe", "create_stream", "set_trigger", "set_pe_cache", "start_soon"}
    owners = (App, AdapterApp, ProcessingElement)
    known = {name for owner in owners for name in dir(owner)} | {"set_parallelism"}
    assert named - known == set()


def test_a_cache_without_any_bound_is_refused() -> None:
    class Idle(ProcessingElement):
        def on_event(self, event: object) -> None: ...

    pe = App().create_pe(Idle)
    with pytest.raises(GraphError, match="max_size > 0 or idle_seconds > 0"):
        pe.set_pe_cache()
    pe.set_pe_cache(max_size=1)
    pe.set_pe_cache(idle_seconds=1)


# -- set-up ---------------------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "pes.md").read_text()
