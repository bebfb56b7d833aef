"""An app that counts exactly or raises: events of a log and of sockets through two internal hops.

Rules
- An event bears its ordinal among those of its user. Each step keeps the ordinal that must come
  next, in its state: an event that is lost, doubled or out of order raises where it is missed.
- The three steps have three keys for a user, and so mostly three tasks. What has passed all of them
  goes to the log.
"""

from __future__ import annotations

from s4node import App, Event, OutputStream, ProcessingElement, Stream
from s4node.state import database

USERS = 24
"""Users of a producer."""

PIECE_ROWS = 8
"""Rows that are written at once: few, so that commits of so few keys are written both ways."""


class Order(Event):
    """The event ``ordinal`` of a user."""

    user: str
    second: str
    third: str
    ordinal: int


def order(producer: str, number: int) -> Order:
    user = f"{producer}-{number * 7919 % USERS}"
    return Order(user, f"{user} again", f"{user} at last", number // USERS)


class Step(ProcessingElement):
    wanted: int = 0
    onward: Stream | OutputStream

    def on_event(self, event: Order) -> None:
        """Check that it is the next one, and pass it on."""
        if event.ordinal != self.wanted:
            raise RuntimeError(f"{self.key} has got {event.ordinal}, and wants {self.wanted}")
        self.wanted += 1
        self.onward.put(event)


class First(Step):
    """Where events come in."""


class Second(Step):
    """Behind the first hop."""


class Third(Step):
    """Behind the second hop."""


def exact() -> App:
    """Inputs ``orders`` of the log and ``calls`` of sockets, output ``done``."""
    database.PIECE_ROWS = PIECE_ROWS
    app = hops()
    first = app.prototypes["First"][1]
    app.create_input_stream("orders", first, key="user", types=Order, system="log")
    return app


def hops() -> App:
    """Input ``calls`` of sockets, output ``done``."""
    app = App("exact")
    first, second, third = (app.create_pe(step) for step in (First, Second, Third))
    app.create_input_stream("calls", first, key="user", types=Order)
    first.onward = app.create_stream("second", second, key="second", types=Order)
    second.onward = app.create_stream("third", third, key="third", types=Order)
    third.onward = app.create_output_stream("done", key="user", types=Order)
    return app
