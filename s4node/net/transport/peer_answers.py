"""The answers of a dialled address: is it a node, and which of its faults to log. Pure.

Rules
- A peer that has sent only unreadable frames is a stranger: the port may be another program's. One
  readable frame makes it a node.
- A bad answer, and the end of a connection, are logged once, and again only after a later
  connection has brought a good answer. So a peer that comes and goes without one causes two lines.
"""

from __future__ import annotations


class PeerAnswers:
    """The answers of one address, over all connections to it."""

    def __init__(self) -> None:
        self.answered = False
        """True if a frame could be read on this connection."""
        self._bad = ""
        self._told_bad = False
        self._told_end = False

    @property
    def stranger(self) -> str:
        """Why the peer seems not to be a node, as the end of a sentence; empty if it may be one."""
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
            self._told_bad = self._told_end = False

    def bad(self, reason: str) -> bool:
        """Note a frame that could not be read; return True if it should be logged."""
        if not self.answered:
            self._bad = reason
        told, self._told_bad = self._told_bad, True
        return not told

    def disconnected(self) -> bool:
        """Note the end of the connection; return True if it should be logged."""
        self.answered = False
        told, self._told_end = self._told_end, True
        return not told
