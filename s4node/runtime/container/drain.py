"""The drain of a stopping container: what it waits for, and which events it loses; and quiescence.

Rules
- Quiescence is that no task is busy, and no event on its way between tasks. Events between durable
  tasks leave by a commit of the sender, and stay in its outbox until a commit of the receiver. So
  waiting for quiescence requests commits. Events whose receiver is away stay in the outbox, and are
  not waited for.
- Members that stop together go on taking events from each other until all is quiet.
- A stop that takes long logs once what it waits for.
- Output events without an acknowledgement at the container's end are lost. They are logged by
  stream and consumer, and make the stop a failure. Events of durable tasks are not lost: they leave
  after the next start. Dead letters are not lost: their events are replayed.
- Events that the app has put on its own streams and not processed are lost, too, if tasks keep no
  state. Producers resend the events that led to them, which have no verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import trio

from s4node.errors import EventsLost
from s4node.logger import get_logger
from s4node.runtime.commit.committer import Committer
from s4node.runtime.container.partitions import Partitions
from s4node.runtime.loop.run_loop import RunLoop
from s4node.runtime.outputs.outputs import Outputs
from s4node.runtime.task.task import Task

log = get_logger("s4node.runtime")

_LOG_AFTER_SECONDS = 2.0
"""A stop that takes longer logs what it waits for."""

_QUIET_SECONDS = 0.25
"""A stopping member waits until nothing has come from the others for so long."""

_LOOK_SECONDS = 0.005


@dataclass(eq=False, repr=False)
class Drain:
    """The drain of ``app``: of the tasks of its partitions, and of the events that they send.

    ``dead_letters`` is the output stream for dead letters, or empty. ``inner`` are the app's own
    streams that are not durable.
    """

    _app: str
    _partitions: Partitions
    _loop: RunLoop
    _outputs: Outputs
    _dead_letters: str
    _inner: Collection[str]

    async def members(self) -> None:
        """Process events that the members of a stopping cluster still send each other."""
        outputs, partitions = self._outputs, self._partitions
        while True:
            before = partitions.processed
            with trio.move_on_after(_QUIET_SECONDS):
                await trio.sleep_forever()
            unsettled = any(map(outputs.unsettled, outputs.to_members))
            waiting = not self._loop.idle or partitions.has_waiting
            if partitions.processed == before and not waiting and not unsettled:
                return
            if unsettled:
                outputs.emitter.hurry()

    async def log_waiting(self, seconds: float) -> None:
        """Log what a long stop waits for; ``seconds`` is its deadline."""
        await trio.sleep(_LOG_AFTER_SECONDS)
        log.info(
            "still draining", app=self._app, waits_for=self.waits_for(), at_most_seconds=seconds
        )

    def waits_for(self) -> list[str]:
        """The things that have to happen before the container can end, as text."""
        found = [
            f"a verdict of {each.consumer!r} on {each.events} events of stream {each.stream!r}"
            for each in self._outputs.unacknowledged()
        ]
        found += [
            f"{whom} to commit {events} events of stream {stream!r}"
            for (stream, whom), events in self._uncommitted().items()
        ]
        found += [
            f"other members to process {unsettled} events of stream {stream!r}"
            for stream in self._outputs.to_members
            if (unsettled := self._outputs.unsettled(stream))
        ]
        for task in self._partitions.tasks.values():
            depth = sum(stage.depth for stage in task.backlog.stages.values())
            if depth or task.busy:
                found.append(f"task {task.name!r} with {depth} events")
        return found or ["the app's own sources and hooks, or peers, to end"]

    def _uncommitted(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for each in self._outputs.outboxes():
            if each.depth:
                found[each.stream, repr(each.consumer) if each.consumer else "tasks"] += each.depth
        return found

    def _unprocessed(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for task in self._partitions.tasks.values():
            for stream, events in task.own_events().items():  # others keep what they have sent
                if stream in self._inner:
                    found[stream] += len(events)
        return found

    def log_left(self) -> list[str]:
        """Log the lost events; return them as text."""
        left = []
        for each in self._outputs.unacknowledged():
            if each.stream != self._dead_letters:
                log.error(
                    "unacknowledged events of an output stream are lost",
                    app=self._app,
                    **each._asdict(),
                )
                left.append(
                    f"{each.events} events of stream {each.stream!r} without a verdict of consumer "
                    f"{each.consumer!r}"
                )
        for stream, events in sorted(self._unprocessed().items()):
            log.error(
                "unprocessed events that the app has put are lost",
                app=self._app,
                stream=stream,
                events=events,
            )
            left.append(f"{events} events that it has put on stream {stream!r} not processed")
        return left

    def lost(self, left: list[str]) -> EventsLost:
        return EventsLost(
            f"app {self._app!r} stopped with {'; '.join(left)}. They are lost: send again what was "
            f"not processed, and allow a longer stop (task.shutdown.ms), or stop the app while its "
            f"consumers run"
        )


@dataclass(eq=False, repr=False)
class Quiescence:
    """Waits for the quiescence of ``tasks``, which change; ``undoes``: they can be rolled back."""

    _loop: RunLoop
    _tasks: Mapping[int, Task]
    _committer: Committer
    _outputs: Outputs
    _undoes: bool

    async def wait(self) -> None:
        """Wait until no task has anything to do, and all events between tasks are committed."""
        while (  # noqa: ASYNC110 - any of many things may end it
            self._ask_commits()
            or self._outputs.moving
            or not self._loop.idle
            or not all(task.at_rest for task in self._tasks.values())
        ):
            await trio.sleep(_LOOK_SECONDS)

    def arrived(self) -> bool:
        """Return True if no event is on its way between tasks, nor would be after a rollback.

        Otherwise request commits.
        """
        if self._outputs.idle and not self._undoes:
            return True
        return not self._ask_commits() and self._outputs.idle

    def _ask_commits(self) -> bool:
        """Have tasks commit that have changes; return False if none has."""
        found = False
        for task in self._tasks.values():
            if self._committer.changed(task):
                found = True
                if not self._committer.writes(task):
                    task.want_commit()
                    self._loop.wake(task)
        return found
