"""The fast inputs of a job with commits, which are held and drained for a savepoint. Pure.

Rules
- No commit has the events that wait on a fast stream, so the tasks make their cuts when none waits.
- While an input is held, frames of producers are left to them. Events that other members have taken
  before and forward here are admitted, so the members drain each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from s4node.runtime.inputs.port import InputPort

if TYPE_CHECKING:
    from s4node.runtime.outputs.outputs import Outputs


class FastInputs:
    """The fast ones of ``ports``; some of their events may be in ``outputs`` to other members."""

    def __init__(self, ports: Iterable[InputPort], outputs: Outputs) -> None:
        self._ports = [port for port in ports if not port.durable]
        self._outputs = outputs
        self._since: float | None = None
        self._until: float | None = None

    def __bool__(self) -> bool:
        return bool(self._ports)

    def hold(self, now: float) -> None:
        if not self._held:
            self._since, self._until = now, None
            for port in self._ports:
                port.admission.taken_from = port.members

    def let_go(self, now: float) -> bool:
        if not self._held:
            return False
        self._until = now
        for port in self._ports:
            port.admission.taken_from = None
        return True

    def held_seconds(self, now: float) -> float:
        if self._since is None:
            return 0.0
        return (now if self._until is None else self._until) - self._since

    @property
    def undrained(self) -> dict[str, int]:
        """How many events are not processed, by stream; all streams while they are not held, as
        more events may come."""
        found: Counter[str] = Counter()
        for port in self._ports:
            name = port.stream.name
            found[name] = port.unprocessed + self._outputs.unsettled(name)
        return dict(+found if self._held else found)

    @property
    def _held(self) -> bool:
        return self._since is not None and self._until is None
