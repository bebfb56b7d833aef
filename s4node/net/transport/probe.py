"""Looks what is at an address, over a connection of its own: no trio, no nng.

Rules
- The kernel takes a TCP connection even for a program that hangs, and any program may take part in
  nng's handshake. Every node answers a query, if only that it cannot: that is what is awaited.
- A node neither logs that nor counts anything but the connection.
"""

from __future__ import annotations

import socket
import struct
import time

from s4node.errors import ConfigError, RemoteFrameError
from s4node.net.wire import frame as wire

_HANDSHAKE = bytes.fromhex("00 53 50 00 00 10 00 00")  # SP, protocol Pair0
_LENGTH = struct.Struct(">Q")
_MAX_ANSWER = 1 << 20
_QUESTION = wire.envelope([wire.encode_frame(wire.Query(0, "are you there"))])


def look(address: str, seconds: float) -> str:
    """What is wrong with what listens at ``address``, to go on a sentence; empty for a node.

    Raises TimeoutError where nothing answers within ``seconds``, another OSError where nothing can
    be reached, and ConfigError for what is no address. It blocks, up to twice as long.
    """
    with socket.create_connection(_parts(address), seconds) as peer:
        until = time.monotonic() + seconds
        try:
            peer.sendall(_HANDSHAKE)
            answer = _received(peer, len(_HANDSHAKE), until)
            if answer and answer != _HANDSHAKE:
                return f"is no node: it answered {answer!r}; its port may be another program's"
            peer.sendall(_LENGTH.pack(len(_QUESTION)) + _QUESTION)
            size = _received(peer, _LENGTH.size, until)
            if len(size) == _LENGTH.size:
                return _judged(_received(peer, min(*_LENGTH.unpack(size), _MAX_ANSWER), until))
        except (BrokenPipeError, ConnectionResetError):
            pass
    return (
        "is no node, or one with as many connections as s4.listener.maxConnections lets it have: "
        "it closes this one without an answer; look at its log"
    )


def _judged(message: bytes) -> str:
    """What is wrong with an answer; it is a node's if a frame of it can be read."""
    problem = "an empty message"
    try:
        for frame in wire.read_envelope(message, _MAX_ANSWER):
            if isinstance(frame, wire.Frame):
                return ""
            problem = frame.reason
    except RemoteFrameError as error:
        problem = str(error)
    return (
        f"is no node: it answers with no frame of s4node ({problem}); its port may be another "
        f"program's"
    )


def _received(peer: socket.socket, size: int, until: float) -> bytes:
    """So many bytes, or fewer if it closes before."""
    data = b""
    while len(data) < size:
        peer.settimeout(max(until - time.monotonic(), 0.001))
        chunk = peer.recv(size - len(data))
        if not chunk:
            break
        data += chunk
    return data


def _parts(address: str) -> tuple[str, int]:
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{address!r} is no address; write tcp://host:port")
    return host.strip("[]"), int(port)
