"""``s4 savepoint``: the savepoints of an app's job, whether that runs or not.

Rules
- An app that runs goes on while its savepoint is taken. What cannot be taken leaves nothing behind.
- An export is one file: the manifest and all files of a savepoint, as a tar archive.
- An import is checked whole before its name is there. Nothing is written outside its folder.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import trio

from s4node.cli.arguments import command, group, seconds, whole
from s4node.cli.job import Job, app_argument, find_job, job_options
from s4node.cli.output import give, moment, report, report_progress
from s4node.config.config import Config
from s4node.deploy.savepoint import TIMEOUT, SavepointOf
from s4node.deploy.savepoint_restore import SavepointRestore, check_layout, check_readable
from s4node.errors import ConfigError
from s4node.offsets.job_lock import stopped
from s4node.runtime.event_time.state_use import owner_of, unused_in
from s4node.savepoints import archive
from s4node.savepoints.folders import translate_errors
from s4node.savepoints.manifest import Manifest
from s4node.savepoints.place import SavepointPlace, opened_task


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = group(parser)
    taken = command(
        actions,
        "take",
        take,
        "take a savepoint: a name for the state of an app as it is now",
        "s4 savepoint take clicks --name before-the-upgrade",
    )
    listed = command(
        actions, "list", list_, "list the savepoints of an app", "s4 savepoint list clicks"
    )
    shown = command(
        actions,
        "show",
        show,
        "show what is in a savepoint, and check its files",
        "s4 savepoint show clicks before-the-upgrade",
    )
    removed = command(
        actions,
        "remove",
        remove,
        "remove savepoints by name, or all that are too old or too many",
        "s4 savepoint remove clicks --keep 10 --older-than 604800",
    )
    exported = command(
        actions,
        "export",
        export,
        "write a savepoint into one file",
        "s4 savepoint export clicks before-the-upgrade clicks.tar",
    )
    imported = command(
        actions,
        "import",
        import_,
        "add a savepoint that was exported, here or on another machine",
        "s4 savepoint import clicks clicks.tar",
    )
    for action in (taken, listed, shown, removed, exported, imported):
        app_argument(action)
    for action in (shown, exported):
        action.add_argument("name", metavar="NAME", help="the savepoint's name")
    taken.add_argument(
        "--name", metavar="NAME", default="", help="its name (default: date and time, UTC)"
    )
    taken.add_argument(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        default=TIMEOUT,
        help="the longest time for all tasks to save their state (default: %(default)g)",
    )
    removed.add_argument("names", metavar="NAME", nargs="*", help="savepoints to remove")
    least = "remove all but the newest COUNT"
    removed.add_argument("--keep", type=whole, metavar="COUNT", help=least)
    age = "remove savepoints older than this, except the newest"
    removed.add_argument("--older-than", type=seconds, metavar="SECONDS", help=age)
    exported.add_argument("file", metavar="FILE", help="the file to write; it must not exist")
    imported.add_argument("file", metavar="FILE", help="a file that export has written")
    imported.add_argument(
        "--name", metavar="NAME", default="", help="its name here (default: the name that it had)"
    )
    for action in (taken, listed, shown, removed, exported, imported):
        job_options(action)


def take(target: str, config: Config, *, name: str, timeout: float, as_json: bool) -> int:
    job = find_job(target, config, shipped=True)
    guard = job.guard_of_state()
    name = name or f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}"
    progress = partial(report_progress, "taking a savepoint")
    of = SavepointOf(job.name, job.folder, job.config, guard, job.tasks, job.remote_job, progress)
    if job.running:
        manifest = trio.run(of.take, name, "", timeout)
    else:
        with stopped(job.folder):
            manifest = job.while_stopped(lambda _: of.take_stopped(name))
    _print_taken(manifest, of.place, as_json=as_json)
    return 0


def go_back(target: str, config: Config, name: str, *, outputs: str, accept_loss: bool) -> None:
    """Have a stopped app go on from a savepoint; raises CheckpointError if that needs more than was
    asked for."""
    job = find_job(target, config, shipped=True)
    place = job.savepoints
    manifest = place.manifest_of(name)
    manifest.check_app(job.name)
    check_layout(job.name, job.folder, job.remote_job, manifest)
    with translate_errors(job.folder), stopped(job.folder), place.opened(manifest) as saved:
        trio.run(check_readable, job.app, config, manifest, saved)
        replace_state(job, manifest, saved, again=bool(outputs), accept_loss=accept_loss)
    report(f"{job.name} goes on from the savepoint {name}")


def replace_state(
    job: Job, manifest: Manifest, saved: Path, *, again: bool, accept_loss: bool
) -> None:
    """Replace the state of a stopped job; raises CheckpointError if that needs more than was asked
    for."""
    restore = SavepointRestore(job.name, job.folder, job.config, job.remote_job, manifest, saved)

    def work(_: str) -> None:
        since = restore.since()
        restore.check_agreed(since, outputs_again=again, accept_loss=accept_loss, report=report)
        progress = partial(report_progress, "restoring")
        restore.restore(outputs_again=again, accept_loss=accept_loss, on_progress=progress)

    job.while_stopped(work)


def list_(target: str, config: Config, *, as_json: bool) -> int:
    """Print the savepoints; returns the exit status, 1 if one is damaged."""
    job = find_job(target, config, shipped=True)
    place = job.savepoints
    found, damaged = place.look()
    if as_json:
        print(json.dumps([_row(each, place) for each in found]))
    else:
        if not found and not damaged:
            report(f"{job.name} has no savepoints; s4 savepoint take {job.name} takes one")
        for each in found:
            why = f", {each.why}" if each.why else ""
            print(f"{each.name}: {moment(each.created_ms)}, {_size_of(each, place)}{why}")
    for reason in damaged.values():
        report(f"s4: {reason}")
    return 1 if damaged else 0


def show(target: str, config: Config, *, name: str, as_json: bool) -> int:
    """Check a savepoint, and print what is in it; returns the exit status."""
    job = find_job(target, config, shipped=True)
    place = job.savepoints
    manifest = place.manifest_of(name)
    used: set[str] = set()
    unused: set[str] = set()
    with place.opened(manifest) as folder:  # all files are checked
        for each in manifest.tasks:
            with opened_task(folder, each) as state:
                if state is not None:
                    unused.update(left := unused_in(state))
                    used.update(state.tables.keys() - left)
    named = {"used": sorted(set(map(owner_of, used))), "unused": sorted(set(map(owner_of, unused)))}
    if as_json:
        print(json.dumps({**_row(manifest, place), **named}))
        return 0
    print(f"{manifest.name} of {manifest.app}: {moment(manifest.created_ms)}, by s4node "
          f"{manifest.version}, {_size_of(manifest, place)}; all files are whole")  # fmt: skip
    for task, saved in manifest.tasks.items():
        size = sum(file.size for file in saved.files.values())
        print(f"  {task}: commit {saved.commit}, {size / 1e6:.1f} MB")
    for title, names in named.items():
        if names:
            print(f"  {title}: {', '.join(names)}")
    if waiting := manifest.startpoints.count:
        print(f"  {waiting} startpoints wait for the next start")
    return 0


def remove(
    target: str,
    config: Config,
    *,
    names: list[str],
    keep: int | None,
    older_than: float | None,
    as_json: bool,
) -> int:
    job = find_job(target, config, shipped=True)
    if not names and keep is None and older_than is None:
        raise ConfigError("name the savepoints to remove, or give --keep or --older-than")
    place = job.savepoints
    for name in names:
        place.check_exists(name)
    found, _ = place.look()
    now = datetime.now(UTC).timestamp()
    doomed = set(names)
    if keep is not None:
        doomed |= {each.name for each in found[: max(0, len(found) - keep)]}
    if older_than is not None:
        doomed |= {each.name for each in found[:-1] if now - each.created_ms / 1000 > older_than}
    mark = place.restoring()
    if mark is not None and mark.name in doomed:  # its restore was cut short, and needs it
        place.check_restored()
    for name in sorted(doomed):
        place.remove(name)
    give(
        {"removed": sorted(doomed)},
        f"removed: {', '.join(sorted(doomed)) or 'none'}",
        as_json=as_json,
    )
    return 0


def export(target: str, config: Config, *, name: str, file: str, as_json: bool) -> int:
    job = find_job(target, config, shipped=True)
    place = job.savepoints
    manifest = place.manifest_of(name)
    with place.opened(manifest) as folder:
        size = archive.write(folder, manifest, Path(file))
    give(
        {"file": file, "bytes": size},
        f"{file}: savepoint {name} of {job.name}, {size / 1e6:.1f} MB",
        as_json=as_json,
    )
    return 0


def import_(target: str, config: Config, *, file: str, name: str, as_json: bool) -> int:
    job = find_job(target, config, shipped=True)
    place = job.savepoints
    manifest = archive.read(place, job.name, Path(file), name)
    give(
        _row(manifest, place),
        f"savepoint {manifest.name} of {job.name} is here; s4 run ... --from {manifest.name} "
        f"goes on from it",
        as_json=as_json,
    )
    return 0


def _print_taken(manifest: Manifest, place: SavepointPlace, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_row(manifest, place)))
        return
    held = f"; fast streams were held for {manifest.held_ms / 1000:g} s" * bool(manifest.held_ms)
    print(
        f"savepoint {manifest.name} of {manifest.app}: {len(manifest.tasks)} tasks, "
        f"{_size_of(manifest, place)}{held}"
    )


def _size_of(manifest: Manifest, place: SavepointPlace) -> str:
    own = place.own_bytes(manifest)
    return f"{manifest.bytes / 1e6:.1f} MB, of which it alone has {own / 1e6:.1f}"


def _row(manifest: Manifest, place: SavepointPlace) -> dict[str, object]:
    return {**row_of(manifest), "own_bytes": place.own_bytes(manifest)}


def row_of(manifest: Manifest) -> dict[str, object]:
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
