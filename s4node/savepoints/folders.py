"""The savepoints of a job: where they are, and what is in them.

Rules
- A savepoint that is being taken is a folder with its number; each task's cut is a folder in there.
"""

from __future__ import annotations

from pathlib import Path

from s4node.state.job import named_folder


def savepoints_folder(job: Path) -> Path:
    """Where the savepoints of the job in this folder are."""
    return job / "savepoints"


def cut_folder(job: Path, number: int, task: str) -> Path:
    """Where the cut of a task for the savepoint of this number is, for the job in this folder."""
    return named_folder(savepoints_folder(job) / f"cut-{number}", task)
