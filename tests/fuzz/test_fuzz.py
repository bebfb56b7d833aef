"""What the fuzzer has reached or found keeps its promises; ``make fuzz`` looks for more."""

from __future__ import annotations

import pytest

from fuzz.saved import saved
from fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_every_saved_input_is_decoded_or_refused(name: str) -> None:
    inputs = saved(name)
    assert inputs
    for data in inputs:
        TARGETS[name](data)
