"""The contents of a cluster's entries: nodes, apps, members and their group. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import msgspec

from s4node.cluster.coordination.assignment import Assignment, Member

T = TypeVar("T", bound=msgspec.Struct)


class ClusterInfo(msgspec.Struct, frozen=True):
    """A cluster; ``partitions`` is the default for its apps, and ``url`` where their packages are,
    empty if they are in the folder of a machine."""

    name: str
    partitions: int
    url: str = ""


class NodeInfo(msgspec.Struct, frozen=True):
    """A living node; clients ask at ``address``. ``version`` is that of its s4node. With ``log`` it
    has a log."""

    name: str
    host: str
    pid: int
    python: str
    address: str = ""
    version: str = ""
    log: bool = False


RUNNING = "running"
STOPPING = "stopping"
"""The wanted state of a deployed app."""


class AppInfo(msgspec.Struct, frozen=True):
    """An app that is deployed to a cluster.

    ``package`` says where its code is. The first assignment waits for ``expected`` members.
    ``state`` is RUNNING or STOPPING.
    """

    name: str
    cluster: str
    version: str
    partitions: int
    package: str = ""
    hasher: str = "crc32m"
    expected: int = 1
    state: str = RUNNING


class MemberInfo(msgspec.Struct, frozen=True):
    """A container that runs an app and can own partitions of it."""

    name: str
    node: str
    host: str
    pid: int
    address: str
    version: str
    partitions: int
    state: str = ""
    """The identity of the state that it can reach; empty if its tasks have no state."""
    ready: tuple[int, ...] = ()
    """Partitions of others that it can take over at once."""
    zone: str = ""
    follows: bool = False
    """True if it follows the state of tasks of which it is the standby."""


class AppId(NamedTuple):
    """An app in a cluster; ``str()`` gives ``cluster.app``."""

    cluster: str
    app: str

    def __str__(self) -> str:
        return f"{self.cluster}.{self.app}"


class Found(NamedTuple, Generic[T]):
    """A value that was read, with the version, session and creation order of its entry."""

    value: T
    version: int
    session: str
    created: int


@dataclass(frozen=True, slots=True)
class Group:
    """The living members of an app, the oldest first, its assignment and its state's identity.
    ``drained`` are the nodes that are to have no partitions of it."""

    members: tuple[Found[MemberInfo], ...]
    assignment: Found[Assignment] | None
    state: str = ""
    drained: frozenset[str] = frozenset()

    @property
    def candidates(self) -> list[Member]:
        return [
            Member(m.value.name, m.value.address, m.session, m.value.zone, m.value.follows)
            for m in self.members
        ]

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(member.value.address for member in self.members)

    @property
    def epoch(self) -> int:
        """The assignment's epoch; 0 before the first assignment."""
        return self.assignment.value.epoch if self.assignment else 0

    @property
    def owners(self) -> tuple[str, ...]:
        """The address of each partition's owner; empty without a living owner."""
        if self.assignment is None:
            return ()
        alive = {member.key for member in self.candidates}
        owners = self.assignment.value.owners
        return tuple(owner.address if owner.key in alive else "" for owner in owners)

    @property
    def epochs(self) -> tuple[int, ...]:
        """For each partition, the epoch in which it got its owner."""
        return tuple(o.epoch for o in self.assignment.value.owners) if self.assignment else ()
