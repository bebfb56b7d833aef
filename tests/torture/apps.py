"""Two apps that note what they process, where it outlives the process.

Rules
- A note is written before the handler returns, unbuffered: whatever had an effect is in the file,
  even if the process is killed right behind it.
- A note is a line ``stage producer key number partition nanoseconds``; each process has a file.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

from s4node import App, Event, OutputStream, ProcessingElement, Stream
from torture.exact import exact

USERS = 24
GROUPS = 7


class Tap(Event):
    """What clients send: the ``number`` goes up by one for each ``producer``."""

    producer: str
    user: str
    group: str
    number: int


class Notes:
    """The file of this process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note(self, stage: str, key: str, tap: Tap, partition: int) -> None:
        """Write down that a stage has processed an event."""
        words = (stage, tap.producer, key, tap.number, partition, time.monotonic_ns())
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


class Enter(ProcessingElement):
    """Takes what clients send, and passes it on to both of the other streams."""

    notes: Notes
    inner: Stream
    onward: OutputStream

    def on_event(self, tap: Tap) -> None:
        """Note the event, then pass it on."""
        self.notes.note("enter", tap.user, tap, self.partition)
        self.inner.put(tap)
        self.onward.put(tap)


class Inside(ProcessingElement):
    """The second step, by another key and so mostly on another node."""

    notes: Notes

    def on_event(self, tap: Tap) -> None:
        """Note the event."""
        self.notes.note("inside", tap.group, tap, self.partition)


class Last(ProcessingElement):
    """The other app's."""

    notes: Notes

    def on_event(self, tap: Tap) -> None:
        """Note the event."""
        self.notes.note("last", tap.user, tap, self.partition)


def first(notes: Notes) -> App:
    """Takes ``taps``; ``inner`` is its own, ``onward`` leads to the second app."""
    app = App("first")
    enter, inside = app.create_pe(Enter), app.create_pe(Inside)
    enter.notes = inside.notes = notes
    app.create_input_stream("taps", enter, key="user", types=Tap)
    enter.inner = app.create_stream("inner", inside, key="group", types=Tap)
    enter.onward = app.create_output_stream("onward", key="user", types=Tap)
    return app


def second(notes: Notes) -> App:
    """Takes ``onward``."""
    app = App("second")
    last = app.create_pe(Last)
    last.notes = notes
    app.create_input_stream("onward", last, key="user", types=Tap)
    return app


APPS = {"first": first, "second": second}


def make(app: str, notes: Path) -> App:
    """The app of that name, which notes into the file."""
    from torture.copying import copying  # which takes its events from here

    if app == "exact":
        return exact()  # it notes nothing
    return partial(APPS.get(app) or partial(copying, app), Notes(notes))()
