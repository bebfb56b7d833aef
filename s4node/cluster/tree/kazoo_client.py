"""kazoo's client, for one session of ZooKeeper only.

Rules
- kazoo has the connection, in threads of its own. A listener learns of it there.
- kazoo would go on with a new session when one has expired. It is stopped in its own thread before
  it connects again, and refuses all calls from then on.
- kazoo sends no heartbeats of its own, so a process whose loop hangs gives up its session, although
  kazoo's threads live on.
- The end may come from several threads, and on a broken socket: they take turns, and what kazoo
  raises then does not matter.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import SHUT_RDWR
from threading import Lock
from typing import Any, ClassVar, Protocol

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import AuthFailedError, SessionExpiredError
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect, Watch
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, CREATOR_ALL_ACL

from s4node.config import properties
from s4node.errors import ConfigError
from s4node.forks import closed_in_forks

_MOST_RETRY_SECONDS = 0.5

_CREDENTIALS = (
    "username",
    "password",
    "mechanism",
    "service",
    "principal",
    "ca",
    "certificate",
    "key",
)

_quiet = logging.getLogger("s4node.kazoo")  # the session logs what matters
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False


class Listener(Protocol):
    """The calls of a client, in kazoo's threads, when something has happened to its session."""

    def granted(self, id_: int, password: bytes, seconds: float) -> None:
        """Note the session and the timeout that a server has granted."""

    def on_state(self, state: str, error: Exception | None) -> None:
        """Note a state of the connection; with LOST, why the session has ended."""

    def on_change(self, place: str) -> None:
        """Note a change at ``place``, which is watched."""


def credentials_of(path: str) -> dict[str, Any]:
    """kazoo's options for the credentials in a file; raises ConfigError, without the text of a line
    that is not understood, because it may be a password."""
    given: dict[str, str] = {}
    known = ", ".join(_CREDENTIALS)
    for line in properties.read(Path(path).expanduser()):
        if isinstance(line, properties.Problem):
            wrong = f"{line.file}:{line.line}: write key = value" if line.line else str(line)
            raise ConfigError(f"{wrong}; the keys are {known}")
        if line.name not in _CREDENTIALS:
            raise ConfigError(f"{line.location} has another key than {known}; remove the line")
        given[line.name] = line.text
    options: dict[str, Any] = {}
    if "mechanism" in given:
        names = ("mechanism", "username", "password", "service", "principal")
        options["sasl_options"] = {name: given[name] for name in names if name in given}
    elif "username" in given:
        options["auth_data"] = [("digest", f"{given['username']}:{given.get('password', '')}")]
    if options or "certificate" in given:
        options["default_acl"] = CREATOR_ALL_ACL
    if {"ca", "certificate", "key"} & given.keys():
        options["use_ssl"] = options["check_hostname"] = True
        for name, kazoo_name in (("ca", "ca"), ("certificate", "certfile"), ("key", "keyfile")):
            options[kazoo_name] = given.get(name)
    return options


@dataclass(frozen=True)
class _AddWatch:
    """ZooKeeper's request for a persistent, recursive watch, which kazoo lacks."""

    path: str
    type: ClassVar[int] = 106

    def serialize(self) -> bytes:
        path = self.path.encode()
        return struct.pack("!i", len(path)) + path + struct.pack("!i", 1)

    @classmethod
    def deserialize(cls, _buffer: bytes, _offset: int) -> bool:
        return True


class OneSessionClient(KazooClient):  # type: ignore[misc]
    def __init__(self, listener: Listener, **options: Any) -> None:
        retry = KazooRetry(max_tries=-1, delay=0.05, max_delay=_MOST_RETRY_SECONDS)
        super().__init__(connection_retry=retry, logger=_quiet, **options)
        self.listener = listener
        ways = {"auth_data": "digest", "sasl_options": "sasl", "certfile": "x509"}
        self._schemes = {scheme for option, scheme in ways.items() if options.get(option)}
        sasl = options.get("sasl_options")
        self._connection: Any = _Connection(self, self._conn_retry.copy(), _quiet, sasl)
        self._ending = Lock()

    def watch_async(self, path: str) -> Any:
        """Watch ``path`` and everything below it for as long as the connection lasts."""
        result = self.handler.async_result()
        self._call(_AddWatch(path), result)
        return result

    def has_alone(self, acl: Iterable[ACL]) -> bool:
        """Return True if an entry that this session can use is for those with its credentials."""
        schemes = [each.id.scheme for each in acl]  # a session has at most one id of each
        return self._schemes.issuperset(schemes) and len(set(schemes)) == len(schemes)

    def on_state(self, state: str) -> None:
        """Pass on a state of the connection; do not begin another session. In kazoo's thread."""
        error: Exception | None = None
        if state == KazooState.LOST:
            self._stopped.set()
            error = {
                KeeperState.AUTH_FAILED: AuthFailedError(),
                KeeperState.EXPIRED_SESSION: SessionExpiredError(),
            }.get(self._state)
        self.listener.on_state(state, error)

    def leave_server(self) -> None:
        """Break the connection to a server that does not answer."""
        with suppress(OSError, AttributeError):
            self._connection._socket.shutdown(SHUT_RDWR)

    def shut(self) -> None:
        """End the session and the threads. May be called twice, in any thread but kazoo's."""
        with self._ending, suppress(Exception):  # kazoo raises what it likes on a broken socket
            if self._stopped.is_set():
                self._safe_close()
            else:
                self.stop()
            self.close()


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection, which reports to the session what kazoo does not."""

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        answer = super()._invoke(timeout, request, xid)
        if isinstance(request, Connect):
            closed_in_forks(self._socket)
        if isinstance(request, Connect) and answer[0].time_out > 0:
            granted = answer[0]
            self.client.listener.granted(
                granted.session_id, granted.passwd, granted.time_out / 1000
            )
        return answer

    def _send_ping(self, connect_timeout: float) -> None:
        """Send none: the loop sends heartbeats."""

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        watch, _ = Watch.deserialize(buffer, offset)
        self.client.listener.on_change(watch.path)
