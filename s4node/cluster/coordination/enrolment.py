"""What a container needs to take part in a cluster: its session, and who it is there.

Rules
- One enrolment is one container's. Its session is the container's own: so its death is noticed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from s4node.cluster.coordination.contract import Session
from s4node.cluster.coordination.job_presence import JobPresence
from s4node.cluster.coordination.membership import GATHER_SECONDS, Membership
from s4node.cluster.coordination.registry import AppId, Registry
from s4node.cluster.coordination.stream_directory import Directory


@dataclass(frozen=True)
class Enrolment:
    """A container of ``app`` on ``cluster``, unique there by the name ``member``.

    ``expected`` is how many members the first assignment waits for, ``gather_timeout`` (seconds)
    for how long, ``containers`` how many members get partitions (0 for all). ``node`` and
    ``version`` are for those who look.
    """

    session: Session
    cluster: str
    app: str
    member: str
    expected: int = 1
    containers: int = 0
    gather_timeout: float = GATHER_SECONDS
    node: str = ""
    version: str = ""

    def in_doubt(self) -> bool:
        """Whether the process was stopped for so long that others may own its partitions by now."""
        return self.session.doubtful

    def membership(self, address: str, partitions: int, *, state: str) -> Membership:
        """The container's part in the app, reached at ``address``; it can reach ``state``."""
        return Membership(
            self.session,
            cluster=self.cluster,
            app=self.app,
            member=self.member,
            address=address,
            partitions=partitions,
            expected=self.expected,
            containers=self.containers,
            gather_timeout=self.gather_timeout,
            state=state,
            node=self.node,
            version=self.version,
        )

    def presence(self) -> JobPresence:
        """The container's part in the app's job."""
        return JobPresence(Registry(self.session), AppId(self.cluster, self.app))

    def directory(self, consumes: Iterable[str], produces: Iterable[str]) -> Directory:
        """Who consumes what the app produces."""
        return Directory(
            self.session,
            cluster=self.cluster,
            app=self.app,
            consumes=consumes,
            produces=produces,
            deployed=self.version != "",
        )
