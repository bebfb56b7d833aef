"""The coordination that a configuration means: ZooKeeper, or a folder of one machine.

Rules
- This is the only place that chooses. A *place* is the URL of ZooKeeper, or the path of a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from s4node.cluster.tree.contract import Coordination
from s4node.config import settings
from s4node.config.config import Config
from s4node.config.kinds import ZOOKEEPER_SCHEME
from s4node.config.paths import full_path
from s4node.errors import ConfigError


def machine_folder(config: Config) -> Path:
    setting = settings.COORDINATION_FOLDER
    return full_path(config[setting], setting.name)


def place_of(config: Config) -> str:
    """The place of the nodes' coordination: the URL of ZooKeeper, or a folder."""
    return config[settings.COORDINATION] or str(machine_folder(config))


def in_folder(config: Config, folder: str) -> Config:
    """``config`` for nodes that find each other in ``folder``."""
    return config.with_({settings.COORDINATION.name: "", settings.COORDINATION_FOLDER.name: folder})


def is_zookeeper(place: str) -> bool:
    """Return True if ``place`` is a URL of ZooKeeper, rather than a folder."""
    return place.startswith(ZOOKEEPER_SCHEME)


def coordination_of(config: Config) -> Coordination:
    return coordination_at(place_of(config), config)


_provided: Callable[[], Coordination] | None = None


@contextmanager
def replaced(provided: Callable[[], Coordination]) -> Iterator[None]:
    """Use this coordination during the block, wherever a configuration has it."""
    global _provided
    before, _provided = _provided, provided
    try:
        yield
    finally:
        _provided = before


def coordination_at(place: str, config: Config) -> Coordination:
    """The coordination at ``place``; raises ConfigError if kazoo is not installed."""
    if _provided is not None:
        return _provided()
    timeout = config[settings.SESSION_TIMEOUT]
    if not is_zookeeper(place):
        from s4node.cluster.tree.folder import FolderCoordination  # late: it loads a database

        return FolderCoordination(place, session_timeout=timeout)
    try:
        from s4node.cluster.tree.zookeeper import ZooKeeperCoordination
    except ImportError as error:
        raise ConfigError(
            f"s4.coordination = {place} needs kazoo ({error}); run pip install 's4node[zookeeper]'"
        ) from error
    credentials = config[settings.COORDINATION_CREDENTIALS]
    return ZooKeeperCoordination(place, session_timeout=timeout, credentials=credentials)
