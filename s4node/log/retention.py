"""What of the log is deleted, when files shrink, and when appending must wait. Pure.

Rules
- A frame goes when it is older than its stream keeps, when younger frames alone are as much as
  its stream keeps in a partition, or when it was asked for (trimmed). Only then: a quota deletes
  nothing that is to be kept.
- The newest frame of a partition goes only when it is asked for.
- Work is done in small steps, partitions in turn: first deleting, then giving pages back to the
  disk, then cutting the write-ahead logs. While something waits for room, or close to a quota, they
  are cut first, after every step: deleting and giving back write to them.
- Pages that came free are kept for what is appended next, some MiB of them: moving pages to shrink
  a file that will grow again at once is work for nothing. A partition at rest keeps none, nor does
  any while something waits for room.
- With a quota a frame is written only where the files would stay below it even in the worst case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

SLACK_BYTES = 8 << 20
"""Free pages that a file may keep for what comes next, or a sixteenth of it if that is more."""

REST_MS = 5_000
"""A partition to which nothing was appended for so long is at rest."""

FIXED_BYTES = 64 << 10
"""What a partition takes beside its database and its write-ahead log."""

RESERVE_BYTES = 512 << 10
"""What is left free below a quota for the write-ahead logs of deletions."""


@dataclass(frozen=True, slots=True)
class Keep:
    """What a stream keeps: milliseconds, and bytes a partition; 0 is without bound."""

    ms: int = 0
    size: int = 0


class Row(NamedTuple):
    """A frame in a file: the offset it begins at, the one behind it, when it came, its bytes."""

    start: int
    end: int
    appended_ms: int
    size: int


class Held(NamedTuple):
    """What a partition holds: of its rows, and of the disk (bytes).

    ``several``: there are rows beside the newest. ``oldest_ms``: when the oldest row was appended,
    ``last_ms`` when the newest was. ``below``: rows that end there or before are to go, because
    somebody asked.
    """

    oldest: int
    size: int
    oldest_ms: int
    several: bool
    last_ms: int
    below: int
    file: int
    free: int
    wal: int

    @property
    def disk(self) -> int:
        """All that it takes up."""
        return self.file + self.wal + FIXED_BYTES


class Work(Enum):
    """A step of housekeeping."""

    DELETE = "delete"
    SHRINK = "shrink"
    CUT_WAL = "cut the write-ahead log"


_ORDER = (Work.DELETE, Work.SHRINK, Work.CUT_WAL)
_PRESSED = (Work.CUT_WAL, Work.DELETE, Work.SHRINK)


class Step(NamedTuple):
    """What to do next, and in which partition."""

    partition: int
    work: Work


def cut(rows: Sequence[Row], held: Held, keep: Keep, now_ms: int, newest: int) -> int:
    """The offset below which rows go: the end of the last of ``rows`` that goes, else the oldest.

    ``rows`` are some of the oldest, in order; ``newest`` is where the newest row begins.
    """
    gone, left = held.oldest, held.size
    for row in rows:
        asked = row.end <= held.below
        spare = row.start < newest and (
            (keep.ms and row.appended_ms < now_ms - keep.ms) or (keep.size and left > keep.size)
        )
        if not asked and not spare:
            break
        gone = row.end
        left -= row.size
    return gone


def next_step(
    held: Sequence[Held], keeps: Sequence[Keep], now_ms: int, pressed: bool, after: int
) -> Step | None:
    """The next step of housekeeping; None if there is nothing to do.

    ``pressed``: something waits for room, or the quota is :func:`tight`. ``after`` is the partition
    of the last step: those behind it come first.
    """

    def at_rest(at: Held) -> bool:
        return pressed or now_ms - at.last_ms > REST_MS

    turn = [(after + 1 + index) % len(held) for index in range(len(held))]
    due = {
        Work.CUT_WAL: (index for index in turn if held[index].wal and at_rest(held[index])),
        Work.DELETE: (index for index in turn if _overdue(held[index], keeps[index], now_ms)),
        Work.SHRINK: (
            index
            for index in turn
            if held[index].free > (0 if at_rest(held[index]) else _slack(held[index]))
        ),
    }
    for work in _PRESSED if pressed else _ORDER:
        partition = next(due[work], None)
        if partition is not None:
            return Step(partition, work)
    return None


def tight(used: int, quota: int) -> bool:
    """Whether the files are so close to the quota that housekeeping must not let them grow."""
    return quota > 0 and used > quota - 4 * RESERVE_BYTES


def admitted(weights: Sequence[int], free: int, used: int, quota: int) -> int:
    """How many of these frames may be written now, in order, by their bytes in the file.

    ``free`` are free bytes in the partition's file, ``used`` is what all files take up.
    """
    if not quota:
        return len(weights)
    room = quota - RESERVE_BYTES - used
    grown = 4 * FIXED_BYTES  # the tables beside the frames
    for count, weight in enumerate(weights):
        grown += 2 * weight  # of frames a little over half a page, each takes a page
        if max(0, grown - free) + grown > room:  # the file, and its write-ahead log
            return count
    return len(weights)


def _slack(held: Held) -> int:
    return max(SLACK_BYTES, held.file // 16)


def _overdue(held: Held, keep: Keep, now_ms: int) -> bool:
    if held.below > held.oldest and held.size:
        return True
    return held.several and bool(
        (keep.ms and held.oldest_ms < now_ms - keep.ms) or (keep.size and held.size > keep.size)
    )
