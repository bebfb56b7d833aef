"""The row of a window on disk."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from s4node.runtime.event_time import window_state

ROW = b"\x95\xcb@N\0\0\0\0\0\0\xc0\x02\xc3\xc4\x01s"


def test_the_bytes_on_disk_never_change() -> None:
    window: Any = SimpleNamespace(_span=(0.0, 60.0), _until=-math.inf, _round=2, _again=True)
    assert window_state._row_of(window, b"s") == ROW
    assert window_state._decode(ROW) == window_state._Row(60.0, None, 2, True, b"s")
