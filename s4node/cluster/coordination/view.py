"""A view of an app: what one of its members knows of the owners of partitions. Pure.

Rules
- Of two views, the one with the higher epoch is true.
- ``owners`` has an address for each partition, ``""`` if there is no living owner.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class View:
    """The owners of an app's partitions as one member sees them.

    ``epochs`` has the epoch in which each partition got its owner. ``mine`` are the member's own
    partitions, and ``to_hand_over`` those of them that it should hand over now, because their next
    owners are ready. ``coming`` are the partitions that others should hand over to it, and those of
    a former member of its name. It ``follows`` the state of the partitions of which it is the
    standby. ``members`` are the addresses of all living members including spares, the oldest first.
    ``epoch`` 0: nothing is assigned yet. ``origin`` names the series of assignments in which epochs
    are counted.
    """

    epoch: int
    owners: tuple[str, ...]
    epochs: tuple[int, ...]
    mine: frozenset[int]
    members: tuple[str, ...]
    to_hand_over: frozenset[int] = frozenset()
    coming: frozenset[int] = frozenset()
    follows: frozenset[int] = frozenset()
    origin: str = ""

    @property
    def given(self) -> frozenset[int]:
        """The partitions that living owners should hand over to the member."""
        return frozenset(partition for partition in self.coming if self.owners[partition])

    @classmethod
    def alone(cls, partitions: int) -> View:
        return cls(0, ("",) * partitions, (0,) * partitions, frozenset(range(partitions)), ())
