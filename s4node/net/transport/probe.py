"""The probe of an address: asks the node there something, without trio or nng.

Rules
- The kernel accepts TCP connections even for a program that hangs, and any program may speak nng's
  handshake. But every node answers a query, if only with an error, so the probe sends one.
- A node does not log the probe, and counts only its connection.
- There is one attempt, so a failure is what happened, and not only that there was no answer.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from s4node.errors import ConfigError, RemoteFrameError
from s4node.net.certificates.credentials import SCHEME, Credentials, missing, tls_problem
from s4node.net.transport.sp_messages import HANDSHAKE, framed
from s4node.net.wire import frame as wire

_ID = 1
_LENGTH = struct.Struct(">Q")
_MAX_ANSWER = 16 << 20
_CLOSED = BrokenPipeError, ConnectionResetError, ssl.SSLEOFError


def look(address: str, seconds: float, credentials: Credentials | None = None) -> str:
    """The problem at ``address``, as the end of a sentence; empty for a node. See :func:`ask`."""
    found = ask(address, "are you there", {}, seconds, credentials)
    return found if isinstance(found, str) else ""


def ask(
    address: str,
    question: str,
    arguments: Mapping[str, Any],
    seconds: float,
    credentials: Credentials | None = None,
) -> wire.Header | str:
    """The answer of the node at ``address`` to a query, or the problem there, as the end of a
    sentence. A node that does not know queries answers with another frame.

    Raises TimeoutError if nothing answers within ``seconds``, another OSError if nothing can be
    reached, and ConfigError for a bad address. Blocks for up to twice ``seconds``.
    """
    query = wire.envelope([wire.encode_frame(wire.Query(_ID, question, dict(arguments)))])
    tls, host, port = _parts(address)
    if tls and credentials is None:
        raise missing(address)
    peer = socket.create_connection((host, port), seconds)
    until = time.monotonic() + seconds
    with peer:
        try:
            if tls:
                assert credentials is not None
                peer = credentials.dialled(peer)
            with suppress(*_CLOSED):  # it may have said why, which is read below
                peer.sendall(HANDSHAKE)
            answer = _received(peer, len(HANDSHAKE), until)
            if answer and answer != HANDSHAKE:
                return f"is not a node: it answered {answer!r}; the port may be another program's"
            with suppress(*_CLOSED):  # it may have answered before
                peer.sendall(framed(query))
            while len(size := _received(peer, _LENGTH.size, until)) == _LENGTH.size:
                message = _received(peer, min(*_LENGTH.unpack(size), _MAX_ANSWER), until)
                if (found := _judged(message)) is not None:
                    return found
        except ssl.SSLError as error:
            return tls_problem(error)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            peer.close()
    wants = "" if tls else f"; if it wants certificates, its address is tls+{address}"
    return f"is not a node, or was about to stop: it closes the connection without an answer{wants}"


def _judged(message: bytes) -> wire.Header | str | None:
    """The answer in a message, or its problem; None if a node answers something else there."""
    problem = "an empty message"
    try:
        for frame in wire.read_envelope(message, _MAX_ANSWER):
            if isinstance(frame, wire.Frame):
                header = frame.header
                if isinstance(header, wire.Drain):
                    return f"turns peers away: {header.reason}"
                if isinstance(header, wire.Answer) and header.id == wire.NOTICE:
                    problem = ""
                    continue
                return header
            problem = frame.reason
    except RemoteFrameError as error:
        problem = str(error)
    if not problem:
        return None
    return (
        f"is not a node: its answer is not an s4node frame ({problem}); the port may be another "
        f"program's"
    )


def _received(peer: socket.socket, size: int, until: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        peer.settimeout(max(until - time.monotonic(), 0.001))
        chunk = peer.recv(size - len(data))
        if not chunk:
            break
        data += chunk
    return bytes(data)


def _parts(address: str) -> tuple[bool, str, int]:
    """True for TLS, and the host and port."""
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme not in ("tcp", SCHEME) or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"{address!r} is not an address; write tcp://host:port, or tls+tcp:// with TLS"
        )
    return scheme == SCHEME, host.strip("[]"), int(port)
