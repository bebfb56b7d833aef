"""The line between a supervisor and each of its container processes: what goes over it.

Rules
- JSON objects, one a line, over a socket that the container process inherits. No event and no code
  goes over it, only what to run and how that goes.
- The end of the line is a message too. A container whose supervisor is gone drains and ends itself,
  so nothing is left behind whatever happens to the supervisor.
"""

from __future__ import annotations

from typing import Any

import msgspec

from s4node.config import settings
from s4node.config.config import Config

MAX_LINE_BYTES = 8 << 20
"""A line that is longer is no message of ours."""


LOG_ADDRESS = "systems.log.address"
"""The setting that tells a container where its node's log is."""


def handed_on(config: Config, address: str) -> dict[str, str]:
    """What a container process gets of its supervisor's settings, by name.

    The log's folder stays with the supervisor, which serves it at ``address``.
    """
    given = {entry.name: entry.text for entry in config.items() if entry.origin != "default"}
    given.pop(settings.LOG_FOLDER.name, "")
    if log := log_of(config, address):
        given.setdefault(LOG_ADDRESS, log)
    return given


def log_of(config: Config, address: str) -> str:
    """Where the log of a supervisor is that listens at ``address``; empty where it has none."""
    return address if config[settings.LOG_FOLDER] else ""


class Message(msgspec.Struct, tag_field="say", frozen=True):
    """The base of all messages."""


class Begin(Message, tag="begin", frozen=True):
    """To a container, once, first: what it is to run.

    Either ``target`` (as for ``s4 run``) or ``package`` (the file of a package with this
    ``digest``, and the ``folder`` to unpack it in) is the app, and ``app`` its name; empty where
    the app's own code says it. ``member`` is the container's name, unique in its cluster; with
    ``coordination`` (a folder) it shares the app's partitions with the ``expected`` members.
    ``redirector`` is the address for programs outside, ``log`` that of the supervisor's log, empty
    without one. ``exit_record`` is the file in which it is written how the process ends.
    """

    app: str
    member: str
    settings: dict[str, str]
    target: str = ""
    package: str = ""
    digest: str = ""
    version: str = ""
    folder: str = ""
    node: str = ""
    coordination: str = ""
    redirector: str = ""
    log: str = ""
    exit_record: str = ""
    expected: int = 1
    adapter: bool = False
    hold: bool = False
    """Wait with the graph checked, and join nothing before Go comes."""
    pulse_seconds: float = 1.0


class Go(Message, tag="go", frozen=True):
    """To a container that holds: begin."""


class Stop(Message, tag="stop", frozen=True):
    """To a container: drain and end."""


class Prepared(Message, tag="prepared", frozen=True):
    """From a container: the app is loaded and its graph is good. ``inputs`` are those that come
    over sockets."""

    app: str
    inputs: list[str]
    outputs: list[str]
    levels: dict[str, int] = {}
    """By stream, how many others lie before it on the way from an input."""


class Ready(Message, tag="ready", frozen=True):
    """From a container: it runs, and listens at ``address``."""

    app: str
    address: str
    inputs: list[str]
    outputs: list[str]


class Failed(Message, tag="failed", frozen=True):
    """From a container, right before it ends: why. ``status`` is its exit status to come, ``lost``
    whether it ends for a stop, with events that nobody keeps."""

    error: str
    trace: str = ""
    status: int = 1
    lost: bool = False


class Done(Message, tag="done", frozen=True):
    """From a container, right before it ends: its tasks have nothing left to do, or asked for it.

    It is not started again."""


class Pulse(Message, tag="pulse", frozen=True):
    """From a container, again and again: it lives, and these are its statistics."""

    statistics: dict[str, Any]


FromContainer = Prepared | Ready | Failed | Done | Pulse
ToContainer = Begin | Go | Stop

_from_container: msgspec.json.Decoder[FromContainer] = msgspec.json.Decoder(FromContainer)
_to_container: msgspec.json.Decoder[ToContainer] = msgspec.json.Decoder(ToContainer)


def encode(message: Message) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"


def from_container(line: bytes) -> FromContainer:
    """The message in a line; raises msgspec.MsgspecError where there is none."""
    return _from_container.decode(line)


def to_container(line: bytes) -> ToContainer:
    """The message in a line; raises msgspec.MsgspecError where there is none."""
    return _to_container.decode(line)


class Lines:
    """Cuts what arrives into lines."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of the line that has no end yet
        self._bytes = 0

    def feed(self, data: bytes | bytearray) -> list[bytes]:
        """The lines that are complete with ``data``; raises ValueError for one without an end."""
        *lines, rest = bytes(data).split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts, self._bytes = [], 0
        self._parts.append(rest)
        self._bytes += len(rest)
        if self._bytes > MAX_LINE_BYTES:
            raise ValueError(f"a line of more than {MAX_LINE_BYTES} bytes")
        return lines
