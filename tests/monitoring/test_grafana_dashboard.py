"""docker/dashboard.json asks for what nodes serve."""

from __future__ import annotations

import json
import re

import pytest
from harness import ROOT

from s4node.monitoring.exposition import FAMILIES

PANELS = json.loads((ROOT / "docker" / "dashboard.json").read_text())["panels"]
SAMPLES = {
    f"{name}{end}"
    for name, (kind, _) in FAMILIES.items()
    for end in {"counter": ["_total"], "summary": ["_sum", "_count"]}.get(kind, [""])
}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_asks_for_metrics_that_there_are_and_for_rates_of_counters_only(
    panel: dict[str, list[dict[str, str]]],
) -> None:
    for target in panel["targets"]:
        names = set(re.findall(r"\bs4_\w+", target["expr"]))
        assert names
        assert names <= SAMPLES
        for name in re.findall(r"(?:rate|increase)\((s4_\w+)", target["expr"]):
            assert name.endswith(("_total", "_sum", "_count"))
