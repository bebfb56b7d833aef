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

from s4node.cluster.coordination.registry import Registry
from s4node.cluster.tree.coordinations import coordination_at, is_zookeeper, place_of
from s4node.config import settings
from s4node.config.config import Config

FOLDER = "coordination"


class StateCoordination:
    """That of the job in ``folder`` with these settings."""

    def __init__(self, folder: Path, config: Config) -> None:
        shared = bool(config[settings.STATE_URL])
        self.place = place_of(config) if shared else str(folder / FOLDER)
        self._config = config

    @property
    def exists(self) -> bool:
        """Return True if anything may have been asked of the job."""
        return is_zookeeper(self.place) or Path(self.place).exists()

    @asynccontextmanager
    async def registry(self, name: str) -> AsyncIterator[Registry]:
        """A session called ``name``; raises CoordinationError."""
        async with coordination_at(self.place, self._config).session(name) as session:
            yield Registry(session)
