"""Faults put back, by hand, to see that clusters in memory find them: ``python -m mutants``.

Rules
- Each fault is a change of a few lines of the package, made in a copy of it. Nothing changes here.
- A fault is found by a seed that fails with it and passes without it. What is said is the number of
  seeds until then, and the shortest schedule with which the seed still fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Mutant(NamedTuple):
    """A fault: ``old`` in a ``file`` of the package becomes ``new``."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = (
    Mutant(
        "a commit is acknowledged before it is written",
        "runtime/commit/task_commit.py",
        '            passing("commit.begin")\n',
        "            self._context.producers.commit_written(self.task.partition, what.producers)\n",
    ),
    Mutant(
        "a duplicate is admitted after a takeover",
        "net/ingress/admission.py",
        "        start = start if row is None else row.number\n",
        "",
    ),
    Mutant(
        "a claim stops before the end of the log",
        "state/remote_log.py",
        "    entries.reverse()\n",
        "    entries.reverse()\n"
        "    if isinstance(entries[-1:][0][1] if entries else None, Claim):\n"
        "        del entries[-2:-1]\n",
    ),
    Mutant(
        "a producer is forgotten while it is away",
        "net/ingress/commit_rows.py",
        "if known.seen < now - expiry and not known.saved.own_id:",
        "if known.seen < now - expiry:",
    ),
    Mutant(
        "a watermark jumps after a kill",
        "runtime/event_time/timed_stream.py",
        "        value = watermarks.value if",
        "        value = watermarks.value + watermarks.lateness if",
    ),
    Mutant(
        "an output is sent before its commit",
        "runtime/commit/task_commit.py",
        '            passing("commit.encoded")\n',
        "            self.channels.end_commit(written=True)\n",
    ),
    Mutant(
        "the outbox forgets what has left",
        "net/egress/with_commit.py",
        "            lane.released = end\n",
        "            lane.released = end\n"
        "            self.rows.drop_frames(lane, list(lane.frames))\n",
    ),
    Mutant(
        "a former owner overwrites the claim of the next one",
        "state/remote_log.py",
        "        if (yield from _repeated(Put(place, data, new=True))):\n",
        "        if (yield from _repeated(Put(place, data))):\n",
    ),
    Mutant(
        "a folder goes on without what it lacks",
        "state/remote_task.py",
        "            lacking = tail.after(known_of(database))\n",
        "            lacking = tail.after(known_of(database)) and []\n",
    ),
    Mutant(
        "a commit counts whose put has no answer",
        "state/remote_log.py",
        "            continue\n    return (yield request)\n",
        "            return True\n    return (yield request)\n",
    ),
    Mutant(
        "a savepoint whose cut is on one side only",
        "net/egress/settlements.py",
        "        for partition, number in cuts.items():\n",
        "        for partition, number in ():\n",
    ),
    Mutant(
        "a log forgets its producers when it starts",
        "log/partition/ledger.py",
        "        self.producers = dict(producers)\n",
        "        self.producers = {}\n",
    ),
    Mutant(
        "a standby takes over without the last commits",
        "state/standby/follower.py",
        "            self.follow()\n            if (self._position.number, self._position.owner)",
        "            if (self.task.at, self.task.owner)",
    ),
    Mutant(
        "a commit has the state without the numbers of its producers",
        "runtime/commit/task_commit.py",
        "return positions, self.consumed, rows_of(self.producers)",
        "return positions, self.consumed, {}",
    ),
    Mutant(
        "a rollback does not have producers go back",
        "net/ingress/producer_lane.py",
        "        self.expected = self.safe = number\n",
        "        self.safe = number\n",
    ),
    Mutant(
        "event time forgets an absent program",
        "runtime/event_time/timed_stream.py",
        "NEVER if value is None else value, {**times, **read})",
        "NEVER if value is None else value, {**read})",
    ),
    Mutant(
        "a commit lacks what a failed one has shipped",
        "state/remote_log.py",
        "return Commit(commit.owner, commit.commit, list(rows.items()),",
        "return Commit(commit.owner, commit.commit, commit.rows,",
    ),
)


class Found(NamedTuple):
    seeds: int  # 0 if none has found it
    seconds: float
    told: list[str]


_TOLD = re.compile(r"^(?!Traceback)(\S*(?:Error|Group).*)$", re.MULTILINE)
_FAULT = re.compile(r"(Fault\(.*\)),", re.MULTILINE)


def changed(mutant: Mutant) -> str:
    """The text of the file with the fault."""
    text = (ROOT / "s4node" / mutant.file).read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: {mutant.file} has {text.count(mutant.old)} such places")
    return text.replace(mutant.old, mutant.new)


def tried(mutant: Mutant, seeds: int, first: int) -> Found:
    with tempfile.TemporaryDirectory(prefix="s4-mutant-") as folder:
        shutil.copytree(ROOT / "s4node", Path(folder) / "s4node")
        (Path(folder) / "s4node" / mutant.file).write_text(changed(mutant))
        began = time.monotonic()
        with (Path(folder) / "log").open("wb") as log_file:
            run = subprocess.run(
                [
                    *(sys.executable, "-m", "simulate", "--until-failure", "--jobs", "1"),
                    *("--seeds", str(seeds), "--first", str(first)),
                ],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([folder, str(ROOT / "tests")])},
                stdout=subprocess.PIPE,
                stderr=log_file,
                text=True,
                check=False,
                cwd=folder,
            )
        log = (Path(folder) / "log").read_text()
    failed = re.search(r"^seed (\d+):", run.stdout, re.MULTILINE)
    if failed is None and f"{seeds} seeds" not in run.stdout:
        sys.exit(f"{mutant.name}: {run.stdout}\n{log}")
    found = int(failed[1]) - first + 1 if failed else 0
    told = [*_TOLD.findall(run.stdout), *_FAULT.findall(run.stdout.rpartition("check_seeds:")[2])]
    return Found(found, time.monotonic() - began, told)


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description="Put faults back.")
    parser.add_argument("--seeds", type=int, default=2000, help="how many at most (default: 2000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--only", default="", help="only faults with this in their names")
    asked = parser.parse_args()
    missed = 0
    for mutant in MUTANTS:
        if asked.only not in mutant.name:
            continue
        found = tried(mutant, asked.seeds, asked.first)
        missed += not found.seeds
        print(f"{found.seeds or 'not found':>10}  {found.seconds:5.0f} s  {mutant.name}")
        print("\n".join(f"            {line}" for line in found.told), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
