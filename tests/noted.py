"""An app that notes what it gets, for tests of those who send."""

from __future__ import annotations

from typing import Any

import trio

from s4node import App, Event, ProcessingElement
from s4node.net.wire.frame import WINDOW_BYTES


class Click(Event):
    user: str
    n: int = 0


class Buy(Event):
    user: str
    cents: int = 0


class Noted:
    """An app that notes what it gets; ``hold`` makes it wait in its next handler."""

    def __init__(self, **options: Any) -> None:
        self.seen: list[Any] = []
        self.held = False
        self.release = trio.Event()
        noted = self

        class Note(ProcessingElement):
            async def on_event(self, event: Any) -> None:
                if noted.held:
                    await noted.release.wait()
                noted.seen.append(event)

        self.app = App("notes")
        note = self.app.create_pe(Note)
        options = {"key": "user", "types": Click, **options}
        self.app.create_input_stream("clicks", note, **options)
        self.app.create_input_stream("others", note, **options)

    @property
    def numbers(self) -> list[int]:
        return [event.n for event in self.seen]

    def hold(self) -> None:
        self.held = True


SMALL = {"s4.stream.workQueueSize": "100"}


def clicks(count: int, start: int = 0) -> list[Click]:
    return [Click("ann", n) for n in range(start, start + count)]


LARGE = "x" * 100_000
MOST = WINDOW_BYTES // len(LARGE) + 30  # of those; a node's first credit, and an envelope or two
