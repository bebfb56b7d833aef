"""An app that notes what it gets, for tests of those who send."""

from __future__ import annotations

from typing import Any

from shared_apps import Click, HoldingApp

from s4node.net.wire.frame import WINDOW_BYTES


class RecordingApp(HoldingApp):
    def __init__(self, *, key: Any = "user", **options: Any) -> None:
        super().__init__(held=False, key=key, **options)
        self.create_input_stream("others", self.pe, key=key)


SMALL = {"s4.stream.workQueueSize": "100"}


def clicks(count: int, start: int = 0) -> list[Click]:
    return [Click("ann", n) for n in range(start, start + count)]


LARGE = "x" * 100_000
MOST = WINDOW_BYTES // len(LARGE) + 30  # of those; a node's first credit, and an envelope or two
