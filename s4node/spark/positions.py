"""Positions in the partitions of a log's stream, as Spark's checkpoint has them. Pure.

Rules
- A position is an offset with the epoch that it belongs to. After a power cut a log may give an
  offset to another event; the two have different epochs.
- If the event at a position was lost in a power cut or deleted by retention, that is an error.
- Partitions share the limit of a micro-batch equally; what one does not need goes to the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from s4node.errors import ConfigError, InputLost
from s4node.offsets.system import Bounds

MOST_ROWS = 1_000_000
"""The most rows of one read task."""


class Position(NamedTuple):
    """The offset that is read next, and the epoch that it belongs to."""

    offset: int
    epoch: int


class Range(NamedTuple):
    """Offsets ``first <= n < end`` of a partition, as of an epoch."""

    partition: int
    first: int
    end: int
    epoch: int


Positions = dict[int, Position]


def to_json(positions: Positions, columns: str) -> dict[str, Any]:
    """Positions as Spark's checkpoint has them, with the ``columns`` that were read."""
    return {
        "positions": {str(n): [at.offset, at.epoch] for n, at in sorted(positions.items())},
        "columns": columns,
    }


def from_json(row: Mapping[str, Any]) -> Positions:
    return {int(number): Position(*at) for number, at in row["positions"].items()}


def check_columns(row: Mapping[str, Any], columns: str) -> None:
    """Raise ConfigError if a query's checkpoint was written with other columns."""
    if row["columns"] != columns:
        raise ConfigError(
            f"the query's checkpoint was written with the columns {row['columns']}, and now it "
            f"would read {columns}; read the former ones with option columns, or begin with a new "
            f"checkpointLocation"
        )


def check(stream: str, positions: Positions, bounds: Mapping[int, Bounds]) -> None:
    """Raise InputLost if the next event of a position is gone."""
    for number, at in positions.items():
        place = f"{stream}[{number}]"
        if number not in bounds:
            raise InputLost(
                f"{place} was read up to offset {at.offset}, and the stream has partitions 0 to "
                f"{len(bounds) - 1} only; it is another stream: begin with a new checkpointLocation"
            )
        found = bounds[number]
        end = found.end_of(at.epoch) if at.epoch else found.upcoming
        if at.offset > end:
            raise InputLost(
                f"the events of {place} from offset {end} to {at.offset} are lost, in a power cut "
                f"or because an older copy of the log or another stream was put there; the log "
                f"goes on at {end} with other events. Begin with a new checkpointLocation and "
                f"option start"
            )
        if at.offset < found.oldest:
            raise InputLost(
                f"{place}: the next event to read was {at.offset}, and the oldest event is "
                f"{found.oldest}: retention was faster than the query. Begin with a new "
                f"checkpointLocation, or give the stream a longer retention"
            )


def advance(start: Positions, end: Positions, most: int | None) -> Positions:
    ahead = {n: max(0, at.offset - start[n].offset) for n, at in end.items()}
    if most is None or sum(ahead.values()) <= most:
        return end
    left, found = most, {}
    for place, number in enumerate(sorted(ahead, key=lambda n: ahead[n])):
        share = min(ahead[number], -(-left // (len(ahead) - place)))
        found[number] = Position(start[number].offset + share, end[number].epoch)
        left -= share
    return found


def ranges(start: Positions, end: Positions, bounds: Mapping[int, Bounds]) -> Iterator[Range]:
    """The events between two positions, both checked, in parts for one read task each."""
    for number, at in sorted(end.items()):
        first = start[number].offset if number in start else bounds[number].oldest
        while first < at.offset:
            last = min(first + MOST_ROWS, at.offset)
            yield Range(number, first, last, bounds[number].epoch)
            first = last
