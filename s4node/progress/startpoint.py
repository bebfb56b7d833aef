"""Startpoints: where in an input's partition reading begins. Pure.

Rules
- An offset is a whole number from 0 on; each event of a partition has its own, in order. What is
  to be read next is a position: the offset of the next event, which may not exist yet.
- A startpoint is a wish; the input turns it into an offset, or says why it cannot.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Oldest:
    """The first event that is still there."""


@dataclass(frozen=True, slots=True)
class Upcoming:
    """What comes from now on."""


@dataclass(frozen=True, slots=True)
class Timestamp:
    """The first event that was appended at or after ``millis`` (Unix time); else what comes."""

    millis: int


@dataclass(frozen=True, slots=True)
class Specific:
    """The event of this offset."""

    offset: int


Startpoint = Oldest | Upcoming | Timestamp | Specific
