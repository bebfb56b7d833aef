"""How much code one event touches: what a reader has to follow. The bounds may only be lowered.

A place that is injected as a callable, or may be None, is one where a reader loses the way.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.mark.parametrize(
    ("grade", "files", "hops", "calls"),
    [("fast", 37, 157, 260), ("durable", 55, 323, 555)],
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


def test_no_more_callables_are_injected_and_no_more_parts_may_be_absent_than_before() -> None:
    found = ways().counted()
    assert len(found.callables) <= 30, found.callables
    assert len(found.absences) <= 14, found.absences


def ways() -> ModuleType:
    """The program that counts them."""
    file = Path(__file__).parents[1] / "tools" / "ways"
    loader = importlib.machinery.SourceFileLoader("ways", str(file))
    spec = importlib.util.spec_from_loader("ways", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
