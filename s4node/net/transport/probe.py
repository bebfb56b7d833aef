"""The probe of an address: asks whether a node answers there, without trio or nng.

Rules
- The kernel accepts TCP connections even for a program that hangs, and any program may speak nng's
  handshake. But every node answers a query, if only with an error, so the probe sends one.
- A node does not log the probe, and counts only its connection.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from contextlib import suppress

from s4node.errors import ConfigError, RemoteFrameError
from s4node.net.certificates.credentials import SCHEME, Credentials, missing, tls_problem
from s4node.net.transport.sp_messages import HANDSHAKE, framed
from s4node.net.wire import frame as wire

_LENGTH = struct.Struct(">Q")
_MAX_ANSWER = 1 << 20
_CLOSED = BrokenPipeError, ConnectionResetError, ssl.SSLEOFError
_QUESTION = wire.envelope([wire.encode_frame(wire.Query(0, "are you there"))])


def look(address: str, seconds: float, credentials: Credentials | None = None) -> str:
    """The problem at ``address``, as the end of a sentence; empty for a node.

    Raises TimeoutError if nothing answers within ``seconds``, another OSError if nothing can be
    reached, and ConfigError for a bad address. Blocks for up to twice ``seconds``.
    """
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
                peer.sendall(framed(_QUESTION))
            size = _received(peer, _LENGTH.size, until)
            if len(size) == _LENGTH.size:
                return _judged(_received(peer, min(*_LENGTH.unpack(size), _MAX_ANSWER), until))
        except ssl.SSLError as error:
            return tls_problem(error)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            peer.close()
    return "is not a node, or was about to stop: it closes the connection without an answer"


def _judged(message: bytes) -> str:
    """The problem of an answer; empty if a frame of it can be read."""
    problem = "an empty message"
    try:
        for frame in wire.read_envelope(message, _MAX_ANSWER):
            if isinstance(frame, wire.Frame):
                if isinstance(frame.header, wire.Drain):
                    return f"turns peers away: {frame.header.reason}"
                return ""
            problem = frame.reason
    except RemoteFrameError as error:
        problem = str(error)
    return (
        f"is not a node: its answer is not an s4node frame ({problem}); the port may be another "
        f"program's"
    )


def _received(peer: socket.socket, size: int, until: float) -> bytes:
    """``size`` bytes, or fewer if the peer closes before."""
    data = b""
    while len(data) < size:
        peer.settimeout(max(until - time.monotonic(), 0.001))
        chunk = peer.recv(size - len(data))
        if not chunk:
            break
        data += chunk
    return data


def _parts(address: str) -> tuple[bool, str, int]:
    """True for TLS, and the host and port."""
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme not in ("tcp", SCHEME) or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"{address!r} is not an address; write tcp://host:port, or tls+tcp:// with TLS"
        )
    return scheme == SCHEME, host.strip("[]"), int(port)
