"""``s4 savepoint``: takes a savepoint of an app's job, whether that runs or not.

Rules
- An app that runs goes on while its savepoint is taken. What cannot be taken leaves nothing behind.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import trio

from s4node.cli.arguments import seconds
from s4node.cli.job import Job, app_argument, find_job, job_options
from s4node.cli.output import tell, tell_progress
from s4node.config.config import Config
from s4node.deploy.savepoint import TIMEOUT, SavepointOf
from s4node.deploy.savepoint_restore import SavepointRestore, check_layout, check_readable
from s4node.offsets.job_lock import stopped
from s4node.savepoints.folders import told
from s4node.savepoints.manifest import Manifest
from s4node.savepoints.place import SavepointPlace


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
    job = find_job(target, config, shipped=True)
    guard = job.guard_of_state()
    name = name or f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}"
    progress = partial(tell_progress, "taking a savepoint")
    of = SavepointOf(job.name, job.folder, job.config, guard, job.tasks, job.depot, progress)
    if job.running:
        manifest = trio.run(of.take, name, "", timeout)
    else:
        with stopped(job.folder):
            manifest = job.while_stopped(lambda _: of.take_stopped(name))
    show(manifest, of.place, as_json=as_json)
    return 0


def go_back(target: str, config: Config, name: str, *, outputs: str, accept_loss: bool) -> None:
    """Have a stopped app go on from a savepoint; raises CheckpointError if that needs more than was
    asked for."""
    job = find_job(target, config, shipped=True)
    place = job.savepoints
    manifest = place.manifest_of(name)
    manifest.check_app(job.name)
    check_layout(job.name, job.folder, job.depot, manifest)
    with told(job.folder), stopped(job.folder), place.opened(manifest) as saved:
        trio.run(check_readable, job.app, config, manifest, saved)
        replace_state(job, manifest, saved, again=bool(outputs), accept_loss=accept_loss)
    tell(f"{job.name} goes on from the savepoint {name}")


def replace_state(
    job: Job, manifest: Manifest, saved: Path, *, again: bool, accept_loss: bool
) -> None:
    """Replace the state of a stopped job; raises CheckpointError if that needs more than was asked
    for."""
    restore = SavepointRestore(job.name, job.folder, job.config, job.depot, manifest, saved)

    def work(_: str) -> None:
        since = restore.since()
        restore.check_agreed(since, outputs_again=again, accept_loss=accept_loss, tell=tell)
        progress = partial(tell_progress, "restoring")
        restore.restore(outputs_again=again, accept_loss=accept_loss, tell=progress)

    job.while_stopped(work)


def show(manifest: Manifest, place: SavepointPlace, *, as_json: bool) -> None:
    """Print what a savepoint is."""
    if as_json:
        print(json.dumps(row_at(place, manifest)))
        return
    held = f"; fast streams were held for {manifest.held_ms / 1000:g} s" * bool(manifest.held_ms)
    print(
        f"savepoint {manifest.name} of {manifest.app}: {len(manifest.tasks)} tasks, "
        f"{size_of(manifest, place)}{held}"
    )


def size_of(manifest: Manifest, place: SavepointPlace) -> str:
    """The size of a savepoint, in words."""
    own = place.own_bytes(manifest)
    return f"{manifest.bytes / 1e6:.1f} MB, of which it alone has {own / 1e6:.1f}"


def row_at(place: SavepointPlace, manifest: Manifest) -> dict[str, object]:
    """A savepoint at a place, as JSON shows it."""
    return {**as_row(manifest), "own_bytes": place.own_bytes(manifest)}


def as_row(manifest: Manifest) -> dict[str, object]:
    """A savepoint as JSON shows it."""
    return {
        "name": manifest.name,
        "app": manifest.app,
        "number": manifest.number,
        "created_ms": manifest.created_ms,
        "bytes": manifest.bytes,
        "why": manifest.why,
        "held_ms": manifest.held_ms,
        "startpoints": manifest.startpoints.count,
        "tasks": {
            task: {"commit": each.commit, "bytes": sum(file.size for file in each.files.values())}
            for task, each in manifest.tasks.items()
        },
    }
