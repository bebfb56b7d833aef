"""The configured systems, made by name.

Rules
- ``live`` always exists and cannot be read again; ``log`` exists without settings if this process
  has a log or knows where one is.
- A system is made once, when an input or an output names it.
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
_METHODS = ("run", "wait_reachable", "partitions", "bounds", "resolve", "open", "append")


_provided: Callable[[str], System] | None = None


@contextmanager
def replaced(provided: Callable[[str], System]) -> Iterator[None]:
    """Use these systems by name inside the block, whatever is configured."""
    global _provided
    before, _provided = _provided, provided
    try:
        yield
    finally:
        _provided = before


class Systems:
    """Makes the systems that ``config`` names; ``own_log`` is where this process's log listens."""

    def __init__(self, config: Config, own_log: str = "") -> None:
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
                    f"systems.{name}.type: {name!r} is not a name for a system; leave the dots out"
                    + (", and live to the sockets" if name == LIVE else "")
                )
        for name in self._addresses:
            if name not in self._types:
                raise ConfigError(
                    f"systems.{name}.address is set and systems.{name}.type is not; set it, too"
                )

    @property
    def names(self) -> list[str]:
        """All known names."""
        return [LIVE, *self._types]

    def __getitem__(self, name: str) -> System:
        """The system; raises UnknownStream with the names of all."""
        if name not in self._made and _provided is not None:
            self._made[name] = _provided(name)
        if name not in self._made:
            kind = self._types.get(name)
            if kind is None:
                known = ", ".join(self.names)
                what = "address to where its node listens" if name == LOG else "type"
                raise UnknownStream(
                    f"no system {name!r}; known are {known}. Set systems.{name}.{what} to have it"
                )
            self._made[name] = _make(kind, name, self._addresses.get(name, ""))
        return self._made[name]

    def __iter__(self) -> Iterator[System]:
        return iter(self._made.values())


def _make(kind: str, name: str, address: str) -> System:
    if kind == LOG:
        if not address:
            raise ConfigError(
                f"system {name!r} is a log somewhere else; set systems.{name}.address to where its "
                f"node listens"
            )
        kind = "s4node.systems.embedded_log:EmbeddedLog"  # brings sockets along
    made: System = plugins.made(kind, f"systems.{name}.type", "system", name, address)
    plugins.lacking(made, _METHODS, kind, f"systems.{name}.type", "system")
    return made
