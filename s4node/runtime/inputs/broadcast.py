"""Broadcast inputs: partitions that every task reads. Pure.

Rules
- ``kinds.PARTITIONS`` has the syntax of the setting; this module checks it against the streams.
- A partition that is also an input is broadcast only.
- All mistakes are reported together.
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

    ``counts`` has the number of partitions by (system, stream). Raises ConfigError for streams and
    partitions that do not exist.
    """
    found: set[SystemStreamPartition] = set()
    problems: list[str] = []
    for one in ranges:
        count = counts.get((one.system, one.stream))
        if count is None:
            problems.append(f"{one} names a stream that does not exist; create it, or fix its name")
        elif one.last >= count:
            problems.append(
                f"{one} does not exist: {one.system}.{one.stream} has {count} partitions; "
                f"write at most #{count - 1}"
            )
        else:
            numbers = range(one.first, one.last + 1)
            found.update(SystemStreamPartition(one.system, one.stream, n) for n in numbers)
    if problems:
        raise ConfigError("\n".join(f"{settings.BROADCAST_INPUTS.name}: {p}" for p in problems))
    return tuple(sorted(found))
