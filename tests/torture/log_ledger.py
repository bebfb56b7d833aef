"""What must be true of a log, and of tasks that copy it, whatever was done to all of them.

Rules
- The log has each acknowledged event once, and those of a producer and partition in order.
- Each event is processed and copied. Where a process begins with a key, and where it goes back, all
  that was before has been processed by then: nothing is skipped. The same holds for the copies.
- Progress that is kept covers nothing that was not processed by then, and never goes back.
- What was stopped in order and is started again processes nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from judge import by_key, told, wrong_events

from s4node.events.keys import Partitioner
from torture import log_producer
from torture.apps import Tap
from torture.ledger import Note

Id = tuple[str, int]
"""Producer and number of an event."""


class Saved(NamedTuple):
    """Progress as it was read at a time (ns): by task, the offset by partition of ``taps``."""

    at: int
    offsets: Mapping[str, Mapping[int, int]]


def appended(taps: Sequence[Sequence[Tap]], notes: Mapping[str, Path]) -> list[str]:
    """What is not true of the log: ``taps`` by partition, notes of the producers by name."""
    found: list[str] = []
    acknowledged: list[tuple[tuple[str, int], int]] = []
    partition_of = Partitioner(len(taps)).partition_of
    for producer, path in notes.items():
        lines = [line.split(" ", 1) for line in path.read_text().splitlines()]
        found += told(f"of {producer}", [" ".join(line) for line in lines if line[0] == "refused"])
        below = max((int(rest) for word, rest in lines if word == "below"), default=0)
        if not below:
            found.append(f"{producer} has no acknowledgement at all")
        for n in range(below):
            acknowledged.append(((producer, partition_of(log_producer.tap(producer, n).user)), n))
    came = by_key(
        ((each.producer, partition), each.number)
        for partition, events in enumerate(taps)
        for each in events
    )
    at_home = {
        (producer, at): {n for n in there if partition_of(log_producer.tap(producer, n).user) == at}
        for (producer, at), there in came.items()
    }
    return found + wrong_events(came, by_key(acknowledged), at_home)


def _skipped(order: Mapping[Id, tuple[str, int]], events: Iterable[Id]) -> list[str]:
    """Events that came before all that are before them in their key's order had come."""
    come: Counter[str] = Counter()
    found = []
    for each in events:
        key, place = order[each]
        if place > come[key]:
            found.append(f"{each} of {key} came when {place - come[key]} before it had not")
        come[key] = max(come[key], place + 1)
    return found


def copied(
    taps: Sequence[Sequence[Tap]],
    copies: Sequence[Sequence[Tap]],
    notes: Sequence[Note],
    saved: Sequence[Saved],
    *,
    keyed: bool,
) -> list[str]:
    """What is not true of the tasks: events by partition of both streams, what the tasks noted,
    and what their progress was. Where the input is ``keyed`` its events go on to the tasks of their
    keys, and progress may be ahead of them: what is on its way is kept with it."""
    found: list[str] = []
    order: dict[Id, tuple[str, int]] = {}
    at_key: Counter[str] = Counter()
    for events in taps:
        for tap in events:
            order[tap.producer, tap.number] = (tap.user, at_key[tap.user])
            at_key[tap.user] += 1

    def complain(what: str, cases: Sequence[object]) -> None:
        found.extend(told(what, cases))

    noted: dict[Id, int] = {}
    for note in sorted(notes, key=lambda note: note.at):
        noted.setdefault((note.producer, note.number), note.at)
    complain("processed, but not in the log", sorted(noted.keys() - order.keys()))
    complain("not processed", sorted(order.keys() - noted.keys()))
    put = [(tap.producer, tap.number) for events in copies for tap in events]
    complain("copied, but not in the log", sorted(set(put) - order.keys()))
    complain("not copied", sorted(order.keys() - set(put)))
    if found:
        return found

    timed = sorted(notes, key=lambda note: note.at)
    complain("skipped", _skipped(order, [(note.producer, note.number) for note in timed]))
    for partition, events in enumerate(copies):
        skipped = _skipped(order, [(tap.producer, tap.number) for tap in events])
        complain(f"skipped in copies[{partition}]", skipped)
    runs: dict[tuple[str, str], int] = {}
    holder: dict[str, str] = {}
    jumps: list[str] = []
    for note in timed:
        key, place = order[note.producer, note.number]
        if holder.get(key) != note.process:  # the key may have been with others meanwhile
            runs.pop((note.process, key), None)
            holder[key] = note.process
        before = runs.get((note.process, key))
        if before is not None and place > before + 1:
            jumps.append(f"{note.process} from {before} of {key} to {place}")
        runs[note.process, key] = place
    complain("went ahead", jumps)

    newest: dict[tuple[str, int], int] = {}
    for at, offsets in saved:
        for task, by_partition in offsets.items():
            for partition, offset in by_partition.items():
                last = newest.get((task, partition), 0)
                if offset < last:
                    found.append(f"progress of {task} in taps[{partition}]: {last}, then {offset}")
                early = [
                    (tap.producer, tap.number)
                    for tap in taps[partition][last:offset]
                    if noted[tap.producer, tap.number] > at and not keyed
                ]
                complain(f"saved by {task} before it was processed", early)
                newest[task, partition] = offset
    return found
