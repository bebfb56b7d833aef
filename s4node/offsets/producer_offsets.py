"""The saved offsets of a producer, in the state of a task or in a file of the log. Pure.

Rules
- A row says how far the producer's numbers are settled, and which life of the producer sent them.
- A producer with an id of its own, as each task has, does not expire.
- A *layout* of a durable stream is its number of partitions, with numbers that begin at 0. Layouts
  are numbered, too. When one ends, the final numbers of each producer in it are kept as long as the
  producer is known; they say which of its events have been counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

Producer: TypeAlias = tuple[str, str]
"""A stream's name and a producer's id."""


class SavedProducer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A producer's lane in one partition, as of a commit.

    ``number`` is the next one. ``life`` is the latest of a program, or the highest fence that an
    owner of the task has used, and ``incarnation`` names its process. ``own_id``: later lives use
    the same id. ``unreported`` are refusals that the producer may not know: number, count, reason,
    and whether the events were shed. After a savepoint was gone back to, the producer may go on at
    any number up to ``skips``: the loss of the events between was accepted.
    """

    number: int
    life: int = 0
    incarnation: str = ""
    own_id: bool = False
    unreported: tuple[tuple[int, int, str, bool], ...] = ()
    skips: int = 0


class Closing(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A producer's final ``numbers`` in a layout that has ended, by partition.

    ``unreported`` are refusals that the producer may not know: partition, number, count, reason,
    and whether the events were shed. ``lossy``: the producer got higher numbers, and may go on.
    """

    numbers: tuple[int, ...]
    unreported: tuple[tuple[int, int, int, str, bool], ...] = ()
    lossy: bool = False


Closings: TypeAlias = tuple[Closing, ...]
"""The layouts of a producer that have ended, from layout 0 on."""

SavedProducers: TypeAlias = Mapping[Producer, SavedProducer | None]
"""The changes of a commit; None if a producer is forgotten."""


def row_of(producer: Producer) -> bytes:
    """The row key of a producer; the name of a stream has no zero byte."""
    return f"{producer[0]}\0{producer[1]}".encode()


def producer_of(row: bytes) -> Producer:
    stream, _, name = row.decode().partition("\0")
    return stream, name
