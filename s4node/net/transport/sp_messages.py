"""nng's framing for TCP ("SP"): a handshake, then messages with their length before them. Pure.

Rules
- Memory follows the bytes that have come, never the length that a peer announces.
- A message that is too long is passed over as it comes, and costs no memory.
- One call returns a bounded number of messages, because bytes may hold very many short ones. The
  bytes after them are kept, and go on with the next call.
- A message that has come whole is copied once. The bytes of an unfinished one are kept here, and
  each is copied once more, so the work is linear in the bytes. They are kept in pieces: many arrays
  that grow at the same time leave holes in the memory of the process, several times their size.
"""

from __future__ import annotations

import struct

from s4node.errors import RemoteFrameError

HANDSHAKE = bytes.fromhex("00 53 50 00 00 10 00 00")
"""Sent once by each side: SP, version 0, protocol Pair0."""

_LENGTH = struct.Struct(">Q")
_PIECE_BYTES = 65_536
_MOST = 512
"""The messages of one call, about."""
_NOTHING = memoryview(b"")


def framed(message: bytes) -> bytes:
    return _LENGTH.pack(len(message)) + message


class SpMessages:
    """Splits the bytes of one connection into messages of at most ``max_bytes``."""

    __slots__ = (
        "_head",
        "_max_bytes",
        "_passed",
        "_pieces",
        "_size",
        "greeted",
        "rest",
        "unfinished",
    )

    def __init__(self, max_bytes: int) -> None:
        self.greeted = False
        """True if the peer's handshake has come."""
        self._max_bytes = max_bytes
        self._head = b""  # of a handshake or a length
        self._pieces: list[bytearray] = []
        self._size = 0  # of the message in pieces; 0 if there is none
        self._passed = 0  # the bytes of a message to pass over
        self.rest = _NOTHING
        """Bytes that are not split yet; the next call has to take them."""
        self.unfinished = 0
        """The bytes of a message that has not come whole."""

    def split(self, data: memoryview) -> list[bytes | RemoteFrameError]:
        """The next messages that end in ``data``, which may change afterwards.

        A longer message is an error in the list. Raises RemoteFrameError for another handshake.
        """
        found: list[bytes | RemoteFrameError] = []
        at, end, rest = 0, len(data), data is self.rest
        while at < end:
            if len(found) >= _MOST:
                self.rest = data[at:] if rest else memoryview(bytes(data[at:]))
                return found
            if self._passed:
                gone = min(self._passed, end - at)
                self._passed -= gone
                at += gone
                continue
            if not self._size:
                if self._head or end - at < _LENGTH.size:
                    missing = _LENGTH.size - len(self._head)
                    self._head += data[at : at + missing]
                    at += missing
                    if at > end:
                        break
                    head, self._head = self._head, b""
                else:
                    head = bytes(data[at : at + _LENGTH.size])
                    at += _LENGTH.size
                if not self.greeted:
                    self._greet(head)
                    continue
                (size,) = _LENGTH.unpack(head)
                if size > self._max_bytes:
                    self._passed = size
                    found.append(
                        RemoteFrameError(
                            f"a message of {size} bytes is over the limit of {self._max_bytes} "
                            f"(s4.listener.maxEnvelopeBytes)"
                        )
                    )
                    continue
                if size <= end - at:
                    found.append(bytes(data[at : at + size]))
                    at += size
                    continue
                self._size = size
            missing = self._size - self.unfinished
            self._keep(data[at : at + missing])
            at += missing
            if at <= end:
                found.append(b"".join(self._pieces))
                self._pieces, self._size, self.unfinished = [], 0, 0
        self.rest = _NOTHING
        return found

    def _keep(self, data: memoryview) -> None:
        if self._pieces and len(self._pieces[-1]) < _PIECE_BYTES:
            self._pieces[-1] += data
        else:
            self._pieces.append(bytearray(data))
        self.unfinished += len(data)

    def _greet(self, handshake: bytes) -> None:
        if handshake != HANDSHAKE:
            raise RemoteFrameError(
                f"a connection begins with nng's handshake for Pair0, not {handshake!r}"
            )
        self.greeted = True
