"""How much code one event touches: what a reader has to follow. The bounds may only be lowered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest


@pytest.mark.parametrize(
    ("grade", "files", "hops", "calls"),
    [("fast", 40, 240, 360), ("durable", 73, 645, 970)],
)
def test_an_event_touches_no_more_code_than_before(
    grade: str, files: int, hops: int, calls: int
) -> None:
    walk = [sys.executable, str(Path(__file__).with_name("walk.py")), grade, "11"]
    run = subprocess.run(walk, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    medians = {what: median(each[what] for each in found) for what in found[0]}
    assert medians["files"] <= files, medians
    assert medians["hops"] <= hops, medians
    assert medians["calls"] <= calls, medians
