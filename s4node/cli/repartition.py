"""``s4 repartition``: gives an app another number of partitions, once it is stopped.

Rules
- Everything is checked before anything changes. What was cut short after that is completed by the
  same command.
- A deployed app is ended on all nodes, and started again; another one has to be stopped first.
"""

from __future__ import annotations

import argparse
from functools import partial

import trio

from s4node import clocks
from s4node.cli.job import Job, app_argument, find_job, job_options
from s4node.cli.output import give, report_progress
from s4node.config import settings
from s4node.config.config import Config
from s4node.deploy import deployed_layout
from s4node.deploy.repartition import Repartition
from s4node.errors import CheckpointError
from s4node.offsets.job_lock import stopped


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(function=repartition)
    app_argument(parser)
    parser.add_argument(
        "number", type=_partitions, metavar="N", help="the number of partitions, 1 to 4096"
    )
    parser.add_argument(
        "--stores-by-key",
        action="store_true",
        help="move the rows of a TaskApp's stores; their keys must be those of its streams",
    )
    job_options(parser)


def repartition(
    target: str, number: int, config: Config, *, stores_by_key: bool, as_json: bool
) -> int:
    job = find_job(target, config, shipped=True)
    guard, began = job.guard_of_state(), clocks.steady()
    progress = partial(report_progress, "moving rows to new tasks")
    work = Repartition(
        job.name, job.folder, job.config, guard, number, job.remote_job, stores_by_key, progress
    )
    deployed = trio.run(deployed_layout.partitions_of, job.name, job.config)
    # if only the nodes do not know it yet
    done = deployed not in (None, number) and guard.tasks == number and not work.cut_short
    if not done:
        work.check()

    def change() -> int:
        with stopped(job.folder):
            if done:
                return 0
            _check_startpoints(job)
            return work.run()

    if deployed is None:
        moved = job.while_stopped(lambda _: change())
    else:
        moved = trio.run(deployed_layout.repartition, job.name, job.config, number, change)
    seconds = clocks.steady() - began
    row = {"app": job.name, "partitions": number, "rows": moved, "seconds": seconds}
    then = f"start it with {settings.CLUSTER_PARTITIONS.name} = {number}"
    text = (
        f"{job.name} has {number} partitions ({moved} rows in {seconds:.1f} s); "
        f"{then if deployed is None else 'it runs on all nodes'}"
    )
    give(row, text, as_json=as_json)
    return 0


def _partitions(text: str) -> int:
    try:
        return settings.CLUSTER_PARTITIONS.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


def _check_startpoints(job: Job) -> None:
    requests = job.startpoints()
    if waiting := [*requests.asked, *(each for _, each in requests.waiting)]:
        place = waiting[0]
        raise CheckpointError(
            f"a startpoint is set for {place.system}.{place.stream}[{place.partition}], which "
            f"another task may read then; start {job.name} once, or remove it: s4 startpoint "
            f"delete {job.name}"
        )
