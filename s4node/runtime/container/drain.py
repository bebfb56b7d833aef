"""The drain of a stopping container: what it waits for, and what it leaves that nobody keeps.

Rules
- A stop that takes its time says once what for.
- What was put on an output stream and has no verdict when the container ends is named, by stream
  and consumer, and is a failure of a stop: nobody keeps it. What tasks keep is not meant, which
  leaves at the next start; nor dead letters, for their events come again.
- So it is with what the app has put on its own streams and is not processed, where tasks keep
  nothing. What producers have sent has no verdict then, and they send it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import trio

from s4node.errors import EventsLost
from s4node.logger import get_logger
from s4node.runtime.outputs.exchange import Exchange
from s4node.runtime.outputs.members import Members
from s4node.runtime.outputs.output_streams import OutputStreams
from s4node.runtime.task.task import Task

log = get_logger("s4node.runtime")

_SILENCE_SECONDS = 2.0
"""How long a stop may take before it says what it waits for."""


@dataclass(eq=False, repr=False)
class Drain:
    """That of ``app``: of its ``tasks``, which change, and of all that they send to others.

    ``dead_letters`` is the output stream for dead letters; empty if there is none. ``inner`` are
    the app's own streams of which tasks keep nothing.
    """

    _app: str
    _tasks: Mapping[int, Task]
    _outputs: OutputStreams
    _members: Members | None
    _exchange: Exchange | None
    _dead_letters: str
    _inner: Collection[str]

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

    def _unprocessed(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for task in self._tasks.values():
            for stream, events in task.own().items():  # what other members have sent they keep
                if stream in self._inner:
                    found[stream] += len(events)
        return found

    def tell_left(self) -> list[str]:
        """Log what is left that nobody keeps; returns it in words."""
        left = []
        for owed in self._outputs.owed():
            if owed.stream != self._dead_letters:
                log.error(
                    "events of an output stream have no verdict, and are kept nowhere",
                    app=self._app,
                    **owed._asdict(),
                )
                left.append(
                    f"{owed.events} events of stream {owed.stream!r} without a verdict of consumer "
                    f"{owed.consumer!r}"
                )
        for stream, events in sorted(self._unprocessed().items()):
            log.error(
                "events that the app has put are not processed, and are kept nowhere",
                app=self._app,
                stream=stream,
                events=events,
            )
            left.append(f"{events} events that it has put on stream {stream!r} not processed")
        return left

    def lost(self, left: list[str]) -> EventsLost:
        """What ends an orderly stop that left this."""
        return EventsLost(
            f"app {self._app!r} stopped with {'; '.join(left)}. They are kept nowhere: send again "
            f"what was not processed, and give it longer (task.shutdown.ms), or stop it while its "
            f"consumers run"
        )
