"""Restores a stopped job from one of its savepoints.

Rules
- Replayable inputs go back with the savepoint. What is outside the job does not: consumers receive
  the events since the savepoint again, and acknowledged events of producers are lost to the job.
  Both are counted first, and the restore goes ahead only if the user agrees.
- A task that has sent nothing to a consumer since the savepoint goes on with its numbers. Otherwise
  it begins a new life, whose first events are those that waited in the savepoint, and the consumer
  counts all of them anew.
- The job remembers what it has sent in all lives, so a later restore counts that, too.
- Everything is checked before anything changes. From then on the job does not start until all of
  its tasks are restored; after a crash in between, restore again.
- A task is restored under a claim, like that of any new owner: an owner that wakes up is fenced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec

from s4node import clocks, threads, tokens
from s4node.app.app import App
from s4node.cluster.coordination.startpoint_store import StartpointStore
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import CheckpointError
from s4node.events.keys import hasher_named
from s4node.failpoints import passing
from s4node.net.egress.outbox_rows import begin_anew, channels_of, data_of, sort_rows
from s4node.net.wire import frame as wire
from s4node.offsets.checkpoint import JobGuard, Producer, SavedProducer, row_of
from s4node.offsets.startpoint_fan_out import Requests, later
from s4node.offsets.task_claims import TaskClaims, now_ms
from s4node.runtime.container import saved_sample
from s4node.runtime.inputs.job_model import TaskModel
from s4node.runtime.outputs.channels import (
    NOTHING_SENT,
    channel_name,
    parts_of,
    sent_before,
    sent_by,
    to_consumers,
)
from s4node.runtime.outputs.outlet_rows import begin_lives, records_of
from s4node.savepoints.manifest import Facts, Manifest, Restoring
from s4node.savepoints.place import opened_task
from s4node.savepoints.shipped import savepoints_of
from s4node.state.checkpoint_policy import CheckpointRetention, Policy
from s4node.state.job import (
    CUT,
    DONE,
    ENDED,
    SENT,
    WRITTEN,
    identity_of,
    known_job,
    named_folder,
    saved_state,
    taken_over,
    task_folder,
)
from s4node.state.remote_job import RemoteJob
from s4node.state.rows import OUTBOX, OUTLET, PRODUCERS, task_row
from s4node.state.task_state import TaskState

_BY_NUMBER = settings.GROUPER.default
"""The grouper with which the number of tasks is that of partitions, or of an input's."""

_UNKNOWN = "?"
"""Stands for a life of which nothing is known here."""


@dataclass(frozen=True)
class Since:
    """The events that a job has sent and acknowledged since a savepoint.

    ``outputs`` counts events by stream and consumer, ``producers`` by stream and producer.
    ``known`` is False if no later state of the job is here.
    """

    outputs: Mapping[tuple[str, str], int]
    producers: Mapping[Producer, int]
    known: bool = True


@dataclass(frozen=True)
class SavepointRestore:
    """Restores the job of ``app`` in ``folder`` from a savepoint, while nothing of it runs.

    Its state is shipped to ``remote_job`` if given. The savepoint has the ``manifest``, and its
    files are in ``saved``.
    """

    app: str
    folder: Path
    config: Config
    remote_job: RemoteJob | None
    manifest: Manifest
    saved: Path

    def since(self) -> Since:
        outputs: Counter[tuple[str, str]] = Counter()
        producers: Counter[Producer] = Counter()
        newest = self._newest()
        for task, after in newest.items():
            if after is not None:
                with opened_task(self.saved, task) as saved:
                    before = Facts({}, []) if saved is None else _facts_of(saved)
                    channels = to_consumers(() if saved is None else saved.rows(OUTBOX))
                for name, now in after.sent.items():
                    then = before.sent.get(name, NOTHING_SENT)
                    if now != then:
                        frames = sort_rows(name, channels.get(name, ())).frames.values()
                        waiting = sum(each.end - each.first for each in chain(*frames))
                        outputs[parts_of(name)] += max(0, now[1] - then[1] + waiting)
                producers.update(_acknowledged_since(before, after, self._own))
        return Since(+outputs, +producers, None not in newest.values())

    def check_agreed(
        self, since: Since, *, outputs_again: bool, accept_loss: bool, report: Callable[[str], None]
    ) -> None:
        """Report what has happened since the savepoint.

        Raises CheckpointError if going back needs more options than these.
        """
        if self._anew:
            report(f"the state of {self.app} is lost: {len(self.manifest.tasks)} tasks")
        if not since.known:
            report(
                f"s4: no later state of {self.app} is here; if it has run elsewhere since, what "
                f"others have received from it or sent to it is not counted"
            )
        for (stream, consumer), events in sorted(since.outputs.items()):
            report(f"{stream} to {consumer}: {events} events come again")
        for (stream, producer), events in sorted(since.producers.items()):
            who = repr(producer) if producer else "programs that have ended"
            report(
                f"{stream} from {who}: {events} events that were acknowledged since are lost, but "
                f"for what is sent again"
            )
        wanted = []
        if since.outputs and not outputs_again:
            wanted.append("--outputs again")
        if (since.producers or self._anew) and not accept_loss:
            wanted.append("--accept-loss")
        if not wanted:
            return
        if self._anew:
            raise CheckpointError(
                f"{self.app} would lose its state, and others have gone on with it; to begin anew "
                f"all the same add {' '.join(wanted)}"
            )
        raise CheckpointError(
            f"{self.app} has gone on since the savepoint {self.manifest.name!r}, and others with "
            f"it; to go back all the same add {' '.join(wanted)}"
        )

    @property
    def _anew(self) -> bool:
        """True if the job begins from empty state."""
        return not self.manifest.name

    @property
    def _own(self) -> str:
        """The prefix of the producer ids of the job's own tasks."""
        return f"{wire.TASK}{self.config[settings.CLUSTER_NAME]}/{self.app}/"

    def _newest(self) -> Mapping[str, Facts | None]:
        place = savepoints_of(self.folder, self.remote_job)
        mark = place.restoring()
        if mark is not None and mark.partitions:
            place.check_restored()
        newest = {} if mark is None else dict(mark.newest)
        for task in self.manifest.tasks:
            if task not in newest:
                with saved_state(self.folder, task, self.remote_job) as state:
                    newest[task] = None if state is None else _facts_of(state)
        return newest

    def restore(
        self,
        *,
        outputs_again: bool,
        accept_loss: bool,
        on_progress: Callable[[int, int], None] = lambda _, __: None,
    ) -> None:
        """Restore all tasks from the savepoint.

        With ``outputs_again`` consumers receive events since the savepoint again. With
        ``accept_loss`` producers may go on after events that are lost.
        """
        place, tasks = savepoints_of(self.folder, self.remote_job), self.manifest.tasks
        guard = JobGuard.from_row(self.manifest.job)
        with closing(TaskClaims(self.folder)) as store:
            store.admit(guard)
            if self.remote_job is not None:
                self.remote_job.admit(guard)
            newest = self._newest()
            place.begin_restore(Restoring(self.manifest.name, dict(newest)))
            passing("restore.begun")
            for done, task in enumerate(tasks):
                on_progress(done, len(tasks))
                passing("restore.task")
                facts = newest[task]
                self.restore_task(store, task, facts, again=outputs_again, accept_loss=accept_loss)
                passing("restore.written")
            if not self._anew:
                threads.run_trio(self._put_startpoints)
            passing("restore.done")
            place.end_restore()
            on_progress(len(tasks), len(tasks))

    def restore_task(
        self,
        store: TaskClaims,
        task: str,
        newest: Facts | None = None,
        *,
        again: bool = False,
        accept_loss: bool = False,
    ) -> None:
        """Restore a task; ``newest`` are its facts from before the restore."""
        saved, files = self.manifest.tasks[task], named_folder(self.saved, task)
        taking = taken_over(self.folder, store, task, self.remote_job, files, saved.fence)
        with taking as (claim, state):
            passing("restore.claimed")
            shipped = 0 if state.ship is None else state.ship.replaced()
            number = max(claim.commit, claim.acknowledged, saved.commit, shipped)
            state.last = (saved.fence, number, 0)  # so no commit that was acknowledged is missing
            state.owners = {claim.fence: state.owners[claim.fence]}  # the others are known there
            place = task_folder(self.folder, task)
            CheckpointRetention(place, claim.fence, Policy(0, 1, 0), state.ship).take_over(state)
            self._begin_lives(state, newest, again=again)
            if accept_loss:
                self._let_skip(state, newest)
            state.set_meta(DONE, 0)
            state.set_meta(CUT, self.manifest.number)
            now = now_ms()
            state.set_meta(WRITTEN, now)
            state.begin_commit({})
            store.renew(claim, now, number + 1)
            passing("restore.commit")
            state.write_commit()
            state.end_commit(written=True)

    def _begin_lives(self, state: TaskState, newest: Facts | None, *, again: bool) -> None:
        """Begin a new life of each channel on which events were sent since.

        If that is not known, with ``again`` all begin one.
        """
        begin_lives(state.changes, state.rows(OUTLET), tokens.later())
        then = sent_by(state)
        if newest is not None:
            now = newest.sent
        else:
            now = {name: (_UNKNOWN, sent) for name, (_, sent) in then.items()} if again else then
        sent = sent_before(state)
        for name, rows in to_consumers(state.rows(OUTBOX)).items():
            if now.get(name, NOTHING_SENT) != then[name]:
                begin_anew(state.changes, name, rows, tokens.later())
        state.set_meta(
            SENT, sent | {name: each for name, each in now.items() if each != then.get(name)}
        )

    def _let_skip(self, state: TaskState, newest: Facts | None) -> None:
        """Let all producers go on at any number, including those new since the savepoint."""
        rows = state.producers()
        acknowledged = () if newest is None else newest.acknowledged
        began = {(stream, who): SavedProducer(0) for stream, who, _ in acknowledged if who}
        for producer, row in {**began, **rows}.items():
            if not producer[1].startswith(self._own):
                anywhere = msgspec.structs.replace(row, skips=wire.MAX_NUMBER)
                place = task_row(PRODUCERS, row_of(producer))
                state.changes.put(place, msgspec.msgpack.encode(anywhere))

    async def _put_startpoints(self) -> None:
        store = StartpointStore(self.folder, self.config)
        saved = self.manifest.startpoints
        if store.exists or saved != Requests():
            age = int(clocks.wall() * 1000) - self.manifest.created_ms
            state = identity_of(self.folder, self.remote_job)
            await store.change(state, lambda _: (later(saved, age), None))


def check_layout(app: str, folder: Path, remote_job: RemoteJob | None, manifest: Manifest) -> None:
    """Raise CheckpointError if the job has got other partitions since the savepoint."""
    now, then = known_job(folder, remote_job)[0], JobGuard.from_row(manifest.job)
    if now is None or (now.layout or 0) == (then.layout or 0):
        return
    name = manifest.name
    raise CheckpointError(
        f"the savepoint {name!r} is from before {app} was repartitioned: {app} had {then.tasks} "
        f"partitions and has {now.tasks}, and the numbers of its producers are others now. To go "
        f"on from it, use another folder of state: s4 savepoint export {app} {name} {name}.tar; "
        f"with -p {settings.STATE_FOLDER.name}=FOLDER (and no {settings.STATE_URL.name}) s4 "
        f"savepoints import {app}.py {name}.tar, and s4 run {app}.py --partitions {then.tasks} "
        f"--from {name}"
    )


async def check_readable(app: App | None, config: Config, manifest: Manifest, saved: Path) -> None:
    """Check that ``app`` with these settings can go on from the savepoint in ``saved``.

    Raises CheckpointError or StateError. Without an app only the settings are checked.
    """
    guard = JobGuard.from_row(manifest.job)
    asked = config[settings.CLUSTER_PARTITIONS]
    by_inputs = asked < guard.tasks in guard.counts.values() or guard.grouper != _BY_NUMBER
    if config.origin(settings.CLUSTER_PARTITIONS) == "default" or by_inputs:
        asked = guard.tasks
    wanted = replace(guard, hasher=config[settings.HASHER], tasks=asked)
    fix = "Or go on from another savepoint."
    wanted.check(guard, f"the savepoint {manifest.name!r}", fix)
    await threads.run_sync(check_senders, config[settings.CLUSTER_NAME], manifest, saved)
    if app is not None:
        tasks = [TaskModel(index, name) for index, name in enumerate(manifest.tasks)]
        hasher = hasher_named(guard.hasher)
        opened = partial(opened_task, saved)
        await saved_sample.check(app, opened, tasks, hasher, savepoint=manifest.name)


def check_senders(cluster: str, manifest: Manifest, saved: Path) -> None:
    """Raise CheckpointError if it has unacknowledged events of tasks of another cluster."""
    for task in manifest.tasks:
        with opened_task(saved, task) as state:
            rows = {} if state is None else channels_of(state.rows(OUTBOX))
        for channel, found in rows.items():
            for each in chain.from_iterable(sort_rows(channel, found).frames.values()):
                sender = data_of(each.data)[0].producer.removeprefix(wire.TASK).partition("/")[0]
                if sender != cluster:
                    raise CheckpointError(
                        f"the savepoint {manifest.name!r} has unacknowledged events that tasks of "
                        f"the cluster {sender!r} have sent, so it cannot be used in {cluster!r}; "
                        f"set {settings.CLUSTER_NAME.name} = {sender}, or use a savepoint that was "
                        f"taken after the app had stopped in order"
                    )


def _facts_of(state: TaskState) -> Facts:
    """The facts of a task's last commit.

    A stream's number without a producer is for producers that have ended.
    """
    acknowledged = [(*producer, row.number) for producer, row in state.producers().items()]
    ended = {stream for stream, _, _ in acknowledged} | state.facts(ENDED)
    acknowledged += [(each, "", state.meta(ENDED + each) or 0) for each in ended]
    written = {
        channel_name("output", system): each
        for system, each in records_of(state.rows(OUTLET)).items()
    }
    return Facts(sent_by(state) | written, acknowledged)


def _acknowledged_since(before: Facts, after: Facts, own: str) -> Counter[Producer]:
    """The events acknowledged since, by producer; ``""`` stands for those that have ended.

    Producers that begin with ``own`` are tasks of the job, and left out.
    """
    known = {(stream, who): number for stream, who, number in before.acknowledged}
    newest = {(stream, who): number for stream, who, number in after.acknowledged}
    found: Counter[Producer] = Counter()
    for producer, number in newest.items():
        if not producer[1].startswith(own):
            found[producer] += max(0, number - known.get(producer, 0))
    for gone in known.keys() - newest.keys():  # it has ended since, with that much from before
        if not gone[1].startswith(own):
            found[gone[0], ""] -= known[gone]
    return found
