"""Recovery: has tasks go back to their last commit for events at which they fail.

Rules
- What becomes of a poison event is said for each stream: ``fail`` stops the container, ``skip``
  leaves it out, ``dead-letter`` keeps it as well. The last two take tasks whose work can be undone:
  they have a database, and all that they read comes again.
- A task that has failed is thrown away, with all that it has not committed. Another is made in its
  place, from the last commit, and skips the poison event. Other tasks go on meanwhile.
- An event that has killed the process three times is a poison event as well. Tasks that have
  suspects take turns, so that a death says which event it was.
- The first failure of a stream is told, the others are counted. Each event that kills is told
  once, however often its task comes to it again.
- Where tasks may go back, the end of the inputs waits until all before it is written; behind it
  nothing would be read again. What a task does at the end is committed before anything else, and it
  is not told of it again when it goes back behind that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from s4node.app.app import App
from s4node.app.stream import OutputStream
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError, EventKills, NotSaveable, ProcessingError
from s4node.events.event import EventBatch
from s4node.logger import get_logger
from s4node.runtime.commit.committer import Committer
from s4node.runtime.commit.dead_letter_queue import DeadLetterQueue
from s4node.runtime.loop.run_loop import RunLoop
from s4node.runtime.task.gate import Op
from s4node.runtime.task.poison.poison_events import (
    KILLED,
    KILLS,
    LeftOut,
    Place,
    fault_of,
    place_of,
)
from s4node.runtime.task.task import Task

log = get_logger("s4node.runtime")

FAIL, SKIP, DEAD_LETTER = "fail", "skip", "dead-letter"


class Recovery:
    """For the tasks of ``app``, which run in ``loop``. ``counts`` are of events that were left out,
    by stream."""

    def __init__(
        self,
        app: App,
        config: Config,
        dead_letters: DeadLetterQueue,
        loop: RunLoop,
        committer: Committer,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._failing: set[str] = set()  # streams of which a failure was told
        self._killers: set[tuple[int, Place]] = set()  # by task; each was told
        self._turn: Task | None = None
        self._waiting: set[int] = set()
        self._dead_letter_queue = dead_letters
        self._loop = loop
        self._committer = committer
        self._said = config.matching(settings.ON_ERROR)
        stream = app.streams.get(config[settings.DEAD_LETTERS])
        self._dead_letters = stream if isinstance(stream, OutputStream) else None

    def said(self, stream: str) -> str:
        """What becomes of poison events of a stream."""
        return self._said.get(stream, FAIL)

    @property
    def undoes(self) -> bool:
        """Whether tasks may go back at all."""
        return any(word != FAIL for word in self._said.values())

    def takes(self, task: Task, error: ProcessingError) -> bool:
        """Whether the task goes back for this failure; otherwise it stops the app."""
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
                "an event cannot be processed, and is left out; further ones are only counted",
                stream=batch.stream,
                at=str(place),
                on_error=said,
                pe=error.pe,
                reason=fault.reason,
                exc_info=error.__cause__ if fault.trace else None,
            )
        self.counts[batch.stream] += 1
        assert task.failures.isolation is not None
        task.failures.isolation.poison_events.add(place, fault)
        return True

    def searches(self, task: Task, error: NotSaveable) -> None:
        """The task goes back to find the event that this is due to."""
        log.warning(
            "what a task has done cannot be saved; it goes back to its last commit, and "
            "looks for the event that this is due to",
            task=task.name,
            pe=error.pe,
            key=error.key,
            error=str(error.__cause__),
        )

    def before_end(self, task: Task) -> Op:
        """What the task does that is to be told of the end of its inputs."""
        if not self.undoes or not self._committer.changed(task):
            return Op.END_OF_STREAM
        return Op.NOTHING if self._committer.writes(task) else Op.COMMIT

    def left_out(self, task: Task, batch: EventBatch, found: list[LeftOut]) -> None:
        """The task leaves these out, which were in a batch."""
        for one in found:
            place, _, stream, reason, dead_letter = one
            said = self.said(stream)
            if reason == KILLED.reason:
                self._killed(task, place, stream)
            if reason == KILLS.reason:
                self._kills(task, place, stream, said)
            if said != DEAD_LETTER:
                continue
            if self._dead_letters is not None:
                dead_letter.put("app", task.app.name)
                dead_letter.put("task", task.name)
                dead_letter.freeze()
                assert task.failures.isolation is not None
                task.failures.isolation.tell(batch, one, self._dead_letters)
            else:
                self._dead_letter_queue.send_skipped(task, place, dead_letter)

    def _killed(self, task: Task, place: Place, stream: str) -> None:
        """The task has come to an event at which the process was only ever killed."""
        assert task.failures.isolation is not None
        raise EventKills(
            f"stream {stream!r}: {KILLED.reason} ({place}), and nobody can see who has sent the "
            f"SIGKILLs, so the event is not left out, whatever s4.stream.{stream}.onError says. "
            f"The container stops here, as often as it is started. Look for what kills the "
            f"process; then stop the job, delete {task.failures.isolation.suspects_files}, and "
            f"start it again"
        )

    def _kills(self, task: Task, place: Place, stream: str, said: str) -> None:
        """The task has come to an event that kills the process, maybe again after it went back;
        raises EventKills if that is to stop the container."""
        why = f"{KILLS.reason} ({place})"
        if said == FAIL:
            raise EventKills(
                f"{why}. The container stops here, as often as it is started, also with a handler "
                f"that was mended; set s4.stream.{stream}.onError = skip to leave the event out, "
                f"or dead-letter to keep it in task.dead.letter.stream and send it again from there"
            )
        if (task.partition, place) not in self._killers:
            self._killers.add((task.partition, place))
            log.error(
                "an event that kills the process is left out",
                stream=stream,
                at=str(place),
                on_error=said,
            )
            self.counts[stream] += 1

    def may(self, task: Task) -> bool:
        """Whether a task that has suspects may process an event now: one at a time, so that a death
        says which it was."""
        if self._turn in (None, task):
            return True
        self._waiting.add(task.partition)
        return False

    def turns(self, task: Task, *, begins: bool) -> None:
        """Such a task begins to process; or has ended, or has no suspects any more."""
        if begins:
            self._turn = task
            return
        if self._turn is task:
            self._turn = None
        waiting, self._waiting = self._waiting, set()
        for partition in waiting:
            self._loop.wake_partition(partition)


def check(app: App, config: Config, live: Sequence[str], *, kept: bool) -> None:
    """Raise ConfigError where poison events cannot be left out as the settings say. ``live`` are
    inputs of which events do not come again; ``kept`` says whether tasks keep what they do."""
    said = {name: word for name, word in config.matching(settings.ON_ERROR).items() if word != FAIL}
    if not said:
        return
    fed = [s.name for s in app.streams.values() if not isinstance(s, OutputStream)]
    problems = [
        f"s4.stream.{name}.onError: app {app.name!r} handles no stream {name!r}; it handles "
        f"{', '.join(fed)}"
        for name in said
        if name not in fed
    ]
    name, word = next(iter(said.items()))
    why = f"s4.stream.{name}.onError = {word} takes back what a task has done since its last commit"
    if not kept:
        problems.append(
            f"{why}, and nothing of app {app.name!r} comes again: its inputs are live and fast. "
            f"Read them from a log, or set s4.stream.<stream>.grade = durable"
        )
    elif live:
        problems.append(
            f"{why}, and the events of {', '.join(live)}, which are live and fast, do not come "
            f"again; set s4.stream.{live[0]}.grade = durable"
        )
    if config[settings.TASK_ASYNC_COMMIT]:
        problems.append(
            f"{why}, and with {settings.TASK_ASYNC_COMMIT.name} = true a commit may have a part of "
            f"what an event does; set that to false"
        )
    if DEAD_LETTER in said.values() and not config[settings.DEAD_LETTERS]:
        problems.append(
            f"s4.stream.{name}.onError = {DEAD_LETTER} keeps events in "
            f"{settings.DEAD_LETTERS.name}, which is not set; set it to an output stream of the "
            f"app, or to system.stream"
        )
    if problems:
        raise ConfigError("\n".join(problems), tuple(problems))
