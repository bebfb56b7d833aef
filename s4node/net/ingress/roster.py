"""Who is remembered of a stream's producers while they have no lane. Pure.

Rules
- A stream remembers nobody, or whom the commits of its tasks have, or whom the files of a log have.
- A roster says where a new lane begins, and which producers may have one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from s4node.net.ingress.producer_lane import ProducerLane
from s4node.net.ingress.settlement import Commits
from s4node.net.wire import frame as wire
from s4node.offsets.checkpoint import Closings, SavedProducer

MAX_KEPT = 100_000
"""Producers that a stream of a log, or a partition of a durable stream, remembers."""


class Greeting(NamedTuple):
    """The answer to a hello: the positions of the producer's lanes, or the ``error``."""

    positions: tuple[wire.Position, ...] = ()
    error: str = ""
    headers: wire.Headers = {}  # noqa: RUF012 - nobody changes it


class Roster:
    """Who is remembered without a lane: by this one, nobody."""

    commits: Commits | None = None
    """They settle the numbers of the stream; None if numbers are settled once they are safe."""

    def begin(self, admission: Any) -> None:
        """Serve this StreamAdmission from now on."""

    def row(self, producer: str, partition: int) -> SavedProducer | None:  # noqa: ARG002
        """Where a new lane of a producer begins; None if the roster does not know."""
        return None

    def in_layout(self, said: wire.Hello) -> tuple[wire.Hello, Closings, str]:
        """The hello with numbers of the current layout, what its producer has to know of the
        layouts that have ended, and why the producer may not go on after them."""
        return said, (), ""

    def problem(self, hello: wire.Hello) -> str:  # noqa: ARG002
        """The reason to refuse a producer the stream, or empty. Raises LimitReached."""
        return ""

    def headers(
        self,
        said: wire.Hello,  # noqa: ARG002
        hello: wire.Hello,  # noqa: ARG002
        closings: Closings,  # noqa: ARG002
        now: float,  # noqa: ARG002
    ) -> wire.Headers | None:
        """The headers of the answer to a producer that ``said`` this hello in its own layout; None
        if commits of its earlier life must come first."""
        return {}

    def greeted(self, lane: ProducerLane, *, changed: bool) -> None:
        """Note that a lane has had a hello, with a ``changed`` life if so."""

    def must_save(self, producer: str) -> bool:  # noqa: ARG002
        """Return True if a producer must wait for the commits that save it, and request them."""
        return False

    def saves(self, producer: str) -> bool:  # noqa: ARG002
        return False

    def revoked(self, partition: int) -> None:
        """Forget the producers of a partition that another node has."""

    def removed(self, lane: ProducerLane, *, forget: bool) -> None:
        """Remember the producer of a lane that was removed, or forget it."""

    def forget_rows(self, producer: str) -> None:
        """Forget a producer without lanes."""

    def forget_absent(self, now: float, expiry: float) -> None:
        """Forget the producers that were away for ``expiry`` seconds."""
