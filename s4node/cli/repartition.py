"""``s4 repartition``: gives a stopped app another number of partitions.

Rules
- Everything is checked before anything changes. What was cut short after that is completed by the
  same command.
"""

from __future__ import annotations

import argparse
import json
import sys

from s4node import clocks
from s4node.cli.arguments import whole
from s4node.cli.job import app_argument, find_job, job_options
from s4node.cli.savepoint import tell_progress
from s4node.config import settings
from s4node.config.config import Config
from s4node.deploy.repartition import Repartition
from s4node.errors import CheckpointError, ConfigError
from s4node.events.keys import hasher_named
from s4node.net.wire.frame import TASK
from s4node.offsets.job_lock import stopped
from s4node.savepoints.shipped import savepoints_of


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(function=repartition)
    app_argument(parser)
    parser.add_argument("number", type=whole, metavar="N", help="how many partitions, 1 to 4096")
    parser.add_argument(
        "--stores-by-key",
        action="store_true",
        help="what is in the stores of a TaskApp has the keys of its streams, and moves with them",
    )
    job_options(parser)


def repartition(
    target: str, number: int, config: Config, *, stores_by_key: bool, as_json: bool
) -> int:
    """Change the number of partitions; returns the exit status."""
    job = find_job(target, config)
    if job.guard is None or not job.tasks:
        raise CheckpointError(f"{job.name} keeps nothing in {job.folder}; it has not run yet")
    if url := job.config[settings.STATE_URL]:
        raise ConfigError(
            f"the state of {job.name} is shipped to {url}, and only state in a folder can get "
            f"another number of partitions"
        )
    guard, began = job.guard, clocks.steady()
    own = f"{TASK}{job.config[settings.CLUSTER_NAME]}/{job.name}/"
    work = Repartition(
        job.folder, guard, hasher_named(guard.hasher), own, number, stores_by_key, _tell
    )
    moved: list[int] = []

    def change(_: str) -> None:
        savepoints_of(job.folder, None).check_restored()
        requests = job.startpoints()
        if waiting := [*requests.asked, *(each for _, each in requests.waiting)]:
            place = waiting[0]
            raise CheckpointError(
                f"a startpoint is set for {place.system}.{place.stream}[{place.partition}], which "
                f"another task may read then; start {job.name} once, or remove it: s4 startpoint "
                f"delete {job.name}"
            )
        moved.append(work.run())

    with stopped(job.folder):
        job.while_stopped(change)
    seconds = clocks.steady() - began
    if as_json:
        done = {"app": job.name, "partitions": number, "rows": moved[0], "seconds": seconds}
        print(json.dumps(done))
    else:
        print(
            f"{job.name} has {number} partitions ({moved[0]} rows in {seconds:.1f} s); start it "
            f"with {settings.CLUSTER_PARTITIONS.name} = {number}",
            file=sys.stderr,
        )
    return 0


def _tell(done: int, tasks: int) -> None:
    tell_progress("moving rows to new tasks", done, tasks)
