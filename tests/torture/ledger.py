"""What must be true of the notes, whatever was done to the nodes.

Rules
- Nothing that a client has a verdict for is missing: not at its first stage, and not behind it
  unless a process died that held it (killed, or too long stopped).
- A process notes an event once. While none died, so do all together.
- What a client knew to be processed is not processed again later, except by a process that was
  stopped amid a step: it ends that step when it goes on, and does nothing more.
- Each process notes the events of a producer and key in their order.
- Texts are passed on by whoever has their partition: when that process dies they are passed on
  again by another, and nobody can tell that they are the same. So after deaths they may come again,
  also late: what the stopped one has passed on may be in its sockets until it goes on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from judge import by_key, told, wrong_events

STAGES = ("enter", "inside", "last")


class Note(NamedTuple):
    """One line of a process's notes."""

    process: str
    stage: str
    producer: str
    key: str
    number: int
    partition: int
    at: int


def read(folder: Path) -> list[Note]:
    """All notes; a process is called as its file."""
    found = []
    for path in sorted(folder.glob("*.notes")):
        for line in path.read_text().splitlines():
            stage, producer, key, number, partition, at = line.split()
            found.append(
                Note(path.stem, stage, producer, key, int(number), int(partition), int(at))
            )
    return found


@dataclass
class Sent:
    """What a client has sent: numbers below ``number``; ``settled`` tells at which times (ns) it
    had verdicts for all numbers below which one."""

    number: int = 0
    settled: list[tuple[int, int]] = field(default_factory=list)


def complaints(
    notes: list[Note],
    sent: Mapping[str, Sent],
    dead: set[str],
    passed_on: Collection[str] = (),
    woken: Mapping[str, int] = MappingProxyType({}),
) -> list[str]:
    """What is not true.

    ``dead`` are the processes that did not end in order, ``passed_on`` the producers of texts, and
    ``woken`` has when (ns) those went on that were stopped for longer than their session.
    """
    again = passed_on if dead else ()  # whose events may come again
    every = {producer: range(one.number) for producer, one in sent.items()}
    entered = by_key((note.producer, note.number) for note in notes if note.stage == "enter")
    found = wrong_events({p: sorted({*numbers}) for p, numbers in entered.items()}, every, every)
    if not dead:
        for stage in STAGES:
            came = by_key((note.producer, note.number) for note in notes if note.stage == stage)
            in_order = {producer: sorted(numbers) for producer, numbers in came.items()}
            found += [f"{stage}: {line}" for line in wrong_events(in_order, every)]
    lanes = by_key(
        ((note.process, note.producer, note.key), note.number)
        for note in notes
        if note.stage == "enter"
    )
    once = {lane: dict.fromkeys(each) if lane[1] in again else each for lane, each in lanes.items()}
    found += [f"by process, at its first stage: {line}" for line in wrong_events(once)]
    late = [
        note
        for note in _late(notes, sent)
        if note.producer not in again and note.at < woken.get(note.process, note.at + 1)
    ]
    found += told("repeated after its verdict", late)
    for process, at in woken.items():
        after = [note for note in notes if note.process == process and note.at >= at]
        if len({(note.stage, note.partition) for note in after}) > 1:
            found += told(f"more than a step after {process} was woken", after)
    return found


def _late(notes: list[Note], sent: Mapping[str, Sent]) -> list[Note]:
    """What was noted after its producer had a verdict for it."""
    found: list[Note] = []
    for note in notes:
        if note.stage == "enter":
            settled = sent[note.producer].settled
            at = bisect_right(settled, note.number, key=lambda one: one[1])
            if at < len(settled) and note.at > settled[at][0]:
                found.append(note)
    return found
