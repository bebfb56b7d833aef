"""The systems of a configuration, created by name.

Rules
- ``live`` always exists and cannot be read again. ``log`` exists without settings if this process
  has a log or knows where one is.
- A system is created once, when an input or an output names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from s4node.config import plugins, settings
from s4node.config.config import Config
from s4node.errors import ConfigError, UnknownStream
from s4node.events.event import LIVE
from s4node.offsets.system import System

LOG = "log"
KAFKA = "kafka"
_METHODS = (
    "run",
    "wait_reachable",
    "partitions",
    "identity",
    "bounds",
    "resolve",
    "open",
    "append",
)


_provided: Callable[[str], System] | None = None


@contextmanager
def replaced(provided: Callable[[str], System]) -> Iterator[None]:
    """Use these systems during the block, whatever is configured."""
    global _provided
    before, _provided = _provided, provided
    try:
        yield
    finally:
        _provided = before


class Systems:
    """Creates the systems that ``config`` names. ``own_log`` is the address of this process's
    log."""

    def __init__(self, config: Config, own_log: str = "") -> None:
        self._config = config
        self._types = config.matching(settings.SYSTEM_TYPE)
        self._addresses = config.matching(settings.SYSTEM_ADDRESS)
        self._made: dict[str, System] = {}
        if own_log:
            self._addresses.setdefault(LOG, own_log)
        if LOG in self._addresses:
            self._types.setdefault(LOG, LOG)
        for name in (*self._types, *self._addresses):
            if "." in name or name == LIVE:
                raise ConfigError(
                    f"systems.{name}.type: {name!r} is not a name for a system; use a name "
                    + ("other than live, which is the sockets" if name == LIVE else "without dots")
                )
        for name in self._addresses:
            if name not in self._types:
                raise ConfigError(
                    f"systems.{name}.address is set but systems.{name}.type is not; set it, too"
                )

    @property
    def names(self) -> list[str]:
        return [LIVE, *self._types]

    def __getitem__(self, name: str) -> System:
        """The system; raises UnknownStream, which lists the known ones."""
        if name not in self._made and _provided is not None:
            self._made[name] = _provided(name)
        if name not in self._made:
            kind = self._types.get(name)
            if kind is None:
                known = ", ".join(self.names)
                broker = f"type to kafka, and systems.{name}.address to host:port of a broker"
                node = "address to the address of its node"
                what = {LOG: node, KAFKA: broker}.get(name, "type")
                raise UnknownStream(
                    f"no system {name!r}; known systems: {known}. To add it, set "
                    f"systems.{name}.{what}"
                )
            self._made[name] = self._make(kind, name)
        return self._made[name]

    def __iter__(self) -> Iterator[System]:
        return iter(self._made.values())

    def _make(self, kind: str, name: str) -> System:
        address = self._addresses.get(name, "")
        if kind == LOG:
            if not address:
                raise ConfigError(
                    f"system {name!r} is a log of another process; set systems.{name}.address to "
                    f"the address of its node"
                )
            from s4node.net.certificates.credentials import Credentials  # late: they bring sockets
            from s4node.systems.embedded_log import EmbeddedLog

            return EmbeddedLog(name, address, credentials=Credentials.configured(self._config))
        if kind == KAFKA:
            try:
                from s4node.systems.kafka import KafkaSystem  # needs the extra
            except ImportError as error:
                raise ConfigError(
                    f"systems.{name}.type = kafka needs confluent-kafka ({error}); run "
                    f"pip install 's4node[kafka]'"
                ) from error
            return KafkaSystem(name, self._config)
        made: System = plugins.made(kind, f"systems.{name}.type", "system", name, self._config)
        plugins.lacking(made, _METHODS, kind, f"systems.{name}.type", "system")
        return made
