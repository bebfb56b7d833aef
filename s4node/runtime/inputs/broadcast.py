"""Broadcast inputs: partitions that every task reads. Pure.

Rules
- The syntax is that of the setting (``kinds.PARTITIONS``); here it meets the streams as they are.
- A partition that is an input, too, is broadcast only.
- All mistakes are told together.
"""

from __future__ import annotations

from collections.abc import Mapping

from s4node.config import settings
from s4node.config.kinds import PartitionRange
from s4node.errors import ConfigError
from s4node.offsets.system import SystemStreamPartition


def partitions_of(
    ranges: tuple[PartitionRange, ...], counts: Mapping[tuple[str, str], int]
) -> tuple[SystemStreamPartition, ...]:
    """The partitions that the ranges name, each once, in order.

    ``counts`` has the number of partitions by (system, stream). Raises ConfigError for a stream
    that is not there, and for partitions that it does not have.
    """
    found: set[SystemStreamPartition] = set()
    problems: list[str] = []
    for one in ranges:
        count = counts.get((one.system, one.stream))
        if count is None:
            problems.append(f"{one} names a stream that is not there; create it, or fix its name")
        elif one.last >= count:
            problems.append(
                f"{one} is impossible, for {one.system}.{one.stream} has {count} partitions; "
                f"write at most #{count - 1}"
            )
        else:
            numbers = range(one.first, one.last + 1)
            found.update(SystemStreamPartition(one.system, one.stream, n) for n in numbers)
    if problems:
        raise ConfigError("\n".join(f"{settings.BROADCAST_INPUTS.name}: {p}" for p in problems))
    return tuple(sorted(found))
