"""The fact with the watermarks of a task, as its commits have it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from s4node.runtime.event_time.timed_stream import Saved

EVENT_TIME = "event time"
"""The fact with the watermarks of a task."""


def reached_times(
    streams: Mapping[str, float],
    read: Mapping[str, Mapping[str, float]],
    windows: Mapping[str, float],
    puts: Mapping[str, float],
) -> Any:
    """The fact of a task that is at these watermarks, and has ended all windows until then.

    ``read`` has the times of the partitions that it reads, by stream.
    """
    none: dict[str, float] = {}
    of_streams: dict[str, Saved] = {
        name: (value, {}, [], {**read.get(name, none)}, []) for name, value in streams.items()
    }
    return [of_streams, {name: (value, 0, value) for name, value in windows.items()}, {**puts}]


def lower_times(one: Any, other: Any) -> Any:
    """The lower watermarks of two tasks, for a task that gets keys of both."""
    streams: dict[str, Saved] = {
        name: (_lower(one[0][name][0], other[0].get(name, (None,))[0]), {}, [], {}, [])
        for name in one[0]
    }
    windows = {}
    for name, (value, late, called) in one[1].items():
        there = other[1].get(name, (None, 0, None))
        windows[name] = _lower(value, there[0]), late, _lower(called, there[2])
    return [streams, windows, {}]


def _lower(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else min(one, other)
