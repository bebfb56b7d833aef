"""The restart policy: when a container process is started, stopped, killed and restarted. Pure.

Rules
- Each container process has a state machine, whose transitions are in the table below. The driver
  reports what it saw, then calls :meth:`Restarts.look` until it returns None, and does what it
  says.
- Time is an argument, in seconds of any steady clock.
- A process that ends without being asked is restarted after a pause, which doubles with each
  failure and is short again after a long calm run.
- A process that is not ready in time, sends no pulse in time or does not stop in time is killed. A
  stopped process (SIGSTOP) and one whose loop is stuck are treated alike: both send no pulse.
- A process that starts its app need not send pulses, because the app's start may block the loop. It
  has to be ready in time. That time begins anew while it waits for the place of its state.
- The driver looks at least every ``LOOK_SECONDS``. A longer gap means that the driver itself was
  stopped, so no process is blamed for that time. A driver that is late by more than a pulse first
  reads what the process said meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

END_SECONDS = 5.0
"""How much longer than ``task.shutdown.ms`` a container process may take to end before it is
killed: the time for ``on_close``."""

LONGEST_PAUSE = 150
"""The longest pause between two starts, in pauses after the first crash."""

LOOK_SECONDS = 1.0


class Phase(Enum):
    WAITING = "waiting"  # no process; it starts when the pause is over
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"  # asked to stop, and draining
    KILLED = "killed"  # its exit has not been seen yet
    ENDED = "ended"  # on request, for good


class Seen(Enum):
    STARTED = "started"
    READY = "ready"
    PULSE = "pulse"
    LATE = "late"
    GO = "go"
    STOP = "stop"
    EXIT = "exit"


class Action(Enum):
    START = "start"
    STOP = "stop"
    KILL = "kill"


_AGAIN = None  # after an exit: WAITING, or ENDED if a stop was requested

_TABLE: dict[tuple[Phase, Seen], Phase | None] = {
    (Phase.WAITING, Seen.STARTED): Phase.STARTING,
    (Phase.WAITING, Seen.STOP): Phase.ENDED,
    (Phase.STARTING, Seen.READY): Phase.RUNNING,
    (Phase.STARTING, Seen.PULSE): Phase.STARTING,
    (Phase.STARTING, Seen.LATE): Phase.KILLED,
    (Phase.STARTING, Seen.STOP): Phase.STOPPING,
    (Phase.STARTING, Seen.EXIT): _AGAIN,
    (Phase.RUNNING, Seen.READY): Phase.RUNNING,  # prepared before, and now running
    (Phase.RUNNING, Seen.PULSE): Phase.RUNNING,
    (Phase.RUNNING, Seen.GO): Phase.STARTING,  # prepared, and now starting its app
    (Phase.RUNNING, Seen.LATE): Phase.KILLED,
    (Phase.RUNNING, Seen.STOP): Phase.STOPPING,
    (Phase.RUNNING, Seen.EXIT): _AGAIN,
    (Phase.STOPPING, Seen.READY): Phase.STOPPING,
    (Phase.STOPPING, Seen.PULSE): Phase.STOPPING,
    (Phase.STOPPING, Seen.STOP): Phase.STOPPING,
    (Phase.STOPPING, Seen.LATE): Phase.KILLED,
    (Phase.STOPPING, Seen.EXIT): _AGAIN,
    (Phase.KILLED, Seen.READY): Phase.KILLED,  # sent before it was killed
    (Phase.KILLED, Seen.PULSE): Phase.KILLED,
    (Phase.KILLED, Seen.STOP): Phase.KILLED,
    (Phase.KILLED, Seen.EXIT): _AGAIN,
    (Phase.ENDED, Seen.STOP): Phase.ENDED,
}


@dataclass(frozen=True)
class Limits:
    """The time limits, in seconds."""

    start: float = 60.0
    pulse: float = 10.0
    drain: float = 30.0
    pause: float = 0.2
    longest_pause: float = 30.0

    @property
    def pulse_interval(self) -> float:
        """The seconds between two pulses: short enough that a late one does no harm."""
        return min(1.0, self.pulse / 4)

    @property
    def calm(self) -> float:
        """The length of a run after which the next failure counts as the first."""
        return 2 * self.longest_pause


class Restarts:
    """The state machine of one container process, over all its starts."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.limits = limits
        self.phase = Phase.WAITING
        self.starts = 0
        self.failures = 0
        """The number of failures in a row."""
        self.reason = ""
        """The reason for which it was last killed; empty if it was not."""
        self.next_at: float | None = now
        """When to look again at the latest; None if only an exit can change anything."""
        self._stop_wanted = False
        self._stop_sent = False
        self._ready_at: float | None = None
        self._looked = now

    def look(self, now: float) -> Action | None:
        """The next action; call again until None."""
        paused = now - self._looked
        self._looked = now
        if paused > 2 * LOOK_SECONDS and self.next_at and self.phase is not Phase.WAITING:
            self.next_at += paused
        if self.phase is Phase.STOPPING and not self._stop_sent:
            self._stop_sent = True
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
            Phase.RUNNING: f"sent no sign of life for {self.limits.pulse:g} s: it is stopped, or "
            f"a handler blocks its loop",
            Phase.STOPPING: f"had not drained within {self.limits.drain:g} s",
        }[self.phase]
        self._go(Seen.LATE)
        self.next_at = None
        return Action.KILL

    def ready(self, now: float) -> None:
        self._go(Seen.READY)
        if self.phase is Phase.RUNNING:
            self.reason = ""
            self._ready_at = now
            self.next_at = now + self.limits.pulse

    def go(self, now: float) -> None:
        """Report that a prepared process gets the order to begin; does nothing if it has ended."""
        if self.phase is Phase.RUNNING:
            self._go(Seen.GO)
            self.next_at = now + self.limits.start

    def pulse(self, now: float, *, waits: bool = False) -> None:
        """Report a pulse of the process, and whether it waits for the place of its state."""
        self._go(Seen.PULSE)
        if self.phase is Phase.RUNNING:
            self.next_at = now + self.limits.pulse
        elif waits and self.phase is Phase.STARTING:
            self.next_at = now + self.limits.start

    def stop(self, now: float) -> None:
        """Request that the process ends and is not restarted; may be called twice."""
        if not self._stop_wanted:
            idle = self.phase in (Phase.WAITING, Phase.KILLED)
            self.next_at = None if idle else now + self.limits.drain
        self._stop_wanted = True
        self._go(Seen.STOP)

    def exited(self, now: float) -> None:
        self._go(Seen.EXIT)
        if self._stop_wanted:
            self.next_at = None
            return
        calm = self._ready_at is not None and now - self._ready_at >= self.limits.calm
        self.failures = 1 if calm else self.failures + 1
        doubled = self.limits.pause * 2 ** min(self.failures - 1, 30)
        self.next_at = now + min(doubled, self.limits.longest_pause)

    def _go(self, seen: Seen) -> None:
        key = (self.phase, seen)
        assert key in _TABLE, f"{seen.value} while {self.phase.value}"
        following = _TABLE[key]
        if following is None:
            following = Phase.ENDED if self._stop_wanted else Phase.WAITING
        self.phase = following
