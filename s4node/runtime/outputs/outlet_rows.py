"""The rows of a task's outlets, in the table OUTLET: their keys and contents. Pure.

Rules
- The key of a row is the system, the number of the commit among those with records, and its part.
  What is saved beside the records has the system alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from s4node.errors import S4Error
from s4node.net.egress.outbox_rows import Rows
from s4node.offsets.system import OutputRecord
from s4node.runtime.outputs.outlet import Batch, Saved
from s4node.state.rows import OUTLET, Changes, task_row

_AT = struct.Struct(">QI")

written = msgspec.msgpack.Encoder().encode
"""Encode records, or a Saved, for a row."""

read_records = msgspec.msgpack.Decoder(list[OutputRecord]).decode
_saved = msgspec.msgpack.Decoder(Saved).decode


class OutletRows(NamedTuple):
    saved: Saved
    batches: list[Batch]


def outlets_in(rows: Rows) -> dict[str, OutletRows]:
    found: dict[str, OutletRows] = {}
    for key, value in rows:  # in order, so what is saved of a system comes first
        system, _, at = key.partition(b"\0")
        name = system.decode()
        if at:
            number, _ = _AT.unpack(at)
            found[name].batches.append(Batch(number, value, len(read_records(value))))
        else:
            found[name] = OutletRows(_saved(value), [])
    return found


def check_homes(task: str, found: Mapping[str, OutletRows], homes: Mapping[str, str]) -> None:
    """Raise S4Error if records wait for a stream that the app no longer writes to their system.

    ``homes`` has the system of each stream.
    """
    for system, (saved, batches) in found.items():
        waiting = (each.data for each in batches if each.number > saved.settled)
        for stream in {record.stream for data in waiting for record in read_records(data)}:
            if homes.get(stream) != system:
                raise S4Error(
                    f"task {task!r} has records for stream {stream!r} that are not published to "
                    f"system {system!r}, and the app no longer writes that stream there; run the "
                    f"version of the app that does until it stops in order"
                )


def saved_row(system: str) -> bytes:
    return task_row(OUTLET, system.encode() + b"\0")


def batch_row(system: str, number: int, part: int) -> bytes:
    return task_row(OUTLET, system.encode() + b"\0" + _AT.pack(number, part))


def places_of(batches: Iterable[Batch]) -> list[tuple[int, int]]:
    places: list[tuple[int, int]] = []
    for batch in batches:
        before = places[-1] if places else (0, 0)
        places.append((batch.number, before[1] + 1 if before[0] == batch.number else 0))
    return places


def begin_lives(changes: Changes, rows: Rows, life: str) -> None:
    """Have all outlets in rows begin another life, for a task that goes back to these."""
    for system, (saved, _) in outlets_in(rows).items():
        saved.begin_life(life)
        changes.put(saved_row(system), written(saved))


def records_of(rows: Rows) -> dict[str, tuple[str, int]]:
    """The life of each outlet and the records of its commits, by system."""
    found = outlets_in(rows).items()
    return {system: (saved.lives[-1][0], saved.records) for system, (saved, _) in found}
