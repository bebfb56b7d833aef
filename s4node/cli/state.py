"""``s4 state``: the state of an app's tasks as of their last commits, whether it runs or not.

Rules
- Damage is reported after everything that can be read, and so is a URL that may have newer state.
  With the URL, the command shows the state that the next owner of each task would find.
- A reset empties a stopped app. The state of all tasks goes, and so do their positions: inputs that
  can be read again are read from where the app says. Savepoints and startpoints stay. What others
  have received and sent is counted, as for going back to a savepoint.
- Former owners are fenced, and consumers know the tasks under new names, so nothing of the former
  life is mixed up with the next one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from s4node import clocks
from s4node.cli.arguments import agreement_options, command, group, whole
from s4node.cli.job import (
    Job,
    app_argument,
    find_job,
    job_options,
    report_damaged,
    report_older,
    task_option,
)
from s4node.cli.output import moment, report
from s4node.cli.savepoint import replace_state
from s4node.config.config import Config
from s4node.errors import CheckpointError, StateError, StoreCorrupt, on_one_line
from s4node.offsets.job_lock import stopped
from s4node.offsets.system import SystemStreamPartition
from s4node.savepoints.folders import translate_errors
from s4node.savepoints.writer import empty
from s4node.state import epochs
from s4node.state.browse import StateReader
from s4node.state.commit_id import shipped_of
from s4node.state.job import Progress, named_folder, task_folder


class Row(NamedTuple):
    """A row of state. The key of a ``window`` is a pair of its key and its start."""

    task: str
    table: str
    key: Any
    value: Any
    window: bool

    def is_of(self, key: str, as_json: str | None) -> bool:
        names = (self.key, self.key[0]) if self.window else (self.key,)
        return any(key in (name, str(name)) or as_json == _json(name) for name in names)


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = group(parser)
    got = command(
        actions,
        "get",
        get,
        "show the state of a key",
        "s4 state get clicks joe --table Count",
    )
    app_argument(got)
    got.add_argument(
        "key",
        metavar="KEY",
        help="as scan prints it; shows all windows of a PE with windows",
    )
    scanned = command(
        actions,
        "scan",
        scan,
        "list rows of state",
        "s4 state scan clicks --limit 100",
    )
    app_argument(scanned)
    scanned.add_argument(
        "--limit",
        type=whole,
        default=1000,
        metavar="N",
        help="end after N rows (default %(default)s)",
    )
    for action in (got, scanned):
        action.add_argument("--table", metavar="NAME", default="", help="this PE or store only")
        task_option(action, "this task only, such as 'Partition 0'")
        job_options(action)
    listed = command(
        actions,
        "tasks",
        tasks,
        "show where each task resumes: offsets, numbers of producers, and its checkpoints",
        "s4 state tasks clicks --task 'Partition 0'",
    )
    app_argument(listed)
    task_option(listed, "this one only")
    job_options(listed)
    emptied = command(
        actions,
        "reset",
        reset,
        "discard the state of a stopped app; its next start begins from empty state",
        "s4 state reset clicks --outputs again --accept-loss",
    )
    app_argument(emptied)
    agreement_options(emptied)
    job_options(emptied, as_json=False)


def scan(target: str, config: Config, *, table: str, task: str, limit: int, as_json: bool) -> int:
    job = find_job(target, config, shipped=True)
    damaged: dict[str, str] = {}
    with _reporting_older(job) as shipped:
        for number, row in enumerate(_rows(job, table, task, damaged, shipped)):
            if number == limit:
                report(f"there are more rows than the limit of {limit}; --limit N shows more")
                break
            _show(row, as_json=as_json)
    return report_damaged(damaged)


def get(target: str, key: str, config: Config, *, table: str, task: str, as_json: bool) -> int:
    job = find_job(target, config, shipped=True)
    damaged: dict[str, str] = {}
    meant = _as_json(key)
    with _reporting_older(job) as shipped:
        rows = _rows(job, table, task, damaged, shipped)
        found = [row for row in rows if row.is_of(key, meant)]
        for row in found:
            _show(row, as_json=as_json)
    status = report_damaged(damaged)
    if not found:
        where = " in the other tasks" if damaged else ""
        raise StateError(
            f"there is no state of {key!r}{where}; s4 state scan {target} lists what there is"
        )
    return status


@contextmanager
def _reporting_older(job: Job) -> Iterator[set[str]]:
    """Collect URLs; at the end, say that there may be newer state at them."""
    shipped: set[str] = set()
    try:
        yield shipped
    finally:
        report_older(job, shipped)


def _rows(
    job: Job, table: str, task: str, damaged: dict[str, str], shipped: set[str]
) -> Iterator[Row]:
    """All rows, in the order of tasks and tables. Adds the tasks whose state is ``damaged``, with
    the reason, and the URLs to which tasks are ``shipped``."""
    job.check_task(task)
    known: set[str] = set()
    for name in [task] if task else job.tasks:
        try:
            with job.kept(name) as state:
                if state is None:
                    continue
                shipped.add(shipped_of(state.database))
                look = StateReader(state)
                for each, rows in (
                    *((each, look.instances) for each in look.elements),
                    *((each, look.store) for each in look.stores),
                ):
                    known.add(each)
                    if table in ("", each):
                        for key, value in rows(each):
                            yield Row(name, each, key, value, each in look.windowed)
        except StoreCorrupt as error:
            damaged[name] = str(error)
    if table and table not in known and not damaged:
        raise StateError(
            f"app {job.name!r} has no {table!r}; it has: {', '.join(sorted(known)) or 'nothing'}"
        )


def _json(key: Any) -> str:
    return json.dumps(key, default=str)


def _as_json(text: str) -> str | None:
    """A given key in the same form; None if it is not JSON."""
    try:
        return json.dumps(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _show(row: Row, *, as_json: bool) -> None:
    if as_json:
        shown = {"task": row.task, "table": row.table, "key": row.key, "value": row.value}
        print(json.dumps(shown, default=str))
    else:
        key = "-" if row.key is None else on_one_line(str(row.key))  # a row is a line
        print(f"{row.task}  {row.table}  {key}  {json.dumps(row.value, default=str)}")


# -- the tasks ------------------------------------------------------------------------------------


def tasks(target: str, config: Config, *, task: str, as_json: bool) -> int:
    """Print where each task resumes, and its checkpoints; returns the exit status."""
    job = find_job(target, config, shipped=True)
    if not job.tasks:
        places = (
            f"{job.folder}"
            if job.remote_job is None
            else f"{job.folder} or at {job.remote_job.url}"
        )
        raise CheckpointError(f"{job.name} has no checkpoints in {places}; it has not run yet")
    job.check_task(task)
    shown, damaged = job.progress([task] if task else job.tasks)
    rows = {name: _progress_row(job, name, progress) for name, progress in shown.items()}
    if as_json:
        print(json.dumps(rows))
    else:
        for name, row in rows.items():
            written = (
                f"written {moment(row['written_ms'])}" if row["written_ms"] else "nothing written"
            )
            print(f"{name}: {written}")
            for at in row["offsets"]:
                place = SystemStreamPartition(at["system"], at["stream"], at["partition"])
                print(f"  {place}: {at['offset']}")
            for each in row["producers"]:
                print(f"  {each['stream']} from {each['producer']!r}: {each['number']}")
            for each in row["checkpoints"]:
                kept = moment(each["kept_ms"])
                print(f"  checkpoint {each['name']}: commit {each['commit']}, {kept}")
    report_older(job, [one.shipped for one in shown.values()])
    return report_damaged(damaged)


def _progress_row(job: Job, task: str, progress: Progress) -> dict[str, Any]:
    return {
        "written_ms": progress.checkpoint.written_ms,
        "offsets": [
            {"system": system, "stream": stream, "partition": partition, "offset": offset}
            for (system, stream, partition), offset in sorted(progress.checkpoint.offsets.items())
        ],
        "producers": [
            {"stream": stream, "producer": producer, "number": kept.number}
            for (stream, producer), kept in sorted(progress.producers.items())
        ],
        "checkpoints": [
            {"name": each.name, "commit": each.commit, "kept_ms": each.kept_ms}
            for each in epochs.saved_checkpoints(task_folder(job.folder, task))
        ],
    }


def reset(target: str, config: Config, *, outputs: str, accept_loss: bool) -> int:
    job = find_job(target, config, shipped=True)
    manifest = empty(job.name, job.guard_of_state(), job.tasks, int(clocks.wall() * 1000))
    with (
        translate_errors(job.folder),
        stopped(job.folder),
        tempfile.TemporaryDirectory(prefix="s4-reset-") as nothing,
    ):
        for task in job.tasks:
            named_folder(Path(nothing), task).mkdir()
        replace_state(job, manifest, Path(nothing), again=bool(outputs), accept_loss=accept_loss)
    report(f"{job.name} starts from empty state")
    return 0
