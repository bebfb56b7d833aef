"""Retention: which frames are deleted, when files shrink, and when appending waits. Pure.

Rules
- A frame is deleted if it is older than its stream's retention, if the newer frames of its
  partition already fill the retention size, or if it was trimmed. A quota never deletes anything
  else.
- Only a trim deletes the newest frame of a partition.
- A clock that is set forward deletes nothing early: what was there before is kept for its retention
  as time has passed since then. One that is set back deletes later, by as much.
- Housekeeping takes small steps, partitions in turn: first it deletes rows, then returns pages to
  the disk, then cuts the write-ahead logs. Close to a quota, or while frames wait for space, it
  cuts them after every step, as deleting and shrinking write to them.
- A file keeps some MiB of free pages for the next events, as shrinking a file that grows again is
  wasted work. A partition at rest keeps none, and no partition does while frames wait for space.
- With a quota, a frame is written only if the files stay below it even in the worst case.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

SLACK_BYTES = 8 << 20
"""The free pages that a file may keep for later events; a sixteenth of the file if that is more."""

STEP_MS = 1_000
"""A clock was set if it has moved by more than this beside the steady one."""

_MOST_STEPS = 1000
"""The steps of a clock that are known; what was there before earlier ones may be deleted early."""

REST_MS = 5_000
"""A partition is at rest if nothing was appended to it for this long."""

FIXED_BYTES = 64 << 10
"""The size of a partition beside its database and its write-ahead log."""

RESERVE_BYTES = 512 << 10
"""The space kept free below a quota for the write-ahead logs of deletions."""


@dataclass(frozen=True, slots=True)
class Keep:
    """The retention of a stream: milliseconds, and bytes per partition; 0 means no bound."""

    ms: int = 0
    size: int = 0


class Row(NamedTuple):
    """A frame in a file: its first offset, the one after its last, its time and its bytes."""

    start: int
    end: int
    appended_ms: int
    size: int


class Held(NamedTuple):
    """The contents of a partition, and its bytes on disk.

    ``several``: there is more than one row. ``oldest_ms`` and ``last_ms`` are the times of the
    oldest and the newest row. ``below``: a trim asked to delete the rows that end at or below it.
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
        return self.file + self.wal + FIXED_BYTES


class ClockSteps:
    """By how much the clock was set forward: nothing has aged by that."""

    def __init__(self, now_ms: int, steady_ms: int) -> None:
        self._ahead_ms = now_ms - steady_ms
        self._steady_ms = steady_ms
        self._steps: deque[tuple[int, int]] = deque(maxlen=_MOST_STEPS)  # when, and by how much

    def note(self, now_ms: int, steady_ms: int) -> None:
        """Note the time by the clock, and by the steady one, which nobody sets."""
        by = now_ms - steady_ms - self._ahead_ms
        self._ahead_ms += by
        self._steady_ms = steady_ms
        if abs(by) > STEP_MS:
            self._steps.append((steady_ms, by))

    def kept(self, keep: Keep) -> Keep:
        """The retention that counts now; what was there before a step is gone after that."""
        forward = since = 0
        for at_ms, by in reversed(self._steps if keep.ms else ()):
            if self._steady_ms - at_ms > keep.ms:
                break
            since += by
            forward = max(forward, since)
        return replace(keep, ms=keep.ms + forward) if forward else keep


class Work(Enum):
    DELETE = "delete"
    SHRINK = "shrink"
    CUT_WAL = "cut the write-ahead log"


_ORDER = (Work.DELETE, Work.SHRINK, Work.CUT_WAL)
_PRESSED = (Work.CUT_WAL, Work.DELETE, Work.SHRINK)


class Step(NamedTuple):
    partition: int
    work: Work


def cut(rows: Sequence[Row], held: Held, keep: Keep, now_ms: int, newest: int) -> int:
    """The offset below which rows are deleted: the end of the last row to delete.

    ``rows`` are some of the oldest, in order; ``newest`` is where the newest row begins. If no row
    is to be deleted, returns the oldest offset.
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

    ``pressed``: frames wait for space, or the quota is :func:`tight`. ``after`` is the partition of
    the last step; later partitions come first.
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
    """Return True if the files are so near the quota that housekeeping must not let them grow."""
    return quota > 0 and used > quota - 4 * RESERVE_BYTES


def admitted(weights: Sequence[int], free: int, used: int, quota: int) -> int:
    """The number of these frames, in order, that may be written now, given their bytes.

    ``free`` is free in the partition's file, ``used`` is the size of all files, both in bytes.
    """
    if not quota:
        return len(weights)
    room = quota - RESERVE_BYTES - used
    grown = 4 * FIXED_BYTES  # for the tables beside the frames
    for count, weight in enumerate(weights):
        grown += 2 * weight  # a frame of just over half a page takes a whole one
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
