"""What has come from an address that was dialled: whether it is a node, and what is worth a line.

Rules
- Who has sent nothing that can be read, but what is no frame, is a stranger: the port may be
  another program's. One frame that can be read, and it is none.
- A bad answer is told once, and so is the end of a connection. Both are told again when a later
  connection has brought a good answer, so a peer that comes and goes without one writes two lines.
"""

from __future__ import annotations


class PeerAnswers:
    """The answers of one address, over all connections to it."""

    def __init__(self) -> None:
        self.answered = False
        """Whether a frame could be read on this connection."""
        self._bad = ""
        self._told_bad = False
        self._told_end = False

    @property
    def stranger(self) -> str:
        """Why what is there seems to be no node, as the end of a sentence; empty if it may be."""
        if not self._bad:
            return ""
        return (
            f"what is there answers, but with no frame of s4node ({self._bad}); its port may be "
            f"another program's"
        )

    def good(self) -> None:
        """A frame could be read."""
        if not self.answered:
            self.answered = True
            self._bad = ""
            self._told_bad = self._told_end = False

    def bad(self, reason: str) -> bool:
        """Something could not be read; returns whether to tell it."""
        if not self.answered:
            self._bad = reason
        told, self._told_bad = self._told_bad, True
        return not told

    def ended(self) -> bool:
        """The connection has ended; returns whether to tell it."""
        self.answered = False
        told, self._told_end = self._told_end, True
        return not told
