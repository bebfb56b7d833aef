"""Message choosers: which of a task's inputs goes next. Pure.

Rules
- Each input waits with its next batch. The batches stay in the task's stages; a chooser only says
  whose turn it is. Inputs are in the order in which they began to wait.
- A choice holds for one step. If other inputs wait after it, the chooser is asked again, and an
  input with the rest of a batch waits after them. So a large batch delays others by one step only.
- Choosers are composed from the inside: round robin (or the author's) in each tier of priority,
  batching around them, bootstrapping around all. Only the configured layers exist.
- Priority is strict: while a higher tier has a batch that may go, lower ones starve.
- Each task has its own chooser, so a task that bootstraps does not hold up the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from s4node.config import plugins, settings
from s4node.config.config import Config
from s4node.errors import ConfigError, S4Error, described
from s4node.events.event import EventBatch
from s4node.offsets.system import Bounds, SystemStreamPartition

I = TypeVar("I", bound=Hashable)  # noqa: E741 - an input

May = Callable[[I], bool]


class MessageChooser(Protocol[I]):
    """Decides the order among the inputs ``I`` of one task.

    An author's class is called with the app's parameters (the ``s4.app.*`` settings).
    """

    def choose(self, waiting: Mapping[I, EventBatch], may: May[I]) -> I | None:
        """Return an input of ``waiting`` for which ``may`` is True, or None if there is none.

        ``waiting`` has the next batch of each input, in the order in which they began to wait.
        """
        ...


class RoundRobin(Generic[I]):
    """Inputs take turns: the one that has waited longest goes first."""

    __slots__ = ()

    def choose(self, waiting: Mapping[I, EventBatch], may: May[I]) -> I | None:
        """The first that may go."""
        for source in waiting:
            if may(source):
                return source
        return None


class TieredPriority(Generic[I]):
    """Inputs of higher priority go first; among equals, the chooser of their tier decides.

    ``priorities`` are by stream, 0 by default; ``tier`` makes the chooser of a tier.
    """

    def __init__(
        self, priorities: Mapping[str, int], tier: Callable[[], MessageChooser[I]]
    ) -> None:
        self._priorities = priorities
        numbers = sorted({0, *priorities.values()}, reverse=True)
        self._tiers: dict[int, MessageChooser[I]] = {number: tier() for number in numbers}

    def choose(self, waiting: Mapping[I, EventBatch], may: May[I]) -> I | None:
        here: dict[int, dict[I, EventBatch]] = {number: {} for number in self._tiers}
        for source, batch in waiting.items():
            here[self._priorities.get(batch.stream, 0)][source] = batch
        for number, tier in self._tiers.items():
            chosen = tier.choose(here[number], may)
            if chosen is not None:
                return chosen
        return None


class Batching(Generic[I]):
    """Stays with an input, while it has batches, until ``size`` of its events have gone."""

    def __init__(self, wrapped: MessageChooser[I], size: int) -> None:
        self.resets = 0
        self._wrapped = wrapped
        self._size = size
        self._source: I | None = None
        self._chosen: EventBatch | None = None
        self._end = 0  # where the turn of the source ends in the batch that was chosen

    @property
    def left(self) -> int:
        """The number of events of the chosen batch that still belong to its source's turn."""
        return 0 if self._chosen is None else self._end - self._chosen.at

    def choose(self, waiting: Mapping[I, EventBatch], may: May[I]) -> I | None:
        """The same input during its turn, then the choice of the wrapped chooser."""
        source, left = self._source, self.left
        if source is not None and source in waiting:
            if left > 0 and may(source):
                self._turn(source, waiting[source], left)
                return source
            self.resets += left <= 0
        self._source = self._chosen = None  # the others go first now
        chosen = self._wrapped.choose(waiting, may)
        if chosen is not None:
            self._turn(chosen, waiting[chosen], self._size)
        return chosen

    def _turn(self, source: I, batch: EventBatch, events: int) -> None:
        self._source, self._chosen, self._end = source, batch, batch.at + events


class Bootstrap:
    """How far a task has to read some partitions before it may process any other input.

    The reader of the partitions calls :meth:`begins` for each of ``ssps`` and :meth:`reached` as
    they are processed. No other input goes before all of them have begun and reached their end.
    Both methods return True if other inputs may go now; the caller then wakes the task.
    """

    def __init__(self, ssps: Iterable[SystemStreamPartition]) -> None:
        self._until: dict[SystemStreamPartition, float] = dict.fromkeys(ssps, math.inf)
        self.streams = self._lagging()

    def begins(self, ssp: SystemStreamPartition, position: int, bounds: Bounds) -> bool:
        """Note that a partition is read from ``position`` on, up to its newest event now.

        A partition with no event left has already been caught up with.
        """
        if self._until.get(ssp) != math.inf:
            return False
        if max(position, bounds.oldest) >= bounds.upcoming:
            return self._caught_up(ssp)
        self._until[ssp] = bounds.upcoming
        return False

    def reached(self, ssp: SystemStreamPartition, position: int) -> bool:
        """Note that everything below ``position`` has been processed, or will never come."""
        return ssp in self._until and position >= self._until[ssp] and self._caught_up(ssp)

    def _caught_up(self, ssp: SystemStreamPartition) -> bool:
        del self._until[ssp]
        before, self.streams = self.streams, self._lagging()
        return self.streams != before

    def _lagging(self) -> frozenset[str]:
        return frozenset(ssp.stream for ssp in self._until)

    @property
    def lag(self) -> dict[str, int]:
        """The number of partitions that are not caught up with yet, by ``system.stream``."""
        return dict(sorted(Counter(f"{ssp.system}.{ssp.stream}" for ssp in self._until).items()))


class Bootstrapping(Generic[I]):
    """Lets only the streams of ``bootstrap`` go until they are caught up with.

    Streams of higher priority are caught up with first. ``priorities`` has only streams that
    bootstrap.
    """

    def __init__(
        self, wrapped: MessageChooser[I], bootstrap: Bootstrap, priorities: Mapping[str, int]
    ) -> None:
        self._wrapped = wrapped
        self._bootstrap = bootstrap
        self._priorities = priorities

    def choose(self, waiting: Mapping[I, EventBatch], may: May[I]) -> I | None:
        """The choice of the wrapped chooser among the inputs that may go."""
        lagging = self._bootstrap.streams
        if not lagging:
            return self._wrapped.choose(waiting, may)
        least = max(self._priorities[stream] for stream in lagging)

        def now(source: I) -> bool:
            # a bootstrap stream that is caught up with goes on: others may wait for parts of it
            return self._priorities.get(waiting[source].stream, -1) >= least and may(source)

        return self._wrapped.choose(waiting, now)


class Checked(Generic[I]):
    """Holds an author's chooser, ``named`` for messages, to the contract.

    Inputs that it never chooses stay unprocessed, and count as waiting.
    """

    def __init__(self, wrapped: MessageChooser[I], named: str) -> None:
        self._wrapped = wrapped
        self._blamed = f"chooser {named!r} of {settings.CHOOSER.name}"

    def choose(self, waiting: Mapping[I, EventBatch], may: May[I]) -> I | None:
        """The choice of the wrapped chooser; raises S4Error if it raises or breaks the contract."""
        try:
            chosen = self._wrapped.choose(MappingProxyType(waiting), may)
        except Exception as error:
            raise S4Error(
                f"choose of {self._blamed} raised {described(error)}; the task cannot "
                f"know what goes next: fix it, or remove the setting"
            ) from error
        if chosen is None:
            return None
        if not any(chosen == source for source in waiting):
            raise S4Error(
                f"choose of {self._blamed} gave {chosen!r}, which has no batch waiting; give one "
                f"of the inputs that wait, or None"
            )
        if not may(chosen):
            raise S4Error(
                f"choose of {self._blamed} gave {chosen}, which may not go now; ask may(source) "
                f"before choosing it"
            )
        return chosen


def batching_of(chooser: object) -> Batching[Any] | None:
    while chooser is not None and not isinstance(chooser, Batching):
        chooser = getattr(chooser, "_wrapped", None)
    return chooser


# --- as configured -------------------------------------------------------------------------------

BOOTSTRAP_PRIORITY = 2**31 - 1


@dataclass(frozen=True)
class ChooserSettings:
    """The configuration of choosers; ``priorities`` and ``bootstrap`` are by stream."""

    named: str = "round-robin"
    batch_size: int = 0
    priorities: Mapping[str, int] = field(default_factory=dict)
    bootstrap: frozenset[str] = frozenset()

    @classmethod
    def from_config(cls, config: Config) -> ChooserSettings:
        """The settings from a configuration; bootstrap streams without a priority go first."""
        wanted = config.matching(settings.STREAM_BOOTSTRAP)
        bootstrap = frozenset(stream for stream, yes in wanted.items() if yes)
        first = dict.fromkeys(sorted(bootstrap), BOOTSTRAP_PRIORITY)
        priorities = first | config.matching(settings.STREAM_PRIORITY)
        return cls(config[settings.CHOOSER], config[settings.BATCH_SIZE], priorities, bootstrap)

    def check(self, replayable: Collection[str], live: Collection[str]) -> None:
        """Raise ConfigError if there is no such chooser, and for settings of streams that are not
        inputs of these names.

        Only a replayable input can bootstrap: the newest event of others is unknown.
        """
        if self.named != "round-robin":
            plugins.found(self.named, settings.CHOOSER.name, "chooser")
        problems: list[str] = []
        inputs = ", ".join(sorted({*replayable, *live})) or "none"
        for stream in sorted({*self.priorities, *self.bootstrap}):
            bootstraps = stream in self.bootstrap
            pattern = settings.STREAM_BOOTSTRAP if bootstraps else settings.STREAM_PRIORITY
            key = pattern.name.replace("<stream>", stream)
            if stream not in replayable and stream not in live:
                problems.append(f"{key}: the app has no such input; its inputs: {inputs}")
            elif bootstraps and stream not in replayable:
                problems.append(
                    f"{key}: a live stream cannot be replayed; read the stream from a log, or "
                    f"remove the setting"
                )
        if problems:
            raise ConfigError("\n".join(problems))

    def bootstrap_of(self, ssps: Iterable[SystemStreamPartition]) -> Bootstrap | None:
        found = [ssp for ssp in ssps if ssp.stream in self.bootstrap]
        return Bootstrap(found) if found else None

    def make(
        self, parameters: Mapping[str, str], bootstrap: Bootstrap | None = None
    ) -> MessageChooser[Hashable] | None:
        """The chooser of one task; None if inputs take turns.

        Raises ConfigError if the author's chooser cannot be made.
        """
        if self == ChooserSettings():
            return None

        def base() -> MessageChooser[Hashable]:
            if self.named == "round-robin":
                return RoundRobin()
            setting, what = settings.CHOOSER.name, "chooser"
            mine = plugins.made(self.named, setting, what, parameters)
            plugins.lacking(mine, ("choose",), self.named, setting, what)
            return Checked(mine, self.named)

        tiers = any(self.priorities.values())
        chooser = TieredPriority(self.priorities, base) if tiers else base()
        if self.batch_size:
            chooser = Batching(chooser, self.batch_size)
        if bootstrap is not None:
            ranks = {stream: self.priorities[stream] for stream in self.bootstrap}
            chooser = Bootstrapping(chooser, bootstrap, ranks)
        return chooser
