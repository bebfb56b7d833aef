"""The protocol between a supervisor and each of its container processes.

Rules
- Messages are JSON objects, one per line, over a socket that the container process inherits. They
  say what to run and how it goes; they contain neither events nor code.
- The end of the connection is a message, too: a container whose supervisor is gone drains and ends,
  so that nothing is left behind.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from s4node.config import settings
from s4node.config.config import Config
from s4node.metrics.statistics import ContainerStatistics
from s4node.metrics.table import Sample
from s4node.savepoints.manifest import AS_IS, StateCheck

MAX_LINE_BYTES = 8 << 20
"""The longest valid line."""


LOG_ADDRESS = "systems.log.address"
"""The setting that gives a container the address of its node's log."""


def handed_on(config: Config, log: str) -> dict[str, str]:
    """The settings that a supervisor passes on to a container process, by name.

    The log's folder stays with the supervisor; ``log`` is the log's address, or empty.
    """
    given = {entry.name: entry.text for entry in config.items() if entry.origin != "default"}
    given.pop(settings.LOG_FOLDER.name, "")
    if log:
        given.setdefault(LOG_ADDRESS, log)
    return given


def log_of(config: Config, address: str) -> str:
    """The address of the log of a process at ``address``; empty if it has no log."""
    return address if config[settings.LOG_FOLDER] else ""


class Message(msgspec.Struct, tag_field="say", frozen=True):
    """The base of all messages."""


class Begin(Message, tag="begin", frozen=True):
    """To a container, first: what to run.

    ``package`` is the file of the app's package, which has this ``digest`` and is unpacked to
    ``folder``. ``member`` is the container's name, unique in its cluster; with ``coordination`` (a
    place) it shares the app's partitions with ``expected`` members. ``redirector`` is the address
    for outside programs, and ``log`` that of the node's log, or empty.
    """

    app: str
    member: str
    settings: dict[str, str]
    package: str
    digest: str
    folder: str
    version: str = ""
    node: str = ""
    coordination: str = ""
    redirector: str = ""
    log: str = ""
    expected: int = 1
    hold: bool = False
    """Check the graph, then wait for Go before joining."""
    check: StateCheck = AS_IS
    """How it checks saved state if it is held."""
    pulse_seconds: float = 0.75  # and a page asks each second: within two it shows an event
    place: int = 0
    """Its number among the processes of its node."""


class Go(Message, tag="go", frozen=True):
    """To a held container: begin."""


class Stop(Message, tag="stop", frozen=True):
    """To a container: drain and end."""


class Prepared(Message, tag="prepared", frozen=True):
    """From a container: the app is loaded and checked. ``inputs`` are its live inputs."""

    inputs: list[str]
    outputs: list[str]


class Enrolled(Message, tag="enrolled", frozen=True):
    """From a container: it has a session of its cluster, which ends with this ``key``."""

    key: str


class Ready(Message, tag="ready", frozen=True):
    """From a container: it is running, and listens at ``address``."""

    address: str


class Settled(Message, tag="settled", frozen=True):
    """From a container, after Ready: it has the partitions that others were to hand over."""


class Failed(Message, tag="failed", frozen=True):
    """From a container, right before it ends: why. ``status`` is its exit status; ``lost`` means
    that it was stopped, and that events which nobody keeps were lost."""

    error: str
    trace: str = ""
    status: int = 1
    lost: bool = False


class Done(Message, tag="done", frozen=True):
    """From a container, right before it ends: its tasks are finished, or asked for the end.

    It is not restarted."""


class Pulse(Message, tag="pulse", frozen=True):
    """From a container, regularly: it lives, and has these statistics once its tasks are made, or
    while its state cannot be read.

    ``own`` are the metrics of the app's author, if the node serves monitoring.
    """

    statistics: ContainerStatistics | None = None
    own: list[Sample] = []


FromContainer = Prepared | Enrolled | Ready | Settled | Failed | Done | Pulse
ToContainer = Begin | Go | Stop

from_container: Callable[[bytes], FromContainer] = msgspec.json.Decoder(FromContainer).decode
to_container: Callable[[bytes], ToContainer] = msgspec.json.Decoder(ToContainer).decode


def encode(message: Message) -> bytes:
    return msgspec.json.encode(message) + b"\n"


class Lines:
    """Splits received bytes into lines."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of the unfinished line
        self._bytes = 0

    def feed(self, data: bytes | bytearray) -> list[bytes]:
        """The lines that ``data`` completes; raises ValueError if a line is too long."""
        *lines, rest = bytes(data).split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts, self._bytes = [], 0
        self._parts.append(rest)
        self._bytes += len(rest)
        if self._bytes > MAX_LINE_BYTES:
            raise ValueError(f"a line of more than {MAX_LINE_BYTES} bytes")
        return lines
