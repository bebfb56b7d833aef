"""``python -m attacks ADDRESS ROW SECONDS``: one row, at nice 19; ``--rate`` for honest frames.

``python -m attacks --seconds N`` compares all rows with honest peers, N seconds each, and prints
what a healthy sender saw. Its exit status says whether all were within their bounds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import trio

from attacks.compare import compare
from attacks.rows import ROWS, Attack, honest_frames


async def attacked(address: str, row: str, seconds: float, rate: float) -> None:
    """Attack, and print what was sent."""
    attack = Attack(address)
    began = trio.current_time()
    with trio.move_on_after(seconds):
        await (honest_frames(attack, rate) if rate else ROWS[row](attack))
    lasted = trio.current_time() - began
    print(json.dumps({"frames": attack.frames, "bytes": attack.bytes, "seconds": lasted}))


async def compared(rows: list[str], seconds: float) -> bool:
    within = True
    for row in rows:
        with tempfile.TemporaryDirectory(prefix="s4-attacks-") as folder:
            found = await compare(Path(folder), row, seconds)
        print(f"{row}: {found.told()}", flush=True)
        within &= not found.complaints()
    return within


parser = argparse.ArgumentParser()
parser.add_argument("what", nargs="*", help="ADDRESS ROW SECONDS, or rows to compare")
parser.add_argument("--rate", type=float, default=0.0)
parser.add_argument("--seconds", type=float, default=20.0)
options = parser.parse_args()
if options.what and options.what[0].startswith("tcp://"):
    os.nice(19)
    address, row, seconds = options.what
    trio.run(attacked, address, row, float(seconds), options.rate)
else:
    sys.exit(not trio.run(compared, options.what or list(ROWS), options.seconds))
