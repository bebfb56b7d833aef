"""docker/dashboard.json asks for what nodes serve."""

from __future__ import annotations

import json
import re

import pytest
from harness import ROOT

from s4node.metrics.statistics import FAMILIES

PANELS = json.loads((ROOT / "docker" / "dashboard.json").read_text())["panels"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_asks_for_metrics_that_there_are_and_for_rates_of_counters_only(
    panel: dict[str, list[dict[str, str]]],
) -> None:
    for target in panel["targets"]:
        names = set(re.findall(r"\bs4_\w+", target["expr"]))
        assert names
        assert names <= FAMILIES.keys()
        for name in re.findall(r"(?:rate|increase)\((s4_\w+)", target["expr"]):
            assert FAMILIES[name].kind == "counter"
