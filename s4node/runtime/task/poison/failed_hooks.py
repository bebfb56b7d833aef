"""Calls of ``on_window`` and ``on_timer`` that have failed, and are left out from then on. Pure.

Rules
- A call is identified by the PE, the key, and the window or the timer. When it is due again after
  the rollback, it is left out: the task does not make it.
- With ``dead-letter`` the window or the timer is kept as it was, and the call is made again at the
  next start. With ``skip`` it is gone.
- A call that is left out has one dead letter, in the first commit that covers it.
- More than ``MOST`` failed calls in one task are no accident: the app stops.
"""

from __future__ import annotations

from typing import NamedTuple

from s4node.events.event import LIVE, GenericEvent
from s4node.runtime.task.poison.poison_events import Fault, Place

MOST = 10_000
"""Failed calls that a task leaves out."""


class HookCall(NamedTuple):
    """A call of ``on_window`` for a window, or of ``on_timer`` for a timer; ``what`` says which."""

    hook: str
    pe: str
    key: object
    what: str

    def __str__(self) -> str:
        return f"{self.hook} of {self.what} for {self.pe} {self.key!r}"


class FailedCall(NamedTuple):
    """The reason why a call has failed; ``kept`` if it is made again at the next start."""

    stream: str
    fault: Fault
    kept: bool


class LeftOutCall(NamedTuple):
    place: Place
    failed: FailedCall
    dead_letter: GenericEvent


class FailedHooks:
    """The failed calls of one task; ``calls`` says why each has failed."""

    def __init__(self) -> None:
        self.calls: dict[HookCall, FailedCall] = {}
        self._reported: set[HookCall] = set()  # their dead letters are part of a commit
        self._going: list[HookCall] = []  # ... of the one that is being written
        self._new: list[HookCall] = []  # ... of the next one

    @property
    def at_limit(self) -> bool:
        """True if there are as many as a task may leave out."""
        return len(self.calls) >= MOST

    def add(self, call: HookCall, failed: FailedCall) -> None:
        self.calls[call] = failed

    def kept(self, call: HookCall) -> bool:
        """Return True if a call is made again at the next start."""
        return self.calls[call].kept

    def left_out(self, call: HookCall, partition: int) -> LeftOutCall | None:
        """Return a call that is left out with its dead letter; None if it was reported before."""
        if call in self._reported or call in self._going or call in self._new:
            return None
        self._new.append(call)
        failed = self.calls[call]
        fault, place = failed.fault, Place(str(call), -1)
        dead_letter = GenericEvent(
            system=LIVE,
            stream=failed.stream,
            partition=partition,
            offset=place.number,
            origin=place.origin,
            reason=fault.reason,
            raw=str(call).encode(errors="backslashreplace"),
            hook=call.hook,
            of=call.what,
            pe=fault.pe,
            key=fault.key,
            trace=fault.trace,
        )
        return LeftOutCall(place, failed, dead_letter)

    # -- commits -----------------------------------------------------------------------------

    def taken(self) -> None:
        self._going += self._new
        self._new.clear()

    def written(self) -> None:
        self._reported.update(self._going)
        self._going.clear()

    def going_back(self) -> None:
        """Prepare for the calls after the last commit, which are due again."""
        self._going.clear()
        self._new.clear()
