"""The outcome of a measurement, for people and programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any


@dataclass
class Result:
    """One row. Figures that do not apply are None; ``notes`` has further measurements.

    Rates are events a second, latencies ms; ``ratio`` is system to limit, both medians of
    interleaved runs. ``checked`` is True if the counts were right.
    """

    name: str
    events: int | None = None
    seconds: float | None = None
    events_per_s: float | None = None
    limit_events_per_s: float | None = None
    ratio: float | None = None
    cpu_s_per_million: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    rss_mb: float | None = None
    checked: bool | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Every field, with figures rounded to their precision."""
        found = {k: _rounded(v) for k, v in asdict(self).items() if k != "notes"}
        return found | {k: _rounded(v) for k, v in self.notes.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}") if abs(value) < 1000 else round(value)
    return value


def middle(values: list[float]) -> float:
    return float(median(values))
