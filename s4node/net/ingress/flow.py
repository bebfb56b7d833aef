"""The flow of a lane, and whether its producer is there: two tables. Pure.

Rules
- "Expected n" is answered once, until the producer has gone back or an answer was lost.
- While a frame is left to its producer, nothing is answered before there is room. A frame beyond
  the credit is an exception: its producer does not wait.
- A lane that has ended stays so until its producer comes again, also if its connection goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Flow(Enum):
    """The state of a lane, which decides on the next frame."""

    OPEN = "open: the next number enters"
    GAP = "gap: the expected number is to be answered"
    TOLD = "told: it was answered, and nothing is said until it has gone back"
    HELD = "held: a frame was left to it, and nothing is said until there is room"


class On(Enum):
    """An event that may change the flow of a lane."""

    TAKEN = "the next frame was taken"
    BEYOND = "a frame came after a gap"
    BACK = "a frame came after a gap, though the producer has gone back"
    OVER = "a frame came beyond the credit"
    NO_ROOM = "the next frame was left to the producer"
    ROOM = "there is room again"
    ANSWERED = "the expected number is in an answer"
    LOST = "the last answer could not be sent"
    ASKED = "the producer asks for its verdicts"
    REOPENED = "the producer has said hello"
    ROLLED_BACK = "the task goes back to its last commit"


NEXT: Mapping[tuple[Flow, On], Flow] = {
    **{(flow, On.TAKEN): Flow.OPEN for flow in Flow},
    **{(flow, On.OVER): Flow.GAP for flow in Flow},
    **{(flow, On.NO_ROOM): Flow.HELD for flow in Flow},
    **{(flow, On.REOPENED): Flow.OPEN for flow in Flow},
    **{(flow, On.ROLLED_BACK): Flow.GAP for flow in Flow},
    (Flow.OPEN, On.BEYOND): Flow.GAP,
    (Flow.OPEN, On.BACK): Flow.GAP,
    (Flow.GAP, On.ANSWERED): Flow.TOLD,
    (Flow.TOLD, On.BACK): Flow.GAP,
    (Flow.TOLD, On.ROOM): Flow.GAP,
    (Flow.TOLD, On.LOST): Flow.GAP,
    (Flow.TOLD, On.ASKED): Flow.GAP,
    (Flow.HELD, On.ROOM): Flow.GAP,
}
"""The flow after what has happened; anything else leaves it as it is."""


class Presence(Enum):
    HERE = "here: its connection takes answers"
    AWAY = "away: it may come again"
    ENDED = "ended: it sends nothing more"


class Move(Enum):
    """How a producer comes or goes."""

    HELLO = "hello"
    GONE = "its connection has gone"
    END = "it has sent an end of stream"


ARRIVALS: Mapping[tuple[Presence, Move], Presence] = {
    **{(presence, Move.HELLO): Presence.HERE for presence in Presence},
    **{(presence, Move.END): Presence.ENDED for presence in Presence},
    (Presence.HERE, Move.GONE): Presence.AWAY,
}
"""The presence after a producer has come or gone; anything else leaves it as it is."""
