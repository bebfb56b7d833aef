"""The saved offsets of a producer, in the state of a task or in a file of the log. Pure.

Rules
- A row says how far the producer's numbers are settled, and which life of the producer sent them.
- A producer with an id of its own, as each task has, does not expire.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

Producer: TypeAlias = tuple[str, str]
"""A stream's name and a producer's id."""


class KeptProducer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A producer's lane in one partition, as of a commit.

    ``number`` is the next one. ``life`` is the latest of a program, or the highest fence that an
    owner of the task has used, and ``incarnation`` names its process. ``own_id``: later lives use
    the same id. ``untold`` are refusals that the producer may not know: number, count, reason, and
    whether the events were shed. After a savepoint was gone back to, the producer may go on at any
    number up to ``skips``: the loss of the events between was accepted.
    """

    number: int
    life: int = 0
    incarnation: str = ""
    own_id: bool = False
    untold: tuple[tuple[int, int, str, bool], ...] = ()
    skips: int = 0


KeptProducers: TypeAlias = Mapping[Producer, KeptProducer | None]
"""The changes of a commit; None if a producer is forgotten."""


def row_of(producer: Producer) -> bytes:
    """The row key of a producer; the name of a stream has no zero byte."""
    return f"{producer[0]}\0{producer[1]}".encode()


def producer_of(row: bytes) -> Producer:
    """The producer of a row key."""
    stream, _, name = row.decode().partition("\0")
    return stream, name
