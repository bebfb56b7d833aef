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
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

_SHOWN = 5
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
    found: list[str] = []

    def complain(what: str, cases: list[object]) -> None:
        if cases:
            shown = ", ".join(map(str, cases[:_SHOWN]))
            found.append(f"{what}: {len(cases)}, such as {shown}")

    times: dict[str, Counter[tuple[str, int]]] = {stage: Counter() for stage in STAGES}
    by_process: Counter[tuple[str, str, str, int]] = Counter()
    for note in notes:
        times[note.stage][note.producer, note.number] += 1
        by_process[note.process, note.stage, note.producer, note.number] += 1
    every = [(producer, n) for producer, one in sent.items() for n in range(one.number)]
    complain("lost", [event for event in every if not times["enter"][event]])
    safe = {(n.producer, n.number) for n in notes if n.stage == "enter" and n.process not in dead}
    if not dead:
        for stage in STAGES:
            lost = sorted(e for e in safe if not times[stage][e])
            complain(f"lost on the way to {stage!r}", [*lost])
            complain(f"doubled at {stage!r}", [event for event, n in times[stage].items() if n > 1])
    complain(
        "noted twice by one process at its first stage",
        [
            key
            for key, n in by_process.items()
            if n > 1 and key[1] == "enter" and not (dead and key[2] in passed_on)
        ],
    )
    complain("never sent", [k for k in times["enter"] if k[1] >= sent[k[0]].number])
    late = [
        note
        for note in _late(notes, sent)
        if not (dead and note.producer in passed_on)
        and note.at < woken.get(note.process, note.at + 1)
    ]
    complain("repeated after its verdict", [*late])
    for process, at in woken.items():
        after = [note for note in notes if note.process == process and note.at >= at]
        if len({(note.stage, note.partition) for note in after}) > 1:
            complain(f"more than a step after {process} was woken", [*after])
    complain("out of order", _disorder(notes))
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


def _disorder(notes: list[Note]) -> list[object]:
    """What a process noted for the first time after a later one of its producer and key."""
    found: list[object] = []
    seen: set[tuple[str, str, int]] = set()
    last: dict[tuple[str, str, str], int] = {}
    for note in notes:
        event = note.process, note.producer, note.number
        if note.stage != "enter" or event in seen:
            continue
        seen.add(event)
        lane = note.process, note.producer, note.key
        if note.number < last.get(lane, -1):
            found.append(note)
        last[lane] = note.number
    return found
