"""The drain of a stopping container: what it waits for, and what it leaves without a verdict.

Rules
- A stop that takes its time says once what for.
- What was put on an output stream and has no verdict when the container ends is named, by stream
  and consumer, and is a failure of a stop: nobody keeps it. What tasks keep is not meant, which
  leaves at the next start; nor dead letters, for their events come again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import trio

from s4node.container.exchange import Exchange
from s4node.container.members import Members
from s4node.container.outputs import Outputs, Owed
from s4node.container.task import Task
from s4node.errors import OutputLost
from s4node.logger import get_logger

log = get_logger("s4node.container")

_SILENCE_SECONDS = 2.0
"""How long a stop may take before it says what it waits for."""


class Drain:
    """That of ``app``: of its ``tasks``, which change, and of all that they send to others.

    ``letters`` is the output stream for dead letters; empty if there is none.
    """

    def __init__(
        self,
        app: str,
        tasks: Mapping[int, Task],
        outputs: Outputs,
        members: Members | None,
        exchange: Exchange | None,
        letters: str,
    ) -> None:
        self._app = app
        self._tasks = tasks
        self._outputs = outputs
        self._members = members
        self._exchange = exchange
        self._letters = letters

    async def tell(self, seconds: float) -> None:
        """Say what is waited for if it takes long; ``seconds`` is the longest that it may."""
        await trio.sleep(_SILENCE_SECONDS)
        log.info(
            "still draining", app=self._app, waits_for=self.waits_for(), at_most_seconds=seconds
        )

    def waits_for(self) -> list[str]:
        """What has to happen before the container can end, in words."""
        found = [
            f"a verdict of {owed.consumer!r} on {owed.events} events of stream {owed.stream!r}"
            for owed in self._outputs.owed()
        ]
        found += [
            f"{whom} to commit {events} events of stream {stream!r}"
            for (stream, whom), events in self._uncommitted().items()
        ]
        if self._members is not None:
            found += [
                f"other members to process {unsettled} events of stream {stream!r}"
                for stream in self._members.ways
                if (unsettled := self._members.unsettled(stream))
            ]
        for task in self._tasks.values():
            depth = sum(stage.depth for stage in task.backlog.stages.values())
            if depth or task.busy:
                found.append(f"task {task.name!r} with {depth} events")
        return found or ["the app's own sources and hooks, or peers, to end"]

    def _uncommitted(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for each in self._exchange.statistics() if self._exchange is not None else ():
            if each.depth:
                found[each.stream, repr(each.consumer) if each.consumer else "tasks"] += each.depth
        return found

    def tell_left(self) -> list[Owed]:
        """Log what is left for nobody to take; returns it."""
        left = [owed for owed in self._outputs.owed() if owed.stream != self._letters]
        for owed in left:
            log.error("events of an output stream have no verdict, and are kept nowhere",
                      app=self._app, **owed._asdict())  # fmt: skip
        return left

    def lost(self, left: list[Owed]) -> OutputLost:
        """What ends an orderly stop that left this."""
        what = "; ".join(
            f"{owed.events} events of stream {owed.stream!r} without a verdict of consumer "
            f"{owed.consumer!r}"
            for owed in left
        )
        return OutputLost(
            f"app {self._app!r} stopped with {what}. They are kept nowhere: send again what was "
            f"not processed, and stop it while its consumers run, or give it longer "
            f"(task.shutdown.ms)"
        )
