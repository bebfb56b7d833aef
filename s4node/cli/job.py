"""The job of a command: the state of an app on this machine, whether the app runs or not.

Rules
- A job is named by its app: by the app's name once it has run here, or as for ``s4 run``.
- Its inputs and tasks are known from its last start, or from the app itself.
- A damaged task hides no other task: the others are shown, and then the damage is reported.
- With the URL to which state is shipped, a command shows what the next owner would find. Without
  the URL, a message says that there may be newer state. Commands that show state change nothing.
- Of a cluster whose nodes find each other through ZooKeeper, that knows the URL.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import trio

from s4node import threads
from s4node.app.app import App
from s4node.cli.arguments import cluster_option, folder_option, json_option, setting_options
from s4node.cli.output import report
from s4node.cli.running_apps import config_of, coordinations_of, runs_here
from s4node.cluster.coordination.entries import AppId
from s4node.cluster.coordination.job_presence import JobPresence
from s4node.cluster.coordination.more_sessions import in_sessions
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.coordination.startpoint_store import StartpointStore
from s4node.cluster.tree.coordinations import coordination_at, is_zookeeper, place_of
from s4node.config import settings
from s4node.config.config import Config
from s4node.config.kinds import is_name
from s4node.config.paths import is_file, is_folder, looking
from s4node.deploy.answers import no_node_in, registry_of
from s4node.deploy.load_app import load_app
from s4node.errors import CheckpointError, ConfigError, JobRuns, StoreCorrupt, UnknownStream
from s4node.events.event import LIVE
from s4node.offsets.checkpoint import Checkpoint, JobGuard
from s4node.offsets.job_lock import gate, runs
from s4node.offsets.startpoint_fan_out import Place, Requests
from s4node.offsets.task_claims import FILE
from s4node.runtime.container.hooks import declare
from s4node.runtime.inputs.binding import replayable
from s4node.savepoints.place import SavepointPlace
from s4node.savepoints.shipped import savepoints_of
from s4node.state.job import Progress, folder_of, identity_of, known_job, safe_name, saved_state
from s4node.state.remote_job import RemoteJob, remote_job_of
from s4node.state.task_state import TaskState

R = TypeVar("R")

_COORDINATION = settings.COORDINATION_FOLDER.name

_PLACE = re.compile(r"(?P<name>[^\[\]]+)(\[0*(?P<partition>[0-9]{1,9})(?P<closed>\]?))?", re.ASCII)

FIX = "fix its permissions, or name another folder with -p s4.state.folder=FOLDER"


def app_argument(parser: argparse.ArgumentParser) -> None:
    text = "name of an app that has run here; or FILE.py or package.module, as for s4 run"
    parser.add_argument("target", metavar="APP", help=text)


def task_option(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--task", metavar="NAME", default="", help=text)


def job_options(parser: argparse.ArgumentParser, *, as_json: bool = True) -> None:
    if as_json:
        json_option(parser)
    cluster_option(parser)
    folder_option(parser)
    setting_options(parser, setting="one setting, such as s4.state.folder")


class Where(NamedTuple):
    """A partition of an input; without a number, all partitions of the stream."""

    system: str
    stream: str
    partition: int | None

    def has(self, place: Place) -> bool:
        return (self.system, self.stream) == place[:2] and self.partition in (None, place[2])

    def __str__(self) -> str:
        name = f"{self.system}.{self.stream}"
        return name if self.partition is None else f"{name}[{self.partition}]"


@dataclass(frozen=True)
class Job:
    """The facts about a job.

    ``config`` has the settings of the app if it runs. ``guard`` and ``tasks`` are from its last
    start. ``read`` are the inputs of its program as ``system.stream``; empty if unknown.
    ``remote_job`` is where its state is shipped, if that is read as well. ``app`` is its program,
    if that was loaded to find it.
    """

    name: str
    folder: Path
    config: Config
    guard: JobGuard | None
    tasks: Sequence[str]
    read: Sequence[str] = ()
    remote_job: RemoteJob | None = None
    app: App | None = None
    _looks: dict[str, Progress | StoreCorrupt] = field(default_factory=dict)

    @contextmanager
    def kept(self, task: str) -> Iterator[TaskState | None]:
        """A task's state, read-only; raises StoreCorrupt if it is damaged."""
        with looking(self.folder, FIX), saved_state(self.folder, task, self.remote_job) as state:
            yield state

    def progress(self, tasks: Collection[str]) -> tuple[dict[str, Progress], dict[str, str]]:
        """The progress of these tasks, and the reasons for those that are damaged."""
        for task in tasks:
            if task not in self._looks:
                try:
                    with self.kept(task) as state:
                        self._looks[task] = (
                            Progress() if state is None else Progress.from_state(state)
                        )
                except StoreCorrupt as error:
                    self._looks[task] = error
        looks = {task: self._looks[task] for task in tasks}
        return (
            {task: one for task, one in looks.items() if isinstance(one, Progress)},
            {task: str(one) for task, one in looks.items() if isinstance(one, StoreCorrupt)},
        )

    @property
    def savepoints(self) -> SavepointPlace:
        return savepoints_of(self.folder, self.remote_job)

    def guard_of_state(self) -> JobGuard:
        """The facts about the job; raises CheckpointError if it has no state."""
        if self.guard is None or not self.tasks:
            raise CheckpointError(
                f"{self.name} keeps nothing in {self.folder}; it has not run yet. Where it begins "
                f"to read is set by startpoints: s4 startpoint set"
            )
        return self.guard

    @cached_property
    def checkpoints(self) -> Mapping[str, Checkpoint]:
        return {task: one.checkpoint for task, one in self.progress(self.tasks)[0].items()}

    @property
    def damaged(self) -> Mapping[str, str]:
        return self.progress(self.tasks)[1]

    @cached_property
    def inputs(self) -> Mapping[str, int | None]:
        """The number of partitions by ``system.stream``; None if unknown."""
        counts = {} if self.guard is None else self.guard.counts
        seen = {f"{at[0]}.{at[1]}" for one in self.checkpoints.values() for at in one.offsets}
        return {each: counts.get(each) for each in self.read or sorted({*counts, *seen})}

    @property
    def running(self) -> bool:
        """Return True if a container of the job runs, here or on another node."""
        if runs(self.folder):
            return True
        try:
            self.while_stopped(lambda _: None)
        except JobRuns:
            return True
        return False

    def while_stopped(self, work: Callable[[str], R]) -> R:
        """The result of ``work``, called while no container of the job runs, with the identity of
        the job's state.

        The identity is empty if no coordination knows it. Raises JobRuns if a container runs, on a
        node of the coordination or below ``s4 run --nodes`` on this machine.
        """
        fix = f"fix its permissions, or set {_COORDINATION} to another folder"
        place = place_of(self.config)
        places = coordinations_of(self.name, self.config)
        if is_zookeeper(place) or is_folder(Path(place), fix):
            places.add(place)
        app = AppId(self.config[settings.CLUSTER_NAME], self.name)

        @asynccontextmanager
        async def gates() -> AsyncIterator[str]:
            known = ""
            async with AsyncExitStack() as held:
                for each in sorted(places):
                    coordination = coordination_at(each, self.config)
                    name = f"s4 for {self.name}"
                    session = await held.enter_async_context(coordination.session(name))
                    presence = JobPresence(Registry(session), app)
                    state = await held.enter_async_context(presence.stopped())
                    if each == place:
                        known = state
                yield known

        def work_of(known: str) -> Awaitable[R]:
            return threads.run_sync(work, known)

        return trio.run(in_sessions, gates, work_of, f"command for {self.name!r}", report)

    @cached_property
    def _startpoints(self) -> StartpointStore:
        return StartpointStore(self.folder, self.config)

    def startpoints(self) -> Requests:
        state = (
            identity_of(self.folder, self.remote_job, new=False) if self._startpoints.exists else ""
        )
        return trio.run(self._startpoints.requests, state) if state else Requests()

    def change_startpoints(self, change: Callable[[Requests], tuple[Requests, R]]) -> R:
        """Replace the startpoints by the first result of ``change``; returns the second one."""
        app = AppId(self.config[settings.CLUSTER_NAME], self.name)
        identify = partial(identity_of, self.folder, self.remote_job)
        with gate(self.folder):
            state = trio.run(self._startpoints.named, app, identify)
        return trio.run(self._startpoints.change, state, change)

    def places(self, where: Where) -> list[Place]:
        """The partitions that ``where`` names; raises UnknownStream if the job does not read
        them."""
        name = f"{where.system}.{where.stream}"
        if where.system == LIVE:
            raise UnknownStream(f"{where} is fed over live sockets, which cannot be read again")
        if name not in self.inputs:
            raise UnknownStream(
                f"app {self.name!r} does not read {name}; it reads: "
                f"{', '.join(self.inputs) or 'no replayable input'}. If a new version of the app "
                f"reads it, name the app as for s4 run, with its settings"
            )
        count = self.inputs[name]
        if where.partition is not None:
            if count is not None and where.partition >= count:
                raise UnknownStream(
                    f"{name} has partitions 0 to {count - 1}, not {where.partition}"
                )
            return [(where.system, where.stream, where.partition)]
        if count is None:
            raise UnknownStream(
                f"the number of partitions of {name} is unknown until {self.name} has run; name "
                f"each, such as '{name}[0]'"
            )
        return [(where.system, where.stream, number) for number in range(count)]

    def check_task(self, task: str) -> None:
        """Raise ConfigError for a task that the job is known not to have."""
        if task and self.tasks and task not in self.tasks:
            raise ConfigError(
                f"app {self.name!r} has no task {task!r}; it has: {', '.join(self.tasks)}"
            )

    def places_of(self, task: str, places: list[Place]) -> list[Place]:
        """The ``places`` that a task reads or may read; an empty task means any.

        A task may read a place that is in no checkpoint, and any place if it has no checkpoint.
        Raises ConfigError if there are none."""
        self.check_task(task)
        read = [place for place in places if not self.reader_of(place, task)]
        if not read:
            place = places[0]
            raise ConfigError(
                f"task {task!r} of app {self.name!r} does not read {Where(*place)}, "
                f"{self.reader_of(place, task)!r} does; name that task, or leave --task out"
            )
        return read

    def reader_of(self, place: Place, task: str) -> str:
        """The task that reads a place instead of ``task``; empty if ``task`` may read it."""
        offsets = self.checkpoints[task].offsets if task in self.checkpoints else {}
        return "" if not offsets or place in offsets else self._readers.get(place, "")

    @cached_property
    def _readers(self) -> Mapping[Place, str]:
        return {place: name for name, one in self.checkpoints.items() for place in one.offsets}


def of_task(task: str, why: object) -> str:
    """The message about a task's state."""
    return f"task {task!r}: {why}"


def report_damaged(damaged: Mapping[str, str]) -> int:
    """Print why tasks were not shown; returns the exit status."""
    for task, why in damaged.items():
        report(f"s4: {of_task(task, why)}")
    return 1 if damaged else 0


def report_older(job: Job, shipped: Iterable[str]) -> None:
    """Print that the state shipped to these URLs may be newer than what was shown."""
    if job.remote_job is not None:
        return
    for url in sorted({*shipped} - {""}):
        setting = url.removesuffix(f"/{job.folder.parent.name}/{job.folder.name}")
        report(
            f"s4: the state of {job.name} is shipped to {url}; this is the state in {job.folder}, "
            f"which may be older. -p {settings.STATE_URL.name}={setting} shows the shipped state"
        )


def find_job(target: str, config: Config, *, shipped: bool = False) -> Job:
    """Find the job that ``target`` names; raises ConfigError, which lists the known ones. With
    ``shipped``, its state is also looked for at ``s4.state.url``. A running app adds its
    settings."""
    config = config_of(target, config)
    unknown = ""
    if shipped:
        config, unknown = _with_url(config)
    root, cluster = config[settings.STATE_FOLDER], config[settings.CLUSTER_NAME]
    home = folder_of(root, cluster, "x").parent
    with looking(home, FIX):
        known = {each.name for each in home.iterdir()} if is_folder(home, FIX) else set()
    places = str(home)
    if shipped and (remote_job := remote_job_of(config, home / safe_name(target))) is not None:
        known.update(remote_job.apps())
        places += f" or at {config[settings.STATE_URL]}"
    if is_name(target) and safe_name(target) in known:
        folder = home / safe_name(target)
        return _job(target, folder, config, (), remote_job_of(config, folder) if shipped else None)
    if runs_here(target, config):
        raise ConfigError(
            f"app {target!r} of cluster {cluster!r} runs without state, because its inputs are "
            f"live streams of the grade fast; s4.stream.NAME.grade = durable gives it state"
        )
    if not (target.endswith(".py") or ":" in target or "." in target):
        raise ConfigError(
            unknown
            or f"no app {target!r} of cluster {cluster!r} has state in {places}; apps with state: "
            f"{', '.join(sorted(known)) or 'none'}. Name an app that has not run yet as for s4 "
            f"run, such as {target}.py"
        )
    app = load_app(target)
    trio.run(partial(declare, app, config, config[settings.CLUSTER_PARTITIONS]))
    read = [f"{stream.system}.{stream.name}" for stream in replayable(app)]
    folder = folder_of(root, cluster, app.name)
    remote_job = remote_job_of(config, folder) if shipped else None
    return _job(app.name, folder, config, read, remote_job, app)


def _with_url(config: Config) -> tuple[Config, str]:
    """``config`` with the URL of its cluster, if ZooKeeper knows that and none is given; and the
    message if ZooKeeper does not know the cluster."""
    if config[settings.STATE_URL] or not config[settings.COORDINATION]:
        return config, ""

    async def url() -> tuple[str, str]:
        async with registry_of(config, "s4 for the state of an app") as registry:
            if info := await registry.cluster(config[settings.CLUSTER_NAME]):
                return info.url, ""
            return "", await no_node_in(registry, config)

    found, unknown = trio.run(url)
    return config.with_({settings.STATE_URL.name: found}), unknown


def _job(
    name: str,
    folder: Path,
    config: Config,
    read: Sequence[str],
    remote_job: RemoteJob | None,
    app: App | None = None,
) -> Job:
    with looking(folder, FIX):
        is_file(folder / FILE, FIX)  # raises if that cannot be known
        guard, tasks = known_job(folder, remote_job)
    return Job(name, folder, config, guard, tasks, read, remote_job, app)


def where_of(text: str, *, all_partitions: bool = False) -> Where:
    """Parse ``log.clicks[0]``, or ``log.clicks`` for all partitions; raises ConfigError."""
    match = _PLACE.fullmatch(text)
    system, _, stream = match["name"].partition(".") if match else ("", "", "")
    if match is None or not (is_name(system) and is_name(stream)):
        raise ConfigError(f"{text!r} is not a partition of an input; write it as 'log.clicks[0]'")
    if match["closed"] == "":
        raise ConfigError(f"{text!r} lacks its closing bracket; write it as '{text}]'")
    if all_partitions != (match["partition"] is None):
        raise ConfigError(
            f"{text!r} and --all-partitions exclude each other; write '{match['name']}'"
            if all_partitions
            else f"{text!r} is a whole stream; write '{text}[0]' for one partition, or add "
            f"--all-partitions"
        )
    return Where(system, stream, None if all_partitions else int(match["partition"]))
