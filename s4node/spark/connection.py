"""A connection to a node for a thread that may block: frames out and in, and questions.

Rules
- The connection speaks nng's Pair0 over TCP itself, as docs/wire-protocol.md says. A Python worker
  of Spark has one thread and no event loop; a client in another thread would take half as long
  again.
- A peer that breaks the protocol, or does not answer in time, is an OSError: connect again.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from s4node import errors
from s4node.errors import ConnectionRefused, RemoteFrameError, S4Error, SinkError
from s4node.net.certificates.credentials import Credentials, is_tls, missing, tls_problem
from s4node.net.transport.pair_socket import host_and_port
from s4node.net.wire import frame as wire

_HANDSHAKE = b"\x00SP\x00\x00\x10\x00\x00"
_LENGTH = struct.Struct(">Q")
_MOST_BYTES = 64 << 20  # of a message
_RECEIVE_BYTES = 262_144
_CONNECT_SECONDS = 5.0
_NEXT_SECONDS = 1.0  # for each of several addresses: those that are not for us may not answer
_PAUSE_SECONDS = 0.1


class NoAnswerError(ConnectionRefused):
    """No node has answered in time. It may have done what it was asked for, or not."""

    def __init__(self, fact: str, fix: str) -> None:
        super().__init__(f"{fact}; {fix}")
        self.fact = fact


class WaitingError(TimeoutError):
    """A node does what it was asked for, and cannot go on at the moment; the text says why."""


class Connection:
    """A connection to the node at ``address``; ``patience`` bounds every call, in seconds, and
    ``opening`` how long it takes to connect.

    ``credentials`` are for an address with TLS.
    """

    def __init__(
        self,
        address: str,
        patience: float,
        credentials: Credentials | None = None,
        opening: float = _CONNECT_SECONDS,
    ) -> None:
        self.address = address
        self._patience = patience
        self._buffer = bytearray()
        self._asked = 0
        self.progressed = 0.0
        """The time of the last progress of a question, by the monotonic clock."""
        self._socket = socket.create_connection(
            host_and_port(address), timeout=min(patience, opening)
        )
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if is_tls(address):
                if credentials is None:
                    raise missing(address)
                self._socket = credentials.dialled(self._socket)
            self._socket.sendall(_HANDSHAKE)
            while len(self._buffer) < len(_HANDSHAKE):
                self._receive()
            if self._buffer[: len(_HANDSHAKE)] != _HANDSHAKE:
                raise ConnectionError(f"no s4node listens at {address}")
            del self._buffer[: len(_HANDSHAKE)]
            self._socket.settimeout(patience)
        except BaseException:
            self._socket.close()
            raise

    def send(self, *frames: bytes) -> None:
        data = wire.envelope(frames)
        self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def arrived(self, seconds: float) -> Iterator[wire.Header]:
        """The headers that have arrived; waits at most so many ``seconds`` for the first one."""
        if not self._message() and select.select([self._socket], [], [], seconds)[0]:
            self._receive()
        while size := self._message():
            data = bytes(self._buffer[_LENGTH.size : size])
            del self._buffer[:size]
            try:
                for frame in wire.read_envelope(data, _MOST_BYTES):
                    if isinstance(frame, wire.Frame):
                        yield frame.header
            except RemoteFrameError as error:
                raise ConnectionError(str(error)) from error

    def query(
        self,
        question: str,
        arguments: Mapping[str, Any],
        meanwhile: tuple[str, Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """The answer of the node's log; raises the error in the answer.

        ``meanwhile`` is a question about the progress of the first one, and is asked until that is
        answered. Whenever what it has ``carried`` changes, the patience begins anew; its
        ``trouble`` is why the node waits. Raises WaitingError if that is known in the end.
        """
        wanted, asked = self._ask(question, arguments), 0
        until, pause = time.monotonic() + self._patience, self._patience / 4
        ask_at = time.monotonic() + pause
        carried: int | None = None
        trouble = ""
        while (left := until - time.monotonic()) > 0:
            if meanwhile and not asked:
                left = min(left, max(0.0, ask_at - time.monotonic()))
            for header in self.arrived(left):
                if isinstance(header, wire.Drain):
                    raise ConnectionError(f"the node at {self.address} is stopping")
                if isinstance(header, wire.Verdict) and header.error:
                    raise SinkError(f"{self.address} refuses {question!r}: {header.error}")
                if not isinstance(header, wire.Answer):
                    continue
                if header.id == wanted:
                    if header.error:
                        raise _fault(header)
                    return header.values
                if header.id == asked:
                    asked, before = 0, carried
                    carried, trouble = header.values["carried"], header.values.get("trouble", "")
                    if before is not None and carried != before:
                        self.progressed = time.monotonic()
                        until = self.progressed + self._patience
            if meanwhile and not asked and time.monotonic() >= ask_at:
                asked, ask_at = self._ask(*meanwhile), time.monotonic() + pause
        raise (
            WaitingError(trouble)
            if trouble
            else TimeoutError(f"the node at {self.address} does not answer")
        )

    def _ask(self, question: str, arguments: Mapping[str, Any]) -> int:
        self._asked += 1
        self.send(wire.encode_frame(wire.Query(self._asked, question, dict(arguments))))
        return self._asked

    def close(self) -> None:
        self._socket.close()

    def _message(self) -> int:
        """The length of the next message with its own length, 0 if it has not arrived whole."""
        if len(self._buffer) < _LENGTH.size:
            return 0
        size = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
        if size > _MOST_BYTES:
            raise ConnectionError(f"{self.address} announces a message of {size} bytes")
        return size if len(self._buffer) >= size else 0

    def _receive(self) -> None:
        data = self._socket.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionError(f"the node at {self.address} has closed the connection")
        self._buffer += data


def connect(
    addresses: Sequence[str], patience: float, credentials: Credentials | None = None
) -> Connection:
    """A connection to the first of these nodes that answers; raises NoAnswerError after
    ``patience`` seconds."""
    until = time.monotonic() + patience
    opening = _CONNECT_SECONDS if len(addresses) == 1 else _NEXT_SECONDS
    while True:
        why = []
        for address in addresses:
            try:
                return Connection(address, patience, credentials, opening)
            except ssl.SSLError as error:
                why.append(f"{address} {tls_problem(error)}")
            except OSError as error:
                why.append(f"{address}: {error}")
        if time.monotonic() > until:
            raise NoAnswerError(
                f"no node answers within {round(patience, 1):g} s ({'; '.join(why)})",
                "start it, check its address, or raise option patience",
            )
        time.sleep(_PAUSE_SECONDS)


def ask(
    addresses: Sequence[str],
    patience: float,
    question: str,
    meanwhile: tuple[str, Mapping[str, Any]] | None = None,
    *,
    credentials: Credentials | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Ask the log of the first of these nodes that answers; asks again if a connection is lost.

    ``meanwhile`` is as for :meth:`Connection.query`. Raises the error in the answer, and
    NoAnswerError after ``patience`` seconds without one."""
    until = time.monotonic() + patience
    while True:
        connection = connect(addresses, max(0.1, until - time.monotonic()), credentials)
        try:
            return connection.query(question, arguments, meanwhile)
        except OSError as error:
            until = max(until, connection.progressed + patience)
            if time.monotonic() > until:
                where = f"the log at {connection.address}"
                waits = isinstance(error, WaitingError)
                raise NoAnswerError(
                    f"{where} waits since {round(patience, 1):g} s: {error}"
                    if waits
                    else f"{where} does not answer {question!r} ({error})",
                    "look at the node's log, or raise option patience",
                ) from error
        finally:
            connection.close()
        time.sleep(_PAUSE_SECONDS)


def _fault(answer: wire.Answer) -> S4Error:
    found = getattr(errors, str(answer.headers.get(wire.FAULT, "")), None)
    with suppress(TypeError):
        if isinstance(found, type) and issubclass(found, S4Error):
            return found(answer.error)
    return SinkError(answer.error)
