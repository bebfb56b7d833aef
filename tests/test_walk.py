"""How much code one event touches: what a reader has to follow. The bounds may only be lowered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("grade", "files", "hops", "calls"),
    [("fast", 40, 201, 293), ("durable", 66, 429, 639)],
)
def test_an_event_touches_no_more_code_than_before(
    grade: str, files: int, hops: int, calls: int
) -> None:
    script = Path(__file__).with_name("walk.py")
    walk = [sys.executable, str(script), grade, "400", *map(str, (files, hops, calls))]
    run = subprocess.run(walk, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    bounds = {"files": files, "hops": hops, "calls": calls}
    within = [each for each in found if all(each[what] <= bounds[what] for what in bounds)]
    assert within, min(found, key=lambda each: each["calls"])
