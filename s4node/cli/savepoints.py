"""``s4 savepoints``: the savepoints of an app: list, show, remove, export and import them.

Rules
- An export is one file: the manifest and all files of a savepoint, as a tar archive.
- An import is checked whole before its name is there. Nothing is written outside its folder.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

from s4node.cli.arguments import command, group, seconds, whole
from s4node.cli.job import app_argument, find_job, job_options
from s4node.cli.output import give, moment, tell
from s4node.cli.savepoint import row_at, size_of
from s4node.config.config import Config
from s4node.errors import ConfigError
from s4node.runtime.event_time.state_use import owner_of, unused_in
from s4node.savepoints import archive
from s4node.savepoints.place import opened_task


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = group(parser)
    listed = command(
        actions, "list", list_, "list the savepoints of an app", "s4 savepoints list clicks"
    )
    shown = command(
        actions,
        "show",
        show,
        "show what is in a savepoint, and check its files",
        "s4 savepoints show clicks before-the-upgrade",
    )
    removed = command(
        actions,
        "remove",
        remove,
        "remove savepoints by name, or all that are too old or too many",
        "s4 savepoints remove clicks --keep 10 --older-than 604800",
    )
    exported = command(
        actions,
        "export",
        export,
        "write a savepoint into one file",
        "s4 savepoints export clicks before-the-upgrade clicks.tar",
    )
    imported = command(
        actions,
        "import",
        import_,
        "have a savepoint that was exported, here or on another machine",
        "s4 savepoints import clicks clicks.tar",
    )
    for action in (listed, shown, removed, exported, imported):
        app_argument(action)
    for action in (shown, exported):
        action.add_argument("name", metavar="NAME", help="the savepoint's name")
    removed.add_argument("names", metavar="NAME", nargs="*", help="savepoints to remove")
    least = "remove all but so many, the newest"
    removed.add_argument("--keep", type=whole, metavar="COUNT", help=least)
    age = "remove those that were taken longer ago; the newest stays"
    removed.add_argument("--older-than", type=seconds, metavar="SECONDS", help=age)
    exported.add_argument("file", metavar="FILE", help="what to write; it must not exist")
    imported.add_argument("file", metavar="FILE", help="what export has written")
    imported.add_argument(
        "--name", metavar="NAME", default="", help="call it so here (default: as it was)"
    )
    for action in (listed, shown, removed, exported, imported):
        job_options(action)


def list_(target: str, config: Config, *, as_json: bool) -> int:
    """Print the savepoints; returns the exit status, 1 if one is damaged."""
    job = find_job(target, config, shipped=True)
    place = job.savepoints
    found, damaged = place.look()
    if as_json:
        print(json.dumps([row_at(place, each) for each in found]))
    else:
        if not found and not damaged:
            tell(f"{job.name} has no savepoints; s4 savepoint {job.name} takes one")
        for each in found:
            why = f", {each.why}" if each.why else ""
            print(f"{each.name}: {moment(each.created_ms)}, {size_of(each, place)}{why}")
    for reason in damaged.values():
        tell(f"s4: {reason}")
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
        print(json.dumps({**row_at(place, manifest), **named}))
        return 0
    print(f"{manifest.name} of {manifest.app}: {moment(manifest.created_ms)}, by s4node "
          f"{manifest.version}, {size_of(manifest, place)}; all files are whole")  # fmt: skip
    for task, saved in manifest.tasks.items():
        size = sum(file.size for file in saved.files.values())
        print(f"  {task}: commit {saved.commit}, {size / 1e6:.1f} MB")
    for word, names in named.items():
        if names:
            print(f"  {word}: {', '.join(names)}")
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
    """Remove savepoints; returns the exit status."""
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
    """Write a savepoint into a file; returns the exit status."""
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
    """Have a savepoint from a file; returns the exit status."""
    job = find_job(target, config, shipped=True)
    place = job.savepoints
    manifest = archive.read(place, job.name, Path(file), name)
    give(
        row_at(place, manifest),
        f"savepoint {manifest.name} of {job.name} is here; s4 run ... --from {manifest.name} "
        f"goes on from it",
        as_json=as_json,
    )
    return 0
