"""``python -m torture``: clusters under an adversary, until ``--seconds`` are over.

Each round has the next seed, and another scene unless one is named; it prints both. With
``--kinds`` it does one round with these faults, each of which happens once.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from torture.cluster import SCENES, main
from torture.faults import FAULTS

parser = argparse.ArgumentParser(prog="torture", description=__doc__)
parser.add_argument("--seed", type=int)
parser.add_argument("--seconds", type=float, default=180)
parser.add_argument("--round", type=float, default=90, help="seconds of a round (default: 90)")
parser.add_argument("--scene", choices=SCENES)
parser.add_argument("--kinds", default="", help="names of faults, with commas; ? lists them")
options = parser.parse_args()
kinds = [kind for kind in options.kinds.split(",") if kind]
if unknown := [kind for kind in kinds if kind not in FAULTS]:
    listed = "\n  ".join(f"{n} {sorted(f.needs)}" for n, f in FAULTS.items())
    sys.exit(f"no kind of faults {unknown}; these are known, with what a scene needs:\n  {listed}")

until = time.monotonic() + options.seconds
seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10_000)
ordinary = [scene for scene in SCENES if scene != "machines"]
held = True
while held and time.monotonic() < until:
    scene = options.scene or ordinary[seed % len(ordinary)]
    seconds = 0.0 if kinds else options.seconds if scene == "machines" else options.round
    held = main(Path(tempfile.mkdtemp(prefix="s4-torture-")), scene, seed, seconds, kinds)
    seed += 1
    if kinds:
        break
sys.exit(not held)
