"""When a container process is started, taken for dead, stopped and started again.

Rules
- One machine a container process; the table below is all that can happen to one. The supervisor
  that drives it tells what it saw, then asks :meth:`Restarts.look` until that returns None, and
  does what it says.
- Time is an argument, in seconds of any steady clock.
- A process that ends without being asked is started again, each time after twice the pause of the
  time before; one that ran calmly for long enough begins with the shortest pause again.
- A process that is not ready in time, sends no pulse in time or does not stop in time is killed. A
  stopped process (SIGSTOP) and one whose loop is stuck are the same here: both send no pulse.
- No pulse is asked of one that starts its app: an app's own start may block its loop. It has to be
  ready in time.
- Who drives the machine looks every ``LOOK_SECONDS`` or sooner. Longer than that between two looks
  means that the driver itself was stopped, and no process is blamed for that time. A driver that
  looks late by more than a pulse first hears what was said meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

LOOK_SECONDS = 1.0


class Phase(Enum):
    """Where a container process is in its life."""

    WAITING = "waiting"  # there is no process; it starts when the pause is over
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"  # asked to stop, and draining
    KILLED = "killed"  # its end has not been seen yet
    ENDED = "ended"  # on request, for good


class Seen(Enum):
    """What happens to a container process."""

    STARTED = "started"
    READY = "ready"
    PULSE = "pulse"
    LATE = "late"
    GO = "go"
    STOP = "stop"
    EXIT = "exit"


class Action(Enum):
    """What the driver has to do."""

    START = "start"
    STOP = "stop"
    KILL = "kill"


_AGAIN = None  # the phase that follows an exit: waiting, or ended where a stop was asked for

_TABLE: dict[tuple[Phase, Seen], Phase | None] = {
    (Phase.WAITING, Seen.STARTED): Phase.STARTING,
    (Phase.WAITING, Seen.STOP): Phase.ENDED,
    (Phase.STARTING, Seen.READY): Phase.RUNNING,
    (Phase.STARTING, Seen.PULSE): Phase.STARTING,
    (Phase.STARTING, Seen.LATE): Phase.KILLED,
    (Phase.STARTING, Seen.STOP): Phase.STOPPING,
    (Phase.STARTING, Seen.EXIT): _AGAIN,
    (Phase.RUNNING, Seen.READY): Phase.RUNNING,  # it was ready to begin, and now has begun
    (Phase.RUNNING, Seen.PULSE): Phase.RUNNING,
    (Phase.RUNNING, Seen.GO): Phase.STARTING,  # it was prepared, and now starts its app
    (Phase.RUNNING, Seen.LATE): Phase.KILLED,
    (Phase.RUNNING, Seen.STOP): Phase.STOPPING,
    (Phase.RUNNING, Seen.EXIT): _AGAIN,
    (Phase.STOPPING, Seen.READY): Phase.STOPPING,
    (Phase.STOPPING, Seen.PULSE): Phase.STOPPING,
    (Phase.STOPPING, Seen.STOP): Phase.STOPPING,
    (Phase.STOPPING, Seen.LATE): Phase.KILLED,
    (Phase.STOPPING, Seen.EXIT): _AGAIN,
    (Phase.KILLED, Seen.READY): Phase.KILLED,  # these were still on their way
    (Phase.KILLED, Seen.PULSE): Phase.KILLED,
    (Phase.KILLED, Seen.STOP): Phase.KILLED,
    (Phase.KILLED, Seen.EXIT): _AGAIN,
    (Phase.ENDED, Seen.STOP): Phase.ENDED,
}


@dataclass(frozen=True)
class Limits:
    """The bounds, in seconds."""

    start: float = 60.0
    pulse: float = 10.0
    drain: float = 30.0
    pause: float = 0.2
    longest_pause: float = 30.0

    @property
    def pulse_interval(self) -> float:
        """Seconds between two pulses, so that one that is late costs nothing."""
        return min(1.0, self.pulse / 4)

    @property
    def calm(self) -> float:
        """After how long a run the next end counts as the first."""
        return 2 * self.longest_pause


class Restarts:
    """The life of one container process, over all its starts."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.limits = limits
        self.phase = Phase.WAITING
        self.starts = 0
        self.failures = 0
        """How often it ended in a row without being asked."""
        self.reason = ""
        """Why it was killed the last time, in words; empty where it was not."""
        self.missed_pulse = False
        """Whether that was for a pulse that did not come."""
        self.next_at: float | None = now
        """When to look again at the latest; None if only an exit can change anything."""
        self._stop_wanted = False
        self._stop_told = False
        self._ready_at: float | None = None
        self._looked = now

    def look(self, now: float) -> Action | None:
        """What is to be done now; call again until None."""
        paused = now - self._looked
        self._looked = now
        if paused > 2 * LOOK_SECONDS and self.next_at and self.phase is not Phase.WAITING:
            self.next_at += paused
        if self.phase is Phase.STOPPING and not self._stop_told:
            self._stop_told = True
            return Action.STOP
        if self.next_at is None or now < self.next_at:
            return None
        if self.phase is Phase.WAITING:
            self._go(Seen.STARTED)
            self.starts += 1
            self._ready_at = None
            self.next_at = now + self.limits.start
            return Action.START
        if self.phase is Phase.RUNNING and now - self.next_at > self.limits.pulse_interval:
            self.next_at = now + self.limits.pulse_interval
            return None
        self.reason = {
            Phase.STARTING: f"was not ready within {self.limits.start:g} s",
            Phase.RUNNING: f"gave no sign of life for {self.limits.pulse:g} s: it is stopped, or "
            f"a handler blocks its loop",
            Phase.STOPPING: f"had not drained within {self.limits.drain:g} s",
        }[self.phase]
        self.missed_pulse = self.phase is Phase.RUNNING
        self._go(Seen.LATE)
        self.next_at = None
        return Action.KILL

    def ready(self, now: float) -> None:
        """The process says that it is ready."""
        self._go(Seen.READY)
        if self.phase is Phase.RUNNING:
            self.reason = ""
            self._ready_at = now
            self.next_at = now + self.limits.pulse

    def go(self, now: float) -> None:
        """The process was ready to begin, and is told to; nothing changes where it has ended."""
        if self.phase is Phase.RUNNING:
            self._go(Seen.GO)
            self.next_at = now + self.limits.start

    def pulse(self, now: float) -> None:
        """The process gave a sign of life."""
        self._go(Seen.PULSE)
        if self.phase is Phase.RUNNING:
            self.next_at = now + self.limits.pulse

    def stop(self, now: float) -> None:
        """The process is to end, and not to be started again; asked twice is asked once."""
        if not self._stop_wanted:
            idle = self.phase in (Phase.WAITING, Phase.KILLED)
            self.next_at = None if idle else now + self.limits.drain
        self._stop_wanted = True
        self._go(Seen.STOP)

    def exited(self, now: float) -> None:
        """The process is gone, however that came."""
        self._go(Seen.EXIT)
        if self._stop_wanted:
            self.next_at = None
            return
        calm = self._ready_at is not None and now - self._ready_at >= self.limits.calm
        self.failures = 1 if calm else self.failures + 1
        doubled = self.limits.pause * 2 ** min(self.failures - 1, 30)
        self.next_at = now + min(doubled, self.limits.longest_pause)

    def _go(self, seen: Seen) -> None:
        """Take the table's step."""
        key = (self.phase, seen)
        assert key in _TABLE, f"{seen.value} while {self.phase.value}"
        following = _TABLE[key]
        if following is None:
            following = Phase.ENDED if self._stop_wanted else Phase.WAITING
        self.phase = following
