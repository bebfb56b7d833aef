"""``s4 savepoint``: takes a savepoint of an app's job, whether that runs or not.

Rules
- An app that runs goes on while its savepoint is taken. What cannot be taken leaves nothing behind.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime

import trio

from s4node.cli.arguments import seconds
from s4node.cli.job import Job, app_argument, find_job, job_options
from s4node.config import settings
from s4node.config.config import Config
from s4node.deploy.savepoint import TIMEOUT, SavepointOf
from s4node.deploy.savepoint_restore import SavepointRestore
from s4node.errors import CheckpointError, ConfigError
from s4node.offsets.job_lock import stopped
from s4node.savepoints.manifest import Manifest
from s4node.state.job import identity_of


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(function=take)
    app_argument(parser)
    parser.add_argument(
        "--name", metavar="NAME", default="", help="what to call it (default: date and time, UTC)"
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        default=TIMEOUT,
        help="give up if a task has made no cut by then (default: %(default)g)",
    )
    job_options(parser)


def take(target: str, config: Config, *, name: str, timeout: float, as_json: bool) -> int:
    """Take a savepoint; returns the exit status."""
    job = find_job(target, config)
    if job.guard is None or not job.tasks:
        raise CheckpointError(f"{job.name} keeps nothing in {job.folder}; it has not run yet")
    check_unshipped(job)
    name = name or f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}"
    of = SavepointOf(
        job.name,
        job.folder,
        job.config,
        job.guard,
        job.tasks,
        identity_of(job.folder, job.depot),
        _tell,
    )
    if job.running:
        manifest = trio.run(of.take, name, "", timeout)
    else:
        made: list[Manifest] = []
        with stopped(job.folder):
            job.while_stopped(lambda _: made.append(of.take_stopped(name)))
        manifest = made[0]
    show(manifest, as_json=as_json)
    return 0


def go_back(target: str, config: Config, name: str, *, outputs: str, accept_loss: bool) -> None:
    """Have a stopped app go on from a savepoint; raises CheckpointError if that needs more than was
    asked for."""
    job = find_job(target, config)
    check_unshipped(job)
    cluster = job.config[settings.CLUSTER_NAME]
    restore = SavepointRestore(job.folder, cluster, job.name, name)
    wanted = set()

    def work(_: str) -> None:
        since = restore.since()
        if not since.known:
            print(
                f"s4: the newer state of {job.name} is not here, so what others have received or "
                f"sent since could not be counted",
                file=sys.stderr,
            )
        for (stream, consumer), events in sorted(since.outputs.items()):
            print(f"{stream} to {consumer}: {events} events come again", file=sys.stderr)
        for (stream, producer), events in sorted(since.producers.items()):
            who = repr(producer) if producer else "programs that have ended"
            print(
                f"{stream} from {who}: {events} events that were acknowledged since are lost, but "
                f"for what is sent again",
                file=sys.stderr,
            )
        if since.outputs and not outputs:
            wanted.add("--outputs again")
        if since.producers and not accept_loss:
            wanted.add("--accept-loss")
        if wanted:
            raise CheckpointError(
                f"{job.name} has gone on since the savepoint {name!r}, and others with it; to go "
                f"back all the same add {' '.join(sorted(wanted, reverse=True))}"
            )
        restore.restore(outputs_again=bool(outputs), accept_loss=accept_loss, tell=_tell_restored)

    with stopped(job.folder):
        job.while_stopped(work)
    print(f"{job.name} goes on from the savepoint {name}", file=sys.stderr)


def _tell_restored(done: int, tasks: int) -> None:
    _tell_progress("going back to the savepoint", done, tasks)


def check_unshipped(job: Job) -> None:
    """Raise ConfigError where the job's state is shipped to a URL."""
    if job.config[settings.STATE_URL]:
        raise ConfigError(
            f"the state of {job.name} is shipped to {job.config[settings.STATE_URL]}, and "
            f"savepoints are taken of state in a folder only"
        )


def show(manifest: Manifest, *, as_json: bool) -> None:
    """Print what a savepoint is."""
    if as_json:
        print(json.dumps(as_row(manifest)))
        return
    print(f"savepoint {manifest.name} of {manifest.app}: {len(manifest.tasks)} tasks, "
          f"{manifest.bytes / 1e6:.1f} MB")  # fmt: skip


def as_row(manifest: Manifest) -> dict[str, object]:
    """A savepoint as JSON shows it."""
    return {
        "name": manifest.name,
        "app": manifest.app,
        "number": manifest.number,
        "created_ms": manifest.created_ms,
        "bytes": manifest.bytes,
        "why": manifest.why,
        "tasks": {
            task: {"commit": each.commit, "bytes": sum(file.size for file in each.files.values())}
            for task, each in manifest.tasks.items()
        },
    }


def _tell(made: int, tasks: int) -> None:
    _tell_progress("taking a savepoint", made, tasks)


def _tell_progress(what: str, done: int, tasks: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{what}: {done} of {tasks} tasks", end="", file=sys.stderr)
        if done == tasks:
            print(file=sys.stderr)
