"""The addresses of the nodes that the options of a read or write name.

Rules
- Option ``address`` has one address, or several with commas between them. The driver and each
  executor take the first one that they reach, so they may reach a node by different addresses.
- Option ``cluster`` stands for the node of the cluster whose log has the stream. The driver finds
  its address in the coordination of the nodes, and executors get it from the driver.
"""

from __future__ import annotations

from collections.abc import Mapping

import trio

from s4node.cluster.coordination.registry import Registry
from s4node.cluster.tree.coordinations import coordination_at, is_zookeeper, place_of
from s4node.config import settings
from s4node.config.config import Config
from s4node.config.paths import full_path, is_folder
from s4node.errors import ConfigError, S4Error, leaves
from s4node.net.certificates.credentials import Credentials
from s4node.net.transport.pair_socket import host_and_port
from s4node.spark.connection import ask, connect

ADDRESS, CLUSTER, COORDINATION = "address", "cluster", "coordination"

_LOOK_SECONDS = 5.0


def check_given(options: Mapping[str, str]) -> None:
    """Raise ConfigError if the options are those of a table of Spark's catalog, which get lost."""
    named = {ADDRESS, CLUSTER, "stream"} & options.keys()
    if not named or any(name.startswith("option.") for name in options):
        raise ConfigError(
            "format('s4') gets no options of a table, which Spark keeps to itself. In place of "
            "CREATE TABLE use CREATE TEMPORARY VIEW clicks (user STRING, ...) USING s4 OPTIONS "
            "(address 'tcp://...', stream 'clicks', type 'shop.events:Click'), in every session"
        )


def problems_of(options: Mapping[str, str]) -> list[str]:
    given, cluster = options.get(ADDRESS, ""), options.get(CLUSTER, "")
    if given and cluster:
        return ["options address and cluster say the same; leave one out"]
    if not given and not cluster:
        example = "tcp://127.0.0.1:12000"
        return [f"option address is missing, as in .option('address', {example!r})"]
    found = []
    for address in listed(given):
        try:
            host_and_port(address)
        except ConfigError as error:
            found.append(str(error))
    return found


def addresses_of(options: Mapping[str, str], stream: str) -> tuple[str, ...]:
    """The addresses for a stream; raises ConfigError if the cluster has none, or several."""
    cluster = options.get(CLUSTER, "")
    if not cluster:
        return listed(options[ADDRESS])
    config = Config.from_values({settings.CLUSTER_NAME.name: cluster})
    place = options.get(COORDINATION) or place_of(config)
    return _of_cluster(config, place, stream, Credentials.in_options(options))


def is_address(place: str) -> bool:
    """Return True if a place is the address of a node, not a folder or file."""
    return place.startswith(("tcp://", "tls+tcp://"))


def listed(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def reachable(addresses: tuple[str, ...], patience: float, credentials: Credentials | None) -> str:
    """The first address that this process reaches; raises NoAnswerError if there is none."""
    if len(addresses) == 1:
        return addresses[0]
    connection = connect(addresses, patience, credentials)
    connection.close()
    return connection.address


def _of_cluster(
    config: Config, place: str, stream: str, credentials: Credentials | None
) -> tuple[str, ...]:
    cluster = config[settings.CLUSTER_NAME]
    try:
        nodes = trio.run(_nodes, config, place)
    except BaseExceptionGroup as group:
        ours = [error for error in leaves(group) if isinstance(error, S4Error)]
        raise (ours[0] if ours else group) from None
    if not nodes:
        raise ConfigError(
            f"no node of cluster {cluster!r} is running in {place}; start one with: s4 node "
            f"{cluster}, or name the nodes' folder, or their ZooKeeper, with option coordination"
        )
    logs: list[str] = []
    having: list[str] = []
    for address in nodes:
        try:
            streams = ask([address], _LOOK_SECONDS, "list", credentials=credentials)["streams"]
        except S4Error:  # the node has no log, or does not answer
            continue
        logs.append(address)
        if stream in [each["stream"] for each in streams]:
            having.append(address)
    found = having or logs or nodes
    if len(found) > 1 and logs:
        which = f"a stream {stream!r}" if having else f"a log, and none has a stream {stream!r}"
        raise ConfigError(
            f"several nodes of cluster {cluster!r} have {which}: {', '.join(found)}; choose one "
            f"with option address"
        )
    return tuple(found)


async def _nodes(config: Config, place: str) -> list[str]:
    if not is_zookeeper(place):
        folder = full_path(place, f"option {COORDINATION}")
        fix = "fix its permissions, or name the nodes' folder with option coordination"
        if not await trio.to_thread.run_sync(is_folder, folder, fix):
            return []
    async with coordination_at(place, config).session("spark") as session:
        found = await Registry(session).nodes(config[settings.CLUSTER_NAME])
    return sorted(node.address for node in found.values() if node.address)
