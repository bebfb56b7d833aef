"""The saved state of the producers of a durable stream: how far their numbers are committed.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

Producer: TypeAlias = tuple[str, str]
"""A stream's name and a producer's id."""


class KeptProducer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A producer's lane in one task, as of a commit.

    ``number`` is the next one. ``fence`` is the highest of a task's owners, ``seen_ms`` when
    something last came (Unix time). ``untold`` are refusals that the producer may not have heard
    of: number, count, reason, and whether they were shed.
    """

    number: int
    fence: int = 0
    seen_ms: int = 0
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
