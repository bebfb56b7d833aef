"""The running apps of this user, found by name, by stream, or by their log.

Rules
- A command about a running app uses the app's own settings; settings of the command win.
- Of other apps no settings are read: these may be of another version of s4node.
- A given folder or URL of a coordination means the apps of that coordination alone.
- What is not there yet has some seconds to start, and the command says that it waits.
- A command that sends or reads without an address asks the coordination that its settings name for
  the nodes of the cluster, or for the one that has a log. Without such settings it uses the only
  app here that fits. If several fit, the error names them; if none fits, the command uses the
  default address, unless it names a cluster.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import trio

from s4node.cli.arguments import DEFAULT_ADDRESS
from s4node.cli.output import report
from s4node.cluster.node.running import START_SECONDS, Running, running_processes
from s4node.cluster.tree.coordinations import place_of
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError, ConnectionRefused
from s4node.net.certificates.credentials import OPTIONS, Credentials


def config_of(name: str, config: Config) -> Config:
    """``config`` over the settings of the running app of this name, if there is one. Raises
    ConfigError if there are several."""
    given = {entry.name for entry in config.items() if entry.origin != "default"}
    meant: dict[tuple[str, ...], Running] = {}
    for each in running_processes():
        if each.app == name:
            own = _settings_of(each, [key.name for key in _PLACE])
            if all(own[key] == config[key] for key in _PLACE if key.name in given):
                meant[tuple(str(own[key]) for key in _STATE)] = each
    if len(meant) > 1:
        places = "; ".join(f"cluster {at[0]}, folder {at[1]}" for at in sorted(meant))
        raise ConfigError(
            f"you run several apps {name!r}: {places}. Choose one with --cluster, or with "
            f"-p {settings.STATE_FOLDER.name}=FOLDER"
        )
    for each in meant.values():
        _settings_of(each)
        return config.with_({key: text for key, text in each.settings.items() if key not in given})
    return config


_STATE = (settings.CLUSTER_NAME, settings.STATE_FOLDER, settings.STATE_URL)
"""The settings that say where an app keeps its state."""

_PLACE = (*_STATE, settings.COORDINATION, settings.COORDINATION_FOLDER)


def _settings_of(process: Running, only: Collection[str] = ()) -> Config:
    """The settings of a process, or only these. Raises ConfigError, which names its entry."""
    given = {key: text for key, text in process.settings.items() if not only or key in only}
    try:
        return Config.from_values(given)
    except ConfigError as error:
        raise ConfigError(
            f"this version of s4node refuses settings of {process.app or process.node}, process "
            f"{process.pid}, which are in {process.file}: {error}. Use its version, or stop it"
        ) from error


def runs_here(name: str, config: Config) -> bool:
    names = [key.name for key in _STATE]
    return any(
        each.app == name and all(_settings_of(each, names)[key] == config[key] for key in _STATE)
        for each in running_processes()
    )


def coordinations_of(name: str, config: Config) -> set[str]:
    """The places of the coordinations of an app's containers with the same state. The state is the
    same if its URL is, or without a URL its folder."""
    where = settings.STATE_URL if config[settings.STATE_URL] else settings.STATE_FOLDER
    return {
        each.place
        for each in running_processes()
        if each.app == name
        and each.place
        and each.cluster == config[settings.CLUSTER_NAME]
        and _settings_of(each, [where.name])[where] == config[where]
    }


def addresses_of_app(name: str) -> list[str]:
    return _addresses(_only(lambda each: each.app == name, f"are called {name!r}"))


_LOOK_SECONDS = 0.1


class Reach(NamedTuple):
    """Where a command connects to, and the credentials for addresses with TLS."""

    addresses: Sequence[str]
    credentials: Credentials | None


class Nodes:
    """The nodes that ``--to`` names, else those of the coordination in ``config``, else those of a
    running app. ``config`` has settings of TLS; without those, the running app's count.
    """

    def __init__(self, given: Sequence[str] | str | None, config: Config) -> None:
        self._given = [given] if isinstance(given, str) else given
        self.config = config

    def to_send(self, stream: str) -> Reach:
        what = f"take a stream {stream!r}"
        return self._in_cluster() or self._reach(lambda each: stream in each.inputs, what)

    def to_read(self, stream: str) -> Reach:
        what = f"have a stream {stream!r}"
        return self._in_cluster() or self._reach(lambda each: stream in each.streams, what)

    def to_log(self) -> Reach:
        return self._in_cluster(log=True) or self._reach(lambda each: each.log, "have a log")

    def _in_cluster(self, *, log: bool = False) -> Reach | None:
        """How to reach the cluster of the configured coordination, or its log; None if no
        coordination is given."""
        config = self.config
        places = (settings.COORDINATION, settings.COORDINATION_FOLDER)
        if self._given or all(config.origin(each) == "default" for each in places):
            return None
        addresses = trio.run(_addresses_in_cluster, config, log)
        credentials = Credentials.configured(config)
        if credentials is None:
            place = place_of(config)
            credentials = credentials_of(each for each in listed() if each.place == place)
        return Reach(addresses, credentials)

    def _reach(self, fits: Callable[[Running], bool], what: str) -> Reach:
        credentials = Credentials.configured(self.config)
        if self._given:
            return Reach(self._given, credentials)
        cluster = self.config[settings.CLUSTER_NAME]
        every = self.config.origin(settings.CLUSTER_NAME) == "default"
        look = partial(_only, lambda each: fits(each) and (every or each.cluster == cluster), what)
        found = look() or ([] if every and _default_answers() else _in_time(look, what))
        if not (found or every):
            raise ConfigError(
                f"none of your processes of cluster {cluster!r} {what}. Name the nodes' folder "
                f"with --folder, their ZooKeeper with --coordination, or an address with --to"
            )
        if found and credentials is None:
            credentials = Credentials.configured(_settings_of(found[0], OPTIONS))
        return Reach(_addresses(found), credentials)


def _in_time(look: Callable[[], list[Running]], what: str) -> list[Running]:
    """The result of ``look`` within some seconds."""
    report(f"none of your processes {what} yet; waiting {START_SECONDS:g} s for one that starts")
    for _ in range(int(START_SECONDS / _LOOK_SECONDS)):
        time.sleep(_LOOK_SECONDS)
        if found := look():
            break
    return found


def _default_answers() -> bool:
    """Return True if something listens at the default address that is none of the processes."""
    if any(each.address == DEFAULT_ADDRESS for each in listed()):
        return False
    host, _, port = DEFAULT_ADDRESS.removeprefix("tcp://").rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


def listed() -> list[Running]:
    """The running processes, as far as they can be known."""
    with suppress(ConfigError):
        return running_processes()
    return []


def credentials_of(processes: Iterable[Running]) -> Credentials | None:
    for process in processes:
        with suppress(ConfigError):  # the answer is that a certificate is needed
            if found := Credentials.configured(_settings_of(process, OPTIONS)):
                return found
    return None


async def _addresses_in_cluster(config: Config, log: bool) -> list[str]:
    """The addresses of the nodes of the cluster, or of the only one with a log. Raises
    DeployFailed if there is none, and ConfigError if several have a log."""
    # late: most commands do not need it
    from s4node.deploy.answers import living_nodes, registry_of, wait_folder

    cluster = config[settings.CLUSTER_NAME]
    await wait_folder(config)
    async with registry_of(config, "who sends or reads") as registry:
        nodes = await living_nodes(registry, config)
    if log:
        having = {name: node for name, node in nodes.items() if node.log}
        if not having:
            raise ConnectionRefused(
                f"no node of cluster {cluster!r} has a log: it has {', '.join(sorted(nodes))}. "
                f"Start one with the setting s4.log.folder, or give the log's address with --to"
            )
        if len(having) > 1:
            names = "; ".join(f"{name} at {node.address}" for name, node in sorted(having.items()))
            raise ConfigError(
                f"several nodes of cluster {cluster!r} have a log: {names}. Choose one with --to"
            )
        nodes = having
    return [node.address for _, node in sorted(nodes.items())]


def _addresses(found: Sequence[Running]) -> list[str]:
    return sorted({one.address for one in found}) or [DEFAULT_ADDRESS]


def _only(fits: Callable[[Running], bool], what: str) -> list[Running]:
    """The processes of the only app, or the process with a log, that fits. Raises ConfigError if
    several do."""
    found: dict[tuple[str, ...], list[Running]] = {}
    for each in running_processes():
        if each.address and fits(each):
            place = each.place if each.app else ""  # containers of one folder are one app
            found.setdefault((each.cluster, each.app, place or each.address), []).append(each)
    if len(found) > 1:
        names = "; ".join(f"{one.app or one.node} at {one.address}" for one, *_ in found.values())
        raise ConfigError(f"several of your processes {what}: {names}. Choose one with --to")
    return next(iter(found.values()), [])
