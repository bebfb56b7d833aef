"""What must be true of the log of a task's state at a URL, whatever was done to its owners."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from s4node.state import remote_log
from s4node.state.remote_log import Checkpoint, Claim, Commit, Entry


def entries_in(folder: Path) -> dict[int, Entry]:
    """The entries of a log, by number; a file that is being written is none yet."""
    found = {}
    for file in folder.iterdir():
        if file.suffix == ".tmp":
            continue
        entry = remote_log.decoded(file.read_bytes(), str(file))
        if entry is not None:
            found[remote_log.number_of(file.name)] = entry
    return found


def wrong_log(entries: Mapping[int, Entry]) -> list[str]:
    """What is not true of a task's log: a fence has one owner, which alone writes after its claim,
    fences grow, and nothing is missing after the newest checkpoint."""
    found = []
    owners: dict[int, str] = {}
    claimed = None
    for number, entry in sorted(entries.items()):
        fence, name = entry.owner
        if owners.setdefault(fence, name) != name:
            found.append(
                f"entry {number}: fence {fence} has two owners, {owners[fence]} and {name}"
            )
        if isinstance(entry, Claim):
            if claimed is not None and entry.owner.fence <= claimed.fence:
                found.append(
                    f"entry {number}: a claim under {fence} after one under {claimed.fence}"
                )
            claimed = entry.owner
        elif entry.owner != claimed:
            found.append(f"entry {number}: written by {entry.owner}, and {claimed} has claimed it")
    bases = [entry.base for entry in entries.values() if isinstance(entry, Checkpoint)]
    first = max(bases, default=0) + 1
    missing = [n for n in range(first, max(entries, default=0) + 1) if n not in entries]
    if missing:
        found.append(f"entries {missing[:5]} are missing, after a checkpoint of {first - 1}")
    commits = [entry.commit for _, entry in sorted(entries.items()) if isinstance(entry, Commit)]
    if commits != sorted(set(commits)):
        found.append("commits are not in their order, or twice")
    return found
