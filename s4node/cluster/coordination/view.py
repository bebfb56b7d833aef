"""What a member of an app knows of who owns which partition. Pure.

Rules
- Of two views the one of the higher epoch is true.
- ``owners`` holds an address for each partition, ``""`` where nobody lives who owns it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class View:
    """The owners of an app's partitions as one member sees them.

    ``epochs`` says since which epoch each partition has had its owner, ``mine`` are the partitions
    of the member itself, ``members`` the addresses of all that live, spares included, the oldest
    first. ``epoch`` 0: nothing is assigned yet. ``owed`` are those of ``mine`` that the member
    should hand over, if it can. ``origin`` names the assignments in which the epochs count.
    """

    epoch: int
    owners: tuple[str, ...]
    epochs: tuple[int, ...]
    mine: frozenset[int]
    members: tuple[str, ...]
    owed: frozenset[int] = frozenset()
    origin: str = ""

    @classmethod
    def alone(cls, partitions: int) -> View:
        """The view of a container that runs an app by itself."""
        return cls(0, ("",) * partitions, (0,) * partitions, frozenset(range(partitions)), ())
