"""Inputs that the fuzzer has reached or found keep their promises; ``make fuzz`` looks for more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fuzz.frames import survived
from fuzz.saved import saved
from fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_every_saved_input_is_decoded_or_refused(name: str) -> None:
    inputs = saved(name)
    assert inputs
    for data in inputs:
        TARGETS[name](data)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("tls", [pytest.param(False, marks=pytest.mark.short), True])
async def test_frames_at_all_bounds_leave_a_node_and_its_log_serving_others(
    tmp_path: Path, tls: bool
) -> None:
    frames = int(os.environ.get("FUZZ_FRAMES", "10000"))  # in make test-long, a million
    found = await survived(tmp_path, frames, 5, tls=tls)
    assert found.sent == frames
    assert found.counted == found.logged == found.honest
    assert found.errors == []
