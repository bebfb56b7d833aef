"""The progress of a task in one partition of an input. Pure.

Rules
- ``safe`` is the offset at which a restart resumes: every event below it is fully processed,
  dropped on purpose, or saved elsewhere.
- A batch is completed piece by piece: an event counts as soon as its task says so, before the rest
  of its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from s4node.offsets.receipts import BatchReceipt, LowWatermark

if TYPE_CHECKING:
    from s4node.offsets.system import SystemStreamPartition

InputReceipt: TypeAlias = BatchReceipt["InputProgress"]


class ProgressOwner(Protocol):
    """The task that reads the partition, as far as its progress knows it."""

    def reject(self, receipt: InputReceipt, number: int, reason: str, event: Any) -> None:
        """Take an event that cannot be processed, at the offset ``number`` of its batch; or its
        bytes if it does not decode."""
        ...


class InputProgress:
    """The progress of one task in ``ssp``, read from ``start`` on.

    ``committed`` is the offset at which a restart would resume, None before the first commit.
    ``owner`` gets the events that no task could process. ``on_safe``, if set, is called with the
    new ``safe`` after each batch or piece of one. ``startpoints`` are the ids of the startpoints
    that gave ``start``, until that is committed.
    """

    __slots__ = (
        "_low",
        "committed",
        "epoch",
        "on_safe",
        "origin",
        "owner",
        "ssp",
        "start",
        "startpoints",
    )

    by_event = True
    returns = 0

    def __init__(self, ssp: SystemStreamPartition, start: int, owner: ProgressOwner) -> None:
        self.ssp = ssp
        self.origin = str(ssp)
        self.start = start
        self.committed: int | None = None
        self.epoch = 0
        """The epoch of the partition that ``safe`` belongs to; 0 if it has no epochs."""
        self.owner = owner
        self.on_safe: Callable[[int], None] | None = None
        self.startpoints: frozenset[str] = frozenset()
        self._low = LowWatermark(start)

    @property
    def safe(self) -> int:
        return self._low.safe

    def complete(self, first: int, end: int) -> None:
        self._low.complete(first, end)
        if self.on_safe is not None:
            self.on_safe(self._low.safe)

    def refused(
        self,
        receipt: InputReceipt,
        number: int,
        reason: str,
        event: Any,
        *,
        shed: bool,  # noqa: ARG002 - by another container of the app
    ) -> None:
        self.owner.reject(receipt, number, reason, event)

    def describe(self, number: int) -> str:
        return f"{number}"

    def senders(self, first: int, end: int) -> list[tuple[str, int]]:  # noqa: ARG002
        """One run without a name: the producers of an input are not known."""
        return [("", end)]


def taken(
    progress: Mapping[SystemStreamPartition, InputProgress],
) -> tuple[dict[SystemStreamPartition, int], frozenset[str]]:
    """The offsets and consumed startpoints that a commit of the task takes now."""
    consumed: set[str] = set()
    for each in progress.values():
        if each.startpoints:
            consumed |= each.startpoints
    return {ssp: each.safe for ssp, each in progress.items()}, frozenset(consumed)
