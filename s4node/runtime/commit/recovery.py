"""Recovery: rolls tasks back to their last commit for events at which they fail.

Rules
- Each stream says what becomes of a poison event: ``fail`` stops the container, ``skip`` skips the
  event, ``dead-letter`` stores it as well. Skipping needs tasks that can be rolled back: they have
  a database, and all their inputs can be replayed.
- A task that has failed is discarded with everything uncommitted. A new task replaces it, restored
  from the last commit, and skips the poison event. Other tasks go on meanwhile.
- An event that ``s4 dead-letter skip`` names, because the process has died at it, is skipped
  whatever the stream says. It is logged once, however often its task comes to it again.
- The first failure of a stream is logged, the others are counted.
- A call of ``on_window`` or ``on_timer`` that fails is left out like an event. Of the streams that
  lead to its PE, the strictest one decides: ``fail``, else ``dead-letter``, else ``skip``.
- If tasks can be rolled back, the end of the inputs waits until everything before it is committed,
  because nothing would be replayed after it. The task's own work at the end is committed before
  anything else; a later rollback does not notify it of the end again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from s4node.app.app import App
from s4node.app.stream import OutputStream
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError, ProcessingError
from s4node.events.event import EventBatch
from s4node.logger import get_logger
from s4node.offsets.death_files import DeathFiles
from s4node.runtime.commit.careful_mode import CarefulMode
from s4node.runtime.commit.committer import Committer
from s4node.runtime.commit.dead_letter_queue import DeadLetterQueue
from s4node.runtime.loop.run_loop import RunLoop
from s4node.runtime.task.gate import Op
from s4node.runtime.task.poison.failed_hooks import MOST, FailedCall, HookCall, LeftOutCall
from s4node.runtime.task.poison.poison_events import DIED, LeftOut, Place, fault_of, place_of
from s4node.runtime.task.task import Task

log = get_logger("s4node.runtime")

FAIL, SKIP, DEAD_LETTER = "fail", "skip", "dead-letter"
_STRICTNESS = (FAIL, DEAD_LETTER, SKIP)


class Recovery:
    """Rolls back tasks of ``app`` in ``loop``; ``counts`` are skipped events by stream."""

    def __init__(
        self,
        app: App,
        config: Config,
        dead_letters: DeadLetterQueue,
        loop: RunLoop,
        committer: Committer,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._app = app
        self._failing: set[str] = set()  # streams whose first failure was logged
        self._skipped: set[tuple[int, Place]] = set()  # on request, by task; each was logged
        self._dead_letter_queue = dead_letters
        self.careful = CarefulMode(app.name, loop)
        self._committer = committer
        self._said = config.matching(settings.ON_ERROR)
        stream = app.streams.get(config[settings.DEAD_LETTERS])
        self._dead_letters = stream if isinstance(stream, OutputStream) else None

    def said(self, stream: str) -> str:
        """The setting ``onError`` of a stream, or the strictest of those that it has in order."""
        known = self._app.streams.get(stream)
        names = (known.in_order_of if known is not None else ()) or (stream,)
        return min((self._said.get(name, FAIL) for name in names), key=_STRICTNESS.index)

    @property
    def undoes(self) -> bool:
        return any(policy != FAIL for policy in self._said.values())

    def takes(self, task: Task, error: ProcessingError) -> bool:
        if isinstance(error.call, HookCall):
            return self._takes_call(task, error, error.call)
        assert error.at is not None
        batch, index = error.at
        assert isinstance(batch, EventBatch)
        said = self.said(batch.stream)
        if said == FAIL:
            return False
        place, fault = place_of(batch, index), fault_of(error)
        if batch.stream not in self._failing:
            self._failing.add(batch.stream)
            log.error(
                "an event cannot be processed and is skipped; further ones are only counted",
                stream=batch.stream,
                at=str(place),
                on_error=said,
                pe=error.pe,
                reason=fault.reason,
                exc_info=error.__cause__ if fault.trace else None,
            )
        self.counts[batch.stream] += 1
        self._dead_letter_queue.remember(task, batch.stream, str(place), fault.reason, error.pe)
        task.failures.isolation.poison_events.add(place, fault)
        return True

    def _takes_call(self, task: Task, error: ProcessingError, call: HookCall) -> bool:
        """Return True if the task leaves a call of a window or a timer out from now on."""
        stream, said = self._said_of(call.pe)
        hooks = task.failures.isolation.failed_hooks
        if said == FAIL:
            return False
        if hooks.at_limit:
            log.error("so many calls of windows or timers fail that the app stops", limit=MOST)
            return False
        fault = fault_of(error)
        if call.pe not in self._failing:
            self._failing.add(call.pe)
            log.error(
                "a call cannot be made and is left out; further ones are only counted",
                call=str(call),
                on_error=said,
                reason=fault.reason,
                exc_info=error.__cause__,
            )
        self.counts[stream] += 1
        self._dead_letter_queue.remember(task, stream, str(call), fault.reason, call.pe)
        hooks.add(call, FailedCall(stream, fault, kept=said == DEAD_LETTER))
        return True

    def _said_of(self, pe: str) -> tuple[str, str]:
        """The stream that decides for the windows and timers of a PE, and its ``onError``."""
        names = [
            stream.name
            for stream in self._app.streams.values()
            if any(target.name == pe for target in stream.targets)
        ]
        return min(
            ((name, self.said(name)) for name in names),
            key=lambda each: _STRICTNESS.index(each[1]),
        )

    def call_left_out(self, task: Task, left: LeftOutCall) -> None:
        if not left.failed.kept:
            return
        if self._dead_letters is not None:
            left.dead_letter.put("app", task.app.name)
            left.dead_letter.put("task", task.name)
            left.dead_letter.freeze()
            task.failures.isolation.add_call_dead_letter(left, self._dead_letters)
        else:
            self._dead_letter_queue.send_skipped(task, left.place, left.dead_letter)

    def skip_named(self, task: Task, files: DeathFiles) -> None:
        for one in files.skipped:
            task.failures.isolation.poison_events.add(Place(one.origin, one.number), DIED)

    def covered(self, task: Task, own: Sequence[Place]) -> None:
        """Note that a commit covers these events of the task's own, which it has skipped."""
        self.careful.files[task.partition].drop_skipped(own)

    def before_end(self, task: Task) -> Op:
        if not self.undoes or not self._committer.changed(task):
            return Op.END_OF_STREAM
        return Op.NOTHING if self._committer.writes(task) else Op.COMMIT

    def left_out(self, task: Task, batch: EventBatch, found: list[LeftOut]) -> None:
        for one in found:
            place, _, stream, reason, dead_letter = one
            said = self.said(stream)
            if reason == DIED.reason and (task.partition, place) not in self._skipped:
                self._skipped.add((task.partition, place))
                self.counts[stream] += 1
                log.warning(
                    "an event at which the process has died is skipped, as requested",
                    task=task.name,
                    stream=stream,
                    at=str(place),
                    on_error=said,
                )
            if said != DEAD_LETTER:
                continue
            if self._dead_letters is not None:
                dead_letter.put("app", task.app.name)
                dead_letter.put("task", task.name)
                dead_letter.freeze()
                task.failures.isolation.add_dead_letter(batch, one, self._dead_letters)
            else:
                self._dead_letter_queue.send_skipped(task, place, dead_letter)


def check(app: App, config: Config, live: Sequence[str], *, kept: bool) -> None:
    """Raise ConfigError if poison events cannot be skipped as the settings say.

    Events of ``live`` inputs are not replayed; ``kept`` says that tasks keep state.
    """
    said = {
        name: policy
        for name, policy in config.matching(settings.ON_ERROR).items()
        if policy != FAIL
    }
    if not said:
        return
    fed = [s.name for s in app.streams.values() if not isinstance(s, OutputStream)]
    problems = [
        f"s4.stream.{name}.onError: app {app.name!r} handles no stream {name!r}; it handles "
        f"{', '.join(fed)}"
        for name in said
        if name not in fed
    ]
    name, policy = next(iter(said.items()))
    why = f"s4.stream.{name}.onError = {policy} rolls a task back to its last commit"
    if not kept:
        problems.append(
            f"{why}, but no input of app {app.name!r} can be replayed: they are live and fast. "
            f"Read them from a log, or set s4.stream.<stream>.grade = durable"
        )
    elif live:
        problems.append(
            f"{why}, but the events of {', '.join(live)}, which are live and fast, are not "
            f"replayed; set s4.stream.{live[0]}.grade = durable"
        )
    if config[settings.TASK_ASYNC_COMMIT]:
        problems.append(
            f"{why}, but with {settings.TASK_ASYNC_COMMIT.name} = true a commit may cover a part "
            f"of an event; set it to false"
        )
    if DEAD_LETTER in said.values() and not config[settings.DEAD_LETTERS]:
        problems.append(
            f"s4.stream.{name}.onError = {DEAD_LETTER} stores events in "
            f"{settings.DEAD_LETTERS.name}, which is not set; set it to an output stream of the "
            f"app, or to system.stream"
        )
    if problems:
        raise ConfigError("\n".join(problems), tuple(problems))
