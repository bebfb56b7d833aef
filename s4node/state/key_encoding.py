"""Keys of stores as bytes that sort as the keys do. Pure.

Rules
- A key is a ``str``, an ``int``, ``bytes``, or a tuple of those, as for streams.
- The bytes of two keys compare as the keys do: bytes before text before numbers, text by code
  point, a tuple by its parts. A tuple comes right before the tuples that it is the beginning of.
- The bytes of one key are never the beginning of another's, except for a tuple and its extensions.
- A tuple of one part has the bytes of that part, so a reader has to know whether keys are tuples.

The encoding is that of FoundationDB's tuple layer for these types.
"""

from __future__ import annotations

from typing import Any

from s4node.errors import StateError
from s4node.events.keys import Key

_BYTES, TEXT, _ZERO = 0x01, 0x02, 0x14
_LONGEST = 8  # the most bytes of a number


def encode(key: Key) -> bytes:
    """The bytes of a key; raises StateError if it is not a valid key."""
    if type(key) is tuple:
        if not key:
            raise _no_key(key)
        return b"".join(map(_part, key))
    return _part(key)


def _part(part: Any) -> bytes:
    if type(part) is str:
        try:
            return b"\x02%b\x00" % part.encode().replace(b"\x00", b"\x00\xff")
        except UnicodeEncodeError as error:
            raise StateError(f"{part!r} cannot be a key of a store: {error}") from error
    if type(part) is int:
        if part == 0:
            return b"\x14"
        size = (abs(part).bit_length() + 7) // 8
        if size > _LONGEST:
            raise StateError(f"{part} cannot be a key of a store: it takes more than 64 bits")
        if part > 0:
            return bytes((_ZERO + size,)) + part.to_bytes(size, "big")
        return bytes((_ZERO - size,)) + ((1 << (8 * size)) - 1 + part).to_bytes(size, "big")
    if type(part) is bytes:
        return b"\x01%b\x00" % part.replace(b"\x00", b"\x00\xff")
    raise _no_key(part)


def _no_key(key: Any) -> StateError:
    return StateError(
        f"{key!r} ({type(key).__name__}) cannot be a key of a store; use a str, an int, bytes, or "
        f"a tuple of those"
    )


def decode(data: bytes) -> Key:
    """The key of these bytes; several parts are a tuple.

    Raises ValueError if they are not the bytes of a key.
    """
    if data[:1] == b"\x02" and data.find(0) == len(data) - 1:  # a text and nothing else
        return data[1:-1].decode()
    parts = decode_tuple(data)
    return parts[0] if len(parts) == 1 else parts


def decode_tuple(data: bytes) -> tuple[Any, ...]:
    """The key of these bytes if keys are tuples: one part is a tuple of one.

    Raises ValueError if they are not the bytes of a key.
    """
    parts: list[Any] = []
    at = 0
    while at < len(data):
        tag = data[at]
        if tag in (_BYTES, TEXT):
            end = at + 1
            while True:
                end = data.index(0, end)
                if data[end + 1 : end + 2] != b"\xff":
                    break
                end += 2
            raw = data[at + 1 : end].replace(b"\x00\xff", b"\x00")
            parts.append(raw.decode() if tag == TEXT else raw)
            at = end + 1
        elif abs(tag - _ZERO) <= _LONGEST:
            size = abs(tag - _ZERO)
            raw = data[at + 1 : at + 1 + size]
            if len(raw) != size:
                raise ValueError(f"{data!r} ends within a number")
            number = int.from_bytes(raw, "big")
            parts.append(number if tag >= _ZERO else number - (1 << (8 * size)) + 1)
            at += 1 + size
        else:
            raise ValueError(f"{data!r} is not a key: {tag:#x} at {at}")
    if not parts:
        raise ValueError("a key has at least one byte")
    return tuple(parts)
