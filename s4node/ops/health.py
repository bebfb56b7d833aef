"""``s4 health``: does a node answer? For health checks, so it is cheap: no trio, no nng.

Rules
- The kernel takes a TCP connection even for a program that hangs. The answer to nng's handshake
  comes only after the node's event loop has accepted the connection, so that is what is awaited.
- No frame is sent: a node neither logs a check nor counts anything but the connection.
"""

from __future__ import annotations

import socket

from s4node.errors import ConfigError, ConnectionRefused

_HANDSHAKE = bytes.fromhex("00 53 50 00 00 10 00 00")  # SP, protocol Pair0


def check(address: str, timeout: float) -> None:
    """Return if a node answers at ``address`` within ``timeout`` seconds.

    Raises ConnectionRefused with what happened instead, and ConfigError for what is no address.
    """
    host, port = _parts(address)
    try:
        with socket.create_connection((host, port), timeout) as peer:
            peer.settimeout(timeout)
            peer.sendall(_HANDSHAKE)
            answer = _received(peer, len(_HANDSHAKE))
    except TimeoutError:
        raise ConnectionRefused(
            f"nothing answers at {address} within {timeout:g} s; the node hangs, is overloaded or "
            f"cannot be reached: look at its log, or give it a longer --timeout"
        ) from None
    except OSError as error:
        raise ConnectionRefused(
            f"no node can be reached at {address}: {error.strerror or error}; "
            f"start one there, or name its s4.listener.address"
        ) from error
    if answer != _HANDSHAKE:
        raise ConnectionRefused(
            f"what listens at {address} is no node: it answered {answer!r}; "
            f"name a node's s4.listener.address"
        )


def _received(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
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
