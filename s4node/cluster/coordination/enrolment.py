"""The enrolment of a container in a cluster: its session, and its name there.

Rules
- An enrolment is for one container, with a session of its own, so its death is noticed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from s4node.cluster.coordination.entries import AppId
from s4node.cluster.coordination.job_presence import JobPresence
from s4node.cluster.coordination.membership import GATHER_SECONDS, Membership
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.coordination.stream_directory import Directory
from s4node.cluster.tree.contract import Session


@dataclass(frozen=True)
class Enrolment:
    """A container of ``app`` on ``cluster``, where the name ``member`` is unique.

    The first assignment waits for ``expected`` members, for at most ``gather_timeout`` seconds;
    ``containers`` members get partitions (0: all). A dead owner is awaited for ``stay`` seconds. If
    the app is ``fenced``, nothing that it does counts before a commit, and commits of former owners
    do not count. ``version`` is for status commands.
    """

    session: Session
    cluster: str
    app: str
    member: str
    expected: int = 1
    containers: int = 0
    gather_timeout: float = GATHER_SECONDS
    stay: float = 0.0
    zone: str = ""
    fenced: bool = False
    node: str = ""
    version: str = ""

    def in_doubt(self) -> bool:
        """Return True if its partitions may have new owners, and it may not go on before that is
        known."""
        return self.session.doubtful and not self.fenced

    def membership(self, address: str, partitions: int, *, state: str, follows: bool) -> Membership:
        """The container's membership, at ``address``; ``state`` is the state that it can reach, and
        it ``follows`` that of others if it can be a standby."""
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
            stay=self.stay,
            state=state,
            zone=self.zone,
            follows=follows,
            node=self.node,
            version=self.version,
        )

    def presence(self) -> JobPresence:
        return JobPresence(Registry(self.session), AppId(self.cluster, self.app))

    def directory(self, consumes: Iterable[str], produces: Iterable[str]) -> Directory:
        return Directory(
            self.session,
            cluster=self.cluster,
            app=self.app,
            consumes=consumes,
            produces=produces,
            deployed=self.version != "",
        )
