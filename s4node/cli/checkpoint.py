"""``s4 checkpoint``: the progress of an app's tasks, whether it runs or not.

Rules
- An export can be imported while no container of the job runs. The whole file is checked before
  anything is written.
- Producers' numbers are shown but not exported: an import leaves those of the tasks unchanged.
- An import has to fit the job: offsets of a job with other tasks, keys or inputs are refused, and
  so is a partition that another task reads. An app of another name is accepted with a message.
- If the job's state is shipped, an import needs its URL. Without the URL, ``show`` and ``list`` say
  that this folder may be outdated.
- Damaged tasks are reported after the others; ``export`` refuses to leave a task out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from s4node.cli.arguments import command, group
from s4node.cli.job import (
    Job,
    Where,
    app_argument,
    find_job,
    job_options,
    task_option,
    tell_damaged,
    tell_older,
)
from s4node.cli.output import counted, give, moment, tell
from s4node.config.config import Config
from s4node.errors import CheckpointError, ConfigError
from s4node.events.schema import UNREADABLE
from s4node.offsets.checkpoint import Checkpoint, JobGuard
from s4node.offsets.job_lock import stopped
from s4node.offsets.startpoint import Number
from s4node.offsets.system import SystemStreamPartition
from s4node.offsets.task_claims import TaskClaims, now_ms
from s4node.state import epochs
from s4node.state.job import Progress, replace, task_folder

_FORMAT = 1


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = group(parser)
    listed = command(
        actions,
        "list",
        list_,
        "list the tasks that have a checkpoint",
        "s4 checkpoint list clicks",
    )
    app_argument(listed)
    shown = command(
        actions,
        "show",
        show,
        "show where each task resumes: offsets, and numbers of producers",
        "s4 checkpoint show clicks --task 'Partition 0'",
    )
    app_argument(shown)
    task_option(shown, "this one only")
    exported = command(
        actions,
        "export",
        export,
        "print all checkpoints as JSON",
        "s4 checkpoint export clicks > checkpoints.json",
    )
    app_argument(exported)
    imported = command(
        actions,
        "import",
        import_,
        "make tasks resume where a file says; the app must not run",
        "s4 checkpoint import clicks checkpoints.json",
    )
    app_argument(imported)
    imported.add_argument("file", metavar="FILE", help="the output of export; - is standard input")
    for action in (listed, shown, imported):
        job_options(action)
    job_options(exported, as_json=False)  # it always prints JSON


def list_(target: str, config: Config, *, as_json: bool) -> int:
    """Print the tasks that have a checkpoint; returns the exit status."""
    job = _with_checkpoints(target, config)
    kept = {
        task: epochs.saved_checkpoints(task_folder(job.folder, task)) for task in job.checkpoints
    }
    if as_json:
        rows = [
            {
                "task": task,
                "written_ms": one.written_ms,
                "inputs": len(one.offsets),
                "kept": [
                    {"name": each.name, "commit": each.commit, "kept_ms": each.kept_ms}
                    for each in kept[task]
                ],
            }
            for task, one in job.checkpoints.items()
        ]
        print(json.dumps(rows))
        return _told(job, *job.progress(job.tasks))
    for task, one in job.checkpoints.items():
        print(f"{task}: {counted(len(one.offsets), 'partition')}, {_when(one)}")
        for each in kept[task]:
            print(f"  kept {each.name}: commit {each.commit}, {moment(each.kept_ms)}")
    return _told(job, *job.progress(job.tasks))


def show(target: str, config: Config, *, task: str, as_json: bool) -> int:
    """Print each task's offsets and the numbers of its producers; returns the exit status."""
    job = _with_checkpoints(target, config)
    job.check_task(task)
    shown, damaged = job.progress([task] if task else job.tasks)
    if as_json:
        tasks = _tasks({name: one.checkpoint for name, one in shown.items()})
        for name, progress in shown.items():
            tasks[name]["producers"] = [
                {"stream": stream, "producer": producer, "number": kept.number}
                for (stream, producer), kept in sorted(progress.producers.items())
            ]
        print(json.dumps(tasks))
        return _told(job, shown, damaged)
    for name, (one, producers, _) in shown.items():
        print(f"{name}: {_when(one)}")
        for at, offset in sorted(one.offsets.items()):
            print(f"  {SystemStreamPartition(*at)}: {offset}")
        for (stream, producer), kept in sorted(producers.items()):
            print(f"  {stream} from {producer!r}: {kept.number}")
    return _told(job, shown, damaged)


def _told(job: Job, shown: Mapping[str, Progress], damaged: Mapping[str, str]) -> int:
    """Report damage and older state after the output; returns the exit status."""
    tell_older(job, [one.shipped for one in shown.values()])
    return tell_damaged(damaged)


def export(target: str, config: Config) -> int:
    """Print all checkpoints as JSON, for an import; returns the exit status."""
    job = _with_checkpoints(target, config)
    job.check_sound()
    guard = None if job.guard is None else job.guard.to_row()
    document = {
        "format": _FORMAT,
        "app": job.name,
        "job": guard,
        "tasks": _tasks(job.checkpoints),
    }
    print(json.dumps(document, indent=2))
    return _told(job, *job.progress(job.tasks))


def import_(target: str, file: str, config: Config, *, as_json: bool) -> int:
    """Write the checkpoints of ``file`` (- for standard input); returns the exit status."""
    job = find_job(target, config, shipped=True)
    job.check_sound()
    app, guard, checkpoints = _read(file)
    for task, one in checkpoints.items():
        job.check_task(task)
        for at in one.offsets:
            job.places(Where(*at))  # raises if the job does not read it
            if reader := job.reader_of(at, task):
                raise ConfigError(
                    f"{file} has {SystemStreamPartition(*at)} for task {task!r}, but {reader!r} "
                    f"reads it; name that task"
                )
    if job.depot is None:
        _check_unshipped(job, checkpoints)

    def write(state: str) -> None:
        job.check_state(state)
        with closing(TaskClaims(job.folder)) as store:
            if guard is not None:
                store.admit(guard)
                if job.depot is not None:
                    job.depot.admit(guard)
            replace(job.folder, store, checkpoints, job.depot)

    with stopped(job.folder):
        job.while_stopped(write)
    if app not in ("", job.name):  # it may have been renamed
        tell(f"s4: {file} was exported from app {app!r}; it goes to {job.name!r}")
    told = (
        f"{counted(len(checkpoints), 'task')} of {job.name} will resume where {file} says; "
        f"startpoints that are set come first"
    )
    give({"tasks": sorted(checkpoints)}, told, as_json=as_json)
    return 0


def _check_unshipped(job: Job, tasks: Collection[str]) -> None:
    for one in job.progress(tasks)[0].values():
        if url := one.shipped:
            raise ConfigError(
                f"the state of {job.name} is shipped to {url}; an import has to go there, too: "
                f"give the s4.state.url that the job runs with, with -p"
            )


def _with_checkpoints(target: str, config: Config) -> Job:
    job = find_job(target, config, shipped=True)
    if not job.tasks:
        places = f"{job.folder}" if job.depot is None else f"{job.folder} or at {job.depot.url}"
        raise CheckpointError(f"{job.name} has no checkpoints in {places}; it has not run yet")
    return job


def _tasks(checkpoints: Mapping[str, Checkpoint]) -> dict[str, Any]:
    return {
        task: {
            "written_ms": one.written_ms,
            "offsets": [
                {"system": system, "stream": stream, "partition": partition, "offset": offset}
                for (system, stream, partition), offset in sorted(one.offsets.items())
            ],
        }
        for task, one in checkpoints.items()
    }


class _Offset(msgspec.Struct):
    system: str
    stream: str
    partition: Number
    offset: Number


class _Task(msgspec.Struct):
    offsets: list[_Offset]


class _Document(msgspec.Struct):
    format: int
    tasks: dict[str, _Task]
    job: dict[str, Any] | None = None
    app: str = ""


def _read(file: str) -> tuple[str, JobGuard | None, dict[str, Checkpoint]]:
    """The app (or an empty name), the job and the checkpoints in a file."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        document = msgspec.json.decode(data, type=_Document)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except UNREADABLE as error:
        raise ConfigError(f"{file} is not what s4 checkpoint export prints: {error}") from error
    if document.format != _FORMAT:
        raise ConfigError(
            f"{file} has format {document.format}, and this s4node reads format {_FORMAT}; import "
            f"it with the s4node that exported it"
        )
    now = now_ms()
    found = {}
    for task, one in document.tasks.items():
        offsets = {(o.system, o.stream, o.partition): o.offset for o in one.offsets}
        wrong = [str(SystemStreamPartition(*at)) for at, n in offsets.items() if min(n, at[2]) < 0]
        if wrong:
            raise ConfigError(
                f"{file} has an offset or a partition below 0 for {wrong[0]} of task {task!r}; "
                f"give 0 or more"
            )
        if len(offsets) < len(one.offsets):
            seen = Counter((o.system, o.stream, o.partition) for o in one.offsets)
            twice = SystemStreamPartition(*seen.most_common(1)[0][0])
            raise ConfigError(f"{file} has {twice} twice for task {task!r}; remove one of them")
        found[task] = Checkpoint(offsets, now)
    guard = None if document.job is None else JobGuard.from_row(document.job)
    return document.app, guard, found


def _when(one: Checkpoint) -> str:
    if not one.written_ms:
        return "nothing written"
    return f"written {moment(one.written_ms)}"
