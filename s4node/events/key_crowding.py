"""Keys that share one hash: a table takes only a few of them. Pure.

Rules
- Python's hash of a tuple of numbers is known to everybody, so a peer can choose keys that all have
  the same one. A table would then look through all of them for each. Hashes of texts and bytes are
  random, and of two such keys nobody can say that they share one.
- Such keys are counted by a few bits of their hash, in a table of a fixed size. Only if one count
  is far above the others are the keys looked at, and seldom.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable

from s4node.errors import KeyFinderError

_COUNTERS = 1 << 16
_FEW = 256
MOST = 64
"""The most keys of one hash that a table takes, about."""


class KeyCrowding:
    """The hashes of the new keys of one table."""

    __slots__ = ("_counts", "_crowded", "_looked", "_total")

    def __init__(self) -> None:
        self._total = 0
        self._counts: array[int] | None = None  # not for tables of other keys
        self._looked: dict[int, int] = {}  # the count at which the keys of a counter were looked at
        self._crowded: set[int] = set()

    def check_new(self, key: Hashable, table: Iterable[Hashable]) -> None:
        """Count a key that is to come into the table; raise KeyFinderError if its hash is taken."""
        if type(key) is not tuple or sum(type(part) is int for part in key) < 2:
            return
        known = hash(key)
        if known not in self._crowded:
            if self._counts is None:
                self._counts = array("L", bytes(_COUNTERS * array("L").itemsize))
            at = (known ^ known >> 32) & _COUNTERS - 1
            self._total += 1
            self._counts[at] += 1
            count = self._counts[at]
            fair = _FEW + 8 * self._total // _COUNTERS
            if count <= max(fair, 2 * self._looked.get(at, 0)):
                return
            self._looked[at] = count
            if sum(hash(each) == known for each in table) < MOST:
                return
            self._crowded.add(known)
        raise KeyFinderError(
            f"the key {key!r} has the same hash as many other keys; such keys are refused, because "
            f"looking them up is slow. Add a text to the key"
        )
