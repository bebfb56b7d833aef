"""The time that a task's PEs take, their calls and errors, and their hottest keys. Pure.

Rules
- Handlers are measured in a sample of slices, as two clocks at each event would double the cost of
  a small handler. A sampled slice begins with a second compiled loop of its stream, with clocks.
- One slice in 64 is sampled, and one in 8 of small ones, where a clock costs little beside the
  step; more often in the beginning. It counts for all events since the last one, so the figures
  are estimates.
- Windows and timers are measured in every round, all calls of one PE together.
- A key counts once for each event of a sampled slice. The counts of rare keys are dropped, and all
  are halved from time to time, so that the hottest keys are those of the last minutes.
- Handlers that overlap (``set_parallelism``) are not measured: they wait most of their time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from s4node.app.plan.dispatch import Plan, Probe

_SMALL = 64
"""The events of a small slice."""

_EVERY, _EVERY_SMALL = 64, 8
"""One slice in so many is sampled."""

PROBED = 64
"""The events of a sampled slice that are measured; the others run as ever."""

_KEYS = 256
"""The keys that are counted for each stream, at most twice as many for a moment."""

_HALVED = 1 << 20
"""The events after which the counts of keys are halved."""

SHOWN = 20
"""The hottest keys of a PE that are reported."""

_KEY_LENGTH = 80
"""The characters that are reported of a key."""


class PeCosts:
    """The costs of one task's PEs; ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        """By PE and handler, as the other two."""
        self.calls: Counter[tuple[str, str]] = Counter()
        self.errors: Counter[tuple[str, str]] = Counter()
        self._clock = clock
        self._keys: dict[str, Counter[Any]] = {}
        self._counted: dict[str, float] = {}  # events, since the counts of keys were halved
        self._targets: dict[str, Mapping[str, Any]] = {}

    def sample(self, plan: Plan, events: int) -> Probe:
        """The probe that runs a slice of so many events. ``measured`` follows."""
        every = _EVERY_SMALL if events < _SMALL else _EVERY
        plan.next_probe = plan.slices + min(plan.slices, every)
        return plan.probe(self._clock)

    def measured(self, stream: str, plan: Plan, probe: Probe, events: int) -> None:
        """Count the ``events`` that were measured for all since the last ones."""
        weight, plan.unmeasured = plan.unmeasured / max(1, events), 0
        for name, cost in probe.costs.items():
            place = name, "on_event"
            self.seconds[place] += cost[0] * weight
            self.calls[place] += round(cost[1] * weight)
            cost[:] = 0.0, 0
        if probe.keys:
            known = self._keys.get(stream)
            if known is None:
                known, self._counted[stream] = Counter(), 0
                self._keys[stream], self._targets[stream] = known, probe.costs
            find = known.get
            for key, count in probe.keys.items():
                known[key] = find(key, 0) + round(count * weight)
            probe.keys.clear()
            self._counted[stream] += events * weight
            if len(known) > 2 * _KEYS:
                self._keys[stream] = known = Counter(dict(known.most_common(_KEYS)))
            if self._counted[stream] > _HALVED:
                self._counted[stream] /= 2
                self._keys[stream] = Counter({key: n // 2 for key, n in known.items() if n > 1})

    def add(self, pe: str, handler: str, seconds: float, calls: int) -> None:
        self.seconds[pe, handler] += seconds
        self.calls[pe, handler] += calls

    def failed(self, pe: str, handler: str) -> None:
        self.errors[pe, handler] += 1

    def statistics(self) -> dict[str, Any]:
        return {
            "pe_seconds": _by_pe(self.seconds),
            "pe_calls": _by_pe(self.calls),
            "pe_errors": _by_pe(self.errors),
            "hot_keys": self.hot_keys(),
        }

    def hot_keys(self) -> dict[str, dict[str, float]]:
        """The hottest keys of each PE, and their parts of its events, at least a hundredth."""
        found: dict[str, Counter[Any]] = {}
        for stream, counts in self._keys.items():
            for name in self._targets[stream]:
                found.setdefault(name, Counter()).update(counts)
        return {
            name: {
                str(key)[:_KEY_LENGTH]: n / counts.total()
                for key, n in counts.most_common(SHOWN)
                if n * 100 >= counts.total()
            }
            for name, counts in found.items()
        }


def _by_pe(found: Mapping[tuple[str, str], Any]) -> dict[str, dict[str, Any]]:
    result: dict[str, dict[str, Any]] = {}
    for (pe, handler), value in found.items():
        result.setdefault(pe, {})[handler] = value
    return result
