"""The coordination that all who can reach a job's state see.

Rules
- State at a URL can be reached by all nodes: then it is their coordination. Otherwise only those
  who have the job's folder can reach it, and the coordination is a folder in there.
- A job of which nobody has asked anything has no such folder.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from s4node.cluster.coordination.folder import FolderCoordination
from s4node.cluster.coordination.registry import Registry
from s4node.config import settings
from s4node.config.config import Config
from s4node.config.paths import full_path

FOLDER = "coordination"


class StateCoordination:
    """That of the job in ``folder`` with these settings."""

    def __init__(self, folder: Path, config: Config) -> None:
        setting = settings.COORDINATION_FOLDER
        shared = bool(config[settings.STATE_URL])
        self.folder = full_path(config[setting], setting.name) if shared else folder / FOLDER
        self._timeout = config[settings.SESSION_TIMEOUT]

    @property
    def exists(self) -> bool:
        """Return True if anything may have been asked of the job."""
        return self.folder.exists()

    @asynccontextmanager
    async def registry(self, name: str) -> AsyncIterator[Registry]:
        """A session called ``name``; raises CoordinationError."""
        coordination = FolderCoordination(self.folder, session_timeout=self._timeout)
        async with coordination.session(name) as session:
            yield Registry(session)
