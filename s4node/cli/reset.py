"""``s4 reset``: has a stopped app start from empty state, on purpose.

Rules
- The state of all tasks goes, and so do their positions: inputs that can be read again are read
  from where the app says. Savepoints and startpoints stay.
- What others have received and sent is counted, as for going back to a savepoint.
- Former owners are fenced, and consumers know the tasks under new names, so nothing of the former
  life is mixed up with the next one.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from s4node import clocks
from s4node.cli.arguments import agreement_options
from s4node.cli.job import app_argument, find_job, job_options
from s4node.cli.output import tell
from s4node.cli.savepoint import replace_state
from s4node.config.config import Config
from s4node.offsets.job_lock import stopped
from s4node.savepoints.folders import told
from s4node.savepoints.writer import empty
from s4node.state.job import named_folder


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(function=reset)
    app_argument(parser)
    agreement_options(parser)
    job_options(parser, as_json=False)


def reset(target: str, config: Config, *, outputs: str, accept_loss: bool) -> int:
    """Empty the state of an app; returns the exit status."""
    job = find_job(target, config, shipped=True)
    manifest = empty(job.name, job.guard_of_state(), job.tasks, int(clocks.wall() * 1000))
    with (
        told(job.folder),
        stopped(job.folder),
        tempfile.TemporaryDirectory(prefix="s4-reset-") as nothing,
    ):
        for task in job.tasks:
            named_folder(Path(nothing), task).mkdir()
        replace_state(job, manifest, Path(nothing), again=bool(outputs), accept_loss=accept_loss)
    tell(f"{job.name} starts from empty state")
    return 0
