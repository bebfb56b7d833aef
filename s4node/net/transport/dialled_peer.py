"""The peer at an address that was dialled: is it a node, its good frames, and its faults.

Rules
- A peer that has sent only unreadable frames is a stranger: the port may be another program's. One
  readable frame makes it a node, and shows the socket that its peer answers. A drain does not, if
  it comes first: that node turns us away, and would do so again at once.
- A bad answer, and the end of a connection, are logged once, and again only after a later
  connection has brought a good answer. So a peer that comes and goes without one causes two lines.
  Reading goes on after a bad frame.
"""

from __future__ import annotations

from typing import Any

from s4node.errors import RemoteFrameError
from s4node.net.certificates.credentials import Credentials
from s4node.net.transport import network
from s4node.net.transport.network import DialledPipe, Pipe
from s4node.net.transport.sp_socket import PipeOwner
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

    def dial(self, owner: PipeOwner) -> DialledPipe:
        """Connect, and reconnect until closed; ``owner`` learns of each change."""
        return network.current.dial(self.address, _MAX_BYTES, owner, self.credentials)

    def frames(self, socket: Pipe, data: bytes) -> list[wire.Frame]:
        """The good frames of an envelope that has come over ``socket``."""
        good: list[wire.Frame] = []
        try:
            for frame in wire.read_envelope(data, _MAX_BYTES):
                if isinstance(frame, wire.BadFrame):
                    self.bad(frame.reason)
                else:
                    first = not self.answers.answered  # of its connection
                    if first and not isinstance(frame.header, wire.Drain):
                        socket.answered()
                        self.answers.good()
                    good.append(frame)
        except RemoteFrameError as error:
            self.bad(str(error))
        return good

    def bad(self, reason: str) -> None:
        """Log a bad frame, the first of a connection."""
        if self.answers.bad(reason):
            self._log.warning(
                "bad frame; further ones are not logged", address=self.address, reason=reason
            )


class PeerAnswers:
    """The answers of one address, over all connections to it."""

    def __init__(self) -> None:
        self.answered = False
        """True if a frame could be read on this connection."""
        self._bad = ""
        self._logged_bad = False
        self._logged_end = False

    @property
    def stranger(self) -> str:
        """The reason why the peer seems not to be a node, as the end of a sentence; or empty."""
        if not self._bad:
            return ""
        return (
            f"a program answers there, but not with an s4node frame ({self._bad}); the port may "
            f"be another program's"
        )

    def good(self) -> None:
        """Note a frame that could be read."""
        if not self.answered:
            self.answered = True
            self._bad = ""
            self._logged_bad = self._logged_end = False

    def bad(self, reason: str) -> bool:
        """Note a frame that could not be read; return True if it should be logged."""
        if not self.answered:
            self._bad = reason
        logged, self._logged_bad = self._logged_bad, True
        return not logged

    def disconnected(self) -> bool:
        """Note the end of the connection; return True if it should be logged."""
        self.answered = False
        logged, self._logged_end = self._logged_end, True
        return not logged
