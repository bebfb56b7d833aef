"""What is kept of a producer, in the state of a task or in a file of the log. Pure.

Rules
- A row says how far the producer's numbers are settled, and which life of it has sent them.
- A producer with an id of its own, as each task is, is never forgotten because of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

Producer: TypeAlias = tuple[str, str]
"""A stream's name and a producer's id."""


class KeptProducer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A producer's lane in one partition, as of a commit.

    ``number`` is the one to go on with. ``life`` is the latest one of a program, or the highest
    fence that a task's owner has told, and ``incarnation`` that of its process. ``own_id``: a later
    life goes on under this id. ``untold`` are refusals that the producer may not have heard of:
    number, count, reason, and whether they were shed.
    """

    number: int
    life: int = 0
    incarnation: str = ""
    own_id: bool = False
    untold: tuple[tuple[int, int, str, bool], ...] = ()


KeptProducers: TypeAlias = Mapping[Producer, KeptProducer | None]
"""What a commit changes: None where a producer is forgotten."""


def row_of(producer: Producer) -> bytes:
    """The row key of a producer; streams' names have no zero."""
    return f"{producer[0]}\0{producer[1]}".encode()


def producer_of(row: bytes) -> Producer:
    """The producer of a row key."""
    stream, _, name = row.decode().partition("\0")
    return stream, name
