"""Ends sessions of a folder as the others do when one is silent for too long."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from s4node.cluster.tree.tree_database import Tree, TreeBusy


def end_sessions(folder: Path, name: str) -> int:
    if not any((folder / "sessions").glob("*")):  # the database is there before the first of them
        return 0
    with closing(Tree(folder / "tree.sqlite")) as tree:
        while True:
            try:
                ids = [row.id for row in tree.sessions() if row.name == name]
                return sum(tree.end_session(each) for each in ids)
            except TreeBusy:
                continue
