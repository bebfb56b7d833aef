"""The peer at an address that was dialled: its good frames, and a log line for a bad one.

Rules
- A bad frame is logged as :mod:`s4node.net.transport.peer_answers` says, and reading goes on after
  it.
- A good frame tells the socket that its peer answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from s4node.errors import RemoteFrameError
from s4node.net.certificates.credentials import Credentials
from s4node.net.transport import network
from s4node.net.transport.network import DialledPipe, Pipe
from s4node.net.transport.peer_answers import PeerAnswers
from s4node.net.wire import frame as wire

_MAX_BYTES = 16_777_216
"""The longest message, and the longest frame, that is accepted."""


class DialledPeer:
    """The connections to ``address``, one after the other; ``log`` is the caller's log."""

    def __init__(self, address: str, log: Any, credentials: Credentials | None) -> None:
        self.address = address
        self.credentials = credentials
        self.answers = PeerAnswers()
        self._log = log

    def dial(self, on_change: Callable[[bool], None]) -> DialledPipe:
        """Connect, and reconnect until closed; ``on_change(connected)`` reports each change."""
        return network.current.dial(self.address, _MAX_BYTES, on_change, self.credentials)

    def frames(self, socket: Pipe, data: bytes) -> Iterator[wire.Frame]:
        """The good frames of an envelope that has come over ``socket``."""
        try:
            for frame in wire.read_envelope(data, _MAX_BYTES):
                if isinstance(frame, wire.BadFrame):
                    self.bad(frame.reason)
                else:
                    socket.answered()
                    if not self.answers.answered:  # the first of its connection
                        self.answers.good()
                    yield frame
        except RemoteFrameError as error:
            self.bad(str(error))

    def bad(self, reason: str) -> None:
        """Log a bad frame, the first of a connection."""
        if self.answers.bad(reason):
            self._log.warning(
                "bad frame; further ones are not logged", address=self.address, reason=reason
            )
