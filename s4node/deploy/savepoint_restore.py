"""Has a stopped job go on from one of its savepoints.

Rules
- Inputs that can be read again go back with the savepoint. What is outside the job does not: events
  that consumers have received since come again, and events that producers were told are committed
  are lost to the job. Both are counted first, and done only if they were asked for.
- A consumer that has received more than the savepoint has gets the rest of the savepoint's events
  under their numbers, and then events under another producer name, which it counts anew.
- Everything is checked before anything changes. From then on the job does not start until all of
  its tasks are restored: after a crash in between, restore again.
- A task is restored under a claim, as any new owner has one: an owner that wakes up is fenced.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from s4node.events.keys import crc32m
from s4node.failpoints import passing
from s4node.net.egress.outbox_rows import forget, life_of, renamed, sort_rows, ways_of
from s4node.net.wire import frame as wire
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.producer_offsets import Producer, row_of
from s4node.offsets.task_claims import TaskClaims, now_ms
from s4node.runtime.outputs.exchange import FORMER, parts_of
from s4node.savepoints import folders
from s4node.savepoints.manifest import Manifest
from s4node.state import epochs
from s4node.state.database import Database
from s4node.state.job import CUT, DONE, ENDED, WRITTEN, kept_by, named_folder, task_folder
from s4node.state.rows import OUTBOX, PRODUCERS, task_row
from s4node.state.task_state import TaskState


@dataclass(frozen=True)
class Since:
    """What has left the job since a savepoint, and what it has acknowledged: events by stream and
    consumer, and by stream and producer. ``known`` is False if the job's newer state is not here.
    """

    outputs: Mapping[tuple[str, str], int]
    producers: Mapping[Producer, int]
    known: bool = True


class SavepointRestore:
    """Restores the job of ``app`` on ``cluster``, in ``folder``, from the savepoint ``name``;
    nothing of it runs meanwhile. Raises CheckpointError if the savepoint is missing or damaged."""

    def __init__(self, folder: Path, cluster: str, app: str, name: str) -> None:
        self.manifest: Manifest = folders.read(folder, name)
        self._folder = folder
        self._own = f"{wire.TASK}{cluster}/{app}/"
        self._place = folders.savepoint_folder(folder, name)
        folders.check(self._place, self.manifest)

    def since(self) -> Since:
        """Count what has happened since the savepoint."""
        outputs: Counter[tuple[str, str]] = Counter()
        producers: Counter[Producer] = Counter()
        known = True
        for task in self.manifest.tasks:
            with self._opened(task) as saved, kept_by(self._folder, task) as newest:
                if newest is None:
                    known = False
                    continue
                outputs.update(_sent_since(saved, newest))
                producers.update(self._acknowledged_since(saved, newest))
        return Since(+outputs, +producers, known)

    def _acknowledged_since(self, saved: TaskState, newest: TaskState) -> Counter[Producer]:
        """The events that were acknowledged, by producer; ``""`` is for those that have ended."""
        before, after = _numbers(saved), _numbers(newest)
        found: Counter[Producer] = Counter()
        for producer, number in after.items():
            if not producer[1].startswith(self._own):
                found[producer] += max(0, number - before.get(producer, 0))
        for gone in before.keys() - after.keys():  # it has ended since, with that much from before
            if not gone[1].startswith(self._own):
                found[gone[0], ""] -= before[gone]
        return found

    def restore(
        self,
        *,
        outputs_again: bool,
        accept_loss: bool,
        tell: Callable[[int, int], None] = lambda _, __: None,
    ) -> None:
        """Have all tasks go on from the savepoint. With ``outputs_again`` what consumers have
        received since comes again, with ``accept_loss`` producers may go on after what is lost."""
        store = TaskClaims(self._folder)
        try:
            store.admit(JobGuard.from_row(self.manifest.job))
            folders.begin_restore(self._folder, self.manifest.name)
            for done, task in enumerate(self.manifest.tasks):
                tell(done, len(self.manifest.tasks))
                passing("savepoint.restore")
                self._restore(store, task, outputs_again=outputs_again, accept_loss=accept_loss)
            folders.end_restore(self._folder)
            tell(len(self.manifest.tasks), len(self.manifest.tasks))
        finally:
            store.close()

    def _restore(
        self, store: TaskClaims, task: str, *, outputs_again: bool, accept_loss: bool
    ) -> None:
        saved, place = self.manifest.tasks[task], task_folder(self._folder, task)
        claim = store.claim(task, "", 0, max(epochs.highest(place), saved.fence))
        database = epochs.claim(place, claim.fence, Database, saved=self._saved(task))
        state = TaskState(database, crc32m, fence=claim.fence)
        try:
            number = max(claim.commit, claim.acknowledged, saved.commit)
            state.last = (saved.fence, number, 0)  # so no commit that was acknowledged is missing
            if outputs_again:
                _begin_new_ways(state)
            if accept_loss:
                self._let_skip(state)
            state.set_meta(DONE, 0)
            state.set_meta(CUT, self.manifest.number)
            now = now_ms()
            state.set_meta(WRITTEN, now)
            state.begin_commit({})
            store.renew(claim, now, number + 1)
            state.write_commit()
            state.end_commit(written=True)
        finally:
            state.close()

    def _let_skip(self, state: TaskState) -> None:
        for producer, row in state.producers().items():
            if not producer[1].startswith(self._own):
                anywhere = msgspec.structs.replace(row, skips=wire.MAX_NUMBER)
                place = task_row(PRODUCERS, row_of(producer))
                state.changes.put(place, msgspec.msgpack.encode(anywhere))

    def _saved(self, task: str) -> Path:
        return named_folder(self._place, task)

    @contextmanager
    def _opened(self, task: str) -> Iterator[TaskState]:
        """A copy of what the savepoint has of a task."""
        with tempfile.TemporaryDirectory(prefix=".look-", dir=self._place.parent) as room:
            own = Path(room) / "database"
            own.mkdir()
            epochs.inherit(self._saved(task), own)
            database = Database(own)
            try:
                yield TaskState(database, crc32m)
            finally:
                database.close()


def _numbers(state: TaskState) -> dict[Producer, int]:
    """How many events each producer was told of, and each stream's of those that have ended."""
    found = {producer: row.number for producer, row in state.producers().items()}
    for stream in {stream for stream, _ in found} | state.facts(ENDED):
        found[stream, ""] = state.meta(ENDED + stream) or 0
    return found


def _sent_since(saved: TaskState, newest: TaskState) -> Counter[tuple[str, str]]:
    """The events that a task has sent since, by stream and consumer."""
    before = _ends(saved)
    found: Counter[tuple[str, str]] = Counter()
    for lane, number in _ends(newest).items():
        found[lane[:2]] += max(0, number - before.get(lane, 0))
    return found


def _ends(state: TaskState) -> dict[tuple[str, str, str, int], int]:
    """The next number of each lane, by stream, consumer and life; a former way has its life."""
    return {
        (*parts_of(way), life_of(rows), partition): number
        for way, rows in ways_of(state.rows(OUTBOX)).items()
        if parts_of(way)[1]
        for partition, number in sort_rows(way, rows).next_numbers.items()
    }


def _begin_new_ways(state: TaskState) -> None:
    """Make all ways to consumers former ones. One that is such already stays, and what a way has
    that began since waits behind it."""
    ways = ways_of(state.rows(OUTBOX))
    for way, rows in ways.items():
        if parts_of(way)[1] and not way.endswith(FORMER) and f"{way}{FORMER}" not in ways:
            forget(state.changes, rows)
            for key, value in renamed(rows, f"{way}{FORMER}"):
                state.changes.put(task_row(OUTBOX, key), value)
