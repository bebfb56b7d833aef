"""``python -m torture``: tortures until ``--seconds`` are over; each round prints its seed."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from torture import exact_run, log_run, machines_run, power_run, repartition_run, savepoint_run
from torture.run import main

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--seconds", type=float, default=180)
parser.add_argument("--round", type=float, default=15)
parser.add_argument("--deaths", choices=("yes", "no", "both"), default="both")
WHAT = ("cluster", "log", "exact", "power", "savepoint", "repartition", "machines", "all")
parser.add_argument("--what", choices=WHAT, default="all")
parser.add_argument("--kills", type=int, default=200, help="of the exact run, at least")
parser.add_argument("--deeds", default=",".join(exact_run.DEEDS), help="of the exact run")
parser.add_argument("--cuts", type=int, default=5, help="of the power")
parser.add_argument("--rounds", type=int, default=10, help="of savepoints, and of partitions")
parser.add_argument("--hits", type=int, default=5, help="of each point of a commit, at least")
options = parser.parse_args()

until = time.monotonic() + options.seconds
seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10_000)


def folder() -> Path:
    """A new one."""
    return Path(tempfile.mkdtemp(prefix="s4-torture-"))


held = True
if options.what in ("exact", "all"):
    deeds = options.deeds.split(",")
    held = exact_run.main(seed, options.kills, options.hits, folder(), deeds)
if held and options.what in ("power", "all"):
    held = power_run.main(seed, options.cuts, folder())
if held and options.what in ("savepoint", "all"):
    held = savepoint_run.main(seed, options.rounds, folder())
if held and options.what in ("repartition", "all"):
    held = repartition_run.main(seed, options.rounds, folder())
if options.what == "machines":  # which needs ZooKeeper, and root
    held = machines_run.main(seed, options.seconds, folder())
while held and options.what in ("cluster", "log", "all") and time.monotonic() < until:
    deaths = options.deaths == "yes" or (options.deaths == "both" and seed % 2 == 1)
    if options.what in ("cluster", "all"):
        held = main(seed, options.round, deaths, folder())
    if options.what in ("log", "all") and held:
        held = log_run.main(seed, options.round, folder())
    seed += 1
sys.exit(not held)
