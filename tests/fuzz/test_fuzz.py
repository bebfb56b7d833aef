"""What the fuzzer has reached or found keeps its promises; ``make fuzz`` looks for more."""

from __future__ import annotations

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
async def test_frames_that_mean_nothing_leave_a_node_with_log_and_durable_streams_as_it_was(
    tmp_path: Path,
) -> None:
    found = await survived(tmp_path, 4000, 5)
    assert found.sent == 4000
    assert found.counted == found.honest
    assert found.errors == []
