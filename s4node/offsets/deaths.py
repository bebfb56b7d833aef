"""The deaths of a task's owners in a row, and the event at which one has died. Pure.

Rules
- A start of a task begins in order if its last owner has ended in order. Otherwise that owner's
  process has died, which counts until a start is well past the position where it began.
- After ``CAREFUL_AFTER`` deaths in a row the start is careful: one event at a time, whose place is
  known at the next death. Nothing is concluded from a death: an operator decides.
- A start is well past once commits of it cover ``WELL_PAST_EVENTS`` events, or after
  ``WELL_PAST_SECONDS``, as a quiet task may never get so many. After a death a task commits at
  least every 16,384 events, so the next death is nearer to its last commit than that.
"""

from __future__ import annotations

import msgspec

CAREFUL_AFTER = 3
"""Deaths in a row after which a start is careful."""

WELL_PAST_EVENTS = 65_536
WELL_PAST_SECONDS = 600.0

OWN = " (put by the task itself)"
"""The suffix of origins of a task's own events."""


class EventPlace(msgspec.Struct, frozen=True):
    """The place of an event: its number in ``origin``, or a hash of its bytes if it is the task's
    own. ``str`` gives the PLACE of commands."""

    task: str
    stream: str
    partition: int
    origin: str
    number: int

    def __str__(self) -> str:
        return f"{self.task}/{self.origin}:{self.number}"

    def advice(self, app: str) -> str:
        """Text for a process of ``app`` that has died at this event: how to skip it."""
        quoted = str(self).replace("'", "'\\''")
        return (
            f"it processed event {self.number} of {self.origin} (stream {self.stream!r}, partition "
            f"{self.partition}, task {self.task!r}). If it dies there again, skip the event with: "
            f"s4 dead-letter skip {app} '{quoted}'"
        )


class Deaths(msgspec.Struct, frozen=True):
    """A note of a task's owner, the process ``pid``, for the next owner, until it is well past.

    ``count`` deaths came before it in a row, ``at`` is the event at which one of them was.
    """

    pid: int
    count: int = 0
    at: EventPlace | None = None

    @property
    def careful(self) -> bool:
        """True if this owner processes one event at a time."""
        return self.count >= CAREFUL_AFTER

    def following(self, pid: int, at: EventPlace | None) -> Deaths:
        """The record of the next owner, after this one has died at the event ``at``, if known."""
        return Deaths(pid, self.count + 1, at or self.at)

    def well_past(self) -> Deaths:
        """The record of this owner once it is well past the position where it began."""
        return Deaths(self.pid)
