"""``python -m torture``: tortures until ``--seconds`` are over; each round prints its seed."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from torture import log_run
from torture.run import main

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--seconds", type=float, default=180)
parser.add_argument("--round", type=float, default=15)
parser.add_argument("--deaths", choices=("yes", "no", "both"), default="both")
parser.add_argument("--what", choices=("cluster", "log", "both"), default="both")
options = parser.parse_args()

until = time.monotonic() + options.seconds
seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10_000)
held = True
while held and time.monotonic() < until:
    deaths = options.deaths == "yes" or (options.deaths == "both" and seed % 2 == 1)
    if options.what != "log":
        held = main(seed, options.round, deaths, Path(tempfile.mkdtemp(prefix="s4-torture-")))
    if options.what != "cluster" and held:
        held = log_run.main(seed, options.round, Path(tempfile.mkdtemp(prefix="s4-torture-")))
    seed += 1
sys.exit(not held)
