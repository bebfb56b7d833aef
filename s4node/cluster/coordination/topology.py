"""The topology of a configuration: which clusters consume which streams.

Rules
- A stream names its consuming clusters (``s4.stream.<stream>.consumers``), and a cluster names its
  node's address (``s4.cluster.<cluster>.address``).
- Every consuming cluster gets every event of the stream once.
"""

from __future__ import annotations

from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError


class Topology:
    def __init__(self, config: Config) -> None:
        self._addresses = config.matching(settings.CLUSTER_ADDRESS)
        self._consumers = config.matching(settings.STREAM_CONSUMERS)

    def consumers(self, stream: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for cluster in self._consumers.get(stream, ()):
            if cluster not in self._addresses:
                raise ConfigError(
                    f"stream {stream!r} is consumed by cluster {cluster!r}, which has no address; "
                    f"set s4.cluster.{cluster}.address = tcp://host:port"
                )
            if self._addresses[cluster] in found.values():
                raise ConfigError(
                    f"stream {stream!r} has two consumers at {self._addresses[cluster]}, which "
                    f"would get every event twice; list it once in s4.stream.{stream}.consumers"
                )
            found[cluster] = self._addresses[cluster]
        return found
