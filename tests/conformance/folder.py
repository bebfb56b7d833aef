"""How the processes of the conformance kit reach a coordination in a folder."""

from __future__ import annotations

from s4node.cluster.tree.folder import FolderCoordination


def in_folder(argument: str, timeout: float) -> FolderCoordination:
    return FolderCoordination(argument, session_timeout=timeout)
