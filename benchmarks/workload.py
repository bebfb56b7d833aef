"""The events of the benchmarks, and their expected counts.

Rules
- The same seed gives the same events in every process, so each side can compute what the other
  must have seen.
- Keys are 10,000 words of 4 to 12 letters, drawn by Zipf's law; the sequence repeats after
  ``LENGTH`` events.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice

from s4node.app.processing_element import ProcessingElement
from s4node.events.event import Event

WORDS = 10_000
LENGTH = 1 << 18
FIRST_TS = 1_700_000_000_000
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Reading(Event):
    """The event to count: a word, a number, and a time in ms (13 digits)."""

    key: str
    value: int
    ts: int


class ByKey:
    """A KeyFinder that returns the attribute ``key``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def get(self, event: Reading) -> str:
        return event.key


class Tally(ProcessingElement):
    """Counts and sums the readings of its key."""

    count: int = 0
    total: int = 0

    def on_event(self, event: Reading) -> None:
        """Count one reading."""
        self.count += 1
        self.total += event.value


def words() -> list[str]:
    """The 10,000 distinct words, most frequent first."""
    dice = random.Random(7)
    found: dict[str, None] = {}
    while len(found) < WORDS:
        found["".join(dice.choices(_LETTERS, k=dice.randint(4, 12)))] = None
    return list(found)


def key_sequence() -> list[str]:
    """``LENGTH`` keys drawn from the words by Zipf's law."""
    weights = list(accumulate(1 / rank for rank in range(1, WORDS + 1)))
    return random.Random(11).choices(words(), cum_weights=weights, k=LENGTH)


def batches(keys: list[str], size: int) -> Iterator[list[Reading]]:
    """The events in order, for ever, ``size`` at a time (a divisor of the sequence's length)."""
    assert len(keys) % size == 0
    chunks = [keys[at : at + size] for at in range(0, len(keys), size)]
    values = [[(at + i) % 1000 for i in range(size)] for at in range(0, len(keys), size)]
    ts = FIRST_TS
    while True:
        for chunk, numbers in zip(chunks, values, strict=True):
            yield list(map(Reading, chunk, numbers, range(ts, ts + size)))
            ts += size


def uniform_keys(count: int) -> Iterator[str]:
    """``count`` distinct keys of 11 characters, in an order without pattern."""
    step = 7_368_787  # a prime, so every number below ``count`` comes once
    return (f"key-{number * step % count:07d}" for number in range(count))


def once(keys: Iterable[str], size: int) -> Iterator[list[Reading]]:
    """One event for each key, ``size`` at a time."""
    remaining = iter(keys)
    while chunk := list(islice(remaining, size)):
        yield [Reading(key, 1, FIRST_TS) for key in chunk]


def drawn(keys: Iterable[str], law: str) -> list[str]:
    """A sequence of keys, drawn by Zipf's law ("zipf") or evenly ("uniform").

    Its length is a multiple of ``LENGTH``.
    """
    known = list(keys)
    weights = [1 / rank for rank in range(1, len(known) + 1)] if law == "zipf" else None
    cumulated = list(accumulate(weights)) if weights else None
    length = LENGTH * (4 if len(known) > LENGTH else 1)
    return random.Random(13).choices(known, cum_weights=cumulated, k=length)


def truth(keys: list[str], events: int) -> dict[str, tuple[int, int]]:
    """Count and total of each key after the first ``events`` events."""
    passes, rest = divmod(events, len(keys))
    found: dict[str, list[int]] = {}
    for times, part in ((passes, keys), (1, list(islice(keys, rest)))):
        if times:
            for index, key in enumerate(part):
                tally = found.setdefault(key, [0, 0])
                tally[0] += times
                tally[1] += times * (index % 1000)
    return {key: (count, total) for key, (count, total) in found.items()}


def digest(tallies: Iterable[tuple[str, int, int]]) -> str:
    """A fingerprint of keys, counts and totals, whatever their order."""
    lines = sorted(f"{key} {count} {total}" for key, count, total in tallies)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
